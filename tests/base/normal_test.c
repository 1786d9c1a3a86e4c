#include "base/normal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

static void the_logarithm_agrees_with_libm_within_two_units_in_the_last_place(void **state) {
    (void)state;
    double x = 0x1p-106, worst = 0;
    while (x < 4.0) {
        const double want = log(x), got = rq_exact_order_log(x);
        const double ulp = nextafter(fabs(want), INFINITY) - fabs(want);
        if (want != 0 && fabs(got - want) / ulp > worst) worst = fabs(got - want) / ulp;
        x *= 1.0003;
    }
    for (int k = 1; k < 60; k++) { /* next to 1, where a careless sum would cancel */
        const double y = 1.0 - ldexp(1.0, -k);
        const double want = log(y), ulp = nextafter(fabs(want), INFINITY) - fabs(want);
        if (want != 0 && fabs(rq_exact_order_log(y) - want) / ulp > worst)
            worst = fabs(rq_exact_order_log(y) - want) / ulp;
    }
    assert_true(worst <= 2.0);
    assert_true(rq_exact_order_log(1.0) == 0.0);
}

static void normals_have_the_moments_of_the_normal_distribution(void **state) {
    (void)state;
    rq_normals normals = rq_normals_start(12345, 3);
    enum { N = 400000 };
    double sum = 0, square = 0, fourth = 0;
    unsigned beyond_two = 0;
    for (int i = 0; i < N; i++) {
        const double x = rq_normals_next(&normals);
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
        beyond_two += fabs(x) > 2;
    }
    /* Standard errors at this N: 0.0016, 0.0022, 0.015 and 0.00033; the bounds are about four of them. */
    assert_true(fabs(sum / N) < 0.0065);
    assert_true(fabs(square / N - 1) < 0.009);
    assert_true(fabs(fourth / N - 3) < 0.065);
    assert_true(fabs(beyond_two / (double)N - 0.0455003) < 0.0014);
}

static void seed_and_stream_name_the_sequence(void **state) {
    (void)state;
    rq_normals a = rq_normals_start(1, 0), b = rq_normals_start(1, 0), c = rq_normals_start(1, 1),
               d = rq_normals_start((uint64_t)1 << 40 | 1, 0);
    unsigned same_c = 0, same_d = 0;
    for (int i = 0; i < 100; i++) {
        const double x = rq_normals_next(&a);
        assert_true(x == rq_normals_next(&b));
        same_c += x == rq_normals_next(&c);
        same_d += x == rq_normals_next(&d);
    }
    assert_int_equal(same_c, 0);
    assert_int_equal(same_d, 0);
}

static void the_first_thousand_normals_are_these_bytes_on_every_machine(void **state) {
    (void)state;
    rq_normals normals = rq_normals_start(42, 0);
    double x[1000];
    char hex[65];
    for (size_t i = 0; i < RQ_COUNT_OF(x); i++) x[i] = rq_normals_next(&normals);
    rq_sha256_hex(x, sizeof x, hex);
    assert_string_equal(hex, "7e4141a5817cac2469168a03e2347f5aef11cf417e889b524ff87ebefb28d201");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_logarithm_agrees_with_libm_within_two_units_in_the_last_place),
        cmocka_unit_test(normals_have_the_moments_of_the_normal_distribution),
        cmocka_unit_test(seed_and_stream_name_the_sequence),
        cmocka_unit_test(the_first_thousand_normals_are_these_bytes_on_every_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
