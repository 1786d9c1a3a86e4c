#include "model/toy.h"

#define L1 "model.layers.1."

static void common_ops(const toy *t) {
    assert_string_equal(ops_text(t, "model.embed_tokens.weight"), "r1_in");
    assert_string_equal(ops_text(t, L1 "input_layernorm.weight"), "ones");
    assert_string_equal(ops_text(t, L1 "post_attention_layernorm.weight"), "ones");
    assert_string_equal(ops_text(t, "model.norm.weight"), "ones");
    assert_string_equal(ops_text(t, L1 "self_attn.q_proj.weight"), "gain(" L1 "input_layernorm.weight) r1_in");
    assert_string_equal(ops_text(t, L1 "self_attn.k_proj.weight"), "gain(" L1 "input_layernorm.weight) r1_in");
    assert_string_equal(ops_text(t, L1 "self_attn.v_proj.weight"),
                        "gain(" L1 "input_layernorm.weight) r1_in r2_out(1)");
    assert_string_equal(ops_text(t, L1 "self_attn.o_proj.weight"), "r1_out r2_in(1)");
    assert_string_equal(ops_text(t, L1 "mlp.gate_proj.weight"), "gain(" L1 "post_attention_layernorm.weight) r1_in");
    assert_string_equal(ops_text(t, L1 "mlp.up_proj.weight"), "gain(" L1 "post_attention_layernorm.weight) r1_in");
    assert_string_equal(ops_text(t, L1 "mlp.down_proj.weight"), "r1_out");
}

static void an_untied_llama_gets_every_corridor(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    assert_plans(&t);
    common_ops(&t);
    assert_string_equal(ops_text(&t, "lm_head.weight"), "gain(model.norm.weight) r1_in");
    assert_string_equal(t.plan.family, "llama");
    assert_true(t.plan.folded);
    assert_false(t.plan.untied);
    assert_int_equal(t.plan.head_dim_r2, 32);
    assert_string_equal(t.plan.final_norm, "model.norm.weight");
    assert_int_equal(t.plan.count, t.source.count);
    for (size_t i = 1; i < t.plan.count; i++)
        assert_true(strcmp(t.plan.tensors[i - 1].name, t.plan.tensors[i].name) < 0);
    toy_free(&t);
}

static void a_tied_model_gets_a_head_made_from_the_embedding(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < 4; i++) {
        toy t = toy_make(families[i], 2, false, false);
        assert_plans(&t);
        common_ops(&t);
        assert_true(t.plan.untied);
        assert_string_equal(ops_text(&t, "lm_head.weight"), "clone gain(model.norm.weight) r1_in");
        const rq_plan_tensor *head = planned(&t, "lm_head.weight");
        assert_string_equal(head->source->name, "model.embed_tokens.weight");
        assert_string_equal(head->module, "lm_head");
        assert_int_equal(t.plan.count, t.source.count + 1);
        toy_free(&t);
    }
}

static void biases_follow_their_output_side(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, true);
    assert_plans(&t);
    assert_string_equal(ops_text(&t, L1 "self_attn.q_proj.bias"), "");
    assert_string_equal(ops_text(&t, L1 "self_attn.k_proj.bias"), "");
    assert_string_equal(ops_text(&t, L1 "self_attn.v_proj.bias"), "r2_out(1)");
    assert_string_equal(ops_text(&t, L1 "self_attn.o_proj.bias"), "r1_out");
    assert_string_equal(ops_text(&t, L1 "mlp.gate_proj.bias"), "");
    assert_string_equal(ops_text(&t, L1 "mlp.up_proj.bias"), "");
    assert_string_equal(ops_text(&t, L1 "mlp.down_proj.bias"), "r1_out");
    toy_free(&t);
}

static void qwen2_needs_its_three_biases_and_has_no_other(void **state) {
    (void)state;
    toy t = toy_make("qwen2", 2, true, false);
    assert_plans(&t);
    assert_string_equal(ops_text(&t, L1 "self_attn.v_proj.bias"), "r2_out(1)");
    toy_remove(&t, "model.layers.0.self_attn.k_proj.bias");
    assert_int_equal(toy_replan(&t), RQ_ERR_MISSING);
    assert_contains(t.err.message, "model.layers.0.self_attn.k_proj.bias [64] is missing");
    toy_add(&t, "model.layers.0.self_attn.k_proj.bias", 64, 0);
    toy_add(&t, "model.layers.0.self_attn.o_proj.bias", 128, 0);
    toy_sort(&t);
    assert_int_equal(toy_replan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "model.layers.*.self_attn.o_proj.bias");
    toy_free(&t);
}

static void head_norms_of_qwen3_are_copied(void **state) {
    (void)state;
    toy t = toy_make("qwen3", 2, true, false);
    assert_plans(&t);
    assert_string_equal(ops_text(&t, L1 "self_attn.q_norm.weight"), "");
    assert_string_equal(ops_text(&t, L1 "self_attn.k_norm.weight"), "");
    assert_string_equal(planned(&t, L1 "self_attn.k_norm.weight")->role, "copy");
    toy_remove(&t, L1 "self_attn.q_norm.weight");
    assert_int_equal(toy_replan(&t), RQ_ERR_MISSING);
    toy_free(&t);
}

static void r2_can_be_switched_off(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, true);
    t.options.rotation.r2 = RQ_R2_NONE;
    assert_plans(&t);
    assert_int_equal(t.plan.head_dim_r2, 0);
    assert_string_equal(ops_text(&t, L1 "self_attn.v_proj.weight"), "gain(" L1 "input_layernorm.weight) r1_in");
    assert_string_equal(ops_text(&t, L1 "self_attn.o_proj.weight"), "r1_out");
    assert_string_equal(ops_text(&t, L1 "self_attn.v_proj.bias"), "");
    toy_free(&t);
}

static void without_rotation_nothing_is_folded_and_the_tie_stays(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, false, true);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    t.options.quantize = true;
    assert_plans(&t);
    assert_false(t.plan.folded);
    assert_false(t.plan.untied);
    assert_int_equal(t.plan.head_dim_r2, 0);
    assert_null(t.plan.final_norm);
    assert_null(planned(&t, "lm_head.weight"));
    for (size_t i = 0; i < t.plan.count; i++) assert_int_equal(t.plan.tensors[i].n_ops, 0);
    assert_true(planned(&t, "model.embed_tokens.weight")->quantize);
    assert_int_equal(t.plan.quantized_modules, 1 + 2 * 7);
    toy_free(&t);
}

static void wrong_shapes_name_found_and_expected(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    toy_find(&t, L1 "self_attn.v_proj.weight")->shape[0] = 96;
    assert_int_equal(toy_plan(&t), RQ_ERR_SHAPE);
    assert_contains(t.err.message, L1 "self_attn.v_proj.weight has shape [96, 128]");
    assert_contains(t.err.message, "[64, 128]");
    toy_find(&t, L1 "self_attn.v_proj.weight")->shape[0] = 64;
    toy_find(&t, "model.norm.weight")->rank = 2;
    toy_find(&t, "model.norm.weight")->shape[1] = 1;
    assert_int_equal(toy_plan(&t), RQ_ERR_SHAPE);
    toy_free(&t);
}

static void a_missing_tensor_is_named(void **state) {
    (void)state;
    toy t = toy_make("mistral", 2, true, false);
    toy_remove(&t, L1 "mlp.up_proj.weight");
    assert_int_equal(toy_plan(&t), RQ_ERR_MISSING);
    assert_contains(t.err.message, L1 "mlp.up_proj.weight [256, 128] is missing");
    toy_free(&t);
}

static void an_integer_weight_is_refused(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    toy_find(&t, L1 "mlp.up_proj.weight")->dtype = RQ_I8;
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "dtype I8");
    toy_free(&t);
}

/* field-failures B07, first half */
static void an_unknown_family_is_refused_with_its_tensors_but_may_be_quantized(void **state) {
    (void)state;
    toy t = toy_make("madeup", 2, true, false);
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "madeup is not known");
    assert_contains(t.err.message, "llama, mistral, qwen2, qwen3");
    assert_contains(t.err.message, "21 tensors");
    assert_contains(t.err.message, "model.layers.*.mlp.down_proj.weight (2)");
    assert_contains(t.err.message, "--rotation none");
    t.options.rotation.r1 = RQ_SPEC_NONE;
    t.options.quantize = true;
    assert_plans(&t);
    assert_string_equal(t.plan.family, "generic");
    assert_int_equal(t.plan.quantized_modules, 2 + 2 * 7);
    assert_false(planned(&t, "model.norm.weight")->quantize);
    toy_free(&t);
}

/* field-failures B07, second half */
static void an_extra_reader_is_refused_unless_allowed(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    toy_add_layer(&t, 0, "self_attn.sink_proj.weight", 4, 128);
    toy_add_layer(&t, 1, "self_attn.sink_proj.weight", 4, 128);
    toy_sort(&t);
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message,
                    "2 tensors have no role in family llama (model.layers.*.self_attn.sink_proj.weight (2))");
    assert_contains(t.err.message, "llama, mistral, qwen2, qwen3");
    t.options.allow_unknown = true;
    t.options.quantize = true;
    assert_plans(&t);
    assert_non_null(noted(&t, "unknown-tensor"));
    const rq_plan_tensor *sink = planned(&t, L1 "self_attn.sink_proj.weight");
    assert_int_equal(sink->n_ops, 0);
    assert_false(sink->quantize);
    assert_non_null(sink->dense_reason);
    toy_free(&t);
}

static void families_where_a_rotation_is_not_exact_say_why(void **state) {
    (void)state;
    static const struct {
        const char *type, *reason;
    } cases[] = {
        {"gemma2", "residual"},
        {"gemma3_text", "residual"},
        {"olmo2", "residual"},
        {"glm4", "residual"},
        {"exaone4", "residual"},
        {"cohere2", "mean"},
        {"gpt_neox", "mean"},
        {"starcoder2", "mean"},
        {"phi", "mean"},
        {"gemma3n_text", "gates"},
        {"granite", "no corridor table"},
        {"minicpm", "no corridor table"},
        {"qwen3_5", "no corridor table"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy t = toy_make(cases[i].type, 2, true, false);
        assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
        assert_contains(t.err.message, cases[i].type);
        assert_contains(t.err.message, cases[i].reason);
        assert_contains(t.err.message, "--rotation none");
        t.options.rotation.r1 = RQ_SPEC_NONE;
        assert_plans(&t);
        toy_free(&t);
    }
}

static void sizes_without_a_hadamard_form_name_the_way_out(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "hidden_size", json_integer(200));
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "--rotation random");
    json_object_set_new(t.config, "hidden_size", json_integer(128));
    t.options.rotation.r1 = RQ_SPEC_BLOCK;
    t.options.rotation.block = 48;
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    t.options.rotation.block = 32;
    assert_plans(&t);
    toy_free(&t);
}

static void a_quantized_source_needs_dequantize(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.source.is_quantized = true;
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "--dequantize");
    t.options.dequantize = true;
    assert_plans(&t);
    toy_free(&t);
}

static void rotary_tables_are_left_out(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    toy_add_layer(&t, 0, "self_attn.rotary_emb.inv_freq", 16, 0);
    toy_sort(&t);
    assert_plans(&t);
    assert_null(planned(&t, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_non_null(noted(&t, "ignored-tensor"));
    toy_free(&t);
}

/* ---- ties ---- */

/* field-failures B06: the flag at the top, nested, in both places */
static void every_place_of_the_tie_flag_is_understood_and_switched_off(void **state) {
    (void)state;
    for (int place = 1; place <= 3; place++) {
        toy t = toy_make("llama", 2, false, false);
        if (!(place & 1)) json_object_del(t.config, "tie_word_embeddings");
        if (place & 2) json_object_set_new(t.config, "text_config", json_pack("{s:b}", "tie_word_embeddings", 1));
        assert_plans(&t);
        assert_true(t.plan.untied);
        assert_true(t.plan.config.tied_explicit);
        json_t *out = NULL;
        assert_int_equal(rq_output_config_make(&t.plan, t.config, &out, NULL), RQ_OK);
        assert_true(json_is_false(json_object_get(out, "tie_word_embeddings")));
        const json_t *text = json_object_get(out, "text_config");
        if (text) assert_true(json_is_false(json_object_get(text, "tie_word_embeddings")));
        json_decref(out);
        toy_free(&t);
    }
}

static void keeping_the_tie_asks_for_a_neutral_final_gain(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, false, false);
    t.options.keep_tied = true;
    assert_plans(&t);
    assert_true(t.plan.requires_neutral_final_gain);
    assert_false(t.plan.untied);
    assert_null(planned(&t, "lm_head.weight"));
    assert_string_equal(ops_text(&t, "model.norm.weight"), "");
    json_t *out = NULL;
    assert_int_equal(rq_output_config_make(&t.plan, t.config, &out, NULL), RQ_OK);
    assert_true(json_is_true(json_object_get(out, "tie_word_embeddings")));
    json_decref(out);
    toy_free(&t);
}

/* field-failures B03 */
static void a_stored_head_of_a_tied_model_is_dropped_and_noted(void **state) {
    (void)state;
    for (int rotate = 0; rotate < 2; rotate++) {
        toy t = toy_make("llama", 2, true, false);
        json_object_set_new(t.config, "tie_word_embeddings", json_true());
        if (!rotate) t.options.rotation.r1 = RQ_SPEC_NONE;
        assert_plans(&t);
        assert_string_equal(t.plan.dropped_head, "lm_head.weight");
        assert_non_null(noted(&t, "stored-head-dropped"));
        if (rotate)
            assert_string_equal(planned(&t, "lm_head.weight")->source->name, "model.embed_tokens.weight");
        else
            assert_null(planned(&t, "lm_head.weight"));
        toy_free(&t);
    }
}

static void a_missing_flag_with_a_stored_head_asks(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    json_object_del(t.config, "tie_word_embeddings");
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "--tie-word-embeddings");
    t.options.tie = RQ_TIE_UNTIED;
    assert_plans(&t);
    assert_false(t.plan.untied);
    assert_string_equal(planned(&t, "lm_head.weight")->source->name, "lm_head.weight");
    t.options.tie = RQ_TIE_TIED;
    assert_int_equal(toy_replan(&t), RQ_OK);
    assert_true(t.plan.untied);
    toy_free(&t);
}

static void a_missing_flag_without_a_head_means_tied(void **state) {
    (void)state;
    toy t = toy_make("qwen2", 2, false, false);
    json_object_del(t.config, "tie_word_embeddings");
    assert_plans(&t);
    assert_true(t.plan.untied);
    assert_false(t.plan.config.tied_explicit);
    assert_non_null(noted(&t, "tie-flag"));
    toy_free(&t);
}

static void an_untied_model_without_a_head_is_refused(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    toy_remove(&t, "lm_head.weight");
    assert_int_equal(toy_plan(&t), RQ_ERR_MISSING);
    assert_contains(t.err.message, "lm_head.weight");
    toy_free(&t);
}

static void disagreeing_flags_are_noted_and_the_top_one_rules(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "text_config", json_pack("{s:b}", "tie_word_embeddings", 1));
    assert_plans(&t);
    assert_false(t.plan.config.tied);
    assert_non_null(noted(&t, "tie-flag"));
    toy_free(&t);
}

/* ---- config ---- */

static void head_dim_follows_each_family(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "head_dim", json_null());
    json_object_del(t.config, "num_key_value_heads");
    assert_int_equal(toy_plan(&t), RQ_ERR_SHAPE); /* 4 key-value heads by default: k_proj should be [128, 128] */
    json_object_set_new(t.config, "num_key_value_heads", json_integer(2));
    assert_plans(&t);
    assert_int_equal(t.plan.config.head_dim, 32);
    toy_free(&t);

    t = toy_make("qwen2", 2, true, false);
    json_object_set_new(t.config, "head_dim", json_integer(64)); /* not read */
    assert_plans(&t);
    assert_int_equal(t.plan.config.head_dim, 32);
    toy_free(&t);

    t = toy_make("qwen3", 2, true, false);
    json_object_set_new(t.config, "head_dim", json_integer(64));
    assert_int_equal(toy_plan(&t), RQ_ERR_SHAPE);
    json_object_del(t.config, "head_dim");
    assert_int_equal(toy_plan(&t), RQ_ERR_FORMAT);
    assert_contains(t.err.message, "head_dim");
    toy_free(&t);
}

static void nonsense_in_the_config_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"-1", "0", "1.5", "\"128\"", "99999999999999", "[]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        toy t = toy_make("llama", 2, true, false);
        json_object_set_new(t.config, "hidden_size", json_loads(bad[i], JSON_DECODE_ANY, NULL));
        assert_int_equal(toy_plan(&t), RQ_ERR_FORMAT);
        assert_contains(t.err.message, "hidden_size");
        toy_free(&t);
    }
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "num_key_value_heads", json_integer(3));
    assert_int_equal(toy_plan(&t), RQ_ERR_FORMAT);
    json_object_del(t.config, "model_type");
    assert_int_equal(toy_plan(&t), RQ_ERR_FORMAT);
    toy_free(&t);
}

static void a_stored_bias_against_the_config_is_refused(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, true);
    json_object_set_new(t.config, "attention_bias", json_false());
    t.options.allow_unknown = true;
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "attention_bias is not true");
    toy_free(&t);
}

static void the_table_and_the_json_show_every_tensor(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, false, false);
    t.options.quantize = true;
    assert_plans(&t);
    char *table = rq_plan_table(&t.plan, 123000000);
    assert_non_null(table);
    for (size_t i = 0; i < t.plan.count; i++) assert_contains(table, t.plan.tensors[i].name);
    assert_contains(table, "γ(input_layernorm) ·R1");
    assert_contains(table, "4b g64 affine");
    assert_contains(table, "123.00 MB");
    assert_contains(table, "R1 hadamard, R2 hadamard, seed 0");
    free(table);
    json_t *json = rq_plan_json(&t.plan, 5);
    assert_non_null(json);
    assert_int_equal(json_array_size(json_object_get(json, "tensors")), t.plan.count);
    const json_t *totals = json_object_get(json, "totals");
    assert_int_equal(json_integer_value(json_object_get(totals, "bytes")), t.plan.total_bytes);
    assert_int_equal(json_integer_value(json_object_get(totals, "peak_memory_bytes")), 5);
    json_decref(json);
    toy_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_untied_llama_gets_every_corridor),
        cmocka_unit_test(a_tied_model_gets_a_head_made_from_the_embedding),
        cmocka_unit_test(biases_follow_their_output_side),
        cmocka_unit_test(qwen2_needs_its_three_biases_and_has_no_other),
        cmocka_unit_test(head_norms_of_qwen3_are_copied),
        cmocka_unit_test(r2_can_be_switched_off),
        cmocka_unit_test(without_rotation_nothing_is_folded_and_the_tie_stays),
        cmocka_unit_test(wrong_shapes_name_found_and_expected),
        cmocka_unit_test(a_missing_tensor_is_named),
        cmocka_unit_test(an_integer_weight_is_refused),
        cmocka_unit_test(an_unknown_family_is_refused_with_its_tensors_but_may_be_quantized),
        cmocka_unit_test(an_extra_reader_is_refused_unless_allowed),
        cmocka_unit_test(families_where_a_rotation_is_not_exact_say_why),
        cmocka_unit_test(sizes_without_a_hadamard_form_name_the_way_out),
        cmocka_unit_test(a_quantized_source_needs_dequantize),
        cmocka_unit_test(rotary_tables_are_left_out),
        cmocka_unit_test(every_place_of_the_tie_flag_is_understood_and_switched_off),
        cmocka_unit_test(keeping_the_tie_asks_for_a_neutral_final_gain),
        cmocka_unit_test(a_stored_head_of_a_tied_model_is_dropped_and_noted),
        cmocka_unit_test(a_missing_flag_with_a_stored_head_asks),
        cmocka_unit_test(a_missing_flag_without_a_head_means_tied),
        cmocka_unit_test(an_untied_model_without_a_head_is_refused),
        cmocka_unit_test(disagreeing_flags_are_noted_and_the_top_one_rules),
        cmocka_unit_test(head_dim_follows_each_family),
        cmocka_unit_test(nonsense_in_the_config_is_refused),
        cmocka_unit_test(a_stored_bias_against_the_config_is_refused),
        cmocka_unit_test(the_table_and_the_json_show_every_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
