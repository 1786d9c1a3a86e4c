/* What rq_check_directory needs beyond the public checkpoint. */
#ifndef RQ_CHECKPOINT_INTERNAL_H
#define RQ_CHECKPOINT_INTERNAL_H

#include "rotq/checkpoint.h"

/* As rq_checkpoint_open, but goes on where index and files disagree: each disagreement is a warning ("missing-shard",
 * "index-mismatch", "stray-safetensors"), and what can be read is in the checkpoint. Files that are not safetensors or
 * not JSON are still errors. */
RQ_CHECK rq_status rq_checkpoint_open_lenient(const char *directory, rq_checkpoint **ckpt, rq_notes *notes,
                                              rq_error *err);

#endif
