#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "rotq/checkpoint.h"
#include "rotq/rotation.h"

typedef struct fixture {
    char directory[64], json[96], tensors[96];
} fixture;

static int make_directory(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    strcpy(f->directory, "/tmp/rotq-sidecar-XXXXXX");
    if (!mkdtemp(f->directory)) return -1;
    snprintf(f->json, sizeof f->json, "%s/rotation.json", f->directory);
    snprintf(f->tensors, sizeof f->tensors, "%s/rotation.safetensors", f->directory);
    *state = f;
    return 0;
}

static int remove_directory(void **state) {
    fixture *f = *state;
    const rq_status st = rq_remove_tree(f->directory, NULL);
    free(f);
    return st == RQ_OK ? 0 : -1;
}

static rq_rotation_set make_set(rq_rotation_spec spec, size_t hidden, size_t head_dim, size_t layers) {
    rq_rotation_set set = {0};
    rq_error err;
    if (rq_rotation_set_make(&spec, hidden, head_dim, layers, &set, &err) != RQ_OK) fail_msg("%s", err.message);
    return set;
}

static void assert_same_rotation(const rq_rotation *a, const rq_rotation *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->order, b->order);
    assert_int_equal(a->K, b->K);
    assert_int_equal(a->m, b->m);
    assert_int_equal(a->hk != NULL, b->hk != NULL);
    assert_int_equal(a->signs != NULL, b->signs != NULL);
    if (a->hk) assert_memory_equal(a->hk, b->hk, a->K * a->K);
    if (a->signs) {
        assert_memory_equal(a->signs, b->signs, a->n * sizeof *a->signs);
        assert_int_equal(a->seed, b->seed);
        assert_int_equal(a->stream, b->stream);
        assert_string_equal(a->construction, b->construction);
    }
    if (a->dense) assert_memory_equal(a->dense, b->dense, a->n * a->n * sizeof *a->dense);
}

static void read_all(const char *path, char **data, size_t *bytes) {
    assert_int_equal(rq_read_file(path, (size_t)1 << 24, data, bytes, NULL), RQ_OK);
}

static const struct {
    rq_rotation_spec spec;
    size_t hidden, head_dim, layers;
    bool has_tensors;
} cases[] = {
    {{.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD, .seed = 42}, 576, 64, 30, false},
    {{.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_NONE, .seed = 0}, 5120, 128, 2, false},
    {{.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_RANDOM, .seed = INT64_MAX}, 24, 6, 12, true},
    {{.r1 = RQ_SPEC_BLOCK, .block = 12, .r2 = RQ_R2_HADAMARD, .seed = 3}, 96, 80, 3, false},
    {{.r1 = RQ_SPEC_RANDOM, .r2 = RQ_R2_HADAMARD, .seed = 4}, 23, 16, 3, true},
    {{.r1 = RQ_SPEC_RANDOM, .r2 = RQ_R2_RANDOM, .seed = 5}, 7, 5, 11, true},
    {{.r1 = RQ_SPEC_NONE, .r2 = RQ_R2_HADAMARD, .seed = 6}, 10, 4, 2, false},
};

static void every_set_survives_write_and_read_and_writes_the_same_bytes_again(void **state) {
    const fixture *f = *state;
    for (size_t c = 0; c < RQ_COUNT_OF(cases); c++) {
        rq_rotation_set set = make_set(cases[c].spec, cases[c].hidden, cases[c].head_dim, cases[c].layers), back = {0};
        rq_error err;
        unlink(f->json);
        unlink(f->tensors);
        if (rq_rotation_set_write(&set, f->directory, &err) != RQ_OK) fail_msg("%s", err.message);
        assert_int_equal(rq_path_exists(f->tensors), cases[c].has_tensors);
        if (rq_rotation_set_read(f->json, &back, &err) != RQ_OK) fail_msg("%s", err.message);
        assert_int_equal(back.seed, set.seed);
        assert_same_rotation(&set.r1, &back.r1);
        assert_int_equal(back.r2 != NULL, set.r2 != NULL);
        if (set.r2) {
            assert_int_equal(back.n_layers, set.n_layers);
            for (size_t i = 0; i < set.n_layers; i++) assert_same_rotation(&set.r2[i], &back.r2[i]);
        }

        char *text = NULL, *again = NULL, *tensors = NULL, *tensors_again = NULL;
        size_t bytes, bytes_again, tensor_bytes = 0, tensor_bytes_again = 0;
        read_all(f->json, &text, &bytes);
        if (cases[c].has_tensors) read_all(f->tensors, &tensors, &tensor_bytes);
        assert_int_equal(rq_rotation_set_write(&back, f->directory, NULL), RQ_OK);
        read_all(f->json, &again, &bytes_again);
        assert_string_equal(text, again);
        if (cases[c].has_tensors) {
            read_all(f->tensors, &tensors_again, &tensor_bytes_again);
            assert_int_equal(tensor_bytes, tensor_bytes_again);
            assert_memory_equal(tensors, tensors_again, tensor_bytes);
        }
        free(text);
        free(again);
        free(tensors);
        free(tensors_again);
        rq_rotation_set_deinit(&set);
        rq_rotation_set_deinit(&back);
    }
}

static const char golden[] =
    "{\n"
    "  \"R1\": {\n"
    "    \"HK_sha256\": \"70e90eda8c1a3b54e825f1dfda40666a5de5f45a10dabcdda49ee5c9c2d687e5\",\n"
    "    \"K\": 12,\n"
    "    \"apply\": \"W@Q, Q = diag(s) (HK x S) / sqrt(n)\",\n"
    "    \"construction\": \"paley1\",\n"
    "    \"kind\": \"signed-hadamard\",\n"
    "    \"kronecker\": \"HK-outer\",\n"
    "    \"m\": 1,\n"
    "    \"n\": 24,\n"
    "    \"rng\": \"philox4x32-10\",\n"
    "    \"signs_sha256\": \"1725e82aeee3a9ffa43ea36bbd592bcd55a5a80812f291eab6489a5b1defa11b\",\n"
    "    \"stream\": 0\n"
    "  },\n"
    "  \"R2\": {\n"
    "    \"HK_sha256\": \"4e3cf60495dca6411d155372c42aa62f07a6f0c5792f016cff361dd7a3965b20\",\n"
    "    \"K\": 1,\n"
    "    \"apply\": \"W@Q, Q = diag(s) (HK x S) / sqrt(n)\",\n"
    "    \"construction\": \"sylvester\",\n"
    "    \"kind\": \"signed-hadamard\",\n"
    "    \"kronecker\": \"HK-outer\",\n"
    "    \"layers\": \"all\",\n"
    "    \"m\": 3,\n"
    "    \"n\": 8,\n"
    "    \"n_layers\": 2,\n"
    "    \"rng\": \"philox4x32-10\",\n"
    "    \"signs_sha256\": \"97df1515592a28898907290a85e30fba98cdccd7e3b59033b1ebf01de7c3d67f\",\n"
    "    \"stream\": \"1 + layer\"\n"
    "  },\n"
    "  \"deviations\": [\n"
    "    \"no embedding mean-centering\",\n"
    "    \"no R3\",\n"
    "    \"no R4 half-fold\"\n"
    "  ],\n"
    "  \"format\": \"rotq-rotation\",\n"
    "  \"generator\": \"rotq-hadamard-1\",\n"
    "  \"seed\": 42,\n"
    "  \"version\": 1\n"
    "}\n";

static const rq_rotation_spec golden_spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD, .seed = 42};

static void the_text_of_a_small_set_is_exactly_this(void **state) {
    (void)state;
    rq_rotation_set set = make_set(golden_spec, 24, 8, 2);
    char *text = NULL;
    assert_int_equal(rq_rotation_set_json(&set, &text, NULL), RQ_OK);
    assert_string_equal(text, golden);
    free(text);
    rq_rotation_set_deinit(&set);
}

/* golden with the first `find` replaced; owned. */
static char *edited(const char *find, const char *replacement) {
    const char *at = strstr(golden, find);
    if (!at) fail_msg("the text has no %s", find);
    char *text = rq_format("%.*s%s%s", (int)(at - golden), golden, replacement, at + strlen(find));
    assert_non_null(text);
    return text;
}

static rq_status parse(const char *text, rq_error *err) {
    rq_rotation_set set = {.seed = 77};
    const rq_status st = rq_rotation_set_parse(text, strlen(text), NULL, &set, err);
    if (st != RQ_OK) assert_int_equal(set.seed, 77); /* written only on success */
    if (st == RQ_OK) rq_rotation_set_deinit(&set);
    return st;
}

static void every_edited_word_is_refused_with_a_sentence_that_names_it(void **state) {
    (void)state;
    static const struct {
        const char *find, *replacement;
        rq_status status;
        const char *mention;
    } edits[] = {
        {"rotq-rotation", "rotq-rotations", RQ_ERR_UNSUPPORTED, "format"},
        {"\"version\": 1", "\"version\": 2", RQ_ERR_UNSUPPORTED, "version"},
        {"\"version\": 1", "\"version\": 1.0", RQ_ERR_FORMAT, "version"},
        {"rotq-hadamard-1", "rotq-hadamard-2", RQ_ERR_UNSUPPORTED, "generator"},
        {"\"seed\": 42", "\"seed\": 43", RQ_ERR_MISMATCH, "signs_sha256"},
        {"\"seed\": 42", "\"seed\": -1", RQ_ERR_FORMAT, "seed"},
        {"\"seed\": 42", "\"seed\": \"42\"", RQ_ERR_FORMAT, "seed"},
        {"\"seed\": 42", "\"seed\": 4.2e1", RQ_ERR_FORMAT, "seed"},
        {"\"seed\": 42", "\"seed\": 9223372036854775808", RQ_ERR_FORMAT, "too big"},
        {"\"seed\": 42", "\"seed\": 42, \"sed\": 1", RQ_ERR_UNSUPPORTED, "sed"},
        {"\"seed\": 42", "\"seed\": 42, \"seed\": 42", RQ_ERR_FORMAT, "duplicate"},
        {"\"seed\": 42,", "", RQ_ERR_FORMAT, "lacks \"seed\""},
        {"\"K\": 12", "\"K\": 24", RQ_ERR_UNSUPPORTED, "\"K\""},
        {"\"m\": 1", "\"m\": 2", RQ_ERR_UNSUPPORTED, "\"m\""},
        {"\"n\": 24", "\"n\": 48", RQ_ERR_UNSUPPORTED, "\"m\""},
        {"\"n\": 24", "\"n\": 0", RQ_ERR_FORMAT, "\"n\""},
        {"\"n\": 24", "\"n\": 92", RQ_ERR_UNSUPPORTED, "92"},
        {"\"n\": 24", "\"n\": 9223372036854775807", RQ_ERR_UNSUPPORTED, "limit"},
        {"\"n\": 24", "\"n\": null", RQ_ERR_FORMAT, "\"n\""},
        {"paley1", "paley2", RQ_ERR_UNSUPPORTED, "construction"},
        {"HK-outer", "HK-inner", RQ_ERR_UNSUPPORTED, "kronecker"},
        {"W@Q, Q = diag(s)", "W@Q', Q = diag(s)", RQ_ERR_UNSUPPORTED, "apply"},
        {"philox4x32-10", "philox4x32-7", RQ_ERR_UNSUPPORTED, "rng"},
        {"\"stream\": 0", "\"stream\": 1", RQ_ERR_UNSUPPORTED, "stream"},
        {"\"stream\": 0", "\"stream\": 0, \"block\": 12", RQ_ERR_UNSUPPORTED, "block"},
        {"signed-hadamard", "block-hadamard", RQ_ERR_FORMAT, "block"},
        {"signed-hadamard", "cayley", RQ_ERR_UNSUPPORTED, "cayley"},
        {"70e90eda", "70e90edb", RQ_ERR_MISMATCH, "HK_sha256"},
        {"\"signs_sha256\": \"", "\"signs_sha256\": \"0", RQ_ERR_MISMATCH, "signs_sha256"},
        {"\"n_layers\": 2", "\"n_layers\": 3", RQ_ERR_MISMATCH, "R2"},
        {"\"n_layers\": 2", "\"n_layers\": 0", RQ_ERR_FORMAT, "n_layers"},
        {"\"n_layers\": 2", "\"n_layers\": 99999999", RQ_ERR_UNSUPPORTED, "n_layers"},
        {"\"layers\": \"all\"", "\"layers\": \"some\"", RQ_ERR_UNSUPPORTED, "layers"},
        {"1 + layer", "2 + layer", RQ_ERR_UNSUPPORTED, "stream"},
        {"\"no R3\"", "3", RQ_ERR_FORMAT, "deviations"},
        {"\"R1\": {", "\"R1\": {\"x\": 0,", RQ_ERR_UNSUPPORTED, "\"x\""},
        {"\"R2\": {", "\"R2\": {\"kind\": 1,", RQ_ERR_FORMAT, "duplicate"},
        {"\"R2\": {", "\"R3\": {", RQ_ERR_UNSUPPORTED, "R3"},
        {"{", "[", RQ_ERR_FORMAT, "line"},
        {"}\n", "}}\n", RQ_ERR_FORMAT, "line"},
    };
    rq_error err;
    assert_int_equal(parse(golden, NULL), RQ_OK);
    for (size_t i = 0; i < RQ_COUNT_OF(edits); i++) {
        char *text = edited(edits[i].find, edits[i].replacement);
        const rq_status st = parse(text, &err);
        if (st != edits[i].status)
            fail_msg("edit %zu (%s): status %d, %s", i, edits[i].replacement, (int)st, err.message);
        if (!strstr(err.message, edits[i].mention)) fail_msg("edit %zu: \"%s\"", i, err.message);
        free(text);
    }
}

static void text_that_is_no_object_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",    " ", "null", "1", "\"x\"", "[]", "{}", "{\"format\": 1}", "{\"format\"",
                                        "\xff"};
    for (size_t i = 0; i < RQ_COUNT_OF(texts); i++) assert_int_equal(parse(texts[i], NULL), RQ_ERR_FORMAT);
    rq_rotation_set set;
    assert_int_equal(rq_rotation_set_parse(golden, sizeof golden, NULL, &set, NULL),
                     RQ_ERR_FORMAT); /* a NUL at the end */
    assert_int_equal(rq_rotation_set_read("/tmp/rotq-no-such-file.json", &set, NULL), RQ_ERR_MISSING);
}

static void every_cut_off_text_is_refused(void **state) {
    (void)state;
    rq_rotation_set set;
    for (size_t n = 0; n + 2 < sizeof golden; n++)
        assert_int_equal(rq_rotation_set_parse(golden, n, NULL, &set, NULL), RQ_ERR_FORMAT);
}

/* A small dense set on disk; *text is its JSON. */
static void write_dense(const fixture *f, char **text) {
    const rq_rotation_spec spec = {.r1 = RQ_SPEC_RANDOM, .r2 = RQ_R2_RANDOM, .seed = 8};
    rq_rotation_set set = make_set(spec, 6, 3, 2);
    size_t bytes;
    assert_int_equal(rq_rotation_set_write(&set, f->directory, NULL), RQ_OK);
    read_all(f->json, text, &bytes);
    rq_rotation_set_deinit(&set);
}

static void a_file_name_that_leaves_the_directory_is_refused(void **state) {
    const fixture *f = *state;
    static const char *const names[] = {"",
                                        ".",
                                        "..",
                                        "../rotation.safetensors",
                                        "/etc/passwd",
                                        "a/rotation.safetensors",
                                        "..\\\\rotation.safetensors",
                                        ".hidden.safetensors",
                                        "c:rotation.safetensors",
                                        "rotation\\n.safetensors",
                                        "rotation.json"};
    char *text = NULL;
    write_dense(f, &text);
    for (size_t i = 0; i < RQ_COUNT_OF(names); i++) {
        char *at = strstr(text, "rotation.safetensors");
        assert_non_null(at);
        char *bad = rq_format("%.*s%s%s", (int)(at - text), text, names[i], at + strlen("rotation.safetensors"));
        rq_rotation_set set;
        rq_error err;
        assert_int_equal(rq_rotation_set_parse(bad, strlen(bad), f->directory, &set, &err), RQ_ERR_FORMAT);
        assert_non_null(strstr(err.message, "plain name"));
        free(bad);
    }
    free(text);
}

static void dense_matrices_need_their_file_their_bytes_and_a_directory(void **state) {
    const fixture *f = *state;
    char *text = NULL;
    rq_rotation_set set = {0};
    rq_error err;
    write_dense(f, &text);
    assert_int_equal(rq_rotation_set_parse(text, strlen(text), NULL, &set, &err), RQ_ERR_MISSING);
    assert_int_equal(rq_rotation_set_parse(text, strlen(text), f->directory, &set, &err), RQ_OK);
    rq_rotation_set_deinit(&set);

    char *bytes = NULL;
    size_t count;
    read_all(f->tensors, &bytes, &count);
    bytes[count - 3] ^= 1;
    assert_int_equal(rq_write_file(f->tensors, bytes, count, NULL), RQ_OK);
    assert_int_equal(rq_rotation_set_read(f->json, &set, &err), RQ_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "SHA-256"));
    bytes[count - 3] ^= 1;
    assert_int_equal(rq_write_file(f->tensors, bytes, count - 8, NULL), RQ_OK);
    assert_int_not_equal(rq_rotation_set_read(f->json, &set, &err), RQ_OK);
    assert_int_equal(unlink(f->tensors), 0);
    assert_int_equal(rq_rotation_set_read(f->json, &set, &err), RQ_ERR_MISSING);
    free(bytes);
    free(text);
}

static void a_dense_size_that_the_file_does_not_have_is_refused(void **state) {
    const fixture *f = *state;
    char *text = NULL;
    rq_rotation_set set = {0};
    rq_error err;
    write_dense(f, &text);
    char *at = strstr(text, "\"n\": 6");
    assert_non_null(at);
    at[5] = '7';
    assert_int_equal(rq_rotation_set_parse(text, strlen(text), f->directory, &set, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "R1"));
    char *huge = rq_format("%.*s\"n\": 16384%s", (int)(at - text), text, at + 6);
    assert_int_equal(rq_rotation_set_parse(huge, strlen(huge), f->directory, &set, &err), RQ_ERR_SHAPE);
    free(huge);
    huge = rq_format("%.*s\"n\": 16385%s", (int)(at - text), text, at + 6);
    assert_int_equal(rq_rotation_set_parse(huge, strlen(huge), f->directory, &set, &err), RQ_ERR_UNSUPPORTED);
    free(huge);
    free(text);
}

static void a_dense_matrix_that_is_not_orthogonal_is_refused(void **state) {
    const fixture *f = *state;
    const rq_rotation_spec spec = {.r1 = RQ_SPEC_RANDOM, .r2 = RQ_R2_NONE, .seed = 8};
    rq_rotation_set set = make_set(spec, 6, 0, 0), back = {0};
    rq_error err;
    set.r1.dense[3] += 0.01;
    assert_int_equal(rq_rotation_set_write(&set, f->directory, NULL), RQ_OK);
    assert_int_equal(rq_rotation_set_read(f->json, &back, &err), RQ_ERR_SHAPE);
    assert_non_null(strstr(err.message, "orthogonal"));
    assert_non_null(strstr(err.message, "R1"));
    rq_rotation_set_deinit(&set);
}

static void a_set_that_the_file_cannot_describe_is_not_written(void **state) {
    const fixture *f = *state;
    rq_rotation_set set = make_set(golden_spec, 24, 8, 2);
    set.seed = (uint64_t)INT64_MAX + 1;
    assert_int_equal(rq_rotation_set_write(&set, f->directory, NULL), RQ_ERR_USAGE);
    set.seed = 43; /* the matrices were made with 42 */
    assert_int_equal(rq_rotation_set_write(&set, f->directory, NULL), RQ_ERR_UNSUPPORTED);
    set.seed = 42;
    set.r2[1].stream = 1;
    assert_int_equal(rq_rotation_set_write(&set, f->directory, NULL), RQ_ERR_UNSUPPORTED);
    set.r2[1].stream = 2;
    assert_int_equal(rq_rotation_set_write(&set, f->directory, NULL), RQ_OK);
    assert_int_equal(rq_rotation_set_write(&set, "/tmp/rotq-no-such-directory", NULL), RQ_ERR_IO);
    rq_rotation_set_deinit(&set);
}

static void an_export_holds_every_matrix_written_out(void **state) {
    const fixture *f = *state;
    const rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_RANDOM, .seed = 8};
    rq_rotation_set set = make_set(spec, 40, 5, 12);
    rq_error err;
    rq_safetensors *file = NULL;
    if (rq_rotation_set_export(&set, f->tensors, &err) != RQ_OK) fail_msg("%s", err.message);
    if (rq_safetensors_open(f->tensors, &file, &err) != RQ_OK) fail_msg("%s", err.message);
    assert_int_equal(rq_safetensors_count(file), 13);
    for (size_t i = 0; i < 13; i++) {
        const rq_rotation *q = i ? &set.r2[i - 1] : &set.r1;
        char name[16];
        double want[1600], got[1600];
        if (i)
            snprintf(name, sizeof name, "R2.%zu", i - 1);
        else
            snprintf(name, sizeof name, "R1");
        const rq_tensor_info *info = rq_safetensors_find(file, name);
        assert_non_null(info);
        assert_int_equal(info->dtype, RQ_F64);
        assert_int_equal(info->rank, 2);
        assert_int_equal(info->shape[0], q->n);
        assert_int_equal(info->shape[1], q->n);
        assert_int_equal(rq_safetensors_read(file, info->offset, got, info->bytes, NULL), RQ_OK);
        rq_rotation_to_dense(q, want);
        assert_memory_equal(got, want, info->bytes);
    }
    rq_safetensors_close(file);
    rq_rotation_set_deinit(&set);
}

int main(void) {
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(every_set_survives_write_and_read_and_writes_the_same_bytes_again),
        cmocka_unit_test(the_text_of_a_small_set_is_exactly_this),
        cmocka_unit_test(every_edited_word_is_refused_with_a_sentence_that_names_it),
        cmocka_unit_test(text_that_is_no_object_is_refused),
        cmocka_unit_test(every_cut_off_text_is_refused),
        IN_DIRECTORY(a_file_name_that_leaves_the_directory_is_refused),
        IN_DIRECTORY(dense_matrices_need_their_file_their_bytes_and_a_directory),
        IN_DIRECTORY(a_dense_size_that_the_file_does_not_have_is_refused),
        IN_DIRECTORY(a_dense_matrix_that_is_not_orthogonal_is_refused),
        IN_DIRECTORY(a_set_that_the_file_cannot_describe_is_not_written),
        IN_DIRECTORY(an_export_holds_every_matrix_written_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
