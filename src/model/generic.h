/* Tensors without a corridor: what plain quantization does with a name and a shape. */
#ifndef RQ_GENERIC_H
#define RQ_GENERIC_H

#include <stdbool.h>

#include "rotq/checkpoint.h"

typedef enum rq_generic_kind {
    RQ_GENERIC_OTHER,     /* norms, biases, convolutions, tables: copied */
    RQ_GENERIC_LINEAR,    /* may be quantized */
    RQ_GENERIC_EMBEDDING, /* may be quantized */
    RQ_GENERIC_KEPT       /* a module that loaders may quantize but that we leave dense: see reason */
} rq_generic_kind;

/* True for what must not lose precision when the rest is stored in a narrower dtype: convolution kernels and parameters
 * that are neither weight nor bias (A_log, dt_bias of state-space layers). */
bool rq_generic_keeps_dtype(const rq_source_tensor *tensor);

/* *reason is static text for RQ_GENERIC_KEPT and names what it is for the rest ("norm", "convolution", ...). */
rq_generic_kind rq_generic_classify(const rq_source_tensor *tensor, const char **reason);

#endif
