/* One group of one format, in scalar: what a group's codes and scale are. The reference kernels loop over groups with
 * these; SIMD kernels call them for groups outside their fast path (NaN, infinity, extreme exponents). */
#ifndef RQ_QUANTIZE_GROUP_H
#define RQ_QUANTIZE_GROUP_H

#include <string.h>

#include "kernels/kernels.h"

#define RQ_GROUP_MAX 128

/* What a group stores beside its codes. */
typedef struct rq_group {
    float scale, bias; /* affine: values of the storage dtype */
    uint8_t byte;      /* float modes: E8M0 or E4M3 */
    bool zeroed;       /* nvfp4: a weight is not zero, yet byte is 0 */
} rq_group;

/* codes [group_size], one byte each. */
typedef rq_group rq_group_fn(const rq_quant_format *format, rq_dtype storage, const float *w, uint8_t *codes);
rq_group_fn rq_group_mlx_ref;    /* ref/quantize_ref.c */
rq_group_fn rq_group_search_ref; /* ref/search_ref.c */

/* mlx's scale and bias, before they are rounded for storage, of a group with this range. Written so that the NaN of an
 * impossible range comes out as stock's. */
void rq_affine_range_ref(unsigned bits, float w_min, float w_max, float *scale, float *bias);
/* mlx's exponent of mxfp4 (4 bits) or mxfp8 (8), at least -127, for a finite largest magnitude. */
int rq_mx_exponent_ref(unsigned bits, rq_dtype T, float amax);

/* n codes of `bits` bits into n * bits / 8 bytes, least significant bit first; n a multiple of 8. */
void rq_pack_codes_ref(unsigned bits, const uint8_t *codes, size_t n, uint8_t *out);

/* x as a value of T, which is BF16, F16 or F32. */
static inline float rq_round_to_dtype(float x, rq_dtype T) {
    if (T == RQ_BF16) return rq_bf16_to_f32(rq_f32_to_bf16(x));
    if (T == RQ_F16) return rq_f16_to_f32(rq_f32_to_f16(x));
    return x;
}

/* Stores a value of T. dst needs no alignment. */
static inline void rq_put_value(void *dst, float x, rq_dtype T) {
    if (T == RQ_F32) {
        memcpy(dst, &x, sizeof x);
        return;
    }
    const uint16_t h = T == RQ_BF16 ? rq_f32_to_bf16(x) : rq_f32_to_f16(x);
    memcpy(dst, &h, sizeof h);
}

static inline float rq_get_value(const void *src, rq_dtype T) {
    uint16_t h;
    float x;
    if (T == RQ_F32) {
        memcpy(&x, src, sizeof x);
        return x;
    }
    memcpy(&h, src, sizeof h);
    return T == RQ_BF16 ? rq_bf16_to_f32(h) : rq_f16_to_f32(h);
}

/* 2^e for e in [-149, 127], subnormals included. */
static inline float rq_exp2_int(int e) {
    const uint32_t u = e >= -126 ? (uint32_t)(e + 127) << 23 : 1u << (e + 149);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#endif
