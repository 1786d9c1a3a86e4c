#include "model/json_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/json_util.h"

#define SIDE_FILE_LIMIT ((size_t)64 << 20) /* tokenizer_config.json can hold a large vocabulary of added tokens */
#define DEPTH_LIMIT 128

static void put_real(rq_text *out, double x) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    rq_text_append(out, "%s%s", text, strpbrk(text, ".eEn") ? "" : ".0");
}

static void put_scalar(rq_text *out, const json_t *value) {
    if (json_is_real(value)) {
        put_real(out, json_real_value(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    if (text)
        rq_text_append(out, "%s", text);
    else
        out->failed = true;
    free(text);
}

static void put_key(rq_text *out, const char *key) {
    json_t *text = json_string(key);
    if (text)
        put_scalar(out, text);
    else
        out->failed = true;
    json_decref(text);
}

/* jansson's parser limits the depth of what it reads; DEPTH_LIMIT bounds values that were built. */
static void put(rq_text *out, const json_t *value, int depth) { // NOLINT(misc-no-recursion)
    if (depth > DEPTH_LIMIT) {
        out->failed = true;
        return;
    }
    const int inner = 4 * (depth + 1), outer = 4 * depth;
    if (json_is_object(value) && json_object_size(value)) {
        const char *key, *separator = "{";
        json_t *item;
        json_object_foreach((json_t *)value, key, item) {
            rq_text_append(out, "%s\n%*s", separator, inner, "");
            put_key(out, key);
            rq_text_append(out, ": ");
            put(out, item, depth + 1);
            separator = ",";
        }
        rq_text_append(out, "\n%*s}", outer, "");
    } else if (json_is_array(value) && json_array_size(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            rq_text_append(out, "%s\n%*s", i ? "," : "[", inner, "");
            put(out, json_array_get(value, i), depth + 1);
        }
        rq_text_append(out, "\n%*s]", outer, "");
    } else {
        put_scalar(out, value);
    }
}

char *rq_json_pretty(const json_t *value) {
    rq_text out = {0};
    put(&out, value, 0);
    rq_text_append(&out, "\n");
    if (out.failed) {
        rq_text_deinit(&out);
        return NULL;
    }
    return out.data;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The object's keys, sorted, borrowed from it. */
static const char **sorted_keys(const json_t *object) {
    const size_t n = json_object_size(object);
    const char **keys = malloc((n ? n : 1) * sizeof *keys);
    if (!keys) return NULL;
    const char *key;
    json_t *item;
    size_t i = 0;
    json_object_foreach((json_t *)object, key, item) keys[i++] = key;
    qsort(keys, n, sizeof *keys, by_text);
    return keys;
}

static json_t *sorted(const json_t *value, int depth) { // NOLINT(misc-no-recursion)
    if (depth > DEPTH_LIMIT) return NULL;
    if (json_is_array(value)) {
        json_t *copy = json_array();
        for (size_t i = 0; copy && i < json_array_size(value); i++)
            if (json_array_append_new(copy, sorted(json_array_get(value, i), depth + 1))) {
                json_decref(copy);
                copy = NULL;
            }
        return copy;
    }
    if (!json_is_object(value)) return json_copy((json_t *)value);
    json_t *copy = json_object();
    const char **keys = sorted_keys(value);
    for (size_t i = 0; copy && keys && i < json_object_size(value); i++)
        if (json_object_set_new(copy, keys[i], sorted(json_object_get(value, keys[i]), depth + 1))) {
            json_decref(copy);
            copy = NULL;
        }
    if (!keys) {
        json_decref(copy);
        copy = NULL;
    }
    free((void *)keys);
    return copy;
}

json_t *rq_json_sorted_copy(const json_t *value) { return sorted(value, 0); }

char *rq_json_pretty_sorted(const json_t *object) {
    char *text = NULL;
    json_t *copy = json_object();
    const char **keys = sorted_keys(object);
    if (!copy || !keys) goto done;
    for (size_t i = 0; i < json_object_size(object); i++)
        if (json_object_set(copy, keys[i], json_object_get(object, keys[i]))) goto done;
    text = rq_json_pretty(copy);
done:
    free((void *)keys);
    json_decref(copy);
    return text;
}

rq_status rq_json_read_side_file(const char *directory, const char *name, json_t **value, rq_error *err) {
    *value = NULL;
    char *path = rq_path_join(directory, name);
    if (!path) return rq_fail(err, RQ_ERR_NOMEM, "%s: out of memory", name);
    const rq_status st = rq_path_exists(path) ? rq_json_load(path, SIDE_FILE_LIMIT, value, NULL, NULL, err) : RQ_OK;
    free(path);
    return st;
}
