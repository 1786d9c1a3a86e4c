/* librotq: fold orthogonal rotations and norm gains into weights, quantize to MLX's formats, package. */
#ifndef ROTQ_ROTQ_H
#define ROTQ_ROTQ_H

#include "rotq/checkpoint.h"
#include "rotq/convert.h"
#include "rotq/dtype.h"
#include "rotq/error.h"
#include "rotq/plan.h"
#include "rotq/quant.h"
#include "rotq/rotation.h"

#define ROTQ_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif
RQ_EXPORT const char *rq_version(void);
#ifdef __cplusplus
}
#endif
#endif
