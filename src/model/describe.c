#include "model/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *rq_describe_stored(const rq_plan_tensor *t, char *buffer, size_t bytes) {
    if (t->quantize) {
        snprintf(buffer, bytes, "%ub g%u %s", t->format.bits, t->format.group_size, rq_quant_mode_name(t->format.mode));
        return buffer;
    }
    const char *name = rq_dtype_name(t->dtype);
    size_t i = 0;
    for (; name[i] && i + 1 < bytes; i++) buffer[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] + 32) : name[i];
    buffer[i] = '\0';
    return buffer;
}

const char *rq_r1_name(const rq_rotation_spec *spec) {
    switch (spec->r1) {
    case RQ_SPEC_HADAMARD:
        return "hadamard";
    case RQ_SPEC_BLOCK:
        return "block";
    case RQ_SPEC_RANDOM:
        return "random";
    case RQ_SPEC_FILE:
        return "file";
    case RQ_SPEC_NONE:
        break;
    }
    return "none";
}

const char *rq_r2_name(const rq_plan *plan) {
    if (!plan->head_dim_r2) return "none";
    if (plan->options.rotation.r1 == RQ_SPEC_FILE) return "file";
    return plan->options.rotation.r2 == RQ_R2_RANDOM ? "random" : "hadamard";
}

const char *rq_scales_method_name(rq_scales_method method) { return method == RQ_SCALES_SEARCH ? "search" : "mlx"; }

const char *rq_describe_rotation(const rq_plan *plan, char *buffer, size_t bytes) {
    const rq_rotation_spec *spec = &plan->options.rotation;
    char block[32] = "";
    if (!plan->folded) {
        snprintf(buffer, bytes, "none");
        return buffer;
    }
    if (spec->r1 == RQ_SPEC_BLOCK) snprintf(block, sizeof block, ":%zu", spec->block);
    snprintf(buffer, bytes, "R1 %s%s, R2 %s, seed %" PRIu64, rq_r1_name(spec), block, rq_r2_name(plan), spec->seed);
    return buffer;
}

const char *rq_describe_bytes(uint64_t n, char *buffer, size_t bytes) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if ((double)n >= units[i].unit) {
            snprintf(buffer, bytes, "%.2f %s", (double)n / units[i].unit, units[i].name);
            return buffer;
        }
    snprintf(buffer, bytes, "%" PRIu64 " bytes", n);
    return buffer;
}

double rq_optiq_bits_per_weight(const rq_plan *plan) {
    double bits = 0, weights = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const rq_plan_tensor *t = &plan->tensors[i];
        if (!t->module || t->rank != 2 || strcmp(t->role, "embedding") == 0) continue;
        const double n = (double)t->shape[0] * (double)t->shape[1];
        bits += n * (t->quantize ? t->format.bits : 16);
        weights += n;
    }
    return weights > 0 ? bits / weights : 0;
}
