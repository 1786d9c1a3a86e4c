/* The whole conversion on small models: numbers against plain dense matrices, bytes against themselves under every
 * split of the work. */
#include "support/tiny_llama.h"

#include <errno.h>

static const tiny_llama model = {.hidden = 192,
                                 .inter = 320,
                                 .heads = 6,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .layers = 2,
                                 .vocab = 130,
                                 .tied = true,
                                 .bias = true};

static char *root;

static int make_root(void **state) {
    (void)state;
    root = tiny_temporary_directory();
    char *src = rq_path_join(root, "src");
    tiny_write(&model, src);
    free(src);
    return 0;
}

static int remove_root(void **state) {
    (void)state;
    const rq_status st = rq_remove_tree(root, NULL);
    free(root);
    return st == RQ_OK ? 0 : -1;
}

static char *run(const char *name, const rq_convert_options *options) {
    char *src = rq_path_join(root, "src"), *dst = rq_path_join(root, name);
    rq_error err = {0};
    if (rq_convert(src, dst, options, NULL, NULL, &err) != RQ_OK) fail_msg("%s", err.message);
    free(src);
    return dst;
}

/* W <- W Q on the rows of W [rows][cols], q [n][n], blocks of n columns. */
static void multiply_right(double *w, size_t rows, size_t cols, const double *q, size_t n) {
    double *t = malloc(n * sizeof *t);
    for (size_t r = 0; r < rows; r++)
        for (size_t b = 0; b < cols; b += n) {
            for (size_t j = 0; j < n; j++) {
                t[j] = 0;
                for (size_t i = 0; i < n; i++) t[j] += w[r * cols + b + i] * q[i * n + j];
            }
            memcpy(w + r * cols + b, t, n * sizeof *t);
        }
    free(t);
}

/* W <- blockdiag(Q)^T W. */
static void multiply_left(double *w, size_t rows, size_t cols, const double *q, size_t n) {
    double *t = malloc(n * sizeof *t);
    for (size_t c = 0; c < cols; c++)
        for (size_t b = 0; b < rows; b += n) {
            for (size_t j = 0; j < n; j++) {
                t[j] = 0;
                for (size_t i = 0; i < n; i++) t[j] += w[(b + i) * cols + c] * q[i * n + j];
            }
            for (size_t j = 0; j < n; j++) w[(b + j) * cols + c] = t[j];
        }
    free(t);
}

static size_t tensor_index(const char *name, tiny_tensor *found) {
    tiny_tensor tensors[64];
    const size_t n = tiny_tensors(&model, tensors);
    for (size_t i = 0; i < n; i++)
        if (strcmp(tensors[i].name, name) == 0) {
            *found = tensors[i];
            return i;
        }
    fail_msg("no tensor %s", name);
    return 0;
}

static double *original(const char *name, size_t *rows, size_t *cols) {
    tiny_tensor t;
    const size_t index = tensor_index(name, &t);
    *rows = (size_t)t.shape[0], *cols = t.rank == 2 ? (size_t)t.shape[1] : 1;
    double *w = malloc(*rows * *cols * sizeof *w);
    for (size_t i = 0; i < *rows * *cols; i++) w[i] = (double)tiny_stored(&t, index, i);
    return w;
}

static void multiply_gain(double *w, size_t rows, size_t cols, const char *norm) {
    size_t n, one;
    double *g = original(norm, &n, &one);
    for (size_t i = 0; i < rows * cols; i++) w[i] *= g[i % cols];
    free(g);
}

/* Beyond the one rounding to f32: nothing for a fold in f64, a few ulp of the rms for one in f32. */
static double slack;

static void expect(const char *dst, const char *name, const double *want, size_t n) {
    size_t count;
    float *got = tiny_read(dst, name, &count);
    assert_int_equal(count, n);
    double norm = 0;
    for (size_t i = 0; i < n; i++) norm += want[i] * want[i];
    const double scale = sqrt(norm / (double)n);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= slack * scale + 6e-8 * fabs(want[i])))
            fail_msg("%s[%zu] is %.9g, expected %.9g", name, i, (double)got[i], want[i]);
    free(got);
}

static void check_fold(const char *dst, const rq_rotation_spec *spec) {
    rq_rotation_set set;
    rq_error err;
    assert_int_equal(rq_rotation_set_make(spec, model.hidden, model.head_dim, model.layers, &set, &err), RQ_OK);
    const size_t H = model.hidden, D = model.head_dim;
    double *r1 = malloc(H * H * sizeof *r1), *r2 = malloc(D * D * sizeof *r2);
    rq_rotation_to_dense(&set.r1, r1);
    size_t rows, cols;
    double *w = original("model.embed_tokens.weight", &rows, &cols);
    double *head = malloc(rows * cols * sizeof *head);
    memcpy(head, w, rows * cols * sizeof *head);
    multiply_right(w, rows, cols, r1, H);
    expect(dst, "model.embed_tokens.weight", w, rows * cols);
    multiply_gain(head, rows, cols, "model.norm.weight");
    multiply_right(head, rows, cols, r1, H);
    expect(dst, "lm_head.weight", head, rows * cols);
    free(w), free(head);
    for (size_t l = 0; l < model.layers; l++) {
        char norm[96], name[96];
        if (set.r2) rq_rotation_to_dense(&set.r2[l], r2);
        static const char *const readers[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                              "mlp.gate_proj", "mlp.up_proj"};
        for (size_t i = 0; i < RQ_COUNT_OF(readers); i++) {
            snprintf(norm, sizeof norm, "model.layers.%zu.%s.weight", l,
                     i < 3 ? "input_layernorm" : "post_attention_layernorm");
            snprintf(name, sizeof name, "model.layers.%zu.%s.weight", l, readers[i]);
            w = original(name, &rows, &cols);
            multiply_gain(w, rows, cols, norm);
            multiply_right(w, rows, cols, r1, H);
            if (i == 2 && set.r2) multiply_left(w, rows, cols, r2, D);
            expect(dst, name, w, rows * cols);
            free(w);
            size_t n;
            float *ones = tiny_read(dst, norm, &n);
            for (size_t j = 0; j < n; j++) assert_true(ones[j] == 1.0f);
            free(ones);
        }
        static const char *const writers[] = {"self_attn.o_proj", "mlp.down_proj"};
        for (size_t i = 0; i < RQ_COUNT_OF(writers); i++) {
            snprintf(name, sizeof name, "model.layers.%zu.%s.weight", l, writers[i]);
            w = original(name, &rows, &cols);
            if (i == 0 && set.r2) multiply_right(w, rows, cols, r2, D);
            multiply_left(w, rows, cols, r1, H);
            expect(dst, name, w, rows * cols);
            free(w);
        }
        static const char *const biases[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
        for (size_t i = 0; i < RQ_COUNT_OF(biases); i++) {
            snprintf(name, sizeof name, "model.layers.%zu.self_attn.%s.bias", l, biases[i]);
            w = original(name, &rows, &cols);
            if (i == 2 && set.r2) multiply_left(w, rows, 1, r2, D);
            if (i == 3) multiply_left(w, rows, 1, r1, H);
            expect(dst, name, w, rows);
            free(w);
        }
    }
    free(r1), free(r2);
    rq_rotation_set_deinit(&set);
}

static void folded_weights_equal_dense_matrix_products(void **state) {
    (void)state;
    static const struct {
        const char *r1;
        int r2;
    } kinds[] = {{"hadamard", RQ_R2_HADAMARD}, {"block:32", RQ_R2_HADAMARD}, {"random", RQ_R2_RANDOM},
                 {"hadamard", RQ_R2_NONE},     {"random", RQ_R2_HADAMARD},   {"hadamard", RQ_R2_RANDOM}};
    for (size_t i = 0; i < RQ_COUNT_OF(kinds); i++)
        for (int precision = 0; precision < 2; precision++) {
            rq_convert_options options;
            rq_convert_options_init(&options);
            rq_error err;
            assert_int_equal(rq_rotation_spec_parse(kinds[i].r1, &options.plan.rotation, &err), RQ_OK);
            if (kinds[i].r2 == RQ_R2_RANDOM) options.plan.rotation.r2 = RQ_R2_RANDOM;
            if (kinds[i].r2 == RQ_R2_NONE) options.plan.rotation.r2 = RQ_R2_NONE;
            options.plan.rotation.seed = 40 + i;
            options.plan.dtype = RQ_F32;
            options.threads = 2;
            options.slot_bytes = i % 2 ? 100000 : 0;
            options.fold_precision = precision ? RQ_FOLD_F32 : RQ_FOLD_F64;
            slack = precision ? 192 * 0x1p-24 : 1e-12; /* n u: the worst of a sum in order */
            char *dst = run("folded", &options);
            check_fold(dst, &options.plan.rotation);
            assert_int_equal(rq_remove_tree(dst, NULL), RQ_OK);
            free(dst);
        }
}

static void an_identity_in_a_sidecar_leaves_the_residual_alone(void **state) {
    (void)state;
    for (int with_r2 = 0; with_r2 < 2; with_r2++)
        for (int precision = 0; precision < 2; precision++) {
            char *directory = rq_path_join(root, "sidecar"), *file = rq_path_join(directory, "rotation.json");
            (void)mkdir(directory, 0777);
            rq_rotation_set set;
            rq_rotation_spec spec = {.r1 = RQ_SPEC_HADAMARD, .r2 = with_r2 ? RQ_R2_HADAMARD : RQ_R2_NONE, .seed = 5};
            rq_error err;
            assert_int_equal(rq_rotation_set_make(&spec, model.hidden, model.head_dim, model.layers, &set, &err),
                             RQ_OK);
            rq_rotation_deinit(&set.r1);
            assert_int_equal(rq_rotation_identity(model.hidden, &set.r1, &err), RQ_OK);
            assert_int_equal(rq_rotation_set_write(&set, directory, &err), RQ_OK);
            rq_rotation_set_deinit(&set);
            rq_convert_options options;
            rq_convert_options_init(&options);
            options.plan.rotation = (rq_rotation_spec){.r1 = RQ_SPEC_FILE, .file = file};
            options.plan.dtype = RQ_F32;
            options.fold_precision = precision ? RQ_FOLD_F32 : RQ_FOLD_F64;
            slack = precision ? 192 * 0x1p-24 : 1e-12;
            char *dst = run("identity", &options);
            check_fold(dst, &options.plan.rotation);
            assert_int_equal(rq_remove_tree(dst, NULL), RQ_OK);
            assert_int_equal(rq_remove_tree(directory, NULL), RQ_OK);
            free(dst), free(file), free(directory);
        }
}

/* Digest of every file of the directory, in a fixed order. */
static void digest(const char *directory, char hex[65]) {
    static const char *const files[] = {"model.safetensors",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "model.safetensors.index.json",
                                        "config.json",
                                        "rotation.json",
                                        "optiq_metadata.json",
                                        "README.md"};
    char chain[RQ_COUNT_OF(files) * 64 + 1] = {0};
    for (size_t i = 0; i < RQ_COUNT_OF(files); i++) {
        char *path = rq_path_join(directory, files[i]), *data = NULL, one[65] = {0};
        size_t n = 0;
        if (rq_read_file(path, SIZE_MAX, &data, &n, NULL) == RQ_OK) rq_sha256_hex(data, n, one);
        memcpy(chain + 64 * i, one, 64);
        free(data);
        free(path);
    }
    rq_sha256_hex(chain, sizeof chain, hex);
}

static void bytes_do_not_depend_on_threads_or_slots(void **state) {
    (void)state;
    static const char *const rotations[] = {"hadamard", "random", "none"};
    for (size_t k = 0; k < RQ_COUNT_OF(rotations); k++)
        for (int quantize = 0; quantize < 2; quantize++) {
            char first[65] = {0};
            static const size_t slots[] = {0, 30000, 100000};
            for (unsigned threads = 1; threads <= 5; threads += 2)
                for (size_t s = 0; s < RQ_COUNT_OF(slots); s++) {
                    rq_convert_options options;
                    rq_convert_options_init(&options);
                    rq_error err;
                    assert_int_equal(rq_rotation_spec_parse(rotations[k], &options.plan.rotation, &err), RQ_OK);
                    options.plan.quantize = quantize;
                    assert_int_equal(rq_quant_format_make(RQ_AFFINE, 4, 32, &options.plan.format, &err), RQ_OK);
                    options.threads = threads;
                    options.slot_bytes = slots[s];
                    char *dst = run("split", &options), hex[65];
                    digest(dst, hex);
                    if (!first[0]) memcpy(first, hex, 65);
                    assert_string_equal(hex, first);
                    assert_int_equal(rq_remove_tree(dst, NULL), RQ_OK);
                    free(dst);
                }
        }
}

static void shards_hold_the_same_tensors_as_one_file(void **state) {
    (void)state;
    rq_convert_options options;
    rq_convert_options_init(&options);
    char *one = run("one", &options);
    options.max_shard_bytes = 400000;
    char *many = run("many", &options);
    size_t a, b;
    static const char *const names[] = {"model.layers.1.mlp.down_proj.weight", "lm_head.weight",
                                        "model.embed_tokens.weight"};
    for (size_t i = 0; i < RQ_COUNT_OF(names); i++) {
        float *x = tiny_read(one, names[i], &a), *y = tiny_read(many, names[i], &b);
        assert_int_equal(a, b);
        assert_memory_equal(x, y, a * sizeof *x);
        free(x), free(y);
    }
    char *single = rq_path_join(many, "model.safetensors");
    assert_false(rq_path_exists(single));
    free(single);
    assert_int_equal(rq_check_directory(many, NULL, NULL), RQ_OK);
    assert_int_equal(rq_remove_tree(one, NULL), RQ_OK);
    assert_int_equal(rq_remove_tree(many, NULL), RQ_OK);
    free(one), free(many);
}

/* Overwrites one stored bf16 element of the source. */
static void poke(const char *directory, const char *name, uint64_t element, uint16_t value) {
    rq_checkpoint *ckpt = NULL;
    size_t i = 0;
    assert_int_equal(rq_checkpoint_open(directory, &ckpt, NULL, NULL), RQ_OK);
    assert_true(rq_checkpoint_find(ckpt, name, &i));
    FILE *f = fopen(rq_safetensors_path(rq_checkpoint_file(ckpt, i)), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(rq_checkpoint_at(ckpt, i)->offset + 2 * element), SEEK_SET), 0);
    assert_int_equal(fwrite(&value, 2, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    rq_checkpoint_close(ckpt);
}

static void nonfinite_weights_are_named_and_leave_nothing(void **state) {
    (void)state;
    char *src = rq_path_join(root, "damaged"), *dst = rq_path_join(root, "never");
    static const char *const names[] = {"model.layers.0.self_attn.o_proj.weight",
                                        "model.layers.1.mlp.up_proj.weight",
                                        "model.embed_tokens.weight",
                                        "model.layers.1.input_layernorm.weight",
                                        "model.layers.0.self_attn.v_proj.bias",
                                        "model.layers.0.self_attn.q_proj.bias"};
    for (size_t i = 0; i < RQ_COUNT_OF(names); i++)
        for (int folded = 0; folded < 2; folded++) {
            tiny_write(&model, src);
            poke(src, names[i], 33, i % 2 ? 0x7fc0 : 0xff80);
            rq_convert_options options;
            rq_convert_options_init(&options);
            if (!folded) options.plan.rotation.r1 = RQ_SPEC_NONE;
            rq_error err = {0};
            assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_ERR_NONFINITE);
            assert_non_null(strstr(err.message, names[i]));
            assert_non_null(strstr(err.message, "33"));
            assert_false(rq_path_exists(dst));
        }
    assert_int_equal(rq_remove_tree(src, NULL), RQ_OK);
    free(src), free(dst);
}

static void an_existing_output_is_kept_unless_forced(void **state) {
    (void)state;
    rq_convert_options options;
    rq_convert_options_init(&options);
    char *dst = run("kept", &options), *src = rq_path_join(root, "src"), before[65], after[65];
    digest(dst, before);
    rq_error err = {0};
    options.plan.rotation.seed = 9;
    assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_ERR_EXISTS);
    digest(dst, after);
    assert_string_equal(before, after);
    options.force = true;
    assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_OK);
    digest(dst, after);
    assert_string_not_equal(before, after);
    assert_int_equal(rq_convert(src, src, &options, NULL, NULL, &err), RQ_ERR_EXISTS);  /* never onto itself */
    assert_int_equal(rq_convert(src, root, &options, NULL, NULL, &err), RQ_ERR_EXISTS); /* nor onto what holds it */
    assert_int_equal(rq_remove_tree(dst, NULL), RQ_OK);
    free(dst), free(src);
}

static void force_spares_what_is_not_a_model_of_its_own(void **state) {
    (void)state;
    rq_convert_options options;
    rq_convert_options_init(&options);
    options.force = true;
    char *src = rq_path_join(root, "src"), *dst = rq_path_join(root, "precious"),
         *linked = rq_path_join(root, "linked");
    char *weights = rq_path_join(dst, "model.safetensors"), *link = rq_path_join(linked, "model.safetensors");
    rq_error err = {0};
    /* a project with a config.json and a directory of its own */
    char *config = rq_path_join(dst, "config.json"), *own = rq_path_join(dst, "src");
    assert_int_equal(mkdir(dst, 0777), 0);
    assert_int_equal(rq_write_file(config, "{}", 2, NULL), RQ_OK);
    assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_ERR_EXISTS);
    assert_int_equal(rq_write_file(weights, "x", 1, NULL), RQ_OK);
    assert_int_equal(mkdir(own, 0777), 0);
    assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_ERR_EXISTS);
    assert_true(rq_path_exists(own));
    assert_int_equal(rq_remove_tree(dst, NULL), RQ_OK);
    /* a model that the source's weights are links into */
    tiny_write(&model, dst);
    assert_int_equal(mkdir(linked, 0777), 0);
    tiny_write_config(&model, linked);
    assert_int_equal(symlink(weights, link), 0);
    assert_int_equal(rq_convert(linked, dst, &options, NULL, NULL, &err), RQ_ERR_EXISTS);
    assert_true(rq_path_exists(weights));
    assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_OK); /* another source may replace it */
    assert_int_equal(rq_remove_tree(dst, NULL), RQ_OK);
    assert_int_equal(rq_remove_tree(linked, NULL), RQ_OK);
    free(src), free(dst), free(linked), free(weights), free(link), free(config), free(own);
}

static void an_overflow_is_reported_alike_by_any_number_of_threads(void **state) {
    (void)state;
    char *src = rq_path_join(root, "large"), *dst = rq_path_join(root, "never"), first[RQ_ERROR_BYTES] = {0};
    tiny_write(&model, src);
    for (size_t l = 0; l < model.layers; l++) { /* finite in bf16, infinite in f16 */
        char name[96];
        snprintf(name, sizeof name, "model.layers.%zu.mlp.down_proj.weight", l);
        poke(src, name, 77, 0x7e00);
        snprintf(name, sizeof name, "model.layers.%zu.mlp.up_proj.weight", l);
        poke(src, name, 5000, 0x7e00);
    }
    for (unsigned threads = 1; threads < 9; threads++) {
        rq_convert_options options;
        rq_convert_options_init(&options);
        options.plan.dtype = RQ_F16;
        options.threads = threads;
        rq_error err = {0};
        assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_ERR_NONFINITE);
        assert_false(rq_path_exists(dst));
        if (!first[0]) memcpy(first, err.message, sizeof first);
        assert_string_equal(err.message, first);
    }
    assert_int_equal(rq_remove_tree(src, NULL), RQ_OK);
    free(src), free(dst);
}

static bool stop_at_once(void *context) {
    (void)context;
    return true;
}

static void an_interrupt_leaves_nothing(void **state) {
    (void)state;
    rq_convert_options options;
    rq_convert_options_init(&options);
    options.should_stop = stop_at_once;
    char *src = rq_path_join(root, "src"), *dst = rq_path_join(root, "stopped");
    rq_error err = {0};
    assert_int_equal(rq_convert(src, dst, &options, NULL, NULL, &err), RQ_ERR_INTERRUPTED);
    assert_false(rq_path_exists(dst));
    assert_int_equal(rmdir(dst), -1);
    assert_int_equal(errno, ENOENT);
    free(src), free(dst);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folded_weights_equal_dense_matrix_products),
        cmocka_unit_test(bytes_do_not_depend_on_threads_or_slots),
        cmocka_unit_test(shards_hold_the_same_tensors_as_one_file),
        cmocka_unit_test(nonfinite_weights_are_named_and_leave_nothing),
        cmocka_unit_test(an_existing_output_is_kept_unless_forced),
        cmocka_unit_test(an_identity_in_a_sidecar_leaves_the_residual_alone),
        cmocka_unit_test(force_spares_what_is_not_a_model_of_its_own),
        cmocka_unit_test(an_overflow_is_reported_alike_by_any_number_of_threads),
        cmocka_unit_test(an_interrupt_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
