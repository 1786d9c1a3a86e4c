#include "rotq/rotation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

static double *dense_of(const rq_rotation *q) {
    double *d = malloc(q->n * q->n * sizeof *d);
    assert_non_null(d);
    rq_rotation_to_dense(q, d);
    return d;
}

static double naive_error(const double *d, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t r = 0; r < n; r++) sum += d[r * n + i] * d[r * n + j];
            worst = fmax(worst, fabs(sum - (i == j)));
        }
    return worst;
}

static void hadamard_matrices_equal_the_reference_program(void **state) {
    (void)state;
    /* Digest of the signs of diag(s) (H_K (x) S), rows of '+' and '-' ended by newlines, from the reference program. */
    static const struct {
        size_t n;
        uint64_t seed;
        uint32_t stream;
        const char *sha256;
    } known[] = {
        {24, 7, 0, "c63d46b6e50cf05812abe747125d88ac0c0ca595ad02612bb926c7418120ae54"},
        {576, 42, 0, "4e964e8977da8aed9a72c7708797ad5a41eea2de64c27adcc7138b6e310e3aac"},
        {64, 42, 3, "22b0a4d44e12c00ef00559b5a67f430f38361a48f9ec369767e9c70bba706a67"},
    };
    for (size_t k = 0; k < RQ_COUNT_OF(known); k++) {
        const size_t n = known[k].n;
        rq_rotation q;
        assert_int_equal(rq_rotation_hadamard(n, known[k].seed, known[k].stream, &q, NULL), RQ_OK);
        double *d = dense_of(&q);
        char *text = malloc(n * (n + 1)), *p = text, hex[65];
        assert_non_null(text);
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < n; j++) {
                assert_true(fabs(d[i * n + j]) == 1.0 / sqrt((double)n));
                *p++ = d[i * n + j] > 0 ? '+' : '-';
            }
            *p++ = '\n';
        }
        rq_sha256_hex(text, n * (n + 1), hex);
        assert_string_equal(hex, known[k].sha256);
        free(text);
        free(d);
        rq_rotation_deinit(&q);
    }
}

static void every_kind_is_orthogonal_and_the_fast_check_agrees_with_the_slow_one(void **state) {
    (void)state;
    static const size_t orders[] = {1, 2, 4, 12, 20, 28, 36, 40, 44, 52, 60, 64, 156, 344, 360};
    for (size_t i = 0; i < RQ_COUNT_OF(orders); i++) {
        rq_rotation q;
        assert_int_equal(rq_rotation_hadamard(orders[i], 3, 1, &q, NULL), RQ_OK);
        assert_int_equal(q.K << q.m, orders[i]);
        double *d = dense_of(&q);
        assert_true(naive_error(d, q.n) < 1e-12);
        const double fast = rq_rotation_orthogonality_error(&q);
        assert_true(fast >= 0 && fast < 1e-12);
        free(d);
        rq_rotation_deinit(&q);
    }
    rq_rotation identity;
    assert_int_equal(rq_rotation_identity(5, &identity, NULL), RQ_OK);
    assert_true(rq_rotation_orthogonality_error(&identity) == 0);
    double *d = dense_of(&identity);
    assert_true(naive_error(d, 5) == 0);
    free(d);
    rq_rotation_deinit(&identity);
}

static void the_fast_check_sees_a_wrong_sign_in_hk(void **state) {
    (void)state;
    rq_rotation q;
    assert_int_equal(rq_rotation_hadamard(96, 3, 1, &q, NULL), RQ_OK);
    q.hk[5 * q.K + 7] = (int8_t)-q.hk[5 * q.K + 7];
    double *d = dense_of(&q);
    const double slow = naive_error(d, 96), fast = rq_rotation_orthogonality_error(&q);
    assert_true(slow > 0.1);
    assert_true(fabs(slow - fast) < 1e-12);
    free(d);
    rq_rotation_deinit(&q);
}

static void the_fast_check_sees_a_sign_that_is_not_one(void **state) {
    (void)state;
    rq_rotation q;
    assert_int_equal(rq_rotation_hadamard(40, 3, 1, &q, NULL), RQ_OK);
    q.signs[11] = 0.5;
    double *d = dense_of(&q);
    const double slow = naive_error(d, 40), fast = rq_rotation_orthogonality_error(&q);
    assert_true(slow > 0.01);
    assert_true(fabs(slow - fast) < 1e-12);
    free(d);
    rq_rotation_deinit(&q);
}

static void a_block_rotation_repeats_one_signed_block_on_the_diagonal(void **state) {
    (void)state;
    rq_rotation q, one;
    assert_int_equal(rq_rotation_block_hadamard(96, 32, 9, 0, &q, NULL), RQ_OK);
    assert_int_equal(rq_rotation_hadamard(32, 9, 0, &one, NULL), RQ_OK);
    assert_int_equal(q.order, 32);
    double *d = dense_of(&q), *block = dense_of(&one);
    for (size_t i = 0; i < 96; i++)
        for (size_t j = 0; j < 96; j++)
            assert_true(d[i * 96 + j] == (i / 32 == j / 32 ? block[i % 32 * 32 + j % 32] : 0));
    assert_true(rq_rotation_orthogonality_error(&q) < 1e-14);
    free(d);
    free(block);
    rq_rotation_deinit(&q);
    rq_rotation_deinit(&one);
}

static void an_order_without_hadamard_form_names_the_alternatives(void **state) {
    (void)state;
    rq_rotation q = {0};
    rq_error err;
    assert_int_equal(rq_rotation_hadamard(92, 0, 0, &q, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "92"));
    assert_non_null(strstr(err.message, "`--rotation random`"));
    assert_null(strstr(err.message, "block"));
    assert_int_equal(rq_rotation_hadamard(5888, 0, 0, &q, &err), RQ_ERR_UNSUPPORTED); /* 23 * 256 */
    assert_non_null(strstr(err.message, "`--rotation random`"));
    assert_non_null(strstr(err.message, "`--rotation block:256`"));
    assert_int_equal(rq_rotation_block_hadamard(92, 46, 0, 0, &q, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "46"));
    assert_int_equal(rq_rotation_block_hadamard(92, 8, 0, 0, &q, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "does not divide"));
    assert_int_equal(rq_rotation_block_hadamard(92, 0, 0, 0, &q, &err), RQ_ERR_UNSUPPORTED);
    assert_null(q.hk);
    assert_null(q.signs);
}

static void sizes_out_of_bounds_are_refused_before_memory_is_asked_for(void **state) {
    (void)state;
    rq_rotation q = {0};
    assert_int_equal(rq_rotation_hadamard(0, 0, 0, &q, NULL), RQ_ERR_SHAPE);
    assert_int_equal(rq_rotation_random(0, 0, 0, &q, NULL), RQ_ERR_SHAPE);
    assert_int_equal(rq_rotation_hadamard((size_t)1 << 21, 0, 0, &q, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_block_hadamard(SIZE_MAX - 31, 32, 0, 0, &q, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_random(SIZE_MAX, 0, 0, &q, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_random(16385, 0, 0, &q, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_identity((size_t)1 << 40, &q, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_dense(16385, (const double[]){1}, &q, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(q.n, 0);
}

static void a_dense_rotation_is_copied_and_must_be_orthogonal(void **state) {
    (void)state;
    double m[] = {0.6, 0.8, -0.8, 0.6};
    rq_rotation q;
    rq_error err;
    assert_int_equal(rq_rotation_dense(2, m, &q, NULL), RQ_OK);
    double *d = dense_of(&q);
    assert_memory_equal(d, m, sizeof m);
    free(d);
    m[0] = 5; /* ours alone */
    assert_true(q.dense[0] == 0.6);
    assert_true(rq_rotation_orthogonality_error(&q) < 1e-15);
    rq_rotation_deinit(&q);
    rq_rotation_deinit(&q); /* again: harmless */

    m[0] = 0.6 + 1e-4;
    assert_int_equal(rq_rotation_dense(2, m, &q, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "orthogonal"));
    m[0] = 0.6 + 1e-6;
    assert_int_equal(rq_rotation_dense(2, m, &q, &err), RQ_OK);
    rq_rotation_deinit(&q);
    m[0] = NAN;
    assert_int_equal(rq_rotation_dense(2, m, &q, &err), RQ_ERR_SHAPE);
    m[0] = INFINITY;
    assert_int_equal(rq_rotation_dense(2, m, &q, &err), RQ_ERR_SHAPE);
}

static void a_random_rotation_is_dense_and_named_by_seed_and_stream(void **state) {
    (void)state;
    rq_rotation a, b;
    assert_int_equal(rq_rotation_random(23, 5, 2, &a, NULL), RQ_OK);
    assert_int_equal(rq_rotation_random(23, 5, 2, &b, NULL), RQ_OK);
    assert_int_equal(a.kind, RQ_ROTATION_DENSE);
    assert_int_equal(a.seed, 5);
    assert_int_equal(a.stream, 2);
    assert_memory_equal(a.dense, b.dense, 23 * 23 * sizeof(double));
    assert_true(rq_rotation_orthogonality_error(&a) < 1e-12);
    rq_rotation_deinit(&a);
    rq_rotation_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hadamard_matrices_equal_the_reference_program),
        cmocka_unit_test(every_kind_is_orthogonal_and_the_fast_check_agrees_with_the_slow_one),
        cmocka_unit_test(the_fast_check_sees_a_wrong_sign_in_hk),
        cmocka_unit_test(the_fast_check_sees_a_sign_that_is_not_one),
        cmocka_unit_test(a_block_rotation_repeats_one_signed_block_on_the_diagonal),
        cmocka_unit_test(an_order_without_hadamard_form_names_the_alternatives),
        cmocka_unit_test(sizes_out_of_bounds_are_refused_before_memory_is_asked_for),
        cmocka_unit_test(a_dense_rotation_is_copied_and_must_be_orthogonal),
        cmocka_unit_test(a_random_rotation_is_dense_and_named_by_seed_and_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
