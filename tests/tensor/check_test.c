#include "fixture.h"

#define Q "{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"}"
#define HEAD "\"model_type\":\"llama\",\"hidden_size\":256,\"tie_word_embeddings\":false"
#define GOOD "{" HEAD ",\"quantization\":" Q ",\"quantization_config\":" Q "}"
#define WITH(extra)                                                                       \
    "{" HEAD ",\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"," extra \
    "},\"quantization_config\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"," extra "}}"

/* A small model: embedding and head packed, 4 bits in groups of 64, hidden size 256, a norm. The tests change one thing
 * at a time. */
enum { EMBED_W, EMBED_S, EMBED_B, HEAD_W, HEAD_S, HEAD_B, NORM, SPARE, MAX_TENSORS };

typedef struct model {
    fx_tensor tensors[MAX_TENSORS];
    size_t count;
    const char *config;
} model;

static model good_model(void) {
    return (model){{{"model.embed_tokens.weight", RQ_U32, 2, {10, 32}, NULL, 0},
                    {"model.embed_tokens.scales", RQ_BF16, 2, {10, 4}, NULL, 0},
                    {"model.embed_tokens.biases", RQ_BF16, 2, {10, 4}, NULL, 0},
                    {"lm_head.weight", RQ_U32, 2, {10, 32}, NULL, 0},
                    {"lm_head.scales", RQ_BF16, 2, {10, 4}, NULL, 0},
                    {"lm_head.biases", RQ_BF16, 2, {10, 4}, NULL, 0},
                    {"model.norm.weight", RQ_BF16, 1, {256}, NULL, 0}},
                   7,
                   GOOD};
}

static char *write_model(const model *m) {
    char *dir = fx_dir();
    fx_text(dir, "config.json", m->config);
    fx_safetensors(dir, "model.safetensors", m->tensors, m->count);
    return dir;
}

static void expect_in(const char *dir, const char *code, const char *text) {
    rq_notes notes = {0};
    rq_error err = {0};
    const rq_status st = rq_check_directory(dir, &notes, &err);
    if (!code && (st != RQ_OK || notes.count)) fail_msg("a good model has a finding: %s", err.message);
    if (code && st != RQ_ERR_MISMATCH) fail_msg("%s: status %d (%s)", code, st, err.message);
    if (code && !fx_noted(&notes, code, text)) fail_msg("no %s, but %s: %s", code, notes.items[0].code, err.message);
    if (code && notes.count != 1) fail_msg("%s: %zu findings, the second %s", code, notes.count, notes.items[1].code);
    rq_notes_deinit(&notes);
}

/* Exactly this finding; NULL: none. */
static void expect(const model *m, const char *code, const char *text) {
    char *dir = write_model(m);
    expect_in(dir, code, text);
    fx_done(dir);
}

static void a_good_model_has_no_findings(void **state) {
    (void)state;
    model m = good_model();
    expect(&m, NULL, NULL);
    m.config = "{" HEAD "}"; /* dense through and through */
    m.tensors[0] = (fx_tensor){"model.embed_tokens.weight", RQ_BF16, 2, {10, 256}, NULL, 0};
    m.tensors[1] = (fx_tensor){"lm_head.weight", RQ_BF16, 2, {10, 256}, NULL, 0};
    m.count = 2;
    expect(&m, NULL, NULL);
}

static void a_model_may_mix_formats_with_overrides(void **state) {
    (void)state;
    model m = good_model();
    m.tensors[HEAD_W].shape[1] = 64; /* 8 bits */
    m.config = WITH("\"lm_head\":{\"group_size\":64,\"bits\":8,\"mode\":\"affine\"}");
    expect(&m, NULL, NULL);
    m = good_model();
    m.tensors[HEAD_W] = (fx_tensor){"lm_head.weight", RQ_BF16, 2, {10, 256}, NULL, 0};
    m.tensors[HEAD_S] = m.tensors[NORM];
    m.count = 5;
    m.config = WITH("\"lm_head\":false");
    expect(&m, NULL, NULL);
    /* Not a multiple of the group: nothing would quantize it. */
    m.tensors[HEAD_W].shape[1] = 40;
    m.config = GOOD;
    expect(&m, NULL, NULL);
}

/* B22: four kinds of damage, four names. */
static void a_dense_weight_where_config_says_4_bits_is_found(void **state) {
    (void)state;
    model m = good_model();
    m.tensors[HEAD_W] = (fx_tensor){"lm_head.weight", RQ_BF16, 2, {10, 256}, NULL, 0};
    m.tensors[HEAD_S] = m.tensors[NORM];
    m.count = 5;
    expect(&m, "promised-but-dense", "\"lm_head\"");
    m.config = WITH("\"lm_head\":{\"group_size\":32,\"bits\":3,\"mode\":\"affine\"}");
    expect(&m, "promised-but-dense", "3 bits");
}

static void absent_scales_are_found(void **state) {
    (void)state;
    model m = good_model();
    m.tensors[HEAD_S] = m.tensors[NORM];
    m.count = 6; /* weight and biases stay */
    expect(&m, "missing-scales", "\"lm_head\"");
    m = good_model();
    m.tensors[HEAD_B] = m.tensors[NORM];
    m.count = 6;
    expect(&m, "missing-biases", "\"lm_head\"");
    m = good_model();
    m.tensors[EMBED_W] = m.tensors[NORM];
    m.count = 6;
    expect(&m, "missing-weight", "\"model.embed_tokens\"");
}

static void scales_with_a_column_too_few_are_found(void **state) {
    (void)state;
    model m = good_model();
    m.tensors[HEAD_S].shape[1] = 3;
    expect(&m, "scales-shape", "\"lm_head\"");
    m.tensors[HEAD_B].shape[1] = 3;
    expect(&m, "scales-shape", "\"lm_head\"");
    m.config = WITH("\"lm_head\":" Q);
    expect(&m, "scales-shape", "\"lm_head\"");
    m = good_model();
    m.tensors[HEAD_S].shape[0] = 9;
    expect(&m, "scales-shape", "\"lm_head\"");
    m = good_model();
    m.tensors[HEAD_S].dtype = RQ_F32;
    expect(&m, "scales-dtype", "\"lm_head\"");
}

static void packed_weights_without_any_config_entry_are_found(void **state) {
    (void)state;
    model m = good_model();
    m.config = "{" HEAD "}";
    expect(&m, "undeclared-quantized", "2 weights");
    m.config = "{\"model_type\":\"llama\",\"tie_word_embeddings\":false}"; /* nor anything that tells the format */
    expect(&m, "undeclared-quantized", "2 weights");
    m.config = WITH("\"lm_head\":false");
    expect(&m, "undeclared-quantized", "\"lm_head\"");
}

static void overrides_are_held_against_the_modules(void **state) {
    (void)state;
    model m = good_model();
    m.config = WITH("\"model.layers.7.mlp.up_proj\":" Q);
    expect(&m, "override-unknown-module", "model.layers.7.mlp.up_proj");
    m.config = WITH("\"lm_head.weight\":false"); /* with the suffix it names nothing */
    expect(&m, "override-unknown-module", "\"lm_head.weight\"");
    m.config = WITH("\"lm_head\":{\"group_size\":64,\"bits\":4,\"sym\":true}");
    expect(&m, "override-invalid", "\"sym\"");
    m = good_model();
    m.tensors[HEAD_W].shape[1] = 64; /* 8 bits, and nobody says so */
    expect(&m, "override-missing", "\"lm_head\" is affine with 8 bits in groups of 64");
}

static void the_two_quantization_entries_are_compared(void **state) {
    (void)state;
    model m = good_model();
    m.config = "{" HEAD ",\"quantization\":" Q "}";
    expect(&m, "quantization-mirror", "no quantization_config");
    m.config = "{" HEAD ",\"quantization_config\":" Q "}";
    expect(&m, "quantization-mirror", "no quantization");
    m.config =
        "{" HEAD ",\"quantization\":" Q ",\"quantization_config\":{\"group_size\":64,\"bits\":8,\"mode\":\"affine\"}}";
    expect(&m, "quantization-mirror", "differ");
    m.config =
        "{" HEAD
        ",\"quantization\":{\"group_size\":64,\"bits\":4},\"quantization_config\":{\"group_size\":64,\"bits\":4}}";
    expect(&m, "quantization-incomplete", "mode");
    m = good_model();
    m.config = "{" HEAD ",\"quantization_config\":{\"quant_method\":\"gptq\"}}";
    m.tensors[0] = (fx_tensor){"lm_head.weight", RQ_BF16, 2, {10, 256}, NULL, 0};
    m.count = 1;
    expect(&m, "foreign-quantization", "\"gptq\"");
}

static void the_tie_flag_is_held_against_the_head(void **state) {
    (void)state;
    model m = {{{"lm_head.weight", RQ_BF16, 2, {10, 16}, NULL, 0}}, 1, NULL};
    m.config = "{\"model_type\":\"llama\",\"tie_word_embeddings\":true}";
    expect(&m, "tie-flag", "is true, yet \"lm_head.weight\" is stored");
    m.config = "{\"model_type\":\"llama\"}";
    expect(&m, "tie-flag", "is absent");
    m.config = "{\"model_type\":\"qwen3\",\"tie_word_embeddings\":false}";
    expect(&m, NULL, NULL);
    m.config = "{\"tie_word_embeddings\":true,\"text_config\":{\"tie_word_embeddings\":false}}";
    expect(&m, "tie-flag", "at the top");
    m.config = "{\"tie_word_embeddings\":false,\"text_config\":{\"tie_word_embeddings\":false}}";
    m.tensors[0].name = "language_model.lm_head.weight";
    expect(&m, NULL, NULL);
    m.config = "{\"text_config\":{\"tie_word_embeddings\":true}}";
    expect(&m, "tie-flag", "\"language_model.lm_head.weight\"");
    m.tensors[0].name = "model.embed_tokens.weight";
    expect(&m, NULL, NULL);
    m.config = "{\"model_type\":\"llama\",\"tie_word_embeddings\":false}";
    expect(&m, "tie-flag", "no lm_head.weight");
}

static void files_are_held_against_the_index(void **state) {
    (void)state;
    const fx_tensor a = {"lm_head.weight", RQ_BF16, 2, {10, 16}, NULL, 0}, b = {"b.weight", RQ_BF16, 1, {16}, NULL, 0};
    const model m = {{a}, 1, "{" HEAD "}"};
    char *dir = write_model(&m);
    fx_text(dir, "model.safetensors.index.json",
            "{\"metadata\":{\"total_size\":320},\"weight_map\":{\"lm_head.weight\":\"model.safetensors\"}}");
    expect_in(dir, NULL, NULL);
    fx_safetensors(dir, "rotation.safetensors", &b, 1); /* no loader reads it when there is an index */
    expect_in(dir, NULL, NULL);
    fx_safetensors(dir, "model-old.safetensors", &b, 1);
    expect_in(dir, "stray-safetensors", "model-old.safetensors");
    fx_unlink(dir, "model-old.safetensors");
    fx_text(dir, "model.safetensors.index.json",
            "{\"weight_map\":{\"lm_head.weight\":\"model.safetensors\",\"b.weight\":"
            "\"model.safetensors\"}}");
    expect_in(dir, "index-mismatch", "\"b.weight\" is not in model.safetensors");
    fx_text(dir, "model.safetensors.index.json",
            "{\"weight_map\":{\"lm_head.weight\":\"model.safetensors\",\"b.weight\":\"model-2.safetensors\"}}");
    expect_in(dir, "missing-shard", "model-2.safetensors");
    fx_text(dir, "model.safetensors.index.json",
            "{\"metadata\":{\"total_size\":321},\"weight_map\":{\"lm_head.weight\":"
            "\"model.safetensors\"}}");
    expect_in(dir, "index-mismatch", "321");
    fx_safetensors(dir, "model.safetensors", (fx_tensor[]){a, b}, 2);
    fx_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"lm_head.weight\":\"model.safetensors\"}}");
    expect_in(dir, "index-mismatch", "\"b.weight\" is in model.safetensors but not in the index");
    fx_unlink(dir, "model.safetensors.index.json");
    expect_in(dir, "stray-safetensors", "rotation.safetensors"); /* mlx-vlm reads every file now */
    fx_done(dir);
}

static void what_cannot_be_read_is_an_error_and_not_a_finding(void **state) {
    (void)state;
    const model m = good_model();
    char *dir = write_model(&m);
    rq_error err;
    fx_text(dir, "model.safetensors", "junk");
    assert_int_equal(rq_check_directory(dir, NULL, &err), RQ_ERR_FORMAT);
    fx_unlink(dir, "config.json");
    assert_int_equal(rq_check_directory(dir, NULL, &err), RQ_ERR_MISSING);
    fx_done(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_model_has_no_findings),
        cmocka_unit_test(a_model_may_mix_formats_with_overrides),
        cmocka_unit_test(a_dense_weight_where_config_says_4_bits_is_found),
        cmocka_unit_test(absent_scales_are_found),
        cmocka_unit_test(scales_with_a_column_too_few_are_found),
        cmocka_unit_test(packed_weights_without_any_config_entry_are_found),
        cmocka_unit_test(overrides_are_held_against_the_modules),
        cmocka_unit_test(the_two_quantization_entries_are_compared),
        cmocka_unit_test(the_tie_flag_is_held_against_the_head),
        cmocka_unit_test(files_are_held_against_the_index),
        cmocka_unit_test(what_cannot_be_read_is_an_error_and_not_a_finding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
