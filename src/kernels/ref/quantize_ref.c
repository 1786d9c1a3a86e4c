/* The truth about mx.quantize (mlx 0.32.4, CPU), one group at a time, and the bit packing. Plain and slow on purpose.
 * Rules and their sources: docs/formats.md. */
#include <math.h>

#include "kernels/quantize_group.h"

/* ---- packing ---- */

void rq_pack_codes_ref(unsigned bits, const uint8_t *codes, size_t n, uint8_t *out) {
    uint32_t pending = 0;
    unsigned held = 0;
    for (size_t i = 0; i < n; i++) {
        pending |= (uint32_t)codes[i] << held;
        for (held += bits; held >= 8; held -= 8) {
            *out++ = (uint8_t)pending;
            pending >>= 8;
        }
    }
}

/* ---- affine ---- */

void rq_affine_range_ref(unsigned bits, float w_min, float w_max, float *scale, float *bias) {
    const float n = (float)((1u << bits) - 1), eps = 1e-7f;
    const bool from_min = fabsf(w_min) > fabsf(w_max);
    float s = (w_max - w_min) / n;
    s = s < eps ? eps : s;
    s = from_min ? s : -s;
    const float edge = from_min ? w_min : w_max;
    const float q0 = rintf(edge / s);
    *scale = q0 != 0 ? edge / q0 : s;
    *bias = q0 != 0 ? edge : 0;
}

static rq_group affine_group(unsigned bits, unsigned group_size, rq_dtype T, const float *w, uint8_t *codes) {
    const float n = (float)((1u << bits) - 1);
    float w_max = -INFINITY, w_min = INFINITY, s, bias;
    for (unsigned i = 0; i < group_size; i++) { /* written so that NaN is skipped */
        w_max = w_max < w[i] ? w[i] : w_max;
        w_min = w[i] < w_min ? w[i] : w_min;
    }
    rq_affine_range_ref(bits, w_min, w_max, &s, &bias);
    for (unsigned i = 0; i < group_size; i++) {
        const float q = rintf((w[i] - bias) / s);
        codes[i] = (uint8_t)(q > 0 ? (q < n ? q : n) : 0); /* NaN: 0 */
    }
    return (rq_group){.scale = rq_round_to_dtype(s, T), .bias = rq_round_to_dtype(bias, T)};
}

/* ---- float modes ---- */

static float largest_magnitude(const float *w, unsigned n) { /* NaN wins, as numpy's and mlx's max */
    float a = 0;
    for (unsigned i = 0; i < n; i++)
        if (!(fabsf(w[i]) <= a)) {
            a = fabsf(w[i]);
            if (isnan(a)) break;
        }
    return a;
}

/* The E2M1 code whose value has the smallest f32 distance from x, the first of equals: a tie between neighbours goes to
 * the smaller magnitude, negative zero never appears, and NaN and infinity get 0. */
static uint8_t e2m1_code(float x) {
    static const float grid[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t code = 0;
    float least = fabsf(x - grid[0]);
    for (uint8_t k = 1; k < 16; k++)
        if (fabsf(x - grid[k]) < least) {
            least = fabsf(x - grid[k]);
            code = k;
        }
    return code;
}

/* What stock writes for a group with NaN or infinity on x86-64. Its exponent becomes INT_MIN, hence the divisor is 0
 * and the byte is what is left of INT_MIN + 127 in T. 0/0 is the negative default NaN there, but BF16 drops its sign.
 */
static rq_group mx_nonfinite(unsigned bits, rq_dtype T, const float *w, uint8_t *codes) {
    for (unsigned i = 0; i < 32; i++) {
        if (bits == 4)
            codes[i] = 0;
        else if (isnan(w[i]))
            codes[i] = T != RQ_BF16 && signbit(w[i]) ? 0xfe : 0x7e;
        else if (w[i] == 0)
            codes[i] = T != RQ_BF16 ? 0xfe : 0x7e;
        else
            codes[i] = w[i] < 0 ? 0xfe : 0x7e;
    }
    return (rq_group){.byte = T == RQ_F32 ? 128 : 0};
}

int rq_mx_exponent_ref(unsigned bits, rq_dtype T, float amax) {
    const float s = rq_round_to_dtype(amax / (bits == 4 ? 6.0f : 448.0f), T);
    int e = 0;
    if (s > 0) { /* the smallest e with 2^e >= s */
        const float mantissa = frexpf(s, &e);
        if (mantissa == 0.5f) e--;
        if (e < -127) e = -127; /* stock wraps the byte here; we stop at the smallest scale there is */
    }
    return e;
}

static rq_group mx_group(unsigned bits, rq_dtype T, const float *w, uint8_t *codes) {
    const float a = largest_magnitude(w, 32);
    if (!(a < INFINITY)) return mx_nonfinite(bits, T, w, codes);
    const int e = rq_mx_exponent_ref(bits, T, a);
    const float p = rq_round_to_dtype(rq_exp2_int(e), T);
    for (unsigned i = 0; i < 32; i++) {
        const float x = rq_round_to_dtype(w[i] / p, T);
        codes[i] = bits == 4 ? e2m1_code(x) : rq_f32_to_e4m3(x);
    }
    return (rq_group){.byte = (uint8_t)(e + 127)};
}

static rq_group nvfp4_group(rq_dtype T, const float *w, uint8_t *codes) {
    const float a = largest_magnitude(w, 16);
    const uint8_t byte = rq_f32_to_e4m3(rq_round_to_dtype(a / 6.0f, T)) & 0x7f;
    const float scale = rq_e4m3_to_f32(byte);
    for (unsigned i = 0; i < 16; i++) codes[i] = e2m1_code(rq_round_to_dtype(w[i] / scale, T)); /* w/0 gives code 0 */
    return (rq_group){.byte = byte, .zeroed = byte == 0 && a > 0};
}

rq_group rq_group_mlx_ref(const rq_quant_format *format, rq_dtype storage, const float *w, uint8_t *codes) {
    if (format->mode == RQ_AFFINE) return affine_group(format->bits, format->group_size, storage, w, codes);
    if (format->mode == RQ_NVFP4) return nvfp4_group(storage, w, codes);
    return mx_group(format->bits, storage, w, codes);
}

/* ---- kernels: a loop over groups ---- */

static void quantize_with(rq_group_fn *group, const rq_quant_format *format, rq_dtype storage, const float *w,
                          size_t w_stride, size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales,
                          void *biases, size_t scales_stride, rq_quant_counts *counts) {
    const size_t g = format->group_size, code_bytes = g * format->bits / 8;
    const bool affine = format->mode == RQ_AFFINE;
    const size_t scale_bytes = affine ? rq_dtype_bytes(storage) : 1;
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < cols / g; j++) {
            uint8_t group_codes[RQ_GROUP_MAX];
            const rq_group made = group(format, storage, w + r * w_stride + j * g, group_codes);
            rq_pack_codes_ref(format->bits, group_codes, g, (uint8_t *)codes + r * codes_stride + j * code_bytes);
            const size_t at = r * scales_stride + j * scale_bytes;
            if (affine) {
                rq_put_value((char *)scales + at, made.scale, storage);
                rq_put_value((char *)biases + at, made.bias, storage);
            } else {
                ((uint8_t *)scales)[at] = made.byte;
            }
            counts->groups++;
            counts->zeroed_groups += made.zeroed;
        }
}

static void quantize_mlx_ref(const rq_quant_format *format, rq_dtype storage, const float *w, size_t w_stride,
                             size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                             size_t scales_stride, rq_quant_counts *counts) {
    quantize_with(rq_group_mlx_ref, format, storage, w, w_stride, rows, cols, codes, codes_stride, scales, biases,
                  scales_stride, counts);
}

static void quantize_search_ref(const rq_quant_format *format, rq_dtype storage, const float *w, size_t w_stride,
                                size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                                size_t scales_stride, rq_quant_counts *counts) {
    quantize_with(rq_group_search_ref, format, storage, w, w_stride, rows, cols, codes, codes_stride, scales, biases,
                  scales_stride, counts);
}

void rq_quantize_kernels_ref(rq_kernels *table) {
    table->quantize_mlx = quantize_mlx_ref;
    table->quantize_search = quantize_search_ref;
}
