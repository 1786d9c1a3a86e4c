#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "rotq/rotation.h"

static void each_form_of_the_option_is_understood(void **state) {
    (void)state;
    rq_rotation_spec spec = {.seed = 9, .r2 = RQ_R2_RANDOM};
    rq_error err;
    assert_int_equal(rq_rotation_spec_parse("none", &spec, &err), RQ_OK);
    assert_int_equal(spec.r1, RQ_SPEC_NONE);
    assert_int_equal(rq_rotation_spec_parse("random", &spec, &err), RQ_OK);
    assert_int_equal(spec.r1, RQ_SPEC_RANDOM);
    assert_int_equal(rq_rotation_spec_parse("block:32", &spec, &err), RQ_OK);
    assert_int_equal(spec.r1, RQ_SPEC_BLOCK);
    assert_int_equal(spec.block, 32);
    assert_int_equal(rq_rotation_spec_parse("hadamard", &spec, &err), RQ_OK);
    assert_int_equal(spec.r1, RQ_SPEC_HADAMARD);
    static const char *const files[] = {"rotation.json", "./hadamard", "out/none"};
    for (size_t i = 0; i < RQ_COUNT_OF(files); i++) {
        assert_int_equal(rq_rotation_spec_parse(files[i], &spec, &err), RQ_OK);
        assert_int_equal(spec.r1, RQ_SPEC_FILE);
        assert_string_equal(spec.file, files[i]);
    }
    char directory[] = "rotq_spec_XXXXXX"; /* no '/': only the file system tells that it is one */
    assert_non_null(mkdtemp(directory));
    assert_int_equal(rq_rotation_spec_parse(directory, &spec, &err), RQ_OK);
    assert_int_equal(rmdir(directory), 0);
    assert_string_equal(spec.file, directory);
    assert_int_equal(rq_rotation_spec_parse(directory, &spec, &err), RQ_ERR_USAGE);
    assert_int_equal(spec.seed, 9); /* not the option's business */
    assert_int_equal(spec.r2, RQ_R2_RANDOM);
}

static void anything_else_is_a_usage_error_that_lists_the_forms(void **state) {
    (void)state;
    static const char *const bad[] = {"",         "Hadamard",  "block",    "block:",       "block:0",
                                      "block:-4", "block: 4",  "block:4x", "block:+4",     "block:99999999999999999999",
                                      "hadamrd",  "block:0x8", "json",     "block:2097152"};
    for (size_t i = 0; i < RQ_COUNT_OF(bad); i++) {
        rq_rotation_spec spec = {.r1 = RQ_SPEC_NONE};
        rq_error err;
        assert_int_equal(rq_rotation_spec_parse(bad[i], &spec, &err), RQ_ERR_USAGE);
        assert_int_equal(spec.r1, RQ_SPEC_NONE);
        assert_non_null(strstr(err.message, bad[i]));
    }
}

static void r1_has_stream_0_and_the_layers_follow(void **state) {
    (void)state;
    const rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD, .seed = 11};
    rq_rotation_set set;
    double signs[64];
    assert_int_equal(rq_rotation_set_make(&spec, 576, 64, 30, &set, NULL), RQ_OK);
    assert_int_equal(set.seed, 11);
    assert_int_equal(set.n_layers, 30);
    assert_int_equal(set.r1.stream, 0);
    assert_int_equal(set.r1.n, 576);
    for (size_t i = 0; i < 30; i++) {
        assert_int_equal(set.r2[i].stream, 1 + i);
        assert_int_equal(set.r2[i].n, 64);
        rq_philox_signs(11, (uint32_t)(1 + i), signs, 64);
        assert_memory_equal(set.r2[i].signs, signs, sizeof signs);
    }
    rq_rotation_set_deinit(&set);
    assert_null(set.r2);
}

static void r2_is_absent_without_rotation_or_head_space_or_wish(void **state) {
    (void)state;
    static const struct {
        rq_rotation_spec spec;
        size_t head_dim;
        rq_rotation_kind kind;
    } cases[] = {
        {{.r1 = RQ_SPEC_NONE, .r2 = RQ_R2_HADAMARD}, 8, RQ_ROTATION_IDENTITY},
        {{.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD}, 0, RQ_ROTATION_HADAMARD},
        {{.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_NONE}, 8, RQ_ROTATION_HADAMARD},
        {{.r1 = RQ_SPEC_RANDOM, .r2 = RQ_R2_NONE}, 8, RQ_ROTATION_DENSE},
        {{.r1 = RQ_SPEC_BLOCK, .block = 4, .r2 = RQ_R2_NONE}, 8, RQ_ROTATION_BLOCK_HADAMARD},
    };
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++) {
        rq_rotation_set set;
        assert_int_equal(rq_rotation_set_make(&cases[i].spec, 24, cases[i].head_dim, 2, &set, NULL), RQ_OK);
        assert_null(set.r2);
        assert_int_equal(set.r1.kind, cases[i].kind);
        rq_rotation_set_deinit(&set);
    }
}

static void sizes_without_a_form_name_the_option_that_helps(void **state) {
    (void)state;
    rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD};
    rq_rotation_set set = {.seed = 5};
    rq_error err;
    assert_int_equal(rq_rotation_set_make(&spec, 92, 8, 2, &set, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "--rotation random"));
    assert_int_equal(rq_rotation_set_make(&spec, 24, 92, 2, &set, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "--r2 random"));
    assert_non_null(strstr(err.message, "--r2 none"));
    assert_non_null(strstr(err.message, "92"));
    spec.r1 = RQ_SPEC_BLOCK;
    spec.block = 32;
    assert_int_equal(rq_rotation_set_make(&spec, 48, 8, 2, &set, &err), RQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "32"));
    spec.block = 6;
    assert_int_equal(rq_rotation_set_make(&spec, 48, 8, 2, &set, &err), RQ_ERR_UNSUPPORTED);
    assert_int_equal(set.seed, 5); /* written only on success */
    spec.r2 = RQ_R2_RANDOM;
    spec.r1 = RQ_SPEC_RANDOM;
    assert_int_equal(rq_rotation_set_make(&spec, 46, 23, 2, &set, &err), RQ_OK); /* any size */
    assert_int_equal(set.r2[1].kind, RQ_ROTATION_DENSE);
    rq_rotation_set_deinit(&set);
}

static void a_seed_that_json_cannot_hold_is_refused(void **state) {
    (void)state;
    rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_NONE, .seed = (uint64_t)1 << 63};
    rq_rotation_set set;
    rq_error err;
    assert_int_equal(rq_rotation_set_make(&spec, 24, 0, 2, &set, &err), RQ_ERR_USAGE);
    assert_non_null(strstr(err.message, "9223372036854775808"));
    spec.seed--;
    assert_int_equal(rq_rotation_set_make(&spec, 24, 0, 2, &set, &err), RQ_OK);
    rq_rotation_set_deinit(&set);
}

static void more_layers_than_any_model_has_are_refused(void **state) {
    (void)state;
    const rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD};
    rq_rotation_set set;
    assert_int_equal(rq_rotation_set_make(&spec, 24, 64, 4097, &set, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_set_make(&spec, 24, 4096, 4096, &set, NULL), RQ_ERR_UNSUPPORTED);
    assert_int_equal(rq_rotation_set_make(&spec, 24, 2028, 200, &set, NULL), RQ_ERR_UNSUPPORTED); /* H_K per layer */
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8192, 2, &set, NULL), RQ_ERR_UNSUPPORTED);
}

static void a_sidecar_must_fit_the_model(void **state) {
    (void)state;
    char directory[] = "/tmp/rotq-set-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char *path = rq_path_join(directory, "rotation.json");
    rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD, .seed = 11};
    rq_rotation_set set;
    rq_error err;
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8, 3, &set, NULL), RQ_OK);
    assert_int_equal(rq_rotation_set_write(&set, directory, NULL), RQ_OK);
    rq_rotation_set_deinit(&set);

    spec = (rq_rotation_spec){.r1 = RQ_SPEC_FILE, .file = path, .r2 = RQ_R2_NONE, .seed = UINT64_MAX};
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8, 3, &set, &err), RQ_OK);
    assert_int_equal(set.seed, 11); /* seed and R2 are the file's */
    assert_non_null(set.r2);
    rq_rotation_set_deinit(&set);
    assert_int_equal(rq_rotation_set_make(&spec, 48, 8, 3, &set, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "hidden"));
    assert_int_equal(rq_rotation_set_make(&spec, 24, 16, 3, &set, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "head_dim"));
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8, 4, &set, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "layers"));
    assert_int_equal(rq_rotation_set_make(&spec, 24, 0, 3, &set, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "R2"));
    spec.file = "/tmp/rotq-no-such-file.json";
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8, 3, &set, &err), RQ_ERR_MISSING);

    spec = (rq_rotation_spec){.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_NONE, .seed = 11};
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8, 3, &set, NULL), RQ_OK);
    assert_int_equal(rq_rotation_set_write(&set, directory, NULL), RQ_OK);
    rq_rotation_set_deinit(&set);
    spec = (rq_rotation_spec){.r1 = RQ_SPEC_FILE, .file = path};
    assert_int_equal(rq_rotation_set_make(&spec, 24, 8, 3, &set, &err), RQ_OK); /* a file without R2 fits any head */
    assert_null(set.r2);
    rq_rotation_set_deinit(&set);
    free(path);
    assert_int_equal(rq_remove_tree(directory, NULL), RQ_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_of_the_option_is_understood),
        cmocka_unit_test(anything_else_is_a_usage_error_that_lists_the_forms),
        cmocka_unit_test(r1_has_stream_0_and_the_layers_follow),
        cmocka_unit_test(r2_is_absent_without_rotation_or_head_space_or_wish),
        cmocka_unit_test(sizes_without_a_form_name_the_option_that_helps),
        cmocka_unit_test(a_seed_that_json_cannot_hold_is_refused),
        cmocka_unit_test(more_layers_than_any_model_has_are_refused),
        cmocka_unit_test(a_sidecar_must_fit_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
