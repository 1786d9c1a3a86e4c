#include "convert/prepare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/fold_scalar.h"
#include "linalg/fwht_plan.h"

/* Norm gains as read from the source, by name. */
typedef struct gain_entry {
    const char *name;
    const rq_rotation *signs_of; /* the rotation whose signs are multiplied in, or NULL */
    const void *vector;
} gain_entry;

typedef struct context {
    const rq_source *source;
    const rq_rotation_set *rotations;
    const rq_convert_options *options;
    rq_prepared *prepared;
    size_t real_bytes;
    rq_applied *r1, *r2; /* r2 [n_layers] */
    gain_entry *gains;
    size_t n_gains;
    rq_error *err;
} context;

static void *to_real(context *c, const double *values, size_t n) {
    void *out = rq_arena_alloc(&c->prepared->arena, n * c->real_bytes);
    if (!out) return NULL;
    if (c->real_bytes == 8)
        memcpy(out, values, n * sizeof(double));
    else
        for (size_t i = 0; i < n; i++) ((float *)out)[i] = (float)values[i];
    return out;
}

static rq_status apply_ready(context *c, const rq_rotation *q, const rq_fwht *fwht, rq_applied *applied) {
    *applied = (rq_applied){.rotation = q};
    if (q->kind == RQ_ROTATION_DENSE) {
        if (c->real_bytes == 8)
            applied->matrix = q->dense;
        else
            applied->matrix = to_real(c, q->dense, q->n * q->n);
        return applied->matrix ? RQ_OK : rq_fail(c->err, RQ_ERR_NOMEM, "no memory for a rotation of %zu", q->n);
    }
    applied->fwht = fwht;
    applied->signs = to_real(c, q->signs, q->n);
    return applied->signs ? RQ_OK : rq_fail(c->err, RQ_ERR_NOMEM, "no memory for %zu signs", q->n);
}

static bool is_hadamard(const rq_rotation *q) {
    return q->kind == RQ_ROTATION_HADAMARD || q->kind == RQ_ROTATION_BLOCK_HADAMARD;
}

static rq_status prepare_rotations(context *c) {
    rq_status st = RQ_OK;
    const rq_rotation_set *set = c->rotations;
    c->r1 = rq_arena_alloc(&c->prepared->arena, sizeof *c->r1);
    c->r2 = rq_arena_alloc(&c->prepared->arena, (set->n_layers + 1) * sizeof *c->r2);
    if (!c->r1 || !c->r2) return rq_fail(c->err, RQ_ERR_NOMEM, "no memory for rotations");
    if (is_hadamard(&set->r1)) st = rq_fwht_init(&c->prepared->r1, set->r1.order, c->err);
    if (st == RQ_OK && set->r2 && set->n_layers && is_hadamard(&set->r2[0]))
        st = rq_fwht_init(&c->prepared->r2, set->r2[0].order, c->err);
    if (st == RQ_OK && set->r1.kind != RQ_ROTATION_IDENTITY) st = apply_ready(c, &set->r1, &c->prepared->r1, c->r1);
    for (size_t l = 0; set->r2 && st == RQ_OK && l < set->n_layers; l++)
        st = apply_ready(c, &set->r2[l], &c->prepared->r2, &c->r2[l]);
    return st;
}

/* A gain (or all ones) times the signs of the rotation that follows it, `cols` long. Signs shorter than the row (R2)
 * repeat. */
static rq_status input_vector(context *c, const char *gain_name, const rq_rotation *signs_of, size_t cols,
                              const void **out) {
    for (size_t i = 0; i < c->n_gains; i++)
        if (c->gains[i].signs_of == signs_of && gain_name && c->gains[i].name &&
            strcmp(c->gains[i].name, gain_name) == 0) {
            *out = c->gains[i].vector;
            return RQ_OK;
        }
    rq_status st = RQ_OK;
    double *values = malloc(cols * sizeof *values);
    void *raw = malloc(cols * sizeof(double));
    if (!values || !raw) {
        st = rq_fail(c->err, RQ_ERR_NOMEM, "no memory for %zu gains", cols);
        goto done;
    }
    for (size_t i = 0; i < cols; i++) values[i] = 1.0;
    if (gain_name) {
        const rq_source_tensor *norm = rq_source_find(c->source, gain_name);
        if (!norm || norm->rank != 1 || norm->shape[0] != cols || !rq_dtype_is_float(norm->dtype)) {
            st = rq_fail(c->err, RQ_ERR_SHAPE, "%s: expected a floating-point gain of %zu elements", gain_name, cols);
            goto done;
        }
        st = rq_source_read(c->source, norm, 0, 1, 0, cols, raw, cols * rq_dtype_bytes(norm->dtype), c->err);
        if (st != RQ_OK) goto done;
        for (size_t i = 0; i < cols; i++) {
            values[i] = rq_element(raw, norm->dtype, i);
            if (!isfinite(values[i]) && !c->options->allow_nonfinite) {
                st = rq_fail(c->err, RQ_ERR_NONFINITE,
                             "%s: element %zu is not finite; --allow-nonfinite converts it all the same", gain_name, i);
                goto done;
            }
        }
    }
    if (signs_of && signs_of->signs)
        for (size_t i = 0; i < cols; i++) values[i] *= signs_of->signs[i % signs_of->n];
    *out = to_real(c, values, cols);
    if (!*out) {
        st = rq_fail(c->err, RQ_ERR_NOMEM, "no memory for %zu gains", cols);
        goto done;
    }
    if (gain_name) c->gains[c->n_gains++] = (gain_entry){gain_name, signs_of, *out};
done:
    free(values);
    free(raw);
    return st;
}

static const rq_applied *rotation_of(const context *c, const rq_op *r1, const rq_op *r2) {
    if (r1) return c->r1 && c->r1->rotation ? c->r1 : NULL; /* an identity is no rotation */
    return r2 ? &c->r2[r2->layer] : NULL;
}

static rq_status prepare_task(context *c, rq_task *task) {
    const rq_plan_tensor *t = task->tensor;
    const rq_op *gain = rq_find_op(t, RQ_OP_GAIN_IN);
    task->in = rotation_of(c, rq_find_op(t, RQ_OP_R1_IN), rq_find_op(t, RQ_OP_R2_IN));
    task->out = rotation_of(c, rq_find_op(t, RQ_OP_R1_OUT), rq_find_op(t, RQ_OP_R2_OUT));
    rq_status st = RQ_OK;
    if (gain || (task->in && task->in->signs))
        st = input_vector(c, gain ? gain->gain : NULL, task->in ? task->in->rotation : NULL, (size_t)task->cols,
                          &task->load_gain);
    if (task->in && task->in->fwht) task->scale *= task->in->fwht->scale;
    if (task->out && task->out->fwht) task->scale *= task->out->fwht->scale;
    if (task->out) task->out_signs = task->out->signs; /* [n], repeating along the output dimension */
    return st;
}

rq_status rq_prepare(const rq_source *source, const rq_rotation_set *rotations, const rq_convert_options *options,
                     rq_units *units, rq_prepared *prepared, rq_error *err) {
    *prepared = (rq_prepared){0};
    context c = {.source = source, .rotations = rotations, .options = options, .prepared = prepared, .err = err};
    c.real_bytes = options->fold_precision == RQ_FOLD_F32 ? 4 : 8;
    c.gains = malloc((units->n_tasks + 1) * sizeof *c.gains);
    rq_status st = c.gains ? RQ_OK : rq_fail(err, RQ_ERR_NOMEM, "no memory for gains");
    if (st == RQ_OK && rotations) st = prepare_rotations(&c);
    for (size_t i = 0; st == RQ_OK && i < units->n_tasks; i++) st = prepare_task(&c, &units->tasks[i]);
    free(c.gains);
    if (st != RQ_OK) rq_prepared_deinit(prepared);
    return st;
}

void rq_prepared_deinit(rq_prepared *prepared) {
    rq_fwht_deinit(&prepared->r1);
    rq_fwht_deinit(&prepared->r2);
    rq_arena_deinit(&prepared->arena);
}
