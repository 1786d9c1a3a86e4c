#include "linalg/random_orthogonal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/normal.h"

static double *make(size_t n, uint64_t seed, uint32_t stream) {
    double *q = malloc(n * n * sizeof *q);
    assert_non_null(q);
    assert_true(rq_random_orthogonal(n, seed, stream, q));
    return q;
}

/* max |Q^T Q - I| the slow way. */
static double naive_error(const double *q, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t r = 0; r < n; r++) sum += q[r * n + i] * q[r * n + j];
            worst = fmax(worst, fabs(sum - (i == j)));
        }
    return worst;
}

static void every_size_is_orthogonal_to_1e_12(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 40, 200, 544};
    for (size_t s = 0; s < RQ_COUNT_OF(sizes); s++) {
        double *q = make(sizes[s], 7, 0);
        const double slow = naive_error(q, sizes[s]), fast = rq_dense_orthogonality_error(q, sizes[s]);
        assert_true(slow < 1e-12);
        assert_true(fabs(slow - fast) < 1e-14);
        free(q);
    }
}

/* The direct construction must be the one of the definition: feed Gaussian columns whose reflected tails are the
 * generator's vectors, that is G = Q R, and check that R is upper triangular with a positive diagonal. Here R is
 * rebuilt from the same normals: column k of R below row k is zero by construction, so Q^T times H_0 ... H_{k-1} x_k
 * must be (anything above, positive at k, 0 below). */
static void the_matrix_is_the_q_of_its_gaussian_columns(void **state) {
    (void)state;
    enum { N = 23 };
    double *q = make(N, 11, 5);
    double w[N][N] = {{0}};
    rq_normals normals = rq_normals_start(11, 5);
    for (size_t k = 0; k < N; k++) {
        double x[N] = {0}, g[N] = {0};
        double norm = 0;
        for (size_t i = k; i < N; i++) {
            x[i] = rq_normals_next(&normals);
            norm += x[i] * x[i];
        }
        norm = sqrt(norm);
        memcpy(g, x, sizeof g);
        for (size_t p = k; p-- > 0;) { /* g = H_0 ... H_{k-1} x */
            double along = 0;
            for (size_t i = 0; i < N; i++) along += w[p][i] * g[i];
            for (size_t i = 0; i < N; i++) g[i] -= along * w[p][i];
        }
        for (size_t c = 0; c < N; c++) { /* column k of R = Q^T g */
            double r = 0;
            for (size_t i = 0; i < N; i++) r += q[i * N + c] * g[i];
            assert_true(fabs(r - (c == k ? norm : 0)) < 1e-12);
        }
        x[k] += x[k] < 0 ? -norm : norm;
        double square = 0;
        for (size_t i = k; i < N; i++) square += x[i] * x[i];
        for (size_t i = k; i < N && k + 1 < N; i++) w[k][i] = x[i] * sqrt(2 / square);
    }
    free(q);
}

static void entries_look_haar_distributed(void **state) {
    (void)state;
    /* Over 300 matrices of size 12: each entry has mean 0, variance 1/n, fourth moment 3 / (n (n + 2)), and the
     * determinant is +1 as often as -1. */
    enum { N = 12, COUNT = 300 };
    double sum[N * N] = {0}, square[N * N] = {0}, fourth = 0, trace = 0, trace_square = 0;
    for (uint64_t seed = 0; seed < COUNT; seed++) {
        double *q = make(N, seed, 0);
        double t = 0;
        for (size_t i = 0; i < N * N; i++) {
            sum[i] += q[i];
            square[i] += q[i] * q[i];
            fourth += q[i] * q[i] * q[i] * q[i];
        }
        for (size_t i = 0; i < N; i++) t += q[i * N + i];
        trace += t;
        trace_square += t * t;
        free(q);
    }
    const double standard_error = sqrt(1.0 / N / COUNT);
    for (size_t i = 0; i < N * N; i++) {
        assert_true(fabs(sum[i] / COUNT) < 4.5 * standard_error);
        assert_true(fabs(square[i] / COUNT - 1.0 / N) < 5 * sqrt(2.0 / COUNT) / N);
    }
    assert_true(fabs(fourth / COUNT / (N * N) - 3.0 / (N * (N + 2.0))) < 0.0006);
    /* The trace tells Haar from its look-alikes: without the sign correction its mean is far from 0. */
    assert_true(fabs(trace / COUNT) < 4.5 / sqrt(COUNT));
    assert_true(fabs(trace_square / COUNT - 1) < 5 * sqrt(2.0 / COUNT));
}

static void small_matrices_are_these_bytes_on_every_machine(void **state) {
    (void)state;
    static const struct {
        size_t n;
        const char *sha256;
    } golden[] = {{1, "e77817b649821c634355a917817c1224a360514b1244fe09e832bac4e8ea4440"},
                  {7, "1c481087c55325db4f7474235a15cb3afd429c3e2a9ae5f488d0ef79bac23121"},
                  {40, "af7485894d1648c3e7c3bc2ce6e3a40fa4a655fd61559b1c63a42c049333058a"},
                  {300, "d8d80ec7e97dd3173716cbfa78e42d94998f465b7d88060ac315e36e3b6caaae"}};
    for (size_t i = 0; i < RQ_COUNT_OF(golden); i++) {
        double *q = make(golden[i].n, 42, 0);
        char hex[65];
        rq_sha256_hex(q, golden[i].n * golden[i].n * sizeof *q, hex);
        assert_string_equal(hex, golden[i].sha256);
        free(q);
    }
}

static void seed_and_stream_select_the_matrix(void **state) {
    (void)state;
    double *a = make(9, 1, 0), *b = make(9, 1, 1), *c = make(9, 2, 0), *d = make(9, 1, 0);
    assert_memory_equal(a, d, 81 * sizeof *a);
    assert_memory_not_equal(a, b, 81 * sizeof *a);
    assert_memory_not_equal(a, c, 81 * sizeof *a);
    free(a);
    free(b);
    free(c);
    free(d);
}

static void the_error_of_a_spoiled_matrix_is_found_wherever_it_is(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 6, 33, 300};
    for (size_t s = 0; s < RQ_COUNT_OF(sizes); s++) {
        const size_t n = sizes[s];
        double *q = make(n, 3, 0);
        const size_t spots[] = {0, n * n - 1, n - 1, (n / 2) * n + n / 3};
        for (size_t k = 0; k < RQ_COUNT_OF(spots); k++) {
            const double old = q[spots[k]];
            q[spots[k]] = old + 1e-3;
            assert_true(fabs(rq_dense_orthogonality_error(q, n) - naive_error(q, n)) < 1e-14);
            assert_true(rq_dense_orthogonality_error(q, n) > 1e-6);
            q[spots[k]] = NAN;
            assert_true(isinf(rq_dense_orthogonality_error(q, n)));
            q[spots[k]] = old;
        }
        free(q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_orthogonal_to_1e_12),
        cmocka_unit_test(the_matrix_is_the_q_of_its_gaussian_columns),
        cmocka_unit_test(entries_look_haar_distributed),
        cmocka_unit_test(small_matrices_are_these_bytes_on_every_machine),
        cmocka_unit_test(seed_and_stream_select_the_matrix),
        cmocka_unit_test(the_error_of_a_spoiled_matrix_is_found_wherever_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
