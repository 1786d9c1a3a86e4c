/* Element types of stored tensors. Names are those of the safetensors format. */
#ifndef ROTQ_DTYPE_H
#define ROTQ_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rotq/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, safetensors name, bytes per element, is a floating type the converter computes with) */
#define RQ_DTYPE_LIST(X)        \
    X(BOOL, "BOOL", 1, 0)       \
    X(U8, "U8", 1, 0)           \
    X(I8, "I8", 1, 0)           \
    X(U16, "U16", 2, 0)         \
    X(I16, "I16", 2, 0)         \
    X(U32, "U32", 4, 0)         \
    X(I32, "I32", 4, 0)         \
    X(U64, "U64", 8, 0)         \
    X(I64, "I64", 8, 0)         \
    X(F16, "F16", 2, 1)         \
    X(BF16, "BF16", 2, 1)       \
    X(F32, "F32", 4, 1)         \
    X(F64, "F64", 8, 1)         \
    X(C64, "C64", 8, 0)         \
    X(F8_E4M3, "F8_E4M3", 1, 0) \
    X(F8_E5M2, "F8_E5M2", 1, 0) \
    X(F8_E8M0, "F8_E8M0", 1, 0)

typedef enum rq_dtype {
#define RQ_DTYPE_ENUM(name, text, bytes, is_float) RQ_##name,
    RQ_DTYPE_LIST(RQ_DTYPE_ENUM)
#undef RQ_DTYPE_ENUM
        RQ_DTYPE_COUNT
} rq_dtype;

RQ_EXPORT const char *rq_dtype_name(rq_dtype dtype);
RQ_EXPORT size_t rq_dtype_bytes(rq_dtype dtype);
RQ_EXPORT bool rq_dtype_is_float(rq_dtype dtype); /* F16, BF16, F32, F64 */
/* Case-sensitive safetensors name, e.g. "BF16". False when unknown. */
RQ_EXPORT bool rq_dtype_parse(const char *name, rq_dtype *dtype);

#ifdef __cplusplus
}
#endif
#endif
