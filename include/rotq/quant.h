/* MLX's weight formats: affine (2, 3, 4, 5, 6, 8 bits; groups of 32, 64, 128), mxfp4, mxfp8 and nvfp4.
 *
 * A weight [rows, cols] is quantized in groups of `group_size` consecutive elements of a row. One group yields
 * group_size * bits / 8 bytes of codes, one scale and, for affine, one bias:
 *   weight  U32 [rows, cols * bits / 32]   little-endian bit stream per row, least significant bit first: element i
 *                                          holds stream bits [i*bits, (i+1)*bits); every group starts on a byte
 *   scales  T   [rows, cols / group_size]  affine; U8 (E8M0 for mxfp4/mxfp8, E4M3 for nvfp4) in the float modes
 *   biases  T   [rows, cols / group_size]  affine only
 * T is the storage dtype of the model: BF16, F16 or F32.
 *
 * Two ways to choose codes, the same bytes on disk:
 *   RQ_SCALES_MLX     bit-identical to mx.quantize of mlx 0.32.4 on the CPU. The input is the weight already rounded
 *                     to T (as f32 values). Where stock misbehaves we do not follow: an exponent below the E8M0 range
 *                     clamps to byte 0 instead of wrapping.
 *   RQ_SCALES_SEARCH  scale and bias are rounded to their stored type before codes are chosen; the range is searched
 *                     and polished by least squares. The input is the unrounded weight.
 *
 * Source: mlx backend/cpu/quantized.cpp (0.32.4); docs/formats.md restates every rule. */
#ifndef ROTQ_QUANT_H
#define ROTQ_QUANT_H

#include "rotq/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rq_quant_mode { RQ_AFFINE, RQ_MXFP4, RQ_MXFP8, RQ_NVFP4 } rq_quant_mode;
typedef enum rq_scales_method { RQ_SCALES_MLX, RQ_SCALES_SEARCH } rq_scales_method;

typedef struct rq_quant_format {
    rq_quant_mode mode;
    unsigned bits;       /* affine 2,3,4,5,6,8; mxfp4 and nvfp4 4; mxfp8 8 */
    unsigned group_size; /* affine 32,64,128; mxfp4 and mxfp8 32; nvfp4 16 */
} rq_quant_format;

RQ_EXPORT const char *rq_quant_mode_name(rq_quant_mode mode); /* "affine", "mxfp4", ... as in config.json */
RQ_EXPORT bool rq_quant_mode_parse(const char *name, rq_quant_mode *mode);
/* Fills *format; bits or group_size 0 means the mode's default (affine: 4 bits, groups of 64).
 * RQ_ERR_USAGE names what is illegal and what is legal. */
RQ_EXPORT RQ_CHECK rq_status rq_quant_format_make(rq_quant_mode mode, unsigned bits, unsigned group_size,
                                                  rq_quant_format *format, rq_error *err);
/* True when a weight of this many columns can be stored in the format: cols is a positive multiple of group_size and,
 * in the two 4-bit float modes, rows * cols is a multiple of 32 (the stock operation needs that). */
RQ_EXPORT bool rq_quant_fits(const rq_quant_format *format, uint64_t rows, uint64_t cols);
RQ_EXPORT bool rq_quant_has_biases(const rq_quant_format *format);
RQ_EXPORT rq_dtype rq_quant_scale_dtype(const rq_quant_format *format, rq_dtype storage);
/* Bytes of codes / of scales (or biases) for one row of `cols` elements. */
RQ_EXPORT size_t rq_quant_code_bytes(const rq_quant_format *format, size_t cols);
RQ_EXPORT size_t rq_quant_scale_bytes(const rq_quant_format *format, rq_dtype storage, size_t cols);

/* What went in and out of one call, summed by the caller over calls (all fields add). */
typedef struct rq_quant_counts {
    uint64_t groups;
    uint64_t zeroed_groups; /* nvfp4: groups with a non-zero weight whose scale underflowed to 0, so they read back 0 */
} rq_quant_counts;

/* Quantizes a block of `rows` rows of `cols` elements (cols a multiple of group_size).
 *   w       f32 values, row r at w + r * w_stride (elements); for RQ_SCALES_MLX already rounded to `storage`
 *   codes   row r at codes + r * codes_stride (bytes)
 *   scales  row r at (char *)scales + r * scales_stride (bytes); biases likewise with the same stride, NULL unless
 * affine No pointer needs alignment beyond its element's. Any group that holds NaN or infinity gets what the stock CPU
 * operation writes (NaN elements get code 0); callers refuse such weights before they come here.
 * Uses the fastest kernel of this CPU; every kernel gives the same bytes. */
RQ_EXPORT void rq_quantize(const rq_quant_format *format, rq_scales_method method, rq_dtype storage, const float *w,
                           size_t w_stride, size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales,
                           void *biases, size_t scales_stride, rq_quant_counts *counts);

/* The inverse, as stock mx.dequantize on the CPU computes it: results are values of `storage`, in f32. */
RQ_EXPORT void rq_dequantize(const rq_quant_format *format, rq_dtype storage, const void *codes, size_t codes_stride,
                             const void *scales, const void *biases, size_t scales_stride, size_t rows, size_t cols,
                             float *w, size_t w_stride);

#ifdef __cplusplus
}
#endif
#endif
