/* optiq_metadata.json and README.md. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "convert/package.h"
#include "model/describe.h"
#include "model/json_text.h"
#include "model/plan_build.h"
#include "rotq/rotq.h"

#define TRANSFORM_ID "rotq-fold-1"

/* Where the fold differs from the code of the papers that it comes from. */
static const char *const deviations[] = {
    "no mean-centering of the embedding: RMSNorm does not subtract a mean, so it would change the model",
    "no R3: nothing is rotated after RoPE, which only pays for quantized key-value caches",
    "no R4, and neither of its halves: down_proj's input is not rotated, so the output runs without online transforms",
    "signed Hadamard matrices of order K * 2^m and their blocks; Philox4x32-10 signs",
    "R1 is random, not trained (QuaRot's choice, not SpinQuant's)",
};

static const char *rotation_kind(const rq_rotation *q) {
    switch (q->kind) {
    case RQ_ROTATION_HADAMARD:
        return "signed-hadamard";
    case RQ_ROTATION_BLOCK_HADAMARD:
        return "block-hadamard";
    case RQ_ROTATION_DENSE:
        return "dense";
    case RQ_ROTATION_IDENTITY:
        break;
    }
    return "identity";
}

static json_t *rotation_json(const rq_rotation *q) {
    return json_pack("{s:s, s:I, s:I}", "kind", rotation_kind(q), "n", (json_int_t)q->n, "order", (json_int_t)q->order);
}

static json_t *transform_json(const rq_package_facts *facts) {
    const rq_plan *plan = facts->plan;
    if (!plan->folded || !facts->rotations) return json_null();
    const rq_rotation_set *set = facts->rotations;
    json_t *list = json_array();
    for (size_t i = 0; list && i < RQ_COUNT_OF(deviations); i++)
        if (json_array_append_new(list, json_string(deviations[i]))) {
            json_decref(list);
            list = NULL;
        }
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:b, s:s, s:o}", "id", TRANSFORM_ID, "family", plan->family, "seed",
                     (json_int_t)set->seed, "R1", rotation_json(&set->r1), "R2",
                     plan->head_dim_r2 && set->r2 && set->n_layers ? rotation_json(&set->r2[0]) : json_null(), "untied",
                     (int)plan->untied, "fold_precision", facts->precision == RQ_FOLD_F32 ? "float32" : "float64",
                     "deviations", list);
}

static json_t *per_layer_json(const rq_plan *plan) {
    json_t *object = json_object();
    for (size_t i = 0; object && i < plan->count; i++) {
        const rq_plan_tensor *t = &plan->tensors[i];
        if (!t->module) continue;
        json_t *entry = t->quantize ? json_pack("{s:i, s:i, s:s}", "bits", (int)t->format.bits, "group_size",
                                                (int)t->format.group_size, "mode", rq_quant_mode_name(t->format.mode))
                                    : json_pack("{s:i, s:n}", "bits", 16, "group_size");
        if (json_object_set_new(object, t->module, entry)) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

static json_t *recipe_json(const rq_plan *plan) {
    const rq_plan_memory *memory = plan->arena;
    if (memory && memory->recipe) return json_deep_copy(memory->recipe);
    return plan->options.recipe ? json_string(plan->options.recipe) : json_null();
}

static const char *method_text(const rq_plan *plan) {
    if (!plan->quantized_modules) return plan->folded ? "rotq_fold" : "rotq_copy";
    return plan->folded ? "rotq_fold_and_quantize" : "rotq_quantize";
}

char *rq_package_metadata(const rq_package_facts *facts) {
    const rq_plan *plan = facts->plan;
    const double optiq = rq_optiq_bits_per_weight(plan);
    json_t *all = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:f, s:{s:f, s:f}, s:I, s:I, s:o, s:o, s:s?}", "tool", "rotq",
        "tool_version", ROTQ_VERSION, "method", method_text(plan), "family", plan->family, "transform",
        transform_json(facts), "source_fingerprint", facts->fingerprint, "scales_method",
        plan->quantized_modules ? rq_scales_method_name(plan->options.scales) : "none", "dtype",
        rq_dtype_name(plan->options.dtype), "achieved_bpw", optiq, "bits_per_weight", "mlx_lm", plan->bits_per_weight,
        "optiq", optiq, "parameters", (json_int_t)plan->parameters, "tensor_bytes", (json_int_t)plan->total_bytes,
        "recipe", recipe_json(plan), "per_layer", per_layer_json(plan), "base_model", facts->base_model);
    json_t *sorted = all ? rq_json_sorted_copy(all) : NULL;
    char *text = sorted ? rq_json_pretty(sorted) : NULL;
    json_decref(all);
    json_decref(sorted);
    return text;
}

/* ---- model card ---- */

static void count_formats(const rq_plan *plan, rq_text *out) {
    enum { MAX_KINDS = 32 };
    struct {
        char text[48];
        size_t modules;
        uint64_t bytes;
    } kinds[MAX_KINDS];
    size_t n = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const rq_plan_tensor *t = &plan->tensors[i];
        char text[48];
        rq_describe_stored(t, text, sizeof text);
        size_t k = 0;
        while (k < n && strcmp(kinds[k].text, text) != 0) k++;
        if (k == MAX_KINDS) continue;
        if (k == n) {
            memset(&kinds[n], 0, sizeof kinds[n]);
            memcpy(kinds[n++].text, text, sizeof text);
        }
        kinds[k].modules++;
        kinds[k].bytes += t->bytes;
    }
    rq_text_append(out, "| stored as | tensors | size |\n| --- | ---: | ---: |\n");
    for (size_t k = 0; k < n; k++) {
        char size[32];
        rq_text_append(out, "| %s | %zu | %s |\n", kinds[k].text, kinds[k].modules,
                       rq_describe_bytes(kinds[k].bytes, size, sizeof size));
    }
}

char *rq_package_model_card(const rq_package_facts *facts) {
    const rq_plan *plan = facts->plan;
    rq_text out = {0};
    char rotation[96], size[32];
    rq_text_append(&out, "---\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n- rotq\n");
    if (facts->base_model) rq_text_append(&out, "base_model: %s\n", facts->base_model);
    rq_text_append(&out, "---\n\n# %s, converted by rotq %s\n\n",
                   facts->base_model ? facts->base_model : plan->config.model_type, ROTQ_VERSION);
    if (plan->folded)
        rq_text_append(
            &out, "Orthogonal rotations and the RMSNorm gains were folded into the weights. The model computes the "
                  "same function as its source up to rounding, with weights that are easier to quantize; it runs "
                  "in stock mlx-lm, and nothing is rotated at run time.\n\n");
    rq_text_append(&out, "- family: %s%s\n- rotation: %s\n", plan->family,
                   plan->untied ? "; the tied embedding was split into an embedding and an output head" : "",
                   rq_describe_rotation(plan, rotation, sizeof rotation));
    rq_text_append(&out, "- size: %s, %.3f bits per weight as mlx-lm counts\n",
                   rq_describe_bytes(plan->total_bytes, size, sizeof size), plan->bits_per_weight);
    if (plan->quantized_modules)
        rq_text_append(&out, "- scales: %s\n",
                       plan->options.scales == RQ_SCALES_SEARCH
                           ? "searched per group (same format on disk, lower error)"
                           : "as stock mx.quantize chooses them on the CPU");
    rq_text_append(&out, "\n");
    count_formats(plan, &out);
    rq_text_append(&out,
                   "\n```sh\npip install mlx-lm\nmlx_lm.generate --model . --prompt \"Hello\"\n```\n\n"
                   "Details are in `optiq_metadata.json`%s.\n",
                   plan->folded ? "; `rotation.json` rebuilds the rotations" : "");
    if (out.failed) {
        rq_text_deinit(&out);
        return NULL;
    }
    return out.data;
}
