/* Format arithmetic, and the public face of the quantize kernels. Dequantizing is plain C: it runs once over sources
 * that are quantized already, where reading dominates. */
#include "rotq/quant.h"

#include <string.h>

#include "base/base.h"
#include "kernels/kernels.h"
#include "kernels/quantize_group.h"

static const struct {
    const char *name;
    unsigned bits, group_size; /* the defaults */
} modes[] = {
    [RQ_AFFINE] = {"affine", 4, 64},
    [RQ_MXFP4] = {"mxfp4", 4, 32},
    [RQ_MXFP8] = {"mxfp8", 8, 32},
    [RQ_NVFP4] = {"nvfp4", 4, 16},
};

const char *rq_quant_mode_name(rq_quant_mode mode) { return modes[mode].name; }

bool rq_quant_mode_parse(const char *name, rq_quant_mode *mode) {
    for (size_t i = 0; i < RQ_COUNT_OF(modes); i++)
        if (strcmp(name, modes[i].name) == 0) {
            *mode = (rq_quant_mode)i;
            return true;
        }
    return false;
}

rq_status rq_quant_format_make(rq_quant_mode mode, unsigned bits, unsigned group_size, rq_quant_format *format,
                               rq_error *err) {
    if (bits == 0) bits = modes[mode].bits;
    if (group_size == 0) group_size = modes[mode].group_size;
    if (mode == RQ_AFFINE) {
        if (bits < 2 || bits > 8 || bits == 7)
            return rq_fail(err, RQ_ERR_USAGE, "affine quantization with %u bits does not exist; use 2, 3, 4, 5, 6 or 8",
                           bits);
        if (group_size != 32 && group_size != 64 && group_size != 128)
            return rq_fail(err, RQ_ERR_USAGE, "affine quantization with groups of %u does not exist; use 32, 64 or 128",
                           group_size);
    } else {
        if (bits != modes[mode].bits)
            return rq_fail(err, RQ_ERR_USAGE, "%s has %u bits, not %u", modes[mode].name, modes[mode].bits, bits);
        if (group_size != modes[mode].group_size)
            return rq_fail(err, RQ_ERR_USAGE, "%s has groups of %u, not %u", modes[mode].name, modes[mode].group_size,
                           group_size);
    }
    *format = (rq_quant_format){.mode = mode, .bits = bits, .group_size = group_size};
    return RQ_OK;
}

bool rq_quant_fits(const rq_quant_format *format, uint64_t rows, uint64_t cols) {
    if (cols == 0 || cols % format->group_size != 0) return false;
    if (format->mode == RQ_MXFP4 || format->mode == RQ_NVFP4) return (rows % 32) * (cols % 32) % 32 == 0;
    return true;
}

bool rq_quant_has_biases(const rq_quant_format *format) { return format->mode == RQ_AFFINE; }

rq_dtype rq_quant_scale_dtype(const rq_quant_format *format, rq_dtype storage) {
    return format->mode == RQ_AFFINE ? storage : RQ_U8;
}

size_t rq_quant_code_bytes(const rq_quant_format *format, size_t cols) { return cols / 8 * format->bits; }

size_t rq_quant_scale_bytes(const rq_quant_format *format, rq_dtype storage, size_t cols) {
    return cols / format->group_size * rq_dtype_bytes(rq_quant_scale_dtype(format, storage));
}

void rq_quantize(const rq_quant_format *format, rq_scales_method method, rq_dtype storage, const float *w,
                 size_t w_stride, size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales,
                 void *biases, size_t scales_stride, rq_quant_counts *counts) {
    const rq_kernels *kernels = rq_kernels_get();
    rq_quant_counts unwanted = {0};
    (method == RQ_SCALES_SEARCH ? kernels->quantize_search
                                : kernels->quantize_mlx)(format, storage, w, w_stride, rows, cols, codes, codes_stride,
                                                         scales, biases, scales_stride, counts ? counts : &unwanted);
}

static void unpack_codes(unsigned bits, const uint8_t *packed, size_t n, uint8_t *codes) {
    uint32_t pending = 0;
    unsigned held = 0;
    const uint32_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < n; i++) {
        if (held < bits) {
            pending |= (uint32_t)*packed++ << held;
            held += 8;
        }
        codes[i] = (uint8_t)(pending & mask);
        pending >>= bits;
        held -= bits;
    }
}

/* What one code of a group reads back as: every step of stock's evaluation rounds to T. */
static float decode(const rq_quant_format *format, rq_dtype T, uint8_t code, float scale, float bias) {
    static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    if (format->mode == RQ_AFFINE) return rq_round_to_dtype(rq_round_to_dtype((float)code * scale, T) + bias, T);
    return rq_round_to_dtype((format->bits == 4 ? e2m1[code] : rq_e4m3_to_f32(code)) * scale, T);
}

static float decode_scale_byte(const rq_quant_format *format, rq_dtype T, uint8_t byte) {
    if (format->mode == RQ_NVFP4) return rq_e4m3_to_f32(byte);
    return byte == 255 ? __builtin_inff() : rq_round_to_dtype(rq_exp2_int((int)byte - 127), T);
}

void rq_dequantize(const rq_quant_format *format, rq_dtype storage, const void *codes, size_t codes_stride,
                   const void *scales, const void *biases, size_t scales_stride, size_t rows, size_t cols, float *w,
                   size_t w_stride) {
    const size_t g = format->group_size, code_bytes = g * format->bits / 8;
    const bool affine = format->mode == RQ_AFFINE;
    const size_t scale_bytes = affine ? rq_dtype_bytes(storage) : 1;
    /* With no more codes than elements it is cheaper to decode every code once. */
    const unsigned table_size = 1u << format->bits <= g ? 1u << format->bits : 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < cols / g; j++) {
            uint8_t group_codes[RQ_GROUP_MAX];
            float table[RQ_GROUP_MAX];
            const char *scale_at = (const char *)scales + r * scales_stride + j * scale_bytes;
            const float scale = affine ? rq_get_value(scale_at, storage)
                                       : decode_scale_byte(format, storage, *(const uint8_t *)scale_at);
            const float bias =
                affine ? rq_get_value((const char *)biases + r * scales_stride + j * scale_bytes, storage) : 0;
            float *out = w + r * w_stride + j * g;
            unpack_codes(format->bits, (const uint8_t *)codes + r * codes_stride + j * code_bytes, g, group_codes);
            for (unsigned c = 0; c < table_size; c++) table[c] = decode(format, storage, (uint8_t)c, scale, bias);
            for (size_t i = 0; i < g; i++)
                out[i] = table_size ? table[group_codes[i]] : decode(format, storage, group_codes[i], scale, bias);
        }
}
