/* Compiles the fold's vector body for one instruction set. The including file defines
 *   VECTOR_BYTES, LANES_F64, LANES_F32, RADIX_LOG2
 *   FMA_F64(a, b, c), FMA_F32(a, b, c): fused a * b + c
 *   min_u32_f64, max_u32_f64, least_f64, greatest_f64 and the same _f32: lane-wise and across lanes, on vectors of
 *   uint32_t with LANES_F64 or LANES_F32 lanes
 *   optionally WIDEN_BF16_F64(p), WIDEN_F32_F64(p), WIDEN_BF16_F32(p): a vector of elements from p on, exactly (gcc 12
 * splits the general vector conversions in two) VECTOR_REGISTER: the asm constraint of a vector register FOLD_TABLE:
 * the name of the function that enters the kernels into a table. */
#include "kernels/fold_scalar.h"

enum { index_f64, index_f32 };

/* An empty statement that seems to change a vector variable: its value can then not be rebuilt, only kept. */
#define KEEP_IN_REGISTER(v) __asm__("" : "+" VECTOR_REGISTER(v))

/* Eight elements of a 16-bit or 32-bit type at a time, widened; the compiler maps these to one or two instructions. */
typedef uint16_t u16x8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef double f64x8 __attribute__((vector_size(64)));
typedef double f64x8u __attribute__((vector_size(64), aligned(8), may_alias));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int64_t i64x8 __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) f32x8 bf16_widen(const uint16_t *p) {
    return (f32x8)(__builtin_convertvector(*(const u16x8 *)p, u32x8) << 16);
}

#define REAL double
#define LANES LANES_F64
#define FMA FMA_F64
#define FN(name) name##_f64
#ifdef WIDEN_BF16_F64
#define WIDEN_BF16 WIDEN_BF16_F64
#define WIDEN_F32 WIDEN_F32_F64
#endif
#include "kernels/simd/fold_body.h"
#undef WIDEN_BF16
#undef WIDEN_F32
#undef REAL
#undef LANES
#undef FMA
#undef FN

#define REAL float
#define LANES LANES_F32
#define FMA FMA_F32
#define FN(name) name##_f32
#ifdef WIDEN_BF16_F32
#define WIDEN_BF16 WIDEN_BF16_F32
#endif
#include "kernels/simd/fold_body.h"
#undef WIDEN_BF16
#undef REAL
#undef LANES
#undef FMA
#undef FN

/* ---- load ---- */

static inline V_f64 gains_f64(const double *gain, size_t i) {
    if (gain) return *(const U_f64 *)(gain + i);
    return (V_f64){0} + 1.0;
}

static inline V_f32 gains_f32(const float *gain, size_t i) {
    if (gain) return *(const U_f32 *)(gain + i);
    return (V_f32){0} + 1.0f;
}

static void load_f64(void *x_, const void *src, rq_dtype dtype, const void *gain_, size_t n) {
    double *x = x_;
    const double *gain = gain_;
    size_t i = 0;
    if (dtype == RQ_BF16)
        for (; i + LANES_F64 <= n; i += LANES_F64) *(U_f64 *)(x + i) = widen_f64(src, i, RQ_BF16) * gains_f64(gain, i);
    else if (dtype == RQ_F32)
        for (; i + LANES_F64 <= n; i += LANES_F64) *(U_f64 *)(x + i) = widen_f64(src, i, RQ_F32) * gains_f64(gain, i);
    if (i < n)
        rq_fold_ref[0].load(x + i, (const char *)src + i * rq_dtype_bytes(dtype), dtype, gain ? gain + i : NULL, n - i);
}

static void load_f32(void *x_, const void *src, rq_dtype dtype, const void *gain_, size_t n) {
    float *x = x_;
    const float *gain = gain_;
    size_t i = 0;
    if (dtype == RQ_BF16)
        for (; i + LANES_F32 <= n; i += LANES_F32) *(U_f32 *)(x + i) = widen_f32(src, i, RQ_BF16) * gains_f32(gain, i);
    else if (dtype == RQ_F32)
        for (; i + LANES_F32 <= n; i += LANES_F32) *(U_f32 *)(x + i) = widen_f32(src, i, RQ_F32) * gains_f32(gain, i);
    if (i < n)
        rq_fold_ref[1].load(x + i, (const char *)src + i * rq_dtype_bytes(dtype), dtype, gain ? gain + i : NULL, n - i);
}

/* ---- one rounding to the stored type ----
 *
 * f64 -> bf16 through f32 errs only where the f32 lies exactly half way between two bf16 values, i.e. where its low 16
 * bits are 0x8000 (subnormals included): one element in 65,536. Those are rounded again, directly. */

static inline __attribute__((always_inline)) bool any32(u32x8 v) {
    typedef uint64_t u64x4 __attribute__((vector_size(32)));
    const u64x4 w = (u64x4)v;
    return (w[0] | w[1] | w[2] | w[3]) != 0;
}

static inline __attribute__((always_inline)) f32x8 bf16_round(f32x8 v) {
    const u32x8 u = (u32x8)v;
    return (f32x8)((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

static inline __attribute__((always_inline)) f32x8 scaled_f64(const double *x, double scale) {
    return __builtin_convertvector(*(const f64x8u *)x * scale, f32x8);
}

static bool round_to_f64(float *y, const void *x_, double scale, rq_dtype dtype, size_t n) {
    const double *x = x_;
    size_t i = 0;
    bool finite = true;
    u32x8 bad = {0};
    if (dtype == RQ_BF16)
        for (; i + 32 <= n; i += 32) {
            const f32x8 v0 = scaled_f64(x + i, scale), v1 = scaled_f64(x + i + 8, scale);
            const f32x8 v2 = scaled_f64(x + i + 16, scale), v3 = scaled_f64(x + i + 24, scale);
            const u32x8 half = (u32x8){0} + 0x8000u, low = (u32x8){0} + 0xffffu;
            const u32x8 tie = (u32x8)((((u32x8)v0 & low) == half) | (((u32x8)v1 & low) == half) |
                                      (((u32x8)v2 & low) == half) | (((u32x8)v3 & low) == half));
            const f32x8 r0 = bf16_round(v0), r1 = bf16_round(v1), r2 = bf16_round(v2), r3 = bf16_round(v3);
            *(f32x8u *)(y + i) = r0, *(f32x8u *)(y + i + 8) = r1;
            *(f32x8u *)(y + i + 16) = r2, *(f32x8u *)(y + i + 24) = r3;
            if (__builtin_expect(any32(tie), 0)) {
                finite &= rq_fix_ties(y + i, x + i, scale, 32);
                continue;
            }
            const u32x8 top = (u32x8){0} + 0x7f800000u;
            bad |= (u32x8)((((u32x8)r0 & top) == top) | (((u32x8)r1 & top) == top) | (((u32x8)r2 & top) == top) |
                           (((u32x8)r3 & top) == top));
        }
    else if (dtype == RQ_F32)
        for (; i + 8 <= n; i += 8) {
            const f32x8 v = scaled_f64(x + i, scale);
            *(f32x8u *)(y + i) = v;
            const u32x8 top = (u32x8){0} + 0x7f800000u;
            bad |= (u32x8)(((u32x8)v & top) == top);
        }
    if (any32(bad)) finite = false;
    if (i < n) finite &= rq_fold_ref[0].round_to(y + i, x + i, scale, dtype, n - i);
    return finite;
}

static bool round_to_f32(float *y, const void *x_, double scale, rq_dtype dtype, size_t n) {
    const float *x = x_;
    const float s = (float)scale;
    size_t i = 0;
    u32x8 bad = {0};
    bool finite = true;
    if (dtype == RQ_BF16 || dtype == RQ_F32)
        for (; i + 8 <= n; i += 8) {
            f32x8 v = *(const f32x8u *)(x + i) * s;
            if (dtype == RQ_BF16) {
                const u32x8 infinite = (u32x8)(((u32x8)v & 0x7f800000u) == (u32x8){0} + 0x7f800000u);
                bad |= infinite; /* before rounding: a NaN's low bits could carry over */
                v = bf16_round(v);
            }
            *(f32x8u *)(y + i) = v;
            bad |= (u32x8)(((u32x8)v & 0x7f800000u) == (u32x8){0} + 0x7f800000u);
        }
    if (any32(bad)) return rq_fold_ref[1].round_to(y, x, scale, dtype, n);
    if (i < n) finite &= rq_fold_ref[1].round_to(y + i, x + i, scale, dtype, n - i);
    return finite;
}

/* ---- the same for panels: eight columns at a time, whole rows in one call ---- */

static void load_panel_f64(void *x_, size_t x_stride, const void *src, size_t src_stride, rq_dtype dtype,
                           const void *row_gain, size_t rows, size_t cols) {
    const double *gain = row_gain;
    const size_t item = rq_dtype_bytes(dtype), whole = dtype == RQ_F16 ? 0 : cols / 8 * 8;
    for (size_t r = 0; r < rows; r++) {
        double *x = (double *)x_ + r * x_stride;
        const char *p = (const char *)src + r * src_stride;
        const double g = gain ? gain[r] : 1.0;
        for (size_t c = 0; c < whole; c += 8) {
            f64x8 v;
            if (dtype == RQ_BF16)
                v = __builtin_convertvector(bf16_widen((const uint16_t *)(const void *)p + c), f64x8);
            else if (dtype == RQ_F32)
                v = __builtin_convertvector((f32x8) * (const f32x8u *)(const void *)(p + 4 * c), f64x8);
            else
                v = *(const f64x8u *)(const void *)(p + 8 * c);
            *(f64x8u *)(x + c) = v * g;
        }
    }
    if (whole < cols)
        rq_fold_ref[0].load_panel((double *)x_ + whole, x_stride, (const char *)src + whole * item, src_stride, dtype,
                                  row_gain, rows, cols - whole);
}

static void load_panel_f32(void *x_, size_t x_stride, const void *src, size_t src_stride, rq_dtype dtype,
                           const void *row_gain, size_t rows, size_t cols) {
    const float *gain = row_gain;
    const size_t item = rq_dtype_bytes(dtype);
    const size_t whole = dtype == RQ_BF16 || dtype == RQ_F32 ? cols / 8 * 8 : 0;
    for (size_t r = 0; r < rows; r++) {
        float *x = (float *)x_ + r * x_stride;
        const char *p = (const char *)src + r * src_stride;
        const float g = gain ? gain[r] : 1.0f;
        for (size_t c = 0; c < whole; c += 8) {
            const f32x8 v = dtype == RQ_BF16 ? bf16_widen((const uint16_t *)(const void *)p + c)
                                             : (f32x8) * (const f32x8u *)(const void *)(p + 4 * c);
            *(f32x8u *)(x + c) = v * g;
        }
    }
    if (whole < cols)
        rq_fold_ref[1].load_panel((float *)x_ + whole, x_stride, (const char *)src + whole * item, src_stride, dtype,
                                  row_gain, rows, cols - whole);
}

static bool round_panel_f64(float *y, size_t y_stride, const void *x_, size_t x_stride, double scale, rq_dtype dtype,
                            size_t rows, size_t cols) {
    const double *x = x_;
    const size_t whole = dtype == RQ_F16 ? 0 : cols / 8 * 8;
    const u32x8 half = (u32x8){0} + 0x8000u, top = (u32x8){0} + 0x7f800000u;
    const u32x8 low = dtype == RQ_BF16 ? (u32x8){0} + 0xffffu : (u32x8){0};
    u32x8 bad = {0};
    bool finite = true;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < whole; c += 8) {
            float *to = y + r * y_stride + c;
            const double *from = x + r * x_stride + c;
            f32x8 v = scaled_f64(from, scale);
            const u32x8 tie = (u32x8)(((u32x8)v & low) == half);
            if (dtype == RQ_BF16) v = bf16_round(v);
            *(f32x8u *)to = v;
            if (__builtin_expect(any32(tie), 0))
                finite &= rq_fix_ties(to, from, scale, 8);
            else
                bad |= (u32x8)(((u32x8)v & top) == top);
        }
    if (any32(bad)) finite = false;
    if (whole < cols)
        finite &=
            rq_fold_ref[0].round_panel(y + whole, y_stride, x + whole, x_stride, scale, dtype, rows, cols - whole);
    return finite;
}

static bool round_panel_f32(float *y, size_t y_stride, const void *x, size_t x_stride, double scale, rq_dtype dtype,
                            size_t rows, size_t cols) {
    bool finite = true;
    for (size_t r = 0; r < rows; r++)
        finite &= round_to_f32(y + r * y_stride, (const float *)x + r * x_stride, scale, dtype, cols);
    return finite;
}

static void store(void *dst, const float *y, rq_dtype dtype, size_t n) {
    size_t i = 0;
    if (dtype == RQ_BF16) /* y is already a bf16 value: its upper half */
        for (; i + 8 <= n; i += 8)
            *(u16x8 *)((uint16_t *)dst + i) =
                __builtin_convertvector((u32x8)(f32x8) * (const f32x8u *)(y + i) >> 16, u16x8);
    if (dtype == RQ_F32) {
        memcpy(dst, y, n * sizeof *y);
        return;
    }
    for (; i < n; i++) {
        if (dtype == RQ_BF16)
            ((uint16_t *)dst)[i] = rq_f32_to_bf16(y[i]);
        else
            ((uint16_t *)dst)[i] = rq_f32_to_f16(y[i]);
    }
}

static size_t find_nonfinite(const void *src, rq_dtype dtype, size_t n) {
    const size_t chunk = 64;
    if (dtype == RQ_BF16)
        for (size_t i = 0; i + chunk <= n; i += chunk) {
            u16x8 bad = {0};
            for (size_t j = i; j < i + chunk; j += 8) {
                const u16x8 v = *(const u16x8 *)((const uint16_t *)src + j) & 0x7f80;
                bad |= (u16x8)(v == (u16x8){0} + 0x7f80);
            }
            for (size_t j = 0; j < 8; j++)
                if (bad[j]) return i + rq_nonfinite_ref((const uint16_t *)src + i, dtype, n - i);
            if (i + 2 * chunk > n) {
                const size_t done = i + chunk;
                return done + rq_nonfinite_ref((const uint16_t *)src + done, dtype, n - done);
            }
        }
    return rq_nonfinite_ref(src, dtype, n);
}

void FOLD_TABLE(rq_kernels *table) {
    table->fold[0].load = load_f64;
    table->fold[0].fwht_row = fwht_row_f64;
    table->fold[0].fwht_cols = fwht_cols_f64;
    table->fold[0].fold_row = fold_row_f64;
    table->fold[0].fold_cols = fold_cols_f64;
    table->fold[0].dense_rows = dense_rows_f64;
    table->fold[0].round_to = round_to_f64;
    table->fold[0].load_panel = load_panel_f64;
    table->fold[0].round_panel = round_panel_f64;
    table->fold[1].load = load_f32;
    table->fold[1].fwht_row = fwht_row_f32;
    table->fold[1].fwht_cols = fwht_cols_f32;
    table->fold[1].fold_row = fold_row_f32;
    table->fold[1].fold_cols = fold_cols_f32;
    table->fold[1].dense_rows = dense_rows_f32;
    table->fold[1].round_to = round_to_f32;
    table->fold[1].load_panel = load_panel_f32;
    table->fold[1].round_panel = round_panel_f32;
    table->store = store;
    table->find_nonfinite = find_nonfinite;
}
