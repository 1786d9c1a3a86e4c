#include "convert/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/prepare.h"
#include "kernels/fold_scalar.h"
#include "par/pool.h"

typedef struct slot {
    char *in, *out;
} slot;

typedef struct engine {
    const rq_engine_input *input;
    const rq_kernels *kernels;
    const rq_fold_kernels *fold;
    rq_units *units;
    slot slots[RQ_SLOTS];
    atomic_size_t next;  /* cursor of the work list */
    atomic_size_t limit; /* units from here on are not run: the first that failed, or 0 when the user interrupted */
    atomic_uint_least64_t bytes_done;
    atomic_uint_least64_t zeroed_groups;
    atomic_uint_least64_t nonfinite_tasks;

    pthread_mutex_t write_lock; /* one writer at a time: file systems serialize writes to a file, by spinning */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t stage_done;
    uint32_t *left; /* [n_stages] units still to finish */
    rq_status status;
    rq_error error;

    double started, last_progress; /* thread 0 only */
} engine;

/* One thread's memory, carved anew for each unit. */
typedef struct scratch {
    char *memory;
    void *raw, *work, *work2;
    float *values;
    char *codes, *scales, *biases;
} scratch;

static void carve(scratch *s, const rq_task *task, size_t real_bytes) {
    const rq_scratch_sizes z = rq_task_scratch(task, real_bytes);
    char *p = s->memory;
    s->raw = p, p += z.raw;
    s->work = p, p += z.work;
    s->work2 = p, p += z.work2;
    s->values = (float *)(void *)p, p += z.values;
    s->codes = p, p += z.codes;
    s->scales = p, p += z.scales;
    s->biases = p;
}

/* Unit i failed. Units before it still run, so that the error of the first one that fails is reported, whatever the
 * number of threads. */
static void fail(engine *e, size_t i, rq_status status, const rq_error *error) {
    pthread_mutex_lock(&e->lock);
    if (i < atomic_load(&e->limit)) {
        atomic_store(&e->limit, i);
        e->status = status;
        e->error = *error;
    }
    pthread_cond_broadcast(&e->stage_done);
    pthread_mutex_unlock(&e->lock);
}

/* ---- writing ---- */

static rq_status write_at(const engine *e, const rq_part *part, uint64_t offset, const void *data, size_t bytes,
                          rq_error *err) {
    const int fd = e->input->shard_fds[part->shard];
    const char *p = data;
    uint64_t at = part->offset + offset;
    while (bytes) {
        const ssize_t n = pwrite(fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return rq_fail(err, RQ_ERR_IO, "%s: write of %zu bytes at offset %llu failed: %s",
                           e->input->layout->shards[part->shard].name, bytes, (unsigned long long)at,
                           n < 0 ? strerror(errno) : "nothing was written");
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return RQ_OK;
}

/* Rows [row, row + rows) x columns [col0, col0 + width) of a part whose full rows have row_bytes; `piece` bytes per row
 * are given, `piece` apart. One write when the block is contiguous in the file. */
static rq_status write_rows(const engine *e, const rq_part *part, size_t row_bytes, uint64_t row, uint64_t rows,
                            size_t col_offset, size_t piece, const char *data, rq_error *err) {
    if (piece == row_bytes) return write_at(e, part, row * row_bytes, data, (size_t)rows * piece, err);
    rq_status st = RQ_OK;
    for (uint64_t r = 0; st == RQ_OK && r < rows; r++)
        st = write_at(e, part, (row + r) * row_bytes + col_offset, data + r * piece, piece, err);
    return st;
}

/* All parts of a block of rows. codes, scales, biases hold whole rows of the task's width. */
static rq_status write_parts(const engine *e, const rq_task *k, uint64_t row, uint64_t rows, const char *codes,
                             const char *scales, const char *biases, rq_error *err) {
    const rq_plan_tensor *t = k->tensor;
    const size_t cols = (size_t)k->cols, width = (size_t)k->width, col0 = (size_t)k->col0;
    if (!t->quantize) {
        const size_t item = rq_dtype_bytes(t->dtype);
        return write_rows(e, &k->place->weight, cols * item, row, rows, col0 * item, width * item, codes, err);
    }
    const rq_quant_format *f = &t->format;
    rq_status st = write_rows(e, &k->place->weight, rq_quant_code_bytes(f, cols), row, rows,
                              rq_quant_code_bytes(f, col0), rq_quant_code_bytes(f, width), codes, err);
    const size_t full = rq_quant_scale_bytes(f, t->dtype, cols), piece = rq_quant_scale_bytes(f, t->dtype, width);
    const size_t offset = rq_quant_scale_bytes(f, t->dtype, col0);
    if (st == RQ_OK) st = write_rows(e, &k->place->scales, full, row, rows, offset, piece, scales, err);
    if (st == RQ_OK && rq_quant_has_biases(f))
        st = write_rows(e, &k->place->biases, full, row, rows, offset, piece, biases, err);
    return st;
}

static rq_status write_block(engine *e, const rq_task *k, uint64_t row, uint64_t rows, const char *codes,
                             const char *scales, const char *biases, rq_error *err) {
    pthread_mutex_lock(&e->write_lock);
    const rq_status st = write_parts(e, k, row, rows, codes, scales, biases, err);
    pthread_mutex_unlock(&e->write_lock);
    return st;
}

/* ---- rounding and storing ---- */

/* What the quantizer wants its input rounded to: the storage dtype for codes that match stock MLX, f32 otherwise. */
static rq_dtype value_dtype(const engine *e, const rq_task *k) {
    if (k->tensor->quantize && e->input->plan->options.scales == RQ_SCALES_SEARCH) return RQ_F32;
    return k->tensor->dtype;
}

static void quantize(engine *e, const rq_task *k, const float *values, size_t stride, size_t rows, size_t cols,
                     char *codes, size_t codes_stride, char *scales, char *biases, size_t scales_stride) {
    const rq_plan_tensor *t = k->tensor;
    rq_quant_counts counts = {0};
    (e->input->plan->options.scales == RQ_SCALES_SEARCH ? e->kernels->quantize_search : e->kernels->quantize_mlx)(
        &t->format, t->dtype, values, stride, rows, cols, codes, codes_stride, scales,
        rq_quant_has_biases(&t->format) ? biases : NULL, scales_stride, &counts);
    if (counts.zeroed_groups) atomic_fetch_add(&e->zeroed_groups, counts.zeroed_groups);
}

/* The first NaN or infinity of the source tensor, or an overflow of the fold's result, as an error. */
static rq_status nonfinite_error(const engine *e, const rq_plan_tensor *t, rq_error *err) {
    uint64_t rows, cols;
    rq_tensor_extent(t, &rows, &cols);
    const rq_source_tensor *s = t->source;
    const size_t row_bytes = (size_t)cols * rq_dtype_bytes(s->dtype);
    void *row = malloc(row_bytes + 1);
    if (!row) return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory to look for a NaN", t->name);
    rq_status st = RQ_OK;
    for (uint64_t r = 0; r < rows && st == RQ_OK; r++) {
        st = rq_source_read(e->input->source, s, r, 1, 0, cols, row, row_bytes, err);
        if (st != RQ_OK) break;
        const size_t c = e->kernels->find_nonfinite(row, s->dtype, (size_t)cols);
        if (c < cols) {
            const double value = rq_element(row, s->dtype, c);
            char at[48];
            if (t->rank > 1)
                snprintf(at, sizeof at, "[%llu, %zu]", (unsigned long long)r, c);
            else
                snprintf(at, sizeof at, "%zu", c);
            st = rq_fail(err, RQ_ERR_NONFINITE,
                         "%s: element %s is %s; the source is damaged (--allow-nonfinite converts it all the same)",
                         s->name, at, value != value ? "NaN" : "infinite");
        }
    }
    if (st == RQ_OK)
        st = rq_fail(err, RQ_ERR_NONFINITE, "%s: a value does not fit %s; %s", t->name, rq_dtype_name(t->dtype),
                     t->dtype == RQ_F16    ? "choose --dtype bfloat16 or float32"
                     : t->dtype == RQ_BF16 ? "choose --dtype float32"
                                           : "the weights are too large to fold");
    free(row);
    return st;
}

/* A unit met a non-finite value. */
static rq_status saw_nonfinite(engine *e, const rq_task *k, rq_error *err) {
    if (e->input->options->allow_nonfinite) {
        atomic_fetch_add(&e->nonfinite_tasks, 1);
        return RQ_OK;
    }
    return nonfinite_error(e, k->tensor, err);
}

/* ---- the two sides of the fold ---- */

static void rotate_row(const engine *e, const rq_applied *a, char *x, size_t cols) {
    if (!a || !a->fwht) return;
    for (size_t b = 0; b + a->fwht->order <= cols; b += a->fwht->order)
        e->fold->fwht_row(x + b * e->fold->real_bytes, a->fwht);
}

/* Input side of `rows` rows from elements to x [rows][cols]; y is as large, for dense rotations. Returns the result. */
static char *input_side(const engine *e, const rq_task *k, const char *raw, size_t raw_stride, size_t rows, size_t cols,
                        size_t col0, char *x, char *y, rq_dtype dtype) {
    const size_t real = e->fold->real_bytes;
    const char *gain = k->load_gain ? (const char *)k->load_gain + col0 * real : NULL;
    for (size_t r = 0; r < rows; r++) {
        e->fold->load(x + r * cols * real, raw + r * raw_stride, dtype, gain, cols);
        rotate_row(e, k->in, x + r * cols * real, cols);
    }
    if (!k->in || !k->in->matrix) return x;
    const size_t n = k->in->rotation->n; /* a row is cols / n vectors */
    e->fold->dense_rows(y, x, rows * cols / n, k->in->matrix, n);
    return y;
}

/* Flips the rows whose sign is minus: the first factor of the output rotation. */
static void sign_rows(const engine *e, const rq_task *k, char *x, uint64_t row0, size_t rows, size_t cols) {
    if (!k->out_signs) return;
    const size_t n = k->out->rotation->n;
    for (size_t r = 0; r < rows; r++) {
        const size_t i = (size_t)((row0 + r) % n);
        if (e->fold->real_bytes == 8) {
            double *p = (double *)(void *)x + r * cols;
            if (((const double *)k->out_signs)[i] < 0)
                for (size_t c = 0; c < cols; c++) p[c] = -p[c];
        } else {
            float *p = (float *)(void *)x + r * cols;
            if (((const float *)k->out_signs)[i] < 0)
                for (size_t c = 0; c < cols; c++) p[c] = -p[c];
        }
    }
}

/* [rows][cols] (row stride) -> [cols][rows] or back. */
static void transpose(const engine *e, char *to, size_t to_stride, const char *from, size_t from_stride, size_t rows,
                      size_t cols) {
    if (e->fold->real_bytes == 8)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++)
                ((double *)(void *)to)[c * to_stride + r] = ((const double *)(const void *)from)[r * from_stride + c];
    else
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++)
                ((float *)(void *)to)[c * to_stride + r] = ((const float *)(const void *)from)[r * from_stride + c];
}

/* Output side on x [rows][cols], signs already applied; rows are whole blocks of the rotation. Dense rotations go
 * through temporary [2 * rows * subpanel], a strip of columns at a time. */
static void output_side(const engine *e, const rq_task *k, char *x, size_t rows, size_t cols, char *temporary) {
    const size_t real = e->fold->real_bytes;
    if (k->out->fwht) {
        const size_t order = k->out->fwht->order;
        for (size_t b = 0; b + order <= rows; b += order)
            e->fold->fwht_cols(x + b * cols * real, cols, cols, k->out->fwht);
        return;
    }
    const size_t n = k->out->rotation->n, sub = rq_subpanel(real);
    for (size_t b = 0; b + n <= rows; b += n)
        for (size_t c = 0; c < cols; c += sub) {
            const size_t strip = rq_min_size(sub, cols - c);
            char *block = x + (b * cols + c) * real, *out = temporary + n * strip * real;
            transpose(e, temporary, n, block, cols, n, strip);
            e->fold->dense_rows(out, temporary, strip, k->out->matrix, n);
            transpose(e, block, cols, out, n, strip, n);
        }
}

/* ---- units ---- */

/* Quantizes or stores one row of rounded values. */
static void keep_row(engine *e, const rq_task *k, const scratch *s, size_t row_in_block) {
    const rq_plan_tensor *t = k->tensor;
    const size_t cols = (size_t)k->cols;
    if (!t->quantize) {
        e->kernels->store(s->codes + row_in_block * cols * rq_dtype_bytes(t->dtype), s->values, t->dtype, cols);
        return;
    }
    const size_t code_bytes = rq_quant_code_bytes(&t->format, cols);
    const size_t scale_bytes = rq_quant_scale_bytes(&t->format, t->dtype, cols);
    quantize(e, k, s->values, cols, 1, cols, s->codes + row_in_block * code_bytes, code_bytes,
             s->scales + row_in_block * scale_bytes, s->biases + row_in_block * scale_bytes, scale_bytes);
}

static rq_status finish_row(engine *e, const rq_task *k, const scratch *s, const char *x, size_t row_in_block,
                            rq_error *err) {
    if (!e->fold->round_to(s->values, x, k->scale, value_dtype(e, k), (size_t)k->cols)) {
        const rq_status st = saw_nonfinite(e, k, err);
        if (st != RQ_OK) return st;
    }
    keep_row(e, k, s, row_in_block);
    return RQ_OK;
}

/* Load, input side and rounding of one row in one kernel: the path of most weights. */
static rq_status fold_row(engine *e, const rq_task *k, const scratch *s, const char *raw, size_t row_in_block,
                          rq_error *err) {
    if (!e->fold->fold_row(s->values, s->work, raw, k->tensor->source->dtype, k->load_gain, k->in ? k->in->fwht : NULL,
                           (size_t)k->cols, k->scale, value_dtype(e, k))) {
        const rq_status st = saw_nonfinite(e, k, err);
        if (st != RQ_OK) return st;
    }
    keep_row(e, k, s, row_in_block);
    return RQ_OK;
}

/* A vector (bias) on the output side is a row of the same map. */
static bool is_output_vector(const rq_task *k) { return k->out && k->tensor->rank == 1; }

static rq_status run_rows(engine *e, const rq_unit *u, scratch *s, rq_error *err) {
    const rq_task *k = &e->units->tasks[u->task];
    const rq_plan_tensor *t = k->tensor;
    const size_t rows = (size_t)(u->end - u->begin), cols = (size_t)k->cols, real = e->fold->real_bytes;
    const size_t raw_stride = cols * rq_dtype_bytes(t->source->dtype);
    carve(s, k, real);
    if (k->ones) {
        for (size_t c = 0; c < cols; c++) s->values[c] = 1.0f;
        for (size_t r = 0; r < rows; r++)
            e->kernels->store(s->codes + r * cols * rq_dtype_bytes(t->dtype), s->values, t->dtype, cols);
        return write_block(e, k, u->begin, rows, s->codes, NULL, NULL, err);
    }
    rq_status st = rq_source_read(e->input->source, t->source, u->begin, rows, 0, cols, s->raw, raw_stride, err);
    if (st != RQ_OK) return st;
    if (k->raw) {
        if (rq_dtype_is_float(t->dtype) && e->kernels->find_nonfinite(s->raw, t->dtype, rows * cols) < rows * cols)
            st = saw_nonfinite(e, k, err);
        return st == RQ_OK ? write_block(e, k, u->begin, rows, s->raw, NULL, NULL, err) : st;
    }
    if (is_output_vector(k)) {
        e->fold->load(s->work, s->raw, t->source->dtype, NULL, cols);
        const size_t n = k->out->rotation->n;
        for (size_t c = 0; k->out_signs && c < cols; c++) sign_rows(e, k, (char *)s->work + c * real, c % n, 1, 1);
        rotate_row(e, k->out, s->work, cols);
        char *x = s->work;
        if (k->out->matrix) {
            e->fold->dense_rows(s->work2, s->work, cols / n, k->out->matrix, n);
            x = s->work2;
        }
        st = finish_row(e, k, s, x, 0, err);
    } else if (k->out) { /* R2: the block holds whole heads */
        char *x = input_side(e, k, s->raw, raw_stride, rows, cols, 0, s->work, s->work2, t->source->dtype);
        sign_rows(e, k, x, u->begin, rows, cols);
        output_side(e, k, x, rows, cols, x == s->work ? s->work2 : s->work);
        for (size_t r = 0; st == RQ_OK && r < rows; r++) st = finish_row(e, k, s, x + r * cols * real, r, err);
    } else if (!k->in || !k->in->matrix) {
        for (size_t r = 0; st == RQ_OK && r < rows; r++)
            st = fold_row(e, k, s, (const char *)s->raw + r * raw_stride, r, err);
    } else {
        for (size_t r = 0; st == RQ_OK && r < rows; r += RQ_DENSE_ROWS) {
            const size_t n = rq_min_size(RQ_DENSE_ROWS, rows - r);
            const char *x = input_side(e, k, (const char *)s->raw + r * raw_stride, raw_stride, n, cols, 0, s->work,
                                       s->work2, t->source->dtype);
            for (size_t i = 0; st == RQ_OK && i < n; i++) st = finish_row(e, k, s, x + i * cols * real, r + i, err);
        }
    }
    return st == RQ_OK ? write_block(e, k, u->begin, rows, s->codes, s->scales, s->biases, err) : st;
}

/* Rows [row, row + rows) of the slot from x [rows][width], strip by strip. */
static void fill_strips(char *slot_in, uint64_t slot_rows, uint64_t row, size_t rows, size_t width, size_t item,
                        const char *x) {
    for (size_t c = 0; c < width; c += RQ_STRIP) {
        char *to = slot_in + (c * slot_rows + row * RQ_STRIP) * item;
        const char *from = x + c * item;
        if (width - c >= RQ_STRIP && item == 2) /* a constant size: one register */
            for (size_t r = 0; r < rows; r++) memcpy(to + r * RQ_STRIP * 2, from + r * width * 2, RQ_STRIP * 2);
        else
            for (size_t r = 0; r < rows; r++)
                memcpy(to + r * RQ_STRIP * item, from + r * width * item, rq_min_size(RQ_STRIP, width - c) * item);
    }
}

/* A piece of a vector that is only copied or cast; such vectors may be large. */
static rq_status run_chunk(engine *e, const rq_unit *u, scratch *s, rq_error *err) {
    const rq_task *k = &e->units->tasks[u->task];
    const rq_plan_tensor *t = k->tensor;
    const size_t n = (size_t)(u->end - u->begin), item = rq_dtype_bytes(t->dtype);
    carve(s, k, e->fold->real_bytes);
    rq_status st = rq_source_read(e->input->source, t->source, 0, 1, u->begin, n, s->raw,
                                  n * rq_dtype_bytes(t->source->dtype), err);
    if (st != RQ_OK) return st;
    bool finite = true;
    const void *stored = s->raw;
    if (!k->raw) {
        finite = e->fold->fold_row(s->values, s->work, s->raw, t->source->dtype, NULL, NULL, n, 1.0, t->dtype);
        e->kernels->store(s->codes, s->values, t->dtype, n);
        stored = s->codes;
    } else if (rq_dtype_is_float(t->dtype)) {
        finite = e->kernels->find_nonfinite(s->raw, t->dtype, n) == n;
    }
    if (!finite) st = saw_nonfinite(e, k, err);
    if (st != RQ_OK) return st;
    pthread_mutex_lock(&e->write_lock);
    st = write_at(e, &k->place->weight, u->begin * item, stored, n * item, err);
    pthread_mutex_unlock(&e->write_lock);
    return st;
}

static rq_status run_load(engine *e, const rq_unit *u, scratch *s, rq_error *err) {
    const rq_task *k = &e->units->tasks[u->task];
    const size_t rows = (size_t)(u->end - u->begin), width = (size_t)k->width, real = e->fold->real_bytes;
    const rq_source_tensor *source = k->tensor->source;
    char *slot_in = e->slots[k->slot].in;
    carve(s, k, real);
    const size_t raw_stride = width * rq_dtype_bytes(source->dtype);
    rq_status st = rq_source_read(e->input->source, source, u->begin, rows, k->col0, width, s->raw, raw_stride, err);
    if (st != RQ_OK) return st;
    if (!k->load_gain && !k->in) {
        fill_strips(slot_in, k->rows, u->begin, rows, width, rq_dtype_bytes(source->dtype), s->raw);
        return RQ_OK;
    }
    const size_t tile = k->in && k->in->matrix ? RQ_DENSE_ROWS : 1;
    for (size_t r = 0; r < rows; r += tile) {
        const size_t n = rq_min_size(tile, rows - r);
        const char *x = input_side(e, k, (const char *)s->raw + r * raw_stride, raw_stride, n, width, (size_t)k->col0,
                                   s->work, s->work2, source->dtype);
        fill_strips(slot_in, k->rows, u->begin + r, n, width, real, x);
    }
    return RQ_OK;
}

/* Output side and rounding of `cols` columns of the slot from column c on, into y. */
static bool fold_columns(engine *e, const rq_task *k, scratch *s, size_t c, size_t cols, float *y, size_t y_stride) {
    const size_t rows = (size_t)k->rows, item = rq_dtype_bytes(k->slot_dtype), real = e->fold->real_bytes;
    const char *in = e->slots[k->slot].in + (c / RQ_STRIP * RQ_STRIP * rows + c % RQ_STRIP) * item;
    const rq_dtype dtype = value_dtype(e, k);
    bool finite = true;
    if (k->out && k->out->fwht) {
        const size_t order = k->out->fwht->order;
        for (size_t b = 0; b + order <= rows; b += order)
            finite &= e->fold->fold_cols(y + b * y_stride, y_stride, s->work, in + b * RQ_STRIP * item, RQ_STRIP * item,
                                         k->slot_dtype, (const char *)k->out_signs + b * real, k->out->fwht, cols,
                                         k->scale, dtype);
        return finite;
    }
    e->fold->load_panel(s->work, cols, in, RQ_STRIP * item, k->slot_dtype, NULL, rows, cols);
    if (k->out) output_side(e, k, s->work, rows, cols, s->work2);
    return e->fold->round_panel(y, y_stride, s->work, cols, k->scale, dtype, rows, cols);
}

static rq_status run_panel(engine *e, const rq_unit *u, scratch *s, rq_error *err) {
    const rq_task *k = &e->units->tasks[u->task];
    const rq_plan_tensor *t = k->tensor;
    const size_t rows = (size_t)k->rows, width = (size_t)k->width, cols = (size_t)(u->end - u->begin);
    const size_t begin = (size_t)u->begin, sub = rq_subpanel(e->fold->real_bytes);
    bool finite = true;
    carve(s, k, e->fold->real_bytes);
    for (size_t c = 0; c < cols; c += sub)
        finite &= fold_columns(e, k, s, begin + c, rq_min_size(sub, cols - c), s->values + c, cols);
    if (!finite) {
        const rq_status st = saw_nonfinite(e, k, err);
        if (st != RQ_OK) return st;
    }
    char *out = e->slots[k->slot].out;
    if (!t->quantize) {
        const size_t out_item = rq_dtype_bytes(t->dtype);
        for (size_t r = 0; r < rows; r++)
            e->kernels->store(out + (r * width + begin) * out_item, s->values + r * cols, t->dtype, cols);
        return RQ_OK;
    }
    const rq_quant_format *f = &t->format;
    const size_t code_stride = rq_quant_code_bytes(f, width), scale_stride = rq_quant_scale_bytes(f, t->dtype, width);
    char *scales = out + rows * code_stride, *biases = scales + rows * scale_stride;
    quantize(e, k, s->values, cols, rows, cols, out + rq_quant_code_bytes(f, begin), code_stride,
             scales + rq_quant_scale_bytes(f, t->dtype, begin), biases + rq_quant_scale_bytes(f, t->dtype, begin),
             scale_stride);
    return RQ_OK;
}

static rq_status run_store(engine *e, const rq_unit *u, rq_error *err) {
    const rq_task *k = &e->units->tasks[u->task];
    const rq_plan_tensor *t = k->tensor;
    const size_t width = (size_t)k->width, rows = (size_t)k->rows;
    const char *out = e->slots[k->slot].out;
    if (!t->quantize)
        return write_block(e, k, u->begin, u->end - u->begin, out + u->begin * width * rq_dtype_bytes(t->dtype), NULL,
                           NULL, err);
    const size_t code_stride = rq_quant_code_bytes(&t->format, width);
    const size_t scale_stride = rq_quant_scale_bytes(&t->format, t->dtype, width);
    const char *scales = out + rows * code_stride, *biases = scales + rows * scale_stride;
    return write_block(e, k, u->begin, u->end - u->begin, out + u->begin * code_stride,
                       scales + u->begin * scale_stride, biases + u->begin * scale_stride, err);
}

/* ---- threads ---- */

/* Until everything that unit i needs is there. False when i is not to run any more: a unit before it failed. */
static bool wait_for_stage(engine *e, uint32_t stage, size_t i) {
    if (stage != RQ_NO_STAGE) {
        pthread_mutex_lock(&e->lock);
        while (e->left[stage] && i < atomic_load(&e->limit)) pthread_cond_wait(&e->stage_done, &e->lock);
        pthread_mutex_unlock(&e->lock);
    }
    return i < atomic_load(&e->limit);
}

static void finish_stage(engine *e, uint32_t stage) {
    if (stage == RQ_NO_STAGE) return;
    pthread_mutex_lock(&e->lock);
    if (--e->left[stage] == 0) pthread_cond_broadcast(&e->stage_done);
    pthread_mutex_unlock(&e->lock);
}

static void report_progress(engine *e, const rq_unit *u) {
    const rq_convert_options *o = e->input->options;
    const double now = rq_now();
    if (!o->progress || now - e->last_progress < 0.1) return;
    e->last_progress = now;
    const rq_progress p = {e->units->tasks[u->task].tensor->name, atomic_load(&e->bytes_done), e->units->source_bytes,
                           now - e->started};
    o->progress(o->progress_context, &p);
}

/* Announces the source of the unit that will be taken some turns from now: cold files are read while we compute. */
static void prefetch(const engine *e, size_t i) {
    if (i >= e->units->n_units) return;
    const rq_unit *u = &e->units->units[i];
    const rq_task *k = &e->units->tasks[u->task];
    if ((u->kind == RQ_UNIT_ROWS && !k->ones && !k->chunked) || u->kind == RQ_UNIT_LOAD)
        rq_source_prefetch(e->input->source, k->tensor->source, u->begin, u->end - u->begin);
}

static rq_status run_unit(engine *e, const rq_unit *u, scratch *s, rq_error *err) {
    if (e->units->tasks[u->task].chunked) return run_chunk(e, u, s, err);
    switch (u->kind) {
    case RQ_UNIT_ROWS:
        return run_rows(e, u, s, err);
    case RQ_UNIT_LOAD:
        return run_load(e, u, s, err);
    case RQ_UNIT_PANEL:
        return run_panel(e, u, s, err);
    default:
        return run_store(e, u, err);
    }
}

static void worker(void *context, unsigned thread) {
    engine *e = context;
    enum { ahead = 16 }; /* units of about 256 KiB */
    const rq_convert_options *o = e->input->options;
    rq_error error = {0};
    scratch s = {.memory = rq_aligned_alloc(e->units->scratch_bytes)};
    if (!s.memory) {
        fail(e, 0, rq_fail(&error, RQ_ERR_NOMEM, "no memory for %zu bytes of scratch", e->units->scratch_bytes),
             &error);
        return;
    }
    for (;;) {
        const size_t i = atomic_fetch_add(&e->next, 1);
        if (i >= e->units->n_units || i >= atomic_load(&e->limit)) break;
        prefetch(e, i + ahead);
        const rq_unit *u = &e->units->units[i];
        if (!wait_for_stage(e, u->wait, i)) break;
        if (o->should_stop && o->should_stop(o->stop_context)) {
            fail(e, 0, rq_fail(&error, RQ_ERR_INTERRUPTED, "interrupted"), &error);
            break;
        }
        const rq_status st = run_unit(e, u, &s, &error);
        if (st != RQ_OK) {
            fail(e, i, st, &error);
            break;
        }
        if (u->kind == RQ_UNIT_ROWS || u->kind == RQ_UNIT_LOAD) {
            const rq_task *k = &e->units->tasks[u->task];
            const uint64_t elements = (u->end - u->begin) * (k->chunked ? 1 : k->width);
            atomic_fetch_add(&e->bytes_done, elements * rq_dtype_bytes(k->tensor->source->dtype));
        }
        finish_stage(e, u->stage);
        if (thread == 0) report_progress(e, u);
    }
    rq_aligned_free(s.memory);
}

rq_status rq_engine_run(const rq_engine_input *input, unsigned threads, rq_notes *notes, rq_error *err) {
    engine e = {.input = input, .kernels = rq_kernels_get(), .units = input->units, .limit = SIZE_MAX};
    e.fold = &e.kernels->fold[input->options->fold_precision == RQ_FOLD_F32];
    rq_status st = RQ_OK;
    rq_prepared prepared;
    st = rq_prepare(input->source, input->rotations, input->options, input->units, &prepared, err);
    if (st != RQ_OK) return st;
    pthread_mutex_init(&e.lock, NULL);
    pthread_mutex_init(&e.write_lock, NULL);
    pthread_cond_init(&e.stage_done, NULL);
    e.left = malloc((input->units->n_stages + 1) * sizeof *e.left);
    bool memory = e.left != NULL;
    for (size_t i = 0; memory && i < RQ_SLOTS && input->units->slot_in_bytes; i++) {
        e.slots[i].in = rq_aligned_alloc(input->units->slot_in_bytes);
        e.slots[i].out = rq_aligned_alloc(input->units->slot_out_bytes);
        memory = e.slots[i].in && e.slots[i].out;
    }
    if (!memory) {
        st = rq_fail(err, RQ_ERR_NOMEM, "no memory for two matrices of %zu bytes", input->units->slot_in_bytes);
        goto done;
    }
    if (input->units->n_stages) memcpy(e.left, input->units->stages, input->units->n_stages * sizeof *e.left);
    e.started = rq_now();
    rq_run_threads(threads, worker, &e);
    st = e.status;
    if (st != RQ_OK && err) *err = e.error;
    if (st == RQ_OK && e.zeroed_groups)
        rq_note_add(notes, RQ_NOTE_WARNING, "zeroed-groups",
                    "%llu groups of 16 weights are too small for nvfp4's scale and became zeros",
                    (unsigned long long)e.zeroed_groups);
    if (st == RQ_OK && e.nonfinite_tasks)
        rq_note_add(notes, RQ_NOTE_WARNING, "nonfinite", "NaN or infinity was converted in %llu blocks",
                    (unsigned long long)e.nonfinite_tasks);
done:
    for (size_t i = 0; i < RQ_SLOTS; i++) {
        rq_aligned_free(e.slots[i].in);
        rq_aligned_free(e.slots[i].out);
    }
    free(e.left);
    pthread_cond_destroy(&e.stage_done);
    pthread_mutex_destroy(&e.write_lock);
    pthread_mutex_destroy(&e.lock);
    rq_prepared_deinit(&prepared);
    return st;
}
