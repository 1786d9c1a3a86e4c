#include "model/toy.h"

#include <unistd.h>

static unsigned bits_of(const toy *t, const char *name) {
    const rq_plan_tensor *p = planned(t, name);
    assert_non_null(p);
    return p->quantize ? p->format.bits : 0;
}

static unsigned bits_in(const toy *t, int layer, const char *part) {
    char name[160];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, part);
    return bits_of(t, name);
}

static bool is_in(const int *list, size_t n, int x) {
    for (size_t i = 0; i < n; i++)
        if (list[i] == x) return true;
    return false;
}

/* What mlx_lm.convert.mixed_quant_predicate_builder of mlx-lm 0.32.2 gives for these depths. */
static void mixed_recipes_choose_the_layers_of_mlx_lm(void **state) {
    (void)state;
    static const int of_16[] = {0, 1, 4, 7, 10, 13, 14, 15};
    static const int of_30[] = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29};
    static const int of_4[] = {2, 3};
    static const struct {
        int layers;
        const int *high;
        size_t count;
    } depths[] = {{16, of_16, 8}, {30, of_30, 14}, {4, of_4, 2}};
    static const struct {
        const char *name;
        unsigned low, high;
    } recipes[] = {{"mixed_2_6", 2, 6}, {"mixed_3_4", 3, 4}, {"mixed_3_6", 3, 6}, {"mixed_4_6", 4, 6}};
    for (size_t d = 0; d < 3; d++)
        for (size_t r = 0; r < 4; r++) {
            toy t = toy_make("llama", depths[d].layers, true, false);
            t.options.recipe = recipes[r].name;
            assert_plans(&t);
            for (int i = 0; i < depths[d].layers; i++) {
                const bool high = is_in(depths[d].high, depths[d].count, i);
                assert_int_equal(bits_in(&t, i, "self_attn.v_proj"), high ? recipes[r].high : recipes[r].low);
                assert_int_equal(bits_in(&t, i, "mlp.down_proj"), high ? recipes[r].high : recipes[r].low);
                assert_int_equal(bits_in(&t, i, "self_attn.q_proj"), recipes[r].low);
                assert_int_equal(bits_in(&t, i, "self_attn.k_proj"), recipes[r].low);
                assert_int_equal(bits_in(&t, i, "self_attn.o_proj"), recipes[r].low);
                assert_int_equal(bits_in(&t, i, "mlp.gate_proj"), recipes[r].low);
                assert_int_equal(bits_in(&t, i, "mlp.up_proj"), recipes[r].low);
            }
            assert_int_equal(bits_of(&t, "lm_head.weight"), recipes[r].high);
            assert_int_equal(bits_of(&t, "model.embed_tokens.weight"), recipes[r].low);
            assert_int_equal(planned(&t, "lm_head.weight")->format.group_size, 64);
            toy_free(&t);
        }
}

static void a_recipe_implies_quantizing_and_takes_the_group_of_the_options(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.options.recipe = "mixed_3_6";
    t.options.format.group_size = 32;
    assert_plans(&t);
    assert_true(t.plan.options.quantize);
    assert_int_equal(planned(&t, "lm_head.weight")->format.group_size, 32);
    toy_free(&t);
}

static void named_recipes_are_affine(void **state) {
    (void)state;
    static const char *const names[] = {"tq-mixed", "mixed_2_6"};
    for (size_t i = 0; i < 2; i++) {
        toy t = toy_make("llama", 2, true, false);
        t.options.recipe = names[i];
        t.options.format = (rq_quant_format){RQ_MXFP4, 4, 32};
        assert_int_equal(toy_plan(&t), RQ_ERR_USAGE);
        assert_contains(t.err.message, "mxfp4");
        toy_free(&t);
    }
}

static void tq_mixed_gives_the_mlp_3_bits_and_the_rest_4(void **state) {
    (void)state;
    toy t = toy_make("qwen3", 2, false, false);
    t.options.recipe = "tq-mixed";
    assert_plans(&t);
    for (size_t i = 0; i < t.plan.count; i++) {
        const rq_plan_tensor *p = &t.plan.tensors[i];
        if (!p->module) continue;
        assert_true(p->quantize);
        assert_int_equal(p->format.bits, strstr(p->module, ".mlp.") ? 3 : 4);
        assert_int_equal(p->format.group_size, 64);
        assert_int_equal(p->format.mode, RQ_AFFINE);
    }
    toy_free(&t);
}

/* Applies a JSON recipe to module names. */
static rq_status apply(const char *text, const char *const *modules, size_t n, const char *const *others, size_t m,
                       rq_verdict *verdicts, rq_notes *notes, rq_error *err) {
    const rq_quant_format base = {RQ_AFFINE, 4, 64};
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    rq_recipe recipe = {0};
    rq_status st = rq_recipe_parse(value, "test.json", &base, &recipe, err);
    if (!st) st = rq_recipe_apply(&recipe, modules, n, others, m, 2, verdicts, notes, err);
    rq_recipe_deinit(&recipe);
    json_decref(value);
    return st;
}

static const char *const modules[] = {"lm_head", "model.embed_tokens", "model.layers.0.mlp.down_proj",
                                      "model.layers.0.self_attn.q_proj"};
static const char *const others[] = {"model.layers.0.input_layernorm", "model.layers.1.input_layernorm", "model.norm"};

static void the_first_rule_that_matches_decides(void **state) {
    (void)state;
    rq_verdict v[4];
    rq_error err = {0};
    const char *text = "{\"default\":{\"bits\":8,\"group_size\":32},\"rules\":["
                       "{\"match\":\"lm_head\",\"quantize\":false},"
                       "{\"match\":\"*.mlp.*\",\"mode\":\"mxfp4\"},"
                       "{\"match\":\"model.*proj\",\"bits\":3}]}";
    assert_int_equal(apply(text, modules, 4, others, 3, v, NULL, &err), RQ_OK);
    assert_int_equal(v[0].action, RQ_RULE_DENSE);
    assert_int_equal(v[1].format.bits, 8);
    assert_int_equal(v[1].format.group_size, 32);
    assert_int_equal(v[2].format.mode, RQ_MXFP4);
    assert_int_equal(v[2].format.bits, 4);
    assert_int_equal(v[2].format.group_size, 32);
    assert_int_equal(v[3].format.mode, RQ_AFFINE);
    assert_int_equal(v[3].format.bits, 3);
    assert_int_equal(v[3].format.group_size, 32); /* the default's */
}

static void the_default_may_leave_everything_else_dense(void **state) {
    (void)state;
    rq_verdict v[4];
    const char *text = "{\"default\":{\"quantize\":false},\"rules\":[{\"match\":\"*.mlp.*\",\"bits\":3}]}";
    assert_int_equal(apply(text, modules, 4, NULL, 0, v, NULL, NULL), RQ_OK);
    assert_int_equal(v[0].action, RQ_RULE_DENSE);
    assert_int_equal(v[2].action, RQ_RULE_QUANTIZE);
    assert_int_equal(v[2].format.group_size, 64);
}

static void a_rule_that_matches_nothing_is_an_error(void **state) {
    (void)state;
    rq_verdict v[4];
    rq_error err = {0};
    assert_int_equal(apply("{\"rules\":[{\"match\":\"*.mlp.*\",\"bits\":3},{\"match\":\"*.experts.*\",\"bits\":3}]}",
                           modules, 4, others, 3, v, NULL, &err),
                     RQ_ERR_USAGE);
    assert_contains(err.message, "rule 2 (\"*.experts.*\") matches no module");
    assert_int_equal(apply("{\"rules\":[{\"match\":\"*norm\",\"bits\":3}]}", modules, 4, others, 3, v, NULL, &err),
                     RQ_ERR_USAGE);
    assert_contains(err.message, "only model.layers.*.input_layernorm (2), model.norm");
}

/* field-failures B10: a pattern for everything must not reach what cannot be quantized, and must say so */
static void norms_are_declined_with_a_note(void **state) {
    (void)state;
    rq_verdict v[4];
    rq_notes notes = {0};
    assert_int_equal(apply("{\"rules\":[{\"match\":\"*\",\"bits\":4}]}", modules, 4, others, 3, v, &notes, NULL),
                     RQ_OK);
    assert_int_equal(notes.count, 1);
    assert_string_equal(notes.items[0].code, "recipe-declined");
    assert_contains(notes.items[0].text, "model.layers.*.input_layernorm (2), model.norm");
    rq_notes_deinit(&notes);
}

static void a_shadowed_rule_is_a_warning(void **state) {
    (void)state;
    rq_verdict v[4];
    rq_notes notes = {0};
    assert_int_equal(apply("{\"rules\":[{\"match\":\"*\",\"bits\":4},{\"match\":\"lm_head\",\"bits\":8}]}", modules, 4,
                           NULL, 0, v, &notes, NULL),
                     RQ_OK);
    assert_int_equal(v[0].format.bits, 4);
    assert_int_equal(notes.count, 1);
    assert_string_equal(notes.items[0].code, "recipe-shadowed");
    rq_notes_deinit(&notes);
}

static void malformed_recipes_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"rules\":[{\"match\":\"*\",\"bit\":4}]}", "unknown key \"bit\""},
        {"{\"rules\":[],\"version\":1}", "unknown key \"version\""},
        {"{\"rules\":{}}", "\"rules\""},
        {"{}", "\"rules\""},
        {"{\"rules\":[{\"bits\":4}]}", "rule 1: \"match\""},
        {"{\"rules\":[4]}", "rule 1: \"match\""},
        {"{\"rules\":[{\"match\":\"*\"}]}", "says nothing"},
        {"{\"rules\":[{\"match\":\"*\",\"bits\":7}]}", "rule 1: affine quantization with 7 bits"},
        {"{\"rules\":[{\"match\":\"*\",\"bits\":\"4\"}]}", "\"bits\""},
        {"{\"rules\":[{\"match\":\"*\",\"mode\":\"int4\"}]}", "\"mode\""},
        {"{\"rules\":[{\"match\":\"*\",\"mode\":\"nvfp4\",\"bits\":8}]}", "nvfp4"},
        {"{\"rules\":[{\"match\":\"*\",\"quantize\":false,\"bits\":4}]}", "does not go with"},
        {"{\"rules\":[{\"match\":\"*\",\"quantize\":1}]}", "\"quantize\""},
        {"{\"rules\":[],\"default\":{\"match\":\"*\"}}", "default: unknown key \"match\""},
        {"{\"rules\":[],\"default\":4}", "default: not a JSON object"},
        {"[]", "not a JSON object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rq_verdict v[4];
        rq_error err = {0};
        assert_int_equal(apply(cases[i].text, modules, 4, others, 3, v, NULL, &err), RQ_ERR_USAGE);
        assert_contains(err.message, cases[i].message);
    }
}

static void an_unknown_name_lists_the_known_ones(void **state) {
    (void)state;
    toy t = toy_make("llama", 2, true, false);
    t.options.recipe = "mixed_9_9";
    assert_int_equal(toy_plan(&t), RQ_ERR_USAGE);
    assert_contains(t.err.message, "tq-mixed, mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6");
    toy_free(&t);
}

static void a_recipe_file_is_read_and_kept_for_the_metadata(void **state) {
    (void)state;
    char path[] = "/tmp/rotq_recipe_test_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    const char text[] = "{\"rules\":[{\"match\":\"lm_head\",\"quantize\":false},{\"match\":\"*v_proj\",\"bits\":8}]}";
    assert_int_equal(write(fd, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(fd);
    toy t = toy_make("llama", 2, true, false);
    t.options.recipe = path;
    assert_plans(&t);
    assert_int_equal(bits_of(&t, "lm_head.weight"), 0);
    assert_null(planned(&t, "lm_head.weight")->dense_reason); /* as asked */
    assert_int_equal(bits_in(&t, 1, "self_attn.v_proj"), 8);
    assert_int_equal(bits_in(&t, 1, "self_attn.q_proj"), 4);
    const rq_plan_memory *memory = t.plan.arena;
    assert_int_equal(json_array_size(json_object_get(memory->recipe, "rules")), 2);
    unlink(path);
    toy_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_recipes_choose_the_layers_of_mlx_lm),
        cmocka_unit_test(a_recipe_implies_quantizing_and_takes_the_group_of_the_options),
        cmocka_unit_test(named_recipes_are_affine),
        cmocka_unit_test(tq_mixed_gives_the_mlp_3_bits_and_the_rest_4),
        cmocka_unit_test(the_first_rule_that_matches_decides),
        cmocka_unit_test(the_default_may_leave_everything_else_dense),
        cmocka_unit_test(a_rule_that_matches_nothing_is_an_error),
        cmocka_unit_test(norms_are_declined_with_a_note),
        cmocka_unit_test(a_shadowed_rule_is_a_warning),
        cmocka_unit_test(malformed_recipes_are_refused_by_name),
        cmocka_unit_test(an_unknown_name_lists_the_known_ones),
        cmocka_unit_test(a_recipe_file_is_read_and_kept_for_the_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
