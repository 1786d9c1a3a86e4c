#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fixture.h"

#define A "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define B "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}"

typedef struct header_case {
    const char *what, *header;
    uint64_t data_bytes;
    rq_status status;
    const char *says; /* in the error */
    size_t count;     /* of tensors when accepted */
} header_case;

static void run(const header_case *c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        rq_tensor_info *infos = NULL;
        size_t count = 0;
        rq_error err = {0};
        const rq_status st = rq_safetensors_parse_header("some.safetensors", c[i].header, strlen(c[i].header),
                                                         c[i].data_bytes, &infos, &count, &err);
        if (st != c[i].status) fail_msg("%s: status %d, expected %d (%s)", c[i].what, st, c[i].status, err.message);
        if (st != RQ_OK) {
            fx_assert_in(err.message, "some.safetensors");
            fx_assert_in(err.message, c[i].says);
        } else if (count != c[i].count) {
            fail_msg("%s: %zu tensors, expected %zu", c[i].what, count, c[i].count);
        }
        free(infos);
    }
}

static void headers_that_both_readers_take_are_accepted(void **state) {
    (void)state;
    static const header_case cases[] = {
        {"two tensors", "{" A "," B "}", 8, RQ_OK, NULL, 2},
        {"in the other order", "{" B "," A "}", 8, RQ_OK, NULL, 2},
        {"spaces after", "{" A "}   ", 4, RQ_OK, NULL, 1},
        {"newline before", "\n {" A "}", 4, RQ_OK, NULL, 1},
        {"no tensors", "{}", 0, RQ_OK, NULL, 0},
        {"metadata", "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}," A "}", 4, RQ_OK, NULL, 1},
        {"metadata last", "{" A ",\"__metadata__\":{\"format\":\"pt\"}}", 4, RQ_OK, NULL, 1},
        {"metadata null", "{\"__metadata__\":null," A "}", 4, RQ_OK, NULL, 1},
        {"metadata empty", "{\"__metadata__\":{}}", 0, RQ_OK, NULL, 0},
        {"keys in any order", "{\"a\":{\"data_offsets\":[0,4],\"shape\":[4],\"dtype\":\"U8\"}}", 4, RQ_OK, NULL, 1},
        {"unknown field",
         "{\"a\":{\"dtype\":\"U8\",\"x\":[{\"y\":[-1.5e+3,null,true,\"\\n\"]}],\"shape\":[4],"
         "\"data_offsets\":[0,4]}}",
         4, RQ_OK, NULL, 1},
        {"empty name", "{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, RQ_OK, NULL, 1},
        {"scalar", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, RQ_OK, NULL, 1},
        {"zero-size",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
         "\"b\":{\"dtype\":\"F32\","
         "\"shape\":[3,0],\"data_offsets\":[4,4]},\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         4, RQ_OK, NULL, 3},
        {"zero-size beside a huge dimension",
         "{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904,0],\"data_offsets\":[0,0]}}", 0, RQ_OK, NULL, 1},
        {"not aligned to the dtype",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[1,5]}}",
         5, RQ_OK, NULL, 2},
        {"eight dimensions", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]}}", 4, RQ_OK,
         NULL, 1},
    };
    run(cases, RQ_COUNT_OF(cases));
}

static void malformed_json_is_refused_with_its_byte(void **state) {
    (void)state;
    static const header_case cases[] = {
        {"not an object", "[]", 0, RQ_ERR_FORMAT, "byte 0: expected an object", 0},
        {"a number", "3", 0, RQ_ERR_FORMAT, "byte 0", 0},
        {"text after it", "{" A "}x", 4, RQ_ERR_FORMAT, "byte 53: text after", 0},
        {"comma before the end", "{" A ",}", 4, RQ_ERR_FORMAT, "byte 53", 0},
        {"no colon", "{\"a\" {}}", 0, RQ_ERR_FORMAT, "':'", 0},
        {"name without quotes", "{a:1}", 0, RQ_ERR_FORMAT, "byte 1", 0},
        {"entry is a list", "{\"a\":[]}", 0, RQ_ERR_FORMAT, "\"a\"", 0},
        {"bad UTF-8", "{\"\xff\":{}}", 0, RQ_ERR_FORMAT, "byte 2: not UTF-8", 0},
        {"overlong UTF-8", "{\"\xc0\xaf\":{}}", 0, RQ_ERR_FORMAT, "byte 2: not UTF-8", 0},
        {"surrogate in UTF-8", "{\"\xed\xa0\x80\":{}}", 0, RQ_ERR_FORMAT, "not UTF-8", 0},
        {"beyond U+10FFFF", "{\"\xf4\x90\x80\x80\":{}}", 0, RQ_ERR_FORMAT, "not UTF-8", 0},
        {"cut UTF-8", "{\"\xe2\x82\"}", 0, RQ_ERR_FORMAT, "not UTF-8", 0},
        {"lone surrogate", "{\"\\ud800\":{}}", 0, RQ_ERR_FORMAT, "surrogate", 0},
        {"second surrogate alone", "{\"\\udc00\":{}}", 0, RQ_ERR_FORMAT, "surrogate", 0},
        {"NUL in a name", "{\"a\\u0000b\":{}}", 0, RQ_ERR_FORMAT, "NUL", 0},
        {"control character", "{\"a\nb\":{}}", 0, RQ_ERR_FORMAT, "control", 0},
        {"unknown escape", "{\"\\x\":{}}", 0, RQ_ERR_FORMAT, "escape", 0},
        {"bad hex", "{\"\\u12g4\":{}}", 0, RQ_ERR_FORMAT, "hex", 0},
        {"single quotes", "{'a':1}", 0, RQ_ERR_FORMAT, "byte 1", 0},
        {"metadata value is a number", "{\"__metadata__\":{\"x\":1}}", 0, RQ_ERR_FORMAT, "__metadata__", 0},
        {"metadata is a list", "{\"__metadata__\":[]}", 0, RQ_ERR_FORMAT, "__metadata__", 0},
        {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, RQ_ERR_FORMAT, "twice", 0},
        {"leading zero in a number", "{\"a\":{\"dtype\":\"U8\",\"shape\":[04],\"data_offsets\":[0,4]}}", 4,
         RQ_ERR_FORMAT, "leading zero", 0},
    };
    run(cases, RQ_COUNT_OF(cases));

    rq_tensor_info *infos = NULL;
    size_t count = 0;
    rq_error err;
    assert_int_equal(rq_safetensors_parse_header("x", "{}\0\0", 4, 0, &infos, &count, &err), RQ_ERR_FORMAT);
    assert_int_equal(rq_safetensors_parse_header("x", "", 0, 0, &infos, &count, &err), RQ_ERR_FORMAT);
    assert_null(infos);
}

static void deep_nesting_is_refused_without_running_out_of_stack(void **state) {
    (void)state;
    rq_text text = {0};
    rq_tensor_info *infos = NULL;
    size_t count = 0;
    rq_error err;
    rq_text_append(&text, "{\"a\":{\"x\":");
    for (int i = 0; i < 200000; i++) rq_text_append(&text, "[");
    assert_int_equal(rq_safetensors_parse_header("x", text.data, text.length, 0, &infos, &count, &err), RQ_ERR_FORMAT);
    fx_assert_in(err.message, "nested too deeply");
    rq_text_deinit(&text);
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void entries_that_lie_are_refused_with_their_name(void **state) {
    (void)state;
    static const header_case cases[] = {
        {"begin after end", ONE("U8", "[4]", "[4,0]"), 4, RQ_ERR_FORMAT, "\"a\"", 0},
        {"begin after end by what the shape wraps to", ONE("U8", "[18446744073709551612]", "[4,0]"), 4, RQ_ERR_FORMAT,
         "after its end", 0},
        {"size is not the shape's", ONE("F32", "[2]", "[0,4]"), 4, RQ_ERR_FORMAT, "needs 8 bytes", 0},
        {"product overflows", ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, RQ_ERR_FORMAT, "64 bits", 0},
        {"bytes overflow", ONE("F64", "[4611686018427387904]", "[0,0]"), 0, RQ_ERR_FORMAT, "64 bits", 0},
        {"number overflows", ONE("U8", "[18446744073709551616]", "[0,0]"), 0, RQ_ERR_FORMAT, "64 bits", 0},
        {"offset overflows", ONE("U8", "[4]", "[0,99999999999999999999]"), 0, RQ_ERR_FORMAT, "64 bits", 0},
        {"negative dimension", ONE("U8", "[-4]", "[0,4]"), 4, RQ_ERR_FORMAT, "shape", 0},
        {"negative zero", ONE("U8", "[-0]", "[0,0]"), 0, RQ_ERR_FORMAT, "shape", 0},
        {"float dimension", ONE("U8", "[4.0]", "[0,4]"), 4, RQ_ERR_FORMAT, "fraction", 0},
        {"exponent", ONE("U8", "[4e0]", "[0,4]"), 4, RQ_ERR_FORMAT, "exponent", 0},
        {"text dimension", ONE("U8", "[\"4\"]", "[0,4]"), 4, RQ_ERR_FORMAT, "shape", 0},
        {"shape is a number", ONE("U8", "4", "[0,4]"), 4, RQ_ERR_FORMAT, "shape", 0},
        {"nine dimensions", ONE("U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]"), 4, RQ_ERR_FORMAT, "more than 8", 0},
        {"one offset", ONE("U8", "[4]", "[0]"), 4, RQ_ERR_FORMAT, "data_offsets", 0},
        {"three offsets", ONE("U8", "[4]", "[0,4,4]"), 4, RQ_ERR_FORMAT, "data_offsets", 0},
        {"unknown dtype", ONE("F4", "[8]", "[0,4]"), 4, RQ_ERR_UNSUPPORTED, "F4", 0},
        {"lower-case dtype", ONE("bf16", "[2]", "[0,4]"), 4, RQ_ERR_UNSUPPORTED, "bf16", 0},
        {"dtype is a number", "{\"a\":{\"dtype\":1,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, RQ_ERR_FORMAT, "dtype",
         0},
        {"no dtype", "{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, RQ_ERR_FORMAT, "lacks", 0},
        {"empty entry", "{\"a\":{}}", 0, RQ_ERR_FORMAT, "lacks", 0},
        {"field twice", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
         RQ_ERR_FORMAT, "twice", 0},
        {"data truncated", "{" A "," B "}", 7, RQ_ERR_FORMAT, "truncated: tensor \"b\" ends at data byte 8", 0},
        {"bytes after the last tensor", "{" A "}", 5, RQ_ERR_FORMAT, "1 bytes after", 0},
        {"hole", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}", 8, RQ_ERR_FORMAT,
         "bytes 4 to 5, before tensor \"b\"", 0},
        {"hole at the start", "{" B "}", 8, RQ_ERR_FORMAT, "bytes 0 to 4", 0},
        {"overlap", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}", 8, RQ_ERR_FORMAT,
         "inside tensor \"a\"", 0},
        {"two on one range", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, RQ_ERR_FORMAT,
         "inside", 0},
        {"zero-size tensor inside another", "{" A ",\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4,
         RQ_ERR_FORMAT, "\"z\"", 0},
        {"duplicate name, same range", "{" A "," A "}", 4, RQ_ERR_FORMAT, "\"a\" twice", 0},
        {"duplicate name, other range", "{" A ",\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8,
         RQ_ERR_FORMAT, "\"a\" twice", 0},
        {"duplicate name by escape", "{" A ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8,
         RQ_ERR_FORMAT, "\"a\" twice", 0},
    };
    run(cases, RQ_COUNT_OF(cases));
}

static void escaped_names_are_decoded(void **state) {
    (void)state;
    const char *header =
        "{\"\\u00e9\\ud83d\\ude42\\\"\\/\\t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    rq_tensor_info *infos = NULL;
    size_t count = 0;
    rq_error err;
    assert_int_equal(rq_safetensors_parse_header("x", header, strlen(header), 4, &infos, &count, &err), RQ_OK);
    assert_string_equal(infos[0].name, "\xc3\xa9\xf0\x9f\x99\x82\"/\t");
    free(infos);
}

static rq_status open_in(const char *dir, const char *name, rq_safetensors **file, rq_error *err) {
    char *path = fx_path(dir, name);
    const rq_status st = rq_safetensors_open(path, file, err);
    free(path);
    return st;
}

static void a_file_gives_its_tensors_by_offset_and_by_name(void **state) {
    (void)state;
    char *dir = fx_dir();
    const unsigned char bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const fx_tensor tensors[] = {{"z", RQ_U16, 2, {2, 1}, bytes, 0}, {"b", RQ_U8, 1, {4}, bytes + 4, 0}};
    rq_safetensors *file = NULL;
    rq_error err;
    unsigned char got[4] = {0};
    fx_safetensors(dir, "x.safetensors", tensors, 2);
    assert_int_equal(open_in(dir, "x.safetensors", &file, &err), RQ_OK);
    assert_int_equal(rq_safetensors_count(file), 2);
    assert_string_equal(rq_safetensors_at(file, 0)->name, "z");
    const rq_tensor_info *b = rq_safetensors_find(file, "b");
    assert_ptr_equal(b, rq_safetensors_at(file, 1));
    assert_null(rq_safetensors_find(file, "c"));
    assert_int_equal(rq_safetensors_read(file, b->offset, got, 4, &err), RQ_OK);
    assert_memory_equal(got, bytes + 4, 4);
    rq_safetensors_prefetch(file, b->offset, b->bytes);
    rq_safetensors_prefetch(file, UINT64_MAX, 7);
    rq_safetensors_close(file);
    fx_done(dir);
}

static void a_file_that_shrinks_while_open_is_an_error_and_not_a_signal(void **state) {
    (void)state;
    char *dir = fx_dir(), *path = fx_path(dir, "x.safetensors");
    const fx_tensor tensor = {"a", RQ_U8, 1, {1000}, NULL, 7};
    rq_safetensors *file = NULL;
    rq_error err;
    unsigned char got[1000];
    char want[64];
    fx_safetensors(dir, "x.safetensors", &tensor, 1);
    assert_int_equal(rq_safetensors_open(path, &file, &err), RQ_OK);
    const uint64_t offset = rq_safetensors_at(file, 0)->offset;
    assert_int_equal(truncate(path, (off_t)offset + 300), 0);
    assert_int_equal(rq_safetensors_read(file, offset, got, 1000, &err), RQ_ERR_IO);
    snprintf(want, sizeof want, "1000 bytes at offset %llu, found 300", (unsigned long long)offset);
    fx_assert_in(err.message, want);
    fx_assert_in(err.message, path);
    rq_safetensors_close(file);
    free(path);
    fx_done(dir);
}

static void every_truncation_of_a_file_is_refused(void **state) {
    (void)state;
    char *dir = fx_dir(), *path = fx_path(dir, "x.safetensors"), *all = NULL;
    const fx_tensor tensors[] = {{"a", RQ_U8, 1, {4}, NULL, 1}, {"b", RQ_BF16, 2, {2, 2}, NULL, 2}};
    rq_error err;
    rq_safetensors *file = NULL;
    size_t n = 0;
    fx_safetensors(dir, "x.safetensors", tensors, 2);
    assert_int_equal(rq_read_file(path, 1u << 20, &all, &n, &err), RQ_OK);
    for (size_t cut = 0; cut < n; cut++) {
        fx_write(dir, "cut.safetensors", all, cut);
        if (open_in(dir, "cut.safetensors", &file, &err) != RQ_ERR_FORMAT) fail_msg("cut at byte %zu of %zu", cut, n);
        fx_assert_in(err.message, "cut.safetensors");
    }
    free(all);
    free(path);
    fx_done(dir);
}

static void lying_header_lengths_are_refused_before_anything_is_allocated(void **state) {
    (void)state;
    char *dir = fx_dir();
    static const struct {
        uint64_t length;
        const char *says;
    } cases[] = {{0, "header length 0"},
                 {3, "truncated"},
                 {99999999, "truncated"},
                 {100000000, "header length 100000000"},
                 {UINT64_MAX, "header length 18446744073709551615"},
                 {(uint64_t)1 << 63, "header length"}};
    for (size_t i = 0; i < RQ_COUNT_OF(cases); i++) {
        unsigned char file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        rq_safetensors *opened = NULL;
        rq_error err;
        rq_store_u64_le(file, cases[i].length);
        fx_write(dir, "x.safetensors", file, sizeof file);
        assert_int_equal(open_in(dir, "x.safetensors", &opened, &err), RQ_ERR_FORMAT);
        fx_assert_in(err.message, cases[i].says);
    }
    fx_done(dir);
}

static void the_longest_header_that_mlx_takes_is_taken_and_one_byte_more_is_not(void **state) {
    (void)state;
    char *dir = fx_dir(), *path = fx_path(dir, "x.safetensors");
    rq_safetensors *file = NULL;
    rq_error err;
    const size_t n = RQ_SAFETENSORS_HEADER_MAX;
    char *header = malloc(n + 1);
    assert_non_null(header);
    memset(header, ' ', n + 1);
    memcpy(header, "{}", 2);
    fx_raw(dir, "x.safetensors", header, n, 0);
    assert_int_equal(rq_safetensors_open(path, &file, &err), RQ_OK);
    rq_safetensors_close(file);
    fx_raw(dir, "x.safetensors", header, n + 1, 0);
    assert_int_equal(rq_safetensors_open(path, &file, &err), RQ_ERR_FORMAT);
    free(header);
    free(path);
    fx_done(dir);
}

static void what_is_no_regular_file_is_refused_at_once(void **state) {
    (void)state;
    char *dir = fx_dir(), *pipe_path = fx_path(dir, "pipe.safetensors");
    rq_safetensors *file = NULL;
    rq_error err;
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(rq_safetensors_open(pipe_path, &file, &err), RQ_ERR_IO);
    fx_assert_in(err.message, "not a regular file");
    assert_int_equal(rq_safetensors_open(dir, &file, &err), RQ_ERR_IO);
    assert_int_equal(open_in(dir, "absent", &file, &err), RQ_ERR_MISSING);
    assert_int_equal(open_in(dir, "absent", &file, NULL), RQ_ERR_MISSING);
    free(pipe_path);
    fx_done(dir);
}

static rq_tensor_info info(const char *name, rq_dtype dtype, unsigned rank, uint64_t rows, uint64_t cols) {
    const uint64_t n = (rank > 0 ? rows : 1) * (rank > 1 ? cols : 1);
    return (rq_tensor_info){
        .name = name, .dtype = dtype, .rank = rank, .shape = {rows, cols}, .bytes = n * rq_dtype_bytes(dtype)};
}

static void a_built_header_reads_back_aligned_and_in_the_official_order(void **state) {
    (void)state;
    rq_tensor_info in[] = {
        info("u8", RQ_U8, 1, 3, 0),   info("b", RQ_BF16, 2, 3, 5), info("a\"\\\n\xc3\xa9", RQ_BF16, 0, 0, 0),
        info("f32", RQ_F32, 1, 1, 0), info("e", RQ_F32, 2, 0, 4),  info("f64", RQ_F64, 1, 1, 0)};
    static const char *const order[] = {"f64", "e", "f32", "a\"\\\n\xc3\xa9", "b", "u8"};
    const char *const metadata[] = {"format", "mlx", "k\"", "v\t", NULL};
    char *out = NULL;
    size_t bytes = 0, count = 0;
    rq_tensor_info *back = NULL;
    rq_error err;
    assert_int_equal(rq_safetensors_build_header(in, 6, metadata, &out, &bytes, &err), RQ_OK);
    assert_int_equal(bytes % 8, 0);
    assert_int_equal(rq_load_u64_le((const unsigned char *)out), bytes - 8);
    assert_memory_equal(out + 8, "{\"__metadata__\":{\"format\":\"mlx\",\"k\\u0022\":\"v\\u0009\"},\"f64\":", 59);
    const uint64_t data = in[5].offset + in[5].bytes - bytes;
    assert_int_equal(rq_safetensors_parse_header("x", out + 8, bytes - 8, data, &back, &count, &err), RQ_OK);
    assert_int_equal(count, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(in[i].name, order[i]);
        assert_int_equal(in[i].offset % rq_dtype_bytes(in[i].dtype), 0);
    }
    for (size_t i = 0; i < 6; i++)
        for (size_t k = 0; k < 6; k++)
            if (strcmp(back[i].name, in[k].name) == 0) {
                assert_int_equal(back[i].offset + bytes, in[k].offset);
                assert_int_equal(back[i].dtype, in[k].dtype);
                assert_int_equal(back[i].rank, in[k].rank);
            }
    free(back);
    free(out);
    in[0].bytes++;
    assert_int_equal(rq_safetensors_build_header(in, 6, NULL, &out, &bytes, &err), RQ_ERR_SHAPE);
}

static void twenty_thousand_tensors_are_read_in_well_under_a_second(void **state) {
    (void)state;
    enum { N = 20000 };
    rq_tensor_info *in = calloc(N, sizeof *in), *back = NULL;
    char *names = calloc(N, 64), *out = NULL;
    size_t bytes = 0, count = 0;
    rq_error err;
    assert_non_null(in);
    assert_non_null(names);
    for (size_t i = 0; i < N; i++) {
        snprintf(names + 64 * i, 64, "model.layers.%zu.mlp.experts.%zu.up_proj.weight", i % 97, i);
        in[i] = info(names + 64 * i, RQ_BF16, 2, 2, 4);
    }
    assert_int_equal(rq_safetensors_build_header(in, N, NULL, &out, &bytes, &err), RQ_OK);
    const double start = rq_cpu_seconds();
    assert_int_equal(rq_safetensors_parse_header("x", out + 8, bytes - 8, N * 16, &back, &count, &err), RQ_OK);
    const double seconds = rq_cpu_seconds() - start;
    assert_int_equal(count, N);
    if (seconds > 1.0) fail_msg("%f s", seconds); /* 0.01 s seen; a quadratic search takes tens of seconds */
    free(back);
    free(out);
    free(names);
    free(in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_both_readers_take_are_accepted),
        cmocka_unit_test(malformed_json_is_refused_with_its_byte),
        cmocka_unit_test(deep_nesting_is_refused_without_running_out_of_stack),
        cmocka_unit_test(entries_that_lie_are_refused_with_their_name),
        cmocka_unit_test(escaped_names_are_decoded),
        cmocka_unit_test(a_file_gives_its_tensors_by_offset_and_by_name),
        cmocka_unit_test(a_file_that_shrinks_while_open_is_an_error_and_not_a_signal),
        cmocka_unit_test(every_truncation_of_a_file_is_refused),
        cmocka_unit_test(lying_header_lengths_are_refused_before_anything_is_allocated),
        cmocka_unit_test(the_longest_header_that_mlx_takes_is_taken_and_one_byte_more_is_not),
        cmocka_unit_test(what_is_no_regular_file_is_refused_at_once),
        cmocka_unit_test(a_built_header_reads_back_aligned_and_in_the_official_order),
        cmocka_unit_test(twenty_thousand_tensors_are_read_in_well_under_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
