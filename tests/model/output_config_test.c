#include "model/toy.h"

#include "model/json_text.h"

/* The output config of a planned toy; owned. */
static json_t *output(const toy *t) {
    json_t *out = NULL;
    rq_error err = {0};
    const rq_status st = rq_output_config_make(&t->plan, t->config, &out, &err);
    if (st) print_error("%s\n", err.message);
    assert_int_equal(st, RQ_OK);
    return out;
}

static void a_plain_copy_is_a_fixed_point(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    t.options.dtype = RQ_F32;
    assert_plans(&t);
    json_t *once = output(&t);
    assert_true(json_equal(once, t.config));
    json_decref(once);
    toy_free(&t);
}

static void converting_the_output_again_changes_nothing(void **state) {
    (void)state;
    toy t = toy_make("qwen3", 2, false, false);
    json_object_set_new(t.config, "rope_parameters",
                        json_pack("{s:s, s:f, s:f}", "rope_type", "yarn", "rope_theta", 5e6, "factor", 4.0));
    json_object_del(t.config, "rope_theta");
    t.options.quantize = true;
    t.options.recipe = "tq-mixed";
    assert_plans(&t);
    json_t *once = output(&t), *twice = NULL;
    assert_int_equal(rq_output_config_make(&t.plan, once, &twice, NULL), RQ_OK);
    assert_true(json_equal(once, twice));
    json_decref(once);
    json_decref(twice);
    toy_free(&t);
}

static void the_tie_flag_is_always_written(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, false, false);
    json_object_del(t.config, "tie_word_embeddings");
    assert_plans(&t);
    json_t *out = output(&t);
    assert_true(json_is_false(json_object_get(out, "tie_word_embeddings")));
    json_decref(out);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    assert_int_equal(toy_replan(&t), RQ_OK);
    out = output(&t);
    assert_true(json_is_true(json_object_get(out, "tie_word_embeddings")));
    json_decref(out);
    toy_free(&t);
}

static void rope_parameters_are_spelled_out(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "mistral", "qwen2"};
    for (size_t i = 0; i < 3; i++) {
        toy t = toy_make(families[i], 2, true, false);
        json_object_del(t.config, "rope_theta");
        json_object_set_new(t.config, "rope_parameters",
                            json_pack("{s:s, s:f, s:f, s:i}", "rope_type", "llama3", "rope_theta", 5e5, "factor", 8.0,
                                      "original_max_position_embeddings", 8192));
        assert_plans(&t);
        json_t *out = output(&t);
        assert_true(json_real_value(json_object_get(out, "rope_theta")) == 5e5);
        json_t *want = json_pack("{s:s, s:f, s:i}", "rope_type", "llama3", "factor", 8.0,
                                 "original_max_position_embeddings", 8192);
        assert_true(json_equal(json_object_get(out, "rope_scaling"), want));
        assert_non_null(json_object_get(out, "rope_parameters"));
        json_decref(want);
        json_decref(out);
        toy_free(&t);
    }
}

static void default_rope_needs_no_scaling_and_the_old_spelling_stays(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "rope_parameters",
                        json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", 7.0));
    assert_plans(&t);
    json_t *out = output(&t);
    assert_true(json_real_value(json_object_get(out, "rope_theta")) == 10000.0);
    assert_null(json_object_get(out, "rope_scaling"));
    json_decref(out);
    json_object_del(t.config, "rope_theta");
    json_object_del(json_object_get(t.config, "rope_parameters"), "rope_theta");
    assert_int_equal(toy_replan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "rope_theta");
    toy_free(&t);
}

static void the_dtype_keys_follow_what_is_stored(void **state) {
    (void)state;
    static const struct {
        rq_dtype dtype;
        const char *name;
    } dtypes[] = {{RQ_BF16, "bfloat16"}, {RQ_F16, "float16"}, {RQ_F32, "float32"}};
    for (size_t i = 0; i < 3; i++) {
        toy t = toy_make("llama", 2, true, false);
        t.options.dtype = dtypes[i].dtype;
        assert_plans(&t);
        json_t *out = output(&t);
        assert_string_equal(json_string_value(json_object_get(out, "torch_dtype")), dtypes[i].name);
        assert_null(json_object_get(out, "dtype"));
        json_decref(out);
        json_object_del(t.config, "torch_dtype");
        json_object_set_new(t.config, "dtype", json_string("float64"));
        out = output(&t);
        assert_string_equal(json_string_value(json_object_get(out, "dtype")), dtypes[i].name);
        assert_null(json_object_get(out, "torch_dtype"));
        json_decref(out);
        json_object_del(t.config, "dtype");
        out = output(&t);
        assert_string_equal(json_string_value(json_object_get(out, "torch_dtype")), dtypes[i].name);
        json_decref(out);
        toy_free(&t);
    }
}

static void foreign_and_former_quantization_is_removed(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "quantization_config", json_pack("{s:s}", "quant_method", "fp8"));
    json_object_set_new(t.config, "quantization", json_pack("{s:i, s:i}", "bits", 4, "group_size", 64));
    json_object_set_new(t.config, "_name_or_path", json_string("/home/somebody/model"));
    assert_plans(&t);
    json_t *out = output(&t);
    assert_null(json_object_get(out, "quantization_config"));
    assert_null(json_object_get(out, "quantization"));
    assert_null(json_object_get(out, "_name_or_path"));
    json_decref(out);
    toy_free(&t);
}

static void quantization_is_written_in_full_and_mirrored(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.options.recipe = "mixed_3_6";
    assert_plans(&t);
    json_t *out = output(&t);
    const json_t *q = json_object_get(out, "quantization");
    assert_true(json_equal(q, json_object_get(out, "quantization_config")));
    assert_int_equal(json_integer_value(json_object_get(q, "bits")), 3);
    assert_int_equal(json_integer_value(json_object_get(q, "group_size")), 64);
    assert_string_equal(json_string_value(json_object_get(q, "mode")), "affine");
    json_t *high = json_pack("{s:i, s:i, s:s}", "group_size", 64, "bits", 6, "mode", "affine");
    assert_true(json_equal(json_object_get(q, "lm_head"), high));
    assert_true(json_equal(json_object_get(q, "model.layers.1.mlp.down_proj"), high));
    assert_null(json_object_get(q, "model.embed_tokens"));
    json_decref(high);
    json_decref(out);
    toy_free(&t);
}

/* field-failures B20: stored names are the loaded ones in MLX layout; in Hugging Face layout both are written */
static void overrides_go_by_the_names_that_loaders_use(void **state) {
    (void)state;
    toy t = {0};
    t.config = json_pack("{s:s}", "model_type", "madeup_vl");
    rq_plan_options_init(&t.options);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    t.options.quantize = true;
    toy_add(&t, "language_model.model.layers.0.mlp.down_proj.weight", 64, 48);
    toy_add(&t, "model.language_model.layers.0.mlp.up_proj.weight", 64, 48);
    toy_add(&t, "language_model.lm_head.weight", 64, 64);
    toy_sort(&t);
    assert_plans(&t);
    json_t *out = output(&t);
    const json_t *q = json_object_get(out, "quantization");
    assert_true(json_is_false(json_object_get(q, "language_model.model.layers.0.mlp.down_proj")));
    assert_true(json_is_false(json_object_get(q, "model.language_model.layers.0.mlp.up_proj")));
    assert_true(json_is_false(json_object_get(q, "language_model.model.layers.0.mlp.up_proj")));
    assert_null(json_object_get(q, "language_model.lm_head"));
    assert_null(json_object_get(out, "tie_word_embeddings")); /* unknown families keep what they had */
    json_decref(out);
    toy_free(&t);
}

static void reals_are_written_as_short_as_they_can_be_read_back(void **state) {
    (void)state;
    json_t *value = json_loads("{\"eps\":1e-05,\"theta\":10000.0,\"x\":0.1,\"n\":3,\"third\":0.3333333333333333,"
                               "\"s\":\"\\u00e9\\n\",\"e\":{},\"l\":[],\"m\":[1,[true,null]]}",
                               0, NULL);
    assert_non_null(value);
    char *text = rq_json_pretty(value);
    assert_string_equal(text, "{\n    \"eps\": 1e-05,\n    \"theta\": 10000.0,\n    \"x\": 0.1,\n    \"n\": 3,\n"
                              "    \"third\": 0.3333333333333333,\n    \"s\": \"\\u00E9\\n\",\n    \"e\": {},\n"
                              "    \"l\": [],\n    \"m\": [\n        1,\n        [\n            true,\n"
                              "            null\n        ]\n    ]\n}\n");
    free(text);
    text = rq_json_pretty_sorted(value);
    assert_true(strstr(text, "\"e\"") < strstr(text, "\"eps\""));
    json_t *back = json_loads(text, 0, NULL);
    assert_true(json_equal(back, value));
    json_decref(back);
    free(text);
    json_decref(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_copy_is_a_fixed_point),
        cmocka_unit_test(converting_the_output_again_changes_nothing),
        cmocka_unit_test(the_tie_flag_is_always_written),
        cmocka_unit_test(rope_parameters_are_spelled_out),
        cmocka_unit_test(default_rope_needs_no_scaling_and_the_old_spelling_stays),
        cmocka_unit_test(the_dtype_keys_follow_what_is_stored),
        cmocka_unit_test(foreign_and_former_quantization_is_removed),
        cmocka_unit_test(quantization_is_written_in_full_and_mirrored),
        cmocka_unit_test(overrides_go_by_the_names_that_loaders_use),
        cmocka_unit_test(reals_are_written_as_short_as_they_can_be_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
