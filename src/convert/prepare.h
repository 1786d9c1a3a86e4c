/* From operations to numbers: gains, signs and transforms of every task, ready for the kernels. */
#ifndef RQ_PREPARE_H
#define RQ_PREPARE_H

#include "convert/units.h"

typedef struct rq_prepared {
    rq_arena arena; /* vectors, applied rotations */
    rq_fwht r1, r2; /* transforms; order 0 when unused */
} rq_prepared;

/* Fills in, out, load_gain, out_signs and scale of every task. Reads the norm gains (the only weights it touches);
 * RQ_ERR_NONFINITE when a gain is NaN or infinite and that is not allowed. */
RQ_CHECK rq_status rq_prepare(const rq_source *source, const rq_rotation_set *rotations,
                              const rq_convert_options *options, rq_units *units, rq_prepared *prepared, rq_error *err);
void rq_prepared_deinit(rq_prepared *prepared);

#endif
