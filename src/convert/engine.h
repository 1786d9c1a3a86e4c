/* Runs the work list: reads source blocks, applies the fold in one pass, rounds once, quantizes, writes to known
 * offsets. */
#ifndef RQ_ENGINE_H
#define RQ_ENGINE_H

#include "convert/units.h"

typedef struct rq_engine_input {
    const rq_plan *plan;
    const rq_source *source;
    const rq_rotation_set *rotations; /* NULL when nothing is rotated */
    const rq_convert_options *options;
    rq_units *units; /* tasks are completed (numbers filled in) and used up */
    const int *shard_fds;
    const rq_layout *layout;
} rq_engine_input;

/* RQ_ERR_NONFINITE names tensor and index; RQ_ERR_IO names the file. Notes: "zeroed-groups", "nonfinite". */
RQ_CHECK rq_status rq_engine_run(const rq_engine_input *input, unsigned threads, rq_notes *notes, rq_error *err);

#endif
