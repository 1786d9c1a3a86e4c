/* The dispatch table: one function per kernel, filled once with the best version this CPU has.
 *
 * ref/ holds the scalar version of each kernel, which is the truth; simd/ holds bodies compiled once per instruction
 * set by the thin files in x86/ and arm/. Every version gives the same bits (tests/kernels/): the order of every
 * floating-point operation is fixed by the reference, contraction is off, nothing flushes subnormals.
 * ROTQ_SIMD=scalar|avx2|avx512|neon forces a version (for tests; an unavailable one falls back to scalar).
 *
 * bf16 and f16 are uint16_t bit patterns; conversions round to nearest even and keep subnormals. */
#ifndef RQ_KERNELS_H
#define RQ_KERNELS_H

#include "rotq/dtype.h"
#include "rotq/quant.h"

/* The Hadamard transform of one order, prepared for the kernels: y = (H_K^T (x) S_len) x, unnormalized. Signs, gains
 * and 1/sqrt(order) are applied by load and round_to. Index = block * len + offset. K is 1 or a multiple of 4.
 *
 * Order of operations, the same in every version: Sylvester stages of stride 1, 2, 4, ... len/2, each (a, b) -> (a + b,
 * a - b). Then across blocks, for every output i: inputs j = 4q..4q+3 form (x0 +- x1) +- (x2 +- x3), the signs being
 * those relative to x0's for x1 and x2 and relative to x2's for x3; output i adds or subtracts these quads for q = 0,
 * 1, ..., starting from +-quad 0. */
#define RQ_FWHT_K_MAX 512 /* the kernels keep combinations of K vectors on the stack */

typedef struct rq_fwht {
    size_t order, K, len;
    uint8_t *quad;  /* [K][K/4]: bits 0..2 signs of x1, x2, x3 relative to x0's, bit 3 sign of x0 (1 is minus); NULL if
                       K==1 */
    uint16_t *term; /* [K][K/4]: which combination of which quad, q * 8 + (quad code & 7) */
    double *sign;   /* [K][K/4]: and its sign, 1 or -1 */
    float *sign_f32;
    int8_t *hk;   /* [K][K] rows of H_K^T */
    double scale; /* 1.0 / sqrt(order) */
} rq_fwht;

/* The fold at one working precision: `x` is double or float, as the table's name says. Buffers hold `real_bytes` per
 * element and need only that alignment. */
typedef struct rq_fold_kernels {
    size_t real_bytes;
    /* x[i] = (real)src[i] * gain[i] for n elements of dtype BF16, F16, F32 or F64; gain (real) NULL means 1. */
    void (*load)(void *x, const void *src, rq_dtype dtype, const void *gain, size_t n);
    /* In-place transform of one row x[order], contiguous. */
    void (*fwht_row)(void *x, const rq_fwht *fwht);
    /* In-place transform of `order` rows of `cols` elements each (row stride `stride` elements), along the rows. */
    void (*fwht_cols)(void *x, size_t cols, size_t stride, const rq_fwht *fwht);
    /* `rows` vectors times a dense matrix: y[r][j] = sum over i, in order, of x[r][i] * q[i * n + j]; vectors n apart.
     * y must not overlap x. */
    void (*dense_rows)(void *y, const void *x, size_t rows, const void *q, size_t n);
    /* y[i] = x[i] * scale rounded once to `dtype` (BF16, F16, F32; ties to even), widened to f32. False when any y is
     * NaN or infinite. */
    bool (*round_to)(float *y, const void *x, double scale, rq_dtype dtype, size_t n);
    /* The same two for a panel: row r of x at x + r * x_stride (elements), of src at src + r * src_stride (bytes), of y
     * at y + r * y_stride (elements). row_gain [rows] (real) multiplies whole rows; NULL means 1. */
    void (*load_panel)(void *x, size_t x_stride, const void *src, size_t src_stride, rq_dtype dtype,
                       const void *row_gain, size_t rows, size_t cols);
    bool (*round_panel)(float *y, size_t y_stride, const void *x, size_t x_stride, double scale, rq_dtype dtype,
                        size_t rows, size_t cols);
    /* The whole fold of one row, n elements, a multiple of the order: y = round(FWHT(src * gain) * scale), block by
     * block. fwht NULL means no transform. x is scratch [n] (real). The same bits as load, fwht_row and round_to in
     * turn, in fewer passes. False when any y is NaN or infinite. */
    bool (*fold_row)(float *y, void *x, const void *src, rq_dtype dtype, const void *gain, const rq_fwht *fwht,
                     size_t n, double scale, rq_dtype to);
    /* The same along the columns of a panel of `order` rows: load_panel, fwht_cols, round_panel. x is scratch
     * [order][cols]. */
    bool (*fold_cols)(float *y, size_t y_stride, void *x, const void *src, size_t src_stride, rq_dtype dtype,
                      const void *row_gain, const rq_fwht *fwht, size_t cols, double scale, rq_dtype to);
} rq_fold_kernels;

typedef struct rq_kernels {
    const char *name;

    /* ---- fold (src/kernels/ref/fold_ref.c): [0] doubles, [1] floats ---- */
    rq_fold_kernels fold[2];
    /* f32 values that are values of `dtype` -> stored elements. */
    void (*store)(void *dst, const float *y, rq_dtype dtype, size_t n);
    /* Index of the first NaN or infinity among n elements of dtype BF16, F16, F32 or F64; n when there is none. */
    size_t (*find_nonfinite)(const void *src, rq_dtype dtype, size_t n);

    /* ---- quantize (src/kernels/ref/quantize_ref.c); contract of rq_quantize in rotq/quant.h ---- */
    void (*quantize_mlx)(const rq_quant_format *format, rq_dtype storage, const float *w, size_t w_stride, size_t rows,
                         size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                         size_t scales_stride, rq_quant_counts *counts);
    void (*quantize_search)(const rq_quant_format *format, rq_dtype storage, const float *w, size_t w_stride,
                            size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                            size_t scales_stride, rq_quant_counts *counts);
} rq_kernels;

/* The best version for this CPU (or ROTQ_SIMD's). Thread-safe; the choice is made once. */
const rq_kernels *rq_kernels_get(void);
/* A named version, or NULL when this build or CPU lacks it: for tests that compare versions. */
const rq_kernels *rq_kernels_named(const char *name);

/* Each instruction set contributes its functions to a table that starts as a copy of the reference. Fold and quantize
 * are separate translation units. */
void rq_fold_kernels_ref(rq_kernels *table);
void rq_quantize_kernels_ref(rq_kernels *table);
#if defined(__x86_64__)
void rq_fold_kernels_avx2(rq_kernels *table);
void rq_quantize_kernels_avx2(rq_kernels *table);
void rq_fold_kernels_avx512(rq_kernels *table);
void rq_quantize_kernels_avx512(rq_kernels *table);
#elif defined(__aarch64__)
void rq_fold_kernels_neon(rq_kernels *table);
void rq_quantize_kernels_neon(rq_kernels *table);
#endif

/* Scalar conversions shared by everyone (src/kernels/ref/convert_ref.c would be one line each, so they live here). */
static inline float rq_bf16_to_f32(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint16_t rq_f32_to_bf16(float f) { /* nearest even; NaN stays NaN (quieted) */
    uint32_t u;
    __builtin_memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float rq_f16_to_f32(uint16_t h);
uint16_t rq_f32_to_f16(float f); /* nearest even, subnormals kept, overflow to infinity */
float rq_e4m3_to_f32(uint8_t c); /* 0x7f and 0xff are NaN */
uint8_t rq_f32_to_e4m3(float f); /* as mlx: saturates to 0x7e, never NaN */

#endif
