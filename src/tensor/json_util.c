#include "tensor/json_util.h"

#include <stdlib.h>

#include "base/base.h"

rq_status rq_json_parse(const char *label, const char *text, size_t bytes, json_t **json, rq_error *err) {
    json_error_t e;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!root) {
        const rq_status st = json_error_code(&e) == json_error_out_of_memory ? RQ_ERR_NOMEM : RQ_ERR_FORMAT;
        return rq_fail(err, st, "%s: line %d, column %d: %s", label, e.line, e.column, e.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return rq_fail(err, RQ_ERR_FORMAT, "%s: holds a JSON array, expected an object", label);
    }
    *json = root;
    return RQ_OK;
}

rq_status rq_json_load(const char *path, size_t limit, json_t **json, char **text, size_t *bytes, rq_error *err) {
    char *data = NULL;
    size_t n = 0;
    rq_status st = rq_read_file(path, limit, &data, &n, err);
    if (st != RQ_OK) return st;
    st = rq_json_parse(path, data, n, json, err);
    if (st == RQ_OK && text) {
        *text = data;
        *bytes = n;
        data = NULL; /* moved to the caller */
    }
    free(data);
    return st;
}

bool rq_json_u64(const json_t *object, const char *key, uint64_t *value) {
    const json_t *member = json_object_get(object, key);
    if (!json_is_integer(member) || json_integer_value(member) < 0) return false;
    *value = (uint64_t)json_integer_value(member);
    return true;
}

const char *rq_json_text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}
