/* The plan for people (a table) and for programs (JSON). */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/base.h"
#include "model/describe.h"
#include "rotq/plan.h"

static const char *const op_names[] = {"clone", "gain_in", "r1_in", "r2_in", "r1_out", "r2_out", "set_ones"};
static const char *const op_signs[] = {"clone", "γ", "·R1", "·R2", "R1ᵀ·", "R2ᵀ·", "=1"};

/* ---- table ---- */

typedef struct cells {
    char name[160], shape[64], ops[160], stored[48], bytes[24];
} cells;

/* "input_layernorm" of "model.layers.0.input_layernorm.weight". */
static void gain_name(const char *gain, char *out, size_t bytes) {
    const size_t length = strlen(gain) - (rq_has_suffix(gain, ".weight") ? strlen(".weight") : 0);
    size_t start = length;
    while (start && gain[start - 1] != '.') start--;
    snprintf(out, bytes, "%.*s", (int)(length - start), gain + start);
}

static void fill(const rq_plan_tensor *t, cells *c) {
    *c = (cells){0};
    snprintf(c->name, sizeof c->name, "%s", t->name);
    size_t used = 0;
    for (unsigned i = 0; i < t->rank && used < sizeof c->shape; i++)
        used += (size_t)snprintf(c->shape + used, sizeof c->shape - used, "%s%" PRIu64, i ? " x " : "", t->shape[i]);
    used = 0;
    for (unsigned i = 0; i < t->n_ops && used < sizeof c->ops; i++) {
        char gain[64] = "";
        if (t->ops[i].kind == RQ_OP_GAIN_IN) gain_name(t->ops[i].gain, gain, sizeof gain);
        used += (size_t)snprintf(c->ops + used, sizeof c->ops - used, "%s%s", i ? " " : "", op_signs[t->ops[i].kind]);
        if (used < sizeof c->ops && *gain) used += (size_t)snprintf(c->ops + used, sizeof c->ops - used, "(%s)", gain);
        if (used < sizeof c->ops && t->ops[i].kind == RQ_OP_CLONE)
            used += (size_t)snprintf(c->ops + used, sizeof c->ops - used, "(%s)", t->source->name);
    }
    if (!t->n_ops) snprintf(c->ops, sizeof c->ops, "copy");
    rq_describe_stored(t, c->stored, sizeof c->stored);
    snprintf(c->bytes, sizeof c->bytes, "%" PRIu64, t->bytes);
}

/* Columns on a terminal: bytes that do not continue a UTF-8 character. */
static int width(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void put_cell(rq_text *out, const char *text, int columns) {
    const int pad = columns - width(text);
    rq_text_append(out, "%s%*s  ", text, pad > 0 ? pad : 0, "");
}

static void put_row(rq_text *out, const cells *c, const int w[5]) {
    put_cell(out, c->name, w[0]);
    put_cell(out, c->shape, w[1]);
    put_cell(out, c->ops, w[2]);
    put_cell(out, c->stored, w[3]);
    rq_text_append(out, "%*s\n", w[4], c->bytes);
}

static void widen(const cells *c, int w[5]) {
    const char *const text[5] = {c->name, c->shape, c->ops, c->stored, c->bytes};
    for (int i = 0; i < 5; i++)
        if (width(text[i]) > w[i]) w[i] = width(text[i]);
}

char *rq_plan_table(const rq_plan *plan, uint64_t peak_memory_bytes) {
    static const cells head = {"tensor", "shape", "operations", "stored", "bytes"};
    rq_text out = {0};
    cells c;
    char size[32], memory[32], rotation[80];
    int w[5] = {0};
    widen(&head, w);
    for (size_t i = 0; i < plan->count; i++) {
        fill(&plan->tensors[i], &c);
        widen(&c, w);
    }
    put_row(&out, &head, w);
    for (size_t i = 0; i < plan->count; i++) {
        fill(&plan->tensors[i], &c);
        put_row(&out, &c, w);
    }
    for (size_t i = 0; i < plan->count; i++)
        if (plan->tensors[i].dense_reason)
            rq_text_append(&out, "dense: %s: %s\n", plan->tensors[i].module, plan->tensors[i].dense_reason);
    rq_text_append(&out, "\n%-13s %s%s\n", "family", plan->family,
                   plan->untied ? ", untied: lm_head is made from the embedding" : "");
    rq_text_append(&out, "%-13s %s\n", "rotation", rq_describe_rotation(plan, rotation, sizeof rotation));
    rq_text_append(&out, "%-13s %" PRIu64 " quantized, %" PRIu64 " dense\n", "modules", plan->quantized_modules,
                   plan->dense_modules);
    if (plan->options.recipe) rq_text_append(&out, "%-13s %s\n", "recipe", plan->options.recipe);
    if (plan->quantized_modules)
        rq_text_append(&out, "%-13s %s\n", "scales", rq_scales_method_name(plan->options.scales));
    rq_text_append(&out, "%-13s %.4f bits per weight as mlx-lm counts (%" PRIu64 " parameters)\n", "size",
                   plan->bits_per_weight, plan->parameters);
    rq_text_append(&out, "%-13s %s (%" PRIu64 " bytes of tensors)\n", "output",
                   rq_describe_bytes(plan->total_bytes, size, sizeof size), plan->total_bytes);
    rq_text_append(&out, "%-13s %s at most\n", "memory", rq_describe_bytes(peak_memory_bytes, memory, sizeof memory));
    if (out.failed) {
        rq_text_deinit(&out);
        return NULL;
    }
    return out.data;
}

/* ---- JSON ---- */

static json_t *ops_json(const rq_plan_tensor *t) {
    json_t *list = json_array();
    for (unsigned i = 0; list && i < t->n_ops; i++) {
        json_t *op = json_pack("{s:s}", "op", op_names[t->ops[i].kind]);
        bool failed = !op;
        if (op && t->ops[i].kind == RQ_OP_GAIN_IN)
            failed |= json_object_set_new(op, "gain", json_string(t->ops[i].gain)) != 0;
        if (op && (t->ops[i].kind == RQ_OP_R2_IN || t->ops[i].kind == RQ_OP_R2_OUT))
            failed |= json_object_set_new(op, "layer", json_integer(t->ops[i].layer)) != 0;
        if (json_array_append_new(list, op) || failed) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *tensor_json(const rq_plan_tensor *t) {
    json_t *shape = json_array();
    for (unsigned i = 0; shape && i < t->rank; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)t->shape[i]))) {
            json_decref(shape);
            return NULL;
        }
    json_t *row = json_pack("{s:s, s:s, s:s, s:o, s:o, s:b, s:s, s:I, s:s?, s:s?}", "name", t->name, "source",
                            t->source->name, "role", t->role, "shape", shape, "ops", ops_json(t), "quantized",
                            (int)t->quantize, "dtype", rq_dtype_name(t->dtype), "bytes", (json_int_t)t->bytes, "module",
                            t->module, "dense_reason", t->dense_reason);
    if (row && t->quantize) {
        bool failed = json_object_set_new(row, "bits", json_integer(t->format.bits)) != 0;
        failed |= json_object_set_new(row, "group_size", json_integer(t->format.group_size)) != 0;
        failed |= json_object_set_new(row, "mode", json_string(rq_quant_mode_name(t->format.mode))) != 0;
        if (failed) {
            json_decref(row);
            row = NULL;
        }
    }
    return row;
}

static json_t *config_json(const rq_model_config *c) {
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "model_type", c->model_type, "hidden_size",
                     (json_int_t)c->hidden_size, "num_hidden_layers", (json_int_t)c->num_hidden_layers,
                     "intermediate_size", (json_int_t)c->intermediate_size, "num_attention_heads",
                     (json_int_t)c->num_attention_heads, "num_key_value_heads", (json_int_t)c->num_key_value_heads,
                     "head_dim", (json_int_t)c->head_dim, "vocab_size", (json_int_t)c->vocab_size, "tied",
                     (int)c->tied);
}

static json_t *rotation_json(const rq_plan *plan) {
    if (!plan->folded) return json_null();
    const rq_rotation_spec *spec = &plan->options.rotation;
    return json_pack("{s:s, s:I, s:s, s:I, s:I, s:s?}", "r1", rq_r1_name(spec), "block",
                     (json_int_t)(spec->r1 == RQ_SPEC_BLOCK ? spec->block : 0), "r2", rq_r2_name(plan), "head_dim",
                     (json_int_t)plan->head_dim_r2, "seed", (json_int_t)spec->seed, "file",
                     spec->r1 == RQ_SPEC_FILE ? spec->file : NULL);
}

json_t *rq_plan_json(const rq_plan *plan, uint64_t peak_memory_bytes) {
    const rq_plan_options *o = &plan->options;
    json_t *tensors = json_array();
    for (size_t i = 0; tensors && i < plan->count; i++)
        if (json_array_append_new(tensors, tensor_json(&plan->tensors[i]))) {
            json_decref(tensors);
            return NULL;
        }
    json_t *totals = json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I}", "parameters", (json_int_t)plan->parameters,
                               "bytes", (json_int_t)plan->total_bytes, "quantized_modules",
                               (json_int_t)plan->quantized_modules, "dense_modules", (json_int_t)plan->dense_modules,
                               "bits_per_weight", plan->bits_per_weight, "bits_per_weight_optiq",
                               rq_optiq_bits_per_weight(plan), "peak_memory_bytes", (json_int_t)peak_memory_bytes);
    return json_pack("{s:s, s:b, s:b, s:b, s:s?, s:o, s:o, s:b, s:s?, s:s, s:s, s:o, s:o}", "family", plan->family,
                     "folded", (int)plan->folded, "untied", (int)plan->untied, "requires_neutral_final_gain",
                     (int)plan->requires_neutral_final_gain, "dropped_head", plan->dropped_head, "config",
                     config_json(&plan->config), "rotation", rotation_json(plan), "quantize", (int)o->quantize,
                     "recipe", o->recipe, "scales", rq_scales_method_name(o->scales), "dtype", rq_dtype_name(o->dtype),
                     "totals", totals, "tensors", tensors);
}
