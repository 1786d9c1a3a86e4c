/* Which files of a directory hold the model. */
#ifndef RQ_SHARD_FILES_H
#define RQ_SHARD_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "rotq/error.h"

typedef struct rq_file_list {
    char **names; /* [count], sorted by strcmp; owned, as are the texts */
    size_t count;
} rq_file_list;

/* Every *.safetensors of the directory except hidden ones. */
RQ_CHECK rq_status rq_list_safetensors(const char *directory, rq_file_list *list, rq_error *err);
void rq_file_list_deinit(rq_file_list *list);

/* Without an index: model.safetensors alone if it exists, else every model*.safetensors, else every *.safetensors
 * except consolidated.safetensors. chosen[i] says whether names[i] belongs; false when nothing does. */
bool rq_choose_shards(const rq_file_list *list, bool *chosen);
/* model-00001-of-00002.safetensors without model-00002-of-00002.safetensors: the first such name, and how many files
 * its set should have and has. */
bool rq_find_incomplete_set(const rq_file_list *list, const bool *chosen, const char **name, unsigned *expected,
                            unsigned *found);
/* A file that is no part of the model but that a loader would read: with an index mlx-lm reads every
 * model*.safetensors; without one mlx-vlm reads every *.safetensors except consolidated.safetensors. */
bool rq_is_stray(const char *name, bool has_index);

#endif
