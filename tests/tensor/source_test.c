#include <math.h>
#include <stdio.h>

#include "fixture.h"

typedef struct opened {
    char *dir;
    rq_checkpoint *ckpt;
    rq_source source;
} opened;

static char *directory(const char *config, const fx_tensor *tensors, size_t n) {
    char *dir = fx_dir();
    fx_text(dir, "config.json", config);
    fx_safetensors(dir, "model.safetensors", tensors, n);
    return dir;
}

static opened open_source(const char *config, const fx_tensor *tensors, size_t n) {
    opened o = {.dir = directory(config, tensors, n)};
    rq_error err = {0};
    if (rq_checkpoint_open(o.dir, &o.ckpt, NULL, &err) != RQ_OK) fail_msg("%s", err.message);
    if (rq_source_init(o.ckpt, &o.source, &err) != RQ_OK) fail_msg("%s", err.message);
    return o;
}

static void close_source(opened *o) {
    rq_source_deinit(&o->source);
    rq_checkpoint_close(o->ckpt);
    fx_done(o->dir);
}

static void expect_refusal(const char *config, const fx_tensor *tensors, size_t n, rq_status status, const char *says) {
    char *dir = directory(config, tensors, n);
    rq_checkpoint *ckpt = NULL;
    rq_source source;
    rq_error err = {0};
    assert_int_equal(rq_checkpoint_open(dir, &ckpt, NULL, &err), RQ_OK);
    const rq_status st = rq_source_init(ckpt, &source, &err);
    if (st != status) fail_msg("status %d, expected %d (%s)", st, status, err.message);
    fx_assert_in(err.message, says);
    assert_null(source.tensors);
    rq_checkpoint_close(ckpt);
    fx_done(dir);
}

static void plain_tensors_are_read_by_any_rectangle(void **state) {
    (void)state;
    enum { R = 6, C = 5 };
    uint16_t w[R * C];
    for (size_t i = 0; i < R * C; i++) w[i] = (uint16_t)(1000 + i);
    const fx_tensor tensors[] = {{"w", RQ_BF16, 2, {R, C}, w, 0},     {"cube", RQ_BF16, 3, {2, 3, C}, w, 0},
                                 {"row", RQ_BF16, 1, {R * C}, w, 0},  {"scalar", RQ_BF16, 0, {0}, w + 7, 0},
                                 {"empty", RQ_BF16, 2, {0, 4}, w, 0}, {"ids", RQ_I32, 1, {1}, w, 0}};
    opened o = open_source("{}", tensors, 6);
    rq_error err;
    assert_int_equal(o.source.count, 6);
    assert_string_equal(o.source.tensors[0].name, "cube");
    assert_null(rq_source_find(&o.source, "x"));
    assert_int_equal(rq_source_find(&o.source, "ids")->encoding, RQ_ENC_OPAQUE);
    static const char *const matrices[] = {"w", "cube"};
    for (size_t m = 0; m < 2; m++) {
        const rq_source_tensor *t = rq_source_find(&o.source, matrices[m]);
        assert_int_equal(t->encoding, RQ_ENC_PLAIN);
        for (uint64_t r0 = 0; r0 <= R; r0++)
            for (uint64_t r = 0; r0 + r <= R; r++)
                for (uint64_t c0 = 0; c0 <= C; c0++)
                    for (uint64_t c = 0; c0 + c <= C; c++)
                        for (size_t pad = 0; pad < 4; pad += 2) {
                            unsigned char got[R * (2 * C + 4)];
                            const size_t stride = 2 * (size_t)c + pad;
                            memset(got, 0xee, sizeof got);
                            assert_int_equal(rq_source_read(&o.source, t, r0, r, c0, c, got, stride, &err), RQ_OK);
                            for (size_t k = 0; k < r; k++)
                                assert_memory_equal(got + k * stride, w + (r0 + k) * C + c0, 2 * (size_t)c);
                            for (size_t k = 0; pad && k < r; k++)
                                assert_int_equal(got[k * stride + 2 * (size_t)c], 0xee);
                        }
    }
    uint16_t got[R * C] = {0};
    assert_int_equal(rq_source_read(&o.source, rq_source_find(&o.source, "row"), 0, 1, 3, 7, got, 0, &err), RQ_OK);
    assert_memory_equal(got, w + 3, 14);
    assert_int_equal(rq_source_read(&o.source, rq_source_find(&o.source, "scalar"), 0, 1, 0, 1, got, 2, &err), RQ_OK);
    assert_int_equal(got[0], w[7]);
    rq_source_prefetch(&o.source, rq_source_find(&o.source, "w"), 2, 100);
    rq_source_prefetch(&o.source, rq_source_find(&o.source, "empty"), 0, 1);
    close_source(&o);
}

static void blocks_outside_the_tensor_are_refused(void **state) {
    (void)state;
    const fx_tensor tensor = {"w", RQ_BF16, 2, {4, 4}, NULL, 0};
    static const struct {
        uint64_t row0, rows, col0, cols;
        size_t stride;
    } cases[] = {{0, 5, 0, 4, 8},          {5, 0, 0, 4, 8},          {3, 2, 0, 4, 8}, {0, 4, 1, 4, 8},
                 {UINT64_MAX, 2, 0, 4, 8}, {0, 4, UINT64_MAX, 2, 8}, {0, 4, 0, 4, 7}, {0, 4, 0, 4, SIZE_MAX}};
    opened o = open_source("{}", &tensor, 1);
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++) {
        char dst[64];
        rq_error err;
        assert_int_equal(rq_source_read(&o.source, &o.source.tensors[0], cases[i].row0, cases[i].rows, cases[i].col0,
                                        cases[i].cols, dst, cases[i].stride, &err),
                         RQ_ERR_USAGE);
        fx_assert_in(err.message, "\"w\"");
    }
    close_source(&o);
}

/* E4M3 from its definition: bias 7, no infinities. */
static double e4m3(unsigned code) {
    const int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
    const double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -x : x;
}

enum { N8 = 256 };

/* B04. Every finite code, under each of four scales. */
static void f8_blocks_are_codes_times_scales_exactly(void **state) {
    (void)state;
    static uint8_t codes[N8 * N8];
    static const float scales[4] = {0x1p-8f, 1.0f, 3.7f, 100.0f};
    static double got[N8 * N8];
    size_t kinds[4] = {0};
    for (size_t i = 0; i < N8 * N8; i++) {
        codes[i] = (uint8_t)(i % 254);
        if (codes[i] >= 0x7f) codes[i]++; /* 0x7f and 0xff are NaN */
    }
    const fx_tensor tensors[] = {{"m.weight", RQ_F8_E4M3, 2, {N8, N8}, codes, 0},
                                 {"m.weight_scale_inv", RQ_F32, 2, {2, 2}, scales, 0}};
    opened o =
        open_source("{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}", tensors, 2);
    rq_error err;
    assert_int_equal(o.source.count, 1);
    assert_true(o.source.is_fp8);
    const rq_source_tensor *t = &o.source.tensors[0];
    assert_int_equal(t->encoding, RQ_ENC_F8_BLOCK);
    assert_int_equal(t->dtype, RQ_F64);
    assert_int_equal(rq_source_read(&o.source, t, 0, N8, 0, N8, got, N8 * sizeof *got, &err), RQ_OK);
    for (size_t r = 0; r < N8; r++)
        for (size_t c = 0; c < N8; c++) {
            const size_t k = r / 128 * 2 + c / 128;
            const double want = e4m3(codes[r * N8 + c]) * (double)scales[k];
            if (memcmp(&got[r * N8 + c], &want, sizeof want) != 0) fail_msg("[%zu, %zu]", r, c);
            kinds[k]++;
        }
    for (size_t k = 0; k < 4; k++) assert_int_equal(kinds[k], 128 * 128);
    /* A rectangle that cuts all four blocks. */
    double part[9 * 31];
    assert_int_equal(rq_source_read(&o.source, t, 124, 9, 110, 31, part, 31 * sizeof *part, &err), RQ_OK);
    for (size_t r = 0; r < 9; r++) assert_memory_equal(part + r * 31, got + (124 + r) * N8 + 110, 31 * sizeof *part);
    rq_source_prefetch(&o.source, t, 0, N8);
    close_source(&o);
}

static void a_nan_code_is_delivered_as_nan(void **state) {
    (void)state;
    const uint8_t codes[4] = {0x7f, 0xff, 0x38, 0x80};
    const float scale = 2.0f;
    double got[4];
    rq_error err;
    const fx_tensor tensors[] = {{"m.weight", RQ_F8_E4M3, 2, {2, 2}, codes, 0},
                                 {"m.weight_scale_inv", RQ_F32, 2, {1, 1}, &scale, 0}};
    opened o = open_source("{}", tensors, 2);
    assert_int_equal(rq_source_read(&o.source, &o.source.tensors[0], 0, 2, 0, 2, got, 16, &err), RQ_OK);
    assert_true(isnan(got[0]) && isnan(got[1]));
    assert_true(got[2] == 2.0 && got[3] == 0.0 && signbit(got[3]));
    close_source(&o);
}

static void f8_block_sizes_come_from_config_or_shapes(void **state) {
    (void)state;
    static const struct {
        const char *config;
        uint64_t rows, cols;
        unsigned rank;
        uint64_t scale_rows, scale_cols, block_rows, block_cols;
    } cases[] = {
        {"{}", 300, 129, 2, 3, 2, 128, 128},
        {"{}", 128, 128, 2, 4, 2, 32, 64},
        {"{}", 100, 7, 2, 1, 1, 128, 128},
        {"{}", 300, 300, 2, 1, 1, 300, 300},
        {"{}", 300, 40, 0, 0, 0, 300, 40},
        {"{}", 300, 40, 1, 1, 0, 300, 40},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[100,24]}}", 300, 40, 2, 3, 2, 100,
         24},
    };
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++) {
        const fx_tensor tensors[] = {
            {"m.weight", RQ_F8_E4M3, 2, {cases[i].rows, cases[i].cols}, NULL, 0x38},
            {"m.weight_scale_inv", RQ_BF16, cases[i].rank, {cases[i].scale_rows, cases[i].scale_cols}, NULL, 0x3f}};
        static double got[300 * 300];
        rq_error err;
        opened o = open_source(cases[i].config, tensors, 2);
        const rq_source_tensor *t = &o.source.tensors[0];
        assert_int_equal(t->scale_block[0], cases[i].block_rows);
        assert_int_equal(t->scale_block[1], cases[i].block_cols);
        assert_int_equal(rq_source_read(&o.source, t, 0, cases[i].rows, 0, cases[i].cols, got,
                                        (size_t)cases[i].cols * sizeof *got, &err),
                         RQ_OK);
        for (size_t k = 0; k < cases[i].rows * cases[i].cols; k++) assert_true(got[k] == 0.74609375); /* bf16 0x3f3f */
        close_source(&o);
    }
}

static void f8_weights_without_fitting_scales_are_refused(void **state) {
    (void)state;
    const fx_tensor w = {"m.weight", RQ_F8_E4M3, 2, {300, 300}, NULL, 0};
    const fx_tensor dense = {"m.weight", RQ_BF16, 2, {300, 300}, NULL, 0};
    const fx_tensor cube = {"m.weight", RQ_F8_E4M3, 3, {2, 3, 4}, NULL, 0};
    const fx_tensor good = {"m.weight_scale_inv", RQ_F32, 2, {3, 3}, NULL, 0};
    const fx_tensor bad = {"m.weight_scale_inv", RQ_F32, 2, {3, 7}, NULL, 0};
    const fx_tensor bytes = {"m.weight_scale_inv", RQ_U8, 2, {3, 3}, NULL, 0};
    const char *fp8 = "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}}";
    expect_refusal("{}", (fx_tensor[]){w}, 1, RQ_ERR_MISSING, "no \"m.weight_scale_inv\"");
    expect_refusal("{}", (fx_tensor[]){good}, 1, RQ_ERR_MISSING, "scales a tensor that is not there");
    expect_refusal("{}", (fx_tensor[]){w, bad}, 2, RQ_ERR_SHAPE, "[300, 300]: block scales of rank 2 [3, 7]");
    expect_refusal(fp8, (fx_tensor[]){w, good}, 2, RQ_ERR_SHAPE, "weight_block_size");
    expect_refusal("{}", (fx_tensor[]){w, bytes}, 2, RQ_ERR_UNSUPPORTED, "U8");
    expect_refusal("{}", (fx_tensor[]){dense, good}, 2, RQ_ERR_FORMAT, "BF16, expected F8_E4M3");
    expect_refusal("{}", (fx_tensor[]){cube, good}, 2, RQ_ERR_UNSUPPORTED, "rank 3");
}

static void foreign_quantization_is_refused_by_name(void **state) {
    (void)state;
    const fx_tensor w = {"m.qweight", RQ_I32, 2, {4, 4}, NULL, 0};
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}", "\"gptq\""},
        {"{\"quantization_config\":{\"quant_method\":\"awq\"}}", "\"awq\""},
        {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}}", "\"bitsandbytes\""},
        {"{\"compression_config\":{\"format\":\"pack-quantized\"}}", "\"pack-quantized\""},
        {"{\"quantization_config\":{\"zero\":1}}", "\"unknown\""}};
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++)
        expect_refusal(cases[i].config, &w, 1, RQ_ERR_UNSUPPORTED, cases[i].says);

    /* No refusal: nothing said, and MLX's own entry with its mirror. */
    static const char *const fine[] = {
        "{\"quantization_config\":null}", "{\"quantization_config\":{}}",
        "{\"quantization\":{\"group_size\":64,\"bits\":4},\"quantization_config\":{\"group_size\":64,\"bits\":4}}"};
    for (size_t i = 0; i < RQ_COUNT_OF(fine); i++) {
        opened o = open_source(fine[i], &w, 1);
        close_source(&o);
    }

    char *dir = directory("{}", &w, 1);
    rq_checkpoint *ckpt = NULL;
    rq_source source;
    rq_error err;
    fx_text(dir, "hf_quant_config.json", "{}");
    assert_int_equal(rq_checkpoint_open(dir, &ckpt, NULL, &err), RQ_OK);
    assert_int_equal(rq_source_init(ckpt, &source, &err), RQ_ERR_UNSUPPORTED);
    fx_assert_in(err.message, "hf_quant_config.json");
    rq_checkpoint_close(ckpt);
    fx_done(dir);
}

/* ---- packed MLX ---- */

/* Round to bf16, ties to even, by arithmetic: the library rounds by bits. */
static float to_bf16(float x) {
    if (x == 0.0f) return x;
    int e = 0;
    const float m = frexpf(x, &e);
    return ldexpf(rintf(ldexpf(m, 8)), e - 8);
}

static uint16_t bf16_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

static float bf16_value(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static unsigned stream_bits(const uint8_t *row, size_t first, unsigned bits) {
    unsigned code = 0;
    for (unsigned k = 0; k < bits; k++) code |= (unsigned)(row[(first + k) / 8] >> (first + k) % 8 & 1) << k;
    return code;
}

enum { Q_ROWS = 9, Q_COLS = 256 };

static void affine_case(unsigned bits, unsigned group, rq_dtype dtype) {
    enum { R = Q_ROWS, C = Q_COLS };
    static uint8_t words[R * C], raw_scales[R * C / 32 * 4], raw_biases[R * C / 32 * 4];
    static float scales[R * C / 32], biases[R * C / 32];
    const size_t groups = C / group, code_bytes = C / 8 * bits, item = dtype == RQ_F32 ? 4 : 2;
    unsigned seed = 12345 + bits;
    char config[160];
    rq_error err;
    for (size_t i = 0; i < R * code_bytes; i++) words[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (size_t i = 0; i < R * groups; i++) {
        scales[i] = to_bf16(0.01f * (float)((int)i % 17 - 8) + 0.003f);
        biases[i] = to_bf16(0.37f * (float)((int)i % 5 - 2));
        const uint16_t h[2] = {bf16_bits(scales[i]), bf16_bits(biases[i])};
        memcpy(raw_scales + i * item, dtype == RQ_F32 ? (const void *)&scales[i] : (const void *)&h[0], item);
        memcpy(raw_biases + i * item, dtype == RQ_F32 ? (const void *)&biases[i] : (const void *)&h[1], item);
    }
    const fx_tensor tensors[] = {{"m.weight", RQ_U32, 2, {R, code_bytes / 4}, words, 0},
                                 {"m.scales", dtype, 2, {R, groups}, raw_scales, 0},
                                 {"m.biases", dtype, 2, {R, groups}, raw_biases, 0},
                                 {"m.bias", RQ_BF16, 1, {R}, NULL, 0}};
    snprintf(config, sizeof config, "{\"quantization\":{\"group_size\":%u,\"bits\":%u,\"mode\":\"affine\"}}", group,
             bits);
    opened o = open_source(config, tensors, 4);
    assert_int_equal(o.source.count, 2); /* m.bias is a tensor of its own */
    assert_true(o.source.is_quantized);
    const rq_source_tensor *t = rq_source_find(&o.source, "m.weight");
    assert_int_equal(t->encoding, RQ_ENC_MLX_QUANT);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->shape[1], C);
    assert_int_equal(t->format.bits, bits);
    for (uint64_t c0 = 0; c0 <= group; c0 += group) { /* the whole width, then a part */
        const uint64_t cols = c0 ? group : C, row0 = c0 ? 2 : 0, rows = R - row0;
        static uint8_t got[R * C * 4];
        assert_int_equal(rq_source_read(&o.source, t, row0, rows, c0, cols, got, (size_t)cols * item, &err), RQ_OK);
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++) {
                const size_t col = (size_t)c0 + c, row = (size_t)row0 + r, g = row * groups + col / group;
                const float code = (float)stream_bits(words + row * code_bytes, col * bits, bits);
                float want = code * scales[g], value = 0;
                want = dtype == RQ_F32 ? want + biases[g] : to_bf16(to_bf16(want) + biases[g]);
                const uint8_t *p = got + (r * (size_t)cols + c) * item;
                if (dtype == RQ_F32) {
                    memcpy(&value, p, sizeof value);
                } else {
                    uint16_t h;
                    memcpy(&h, p, sizeof h);
                    value = bf16_value(h);
                }
                if (value != want)
                    fail_msg("%u bits, group %u: [%zu, %zu] %a, expected %a", bits, group, row, col, (double)value,
                             (double)want);
            }
    }
    assert_int_equal(rq_source_read(&o.source, t, 0, 1, 8, group, words, C * 4, &err), RQ_ERR_USAGE);
    fx_assert_in(err.message, "cut a group");
    rq_source_prefetch(&o.source, t, 0, R);
    close_source(&o);
}

static void affine_modules_are_dequantized_with_two_roundings(void **state) {
    (void)state;
    static const unsigned bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 3; g++) {
            affine_case(bits[b], groups[g], RQ_BF16);
            affine_case(bits[b], groups[g], RQ_F32);
        }
}

static void float_modes_are_dequantized_to_bf16(void **state) {
    (void)state;
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    static const struct {
        const char *mode;
        unsigned bits, group;
        uint8_t scale;
        float value; /* of the scale */
    } modes[] = {{"mxfp4", 4, 32, 124, 0.125f}, {"mxfp8", 8, 32, 130, 8.0f}, {"nvfp4", 4, 16, 0x44, 3.0f}};
    for (size_t m = 0; m < RQ_COUNT_OF(modes); m++) {
        enum { C = 256 };
        uint8_t codes[C], scales[C / 16];
        uint16_t got[C];
        char config[160];
        rq_error err;
        for (size_t i = 0; i < C; i++) codes[i] = (uint8_t)(i % 127); /* no NaN */
        memset(scales, modes[m].scale, sizeof scales);
        const fx_tensor tensors[] = {{"m.weight", RQ_U32, 2, {1, C * modes[m].bits / 32}, codes, 0},
                                     {"m.scales", RQ_U8, 2, {1, C / modes[m].group}, scales, 0}};
        snprintf(config, sizeof config, "{\"quantization\":{\"group_size\":%u,\"bits\":%u,\"mode\":\"%s\"}}",
                 modes[m].group, modes[m].bits, modes[m].mode);
        opened o = open_source(config, tensors, 2);
        const rq_source_tensor *t = &o.source.tensors[0];
        assert_int_equal(t->dtype, RQ_BF16);
        assert_int_equal(t->biases, SIZE_MAX);
        assert_int_equal(rq_source_read(&o.source, t, 0, 1, 0, C, got, sizeof got, &err), RQ_OK);
        for (size_t i = 0; i < C; i++) {
            const unsigned code = stream_bits(codes, i * modes[m].bits, modes[m].bits);
            const float element = modes[m].bits == 8 ? (float)e4m3(code) : code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
            const float want = to_bf16(element * modes[m].value);
            if (bf16_value(got[i]) != want) fail_msg("%s [%zu]", modes[m].mode, i);
        }
        close_source(&o);
    }
}

/* Words and scale columns of a module, the config around them, and the format that must come out. */
static void formats_come_from_overrides_then_the_top_level_then_known_widths(void **state) {
    (void)state;
    static const struct {
        const char *config;
        uint64_t words, groups;
        unsigned bits, group_size;
    } cases[] = {
        /* 256 = 8*32 = 4*64 = 2*128: the top level decides, or the override, or a width in config */
        {"{\"quantization\":{\"group_size\":64,\"bits\":4}}", 32, 4, 4, 64},
        {"{\"quantization\":{\"group_size\":32,\"bits\":8}}", 32, 4, 8, 32},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"group_size\":128,\"bits\":2}}}", 32, 4, 2, 128},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":true}}", 32, 4, 4, 64},
        {"{\"text_config\":{\"hidden_size\":512}}", 32, 4, 2, 128},
        {"{\"num_attention_heads\":4,\"head_dim\":64}", 32, 4, 4, 64},
        {"{\"hidden_size\":128,\"quantization\":{\"group_size\":64,\"bits\":5}}", 32, 4, 8, 32},
        {"{\"hidden_size\":128,\"quantization\":{\"group_size\":64,\"bits\":4}}", 32, 4, 4, 64},
        /* a deviating module without an override: only one format explains it */
        {"{\"quantization\":{\"group_size\":64,\"bits\":4}}", 40, 4, 5, 64},
        /* only the mirror */
        {"{\"quantization_config\":{\"group_size\":64,\"bits\":4}}", 32, 4, 4, 64},
        /* group_size and bits by default */
        {"{\"quantization\":{\"mode\":\"affine\"}}", 32, 4, 4, 64},
    };
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++) {
        const fx_tensor tensors[] = {{"m.weight", RQ_U32, 2, {2, cases[i].words}, NULL, 0},
                                     {"m.scales", RQ_BF16, 2, {2, cases[i].groups}, NULL, 0},
                                     {"m.biases", RQ_BF16, 2, {2, cases[i].groups}, NULL, 0}};
        opened o = open_source(cases[i].config, tensors, 3);
        const rq_source_tensor *t = &o.source.tensors[0];
        if (t->format.bits != cases[i].bits || t->format.group_size != cases[i].group_size)
            fail_msg("%s: %u bits, groups of %u", cases[i].config, t->format.bits, t->format.group_size);
        assert_int_equal(t->shape[1], cases[i].words * 32 / cases[i].bits);
        close_source(&o);
    }
}

static void packed_modules_that_do_not_fit_are_refused(void **state) {
    (void)state;
    const fx_tensor w = {"m.weight", RQ_U32, 2, {2, 32}, NULL, 0}, s = {"m.scales", RQ_BF16, 2, {2, 4}, NULL, 0},
                    b = {"m.biases", RQ_BF16, 2, {2, 4}, NULL, 0}, s3 = {"m.scales", RQ_BF16, 2, {2, 3}, NULL, 0},
                    b3 = {"m.biases", RQ_BF16, 2, {2, 3}, NULL, 0}, s_rows = {"m.scales", RQ_BF16, 2, {3, 4}, NULL, 0},
                    s_flat = {"m.scales", RQ_BF16, 1, {8}, NULL, 0}, s_int = {"m.scales", RQ_I32, 2, {2, 4}, NULL, 0},
                    b_f32 = {"m.biases", RQ_F32, 2, {2, 4}, NULL, 0}, s_u8 = {"m.scales", RQ_U8, 2, {2, 4}, NULL, 0},
                    s_no = {"m.scales", RQ_BF16, 2, {2, 0}, NULL, 0}, b_no = {"m.biases", RQ_BF16, 2, {2, 0}, NULL, 0},
                    dense = {"m.weight", RQ_BF16, 2, {2, 32}, NULL, 0}, flat = {"m.weight", RQ_U32, 1, {32}, NULL, 0},
                    global = {"m.global_scale", RQ_F32, 0, {0}, NULL, 0};
    const char *top = "{\"quantization\":{\"group_size\":64,\"bits\":4}}";
    const char *off = "{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":false}}";
    const char *five = "{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"group_size\":64,\"bits\":5}}}";
    const char *seven = "{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"group_size\":64,\"bits\":7}}}";
    const char *text = "{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":\"yes\"}}";
    expect_refusal(top, (fx_tensor[]){w}, 1, RQ_ERR_MISSING, "\"m\" has a packed weight (U32) but no scales");
    expect_refusal(top, (fx_tensor[]){s, b}, 2, RQ_ERR_MISSING, "\"m\" has scales but no weight");
    expect_refusal(top, (fx_tensor[]){w, s}, 2, RQ_ERR_MISSING, "no biases");
    expect_refusal(top, (fx_tensor[]){dense, s, b}, 3, RQ_ERR_FORMAT, "BF16, expected packed U32");
    expect_refusal(top, (fx_tensor[]){w, s3, b3}, 3, RQ_ERR_SHAPE, "no format explains weight [2, 32]");
    expect_refusal(top, (fx_tensor[]){w, s3, b}, 3, RQ_ERR_SHAPE, "scales [2, 3] and biases [2, 4]");
    expect_refusal(top, (fx_tensor[]){w, s_rows, b}, 3, RQ_ERR_SHAPE, "scales [3, 4]");
    expect_refusal(top, (fx_tensor[]){w, s_flat, b}, 3, RQ_ERR_SHAPE, "scales [8]");
    expect_refusal(top, (fx_tensor[]){w, s_no, b_no}, 3, RQ_ERR_SHAPE, "no format");
    expect_refusal(top, (fx_tensor[]){flat, s_flat, b}, 3, RQ_ERR_SHAPE, "packed weight [32]");
    expect_refusal(top, (fx_tensor[]){w, s_int, b}, 3, RQ_ERR_FORMAT, "I32");
    expect_refusal(top, (fx_tensor[]){w, s, b_f32}, 3, RQ_ERR_FORMAT, "BF16 scales but F32 biases");
    expect_refusal(top, (fx_tensor[]){w, s_u8, b}, 3, RQ_ERR_FORMAT, "but U8 scales");
    expect_refusal(off, (fx_tensor[]){w, s, b}, 3, RQ_ERR_FORMAT, "override says it is dense");
    expect_refusal(five, (fx_tensor[]){w, s, b}, 3, RQ_ERR_SHAPE, "affine, 5 bits, groups of 64");
    expect_refusal(seven, (fx_tensor[]){w, s, b}, 3, RQ_ERR_FORMAT, "config.json: m:");
    expect_refusal(text, (fx_tensor[]){w, s, b}, 3, RQ_ERR_FORMAT, "neither an object nor a boolean");
    expect_refusal("{}", (fx_tensor[]){w, s, b}, 3, RQ_ERR_SHAPE, "more than one format");
    expect_refusal(top, (fx_tensor[]){w, s, b, global}, 4, RQ_ERR_UNSUPPORTED, "global");
    expect_refusal(top, (fx_tensor[]){global}, 1, RQ_ERR_UNSUPPORTED, "m.global_scale");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_tensors_are_read_by_any_rectangle),
        cmocka_unit_test(blocks_outside_the_tensor_are_refused),
        cmocka_unit_test(f8_blocks_are_codes_times_scales_exactly),
        cmocka_unit_test(a_nan_code_is_delivered_as_nan),
        cmocka_unit_test(f8_block_sizes_come_from_config_or_shapes),
        cmocka_unit_test(f8_weights_without_fitting_scales_are_refused),
        cmocka_unit_test(foreign_quantization_is_refused_by_name),
        cmocka_unit_test(affine_modules_are_dequantized_with_two_roundings),
        cmocka_unit_test(float_modes_are_dequantized_to_bf16),
        cmocka_unit_test(formats_come_from_overrides_then_the_top_level_then_known_widths),
        cmocka_unit_test(packed_modules_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
