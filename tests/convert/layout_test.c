#include "convert/layout.h"
#include "model/toy.h"

/* Fails from the nth allocation of the JSON library on. */
static size_t allocations_left;

static void *scarce_malloc(size_t bytes) {
    if (!allocations_left) return NULL;
    allocations_left--;
    return malloc(bytes);
}

static void an_index_is_complete_or_there_is_no_memory_for_it(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.options.quantize = true;
    assert_plans(&t);
    rq_layout layout;
    if (rq_layout_make(&t.plan, 0, &layout, &t.err) != RQ_OK) fail_msg("%s", t.err.message);
    char *complete = NULL;
    assert_int_equal(rq_layout_index(&t.plan, &layout, &complete, NULL), RQ_OK);
    assert_contains(complete, "\"lm_head.biases\"");

    size_t failures = 0;
    for (size_t n = 0;; n++) {
        char *text = NULL;
        rq_error err = {0};
        json_set_alloc_funcs(scarce_malloc, free);
        allocations_left = n;
        const rq_status st = rq_layout_index(&t.plan, &layout, &text, &err);
        json_set_alloc_funcs(malloc, free);
        if (st == RQ_OK) {
            assert_string_equal(text, complete);
            free(text);
            break;
        }
        assert_int_equal(st, RQ_ERR_NOMEM);
        assert_null(text);
        failures++;
    }
    assert_true(failures > t.plan.count);
    free(complete);
    rq_layout_deinit(&layout);
    toy_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_index_is_complete_or_there_is_no_memory_for_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
