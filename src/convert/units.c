#include "convert/units.h"

#include <stdlib.h>
#include <string.h>

enum { row_block_bytes = 256 << 10, store_block_bytes = 1 << 20, chunk_elements = 1 << 16 };

const rq_op *rq_find_op(const rq_plan_tensor *tensor, rq_op_kind kind) {
    for (unsigned i = 0; i < tensor->n_ops; i++)
        if (tensor->ops[i].kind == kind) return &tensor->ops[i];
    return NULL;
}

static uint64_t least_common_multiple(uint64_t a, uint64_t b) {
    uint64_t x = a, y = b;
    while (y) {
        const uint64_t r = x % y;
        x = y;
        y = r;
    }
    return x ? a / x * b : 0;
}

static size_t stored_row_bytes(const rq_plan_tensor *t, uint64_t cols) {
    if (!t->quantize) return (size_t)cols * rq_dtype_bytes(t->dtype);
    return rq_quant_code_bytes(&t->format, (size_t)cols) +
           (rq_quant_has_biases(&t->format) ? 2 : 1) * rq_quant_scale_bytes(&t->format, t->dtype, (size_t)cols);
}

/* Rows so that a block of source elements fits the second-level cache beside its results. */
static uint32_t rows_per_block(uint64_t rows, uint64_t row_bytes, uint64_t align, uint64_t target) {
    uint64_t n = target / (row_bytes ? row_bytes : 1) / align * align;
    if (n < align) n = align;
    if (n > rows) n = rows;
    return (uint32_t)(n ? n : 1);
}

static uint64_t head_dim_of(const rq_plan *plan) { return plan->head_dim_r2 ? plan->head_dim_r2 : 1; }

static rq_task make_task(const rq_plan *plan, const rq_layout *layout, size_t i, size_t real_bytes) {
    const rq_plan_tensor *t = &plan->tensors[i];
    rq_task k = {.tensor = t, .place = &layout->tensors[i], .scale = 1.0};
    rq_tensor_extent(t, &k.rows, &k.cols);
    k.width = k.cols;
    k.ones = rq_has_op(t, RQ_OP_SET_ONES);
    const bool in = rq_has_op(t, RQ_OP_GAIN_IN) || rq_has_op(t, RQ_OP_R1_IN) || rq_has_op(t, RQ_OP_R2_IN);
    const bool out = rq_has_op(t, RQ_OP_R1_OUT) || rq_has_op(t, RQ_OP_R2_OUT);
    k.raw = !k.ones && !in && !out && !t->quantize && t->source->dtype == t->dtype &&
            (t->source->encoding == RQ_ENC_PLAIN || t->source->encoding == RQ_ENC_OPAQUE);
    k.chunked = t->rank <= 1 && !k.ones && !in && !out && !t->quantize;
    if (k.chunked) k.width = rq_min_u64(k.cols, chunk_elements);
    const rq_rotation_spec *spec = &plan->options.rotation;
    k.dense = spec->r1 == RQ_SPEC_RANDOM || spec->r1 == RQ_SPEC_FILE || spec->r2 == RQ_R2_RANDOM;
    k.columns = t->rank > 1 && rq_has_op(t, RQ_OP_R1_OUT);
    k.slot_dtype = in ? (real_bytes == 8 ? RQ_F64 : RQ_F32) : t->source->dtype;
    const uint64_t align = !k.columns && t->rank > 1 && rq_has_op(t, RQ_OP_R2_OUT) ? head_dim_of(plan) : 1;
    k.block_rows = rows_per_block(k.rows, k.cols * rq_dtype_bytes(t->source->dtype), align, row_block_bytes);
    return k;
}

/* ---- growing lists ---- */

typedef struct builder {
    rq_units *units;
    size_t unit_capacity, task_capacity, stage_capacity;
    bool failed;
} builder;

static bool grow(void **items, size_t *capacity, size_t count, size_t item) {
    if (count < *capacity) return true;
    const size_t n = *capacity ? 2 * *capacity : 256;
    void *p = realloc(*items, n * item);
    if (!p) return false;
    *items = p;
    *capacity = n;
    return true;
}

static uint32_t add_task(builder *b, const rq_task *task) {
    rq_units *u = b->units;
    void *p = u->tasks;
    if (!grow(&p, &b->task_capacity, u->n_tasks, sizeof *u->tasks)) {
        b->failed = true;
        return 0;
    }
    u->tasks = p;
    u->tasks[u->n_tasks] = *task;
    return (uint32_t)u->n_tasks++;
}

static uint32_t add_stage(builder *b) {
    rq_units *u = b->units;
    void *p = u->stages;
    if (!grow(&p, &b->stage_capacity, u->n_stages, sizeof *u->stages)) {
        b->failed = true;
        return RQ_NO_STAGE;
    }
    u->stages = p;
    u->stages[u->n_stages] = 0;
    return (uint32_t)u->n_stages++;
}

static void add_units(builder *b, rq_unit_kind kind, uint32_t task, uint64_t n, uint64_t step, uint32_t stage,
                      uint32_t wait) {
    rq_units *u = b->units;
    for (uint64_t i = 0; i < n && !b->failed; i += step) {
        void *p = u->units;
        if (!grow(&p, &b->unit_capacity, u->n_units, sizeof *u->units)) {
            b->failed = true;
            return;
        }
        u->units = p;
        u->units[u->n_units++] = (rq_unit){kind, task, i, rq_min_u64(i + step, n), stage, wait};
        if (stage != RQ_NO_STAGE) u->stages[stage]++;
    }
}

/* ---- column jobs on their way through load, panel, store ---- */

typedef struct job {
    uint32_t task, last_stage;
    int next; /* 0 panel, 1 store, 2 finished */
} job;

static void advance(builder *b, job *j) {
    if (j->next > 1 || b->failed) return;
    const rq_task *t = &b->units->tasks[j->task];
    const uint32_t stage = add_stage(b);
    if (b->failed) return;
    if (j->next == 0)
        add_units(b, RQ_UNIT_PANEL, j->task, t->width, t->panel_cols, stage, j->last_stage);
    else
        add_units(b, RQ_UNIT_STORE, j->task, t->rows,
                  rows_per_block(t->rows, stored_row_bytes(t->tensor, t->width), 1, store_block_bytes), stage,
                  j->last_stage);
    j->last_stage = stage;
    j->next++;
}

/* Panels are whole groups, at least 64 columns so that the slot is read by whole cache lines. */
static uint32_t panel_columns(const rq_task *t) {
    uint64_t p = 64;
    if (t->tensor->quantize) p = least_common_multiple(p, t->tensor->format.group_size);
    return (uint32_t)rq_min_u64(p, t->width);
}

/* Columns per task so that the slot's two buffers stay below slot_bytes. Cuts fall on groups and heads. */
static uint64_t task_width(const rq_plan *plan, const rq_task *t, size_t slot_bytes) {
    uint64_t unit = 64;
    if (t->tensor->quantize) unit = least_common_multiple(unit, t->tensor->format.group_size);
    if (rq_has_op(t->tensor, RQ_OP_R2_IN)) unit = least_common_multiple(unit, head_dim_of(plan));
    if (t->tensor->source->encoding == RQ_ENC_MLX_QUANT)
        unit = least_common_multiple(unit, t->tensor->source->format.group_size);
    const uint64_t per_unit = t->rows * (unit * rq_dtype_bytes(t->slot_dtype) + stored_row_bytes(t->tensor, unit));
    uint64_t n = slot_bytes / (per_unit ? per_unit : 1) * unit;
    if (n < unit) n = unit;
    return rq_min_u64(n, t->cols);
}

/* Tensors in the order in which the source stores their names. */
typedef struct source_order {
    const rq_plan_tensor *tensor;
} source_order;

static int by_source(const void *a, const void *b) {
    const rq_plan_tensor *x = ((const source_order *)a)->tensor, *y = ((const source_order *)b)->tensor;
    if (x->source->data != y->source->data) return x->source->data < y->source->data ? -1 : 1;
    return strcmp(x->name, y->name);
}

rq_status rq_units_make(const rq_plan *plan, const rq_layout *layout, size_t real_bytes, size_t slot_bytes,
                        rq_units *units, rq_error *err) {
    *units = (rq_units){0};
    builder b = {.units = units};
    job jobs[RQ_SLOTS] = {{0}};
    size_t n_jobs = 0; /* column tasks so far; slot = index % RQ_SLOTS */
    source_order *order = malloc((plan->count + 1) * sizeof *order);
    if (!order) return rq_fail(err, RQ_ERR_NOMEM, "no memory to order %zu tensors", plan->count);
    for (size_t i = 0; i < plan->count; i++) order[i].tensor = &plan->tensors[i];
    qsort(order, plan->count, sizeof *order, by_source);

    for (size_t i = 0; i < plan->count && !b.failed; i++) {
        rq_task task = make_task(plan, layout, (size_t)(order[i].tensor - plan->tensors), real_bytes);
        if (task.rows * task.cols == 0) continue; /* nothing is stored */
        if (!task.ones) units->source_bytes += task.rows * task.cols * rq_dtype_bytes(task.tensor->source->dtype);
        if (!task.columns) {
            const uint32_t t = add_task(&b, &task);
            if (task.chunked)
                add_units(&b, RQ_UNIT_ROWS, t, task.cols, chunk_elements, RQ_NO_STAGE, RQ_NO_STAGE);
            else
                add_units(&b, RQ_UNIT_ROWS, t, task.rows, task.block_rows, RQ_NO_STAGE, RQ_NO_STAGE);
            for (size_t j = 0; j < RQ_SLOTS; j++)
                if (n_jobs > j) advance(&b, &jobs[j]);
        } else {
            const uint64_t width = task_width(plan, &task, slot_bytes);
            for (uint64_t col0 = 0; col0 < task.cols && !b.failed; col0 += width, n_jobs++) {
                job *j = &jobs[n_jobs % RQ_SLOTS];
                uint32_t freed = RQ_NO_STAGE; /* the slot's previous user must have stored everything */
                if (n_jobs >= RQ_SLOTS) {
                    while (j->next < 2 && !b.failed) advance(&b, j);
                    freed = j->last_stage;
                }
                task.col0 = col0;
                task.width = rq_min_u64(width, task.cols - col0);
                task.slot = (unsigned)(n_jobs % RQ_SLOTS);
                task.panel_cols = panel_columns(&task);
                task.in_bytes =
                    (size_t)(task.rows * rq_round_up_u64(task.width, RQ_STRIP)) * rq_dtype_bytes(task.slot_dtype);
                task.out_bytes = (size_t)task.rows * stored_row_bytes(task.tensor, task.width);
                if (task.in_bytes > units->slot_in_bytes) units->slot_in_bytes = task.in_bytes;
                if (task.out_bytes > units->slot_out_bytes) units->slot_out_bytes = task.out_bytes;
                const uint32_t t = add_task(&b, &task), stage = add_stage(&b);
                if (b.failed) break;
                add_units(&b, RQ_UNIT_LOAD, t, task.rows, task.block_rows, stage, freed);
                *j = (job){t, stage, 0};
                job *other = &jobs[(n_jobs + 1) % RQ_SLOTS];
                if (n_jobs > 0) advance(&b, other);
            }
        }
    }
    /* Oldest first: its store stage precedes the younger job's. */
    for (int stage = 0; stage < 2; stage++)
        for (size_t j = 0; j < RQ_SLOTS; j++) {
            const size_t slot = (n_jobs + j) % RQ_SLOTS;
            if (n_jobs > slot && !b.failed) advance(&b, &jobs[slot]);
        }
    for (size_t i = 0; i < units->n_tasks; i++) {
        const rq_scratch_sizes s = rq_task_scratch(&units->tasks[i], real_bytes);
        const size_t total = rq_scratch_total(&s);
        if (total > units->scratch_bytes) units->scratch_bytes = total;
    }
    free(order);
    if (!b.failed) return RQ_OK;
    rq_units_deinit(units);
    return rq_fail(err, RQ_ERR_NOMEM, "no memory for the work list");
}

void rq_units_deinit(rq_units *units) {
    free(units->tasks);
    free(units->units);
    free(units->stages);
    *units = (rq_units){0};
}

static size_t padded(size_t bytes) { return (bytes + 127) / 128 * 128; }

rq_scratch_sizes rq_task_scratch(const rq_task *task, size_t real_bytes) {
    rq_scratch_sizes s = {0};
    const rq_plan_tensor *t = task->tensor;
    const size_t rows = task->block_rows, cols = (size_t)task->width;
    s.raw = rows * cols * rq_dtype_bytes(t->source->dtype);
    if (!task->columns || rq_has_op(t, RQ_OP_R2_IN)) { /* rows units, and load units that transform */
        const bool heads_out = rq_has_op(t, RQ_OP_R2_OUT) && t->rank > 1;
        const size_t work_rows = heads_out ? rows : task->dense ? rq_min_size(rows, RQ_DENSE_ROWS) : 1;
        s.work = work_rows * cols * real_bytes;
        if (task->dense) {
            const size_t strips = 2 * rows * rq_subpanel(real_bytes) * real_bytes; /* an output side, strip by strip */
            if (heads_out && strips > s.work) s.work = strips;
            s.work2 = s.work;
        }
        s.values = cols * sizeof(float);
        if (t->quantize) {
            s.codes = rows * rq_quant_code_bytes(&t->format, cols);
            s.scales = s.biases = rows * rq_quant_scale_bytes(&t->format, t->dtype, cols);
        } else {
            s.codes = rows * cols * rq_dtype_bytes(t->dtype);
        }
    }
    if (task->columns) {
        const size_t sub = (size_t)task->rows * rq_subpanel(real_bytes) * real_bytes;
        if (sub > s.work) s.work = sub;
        if (task->dense && 2 * sub > s.work2) s.work2 = 2 * sub; /* transposed in, out */
        const size_t values = (size_t)task->rows * task->panel_cols * sizeof(float);
        if (values > s.values) s.values = values;
    }
    s.raw = padded(s.raw), s.work = padded(s.work), s.work2 = padded(s.work2), s.values = padded(s.values);
    s.codes = padded(s.codes), s.scales = padded(s.scales), s.biases = padded(s.biases);
    return s;
}

size_t rq_scratch_total(const rq_scratch_sizes *s) {
    return s->raw + s->work + s->work2 + s->values + s->codes + s->scales + s->biases;
}
