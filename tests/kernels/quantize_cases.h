/* Tensors that quantizers get wrong, and the comparison of a kernel version with the scalar reference. Plain C without
 * a test framework, so that it also runs on an emulated CPU (tests/arm64.sh). */
#ifndef QUANTIZE_CASES_H
#define QUANTIZE_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quantize_group.h"

typedef struct case_random {
    uint64_t state;
} case_random;

static inline uint32_t case_next(case_random *random) { /* splitmix64 */
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static inline double case_uniform(case_random *random) { return (case_next(random) + 0.5) / 4294967296.0; }

static inline double case_normal(case_random *random) { /* sum of 12 uniforms: near enough, and needs no libm */
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += case_uniform(random);
    return sum;
}

#define CASE_FAMILIES(X) \
    X(normal)            \
    X(heavy_tailed)      \
    X(one_sided)         \
    X(tiny)              \
    X(subnormal)         \
    X(underflowing)      \
    X(huge)              \
    X(zeros)             \
    X(negative_zeros)    \
    X(mixed_zeros)       \
    X(constant)          \
    X(one_hot)           \
    X(ties)              \
    X(row_scales)        \
    X(with_nan)          \
    X(with_infinity)     \
    X(any_bits)
typedef enum case_family {
#define CASE_ENUM(name) CASE_##name,
    CASE_FAMILIES(CASE_ENUM)
#undef CASE_ENUM
        CASE_COUNT
} case_family;

static const char *const case_names[CASE_COUNT] = {
#define CASE_NAME(name) #name,
    CASE_FAMILIES(CASE_NAME)
#undef CASE_NAME
};

static inline bool case_is_finite(case_family family) { return family < CASE_with_nan; }

static inline float case_element(case_random *random, case_family family, size_t r, size_t c, float row_value) {
    const double x = case_normal(random);
    switch (family) {
    case CASE_normal:
        return (float)(0.02 * x);
    case CASE_heavy_tailed:
        return (float)(0.02 * x * x * x * x * x);
    case CASE_one_sided:
        return (float)(0.5 * (r % 2 ? fabs(x) + 0.1 : -fabs(x)));
    case CASE_tiny:
        return (float)(1e-7 * x);
    case CASE_subnormal:
        return (float)(1e-39 * x);
    case CASE_underflowing:
        return (float)(x * (r % 3 == 0 ? 1e-40 : r % 3 == 1 ? 2e-36 : 5e-8));
    case CASE_huge:
        return (float)(x * (r % 2 ? 5e37 : 1e4));
    case CASE_zeros:
        return 0.0f;
    case CASE_negative_zeros:
        return -0.0f;
    case CASE_mixed_zeros:
        return case_next(random) & 1 ? 0.0f : -0.0f;
    case CASE_constant:
        return row_value;
    case CASE_one_hot:
        return c % 64 == r % 64 ? row_value : 0.0f;
    case CASE_ties:
        return (float)((int)(case_next(random) % 61) - 30) * 0.25f * (r % 3 == 2 ? 0.375f : 1.0f);
    case CASE_row_scales:
        return (float)(x * row_value);
    case CASE_with_nan:
        return case_next(random) % 40 == 0 ? (case_next(random) & 1 ? NAN : -NAN) : (float)x;
    case CASE_with_infinity:
        return case_next(random) % 40 == 0 ? (case_next(random) & 1 ? INFINITY : -INFINITY) : (float)x;
    default:
        break;
    }
    const uint32_t u = case_next(random);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* rows x cols of a family, rounded to T when it is BF16 or F16 (where that overflows: the largest finite value). */
static inline void case_fill(case_family family, uint64_t seed, rq_dtype T, float *w, size_t rows, size_t cols) {
    case_random random = {seed * 1000003u + (uint64_t)family};
    for (size_t r = 0; r < rows; r++) {
        const float row_value = (float)(case_normal(&random) * exp2((double)(case_next(&random) % 60) - 40));
        for (size_t c = 0; c < cols; c++) {
            float x = case_element(&random, family, r, c, row_value);
            if (case_is_finite(family) && T == RQ_F16) x = fminf(fmaxf(x, -65504.0f), 65504.0f);
            w[r * cols + c] = rq_round_to_dtype(x, T);
        }
    }
}

static const rq_quant_format case_formats[] = {
#define CASE_AFFINE(bits) \
    {RQ_AFFINE, bits, 32}, {RQ_AFFINE, bits, 64}, { RQ_AFFINE, bits, 128 }
    CASE_AFFINE(2),    CASE_AFFINE(3),    CASE_AFFINE(4),    CASE_AFFINE(5), CASE_AFFINE(6), CASE_AFFINE(8),
#undef CASE_AFFINE
    {RQ_MXFP4, 4, 32}, {RQ_MXFP8, 8, 32}, {RQ_NVFP4, 4, 16},
};
#define CASE_FORMATS (sizeof case_formats / sizeof *case_formats)
static const rq_dtype case_dtypes[] = {RQ_BF16, RQ_F16, RQ_F32};

/* Everything one call writes, with guard bytes between and after rows. */
typedef struct case_output {
    uint8_t *codes, *scales, *biases;
    size_t codes_stride, scales_stride, bytes_codes, bytes_scales;
    rq_quant_counts counts;
} case_output;

static inline case_output case_run(const rq_kernels *kernels, rq_scales_method method, const rq_quant_format *format,
                                   rq_dtype T, const float *w, size_t w_stride, size_t rows, size_t cols,
                                   size_t padding) {
    const size_t scale_bytes = format->mode == RQ_AFFINE ? rq_dtype_bytes(T) : 1;
    case_output out = {.codes_stride = cols * format->bits / 8 + padding,
                       .scales_stride = cols / format->group_size * scale_bytes + padding};
    out.bytes_codes = rows * out.codes_stride + 1;
    out.bytes_scales = rows * out.scales_stride + 1;
    out.codes = malloc(out.bytes_codes);
    out.scales = malloc(out.bytes_scales);
    out.biases = malloc(out.bytes_scales);
    if (!out.codes || !out.scales || !out.biases) {
        fputs("out of memory\n", stderr);
        exit(2);
    }
    memset(out.codes, 0xa5, out.bytes_codes);
    memset(out.scales, 0xa5, out.bytes_scales);
    memset(out.biases, 0xa5, out.bytes_scales);
    (method == RQ_SCALES_SEARCH ? kernels->quantize_search : kernels->quantize_mlx)(
        format, T, w, w_stride, rows, cols, out.codes, out.codes_stride, out.scales,
        format->mode == RQ_AFFINE ? out.biases : NULL, out.scales_stride, &out.counts);
    return out;
}

static inline void case_free(case_output *out) {
    free(out->codes);
    free(out->scales);
    free(out->biases);
}

/* True when both versions write the same bytes for this tensor; says what differs otherwise. */
static inline bool case_agree(const rq_kernels *a, const rq_kernels *b, rq_scales_method method,
                              const rq_quant_format *format, rq_dtype T, const float *w, size_t w_stride, size_t rows,
                              size_t cols, size_t padding, const char *label) {
    case_output x = case_run(a, method, format, T, w, w_stride, rows, cols, padding);
    case_output y = case_run(b, method, format, T, w, w_stride, rows, cols, padding);
    const char *what = NULL;
    size_t at = 0;
    if (memcmp(&x.counts, &y.counts, sizeof x.counts) != 0) what = "counts";
    for (size_t i = x.bytes_codes; i-- > 0;)
        if (x.codes[i] != y.codes[i]) what = "codes", at = i;
    for (size_t i = x.bytes_scales; i-- > 0;)
        if (x.biases[i] != y.biases[i]) what = "biases", at = i;
    for (size_t i = x.bytes_scales; i-- > 0;)
        if (x.scales[i] != y.scales[i]) what = "scales", at = i;
    if (what)
        fprintf(stderr, "%s, %s scales, %d bits, groups of %u, %s, %zu x %zu, mode %d: %s differ from %s at byte %zu\n",
                label, method == RQ_SCALES_SEARCH ? "search" : "mlx", (int)format->bits, format->group_size,
                rq_dtype_name(T), rows, cols, (int)format->mode, what, a->name, at);
    case_free(&x);
    case_free(&y);
    return !what;
}

/* Compares version `b` with `a` on every family, format and dtype for one method. Returns how many cases differ, and
 * adds to *cases. */
static inline size_t case_compare_all(const rq_kernels *a, const rq_kernels *b, rq_scales_method method,
                                      size_t *cases) {
    enum { ROWS = 7, COLS = 384, STRIDE = COLS + 5 };
    size_t differ = 0;
    float *w = malloc(sizeof(float) * ROWS * COLS), *strided = malloc(sizeof(float) * ROWS * STRIDE);
    if (!w || !strided) exit(2);
    for (int family = 0; family < CASE_COUNT; family++)
        for (size_t d = 0; d < sizeof case_dtypes / sizeof *case_dtypes; d++)
            for (uint64_t seed = 0; seed < 3; seed++) {
                /* Search takes unrounded weights. */
                case_fill((case_family)family, seed, method == RQ_SCALES_SEARCH ? RQ_F32 : case_dtypes[d], w, ROWS,
                          COLS);
                for (size_t r = 0; r < ROWS; r++) memcpy(strided + r * STRIDE, w + r * COLS, sizeof(float) * COLS);
                for (size_t f = 0; f < CASE_FORMATS; f++) {
                    const rq_quant_format *format = &case_formats[f];
                    differ +=
                        !case_agree(a, b, method, format, case_dtypes[d], w, COLS, ROWS, COLS, 0, case_names[family]);
                    /* The two patterns of callers: one row, and many rows of one group. */
                    differ += !case_agree(a, b, method, format, case_dtypes[d], strided + STRIDE, STRIDE, 1, COLS, 3,
                                          case_names[family]);
                    differ += !case_agree(a, b, method, format, case_dtypes[d], strided + 1, STRIDE, ROWS,
                                          format->group_size, 3, case_names[family]);
                    *cases += 3;
                }
            }
    free(w);
    free(strided);
    return differ;
}

#endif
