/* rq_check_directory: does a finished model hold what its config.json promises?
 *
 * Findings, each a warning with one of these codes:
 *   missing-shard, index-mismatch, stray-safetensors      index and files (rq_checkpoint_open_lenient)
 *   foreign-quantization, quantization-mirror, quantization-incomplete      config.json by itself
 *   override-invalid, override-unknown-module, override-missing             overrides against modules
 *   undeclared-quantized, promised-but-dense                                modules against config.json
 *   missing-weight, missing-scales, missing-biases, weight-dtype, scales-dtype, scales-shape, ambiguous-format,
 *   global-scale                                                            a module's own parts
 *   tie-flag                                                                tie_word_embeddings against the head */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/checkpoint_internal.h"
#include "tensor/json_util.h"
#include "tensor/mlx_module.h"

typedef struct checker {
    const rq_checkpoint *ckpt;
    const json_t *config, *quantization; /* quantization: MLX's, or NULL */
    bool has_top;
    rq_quant_format top;
    rq_notes *notes;
} checker;

static void warn(checker *c, const char *code, const rq_error *finding) {
    rq_note_add(c->notes, RQ_NOTE_WARNING, code, "%s", finding->message);
}

/* The name without `suffix` when it has it, else NULL; owned. Running out of memory counts as a lost note. */
static char *stem(checker *c, const char *name, const char *suffix) {
    if (!rq_has_suffix(name, suffix)) return NULL;
    char *text = rq_format("%.*s", (int)(strlen(name) - strlen(suffix)), name);
    if (!text) c->notes->lost++;
    return text;
}

static bool has_tensor(checker *c, const char *module, const char *part) {
    size_t i = 0;
    char *name = rq_format("%s.%s", module, part);
    if (!name) c->notes->lost++;
    const bool found = name && rq_checkpoint_find(c->ckpt, name, &i);
    free(name);
    return found;
}

/* ---- config.json by itself ---- */

static bool is_own_key(const char *key) {
    return strcmp(key, "group_size") == 0 || strcmp(key, "bits") == 0 || strcmp(key, "mode") == 0;
}

static void check_quantization_object(checker *c) {
    const json_t *mirror = json_object_get(c->config, "quantization_config");
    const json_t *first = json_object_get(c->config, "quantization");
    const char *foreign = rq_foreign_quantization(c->config);
    rq_error finding;
    if (foreign) {
        rq_note_add(c->notes, RQ_NOTE_WARNING, "foreign-quantization",
                    "config.json declares the quantization \"%s\", which is not MLX's", foreign);
        return;
    }
    if (!json_equal(first, mirror) && (first || mirror))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "quantization-mirror",
                    !first ? "config.json has quantization_config but no quantization"
                           : (!mirror ? "config.json has quantization but no quantization_config, its mirror"
                                      : "quantization and quantization_config in config.json differ"));
    if (!c->quantization) return;
    if (!json_object_get(c->quantization, "group_size") || !json_object_get(c->quantization, "bits") ||
        !json_object_get(c->quantization, "mode"))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "quantization-incomplete",
                    "quantization in config.json lacks group_size, bits or mode, which some loaders need");
    c->has_top = rq_mlx_read_format(c->quantization, "quantization", &c->top, &finding) == RQ_OK;
    if (!c->has_top) warn(c, "override-invalid", &finding);
}

static void check_override(checker *c, const char *module, json_t *value) {
    const char *key = NULL;
    json_t *member = NULL;
    rq_mlx_origin origin = RQ_MLX_SILENT;
    rq_quant_format format;
    rq_error finding;
    if (rq_mlx_override(c->quantization, module, &origin, &format, &finding) != RQ_OK)
        warn(c, "override-invalid", &finding);
    json_object_foreach(value, key, member) {
        /* Loaders pass the object's keys on as arguments: another key is an error there. */
        if (!is_own_key(key) && strcmp(key, "global_scale") != 0)
            rq_note_add(c->notes, RQ_NOTE_WARNING, "override-invalid",
                        "the override of \"%s\" in config.json has the key \"%s\", which loaders refuse", module, key);
    }
    if (!has_tensor(c, module, "weight"))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "override-unknown-module",
                    "config.json has an override for \"%s\", but there is no such module", module);
}

static void check_overrides(checker *c) {
    const char *key = NULL;
    json_t *value = NULL;
    json_t *object = (json_t *)c->quantization; /* jansson's iteration takes no const */
    json_object_foreach(object, key, value) {
        const bool is_override =
            json_is_object(value) || json_is_boolean(value) || (json_is_null(value) && strchr(key, '.'));
        if (is_override && !is_own_key(key)) check_override(c, key, value);
    }
}

/* ---- modules ---- */

static bool same_format(const rq_quant_format *a, const rq_quant_format *b) {
    return a->mode == b->mode && a->bits == b->bits && a->group_size == b->group_size;
}

static void check_packed(checker *c, const char *module) {
    rq_mlx_module m;
    const char *code = NULL;
    rq_error finding;
    if (rq_mlx_inspect(c->ckpt, module, &m, &code, &finding) != RQ_OK) {
        if (!code)
            c->notes->lost++;
        else if (c->quantization ||
                 strcmp(code, "ambiguous-format") != 0) /* else undeclared-quantized says it better */
            warn(c, code, &finding);
        return;
    }
    if (c->has_top && m.origin == RQ_MLX_SILENT && !same_format(&m.format, &c->top))
        rq_note_add(
            c->notes, RQ_NOTE_WARNING, "override-missing",
            "module \"%s\" is %s with %u bits in groups of %u, unlike config.json's default, and has no override",
            module, rq_quant_mode_name(m.format.mode), m.format.bits, m.format.group_size);
}

/* Parts that stock converters leave dense without an override: towers of multimodal models, and routers. */
static bool is_left_dense_by_custom(const char *module) {
    static const char *const patterns[] = {"*vision_tower.*", "*vision_model.*", "*visual.*", "*audio_tower.*",
                                           "*projector*",     "*.mlp.gate",      "*.router"};
    for (size_t i = 0; i < RQ_COUNT_OF(patterns); i++)
        if (rq_glob_match(patterns[i], module)) return true;
    return false;
}

/* A dense matrix where config.json's default or override says quantized. */
static void check_dense(checker *c, const char *module, const rq_tensor_info *weight) {
    rq_mlx_origin origin = RQ_MLX_SILENT;
    rq_quant_format format = c->top;
    if (!c->quantization || !rq_dtype_is_float(weight->dtype)) return;
    if (rq_mlx_override(c->quantization, module, &origin, &format, NULL) != RQ_OK || origin == RQ_MLX_DENSE) return;
    if (origin == RQ_MLX_SILENT) {
        if (!c->has_top || weight->rank != 2 || !rq_quant_fits(&c->top, weight->shape[0], weight->shape[1]) ||
            is_left_dense_by_custom(module))
            return;
        format = c->top;
    }
    rq_note_add(
        c->notes, RQ_NOTE_WARNING, "promised-but-dense",
        "config.json says that module \"%s\" is %s with %u bits, but its weight is dense %s and it has no scales",
        module, rq_quant_mode_name(format.mode), format.bits, rq_dtype_name(weight->dtype));
}

/* Visits every module once: by its weight, or by its scales when there is no weight. */
static void check_modules(checker *c) {
    size_t packed = 0;
    const char *first = NULL;
    for (size_t i = 0; i < rq_checkpoint_count(c->ckpt); i++) {
        const rq_tensor_info *t = rq_checkpoint_at(c->ckpt, i);
        char *module = stem(c, t->name, ".weight");
        if (module) {
            const bool has_scales = has_tensor(c, module, "scales");
            if (t->dtype == RQ_U32 && packed++ == 0) first = t->name;
            if (t->dtype == RQ_U32 || has_scales)
                check_packed(c, module);
            else
                check_dense(c, module, t);
        } else if ((module = stem(c, t->name, ".scales")) && !has_tensor(c, module, "weight")) {
            check_packed(c, module);
        }
        free(module);
    }
    if (packed > 0 && !c->quantization)
        rq_note_add(c->notes, RQ_NOTE_WARNING, "undeclared-quantized",
                    "%zu weights are packed (the first is \"%s\"), but config.json has no quantization entry", packed,
                    first);
}

/* ---- tie flag ---- */

/* Families for which mlx-lm takes a missing flag for true. */
static bool tied_by_default(const json_t *config) {
    static const char *const types[] = {"llama", "mistral", "qwen2"};
    const char *type = rq_json_text(config, "model_type");
    for (size_t i = 0; type && i < RQ_COUNT_OF(types); i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

static const rq_tensor_info *find_head(const rq_checkpoint *ckpt) {
    static const char *const names[] = {"lm_head.weight", "language_model.lm_head.weight"};
    size_t at = 0;
    for (size_t i = 0; i < RQ_COUNT_OF(names); i++)
        if (rq_checkpoint_find(ckpt, names[i], &at)) return rq_checkpoint_at(ckpt, at);
    return NULL;
}

static void check_tie(checker *c) {
    const json_t *text = json_object_get(c->config, "text_config");
    const json_t *outer = json_object_get(c->config, "tie_word_embeddings");
    const json_t *flag = json_is_object(text) ? json_object_get(text, "tie_word_embeddings") : outer;
    const rq_tensor_info *head = find_head(c->ckpt);
    if (json_is_object(text) && flag && outer && !json_equal(flag, outer))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "tie-flag",
                    "config.json has tie_word_embeddings %s at the top and %s in text_config",
                    json_is_true(outer) ? "true" : "false", json_is_true(flag) ? "true" : "false");
    if (head && json_is_true(flag))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "tie-flag",
                    "tie_word_embeddings is true, yet \"%s\" is stored: loaders drop it or fail", head->name);
    else if (head && !flag && tied_by_default(c->config))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "tie-flag",
                    "tie_word_embeddings is absent, which loaders of this family take for true, yet \"%s\" is stored",
                    head->name);
    else if (!head && json_is_false(flag))
        rq_note_add(c->notes, RQ_NOTE_WARNING, "tie-flag",
                    "tie_word_embeddings is false, but no lm_head.weight is stored");
}

rq_status rq_check_directory(const char *directory, rq_notes *notes, rq_error *err) {
    rq_notes own = {0};
    rq_checkpoint *ckpt = NULL;
    size_t findings = 0;
    if (!notes) notes = &own;
    const size_t before = notes->count, lost_before = notes->lost;
    rq_status st = rq_checkpoint_open_lenient(directory, &ckpt, notes, err);
    if (st != RQ_OK) goto done;
    checker c = {.ckpt = ckpt, .config = rq_checkpoint_config(ckpt), .notes = notes};
    c.quantization = rq_mlx_quantization(c.config);
    check_quantization_object(&c);
    check_overrides(&c);
    check_modules(&c);
    check_tie(&c);
    for (size_t i = before; i < notes->count; i++) findings += notes->items[i].level == RQ_NOTE_WARNING;
    if (notes->lost > lost_before)
        st = rq_fail(err, RQ_ERR_NOMEM, "%s: memory ran out during the check", directory);
    else if (findings > 0)
        st = rq_fail(err, RQ_ERR_MISMATCH, "%s: %zu finding%s, the first: %s", directory, findings,
                     findings == 1 ? "" : "s", notes->items[before].text);
done:
    rq_checkpoint_close(ckpt);
    rq_notes_deinit(&own);
    return st;
}
