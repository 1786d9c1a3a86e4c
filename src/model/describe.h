/* Short texts about a plan, shared by the table, the JSON and the packaging. */
#ifndef RQ_DESCRIBE_H
#define RQ_DESCRIBE_H

#include "rotq/plan.h"

/* Storage of one tensor: "4b g64 affine" or "bf16". */
const char *rq_describe_stored(const rq_plan_tensor *tensor, char *buffer, size_t bytes);
/* "hadamard, R2 hadamard, seed 0" or "none". */
const char *rq_describe_rotation(const rq_plan *plan, char *buffer, size_t bytes);
/* "1.23 GB" (powers of ten). */
const char *rq_describe_bytes(uint64_t n, char *buffer, size_t bytes);

const char *rq_r1_name(const rq_rotation_spec *spec); /* "hadamard", "block", "random", "none", "file" */
const char *rq_r2_name(const rq_plan *plan);          /* "hadamard", "random", "none", "file" */
const char *rq_scales_method_name(rq_scales_method method);

/* OptiQ's figure: bits times weights over weights, linear layers only, dense ones as 16 bits, scales not counted. 0
 * when there are none. */
double rq_optiq_bits_per_weight(const rq_plan *plan);

#endif
