#include "linalg/fwht_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "linalg/hadamard.h"

static const size_t orders[] = {1, 2, 4, 64, 12, 24, 576, 5120, 11008};

static void the_plan_holds_the_transposed_matrix(void **state) {
    (void)state;
    for (size_t o = 0; o < RQ_COUNT_OF(orders); o++) {
        rq_fwht f;
        rq_error err;
        assert_int_equal(rq_fwht_init(&f, orders[o], &err), RQ_OK);
        assert_int_equal(f.order, orders[o]);
        assert_int_equal(f.K * f.len, f.order);
        assert_true(f.scale == 1.0 / sqrt((double)orders[o]));
        int8_t *h = malloc(f.K * f.K);
        assert_non_null(h);
        assert_true(rq_hadamard_matrix(f.K, h));
        for (size_t i = 0; i < f.K; i++)
            for (size_t j = 0; j < f.K; j++) assert_int_equal(f.hk[i * f.K + j], h[j * f.K + i]);
        free(h);
        rq_fwht_deinit(&f);
        assert_null(f.hk);
        assert_null(f.quad);
    }
}

static void quad_codes_spell_the_signs_of_four_inputs(void **state) {
    (void)state;
    for (size_t o = 0; o < RQ_COUNT_OF(orders); o++) {
        rq_fwht f;
        rq_error err;
        assert_int_equal(rq_fwht_init(&f, orders[o], &err), RQ_OK);
        if (f.K == 1) assert_null(f.quad);
        for (size_t i = 0; f.K > 1 && i < f.K; i++)
            for (size_t q = 0; q < f.K / 4; q++) {
                const size_t t = i * (f.K / 4) + q;
                const uint8_t code = f.quad[t];
                assert_int_equal(f.term[t], q * 8 + (code & 7));
                assert_true(f.sign[t] == (code & 8 ? -1.0 : 1.0) && f.sign_f32[t] == (code & 8 ? -1.0f : 1.0f));
                const int first = code & 8 ? -1 : 1;
                assert_true(code < 16);
                assert_int_equal(f.hk[i * f.K + 4 * q], first);
                for (unsigned k = 1; k < 4; k++)
                    assert_int_equal(f.hk[i * f.K + 4 * q + k], code >> (k - 1) & 1 ? -first : first);
            }
        rq_fwht_deinit(&f);
    }
}

static void an_order_without_a_form_is_refused_and_leaves_nothing(void **state) {
    (void)state;
    rq_fwht f;
    rq_error err;
    assert_int_equal(rq_fwht_init(&f, 92, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "92"));
    assert_null(f.hk);
    rq_fwht_deinit(&f);
    rq_fwht_deinit(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_holds_the_transposed_matrix),
        cmocka_unit_test(quad_codes_spell_the_signs_of_four_inputs),
        cmocka_unit_test(an_order_without_a_form_is_refused_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
