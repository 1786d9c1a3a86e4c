/* model.safetensors.index.json: which file holds which tensor. */
#ifndef RQ_SHARD_INDEX_H
#define RQ_SHARD_INDEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "rotq/error.h"

#define RQ_INDEX_NAME "model.safetensors.index.json"
#define RQ_INDEX_BYTES_MAX ((size_t)100 << 20)

typedef struct rq_index_entry {
    const char *tensor; /* borrowed from the index's JSON */
    size_t shard;       /* into shards */
} rq_index_entry;

typedef struct rq_shard_index {
    rq_index_entry *entries; /* [count], sorted by tensor; owned */
    size_t count;
    const char **shards; /* [n_shards], sorted, each once; the array is owned, the texts are the JSON's */
    size_t n_shards;
    bool has_total_size;
    double total_size; /* exporters write integers and floats */
    json_t *json;      /* owned */
} rq_shard_index;

/* Files are only named by plain names: RQ_ERR_FORMAT for '/', '\', "..", "." and control characters. */
RQ_CHECK rq_status rq_shard_index_parse(const char *label, const char *text, size_t bytes, rq_shard_index *index,
                                        rq_error *err);
void rq_shard_index_deinit(rq_shard_index *index);

#endif
