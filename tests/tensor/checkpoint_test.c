#include <jansson.h>
#include <stdio.h>

#include "fixture.h"
#include "tensor/shard_index.h"

/* Two shards and an index: a and n in the first, b in the second. */
static char *two_shards(const char *index) {
    char *dir = fx_dir();
    const fx_tensor first[] = {{"a", RQ_U8, 1, {4}, NULL, 1}, {"n", RQ_U8, 1, {4}, NULL, 1}};
    const fx_tensor second[] = {{"b", RQ_U8, 1, {4}, NULL, 2}};
    fx_text(dir, "config.json", "{\"model_type\": \"llama\"}");
    fx_safetensors(dir, "model-00001-of-00002.safetensors", first, 2);
    fx_safetensors(dir, "model-00002-of-00002.safetensors", second, 1);
    if (index) fx_text(dir, "model.safetensors.index.json", index);
    return dir;
}

#define MAP(a, b, n) \
    "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"b\":\"" b "\",\"a\":\"" a "\",\"n\":\"" n "\"}}"
#define S1 "model-00001-of-00002.safetensors"
#define S2 "model-00002-of-00002.safetensors"

static void expect_error(const char *dir, rq_status status, const char *says) {
    rq_checkpoint *ckpt = NULL;
    rq_notes notes = {0};
    rq_error err = {0};
    const rq_status st = rq_checkpoint_open(dir, &ckpt, &notes, &err);
    if (st != status) fail_msg("status %d, expected %d (%s)", st, status, err.message);
    fx_assert_in(err.message, says);
    assert_null(ckpt);
    rq_notes_deinit(&notes);
}

static rq_checkpoint *expect_open(const char *dir, rq_notes *notes) {
    rq_checkpoint *ckpt = NULL;
    rq_error err = {0};
    if (rq_checkpoint_open(dir, &ckpt, notes, &err) != RQ_OK) fail_msg("%s", err.message);
    return ckpt;
}

static unsigned char first_byte(const rq_checkpoint *ckpt, const char *name) {
    size_t i = 0;
    unsigned char byte = 0;
    rq_error err;
    assert_true(rq_checkpoint_find(ckpt, name, &i));
    assert_int_equal(
        rq_safetensors_read(rq_checkpoint_file(ckpt, i), rq_checkpoint_at(ckpt, i)->offset, &byte, 1, &err), RQ_OK);
    return byte;
}

static void an_indexed_directory_gives_every_tensor_once_sorted_by_name(void **state) {
    (void)state;
    char *dir = two_shards(MAP(S1, S2, S1));
    rq_notes notes = {0};
    size_t i = 0;
    rq_checkpoint *ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 3);
    assert_string_equal(rq_checkpoint_at(ckpt, 0)->name, "a");
    assert_string_equal(rq_checkpoint_at(ckpt, 1)->name, "b");
    assert_string_equal(rq_checkpoint_at(ckpt, 2)->name, "n");
    assert_int_equal(first_byte(ckpt, "b"), 2);
    assert_false(rq_checkpoint_find(ckpt, "c", &i));
    assert_string_equal(rq_checkpoint_directory(ckpt), dir);
    assert_string_equal(json_string_value(json_object_get(rq_checkpoint_config(ckpt), "model_type")), "llama");
    assert_int_equal(notes.count, 0);
    rq_checkpoint_close(ckpt);
    fx_done(dir);
}

static void a_missing_shard_is_named_with_the_number_of_tensors(void **state) {
    (void)state;
    char *dir = two_shards(MAP(S1, S2, S1));
    fx_unlink(dir, S1);
    expect_error(dir, RQ_ERR_MISSING,
                 S1 ": does not exist, though the index names it (missing in all: 1 of 2 files, 2 of 3");
    fx_done(dir);
}

static void a_tensor_missing_from_its_shard_is_named_with_the_file(void **state) {
    (void)state;
    char *dir = two_shards(MAP(S1, S2, S1));
    const fx_tensor only = {"a", RQ_U8, 1, {4}, NULL, 1};
    fx_safetensors(dir, S1, &only, 1);
    expect_error(dir, RQ_ERR_MISSING,
                 S1 ": lacks tensor \"n\", which the index puts there (tensors missing in all: 1)");
    fx_done(dir);

    dir = two_shards(MAP(S1, S2, S2)); /* it exists, but in the other file */
    expect_error(dir, RQ_ERR_MISSING, S2 ": lacks tensor \"n\"");
    fx_done(dir);
}

/* B02: the norm in both files, 1 in the one the index names, 5 in the other. */
static void duplicate_case(const char *with_one, const char *with_five) {
    char *dir = fx_dir();
    const fx_tensor first[] = {{"a", RQ_U8, 1, {4}, NULL, 0}, {"norm", RQ_U8, 1, {4}, NULL, 1}};
    const fx_tensor second[] = {{"norm", RQ_U8, 1, {4}, NULL, 5}, {"b", RQ_U8, 1, {4}, NULL, 0}};
    rq_notes notes = {0};
    char index[512];
    fx_text(dir, "config.json", "{}");
    fx_safetensors(dir, with_one, first, 2);
    fx_safetensors(dir, with_five, second, 2);
    snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\",\"norm\":\"%s\",\"b\":\"%s\"}}", with_one, with_one,
             with_five);
    fx_text(dir, "model.safetensors.index.json", index);
    rq_checkpoint *ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 3);
    assert_int_equal(first_byte(ckpt, "norm"), 1);
    assert_int_equal(notes.count, 1);
    assert_true(fx_noted(&notes, "duplicate-tensor", with_five));
    rq_checkpoint_close(ckpt);
    rq_notes_deinit(&notes);
    fx_done(dir);
}

static void of_a_tensor_in_two_shards_the_indexed_copy_wins_whatever_the_names(void **state) {
    (void)state;
    duplicate_case("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    duplicate_case("model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors");
    duplicate_case("zzz.safetensors", "aaa.safetensors");
}

static void a_stale_index_is_said_aloud(void **state) {
    (void)state;
    char *dir = two_shards("{\"metadata\":{\"total_size\":99.0},\"weight_map\":{\"a\":\"" S1 "\",\"b\":\"" S2 "\"}}");
    rq_notes notes = {0};
    rq_checkpoint *ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 3);
    assert_true(fx_noted(&notes, "unindexed-tensor", "\"n\""));
    assert_true(fx_noted(&notes, "index-size", "99"));
    assert_int_equal(notes.count, 2);
    rq_checkpoint_close(ckpt);
    rq_notes_deinit(&notes);
    fx_done(dir);

    dir = two_shards("{\"weight_map\":{\"a\":\"" S1 "\",\"n\":\"" S1 "\"}}");
    notes = (rq_notes){0};
    ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 2);
    assert_true(fx_noted(&notes, "stray-safetensors", S2));
    rq_checkpoint_close(ckpt);
    rq_notes_deinit(&notes);
    fx_done(dir);
}

static void an_unindexed_tensor_in_two_shards_is_refused(void **state) {
    (void)state;
    char *dir = two_shards("{\"weight_map\":{\"a\":\"" S1 "\",\"b\":\"" S2 "\"}}");
    const fx_tensor second[] = {{"b", RQ_U8, 1, {4}, NULL, 2}, {"n", RQ_U8, 1, {4}, NULL, 2}};
    fx_safetensors(dir, S2, second, 2);
    expect_error(dir, RQ_ERR_FORMAT, "\"n\" is in " S1 " and in " S2);
    fx_done(dir);
}

static void shard_names_that_leave_the_directory_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"../model.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "",
                                        "..\\\\x.safetensors",  "a\\u000ab"};
    for (size_t i = 0; i < RQ_COUNT_OF(names); i++) {
        char index[256];
        snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        char *dir = two_shards(index);
        expect_error(dir, RQ_ERR_FORMAT, "expected a plain file name");
        fx_done(dir);
    }
}

static void malformed_indexes_and_configs_are_refused_with_line_and_column(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *says;
    } cases[] = {
        {"model.safetensors.index.json", "{\n\"weight_map\": {\"a\": }}", "index.json: line 2, column"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"" S1 "\",\"a\":\"" S2 "\"}}", "duplicate"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}", "no file name for tensor \"a\""},
        {"model.safetensors.index.json", "{\"weight_map\":[]}", "weight_map"},
        {"model.safetensors.index.json", "{}", "weight_map"},
        {"model.safetensors.index.json", "", "line 1"},
        {"config.json", "{\n\n  \"a\": 1,\n}", "config.json: line 4, column"},
        {"config.json", "{\"a\": 1, \"a\": 2}", "duplicate"},
        {"config.json", "[]", "expected an object"},
        {"config.json", "", "line 1"},
        {"config.json", "{} {}", "line 1"},
    };
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++) {
        char *dir = two_shards(NULL);
        fx_text(dir, cases[i].file, cases[i].text);
        expect_error(dir, RQ_ERR_FORMAT, cases[i].says);
        fx_done(dir);
    }
}

static void a_config_of_absurd_size_is_refused(void **state) {
    (void)state;
    char *dir = two_shards(NULL), *path = fx_path(dir, "config.json");
    assert_int_equal(truncate(path, (off_t)17 << 20), 0);
    expect_error(dir, RQ_ERR_FORMAT, "more than the limit");
    free(path);
    fx_done(dir);
}

static void what_is_not_there_is_named(void **state) {
    (void)state;
    expect_error("/nonexistent-directory", RQ_ERR_MISSING, "/nonexistent-directory");
    char *dir = fx_dir();
    expect_error(dir, RQ_ERR_MISSING, "config.json");
    fx_text(dir, "config.json", "{}");
    expect_error(dir, RQ_ERR_MISSING, "no .safetensors file");
    fx_done(dir);
}

static void without_an_index_the_files_are_chosen_by_name(void **state) {
    (void)state;
    char *dir = fx_dir();
    const fx_tensor one = {"one", RQ_U8, 1, {4}, NULL, 1}, two = {"two", RQ_U8, 1, {4}, NULL, 2},
                    both = {"one", RQ_U8, 1, {4}, NULL, 3};
    rq_notes notes = {0};
    fx_text(dir, "config.json", "{}");
    fx_safetensors(dir, "consolidated.safetensors", &both, 1);
    fx_text(dir, ".hidden.safetensors", "junk");
    expect_error(dir, RQ_ERR_MISSING, "no .safetensors");

    fx_safetensors(dir, "weights.safetensors", &one, 1);
    rq_checkpoint *ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 1);
    assert_int_equal(first_byte(ckpt, "one"), 1);
    rq_checkpoint_close(ckpt);
    fx_safetensors(dir, "other.safetensors", &both, 1);
    expect_error(dir, RQ_ERR_FORMAT, "\"one\" is in other.safetensors and in weights.safetensors");

    fx_safetensors(dir, "model-b.safetensors", &two, 1); /* now only model*.safetensors counts */
    fx_safetensors(dir, "model-a.safetensors", &both, 1);
    ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 2);
    assert_int_equal(first_byte(ckpt, "one"), 3);
    rq_checkpoint_close(ckpt);
    assert_int_equal(notes.count, 0);

    fx_safetensors(dir, "model.safetensors", &one, 1); /* now only this one */
    ckpt = expect_open(dir, &notes);
    assert_int_equal(rq_checkpoint_count(ckpt), 1);
    assert_int_equal(first_byte(ckpt, "one"), 1);
    rq_checkpoint_close(ckpt);
    assert_true(fx_noted(&notes, "stray-safetensors", "model-a.safetensors"));
    rq_notes_deinit(&notes);
    fx_done(dir);
}

static void a_shard_set_with_a_gap_is_refused_without_an_index_too(void **state) {
    (void)state;
    char *dir = two_shards(NULL);
    rq_notes notes = {0};
    rq_checkpoint_close(expect_open(dir, &notes));
    fx_unlink(dir, S1);
    expect_error(dir, RQ_ERR_MISSING, S2 ": one of 2 shards by its name, but the directory holds 1");
    fx_done(dir);
}

static void fingerprint_of(const char *dir, char hex[65]) {
    rq_error err;
    rq_checkpoint *ckpt = expect_open(dir, NULL);
    assert_int_equal(rq_checkpoint_fingerprint(ckpt, hex, &err), RQ_OK);
    assert_int_equal(strlen(hex), 64);
    rq_checkpoint_close(ckpt);
}

static void the_fingerprint_sees_structure_and_config_but_not_files_or_values(void **state) {
    (void)state;
    char base[65], hex[65];
    char *dir = two_shards(NULL);
    const fx_tensor merged[] = {
        {"b", RQ_U8, 1, {4}, NULL, 9}, {"n", RQ_U8, 1, {4}, NULL, 9}, {"a", RQ_U8, 1, {4}, NULL, 9}};
    fx_tensor other[3];
    fingerprint_of(dir, base);
    fx_safetensors(dir, "model.safetensors", merged, 3);
    fingerprint_of(dir, hex);
    assert_string_equal(hex, base);
    for (int change = 0; change < 3; change++) {
        memcpy(other, merged, sizeof merged);
        if (change == 0) other[1].name = "m";
        if (change == 1) other[1].dtype = RQ_I8;
        if (change == 2) {
            other[1].rank = 2;
            other[1].shape[0] = other[1].shape[1] = 2;
        }
        fx_safetensors(dir, "model.safetensors", other, 3);
        fingerprint_of(dir, hex);
        assert_string_not_equal(hex, base);
    }
    fx_safetensors(dir, "model.safetensors", merged, 3);
    fx_text(dir, "config.json", "{\"model_type\":  \"llama\"}");
    fingerprint_of(dir, hex);
    assert_string_not_equal(hex, base);
    fx_done(dir);
}

static void the_index_parser_sorts_and_counts(void **state) {
    (void)state;
    rq_shard_index index;
    rq_error err;
    const char *text = "{\"weight_map\":{\"z\":\"y\",\"a\":\"x\",\"m\":\"y\"}}";
    assert_int_equal(rq_shard_index_parse("i", text, strlen(text), &index, &err), RQ_OK);
    assert_int_equal(index.count, 3);
    assert_int_equal(index.n_shards, 2);
    assert_string_equal(index.entries[0].tensor, "a");
    assert_string_equal(index.shards[index.entries[0].shard], "x");
    assert_string_equal(index.entries[2].tensor, "z");
    assert_string_equal(index.shards[index.entries[2].shard], "y");
    assert_false(index.has_total_size);
    rq_shard_index_deinit(&index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_indexed_directory_gives_every_tensor_once_sorted_by_name),
        cmocka_unit_test(a_missing_shard_is_named_with_the_number_of_tensors),
        cmocka_unit_test(a_tensor_missing_from_its_shard_is_named_with_the_file),
        cmocka_unit_test(of_a_tensor_in_two_shards_the_indexed_copy_wins_whatever_the_names),
        cmocka_unit_test(a_stale_index_is_said_aloud),
        cmocka_unit_test(an_unindexed_tensor_in_two_shards_is_refused),
        cmocka_unit_test(shard_names_that_leave_the_directory_are_refused),
        cmocka_unit_test(malformed_indexes_and_configs_are_refused_with_line_and_column),
        cmocka_unit_test(a_config_of_absurd_size_is_refused),
        cmocka_unit_test(what_is_not_there_is_named),
        cmocka_unit_test(without_an_index_the_files_are_chosen_by_name),
        cmocka_unit_test(a_shard_set_with_a_gap_is_refused_without_an_index_too),
        cmocka_unit_test(the_fingerprint_sees_structure_and_config_but_not_files_or_values),
        cmocka_unit_test(the_index_parser_sorts_and_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
