/* Where every output byte goes: shards, their headers, and the place of each stored part. Computed from the plan alone.
 */
#ifndef RQ_LAYOUT_H
#define RQ_LAYOUT_H

#include "base/base.h"
#include "rotq/plan.h"

#define RQ_SHARD_BYTES ((uint64_t)5 << 30) /* mlx-lm's limit; exceeded only by a single larger tensor */

typedef struct rq_part {
    unsigned shard;
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
} rq_part;

/* Parts that a tensor does not have have bytes 0. */
typedef struct rq_tensor_layout {
    rq_part weight, scales, biases;
} rq_tensor_layout;

typedef struct rq_shard {
    const char *name; /* model-00001-of-00002.safetensors; owned by the layout */
    char *header;     /* length prefix, JSON, padding; owned */
    size_t header_bytes;
    uint64_t file_bytes;
} rq_shard;

typedef struct rq_layout {
    rq_shard *shards; /* [n_shards]; owned */
    size_t n_shards;
    rq_tensor_layout *tensors; /* [plan->count], in the plan's order; owned */
    uint64_t tensor_bytes;
    rq_arena arena;
} rq_layout;

/* Tensors fill shards in the plan's (name) order; the parts of a module stay together. */
RQ_CHECK rq_status rq_layout_make(const rq_plan *plan, uint64_t max_shard_bytes, rq_layout *layout, rq_error *err);
void rq_layout_deinit(rq_layout *layout);

/* model.safetensors.index.json as mlx-lm writes it (indent 4, weight_map by name). malloc'ed text. */
RQ_CHECK rq_status rq_layout_index(const rq_plan *plan, const rq_layout *layout, char **text, rq_error *err);

/* Rows and columns of a plan tensor as the converter sees it: rank 1 is one row, rank > 2 rows of the last dimension.
 */
void rq_tensor_extent(const rq_plan_tensor *tensor, uint64_t *rows, uint64_t *cols);

#endif
