/* The few pieces of cmocka that the kernel tests use, for targets whose cmocka is not installed (tests/arm64.sh): the
 * first failure prints and exits. */
#ifndef BARE_CMOCKA_H
#define BARE_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f) \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) bare_run(tests, sizeof(tests) / sizeof *(tests))

static inline void bare_check(int good, const char *text, const char *file, int line) {
    if (good) return;
    printf("%s:%d: %s\n", file, line, text);
    exit(1);
}

static inline int bare_run(const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        tests[i].run(NULL);
        printf("[       OK ] %s\n", tests[i].name);
    }
    printf("[  PASSED  ] %zu test(s).\n", n);
    return 0;
}

#define assert_true(x) bare_check(!!(x), #x, __FILE__, __LINE__)
#define assert_false(x) bare_check(!(x), "not " #x, __FILE__, __LINE__)
#define assert_int_equal(a, b) bare_check((long long)(a) == (long long)(b), #a " == " #b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n) bare_check(memcmp(a, b, n) == 0, #a " equals " #b, __FILE__, __LINE__)

#endif
