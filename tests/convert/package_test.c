#include "model/toy.h"

#include <sys/stat.h>
#include <unistd.h>

#include "convert/package.h"
#include "model/config.h"

typedef struct pair {
    char in[64], out[64];
} pair;

static pair make_directories(void) {
    pair p = {"/tmp/rotq_package_in_XXXXXX", "/tmp/rotq_package_out_XXXXXX"};
    assert_non_null(mkdtemp(p.in));
    assert_non_null(mkdtemp(p.out));
    return p;
}

static void remove_directories(const pair *p) {
    assert_int_equal(rq_remove_tree(p->in, NULL), RQ_OK);
    assert_int_equal(rq_remove_tree(p->out, NULL), RQ_OK);
}

static void put(const char *directory, const char *name, const char *text) {
    char *path = rq_path_join(directory, name);
    assert_int_equal(rq_write_file(path, text, strlen(text), NULL), RQ_OK);
    free(path);
}

/* The file's text, owned; NULL when it does not exist. */
static char *get(const char *directory, const char *name) {
    char *path = rq_path_join(directory, name), *data = NULL;
    size_t bytes = 0;
    if (rq_path_exists(path)) assert_int_equal(rq_read_file(path, 1 << 20, &data, &bytes, NULL), RQ_OK);
    free(path);
    return data;
}

static rq_rotation_set rotations_of(const toy *t) {
    rq_rotation_set set = {0};
    assert_int_equal(rq_rotation_set_make(&t->plan.options.rotation, 128, t->plan.head_dim_r2, 2, &set, NULL), RQ_OK);
    return set;
}

static void side_files_travel_and_nothing_else(void **state) {
    (void)state;
    static const char *const carried[] = {"tokenizer.json",
                                          "tokenizer_config.json",
                                          "special_tokens_map.json",
                                          "added_tokens.json",
                                          "vocab.json",
                                          "merges.txt",
                                          "tokenizer.model",
                                          "x.tiktoken",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "generation_config.json",
                                          "preprocessor_config.json",
                                          "modeling_x.py",
                                          "processor_config.json",
                                          "LICENSE",
                                          "video_preprocessor_config.json",
                                          "tekken.json",
                                          "tokenizer.model.v3",
                                          "sentencepiece.bpe.model",
                                          "spiece.model",
                                          "vocab.txt"};
    static const char *const left[] = {"README.md.bak",
                                       "model.safetensors",
                                       "model.safetensors.index.json",
                                       "hf_quant_config.json",
                                       "pytorch_model.bin",
                                       "rotation.json",
                                       "notes.txt"};
    const pair p = make_directories();
    toy t = toy_make("llama", 2, true, false);
    assert_plans(&t);
    rq_rotation_set set = rotations_of(&t);
    for (size_t i = 0; i < sizeof carried / sizeof *carried; i++) put(p.in, carried[i], carried[i]);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) put(p.in, left[i], left[i]);
    put(p.in, "README.md", "the source's");
    put(p.in, "config.json", "{}");
    const rq_package_facts facts = {&t.plan, &set, RQ_FOLD_F64, "abc", NULL};
    assert_int_equal(rq_package_write(&facts, t.config, p.in, p.out, &t.err), RQ_OK);
    for (size_t i = 0; i < sizeof carried / sizeof *carried; i++) {
        char *text = get(p.out, carried[i]);
        assert_non_null(text);
        assert_string_equal(text, carried[i]);
        free(text);
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) assert_null(get(p.out, left[i]));
    char *card = get(p.out, "README.md"), *config = get(p.out, "config.json");
    assert_contains(card, "library_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n");
    assert_contains(config, "\"rms_norm_eps\": 1e-05,");
    assert_contains(config, "\"tie_word_embeddings\": false,");
    free(card);
    free(config);
    rq_rotation_set_deinit(&set);
    toy_free(&t);
    remove_directories(&p);
}

/* Packages a plain copy of p->in into p->out. */
static rq_status package_plain(const pair *p, rq_error *err) {
    toy t = toy_make("llama", 2, true, false);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    assert_plans(&t);
    const rq_package_facts facts = {&t.plan, NULL, RQ_FOLD_F64, "abc", NULL};
    const rq_status st = rq_package_write(&facts, t.config, p->in, p->out, err);
    toy_free(&t);
    return st;
}

static void make_in(const char *directory, const char *name) {
    char *path = rq_path_join(directory, name);
    assert_int_equal(mkdir(path, 0777), 0);
    free(path);
}

static void link_in(const char *directory, const char *name, const char *target) {
    char *path = rq_path_join(directory, name);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

static void chat_templates_travel_with_their_directory(void **state) {
    (void)state;
    const pair p = make_directories();
    make_in(p.in, "additional_chat_templates");
    put(p.in, "additional_chat_templates/rag.jinja", "rag");
    put(p.in, "additional_chat_templates/notes.txt", "notes");
    rq_error err;
    if (package_plain(&p, &err) != RQ_OK) fail_msg("%s", err.message);
    char *text = get(p.out, "additional_chat_templates/rag.jinja");
    assert_non_null(text);
    assert_string_equal(text, "rag");
    free(text);
    assert_null(get(p.out, "additional_chat_templates/notes.txt"));
    remove_directories(&p);
}

static void a_link_to_a_side_file_is_copied_as_the_file(void **state) {
    (void)state;
    const pair p = make_directories();
    put(p.in, "blob", "tokens");
    link_in(p.in, "tokenizer.json", "blob");
    assert_int_equal(package_plain(&p, NULL), RQ_OK);
    char *text = get(p.out, "tokenizer.json");
    assert_non_null(text);
    assert_string_equal(text, "tokens");
    free(text);
    remove_directories(&p);
}

static void a_side_file_that_cannot_be_copied_is_an_error_that_names_it(void **state) {
    (void)state;
    static const struct {
        const char *name, *target; /* NULL: a directory of that name */
        rq_status status;
    } cases[] = {{"tokenizer.json", "nowhere", RQ_ERR_MISSING},
                 {"modeling_x.py", "nowhere", RQ_ERR_MISSING},
                 {"vocab.txt", "vocab.txt", RQ_ERR_IO}, /* a loop */
                 {"additional_chat_templates", "nowhere", RQ_ERR_IO},
                 {"chat_template.jinja", NULL, RQ_ERR_IO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const pair p = make_directories();
        rq_error err = {0};
        if (cases[i].target)
            link_in(p.in, cases[i].name, cases[i].target);
        else
            make_in(p.in, cases[i].name);
        assert_int_equal(package_plain(&p, &err), cases[i].status);
        assert_contains(err.message, cases[i].name);
        remove_directories(&p);
    }
}

static void a_directory_of_licences_is_no_damaged_side_file(void **state) {
    (void)state;
    const pair p = make_directories();
    make_in(p.in, "LICENSES");
    make_in(p.in, "package.py");
    assert_int_equal(package_plain(&p, NULL), RQ_OK);
    assert_null(get(p.out, "LICENSES"));
    remove_directories(&p);
}

static void the_metadata_says_what_was_done(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, false, false);
    t.options.recipe = "tq-mixed";
    t.options.rotation.seed = 7;
    assert_plans(&t);
    rq_rotation_set set = rotations_of(&t);
    const rq_package_facts facts = {&t.plan, &set, RQ_FOLD_F64, "abc", "org/name"};
    char *text = rq_package_metadata(&facts), *again = rq_package_metadata(&facts);
    assert_string_equal(text, again);
    json_t *m = json_loads(text, 0, NULL);
    assert_non_null(m);
    assert_string_equal(json_string_value(json_object_get(m, "tool")), "rotq");
    assert_string_equal(json_string_value(json_object_get(m, "source_fingerprint")), "abc");
    assert_string_equal(json_string_value(json_object_get(m, "base_model")), "org/name");
    assert_string_equal(json_string_value(json_object_get(m, "recipe")), "tq-mixed");
    const json_t *transform = json_object_get(m, "transform");
    assert_string_equal(json_string_value(json_object_get(transform, "id")), "rotq-fold-1");
    assert_int_equal(json_integer_value(json_object_get(transform, "seed")), 7);
    assert_string_equal(json_string_value(json_object_get(json_object_get(transform, "R1"), "kind")),
                        "signed-hadamard");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(transform, "R2"), "n")), 32);
    assert_true(json_array_size(json_object_get(transform, "deviations")) >= 4);
    const json_t *layers = json_object_get(m, "per_layer");
    assert_int_equal(json_object_size(layers), 2 + 2 * 7);
    const json_t *up = json_object_get(layers, "model.layers.0.mlp.up_proj");
    assert_int_equal(json_integer_value(json_object_get(up, "bits")), 3);
    assert_int_equal(json_integer_value(json_object_get(up, "group_size")), 64);
    /* OptiQ's figure: linear layers and the head, no embedding, no scales */
    const double mlp = 2 * 3 * 256 * 128, rest = 2 * (2 * 128 * 128 + 2 * 64 * 128) + 320 * 128;
    assert_true(json_real_value(json_object_get(m, "achieved_bpw")) == (3 * mlp + 4 * rest) / (mlp + rest));
    const json_t *bpw = json_object_get(m, "bits_per_weight");
    assert_true(json_real_value(json_object_get(bpw, "mlx_lm")) == t.plan.bits_per_weight);
    free(text);
    free(again);
    json_decref(m);
    rq_rotation_set_deinit(&set);
    toy_free(&t);
}

static void dense_modules_have_16_bits_and_no_group_in_the_metadata(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    assert_plans(&t);
    const rq_package_facts facts = {&t.plan, NULL, RQ_FOLD_F64, "abc", NULL};
    char *text = rq_package_metadata(&facts);
    json_t *m = json_loads(text, 0, NULL);
    assert_true(json_is_null(json_object_get(m, "transform")));
    const json_t *head = json_object_get(json_object_get(m, "per_layer"), "lm_head");
    assert_int_equal(json_integer_value(json_object_get(head, "bits")), 16);
    assert_true(json_is_null(json_object_get(head, "group_size")));
    free(text);
    json_decref(m);
    toy_free(&t);
}

static void no_path_of_the_source_gets_into_the_package(void **state) {
    (void)state;
    static const struct {
        const char *name, *base;
    } cases[] = {{"HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"},
                 {"/home/me/model", NULL},
                 {"./model", NULL},
                 {"a/b/c", NULL},
                 {"model", NULL},
                 {"a/b: c", NULL},
                 {"a/", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = json_pack("{s:s}", "_name_or_path", cases[i].name);
        const char *base = rq_package_base_model(config);
        if (cases[i].base)
            assert_string_equal(base, cases[i].base);
        else
            assert_null(base);
        json_decref(config);
    }
}

/* field-failures B23 */
static void end_tokens_that_disagree_are_noted_and_the_files_stay(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation, *tokenizer;
        bool noted;
    } cases[] = {
        {"7", "{\"eos_token_id\":[7,9]}",
         "{\"eos_token\":\"</s>\",\"added_tokens_decoder\":{\"9\":{\"content\":\"</s>\"}}}", true},
        {"[9,7]", "{\"eos_token_id\":[7,9]}",
         "{\"eos_token\":{\"content\":\"</s>\"},\"added_tokens_decoder\":{\"9\":{\"content\":\"</s>\"}}}", false},
        {"7", "{\"eos_token_id\":7}",
         "{\"eos_token\":\"</s>\",\"added_tokens_decoder\":{\"9\":{\"content\":\"</s>\"}}}", true},
        {"7", "{}", "not json", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const pair p = make_directories();
        put(p.in, "generation_config.json", cases[i].generation);
        put(p.in, "tokenizer_config.json", cases[i].tokenizer);
        json_t *config = json_object();
        json_object_set_new(config, "eos_token_id", json_loads(cases[i].config, JSON_DECODE_ANY, NULL));
        rq_notes notes = {0};
        rq_note_eos(config, p.in, &notes);
        assert_int_equal(notes.count, cases[i].noted);
        if (cases[i].noted) assert_string_equal(notes.items[0].code, "eos-disagrees");
        if (i == 0) assert_contains(notes.items[0].text, "config.json names 7; generation_config.json names 7, 9;");
        rq_notes_deinit(&notes);
        json_decref(config);
        remove_directories(&p);
    }
}

static void a_missing_source_directory_is_an_error(void **state) {
    (void)state;
    const pair p = make_directories();
    toy t = toy_make("llama", 2, true, false);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    assert_plans(&t);
    const rq_package_facts facts = {&t.plan, NULL, RQ_FOLD_F64, "abc", NULL};
    assert_int_equal(rq_package_write(&facts, t.config, "/nonexistent/rotq", p.out, &t.err), RQ_ERR_IO);
    assert_int_equal(rq_package_write(&facts, t.config, p.in, "/nonexistent/rotq", &t.err), RQ_ERR_IO);
    toy_free(&t);
    remove_directories(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(side_files_travel_and_nothing_else),
        cmocka_unit_test(chat_templates_travel_with_their_directory),
        cmocka_unit_test(a_link_to_a_side_file_is_copied_as_the_file),
        cmocka_unit_test(a_side_file_that_cannot_be_copied_is_an_error_that_names_it),
        cmocka_unit_test(a_directory_of_licences_is_no_damaged_side_file),
        cmocka_unit_test(the_metadata_says_what_was_done),
        cmocka_unit_test(dense_modules_have_16_bits_and_no_group_in_the_metadata),
        cmocka_unit_test(no_path_of_the_source_gets_into_the_package),
        cmocka_unit_test(end_tokens_that_disagree_are_noted_and_the_files_stay),
        cmocka_unit_test(a_missing_source_directory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
