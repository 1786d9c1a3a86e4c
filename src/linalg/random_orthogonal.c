#include "linalg/random_orthogonal.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/normal.h"
#include "par/pool.h"

enum { STRIPES = 8, ROWS = 4 }; /* rows that share one pass over the reflectors */

static double combine(const double s[STRIPES]) {
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static double dot(const double *x, const double *y, size_t n) {
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    size_t j = 0;
    for (; j + STRIPES <= n; j += STRIPES) { /* spelled out: gcc 12 keeps an array of sums in memory */
        s0 += x[j] * y[j];
        s1 += x[j + 1] * y[j + 1];
        s2 += x[j + 2] * y[j + 2];
        s3 += x[j + 3] * y[j + 3];
        s4 += x[j + 4] * y[j + 4];
        s5 += x[j + 5] * y[j + 5];
        s6 += x[j + 6] * y[j + 6];
        s7 += x[j + 7] * y[j + 7];
    }
    double s[STRIPES] = {s0, s1, s2, s3, s4, s5, s6, s7};
    for (size_t k = 0; j + k < n; k++) s[k] += x[j + k] * y[j + k];
    return combine(s);
}

/* Reflectors packed: w_k [n - k], scaled so that H_k = I - w_k w_k^T, starts at reflector_offset(n, k). */
static size_t reflector_offset(size_t n, size_t k) { return k * n - k * (k - (k > 0)) / 2; }

/* Turns the Gaussian x [length] into a reflector with H x = -sign(x0) |x| e_0; returns sign of R's diagonal. */
static double make_reflector(double *x, size_t length) {
    const double norm = sqrt(dot(x, x, length));
    const double diagonal = x[0] < 0 ? 1.0 : -1.0;
    x[0] -= diagonal * norm; /* away from cancellation */
    const double scale = sqrt(2.0 / dot(x, x, length));
    for (size_t i = 0; i < length; i++) x[i] *= scale;
    return diagonal;
}

typedef struct build_job {
    size_t n, blocks;
    const double *reflectors;
    const double *diagonal; /* [n] */
    double *out;            /* Q^T */
} build_job;

/* Row i of Q^T = D H_{n-2} ... H_0 is d_i e_i^T H_i ... H_0, since a later reflector does not touch e_i. */
static void build_rows(void *context, size_t item) {
    const build_job *job = context;
    const size_t n = job->n;
    const size_t first = (job->blocks - 1 - item) * ROWS; /* the longest rows first */
    const size_t end = rq_min_size(first + ROWS, n);
    for (size_t i = first; i < end; i++) {
        memset(job->out + i * n, 0, n * sizeof(double));
        job->out[i * n + i] = job->diagonal[i];
    }
    for (size_t k = end; k-- > 0;) {
        if (k + 1 == n) continue; /* a vector of one element is its own column of R */
        const double *w = job->reflectors + reflector_offset(n, k);
        for (size_t i = k > first ? k : first; i < end; i++) {
            double *row = job->out + i * n + k;
            const double along = dot(row, w, n - k);
            for (size_t j = 0; j < n - k; j++) row[j] -= along * w[j];
        }
    }
}

static void transpose_in_place(double *a, size_t n) {
    const size_t tile = 32;
    for (size_t i0 = 0; i0 < n; i0 += tile)
        for (size_t j0 = 0; j0 <= i0; j0 += tile)
            for (size_t i = i0; i < rq_min_size(i0 + tile, n); i++)
                for (size_t j = j0; j < rq_min_size(j0 + tile, i); j++) {
                    const double t = a[i * n + j];
                    a[i * n + j] = a[j * n + i];
                    a[j * n + i] = t;
                }
}

bool rq_random_orthogonal(size_t n, uint64_t seed, uint32_t stream, double *out) {
    size_t doubles, bytes;
    if (n == 0) return true;
    if (!rq_mul_size(n, n + 1, &doubles) || !rq_mul_size(doubles / 2 + n, sizeof(double), &bytes)) return false;
    double *reflectors = rq_aligned_alloc(bytes);
    if (!reflectors) return false;
    double *diagonal = reflectors + doubles / 2;

    rq_normals normals = rq_normals_start(seed, stream);
    for (size_t k = 0; k < n; k++) {
        double *x = reflectors + reflector_offset(n, k);
        for (size_t i = 0; i < n - k; i++) x[i] = rq_normals_next(&normals);
        if (k + 1 < n)
            diagonal[k] = make_reflector(x, n - k);
        else
            diagonal[k] = x[0] < 0 ? -1.0 : 1.0;
    }
    build_job job = {n, (n + ROWS - 1) / ROWS, reflectors, diagonal, out};
    rq_parallel_for(n < 256 ? 1 : rq_cpu_count(), job.blocks, build_rows, &job);
    transpose_in_place(out, n);
    rq_aligned_free(reflectors);
    return true;
}

/* ---- Q^T Q ---- */

enum { WIDTH = 4, PANELS = 8 }; /* columns per packed panel; panels that stay in cache while the others pass by */

typedef struct gram_job {
    size_t n, panels;
    const double *packed; /* [panels][n][WIDTH], zero beyond column n */
    double *worst;        /* [panels of work]: one result each */
} gram_job;

static void gram_tile(const double *a, const double *b, size_t n, double c[WIDTH][WIDTH]) {
    memset(c, 0, WIDTH * sizeof c[0]);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < WIDTH; i++)
            for (size_t j = 0; j < WIDTH; j++) c[i][j] += a[r * WIDTH + i] * b[r * WIDTH + j];
}

static void gram_block(void *context, size_t item) {
    const gram_job *job = context;
    const size_t n = job->n, first = item * PANELS, end = rq_min_size(first + PANELS, job->panels);
    double worst = 0;
    for (size_t q = 0; q < end; q++)
        for (size_t p = q > first ? q : first; p < end; p++) {
            double c[WIDTH][WIDTH];
            gram_tile(job->packed + p * n * WIDTH, job->packed + q * n * WIDTH, n, c);
            for (size_t i = 0; i < WIDTH && p * WIDTH + i < n; i++)
                for (size_t j = 0; j < WIDTH && q * WIDTH + j < n; j++) {
                    const double d = fabs(c[i][j] - (p * WIDTH + i == q * WIDTH + j ? 1.0 : 0.0));
                    if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
                }
        }
    job->worst[item] = worst;
}

double rq_dense_orthogonality_error(const double *q, size_t n) {
    for (size_t i = 0; i < n * n; i++)
        if (!isfinite(q[i])) return INFINITY;
    const size_t panels = (n + WIDTH - 1) / WIDTH, items = (panels + PANELS - 1) / PANELS;
    double *packed = rq_aligned_alloc((panels * n * WIDTH + items) * sizeof(double));
    if (!packed) return -1;
    double *worst_of = packed + panels * n * WIDTH;
    for (size_t p = 0; p < panels; p++)
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < WIDTH; i++) {
                const size_t column = p * WIDTH + i;
                packed[(p * n + r) * WIDTH + i] = column < n ? q[r * n + column] : 0;
            }
    gram_job job = {n, panels, packed, worst_of};
    rq_parallel_for(n < 256 ? 1 : rq_cpu_count(), items, gram_block, &job);
    double worst = 0;
    for (size_t i = 0; i < items; i++)
        if (worst_of[i] > worst) worst = worst_of[i];
    rq_aligned_free(packed);
    return worst;
}
