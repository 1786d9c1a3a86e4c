/* config.json of the output. docs/fold.md, "What is written", lists the loader traps behind each step. */
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/plan_build.h"

#define DEPTH_LIMIT 64

static rq_status no_memory(rq_error *err) { return rq_fail(err, RQ_ERR_NOMEM, "config.json: out of memory"); }

static const char *dtype_text(rq_dtype dtype) {
    return dtype == RQ_F16 ? "float16" : dtype == RQ_F32 ? "float32" : "bfloat16";
}

/* Every copy of the tie flag and of the dtype, wherever it stands: loaders disagree about which one they read.
 * tie NULL: left alone. False when out of memory or too deep. */
static bool set_everywhere(json_t *object, const json_t *tie, const json_t *dtype,
                           int depth) { // NOLINT(misc-no-recursion)
    static const char *const dtype_keys[] = {"torch_dtype", "dtype"};
    const char *key;
    json_t *value;
    void *next;
    if (depth > DEPTH_LIMIT) return false;
    if (tie && json_object_get(object, "tie_word_embeddings") &&
        json_object_set(object, "tie_word_embeddings", (json_t *)tie))
        return false;
    for (size_t i = 0; i < RQ_COUNT_OF(dtype_keys); i++)
        if (json_is_string(json_object_get(object, dtype_keys[i])) &&
            json_object_set(object, dtype_keys[i], (json_t *)dtype))
            return false;
    json_object_foreach_safe(object, next, key, value) if (json_is_object(value) &&
                                                           !set_everywhere(value, tie, dtype, depth + 1)) return false;
    return true;
}

static const json_t *present(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

/* transformers >= 5 writes rope_parameters, which mlx-lm's llama and qwen2 classes do not read: they would run at the
 * default theta without scaling. Both spellings are written. */
static rq_status spell_rope(json_t *config, rq_error *err) {
    const json_t *parameters = present(config, "rope_parameters");
    if (!parameters) return RQ_OK;
    const json_t *theta = present(parameters, "rope_theta");
    if (!present(config, "rope_theta")) {
        if (!json_is_number(theta))
            return rq_fail(err, RQ_ERR_UNSUPPORTED,
                           "config.json: rope_parameters has no rope_theta of its own and there is none at the top, so "
                           "loaders would assume one");
        if (json_object_set(config, "rope_theta", (json_t *)theta)) return no_memory(err);
    }
    const json_t *type = present(parameters, "rope_type");
    if (!type) type = present(parameters, "type");
    if (present(config, "rope_scaling") || !json_is_string(type) || strcmp(json_string_value(type), "default") == 0)
        return RQ_OK;
    json_t *scaling = json_deep_copy(parameters);
    if (!scaling) return no_memory(err);
    json_object_del(scaling, "rope_theta");
    return json_object_set_new(config, "rope_scaling", scaling) ? no_memory(err) : RQ_OK;
}

static json_t *format_json(const rq_quant_format *format) {
    return json_pack("{s:i, s:i, s:s}", "group_size", (int)format->group_size, "bits", (int)format->bits, "mode",
                     rq_quant_mode_name(format->mode));
}

/* Multimodal checkpoints in Hugging Face layout: loaders rename what is stored, and overrides go by the new name. */
static const struct {
    const char *stored, *loaded;
} renamed[] = {
    {"model.language_model.", "language_model.model."},
    {"model.visual.", "vision_tower."},
};

static json_t *quantization_json(const rq_plan *plan) {
    const rq_quant_format *top = &plan->options.format;
    json_t *object = format_json(top);
    bool failed = !object;
    for (size_t i = 0; i < plan->count && !failed; i++) {
        const rq_plan_tensor *t = &plan->tensors[i];
        const rq_quant_format *f = &t->format;
        if (!t->module) continue;
        if (t->quantize && f->mode == top->mode && f->bits == top->bits && f->group_size == top->group_size) continue;
        json_t *verdict = t->quantize ? format_json(f) : json_false();
        failed = !verdict || json_object_set(object, t->module, verdict);
        for (size_t k = 0; k < RQ_COUNT_OF(renamed) && !failed; k++) {
            if (!rq_has_prefix(t->module, renamed[k].stored)) continue;
            char *name = rq_format("%s%s", renamed[k].loaded, t->module + strlen(renamed[k].stored));
            failed = !name || json_object_set(object, name, verdict);
            free(name);
        }
        json_decref(verdict);
    }
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static void drop_foreign(json_t *object) {
    json_object_del(object, "quantization");
    json_object_del(object, "quantization_config");
}

rq_status rq_output_config_make(const rq_plan *plan, const json_t *source_config, json_t **config, rq_error *err) {
    rq_status st = RQ_OK;
    const bool generic = strcmp(plan->family, "generic") == 0;
    json_t *out = json_deep_copy(source_config);
    json_t *tie = json_boolean(plan->config.tied && !plan->untied);
    json_t *dtype = json_string(dtype_text(plan->options.dtype));
    if (!out || !dtype) {
        st = no_memory(err);
        goto done;
    }
    drop_foreign(out);
    json_t *text = json_object_get(out, "text_config");
    if (json_is_object(text)) drop_foreign(text);
    json_object_del(out, "_name_or_path"); /* a path on somebody's machine; mlx-lm's saver drops it too */
    if (!json_object_get(out, "torch_dtype") && !json_object_get(out, "dtype") &&
        json_object_set(out, "torch_dtype", dtype)) {
        st = no_memory(err);
        goto done;
    }
    /* Explicit at both levels: loaders differ in which one they read and in what its absence means. In families that we
     * do not know, a missing flag stays the loader's business. */
    if (!generic && (json_object_set(out, "tie_word_embeddings", tie) ||
                     (json_is_object(text) && json_object_set(text, "tie_word_embeddings", tie)))) {
        st = no_memory(err);
        goto done;
    }
    if (!set_everywhere(out, generic ? NULL : tie, dtype, 0)) {
        st = rq_fail(err, RQ_ERR_FORMAT, "config.json: nested too deeply, or out of memory");
        goto done;
    }
    if (!generic && (st = spell_rope(out, err))) goto done;
    if (plan->quantized_modules) {
        json_t *quantization = quantization_json(plan);
        if (!quantization || json_object_set_new(out, "quantization", quantization) ||
            json_object_set(out, "quantization_config", quantization)) {
            st = no_memory(err);
            goto done;
        }
    }
    *config = out;
    out = NULL;
done:
    json_decref(out);
    json_decref(tie);
    json_decref(dtype);
    return st;
}
