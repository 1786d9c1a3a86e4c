#include "rotq/rotation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "linalg/hadamard.h"
#include "linalg/random_orthogonal.h"
#include "par/pool.h"
#include "rotate/limits.h"

static rq_status check_size(const char *what, size_t n, size_t limit, rq_error *err) {
    if (n == 0) return rq_fail(err, RQ_ERR_SHAPE, "a rotation of size 0 was asked for");
    if (n > limit) return rq_fail(err, RQ_ERR_UNSUPPORTED, "%s rotation of size %zu: the limit is %zu", what, n, limit);
    return RQ_OK;
}

static rq_status no_hadamard_form(size_t order, bool is_block, rq_error *err) {
    if (is_block)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "no Hadamard matrix of block size %zu can be generated: use a power of two", order);
    const size_t twos = order & (~order + 1);
    if (twos >= 16)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "no Hadamard matrix of order %zu can be generated: use `--rotation random`, or "
                       "`--rotation block:%zu`",
                       order, twos);
    return rq_fail(err, RQ_ERR_UNSUPPORTED, "no Hadamard matrix of order %zu can be generated: use `--rotation random`",
                   order);
}

/* Signs of the first block repeat; for a plain Hadamard rotation the block is everything. */
static rq_status make_hadamard(rq_rotation_kind kind, size_t n, size_t order, uint64_t seed, uint32_t stream,
                               rq_rotation *out, rq_error *err) {
    rq_rotation q = {.kind = kind, .n = n, .order = order, .seed = seed, .stream = stream};
    if (!rq_hadamard_split(order, &q.K, &q.m, &q.construction))
        return no_hadamard_form(order, kind == RQ_ROTATION_BLOCK_HADAMARD, err);
    q.hk = malloc(q.K * q.K);
    q.signs = malloc(n * sizeof *q.signs);
    if (!q.hk || !q.signs || !rq_hadamard_matrix(q.K, q.hk)) {
        rq_rotation_deinit(&q);
        return rq_fail(err, RQ_ERR_NOMEM, "no memory for a Hadamard rotation of size %zu", n);
    }
    rq_philox_signs(seed, stream, q.signs, order);
    for (size_t i = order; i < n; i++) q.signs[i] = q.signs[i - order];
    *out = q;
    return RQ_OK;
}

rq_status rq_rotation_hadamard(size_t n, uint64_t seed, uint32_t stream, rq_rotation *q, rq_error *err) {
    const rq_status st = check_size("Hadamard", n, RQ_ROTATION_MAX, err);
    if (st != RQ_OK) return st;
    return make_hadamard(RQ_ROTATION_HADAMARD, n, n, seed, stream, q, err);
}

rq_status rq_rotation_block_hadamard(size_t n, size_t block, uint64_t seed, uint32_t stream, rq_rotation *q,
                                     rq_error *err) {
    const rq_status st = check_size("block Hadamard", n, RQ_ROTATION_MAX, err);
    if (st != RQ_OK) return st;
    if (block == 0 || n % block)
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "block size %zu does not divide the rotation's size %zu", block, n);
    return make_hadamard(RQ_ROTATION_BLOCK_HADAMARD, n, block, seed, stream, q, err);
}

/* n * n doubles cannot overflow: n is at most RQ_ROTATION_DENSE_MAX. */
static double *dense_alloc(size_t n) { return rq_aligned_alloc(n * n * sizeof(double)); }

rq_status rq_rotation_random(size_t n, uint64_t seed, uint32_t stream, rq_rotation *q, rq_error *err) {
    const rq_status st = check_size("random", n, RQ_ROTATION_DENSE_MAX, err);
    if (st != RQ_OK) return st;
    double *dense = dense_alloc(n);
    if (!dense || !rq_random_orthogonal(n, seed, stream, dense)) {
        rq_aligned_free(dense);
        return rq_fail(err, RQ_ERR_NOMEM, "no memory for a random rotation of size %zu", n);
    }
    *q = (rq_rotation){.kind = RQ_ROTATION_DENSE, .n = n, .dense = dense, .seed = seed, .stream = stream};
    return RQ_OK;
}

rq_status rq_rotation_identity(size_t n, rq_rotation *q, rq_error *err) {
    const rq_status st = check_size("identity", n, RQ_ROTATION_MAX, err);
    if (st != RQ_OK) return st;
    *q = (rq_rotation){.kind = RQ_ROTATION_IDENTITY, .n = n};
    return RQ_OK;
}

rq_status rq_rotation_adopt_dense(size_t n, double **q_matrix, rq_rotation *q, rq_error *err) {
    const rq_status st = check_size("dense", n, RQ_ROTATION_DENSE_MAX, err);
    if (st != RQ_OK) return st;
    const double error = rq_dense_orthogonality_error(*q_matrix, n);
    if (error < 0) return rq_fail(err, RQ_ERR_NOMEM, "no memory to check a dense rotation of size %zu", n);
    if (!(error <= RQ_ROTATION_DENSE_TOLERANCE))
        return rq_fail(err, RQ_ERR_SHAPE,
                       "the dense [%zu, %zu] matrix is not orthogonal: max |Q^T Q - I| is %.3g, at most %g is accepted",
                       n, n, error, RQ_ROTATION_DENSE_TOLERANCE);
    *q = (rq_rotation){.kind = RQ_ROTATION_DENSE, .n = n, .dense = *q_matrix};
    *q_matrix = NULL; /* moved into the rotation */
    return RQ_OK;
}

rq_status rq_rotation_dense(size_t n, const double *q_matrix, rq_rotation *q, rq_error *err) {
    rq_status st = check_size("dense", n, RQ_ROTATION_DENSE_MAX, err);
    if (st != RQ_OK) return st;
    double *copy = dense_alloc(n);
    if (!copy) return rq_fail(err, RQ_ERR_NOMEM, "no memory for a dense rotation of size %zu", n);
    memcpy(copy, q_matrix, n * n * sizeof *copy);
    st = rq_rotation_adopt_dense(n, &copy, q, err);
    rq_aligned_free(copy);
    return st;
}

void rq_rotation_deinit(rq_rotation *q) {
    if (!q) return;
    free(q->hk);
    free(q->signs);
    rq_aligned_free(q->dense);
    *q = (rq_rotation){0};
}

static bool is_hadamard(const rq_rotation *q) {
    return q->kind == RQ_ROTATION_HADAMARD || q->kind == RQ_ROTATION_BLOCK_HADAMARD;
}

/* Sign of entry (i, j) of diag(s) (H_K (x) S) within one block. */
static double block_entry(const rq_rotation *q, size_t i, size_t j) {
    const size_t length = (size_t)1 << q->m; /* index = row of H_K * length + offset in S */
    const double h = q->hk[(i >> q->m) * q->K + (j >> q->m)];
    const bool odd = __builtin_popcountll(i & j & (length - 1)) & 1;
    return q->signs[i] * (odd ? -h : h);
}

void rq_rotation_to_dense(const rq_rotation *q, double *out) {
    const size_t n = q->n;
    if (q->kind == RQ_ROTATION_DENSE) {
        memcpy(out, q->dense, n * n * sizeof *out);
        return;
    }
    memset(out, 0, n * n * sizeof *out);
    if (!is_hadamard(q)) {
        for (size_t i = 0; i < n; i++) out[i * n + i] = 1.0;
        return;
    }
    const double scale = 1.0 / sqrt((double)q->order);
    for (size_t block = 0; block < n; block += q->order)
        for (size_t i = 0; i < q->order; i++)
            for (size_t j = 0; j < q->order; j++) out[(block + i) * n + block + j] = scale * block_entry(q, i, j);
}

/* ---- max |Q^T Q - I| of one Hadamard block: columns of Q go back through the fast Q^T, LANES at a time ---- */

enum { LANES = 8 };

typedef struct check_job {
    const rq_rotation *q;
    double *worst; /* [items]; negative: no memory */
} check_job;

/* Unnormalized H_K^T (x) S on [order][LANES]. The plain textbook form on purpose: it checks the matrices, not the
 * kernels, and shares no code with them. */
static void plain_transform(const rq_rotation *q, double *x, double *column) {
    const size_t length = (size_t)1 << q->m;
    for (size_t h = 1; h < length; h *= 2)
        for (size_t i = 0; i < q->order; i += 2 * h)
            for (size_t j = i * LANES; j < (i + h) * LANES; j++) {
                const double a = x[j], b = x[j + h * LANES];
                x[j] = a + b;
                x[j + h * LANES] = a - b;
            }
    if (q->K == 1) return;
    for (size_t offset = 0; offset < length; offset++) {
        memset(column, 0, q->K * LANES * sizeof *column);
        for (size_t j = 0; j < q->K; j++) {
            const double *in = x + (j * length + offset) * LANES;
            for (size_t i = 0; i < q->K; i++) {
                const double h = q->hk[j * q->K + i]; /* transposed */
                for (size_t l = 0; l < LANES; l++) column[i * LANES + l] += h * in[l];
            }
        }
        for (size_t i = 0; i < q->K; i++)
            memcpy(x + (i * length + offset) * LANES, column + i * LANES, LANES * sizeof *x);
    }
}

static void check_columns(void *context, size_t item) {
    const check_job *job = context;
    const rq_rotation *q = job->q;
    const size_t order = q->order, first = item * LANES;
    double *x = rq_aligned_alloc((order + q->K) * LANES * sizeof *x);
    if (!x) {
        job->worst[item] = -1;
        return;
    }
    const double scale = 1.0 / sqrt((double)order);
    for (size_t i = 0; i < order; i++)
        for (size_t l = 0; l < LANES; l++)
            x[i * LANES + l] = first + l < order ? q->signs[i] * (scale * block_entry(q, i, first + l)) : 0;
    plain_transform(q, x, x + order * LANES);
    double worst = 0;
    for (size_t i = 0; i < order; i++)
        for (size_t l = 0; l < LANES && first + l < order; l++) {
            const double d = fabs(x[i * LANES + l] * scale - (i == first + l ? 1.0 : 0.0));
            if (d > worst) worst = d;
        }
    job->worst[item] = worst;
    rq_aligned_free(x);
}

double rq_rotation_orthogonality_error(const rq_rotation *q) {
    if (q->kind == RQ_ROTATION_IDENTITY) return 0;
    if (q->kind == RQ_ROTATION_DENSE) return rq_dense_orthogonality_error(q->dense, q->n);
    const size_t items = (q->order + LANES - 1) / LANES;
    check_job job = {q, malloc(items * sizeof(double))};
    if (!job.worst) return -1;
    rq_parallel_for(q->order < 256 ? 1 : rq_cpu_count(), items, check_columns, &job);
    double worst = 0;
    bool failed = false;
    for (size_t i = 0; i < items; i++) {
        if (job.worst[i] < 0) failed = true;
        if (job.worst[i] > worst) worst = job.worst[i];
    }
    free(job.worst);
    return failed ? -1 : worst;
}
