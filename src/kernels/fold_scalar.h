/* Scalar pieces of the fold that the reference and the SIMD bodies share. */
#ifndef RQ_FOLD_SCALAR_H
#define RQ_FOLD_SCALAR_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* Element i of src, exactly, as a double. */
static inline double rq_element(const void *src, rq_dtype dtype, size_t i) {
    switch (dtype) {
    case RQ_BF16:
        return (double)rq_bf16_to_f32(((const uint16_t *)src)[i]);
    case RQ_F16:
        return (double)rq_f16_to_f32(((const uint16_t *)src)[i]);
    case RQ_F32:
        return (double)((const float *)src)[i];
    default:
        return ((const double *)src)[i];
    }
}

/* f64 -> f32, truncated toward zero with the last bit sticky ("round to odd"): a later rounding to any format of at
 * most 22 significant bits then equals one direct rounding (Boldo and Melquiond 2008). */
static inline float rq_round_to_odd(double d) {
    const float f = (float)d;
    if ((double)f == d || d != d || isinf(f)) return f;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (fabs((double)f) > fabs(d)) u--; /* nearest went outward: step back toward zero */
    u |= 1;
    float odd;
    memcpy(&odd, &u, sizeof odd);
    return odd;
}

/* One rounding, ties to even, to a value of `dtype`, widened to f32. */
static inline float rq_round_value(double d, rq_dtype dtype) {
    switch (dtype) {
    case RQ_BF16:
        return rq_bf16_to_f32(rq_f32_to_bf16(rq_round_to_odd(d)));
    case RQ_F16:
        return rq_f16_to_f32(rq_f32_to_f16(rq_round_to_odd(d)));
    default:
        return (float)d;
    }
}

/* Rounds again, directly, those of n results whose f32 lies half way between two bf16 values: a double that is only
 * near the middle must go to its own side. x * scale are the exact results, y their roundings through f32. False when
 * any y is NaN or infinite. */
static inline bool rq_fix_ties(float *y, const double *x, double scale, size_t n) {
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        const double d = x[i] * scale;
        const float f = (float)d;
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if ((u & 0xffffu) == 0x8000u) y[i] = rq_round_value(d, RQ_BF16);
        finite = finite && isfinite(y[i]);
    }
    return finite;
}

/* The reference tables ([0] doubles, [1] floats), for the tails and rare cases of the SIMD bodies. */
extern const rq_fold_kernels rq_fold_ref[2];
size_t rq_nonfinite_ref(const void *src, rq_dtype dtype, size_t n);

#endif
