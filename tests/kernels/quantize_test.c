#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quantize_cases.h"

/* ---- small float types ---- */

static void f16_converts_back_and_forth_for_every_pattern(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const bool is_nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff);
        const uint16_t quiet = (uint16_t)(is_nan ? h | 0x200 : h);
        assert_int_equal(rq_f32_to_f16(rq_f16_to_f32((uint16_t)h)), quiet);
    }
    assert_true(rq_f16_to_f32(0x3c00) == 1.0f);
    assert_true(rq_f16_to_f32(0x0001) == 0x1p-24f);
    assert_true(rq_f16_to_f32(0xfbff) == -65504.0f);
}

static void f16_rounds_ties_to_even_and_keeps_subnormals(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) { /* every pair of finite neighbours */
        const float low = rq_f16_to_f32(h), high = rq_f16_to_f32((uint16_t)(h + 1)), middle = (low + high) / 2;
        assert_int_equal(rq_f32_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(rq_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(rq_f32_to_f16(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
    }
    assert_int_equal(rq_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(rq_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(rq_f32_to_f16(1e-40f), 0);
}

static void e4m3_decodes_to_its_definition(void **state) {
    (void)state;
    for (int c = 0; c < 256; c++) {
        const int exponent = c >> 3 & 15, mantissa = c & 7;
        const double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        const float got = rq_e4m3_to_f32((uint8_t)c);
        if ((c & 0x7f) == 0x7f)
            assert_true(isnan(got));
        else
            assert_true(got == (float)(c & 0x80 ? -magnitude : magnitude) && !signbit(got) == !(c & 0x80));
    }
}

static void e4m3_rounds_ties_to_even_and_saturates(void **state) {
    (void)state;
    for (int c = 0; c < 0x7e; c++) {
        const float low = rq_e4m3_to_f32((uint8_t)c), high = rq_e4m3_to_f32((uint8_t)(c + 1)),
                    middle = (low + high) / 2;
        assert_int_equal(rq_f32_to_e4m3(low), c);
        assert_int_equal(rq_f32_to_e4m3(-low), c | 0x80);
        assert_int_equal(rq_f32_to_e4m3(middle), c & 1 ? c + 1 : c);
        assert_int_equal(rq_f32_to_e4m3(nextafterf(middle, 0)), c);
        assert_int_equal(rq_f32_to_e4m3(nextafterf(middle, 1000)), c + 1);
    }
    assert_int_equal(rq_f32_to_e4m3(448), 0x7e);
    assert_int_equal(rq_f32_to_e4m3(1e30f), 0x7e);
    assert_int_equal(rq_f32_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(rq_f32_to_e4m3(NAN), 0x7e);
}

/* ---- packing ---- */

static void element_i_holds_stream_bits_from_i_times_bits(void **state) {
    (void)state;
    static const unsigned widths[] = {2, 3, 4, 5, 6, 8};
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        const unsigned bits = widths[k];
        uint8_t codes[128], packed[128];
        case_random random = {bits};
        for (int i = 0; i < 128; i++) codes[i] = (uint8_t)(case_next(&random) & ((1u << bits) - 1));
        rq_pack_codes_ref(bits, codes, 128, packed);
        for (unsigned i = 0; i < 128; i++)
            for (unsigned bit = 0; bit < bits; bit++) {
                const unsigned at = i * bits + bit;
                assert_int_equal(packed[at / 8] >> (at % 8) & 1, codes[i] >> bit & 1);
            }
    }
}

/* ---- versions against the reference ---- */

static void compare_version(const char *name, rq_scales_method method) {
    const rq_kernels *version = rq_kernels_named(name);
    if (!version) skip();
    size_t cases = 0;
    assert_int_equal(case_compare_all(rq_kernels_named("scalar"), version, method, &cases), 0);
    assert_true(cases > 1000);
}

static void avx2_writes_the_references_bytes(void **state) {
    (void)state;
    compare_version("avx2", RQ_SCALES_MLX);
}
static void avx512_writes_the_references_bytes(void **state) {
    (void)state;
    compare_version("avx512", RQ_SCALES_MLX);
}
static void neon_writes_the_references_bytes(void **state) {
    (void)state;
    compare_version("neon", RQ_SCALES_MLX);
}
static void avx2_search_finds_the_references_bytes(void **state) {
    (void)state;
    compare_version("avx2", RQ_SCALES_SEARCH);
}
static void avx512_search_finds_the_references_bytes(void **state) {
    (void)state;
    compare_version("avx512", RQ_SCALES_SEARCH);
}
static void neon_search_finds_the_references_bytes(void **state) {
    (void)state;
    compare_version("neon", RQ_SCALES_SEARCH);
}

/* The fast kernels multiply where the reference divides; here is every case in which that could show: every nvfp4 scale
 * with every 16-bit weight that is not far below all thresholds. */
static void nvfp4_products_decide_like_divisions_for_every_scale_and_weight(void **state) {
    (void)state;
    static const char *const versions[] = {"avx2", "avx512", "neon"};
    const rq_quant_format format = {RQ_NVFP4, 4, 16};
    static float w[16 * 1024];
    for (int d = 0; d < 2; d++) {
        const rq_dtype T = case_dtypes[d];
        for (int byte = 1; byte <= 0x7e; byte++) {
            const float largest = 6 * rq_e4m3_to_f32((uint8_t)byte); /* a value of T that maps to this byte */
            const uint16_t top = T == RQ_BF16 ? rq_f32_to_bf16(largest) : rq_f32_to_f16(largest);
            const uint16_t octaves = T == RQ_BF16 ? 6 * 128 : 6 * 1024;
            size_t n = 0;
            for (uint16_t h = top < octaves ? 0 : (uint16_t)(top - octaves); h <= top; h++, n++) {
                if (n % 16 == 0) { /* fixes the group's scale */
                    w[n] = n / 16 % 2 ? -largest : largest;
                    n++;
                }
                const float x = T == RQ_BF16 ? rq_bf16_to_f32(h) : rq_f16_to_f32(h);
                w[n] = n % 2 ? -x : x;
            }
            while (n % 16) w[n++] = 0;
            for (size_t v = 0; v < 3; v++)
                if (rq_kernels_named(versions[v]))
                    assert_true(case_agree(rq_kernels_named("scalar"), rq_kernels_named(versions[v]), RQ_SCALES_MLX,
                                           &format, T, w, n, 1, n, 0, "every weight"));
        }
    }
}

static void comparison_notices_one_wrong_code(void **state) {
    (void)state;
    /* The same kernel on weights that differ in one element must not compare equal. */
    float w[64];
    case_fill(CASE_normal, 1, RQ_BF16, w, 1, 64);
    const rq_quant_format format = {RQ_AFFINE, 4, 64};
    const rq_kernels *kernels = rq_kernels_named("scalar");
    case_output a = case_run(kernels, RQ_SCALES_MLX, &format, RQ_BF16, w, 64, 1, 64, 0);
    w[40] = -w[40] + 0.004f;
    case_output b = case_run(kernels, RQ_SCALES_MLX, &format, RQ_BF16, w, 64, 1, 64, 0);
    assert_memory_not_equal(a.codes, b.codes, a.bytes_codes);
    assert_memory_equal(a.scales, b.scales, a.bytes_scales);
    case_free(&a);
    case_free(&b);
}

static void no_rows_write_nothing(void **state) {
    (void)state;
    static const char *const versions[] = {"scalar", "avx2", "avx512", "neon"};
    for (size_t v = 0; v < 4; v++)
        for (size_t f = 0; rq_kernels_named(versions[v]) && f < CASE_FORMATS; f++) {
            const float w[1] = {0};
            case_output out =
                case_run(rq_kernels_named(versions[v]), RQ_SCALES_MLX, &case_formats[f], RQ_BF16, w, 128, 0, 128, 0);
            assert_int_equal(out.codes[0], 0xa5);
            assert_int_equal(out.scales[0], 0xa5);
            assert_int_equal(out.counts.groups, 0);
            case_free(&out);
        }
}

/* ---- dispatch ---- */

static void environment_forces_a_version(void **state) {
    (void)state;
    assert_string_equal(rq_kernels_get()->name, "scalar"); /* main sets ROTQ_SIMD before the first use */
    assert_ptr_equal(rq_kernels_get(), rq_kernels_named("scalar"));
    assert_null(rq_kernels_named("mmx"));
}

int main(void) {
    setenv("ROTQ_SIMD", "scalar", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_converts_back_and_forth_for_every_pattern),
        cmocka_unit_test(f16_rounds_ties_to_even_and_keeps_subnormals),
        cmocka_unit_test(e4m3_decodes_to_its_definition),
        cmocka_unit_test(e4m3_rounds_ties_to_even_and_saturates),
        cmocka_unit_test(element_i_holds_stream_bits_from_i_times_bits),
        cmocka_unit_test(avx2_writes_the_references_bytes),
        cmocka_unit_test(avx512_writes_the_references_bytes),
        cmocka_unit_test(neon_writes_the_references_bytes),
        cmocka_unit_test(avx2_search_finds_the_references_bytes),
        cmocka_unit_test(avx512_search_finds_the_references_bytes),
        cmocka_unit_test(neon_search_finds_the_references_bytes),
        cmocka_unit_test(nvfp4_products_decide_like_divisions_for_every_scale_and_weight),
        cmocka_unit_test(comparison_notices_one_wrong_code),
        cmocka_unit_test(no_rows_write_nothing),
        cmocka_unit_test(environment_forces_a_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
