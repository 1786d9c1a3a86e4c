/* The fold kernels: every version gives the reference's bits, and the reference is the matrix it claims to be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/fold_scalar.h"
#include "linalg/fwht_plan.h"

static uint64_t state;

static uint64_t next_bits(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Uniform sign and mantissa, exponent in [-spread, spread]. */
static double next_value(int spread) {
    const double m = (double)(int64_t)next_bits() / 9.3e18;
    return ldexp(m, spread ? (int)(next_bits() % (uint64_t)(2 * spread + 1)) - spread : 0);
}

static const size_t orders[] = {1,  2,  4,  8,  16, 32,  64,  128, 256, 1024, 2048, 4096, 12,  20,
                                24, 40, 48, 80, 96, 192, 576, 160, 320, 640,  5120, 896,  688, 1376};

static const char *const versions[] = {"avx2", "avx512", "neon"};

static double at(const double *x, const float *f, size_t i) { return x ? x[i] : (double)f[i]; }

static void reference_is_the_dense_kronecker_product(void **unused) {
    (void)unused;
    const rq_kernels *k = rq_kernels_named("scalar");
    for (size_t o = 0; o < RQ_COUNT_OF(orders); o++) {
        const size_t n = orders[o];
        if (n > 1376) continue;
        rq_fwht f;
        assert_int_equal(rq_fwht_init(&f, n, NULL), RQ_OK);
        double *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
        for (size_t i = 0; i < n; i++) x[i] = y[i] = next_value(3);
        k->fold[0].fwht_row(y, &f);
        for (size_t i = 0; i < n; i++) {
            double want = 0, norm = 0;
            for (size_t j = 0; j < n; j++) {
                const int hk = f.K > 1 ? f.hk[i / f.len * f.K + j / f.len] : 1;
                const int s = __builtin_parityll(i % f.len & j % f.len) ? -1 : 1;
                want += hk * s * x[j];
                norm += fabs(x[j]);
            }
            assert_true(fabs(want - y[i]) <= 1e-13 * norm);
        }
        free(x), free(y);
        rq_fwht_deinit(&f);
    }
}

/* Rows and columns are the same map, and each version equals the reference bit for bit, zeros' signs included. */
static void transforms_match_the_reference_bit_for_bit(void **unused) {
    (void)unused;
    const rq_kernels *ref = rq_kernels_named("scalar");
    static const size_t widths[] = {1, 7, 8, 16, 40};
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        for (size_t o = 0; o < RQ_COUNT_OF(orders); o++)
            for (int p = 0; p < 2; p++) {
                const size_t n = orders[o], bytes = ref->fold[p].real_bytes;
                rq_fwht f;
                assert_int_equal(rq_fwht_init(&f, n, NULL), RQ_OK);
                for (size_t w = 0; w < RQ_COUNT_OF(widths); w++) {
                    const size_t cols = widths[w], stride = cols + w;
                    char *a = calloc(n * stride, bytes), *b = malloc(n * stride * bytes);
                    for (size_t i = 0; i < n * stride; i++) {
                        const double x = i % 5 == 0 ? 0.0 : next_value(o % 2 ? 30 : 2);
                        if (p == 0)
                            ((double *)(void *)a)[i] = x;
                        else
                            ((float *)(void *)a)[i] = (float)x;
                    }
                    memcpy(b, a, n * stride * bytes);
                    ref->fold[p].fwht_cols(a, cols, stride, &f);
                    k->fold[p].fwht_cols(b, cols, stride, &f);
                    assert_memory_equal(a, b, n * stride * bytes);
                    if (cols == 1) { /* contiguous when stride is 1 */
                        ref->fold[p].fwht_row(a, &f);
                        k->fold[p].fwht_row(b, &f);
                        assert_memory_equal(a, b, n * bytes);
                    }
                    free(a), free(b);
                }
                rq_fwht_deinit(&f);
            }
    }
}

static void dense_rows_match_the_reference_bit_for_bit(void **unused) {
    (void)unused;
    const rq_kernels *ref = rq_kernels_named("scalar");
    static const size_t sizes[] = {1, 5, 40, 64, 200, 333};
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        for (size_t s = 0; s < RQ_COUNT_OF(sizes); s++) {
            const size_t n = sizes[s], rows = 1 + s;
            double *x = malloc(rows * n * sizeof *x), *q = malloc(n * n * sizeof *q),
                   *y = malloc(2 * rows * n * sizeof *y);
            float *xf = malloc(rows * n * sizeof *xf), *qf = malloc(n * n * sizeof *qf),
                  *yf = malloc(2 * rows * n * sizeof *yf);
            for (size_t i = 0; i < rows * n; i++) xf[i] = (float)(x[i] = next_value(4));
            for (size_t i = 0; i < n * n; i++) qf[i] = (float)(q[i] = next_value(4));
            ref->fold[0].dense_rows(y, x, rows, q, n), k->fold[0].dense_rows(y + rows * n, x, rows, q, n);
            ref->fold[1].dense_rows(yf, xf, rows, qf, n), k->fold[1].dense_rows(yf + rows * n, xf, rows, qf, n);
            assert_memory_equal(y, y + rows * n, rows * n * sizeof *y);
            assert_memory_equal(yf, yf + rows * n, rows * n * sizeof *yf);
            free(x), free(q), free(y), free(xf), free(qf), free(yf);
        }
    }
}

static void loads_match_the_reference_for_every_bf16_and_f16_pattern(void **unused) {
    (void)unused;
    const size_t n = 65536;
    uint16_t *h = malloc(n * sizeof *h);
    double *gain = malloc(n * sizeof *gain);
    float *gain_f = malloc(n * sizeof *gain_f);
    for (size_t i = 0; i < n; i++) h[i] = (uint16_t)i, gain_f[i] = (float)(gain[i] = next_value(2));
    double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    const rq_kernels *ref = rq_kernels_named("scalar");
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        static const rq_dtype types[] = {RQ_BF16, RQ_F16};
        for (size_t t = 0; t < 2; t++)
            for (int p = 0; p < 2; p++)
                for (int g = 0; g < 2; g++) {
                    const void *use = !g ? NULL : p == 0 ? (const void *)gain : (const void *)gain_f;
                    ref->fold[p].load(a, h, types[t], use, n - 3);
                    k->fold[p].load(b, h, types[t], use, n - 3);
                    for (size_t i = 0; i < n - 3; i++) { /* NaN payloads may differ; every other bit may not */
                        const double x = at(p ? NULL : a, (const float *)(const void *)a, i);
                        const double y = at(p ? NULL : b, (const float *)(const void *)b, i);
                        assert_true((isnan(x) && isnan(y)) || memcmp(&x, &y, sizeof x) == 0);
                    }
                }
    }
    free(h), free(gain), free(gain_f), free(a), free(b);
}

/* Values at, just above and just below the midpoints of neighbouring bf16 or f16 values: a detour through f32 rounds
 * these twice. The reference is checked against exact comparison with both neighbours. */
static void rounding_is_single_and_to_even(void **unused) {
    (void)unused;
    static const rq_dtype types[] = {RQ_BF16, RQ_F16};
    for (size_t t = 0; t < 2; t++)
        for (unsigned u = 0; u < 0x7c00; u++) {
            const rq_dtype type = types[t];
            const unsigned pattern = t == 0 ? u * 2 % 0x7f7f : u % 0x7bff;
            const double low =
                t == 0 ? (double)rq_bf16_to_f32((uint16_t)pattern) : (double)rq_f16_to_f32((uint16_t)pattern);
            const double high = t == 0 ? (double)rq_bf16_to_f32((uint16_t)(pattern + 1))
                                       : (double)rq_f16_to_f32((uint16_t)(pattern + 1));
            if (isinf(high)) continue;
            const double middle = (low + high) / 2, even = pattern % 2 == 0 ? low : high;
            const double above = nextafter(middle, INFINITY), below = nextafter(middle, -INFINITY);
            assert_true((double)rq_round_value(middle, type) == even);
            assert_true((double)rq_round_value(above, type) == high);
            assert_true((double)rq_round_value(below, type) == low);
            assert_true((double)rq_round_value(-above, type) == -high);
            assert_true((double)rq_round_value(low, type) == low);
        }
}

static void rounding_kernels_match_the_reference_bit_for_bit(void **unused) {
    (void)unused;
    const size_t n = 4099;
    double *x = malloc(n * sizeof *x);
    float *xf = malloc(n * sizeof *xf), *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    uint16_t *sa = malloc(2 * n * sizeof *sa), *sb = malloc(2 * n * sizeof *sb);
    const rq_kernels *ref = rq_kernels_named("scalar");
    static const rq_dtype types[] = {RQ_BF16, RQ_F16, RQ_F32};
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        for (int family = 0; family < 6; family++)
            for (size_t t = 0; t < 3; t++)
                for (int p = 0; p < 2; p++) {
                    for (size_t i = 0; i < n; i++) {
                        double d = next_value(family == 1 ? 140 : 3);
                        if (family == 2) { /* next to bf16 midpoints */
                            const float f = rq_bf16_to_f32((uint16_t)(next_bits() % 0x7f00));
                            uint32_t bits;
                            memcpy(&bits, &f, 4);
                            bits |= 0x8000;
                            float g;
                            memcpy(&g, &bits, 4);
                            d = (double)g * (1 + ((int)(next_bits() % 3) - 1) * 0x1p-40);
                        }
                        if (family == 3) d *= 1e-38;
                        if (family == 4 && i == 1000) d = NAN;
                        if (family == 5 && i == 4098) d = 1e39;
                        x[i] = d;
                        xf[i] = (float)d;
                    }
                    const void *src = p ? (const void *)xf : (const void *)x;
                    const bool fa = ref->fold[p].round_to(a, src, 1.0, types[t], n);
                    const bool fb = k->fold[p].round_to(b, src, 1.0, types[t], n);
                    assert_int_equal(fa, fb);
                    if (fa) assert_memory_equal(a, b, n * sizeof *a);
                    if (family == 4 || family == 5) assert_false(fb);
                    if (!fa) continue;
                    ref->store(sa, a, types[t], n), k->store(sb, a, types[t], n);
                    assert_memory_equal(sa, sb, n * rq_dtype_bytes(types[t]));
                }
    }
    free(x), free(xf), free(a), free(b), free(sa), free(sb);
}

static void panels_match_the_reference_bit_for_bit(void **unused) {
    (void)unused;
    const rq_kernels *ref = rq_kernels_named("scalar");
    static const rq_dtype types[] = {RQ_BF16, RQ_F16, RQ_F32};
    const size_t rows = 37, stride = 29;
    uint8_t src[37 * 29 * 8];
    double gain[37], x[37 * 29], x2[37 * 29];
    float gain_f[37], y[37 * 29] = {0}, y2[37 * 29] = {0};
    for (size_t r = 0; r < rows; r++) gain_f[r] = (float)(gain[r] = next_bits() % 2 ? 1.0 : -1.0);
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        for (size_t t = 0; t < 3; t++)
            for (size_t cols = 1; cols <= 29; cols += 7)
                for (int p = 0; p < 2; p++) {
                    float values[37 * 29];
                    for (size_t i = 0; i < rows * stride; i++) values[i] = rq_round_value(next_value(5), types[t]);
                    ref->store(src, values, types[t], rows * stride);
                    const size_t item = rq_dtype_bytes(types[t]);
                    const void *g = p ? (const void *)gain_f : (const void *)gain;
                    memset(x, 0, sizeof x), memset(x2, 0, sizeof x2);
                    ref->fold[p].load_panel(x, stride, src, stride * item, types[t], g, rows, cols);
                    k->fold[p].load_panel(x2, stride, src, stride * item, types[t], g, rows, cols);
                    assert_memory_equal(x, x2, sizeof x);
                    const bool a = ref->fold[p].round_panel(y, stride, x, stride, 0.3, types[t], rows, cols);
                    const bool b = k->fold[p].round_panel(y2, stride, x, stride, 0.3, types[t], rows, cols);
                    assert_int_equal(a, b);
                    assert_memory_equal(y, y2, sizeof y);
                }
    }
}

/* Fused passes give the bits of load, transform and rounding in turn, ties and non-finite values included. */
static void fused_folds_match_the_reference_bit_for_bit(void **unused) {
    (void)unused;
    const rq_kernels *ref = rq_kernels_named("scalar");
    static const rq_dtype from[] = {RQ_BF16, RQ_F16, RQ_F32, RQ_F64}, to[] = {RQ_BF16, RQ_F16, RQ_F32};
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        for (size_t o = 0; o < RQ_COUNT_OF(orders); o++)
            for (size_t d = 0; d < RQ_COUNT_OF(from); d++)
                for (size_t t = 0; t < RQ_COUNT_OF(to); t++)
                    for (int p = 0; p < 2; p++) {
                        const size_t n = orders[o], blocks = n < 300 ? 3 : 1, total = n * blocks;
                        const size_t cols = n < 100 ? 16 : d % 2 ? 8 : 16, item = rq_dtype_bytes(from[d]);
                        rq_fwht f;
                        assert_int_equal(rq_fwht_init(&f, n, NULL), RQ_OK);
                        const size_t elements = total > n * cols ? total : n * cols;
                        char *src = malloc(elements * 8);
                        double *x = malloc(elements * sizeof *x), *gain = malloc(total * sizeof *gain);
                        float *gain_f = malloc(total * sizeof *gain_f);
                        float *a = malloc(elements * sizeof *a), *b = malloc(elements * sizeof *b);
                        for (size_t i = 0; i < total; i++) gain_f[i] = (float)(gain[i] = next_value(1));
                        for (size_t i = 0; i < elements; i++) { /* few significant bits: ties are frequent */
                            const double value =
                                (double)((int)(next_bits() % 33) - 16) * (o % 3 == 0 ? 0x1p-130 : 0.25);
                            const float narrow = (float)value;
                            if (from[d] == RQ_F64)
                                memcpy(src + 8 * i, &value, 8);
                            else
                                ref->store(src + item * i, &narrow, from[d], 1);
                        }
                        const void *g = d == 0 ? NULL : p ? (const void *)gain_f : (const void *)gain;
                        bool fa = ref->fold[p].fold_row(a, x, src, from[d], g, &f, total, f.scale, to[t]);
                        bool fb = k->fold[p].fold_row(b, x, src, from[d], g, &f, total, f.scale, to[t]);
                        assert_int_equal(fa, fb);
                        if (fa) assert_memory_equal(a, b, total * sizeof *a);
                        fa = ref->fold[p].fold_row(a, x, src, from[d], g, NULL, total, 1.0, to[t]);
                        fb = k->fold[p].fold_row(b, x, src, from[d], g, NULL, total, 1.0, to[t]);
                        assert_int_equal(fa, fb);
                        if (fa) assert_memory_equal(a, b, total * sizeof *a);
                        fa = ref->fold[p].fold_cols(a, cols, x, src, cols * item, from[d], g, &f, cols, f.scale, to[t]);
                        fb = k->fold[p].fold_cols(b, cols, x, src, cols * item, from[d], g, &f, cols, f.scale, to[t]);
                        assert_int_equal(fa, fb);
                        if (fa) assert_memory_equal(a, b, n * cols * sizeof *a);
                        if (from[d] == RQ_BF16 && to[t] == RQ_BF16) {
                            const uint16_t nan = 0x7fc0;
                            memcpy(src + item * (n - 1), &nan, 2);
                            assert_false(k->fold[p].fold_row(b, x, src, from[d], g, &f, total, f.scale, to[t]));
                        }
                        free(src), free(x), free(gain), free(gain_f), free(a), free(b);
                        rq_fwht_deinit(&f);
                    }
    }
}

/* Just below and at the middle between the largest bf16 value and infinity. */
static void the_edge_of_bf16_is_judged_alike_by_every_version(void **unused) {
    (void)unused;
    enum { n = 64 };
    rq_fwht f;
    assert_int_equal(rq_fwht_init(&f, n, NULL), RQ_OK);
    const double edges[] = {0x1.fefep127, 0x1.ffp127, 0x1.fefffffep127};
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        const rq_kernels *ref = rq_kernels_named("scalar");
        if (!k) continue;
        for (size_t e = 0; e < RQ_COUNT_OF(edges); e++)
            for (int below = 0; below < 2; below++) {
                const double edge = below ? nextafter(edges[e], 0) : edges[e];
                double x[n], work[n], gain[n];
                float src[n], a[n], b[n];
                for (size_t i = 0; i < n; i++)
                    x[i] = edge, src[i] = i ? 0.0f : 0x1.fefep127f, gain[i] = below ? 1 - 1e-12 : 1;
                assert_int_equal(ref->fold[0].round_to(a, x, 1.0, RQ_BF16, n),
                                 k->fold[0].round_to(b, x, 1.0, RQ_BF16, n));
                assert_memory_equal(a, b, sizeof a);
                assert_int_equal(ref->fold[0].round_panel(a, 8, x, 8, 1.0, RQ_BF16, 8, 8),
                                 k->fold[0].round_panel(b, 8, x, 8, 1.0, RQ_BF16, 8, 8));
                assert_int_equal(ref->fold[0].fold_row(a, work, src, RQ_F32, gain, &f, n, 1.0, RQ_BF16),
                                 k->fold[0].fold_row(b, work, src, RQ_F32, gain, &f, n, 1.0, RQ_BF16));
                assert_memory_equal(a, b, sizeof a);
            }
    }
    rq_fwht_deinit(&f);
}

static void nonfinite_search_finds_the_first_one_anywhere(void **unused) {
    (void)unused;
    uint16_t h[301];
    for (size_t v = 0; v < RQ_COUNT_OF(versions); v++) {
        const rq_kernels *k = rq_kernels_named(versions[v]);
        if (!k) continue;
        for (size_t n = 0; n <= RQ_COUNT_OF(h); n += n < 200 ? 37 : 101)
            for (size_t i = 0; i <= n; i++) {
                for (size_t j = 0; j < n; j++) h[j] = 0x3f80;
                if (i < n) h[i] = i % 2 ? 0xff80 : 0x7fc1;
                if (i + 9 < n) h[i + 9] = 0x7f80;
                assert_int_equal(k->find_nonfinite(h, RQ_BF16, n), i);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_dense_kronecker_product),
        cmocka_unit_test(transforms_match_the_reference_bit_for_bit),
        cmocka_unit_test(dense_rows_match_the_reference_bit_for_bit),
        cmocka_unit_test(loads_match_the_reference_for_every_bf16_and_f16_pattern),
        cmocka_unit_test(rounding_is_single_and_to_even),
        cmocka_unit_test(rounding_kernels_match_the_reference_bit_for_bit),
        cmocka_unit_test(panels_match_the_reference_bit_for_bit),
        cmocka_unit_test(fused_folds_match_the_reference_bit_for_bit),
        cmocka_unit_test(the_edge_of_bf16_is_judged_alike_by_every_version),
        cmocka_unit_test(nonfinite_search_finds_the_first_one_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
