#include "model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "model/json_text.h"

/* Far above any model, low enough that products of two stay in 64 bits. */
#define DIM_LIMIT ((uint64_t)1 << 31)

static const json_t *get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

const json_t *rq_config_get(const json_t *config, const char *key) {
    const json_t *value = get(config, key);
    return value ? value : get(json_object_get(config, "text_config"), key);
}

static rq_status read_dim(const json_t *config, const char *key, bool required, uint64_t absent, uint64_t *out,
                          rq_error *err) {
    const json_t *value = rq_config_get(config, key);
    if (!value) {
        if (required) return rq_fail(err, RQ_ERR_FORMAT, "config.json: \"%s\" is missing", key);
        *out = absent;
        return RQ_OK;
    }
    const json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 1 || (uint64_t)n > DIM_LIMIT) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        const rq_status st =
            rq_fail(err, RQ_ERR_FORMAT, "config.json: \"%s\" is %.80s, expected an integer of 1 to %" PRIu64, key,
                    text ? text : "?", DIM_LIMIT);
        free(text);
        return st;
    }
    *out = (uint64_t)n;
    return RQ_OK;
}

static rq_status read_flag(const json_t *config, const char *key, bool *out, rq_error *err) {
    const json_t *value = rq_config_get(config, key);
    *out = json_is_true(value);
    if (value && !json_is_boolean(value))
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: \"%s\" is neither true nor false", key);
    return RQ_OK;
}

rq_status rq_model_config_read(const json_t *config, const rq_family *family, rq_model_config *out, rq_error *err) {
    rq_status st = RQ_OK;
    rq_model_config c = {0};
    if (!json_is_object(config)) return rq_fail(err, RQ_ERR_FORMAT, "config.json: not a JSON object");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!type) return rq_fail(err, RQ_ERR_FORMAT, "config.json: \"model_type\" is missing or not text");
    if (strlen(type) >= sizeof c.model_type)
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: \"model_type\" has %zu characters, more than the %zu allowed",
                       strlen(type), sizeof c.model_type - 1);
    memcpy(c.model_type, type, strlen(type) + 1);

    const bool known = family != NULL;
    const struct {
        const char *key;
        bool required;
        uint64_t *out;
    } dims[] = {
        {"hidden_size", known, &c.hidden_size},
        {"num_hidden_layers", known, &c.num_hidden_layers},
        {"intermediate_size", known, &c.intermediate_size},
        {"num_attention_heads", known, &c.num_attention_heads},
        {"vocab_size", known, &c.vocab_size},
    };
    /* What a family without a table spells in its own way is none of our business. */
    if (!known) err = NULL;
    for (size_t i = 0; i < RQ_COUNT_OF(dims); i++) {
        st = read_dim(config, dims[i].key, dims[i].required, 0, dims[i].out, err);
        if (st && known) return st;
    }
    st = read_dim(config, "num_key_value_heads", known && family->kv_heads_required, c.num_attention_heads,
                  &c.num_key_value_heads, err);
    if (st && known) return st;
    const uint64_t derived = c.num_attention_heads ? c.hidden_size / c.num_attention_heads : 0;
    c.head_dim = derived;
    if (!known || family->head_dim != RQ_HEAD_DIM_DERIVED) {
        st = read_dim(config, "head_dim", known && family->head_dim == RQ_HEAD_DIM_REQUIRED, derived, &c.head_dim, err);
        if (st && known) return st;
    }
    if (known && family->reads_bias_flags) {
        if ((st = read_flag(config, "attention_bias", &c.attention_bias, err))) return st;
        if ((st = read_flag(config, "mlp_bias", &c.mlp_bias, err))) return st;
    }
    if (known && (!c.head_dim || c.num_attention_heads % c.num_key_value_heads))
        return rq_fail(err, RQ_ERR_FORMAT,
                       "config.json: %" PRIu64 " attention heads, %" PRIu64 " key-value heads of %" PRIu64
                       " dimensions do not make groups of heads",
                       c.num_attention_heads, c.num_key_value_heads, c.head_dim);
    *out = c;
    return RQ_OK;
}

rq_status rq_model_config_tie(const json_t *config, bool head_is_stored, int absent, rq_model_config *out,
                              rq_notes *notes, rq_error *err) {
    static const char key[] = "tie_word_embeddings";
    const json_t *top = get(config, key), *nested = get(json_object_get(config, "text_config"), key);
    if ((top && !json_is_boolean(top)) || (nested && !json_is_boolean(nested)))
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: \"%s\" is neither true nor false", key);
    const json_t *flag = top ? top : nested;
    out->tied_explicit = flag != NULL;
    if (top && nested && json_is_true(top) != json_is_true(nested))
        rq_note_add(notes, RQ_NOTE_WARNING, "tie-flag",
                    "config.json says %s %s at the top and %s under text_config; the top rules", key,
                    json_is_true(top) ? "true" : "false", json_is_true(nested) ? "true" : "false");
    if (flag) {
        out->tied = json_is_true(flag);
        if (absent != RQ_TIE_AUTO && (absent == RQ_TIE_TIED) != out->tied)
            return rq_fail(
                err, RQ_ERR_USAGE,
                "--tie-word-embeddings contradicts config.json, where %s is %s; the option is for configs that "
                "do not say",
                key, out->tied ? "true" : "false");
        return RQ_OK;
    }
    if (absent == RQ_TIE_AUTO && head_is_stored)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "config.json has no %s, which loaders take for true, yet lm_head.weight is stored; say which is "
                       "meant with --tie-word-embeddings true or false",
                       key);
    out->tied = absent != RQ_TIE_UNTIED;
    rq_note_add(notes, RQ_NOTE_INFO, "tie-flag", "config.json has no %s; taken for %s", key,
                out->tied ? "true" : "false");
    return RQ_OK;
}

uint64_t rq_model_config_dim(const rq_model_config *config, rq_dim dim) {
    switch (dim) {
    case RQ_DIM_V:
        return config->vocab_size;
    case RQ_DIM_H:
        return config->hidden_size;
    case RQ_DIM_Q:
        return config->num_attention_heads * config->head_dim;
    case RQ_DIM_KV:
        return config->num_key_value_heads * config->head_dim;
    case RQ_DIM_I:
        return config->intermediate_size;
    case RQ_DIM_HD:
        return config->head_dim;
    case RQ_DIM_NONE:
    case RQ_DIM_COUNT:
        break;
    }
    return 0;
}

/* ---- end tokens ---- */

#define MAX_EOS 32

typedef struct eos_set {
    json_int_t ids[MAX_EOS];
    size_t count;
    bool known;
} eos_set;

static int by_id(const void *a, const void *b) {
    const json_int_t x = *(const json_int_t *)a, y = *(const json_int_t *)b;
    return x < y ? -1 : x > y;
}

static eos_set eos_of(const json_t *value) {
    eos_set set = {0};
    if (json_is_integer(value)) {
        set.ids[set.count++] = json_integer_value(value);
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value) && set.count < MAX_EOS; i++)
            if (json_is_integer(json_array_get(value, i)))
                set.ids[set.count++] = json_integer_value(json_array_get(value, i));
    }
    set.known = set.count > 0;
    qsort(set.ids, set.count, sizeof *set.ids, by_id);
    size_t kept = 0;
    for (size_t i = 0; i < set.count; i++)
        if (!i || set.ids[i] != set.ids[i - 1]) set.ids[kept++] = set.ids[i];
    set.count = kept;
    return set;
}

static bool eos_equal(const eos_set *a, const eos_set *b) {
    return a->count == b->count && memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0;
}

static bool eos_has(const eos_set *set, json_int_t id) {
    for (size_t i = 0; i < set->count; i++)
        if (set->ids[i] == id) return true;
    return false;
}

static const char *eos_text(const eos_set *set, char *buffer, size_t bytes) {
    size_t used = (size_t)snprintf(buffer, bytes, "%s", set->known ? "" : "nothing");
    for (size_t i = 0; i < set->count && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%" JSON_INTEGER_FORMAT, i ? ", " : "", set->ids[i]);
    return buffer;
}

/* The id of tokenizer_config.json's eos_token, through its own added_tokens_decoder. */
static eos_set eos_of_tokenizer(const json_t *tokenizer) {
    const json_t *token = json_object_get(tokenizer, "eos_token");
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    const char *key;
    json_t *entry;
    json_object_foreach(json_object_get(tokenizer, "added_tokens_decoder"), key, entry) {
        const char *content = json_string_value(json_object_get(entry, "content"));
        char *end = NULL;
        const long long id = strtoll(key, &end, 10);
        if (text && content && strcmp(text, content) == 0 && end != key && !*end)
            return (eos_set){.ids = {id}, .count = 1, .known = true};
    }
    return (eos_set){0};
}

void rq_note_eos(const json_t *config, const char *directory, rq_notes *notes) {
    json_t *generation = NULL, *tokenizer = NULL;
    if (!directory) return;
    if (rq_json_read_side_file(directory, "generation_config.json", &generation, NULL)) generation = NULL;
    if (rq_json_read_side_file(directory, "tokenizer_config.json", &tokenizer, NULL)) tokenizer = NULL;
    const eos_set a = eos_of(rq_config_get(config, "eos_token_id"));
    const eos_set b = eos_of(json_object_get(generation, "eos_token_id"));
    const eos_set c = eos_of_tokenizer(tokenizer);
    const eos_set *used = b.known ? &b : &a; /* loaders let generation_config.json override */
    if ((a.known && b.known && !eos_equal(&a, &b)) || (c.known && used->known && !eos_has(used, c.ids[0]))) {
        char ta[256], tb[256], tc[256];
        rq_note_add(
            notes, RQ_NOTE_INFO, "eos-disagrees",
            "end tokens: config.json names %s; generation_config.json names %s; tokenizer_config.json names %s; "
            "the files are carried over unchanged",
            eos_text(&a, ta, sizeof ta), eos_text(&b, tb, sizeof tb), eos_text(&c, tc, sizeof tc));
    }
    json_decref(generation);
    json_decref(tokenizer);
}
