/* src/model/plan_formats.c and generic.c: who is quantized, and how large it gets. */
#include "model/toy.h"

/* The toy with an MLP so wide that down_proj has `cols` columns. */
static toy wide(uint64_t cols) {
    toy t = toy_make("llama", 2, true, false);
    json_object_set_new(t.config, "intermediate_size", json_integer((json_int_t)cols));
    for (size_t i = 0; i < t.source.count; i++) {
        rq_source_tensor *s = &t.source.tensors[i];
        if (strstr(s->name, "down_proj"))
            s->shape[1] = cols;
        else if (strstr(s->name, ".mlp."))
            s->shape[0] = cols;
    }
    t.options.quantize = true;
    return t;
}

static const char down[] = "model.layers.1.mlp.down_proj.weight";

/* field-failures B08: 4304 = 16 * 269 */
static void a_width_that_the_group_does_not_divide_stays_dense_and_is_listed(void **state) {
    (void)state;
    static const struct {
        rq_quant_format format;
        bool quantized;
    } cases[] = {
        {{RQ_AFFINE, 4, 64}, false},
        {{RQ_AFFINE, 4, 32}, false},
        {{RQ_MXFP4, 4, 32}, false},
        {{RQ_NVFP4, 4, 16}, true},
    };
    for (size_t i = 0; i < 4; i++) {
        toy t = wide(4304);
        t.options.format = cases[i].format;
        assert_plans(&t);
        const rq_plan_tensor *p = planned(&t, down);
        assert_int_equal(p->quantize, cases[i].quantized);
        assert_int_equal(p->dense_reason == NULL, cases[i].quantized);
        if (cases[i].quantized) {
            assert_null(noted(&t, "left-dense"));
            assert_int_equal(p->bytes, 128 * (4304 / 2 + 4304 / 16));
        } else {
            assert_contains(noted(&t, "left-dense")->text, "model.layers.0.mlp.down_proj");
            assert_contains(noted(&t, "left-dense")->text, "4304 columns");
            assert_int_equal(p->bytes, 128 * 4304 * 2);
            assert_int_equal(t.plan.dense_modules, 2);
            json_t *out = NULL;
            assert_int_equal(rq_output_config_make(&t.plan, t.config, &out, NULL), RQ_OK);
            assert_true(
                json_is_false(json_object_get(json_object_get(out, "quantization"), "model.layers.1.mlp.down_proj")));
            json_decref(out);
            t.options.strict = true;
            assert_int_equal(toy_replan(&t), RQ_ERR_UNSUPPORTED);
            assert_contains(t.err.message, "model.layers.0.mlp.down_proj");
        }
        toy_free(&t);
    }
}

/* field-failures B09 */
static void the_override_s_own_group_decides(void **state) {
    (void)state;
    toy t = wide(192);
    rq_plan plan;
    t.options.format.group_size = 128;
    assert_plans(&t);
    assert_false(planned(&t, down)->quantize);
    plan = t.plan;

    json_t *value = json_loads("{\"rules\":[{\"match\":\"*.down_proj\",\"group_size\":64}]}", 0, NULL);
    rq_recipe recipe = {0};
    bool candidate[64] = {false};
    assert_true(plan.count < 64);
    for (size_t i = 0; i < plan.count; i++) {
        candidate[i] = plan.tensors[i].module != NULL;
        plan.tensors[i].dense_reason = NULL;
    }
    assert_int_equal(rq_recipe_parse(value, "test", &t.options.format, &recipe, NULL), RQ_OK);
    assert_int_equal(rq_plan_choose_formats(&t.plan, candidate, &recipe, NULL, NULL), RQ_OK);
    assert_true(planned(&t, down)->quantize);
    assert_int_equal(planned(&t, down)->format.group_size, 64);
    assert_int_equal(t.plan.dense_modules, 0);
    json_t *out = NULL;
    assert_int_equal(rq_output_config_make(&t.plan, t.config, &out, NULL), RQ_OK);
    const json_t *q = json_object_get(out, "quantization");
    assert_int_equal(json_integer_value(json_object_get(q, "group_size")), 128);
    json_t *want = json_pack("{s:i, s:i, s:s}", "group_size", 64, "bits", 4, "mode", "affine");
    assert_true(json_equal(json_object_get(q, "model.layers.1.mlp.down_proj"), want));
    assert_null(json_object_get(q, "model.layers.1.mlp.up_proj"));
    json_decref(want);
    json_decref(out);
    rq_recipe_deinit(&recipe);
    json_decref(value);
    toy_free(&t);
}

static void sizes_and_bits_are_counted_as_mlx_lm_does(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    const uint64_t vocab = 2 * 320 * 128, layer = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128, norms = 5 * 128;
    assert_plans(&t);
    assert_int_equal(t.plan.parameters, vocab + 2 * layer + norms);
    assert_int_equal(t.plan.total_bytes, 2 * t.plan.parameters); /* bf16 */
    assert_true(t.plan.bits_per_weight == 16.0);
    assert_int_equal(t.plan.quantized_modules, 0);

    t.options.quantize = true;
    assert_int_equal(toy_replan(&t), RQ_OK);
    const uint64_t quantized = vocab + 2 * layer, bytes = quantized / 2 + quantized / 64 * 4 + norms * 2;
    assert_int_equal(t.plan.parameters, quantized + norms);
    assert_int_equal(t.plan.total_bytes, bytes);
    assert_true(t.plan.bits_per_weight == 8.0 * (double)bytes / (double)(quantized + norms));

    t.options.dtype = RQ_F32; /* scales and biases, too */
    assert_int_equal(toy_replan(&t), RQ_OK);
    assert_int_equal(t.plan.total_bytes, quantized / 2 + quantized / 64 * 8 + norms * 4);
    toy_free(&t);
}

static void float_tensors_take_the_stored_dtype_and_integers_keep_theirs(void **state) {
    (void)state;
    toy t = toy_make("madeup", 2, true, false);
    toy_add(&t, "model.table", 16, 0);
    toy_sort(&t);
    toy_find(&t, "model.table")->dtype = RQ_I64;
    toy_find(&t, "model.norm.weight")->dtype = RQ_F64; /* as fp8 weights with a block scale are delivered */
    t.options.rotation.r1 = RQ_SPEC_NONE;
    t.options.dtype = RQ_F16;
    assert_plans(&t);
    assert_int_equal(planned(&t, "model.table")->dtype, RQ_I64);
    assert_int_equal(planned(&t, "model.table")->bytes, 128);
    assert_int_equal(planned(&t, "model.norm.weight")->dtype, RQ_F16);
    t.options.dtype = RQ_I32;
    assert_int_equal(toy_replan(&t), RQ_ERR_USAGE);
    toy_free(&t);
}

static void an_unknown_family_is_sorted_by_name_and_shape(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned rank;
        const char *role; /* NULL: no module */
        bool quantized;
    } cases[] = {
        {"model.embed_tokens.weight", 2, "embedding", true},
        {"transformer.wte.weight", 2, "embedding", true},
        {"model.layers.0.mlp.gate_proj.weight", 2, "linear", true},
        {"language_model.model.layers.0.mlp.down_proj.weight", 2, "linear", true},
        {"model.layers.0.mlp.gate.weight", 2, "copy", false},
        {"model.layers.0.mlp.shared_expert_gate.weight", 2, "copy", false},
        {"model.layers.0.block.router.weight", 2, "copy", false},
        {"model.visual.blocks.0.attn.proj.weight", 2, "copy", false},
        {"model.layers.0.input_layernorm.weight", 2, NULL, false},
        {"transformer.h.0.ln_1.weight", 2, NULL, false},
        {"model.layers.0.linear_attn.conv1d.weight", 3, NULL, false},
        {"model.layers.0.linear_attn.A_log", 2, NULL, false},
        {"model.layers.0.self_attn.q_proj.bias", 1, NULL, false},
        {"model.layers.0.scale.weight", 1, NULL, false},
    };
    toy t = {0};
    t.config = json_pack("{s:s}", "model_type", "madeup");
    rq_plan_options_init(&t.options);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    t.options.quantize = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy_add(&t, cases[i].name, 64, 64);
        rq_source_tensor *s = &t.source.tensors[t.source.count - 1];
        s->rank = cases[i].rank;
        s->shape[2] = 1;
    }
    toy_sort(&t);
    assert_plans(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rq_plan_tensor *p = planned(&t, cases[i].name);
        assert_int_equal(p->quantize, cases[i].quantized);
        assert_int_equal(p->module != NULL, cases[i].role != NULL);
        if (cases[i].role) assert_string_equal(p->role, cases[i].role);
        /* field-failures B10: state-space parameters and convolutions keep their precision */
        const bool kept = strstr(p->name, "A_log") || strstr(p->name, "conv1d");
        assert_int_equal(p->dtype, kept ? RQ_F32 : RQ_BF16);
    }
    assert_contains(noted(&t, "kept-dense")->text, "4 modules");
    toy_free(&t);
}

static void gpt2_is_not_even_quantized(void **state) {
    (void)state;
    toy t = toy_make("gpt2", 2, true, false);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    assert_int_equal(toy_plan(&t), RQ_ERR_UNSUPPORTED);
    assert_contains(t.err.message, "transposed");
    toy_free(&t);
}

static void sizes_beyond_64_bits_are_refused(void **state) {
    (void)state;
    toy t = {0};
    t.config = json_pack("{s:s}", "model_type", "madeup");
    rq_plan_options_init(&t.options);
    t.options.rotation.r1 = RQ_SPEC_NONE;
    toy_add(&t, "a.weight", UINT64_C(1) << 40, UINT64_C(1) << 40);
    assert_int_equal(toy_plan(&t), RQ_ERR_SHAPE);
    toy_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_width_that_the_group_does_not_divide_stays_dense_and_is_listed),
        cmocka_unit_test(the_override_s_own_group_decides),
        cmocka_unit_test(sizes_and_bits_are_counted_as_mlx_lm_does),
        cmocka_unit_test(float_tensors_take_the_stored_dtype_and_integers_keep_theirs),
        cmocka_unit_test(an_unknown_family_is_sorted_by_name_and_shape),
        cmocka_unit_test(gpt2_is_not_even_quantized),
        cmocka_unit_test(sizes_beyond_64_bits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
