#include "linalg/hadamard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

typedef struct known_matrix {
    size_t K;
    const char *construction;
    const char *sha256; /* of the canonical text, as the reference generator prints it */
} known_matrix;

static const known_matrix known[] = {
    {12, "paley1", "70e90eda8c1a3b54e825f1dfda40666a5de5f45a10dabcdda49ee5c9c2d687e5"},
    {20, "paley1", "825733c4a0184e9c215fd1188c764977ceff9c2bb300721658a87c019bee918c"},
    {28, "paley2", "eae281905a16e0934c79293e9760b0295abb13a1e9768e690e89b4bbd975af68"},
    {36, "paley2", "de51e6b00ed023360679a8e8eb4652c2a9045548b43c947baa644f328952a1dc"},
    {40, "doubling", "0431f27c9ed677629e08c3b9ca524bbb8a55bdaf78c76658f2e1b16c284a1e83"},
    {44, "paley1", "2f52b42a3970207af3a5656211070d708b81af6561d0904fe29a949b229adef7"},
    {52, "williamson", "5251ec32421b23773ed48407dd3a52484e09b5282ca4869c4d742efbc7cd046d"},
    {60, "paley1", "85cee9b45c8313027e89d362ec690e7f92f1b1da02457d3aee40c8bae1e53192"},
    {108, "paley1", "93f318bbd9fec6e99879d428696e63e7ca0f7a981e46608f3be4cc7c2e08d86e"},
    {140, "paley1", "27b4bb783d24d4261d0bb23d2198e81c79df59515499f3bfd59d34ec52aacefe"},
    {156, "williamson", "8c1af124a2b7cae7ddaf5f447ea93caf7b02d556e9e95fef21cb4a6b4d4ff0c5"},
    {172, "williamson", "f324b61580378e6a3ab47190494370cf698877f4110160f09cf250131e0810ed"},
    {24, "paley1", "da07e267a2b0129d794bba0bf3df9804d9c5e07fb7f1f2db2a37d5c9414cad05"},
    {56, "doubling", "b3ba9188a74cb3848629c6e505bea33a110c441be4116285e3be1a75d4d498d0"},
    {68, "paley1", "f566562a31adb39c8ebf3fb4446b38276df6f7672bb9331629f76faadae3fb60"},
    {84, "paley1", "feeb7bbcbfcea08c45c92ec2ab25ab9eabd8fe8a0d61a61eb01a8d4a65a2ce85"},
    {180, "paley1", "b4e01d3d841cdb44c5d549d73c604e8137f89f6ef22540b7d3c040f01169ae95"},
};

static void every_listed_matrix_has_the_reference_digest(void **state) {
    (void)state;
    for (size_t i = 0; i < RQ_COUNT_OF(known); i++) {
        const size_t K = known[i].K;
        int8_t *h = malloc(K * K);
        char hex[65];
        assert_non_null(h);
        assert_string_equal(rq_hadamard_construction(K), known[i].construction);
        assert_true(rq_hadamard_matrix(K, h));
        assert_true(rq_hadamard_sha256(h, K, hex));
        assert_string_equal(hex, known[i].sha256);
        free(h);
    }
}

static void assert_hadamard(const int8_t *h, size_t K) {
    for (size_t i = 0; i < K * K; i++) assert_true(h[i] == 1 || h[i] == -1);
    for (size_t a = 0; a < K; a++)
        for (size_t b = 0; b <= a; b++) {
            int dot = 0;
            for (size_t j = 0; j < K; j++) dot += h[a * K + j] * h[b * K + j];
            assert_int_equal(dot, a == b ? (int)K : 0);
        }
}

static void every_order_the_rules_reach_has_orthogonal_rows(void **state) {
    (void)state;
    unsigned count = 0;
    for (size_t K = 1; K <= 260; K++) {
        int8_t *h = malloc(K * K);
        assert_non_null(h);
        const bool has = rq_hadamard_construction(K) != NULL;
        assert_int_equal(rq_hadamard_matrix(K, h), has);
        if (has) {
            assert_hadamard(h, K);
            count++;
        }
        free(h);
    }
    assert_int_equal(count, 58); /* 1, 2 and all multiples of four but 92 100 116 184 188 232 236 244 260 */
    assert_null(rq_hadamard_construction(92));
}

static void the_largest_order_is_generated_within_the_bound(void **state) {
    (void)state;
    const size_t K = 500; /* 499 is prime; the bound on K is 512 */
    int8_t *h = malloc(K * K);
    assert_non_null(h);
    assert_true(rq_hadamard_matrix(K, h));
    for (size_t a = 0; a < K; a += 17)
        for (size_t b = 0; b < K; b++) {
            int dot = 0;
            for (size_t j = 0; j < K; j++) dot += h[a * K + j] * h[b * K + j];
            assert_int_equal(dot, a == b ? (int)K : 0);
        }
    free(h);
    assert_null(rq_hadamard_construction(516));
}

static void assert_split(size_t order, size_t want_K, unsigned want_m, const char *want_construction) {
    size_t K = 0;
    unsigned m = 0;
    const char *construction = NULL;
    assert_true(rq_hadamard_split(order, &K, &m, &construction));
    assert_int_equal(K, want_K);
    assert_int_equal(m, want_m);
    assert_string_equal(construction, want_construction);
}

static void model_dimensions_split_as_the_reference_says(void **state) {
    (void)state;
    assert_split(1, 1, 0, "sylvester");
    assert_split(2, 1, 1, "sylvester");
    assert_split(4, 1, 2, "sylvester");
    assert_split(128, 1, 7, "sylvester");
    assert_split(4096, 1, 12, "sylvester");
    assert_split(576, 36, 4, "paley2");
    assert_split(640, 20, 5, "paley1");
    assert_split(896, 28, 5, "paley2");
    assert_split(2880, 180, 4, "paley1");
    assert_split(5120, 20, 8, "paley1");
    assert_split(5376, 84, 6, "paley1");
    assert_split(11008, 172, 6, "williamson");
    assert_split(13824, 108, 7, "paley1");
    assert_split(17408, 68, 8, "paley1");
    assert_split(28672, 28, 10, "paley2");
}

static void orders_without_a_construction_are_refused(void **state) {
    (void)state;
    static const size_t orders[] = {0, 3, 6, 10, 18, 92, 184, 100, 116, 188, 236, 5888, SIZE_MAX, SIZE_MAX - 3};
    size_t K = 7;
    unsigned m = 7;
    const char *construction = "untouched";
    for (size_t i = 0; i < RQ_COUNT_OF(orders); i++) assert_false(rq_hadamard_split(orders[i], &K, &m, &construction));
    assert_int_equal(K, 7);
    assert_int_equal(m, 7);
    assert_string_equal(construction, "untouched");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_listed_matrix_has_the_reference_digest),
        cmocka_unit_test(every_order_the_rules_reach_has_orthogonal_rows),
        cmocka_unit_test(the_largest_order_is_generated_within_the_bound),
        cmocka_unit_test(model_dimensions_split_as_the_reference_says),
        cmocka_unit_test(orders_without_a_construction_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
