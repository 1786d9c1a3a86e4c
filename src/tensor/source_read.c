/* Reading blocks of logical tensors. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/kernels.h"
#include "rotq/checkpoint.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and is used as it lies; big-endian machines are not supported"
#endif

/* Working memory per call while packed rows are expanded: small enough to stay in the second-level cache. */
#define EXPAND_BYTES ((size_t)512 << 10)

/* A rectangle of a logical tensor. */
typedef struct block {
    uint64_t row0, rows, col0, cols;
} block;

static uint64_t total_rows(const rq_source_tensor *t) {
    uint64_t rows = 1;
    for (unsigned d = 0; d + 1 < t->rank; d++) rows *= t->shape[d]; /* cannot overflow: the header was checked */
    return rows;
}

static uint64_t total_cols(const rq_source_tensor *t) { return t->rank ? t->shape[t->rank - 1] : 1; }

/* Bytes [begin, begin + bytes) of each of `rows` stored rows of `row_bytes` from row0 on, to dst + r * stride. */
static rq_status read_rows(const rq_source *source, size_t tensor, uint64_t row_bytes, uint64_t row0, uint64_t rows,
                           uint64_t begin, size_t bytes, void *dst, size_t stride, rq_error *err) {
    const rq_safetensors *file = rq_checkpoint_file(source->ckpt, tensor);
    const uint64_t offset = rq_checkpoint_at(source->ckpt, tensor)->offset + row0 * row_bytes + begin;
    if (bytes == row_bytes && stride == bytes) return rq_safetensors_read(file, offset, dst, bytes * (size_t)rows, err);
    for (uint64_t r = 0; r < rows; r++) {
        const rq_status st =
            rq_safetensors_read(file, offset + r * row_bytes, (char *)dst + (size_t)r * stride, bytes, err);
        if (st != RQ_OK) return st;
    }
    return RQ_OK;
}

static rq_status no_memory(const rq_source_tensor *t, size_t bytes, rq_error *err) {
    return rq_fail(err, RQ_ERR_NOMEM, "tensor \"%s\": no memory for %zu bytes of its block", t->name, bytes);
}

/* Scales of the block rows and all block columns that `b` touches, as f64 (exact), row-major, `*scale_cols` wide, the
 * first row being block row *first_row. Owned by the caller on success. */
static rq_status read_block_scales(const rq_source *source, const rq_source_tensor *t, const block *b, double **out,
                                   uint64_t *first_row, uint64_t *scale_cols, rq_error *err) {
    const rq_tensor_info *s = rq_checkpoint_at(source->ckpt, t->scales);
    const size_t item = rq_dtype_bytes(s->dtype);
    const uint64_t cols = s->rank == 2 ? s->shape[1] : 1, first = b->row0 / t->scale_block[0];
    const uint64_t rows = (b->row0 + b->rows - 1) / t->scale_block[0] - first + 1;
    const size_t n = (size_t)(rows * cols), row_bytes = (size_t)cols * item; /* within the tensor, so they fit */
    rq_status st = RQ_OK;
    double *scales = malloc(n * sizeof *scales);
    unsigned char *raw = malloc(n * item);
    if (!scales || !raw) {
        st = no_memory(t, n * item, err);
        goto done;
    }
    st = read_rows(source, t->scales, row_bytes, first, rows, 0, row_bytes, raw, row_bytes, err);
    if (st != RQ_OK) goto done;
    for (size_t i = 0; i < n; i++) {
        float f;
        uint16_t h;
        if (s->dtype == RQ_F32) {
            memcpy(&f, raw + i * item, sizeof f);
        } else {
            memcpy(&h, raw + i * item, sizeof h);
            f = rq_bf16_to_f32(h);
        }
        scales[i] = (double)f;
    }
    *first_row = first;
    *scale_cols = cols;
    *out = scales;
    scales = NULL; /* moved to the caller */
done:
    free(raw);
    free(scales);
    return st;
}

/* An E4M3 code has 4 significant bits and a scale at most 24, so the product is exact in f64. */
static rq_status read_f8(const rq_source *source, const rq_source_tensor *t, const block *b, char *dst, size_t stride,
                         rq_error *err) {
    rq_status st = RQ_OK;
    uint64_t first_row = 0, scale_cols = 0;
    double values[256];
    const size_t cols = (size_t)b->cols, rows = (size_t)b->rows;
    double *scales = NULL;
    uint8_t *codes = malloc(rows * cols);
    if (!codes) {
        st = no_memory(t, rows * cols, err);
        goto done;
    }
    st = read_block_scales(source, t, b, &scales, &first_row, &scale_cols, err);
    if (st != RQ_OK) goto done;
    st = read_rows(source, t->data, total_cols(t), b->row0, b->rows, b->col0, cols, codes, cols, err);
    if (st != RQ_OK) goto done;
    for (unsigned c = 0; c < 256; c++) values[c] = (double)rq_e4m3_to_f32((uint8_t)c);
    for (size_t r = 0; r < rows; r++) {
        const double *row_scales = scales + ((b->row0 + r) / t->scale_block[0] - first_row) * scale_cols;
        char *out = dst + r * stride;
        for (size_t i = 0; i < cols;) {
            const uint64_t k = (b->col0 + i) / t->scale_block[1];
            const double scale = row_scales[k];
            const uint64_t left = t->scale_block[1] - (b->col0 + i) % t->scale_block[1];
            for (const size_t end = i + (size_t)rq_min_u64(left, cols - i); i < end; i++) {
                const double x = values[codes[r * cols + i]] * scale;
                memcpy(out + i * sizeof x, &x, sizeof x);
            }
        }
    }
done:
    free(codes);
    free(scales);
    return st;
}

/* One row of values of `dtype`, given in f32, to their stored form. */
static void store_row(void *dst, const float *w, size_t n, rq_dtype dtype) {
    if (dtype == RQ_F32) {
        memcpy(dst, w, n * sizeof *w);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = dtype == RQ_BF16 ? rq_f32_to_bf16(w[i]) : rq_f32_to_f16(w[i]);
        memcpy((char *)dst + i * sizeof h, &h, sizeof h);
    }
}

static rq_status read_packed(const rq_source *source, const rq_source_tensor *t, const block *b, char *dst,
                             size_t stride, rq_error *err) {
    rq_status st = RQ_OK;
    const rq_quant_format *f = &t->format;
    const size_t cols = (size_t)b->cols;
    const size_t item = rq_dtype_bytes(rq_checkpoint_at(source->ckpt, t->scales)->dtype);
    const uint64_t row_codes = total_cols(t) / 8 * f->bits, row_scales = total_cols(t) / f->group_size * item;
    const uint64_t code0 = b->col0 / 8 * f->bits, scale0 = b->col0 / f->group_size * item;
    const size_t code_bytes = cols / 8 * f->bits, scale_bytes = cols / f->group_size * item;
    const size_t per_row = cols * sizeof(float) + code_bytes + 2 * scale_bytes;
    const size_t step = rq_min_size((size_t)b->rows, EXPAND_BYTES / per_row + 1);
    char *scratch = rq_aligned_alloc(step * per_row);
    if (!scratch) return no_memory(t, step * per_row, err);
    float *w = (float *)(void *)scratch;
    char *codes = scratch + step * cols * sizeof *w, *scales = codes + step * code_bytes;
    char *biases = t->biases == SIZE_MAX ? NULL : scales + step * scale_bytes;

    for (uint64_t r = 0; r < b->rows; r += step) {
        const uint64_t n = rq_min_u64(step, b->rows - r), row = b->row0 + r;
        st = read_rows(source, t->data, row_codes, row, n, code0, code_bytes, codes, code_bytes, err);
        if (st == RQ_OK)
            st = read_rows(source, t->scales, row_scales, row, n, scale0, scale_bytes, scales, scale_bytes, err);
        if (st == RQ_OK && biases)
            st = read_rows(source, t->biases, row_scales, row, n, scale0, scale_bytes, biases, scale_bytes, err);
        if (st != RQ_OK) break;
        rq_dequantize(f, t->dtype, codes, code_bytes, scales, biases, scale_bytes, (size_t)n, cols, w, cols);
        for (size_t k = 0; k < n; k++) store_row(dst + ((size_t)r + k) * stride, w + k * cols, cols, t->dtype);
    }
    rq_aligned_free(scratch);
    return st;
}

static rq_status check_block(const rq_source_tensor *t, const block *b, size_t stride, rq_error *err) {
    const uint64_t rows = total_rows(t), cols = total_cols(t);
    const size_t item = rq_dtype_bytes(t->dtype);
    uint64_t extent = 0;
    if (b->row0 > rows || b->rows > rows - b->row0 || b->col0 > cols || b->cols > cols - b->col0)
        return rq_fail(err, RQ_ERR_USAGE,
                       "tensor \"%s\": block of rows %llu+%llu and columns %llu+%llu is outside [%llu, %llu]", t->name,
                       (unsigned long long)b->row0, (unsigned long long)b->rows, (unsigned long long)b->col0,
                       (unsigned long long)b->cols, (unsigned long long)rows, (unsigned long long)cols);
    if (!rq_mul_u64(b->cols, item, &extent) || (b->rows > 1 && stride < extent) ||
        (b->rows > 1 && !rq_mul_u64(b->rows - 1, stride, &extent)) || extent > SIZE_MAX / 2)
        return rq_fail(err, RQ_ERR_USAGE,
                       "tensor \"%s\": a stride of %zu bytes does not fit %llu rows of %llu elements", t->name, stride,
                       (unsigned long long)b->rows, (unsigned long long)b->cols);
    if (t->encoding == RQ_ENC_MLX_QUANT && (b->col0 % t->format.group_size != 0 || b->cols % t->format.group_size != 0))
        return rq_fail(err, RQ_ERR_USAGE, "tensor \"%s\": columns %llu+%llu cut a group of %u", t->name,
                       (unsigned long long)b->col0, (unsigned long long)b->cols, t->format.group_size);
    return RQ_OK;
}

rq_status rq_source_read(const rq_source *source, const rq_source_tensor *tensor, uint64_t row0, uint64_t rows,
                         uint64_t col0, uint64_t cols, void *dst, size_t dst_stride, rq_error *err) {
    const block b = {row0, rows, col0, cols};
    const size_t item = rq_dtype_bytes(tensor->dtype);
    const rq_status st = check_block(tensor, &b, dst_stride, err);
    if (st != RQ_OK || rows == 0 || cols == 0) return st;
    if (tensor->encoding == RQ_ENC_F8_BLOCK) return read_f8(source, tensor, &b, dst, dst_stride, err);
    if (tensor->encoding == RQ_ENC_MLX_QUANT) return read_packed(source, tensor, &b, dst, dst_stride, err);
    return read_rows(source, tensor->data, total_cols(tensor) * item, row0, rows, col0 * item, (size_t)cols * item, dst,
                     dst_stride, err);
}

static void prefetch_rows(const rq_source *source, size_t tensor, uint64_t all_rows, uint64_t row0, uint64_t rows) {
    if (tensor == SIZE_MAX) return;
    const rq_tensor_info *t = rq_checkpoint_at(source->ckpt, tensor);
    const uint64_t row_bytes = t->bytes / all_rows;
    rq_safetensors_prefetch(rq_checkpoint_file(source->ckpt, tensor), t->offset + row0 * row_bytes, rows * row_bytes);
}

void rq_source_prefetch(const rq_source *source, const rq_source_tensor *tensor, uint64_t row0, uint64_t rows) {
    const uint64_t all = total_rows(tensor);
    if (all == 0 || row0 >= all || rows == 0) return;
    rows = rq_min_u64(rows, all - row0);
    prefetch_rows(source, tensor->data, all, row0, rows);
    if (tensor->encoding != RQ_ENC_MLX_QUANT) return; /* block scales are few and read whole */
    prefetch_rows(source, tensor->scales, all, row0, rows);
    prefetch_rows(source, tensor->biases, all, row0, rows);
}
