#include "model/recipe.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "model/names.h"
#include "tensor/json_util.h"

#define LISTED_NAMES 6

/* Where families keep their MLP. */
static const char *const mlp_patterns[] = {"*.mlp.*", "*.feed_forward.*", "*.block_sparse_moe.*"};

static const struct {
    const char *name;
    unsigned low_bits, high_bits;
} mixed[] = {
    {"mixed_2_6", 2, 6},
    {"mixed_3_4", 3, 4},
    {"mixed_3_6", 3, 6},
    {"mixed_4_6", 4, 6},
};

void rq_recipe_deinit(rq_recipe *recipe) {
    if (!recipe) return;
    for (size_t i = 0; i < recipe->count; i++) free(recipe->rules[i].match);
    free(recipe->rules);
    free(recipe->name);
    free(recipe->label);
    json_decref(recipe->source);
    *recipe = (rq_recipe){0};
}

static rq_status no_memory(rq_error *err) { return rq_fail(err, RQ_ERR_NOMEM, "recipe: out of memory"); }

/* ---- named recipes ---- */

static rq_status open_named(const char *name, const rq_quant_format *base, rq_recipe *recipe, bool *found,
                            rq_error *err) {
    const bool tq = strcmp(name, "tq-mixed") == 0;
    size_t i = 0;
    while (i < RQ_COUNT_OF(mixed) && strcmp(mixed[i].name, name) != 0) i++;
    *found = tq || i < RQ_COUNT_OF(mixed);
    if (!*found) return RQ_OK;
    if (base->mode != RQ_AFFINE)
        return rq_fail(err, RQ_ERR_USAGE, "recipe %s is made of affine formats; it does not go with mode %s", name,
                       rq_quant_mode_name(base->mode));
    if (!(recipe->name = rq_strdup(name)) || !(recipe->label = rq_strdup(name))) return no_memory(err);
    if (!tq) {
        recipe->low_bits = mixed[i].low_bits;
        recipe->high_bits = mixed[i].high_bits;
        recipe->fallback = (rq_verdict){RQ_RULE_QUANTIZE, {RQ_AFFINE, mixed[i].low_bits, base->group_size}};
        return RQ_OK;
    }
    recipe->fallback = (rq_verdict){RQ_RULE_QUANTIZE, {RQ_AFFINE, 4, base->group_size}};
    if (!(recipe->rules = calloc(RQ_COUNT_OF(mlp_patterns), sizeof *recipe->rules))) return no_memory(err);
    for (size_t k = 0; k < RQ_COUNT_OF(mlp_patterns); k++) {
        if (!(recipe->rules[k].match = rq_strdup(mlp_patterns[k]))) return no_memory(err);
        recipe->rules[k].verdict = (rq_verdict){RQ_RULE_QUANTIZE, {RQ_AFFINE, 3, base->group_size}};
        recipe->count++;
    }
    return RQ_OK;
}

/* ---- JSON recipes ---- */

static rq_status read_small(const json_t *object, const char *key, const char *where, unsigned *out, rq_error *err) {
    const json_t *value = json_object_get(object, key);
    *out = 0;
    if (!value) return RQ_OK;
    const json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 1 || n > 65536)
        return rq_fail(err, RQ_ERR_USAGE, "%s: \"%s\" is not a small positive integer", where, key);
    *out = (unsigned)n;
    return RQ_OK;
}

/* What stands in a rule or in "default": bits, group_size, mode or quantize. */
static rq_status read_verdict(const json_t *object, const char *where, bool is_rule, const rq_quant_format *base,
                              rq_verdict *out, rq_error *err) {
    static const char *const keys[] = {"bits", "group_size", "mode", "quantize", "match"};
    const char *key;
    json_t *value;
    bool formats = false;
    json_object_foreach((json_t *)object, key, value) {
        size_t i = 0;
        while (i < RQ_COUNT_OF(keys) && strcmp(keys[i], key) != 0) i++;
        if (i == RQ_COUNT_OF(keys) || (i == 4 && !is_rule))
            return rq_fail(err, RQ_ERR_USAGE, "%s: unknown key \"%s\"; known are bits, group_size, mode, quantize%s",
                           where, key, is_rule ? " and match" : "");
        formats = formats || i < 3;
    }
    const json_t *quantize = json_object_get(object, "quantize"), *mode_text = json_object_get(object, "mode");
    if (quantize && !json_is_boolean(quantize))
        return rq_fail(err, RQ_ERR_USAGE, "%s: \"quantize\" is neither true nor false", where);
    if (json_is_false(quantize)) {
        if (formats)
            return rq_fail(err, RQ_ERR_USAGE, "%s: \"quantize\": false does not go with bits, group_size or mode",
                           where);
        *out = (rq_verdict){.action = RQ_RULE_DENSE};
        return RQ_OK;
    }
    if (is_rule && !formats && !quantize)
        return rq_fail(err, RQ_ERR_USAGE, "%s: says nothing; give bits, group_size, mode or quantize", where);
    rq_quant_mode mode = base->mode;
    if (mode_text && (!json_is_string(mode_text) || !rq_quant_mode_parse(json_string_value(mode_text), &mode)))
        return rq_fail(err, RQ_ERR_USAGE, "%s: \"mode\" is none of affine, mxfp4, mxfp8, nvfp4", where);
    unsigned bits = 0, group = 0;
    rq_status st = read_small(object, "bits", where, &bits, err);
    if (!st) st = read_small(object, "group_size", where, &group, err);
    if (st) return st;
    if (mode == base->mode) {
        if (!bits) bits = base->bits;
        if (!group) group = base->group_size;
    }
    rq_error inner = {0};
    out->action = RQ_RULE_QUANTIZE;
    st = rq_quant_format_make(mode, bits, group, &out->format, &inner);
    return st ? rq_fail(err, st, "%s: %.500s", where, inner.message) : RQ_OK;
}

rq_status rq_recipe_parse(const json_t *value, const char *label, const rq_quant_format *base, rq_recipe *recipe,
                          rq_error *err) {
    rq_status st = RQ_OK;
    rq_recipe made = {0};
    char where[300];
    const char *key;
    json_t *item;
    snprintf(where, sizeof where, "recipe %.200s", label);
    if (!json_is_object(value)) return rq_fail(err, RQ_ERR_USAGE, "%s: not a JSON object", where);
    json_object_foreach((json_t *)value, key,
                        item) if (strcmp(key, "rules") != 0 &&
                                  strcmp(key, "default") !=
                                      0) return rq_fail(err, RQ_ERR_USAGE,
                                                        "%s: unknown key \"%.100s\"; known are rules and default",
                                                        where, key);
    const json_t *rules = json_object_get(value, "rules"), *fallback = json_object_get(value, "default");
    if (!json_is_array(rules)) return rq_fail(err, RQ_ERR_USAGE, "%s: \"rules\" is missing or not a list", where);

    made.label = rq_strdup(label);
    made.source = json_deep_copy(value);
    made.rules = calloc(json_array_size(rules) + 1, sizeof *made.rules);
    if (!made.label || !made.source || !made.rules) {
        st = no_memory(err);
        goto done;
    }
    made.fallback = (rq_verdict){RQ_RULE_QUANTIZE, *base};
    if (fallback) {
        snprintf(where, sizeof where, "recipe %.200s: default", label);
        if (!json_is_object(fallback)) {
            st = rq_fail(err, RQ_ERR_USAGE, "%s: not a JSON object", where);
            goto done;
        }
        if ((st = read_verdict(fallback, where, false, base, &made.fallback, err))) goto done;
    }
    const rq_quant_format inherited = made.fallback.action == RQ_RULE_QUANTIZE ? made.fallback.format : *base;
    for (size_t i = 0; i < json_array_size(rules); i++) {
        const json_t *rule = json_array_get(rules, i);
        const char *match = json_string_value(json_object_get(rule, "match"));
        snprintf(where, sizeof where, "recipe %.200s: rule %zu", label, i + 1);
        if (!match) {
            st = rq_fail(err, RQ_ERR_USAGE, "%s: \"match\" is missing or not text", where);
            goto done;
        }
        if ((st = read_verdict(rule, where, true, &inherited, &made.rules[i].verdict, err))) goto done;
        if (!(made.rules[i].match = rq_strdup(match))) {
            st = no_memory(err);
            goto done;
        }
        made.count++;
    }
    *recipe = made;
    made = (rq_recipe){0};
done:
    rq_recipe_deinit(&made);
    return st;
}

rq_status rq_recipe_open(const char *text, const rq_quant_format *base, rq_recipe *recipe, rq_error *err) {
    rq_recipe made = {0};
    json_t *value = NULL;
    bool found = false;
    rq_status st = open_named(text, base, &made, &found, err);
    if (st) goto done;
    if (found) {
        *recipe = made;
        return RQ_OK;
    }
    if (!rq_path_exists(text)) {
        st = rq_fail(err, RQ_ERR_USAGE,
                     "recipe %s: neither a file nor one of tq-mixed, mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6", text);
        goto done;
    }
    if ((st = rq_json_load(text, RQ_CONFIG_BYTES_MAX, &value, NULL, NULL, err))) goto done;
    st = rq_recipe_parse(value, text, base, recipe, err);
done:
    rq_recipe_deinit(&made);
    json_decref(value);
    return st;
}

/* ---- applying ---- */

/* The dotted part at `index` as a number, 0 when there is none: how mlx-lm finds a module's layer. */
static uint64_t number_at(const char *path, size_t index) {
    for (; index && path; index--) {
        path = strchr(path, '.');
        if (path) path++;
    }
    return path ? strtoull(path, NULL, 10) : 0;
}

static bool is_number(const char *part) {
    const size_t digits = strspn(part, "0123456789");
    return digits && (part[digits] == '.' || !part[digits]);
}

/* mlx-lm 0.32.2, convert.py, mixed_quant_predicate: more bits for v_proj and down_proj in the first and last eighth of
 * the layers and in every third between, and for the head. Substring matches, as there. */
static rq_status apply_mixed(const rq_recipe *recipe, const char *const *modules, size_t n, uint64_t layers,
                             rq_verdict *verdicts, rq_error *err) {
    const char *first_down = NULL;
    for (size_t i = 0; i < n && !first_down; i++)
        if (strstr(modules[i], "down_proj")) first_down = modules[i];
    if (!first_down)
        return rq_fail(err, RQ_ERR_USAGE, "recipe %s: the model has no down_proj, which this recipe is about",
                       recipe->label);
    size_t position = 0;
    for (const char *part = first_down; !is_number(part); position++) {
        const char *dot = strchr(part, '.');
        if (!dot) break;
        part = dot + 1;
    }
    const uint64_t eighth = layers / 8;
    for (size_t i = 0; i < n; i++) {
        const char *path = modules[i];
        const uint64_t layer = number_at(path, position);
        const bool here = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
        const bool chosen =
            strstr(path, "v_proj") || strstr(path, "v_a_proj") || strstr(path, "v_b_proj") || strstr(path, "down_proj");
        verdicts[i] = recipe->fallback;
        if ((chosen && here) || strstr(path, "lm_head")) verdicts[i].format.bits = recipe->high_bits;
    }
    return RQ_OK;
}

/* Names among `names` that the pattern matches, into `matched` [n]. */
static size_t matches(const char *pattern, const char *const *names, size_t n, const char **matched) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (rq_glob_match(pattern, names[i])) matched[count++] = names[i];
    return count;
}

rq_status rq_recipe_apply(const rq_recipe *recipe, const char *const *modules, size_t n_modules,
                          const char *const *others, size_t n_others, uint64_t n_layers, rq_verdict *verdicts,
                          rq_notes *notes, rq_error *err) {
    if (recipe->low_bits) return apply_mixed(recipe, modules, n_modules, n_layers, verdicts, err);

    rq_status st = RQ_OK;
    const size_t most = n_modules > n_others ? n_modules : n_others;
    const char **matched = calloc(most + 1, sizeof *matched);
    size_t *decided = calloc(recipe->count + 1, sizeof *decided), *reached = calloc(recipe->count + 1, sizeof *reached);
    if (!matched || !decided || !reached) {
        st = no_memory(err);
        goto done;
    }
    for (size_t m = 0; m < n_modules; m++) {
        bool is_decided = false;
        verdicts[m] = recipe->fallback;
        for (size_t r = 0; r < recipe->count; r++) {
            if (!rq_glob_match(recipe->rules[r].match, modules[m])) continue;
            reached[r]++;
            if (!is_decided) {
                verdicts[m] = recipe->rules[r].verdict;
                decided[r]++;
                is_decided = true;
            }
        }
    }
    size_t used = 0;
    for (size_t r = 0; r < recipe->count; r++) used += reached[r] > 0;
    if (recipe->name && !used) {
        st = rq_fail(err, RQ_ERR_USAGE, "recipe %s: the model has no MLP modules, which this recipe is about",
                     recipe->label);
        goto done;
    }
    for (size_t r = 0; r < recipe->count && !recipe->name; r++) {
        const rq_recipe_rule *rule = &recipe->rules[r];
        const size_t declined = matches(rule->match, others, n_others, matched);
        char *list = rq_names_summary(matched, declined, LISTED_NAMES);
        if (!reached[r])
            st = rq_fail(err, RQ_ERR_USAGE,
                         "recipe %s: rule %zu (\"%.100s\") matches no module that can be quantized%s%s", recipe->label,
                         r + 1, rule->match, declined ? ", only " : "", declined ? (list ? list : "others") : "");
        else if (declined && rule->verdict.action == RQ_RULE_QUANTIZE)
            rq_note_add(notes, RQ_NOTE_INFO, "recipe-declined",
                        "recipe %s: rule %zu (\"%s\") also matches what is neither a linear layer nor an embedding and "
                        "stays as it is: %s",
                        recipe->label, r + 1, rule->match, list ? list : "(out of memory)");
        free(list);
        if (st) goto done;
        if (!decided[r])
            rq_note_add(notes, RQ_NOTE_WARNING, "recipe-shadowed",
                        "recipe %s: rule %zu (\"%s\") decides nothing: earlier rules take everything it matches",
                        recipe->label, r + 1, rule->match);
    }
done:
    free((void *)matched);
    free(decided);
    free(reached);
    return st;
}
