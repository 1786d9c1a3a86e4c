#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "rotq/rotation.h"

static void the_three_published_answers_are_reproduced(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } answers[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < RQ_COUNT_OF(answers); i++) {
        uint32_t out[4];
        rq_philox4x32(answers[i].counter, answers[i].key, out);
        assert_memory_equal(out, answers[i].want, sizeof out);
    }
}

static void sign_text(uint64_t seed, uint32_t stream, size_t n, char *text) {
    static double signs[5120];
    rq_philox_signs(seed, stream, signs, n);
    for (size_t i = 0; i < n; i++) {
        assert_true(signs[i] == 1.0 || signs[i] == -1.0);
        text[i] = signs[i] > 0 ? '+' : '-';
    }
}

static void signs_of_seed_0_stream_0_are_the_reference_vector(void **state) {
    (void)state;
    static char text[5120];
    char hex[65];
    sign_text(0, 0, sizeof text, text);
    assert_memory_equal(text, "-+-+-+--+++-+---", 16);
    size_t minus = 0;
    for (size_t i = 0; i < sizeof text; i++) minus += text[i] == '-';
    assert_int_equal(minus, 2571);
    rq_sha256_hex(text, sizeof text, hex);
    assert_string_equal(hex, "239c23e1f196b7b1d2a7ff9d633ca99002c7ddb571e89bf284f4c7d26d320caa");
}

static void a_shorter_vector_is_a_prefix_of_a_longer_one(void **state) {
    (void)state;
    static const size_t lengths[] = {0, 1, 31, 32, 33, 127, 128, 129, 1000};
    static char all[1024], part[1024];
    sign_text(99, 7, sizeof all, all);
    for (size_t i = 0; i < RQ_COUNT_OF(lengths); i++) {
        sign_text(99, 7, lengths[i], part);
        assert_memory_equal(part, all, lengths[i]);
    }
}

static void both_halves_of_the_seed_and_the_stream_matter(void **state) {
    (void)state;
    char base[256], other[256];
    sign_text(5, 0, 256, base);
    sign_text(5, 1, 256, other);
    assert_memory_not_equal(base, other, 256);
    sign_text(6, 0, 256, other);
    assert_memory_not_equal(base, other, 256);
    sign_text(5 + ((uint64_t)1 << 32), 0, 256, other);
    assert_memory_not_equal(base, other, 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_published_answers_are_reproduced),
        cmocka_unit_test(signs_of_seed_0_stream_0_are_the_reference_vector),
        cmocka_unit_test(a_shorter_vector_is_a_prefix_of_a_longer_one),
        cmocka_unit_test(both_halves_of_the_seed_and_the_stream_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
