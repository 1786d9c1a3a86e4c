#include "tensor/shard_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/json_util.h"

static bool is_plain_file_name(const char *name) {
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    for (; *name; name++)
        if (*name == '/' || *name == '\\' || (unsigned char)*name < 0x20 || *name == 0x7f) return false;
    return true;
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const rq_index_entry *)a)->tensor, ((const rq_index_entry *)b)->tensor);
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t unique(const char **sorted, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(sorted[kept - 1], sorted[i]) != 0) sorted[kept++] = sorted[i];
    return kept;
}

static rq_status fill(const char *label, json_t *map, rq_shard_index *index, rq_error *err) {
    const char *tensor = NULL;
    json_t *value = NULL;
    const size_t n = json_object_size(map);
    index->entries = calloc(n + 1, sizeof *index->entries);
    index->shards = calloc(n + 1, sizeof *index->shards);
    if (!index->entries || !index->shards) return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for %zu names", label, n);
    json_object_foreach(map, tensor, value) {
        const char *shard = json_string_value(value);
        if (!shard)
            return rq_fail(err, RQ_ERR_FORMAT, "%s: weight_map gives no file name for tensor \"%s\"", label, tensor);
        if (!is_plain_file_name(shard))
            return rq_fail(
                err, RQ_ERR_FORMAT,
                "%s: weight_map puts tensor \"%s\" into \"%s\", expected a plain file name in the same directory",
                label, tensor, shard);
        index->shards[index->count] = shard;
        index->entries[index->count++].tensor = tensor;
    }
    qsort(index->shards, n, sizeof *index->shards, compare_texts);
    index->n_shards = unique(index->shards, n);
    for (size_t i = 0; i < n; i++) {
        const char *shard = json_string_value(json_object_get(map, index->entries[i].tensor));
        const char **at = bsearch(&shard, index->shards, index->n_shards, sizeof *index->shards, compare_texts);
        index->entries[i].shard = (size_t)(at - index->shards);
    }
    qsort(index->entries, n, sizeof *index->entries, compare_entries);
    return RQ_OK;
}

rq_status rq_shard_index_parse(const char *label, const char *text, size_t bytes, rq_shard_index *index,
                               rq_error *err) {
    *index = (rq_shard_index){0};
    rq_status st = rq_json_parse(label, text, bytes, &index->json, err);
    if (st != RQ_OK) return st;
    json_t *map = json_object_get(index->json, "weight_map");
    const json_t *total = json_object_get(json_object_get(index->json, "metadata"), "total_size");
    if (!json_is_object(map))
        st = rq_fail(err, RQ_ERR_FORMAT, "%s: weight_map is missing or not an object", label);
    else
        st = fill(label, map, index, err);
    if (st == RQ_OK && json_is_number(total)) {
        index->has_total_size = true;
        index->total_size = json_number_value(total);
    }
    if (st != RQ_OK) rq_shard_index_deinit(index);
    return st;
}

void rq_shard_index_deinit(rq_shard_index *index) {
    free(index->entries);
    free(index->shards);
    json_decref(index->json);
    *index = (rq_shard_index){0};
}
