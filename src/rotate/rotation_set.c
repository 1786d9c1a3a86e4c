#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "linalg/hadamard.h"
#include "rotate/limits.h"
#include "rotq/rotation.h"

rq_status rq_rotation_spec_parse(const char *text, rq_rotation_spec *spec, rq_error *err) {
    if (strcmp(text, "hadamard") == 0) {
        spec->r1 = RQ_SPEC_HADAMARD;
        return RQ_OK;
    }
    if (strcmp(text, "random") == 0) {
        spec->r1 = RQ_SPEC_RANDOM;
        return RQ_OK;
    }
    if (strcmp(text, "none") == 0) {
        spec->r1 = RQ_SPEC_NONE;
        return RQ_OK;
    }
    if (strncmp(text, "block:", 6) == 0) {
        const char *digits = text + 6;
        char *end = NULL;
        errno = 0;
        const unsigned long long block = strtoull(digits, &end, 10);
        if (*digits < '1' || *digits > '9' || *end || errno || block > RQ_ROTATION_MAX)
            return rq_fail(err, RQ_ERR_USAGE, "rotation \"%s\": a block size is a whole number from 1 to %zu", text,
                           RQ_ROTATION_MAX);
        spec->r1 = RQ_SPEC_BLOCK;
        spec->block = (size_t)block;
        return RQ_OK;
    }
    if (strchr(text, '/') || rq_has_suffix(text, ".json") || rq_is_directory(text)) {
        spec->r1 = RQ_SPEC_FILE;
        spec->file = text;
        return RQ_OK;
    }
    return rq_fail(
        err, RQ_ERR_USAGE,
        "rotation \"%s\" is none of hadamard, block:B, random, none, or a sidecar: a path with '/' or .json, or a "
        "directory that holds rotation.json",
        text);
}

rq_status rq_rotation_check_r2(size_t head_dim, size_t K, size_t layers, rq_error *err) {
    if (head_dim == 0 || head_dim > RQ_ROTATION_R2_MAX || layers > RQ_ROTATION_LAYERS_MAX ||
        head_dim * layers > RQ_ROTATION_R2_SIGNS_MAX)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "R2 of order %zu for %zu layers: the limits are order %zu, %zu layers, and a product of %zu",
                       head_dim, layers, RQ_ROTATION_R2_MAX, RQ_ROTATION_LAYERS_MAX, RQ_ROTATION_R2_SIGNS_MAX);
    if (K * K * layers > RQ_ROTATION_R2_HK_MAX)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "R2 of order %zu for %zu layers: H_K of order %zu is too large to keep once per layer", head_dim,
                       layers, K);
    return RQ_OK;
}

static rq_status make_r2(const rq_rotation_spec *spec, size_t head_dim, size_t n_layers, rq_rotation_set *set,
                         rq_error *err) {
    const bool hadamard = spec->r2 == RQ_R2_HADAMARD;
    size_t K = 0;
    unsigned m = 0;
    const char *construction = NULL;
    if (hadamard && !rq_hadamard_split(head_dim, &K, &m, &construction))
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "no Hadamard matrix of order %zu (head_dim) can be generated for R2: use `--r2 random` or "
                       "`--r2 none`",
                       head_dim);
    rq_status st = rq_rotation_check_r2(head_dim, K, n_layers, err);
    if (st != RQ_OK) return st;
    set->r2 = calloc(n_layers, sizeof *set->r2);
    if (!set->r2) return rq_fail(err, RQ_ERR_NOMEM, "no memory for the R2 of %zu layers", n_layers);
    for (size_t layer = 0; st == RQ_OK && layer < n_layers; layer++) {
        const uint32_t stream = (uint32_t)(1 + layer);
        rq_rotation *q = &set->r2[layer];
        st = hadamard ? rq_rotation_hadamard(head_dim, spec->seed, stream, q, err)
                      : rq_rotation_random(head_dim, spec->seed, stream, q, err);
    }
    return st;
}

static rq_status read_for_model(const char *path, size_t hidden, size_t head_dim, size_t n_layers, rq_rotation_set *set,
                                rq_error *err) {
    const rq_status st = rq_rotation_set_read(path, set, err);
    if (st != RQ_OK) return st;
    if (set->r1.n != hidden)
        return rq_fail(err, RQ_ERR_SHAPE, "%s: R1 is of size %zu, but the model's hidden size is %zu", path, set->r1.n,
                       hidden);
    if (!set->r2) {
        set->n_layers = n_layers;
        return RQ_OK;
    }
    if (head_dim == 0) return rq_fail(err, RQ_ERR_SHAPE, "%s has R2 matrices, but this model takes no R2", path);
    if (set->r2[0].n != head_dim)
        return rq_fail(err, RQ_ERR_SHAPE, "%s: R2 is of size %zu, but the model's head_dim is %zu", path, set->r2[0].n,
                       head_dim);
    if (set->n_layers != n_layers)
        return rq_fail(err, RQ_ERR_SHAPE, "%s: R2 for %zu layers, but the model has %zu", path, set->n_layers,
                       n_layers);
    return RQ_OK;
}

static rq_status make_r1(const rq_rotation_spec *spec, size_t hidden, rq_rotation *r1, rq_error *err) {
    switch (spec->r1) {
    case RQ_SPEC_HADAMARD:
        return rq_rotation_hadamard(hidden, spec->seed, 0, r1, err);
    case RQ_SPEC_BLOCK:
        return rq_rotation_block_hadamard(hidden, spec->block, spec->seed, 0, r1, err);
    case RQ_SPEC_RANDOM:
        return rq_rotation_random(hidden, spec->seed, 0, r1, err);
    case RQ_SPEC_NONE:
    case RQ_SPEC_FILE:
        break;
    }
    return rq_rotation_identity(hidden, r1, err);
}

rq_status rq_rotation_set_make(const rq_rotation_spec *spec, size_t hidden, size_t head_dim, size_t n_layers,
                               rq_rotation_set *set, rq_error *err) {
    rq_rotation_set made = {.seed = spec->seed, .n_layers = n_layers};
    rq_status st = RQ_OK;
    if (spec->r1 == RQ_SPEC_FILE) {
        st = read_for_model(spec->file, hidden, head_dim, n_layers, &made, err);
    } else if (spec->seed > RQ_ROTATION_SEED_MAX) {
        st = rq_fail(err, RQ_ERR_USAGE, "seed %llu is above 2^63 - 1, the largest that the sidecar can hold",
                     (unsigned long long)spec->seed);
    } else {
        st = make_r1(spec, hidden, &made.r1, err);
        if (st == RQ_OK && spec->r1 != RQ_SPEC_NONE && spec->r2 != RQ_R2_NONE && head_dim && n_layers)
            st = make_r2(spec, head_dim, n_layers, &made, err);
    }
    if (st != RQ_OK) {
        rq_rotation_set_deinit(&made);
        return st;
    }
    *set = made;
    return RQ_OK;
}

void rq_rotation_set_deinit(rq_rotation_set *set) {
    if (!set) return;
    rq_rotation_deinit(&set->r1);
    if (set->r2)
        for (size_t i = 0; i < set->n_layers; i++) rq_rotation_deinit(&set->r2[i]);
    free(set->r2);
    *set = (rq_rotation_set){0};
}
