/* Reads and verifies the sidecar. Strict: every object has exactly the keys that this version writes, and what the file
 * says about a Hadamard matrix must be what this version would generate. */
#include "rotate/sidecar.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "linalg/hadamard.h"
#include "rotate/limits.h"
#include "rotq/checkpoint.h"

#define SIDECAR_BYTES_MAX ((size_t)4 << 20) /* a digest for each of 4096 layers takes 0.3 MiB */

typedef struct reader {
    const char *label;     /* the file, for errors */
    const char *directory; /* of `file`; NULL when dense matrices cannot be read */
    uint64_t seed;
    rq_safetensors *tensors; /* opened on first use */
    char *tensors_name;      /* as the sidecar calls it */
    rq_error *err;
} reader;

static rq_status fail(reader *r, rq_status status, const char *format, ...) RQ_PRINTF(3, 4);
static rq_status fail(reader *r, rq_status status, const char *format, ...) {
    char sentence[RQ_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return rq_fail(r->err, status, "%s: %s", r->label, sentence);
}

/* ---- JSON access; `where` names the object: "the file", "R1", "R2" ---- */

static rq_status check_keys(reader *r, const char *where, const json_t *object, const char *const *keys, size_t count) {
    if (!json_is_object(object)) return fail(r, RQ_ERR_FORMAT, "%s is not a JSON object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        size_t i = 0;
        while (i < count && strcmp(key, keys[i]) != 0) i++;
        if (i == count) return fail(r, RQ_ERR_UNSUPPORTED, "%s has an unknown key \"%.100s\"", where, key);
    }
    for (size_t i = 0; i < count; i++)
        if (!json_object_get(object, keys[i])) return fail(r, RQ_ERR_FORMAT, "%s lacks \"%s\"", where, keys[i]);
    return RQ_OK;
}

static rq_status get_integer(reader *r, const char *where, const json_t *object, const char *key, uint64_t limit,
                             uint64_t *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return fail(r, RQ_ERR_FORMAT, "%s: \"%s\" is not a whole number", where, key);
    if ((uint64_t)json_integer_value(value) > limit)
        return fail(r, RQ_ERR_UNSUPPORTED, "%s: \"%s\" is %lld, above the limit of %llu", where, key,
                    (long long)json_integer_value(value), (unsigned long long)limit);
    *out = (uint64_t)json_integer_value(value);
    return RQ_OK;
}

static rq_status get_string(reader *r, const char *where, const json_t *object, const char *key, const char **out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) {
        (void)fail(r, RQ_ERR_FORMAT, "%s: \"%s\" is not a string", where, key);
        return RQ_ERR_FORMAT; /* spelled out for the static analyzer, which cannot look into a variadic call */
    }
    *out = json_string_value(value);
    return RQ_OK;
}

static rq_status expect_string(reader *r, const char *where, const json_t *object, const char *key, const char *want) {
    const char *found = NULL;
    const rq_status st = get_string(r, where, object, key, &found);
    if (st != RQ_OK) return st;
    if (strcmp(found, want) != 0)
        return fail(r, RQ_ERR_UNSUPPORTED, "%s: \"%s\" is \"%.100s\", this version knows \"%s\"", where, key, found,
                    want);
    return RQ_OK;
}

static rq_status expect_integer(reader *r, const char *where, const json_t *object, const char *key, uint64_t want) {
    uint64_t found = 0;
    const rq_status st = get_integer(r, where, object, key, INT64_MAX, &found);
    if (st != RQ_OK) return st;
    if (found != want)
        return fail(r, RQ_ERR_UNSUPPORTED, "%s: \"%s\" is %llu, this version makes %llu", where, key,
                    (unsigned long long)found, (unsigned long long)want);
    return RQ_OK;
}

static rq_status expect_digest(reader *r, const char *where, const json_t *object, const char *key, const char *want) {
    const char *found = NULL;
    const rq_status st = get_string(r, where, object, key, &found);
    if (st != RQ_OK) return st;
    if (strcmp(found, want) != 0)
        return fail(r, RQ_ERR_MISMATCH, "%s: \"%s\" is %.64s, but what was rebuilt has %s", where, key, found, want);
    return RQ_OK;
}

/* ---- Hadamard kinds ---- */

/* Everything but the digests: what the words say must be what `order` leads to here. */
static rq_status check_hadamard_words(reader *r, const char *where, const json_t *o, size_t order, const char *apply,
                                      size_t *K) {
    unsigned m = 0;
    const char *construction = NULL;
    if (!rq_hadamard_split(order, K, &m, &construction))
        return fail(r, RQ_ERR_UNSUPPORTED, "%s: no Hadamard matrix of order %zu can be generated", where, order);
    rq_status st = expect_integer(r, where, o, "K", *K);
    if (st == RQ_OK) st = expect_integer(r, where, o, "m", m);
    if (st == RQ_OK) st = expect_string(r, where, o, "construction", construction);
    if (st == RQ_OK) st = expect_string(r, where, o, "kronecker", RQ_SIDECAR_KRONECKER);
    if (st == RQ_OK) st = expect_string(r, where, o, "apply", apply);
    if (st == RQ_OK) st = expect_string(r, where, o, "rng", RQ_SIDECAR_RNG);
    return st;
}

static rq_status check_hadamard_digests(reader *r, const char *where, const json_t *o, const rq_rotation *rotations,
                                        size_t count) {
    char signs[65], hk[65];
    if (!rq_sidecar_signs_sha256(rotations, count, signs) || !rq_hadamard_sha256(rotations->hk, rotations->K, hk))
        return fail(r, RQ_ERR_NOMEM, "%s: no memory for a digest", where);
    rq_status st = expect_digest(r, where, o, "signs_sha256", signs);
    if (st == RQ_OK) st = expect_digest(r, where, o, "HK_sha256", hk);
    return st;
}

static rq_status parse_r1_hadamard(reader *r, const json_t *o, size_t n, bool is_block, rq_rotation *q) {
    static const char *const keys[] = {"kind",      "n",     "K",   "m",      "construction",
                                       "kronecker", "apply", "rng", "stream", "signs_sha256",
                                       "HK_sha256", "block"};
    size_t K = 0;
    uint64_t block = n;
    rq_status st = check_keys(r, "R1", o, keys, RQ_COUNT_OF(keys) - !is_block);
    if (st == RQ_OK && is_block) st = get_integer(r, "R1", o, "block", n, &block);
    if (st == RQ_OK && (block == 0 || n % block))
        st = fail(r, RQ_ERR_FORMAT, "R1: block size %llu does not divide n = %zu", (unsigned long long)block, n);
    if (st == RQ_OK)
        st = check_hadamard_words(r, "R1", o, (size_t)block,
                                  is_block ? RQ_SIDECAR_APPLY_BLOCK : RQ_SIDECAR_APPLY_HADAMARD, &K);
    if (st == RQ_OK) st = expect_integer(r, "R1", o, "stream", 0);
    if (st != RQ_OK) return st;
    st = is_block ? rq_rotation_block_hadamard(n, (size_t)block, r->seed, 0, q, r->err)
                  : rq_rotation_hadamard(n, r->seed, 0, q, r->err);
    if (st == RQ_OK) st = check_hadamard_digests(r, "R1", o, q, 1);
    return st;
}

static rq_status parse_r2_hadamard(reader *r, const json_t *o, size_t n, size_t n_layers, rq_rotation *r2) {
    rq_status st = expect_string(r, "R2", o, "stream", RQ_SIDECAR_R2_STREAM);
    for (size_t i = 0; st == RQ_OK && i < n_layers; i++)
        st = rq_rotation_hadamard(n, r->seed, (uint32_t)(1 + i), &r2[i], r->err);
    if (st == RQ_OK) st = check_hadamard_digests(r, "R2", o, r2, n_layers);
    return st;
}

/* ---- dense kinds ---- */

/* A plain name only: the sidecar may come from anywhere, and must not name files elsewhere. */
static bool is_plain_file_name(const char *name) {
    const size_t n = strlen(name);
    if (n == 0 || n > 255 || name[0] == '.' || !rq_has_suffix(name, ".safetensors")) return false;
    for (const char *p = name; *p; p++)
        if (*p == '/' || *p == '\\' || *p == ':' || (unsigned char)*p < 0x20) return false;
    return true;
}

static rq_status open_tensors(reader *r, const char *where, const json_t *o) {
    const char *name = NULL;
    rq_status st = get_string(r, where, o, "file", &name);
    if (st != RQ_OK) return st;
    if (!is_plain_file_name(name))
        return fail(r, RQ_ERR_FORMAT, "%s: \"file\" is \"%.100s\", which is not the plain name of a .safetensors file",
                    where, name);
    if (r->tensors) {
        if (strcmp(name, r->tensors_name) == 0) return RQ_OK;
        return fail(r, RQ_ERR_UNSUPPORTED, "R1 and R2 name different files: \"%.100s\" and \"%.100s\"", r->tensors_name,
                    name);
    }
    if (!r->directory)
        return fail(r, RQ_ERR_MISSING, "%s: the matrix is in \"%.100s\", and there is no directory to look for it",
                    where, name);
    char *path = rq_path_join(r->directory, name);
    r->tensors_name = rq_strdup(name);
    if (!path || !r->tensors_name)
        st = fail(r, RQ_ERR_NOMEM, "%s: no memory for a path", where);
    else
        st = rq_safetensors_open(path, &r->tensors, r->err);
    free(path);
    return st;
}

static rq_status read_dense(reader *r, const char *name, const char *sha256, size_t n, rq_rotation *q) {
    const char *path = rq_safetensors_path(r->tensors);
    const rq_tensor_info *info = rq_safetensors_find(r->tensors, name);
    if (!info) return rq_fail(r->err, RQ_ERR_MISSING, "%s: tensor %s, named in %s, is missing", path, name, r->label);
    if (info->dtype != RQ_F64 || info->rank != 2 || info->shape[0] != n || info->shape[1] != n)
        return rq_fail(
            r->err, RQ_ERR_SHAPE, "%s: tensor %s is %s of rank %u, first dimension %llu; expected F64 [%zu, %zu]", path,
            name, rq_dtype_name(info->dtype), info->rank, info->rank ? (unsigned long long)info->shape[0] : 0ULL, n, n);
    const size_t bytes = n * n * sizeof(double); /* n is at most RQ_ROTATION_DENSE_MAX, and the file has these bytes */
    double *values = rq_aligned_alloc(bytes);
    if (!values) return rq_fail(r->err, RQ_ERR_NOMEM, "%s: no memory for tensor %s, %zu bytes", path, name, bytes);
    rq_error why;
    char hex[65];
    rq_status st = rq_safetensors_read(r->tensors, info->offset, values, bytes, r->err);
    if (st != RQ_OK) goto done;
    rq_sha256_hex(values, bytes, hex);
    if (strcmp(hex, sha256) != 0) {
        st = rq_fail(r->err, RQ_ERR_MISMATCH, "%s: tensor %s has SHA-256 %s, but %s says %.64s", path, name, hex,
                     r->label, sha256);
        goto done;
    }
    st = rq_rotation_adopt_dense(n, &values, q, &why);
    if (st != RQ_OK) rq_fail(r->err, st, "%s: tensor %s: %s", path, name, why.message);
done:
    rq_aligned_free(values);
    return st;
}

static rq_status parse_r1_dense(reader *r, const json_t *o, size_t n, rq_rotation *q) {
    static const char *const keys[] = {"kind", "n", "apply", "file", "tensor", "sha256"};
    const char *sha256 = NULL;
    rq_status st = check_keys(r, "R1", o, keys, RQ_COUNT_OF(keys));
    if (st == RQ_OK) st = expect_string(r, "R1", o, "apply", RQ_SIDECAR_APPLY_DENSE);
    if (st == RQ_OK) st = expect_string(r, "R1", o, "tensor", "R1");
    if (st == RQ_OK) st = get_string(r, "R1", o, "sha256", &sha256);
    if (st == RQ_OK) st = open_tensors(r, "R1", o);
    if (st == RQ_OK) st = read_dense(r, "R1", sha256, n, q);
    return st;
}

static rq_status parse_r2_dense(reader *r, const json_t *o, size_t n, size_t n_layers, rq_rotation *r2) {
    const json_t *digests = json_object_get(o, "sha256");
    rq_status st = expect_string(r, "R2", o, "tensor", RQ_SIDECAR_R2_TENSOR);
    if (st == RQ_OK && (!json_is_array(digests) || json_array_size(digests) != n_layers))
        st = fail(r, RQ_ERR_FORMAT, "R2: \"sha256\" is not an array of %zu digests, one per layer", n_layers);
    if (st == RQ_OK) st = open_tensors(r, "R2", o);
    for (size_t i = 0; st == RQ_OK && i < n_layers; i++) {
        const char *sha256 = json_string_value(json_array_get(digests, i));
        char name[32];
        snprintf(name, sizeof name, "R2.%zu", i);
        st = sha256 ? read_dense(r, name, sha256, n, &r2[i])
                    : fail(r, RQ_ERR_FORMAT, "R2: digest %zu of \"sha256\" is not a string", i);
    }
    return st;
}

/* ---- the two entries and the whole ---- */

static rq_status parse_r1(reader *r, const json_t *o, rq_rotation *q) {
    static const char *const identity_keys[] = {"kind", "n"};
    const char *kind = NULL;
    uint64_t n = 0;
    if (!json_is_object(o)) return fail(r, RQ_ERR_FORMAT, "R1 is not a JSON object");
    rq_status st = get_string(r, "R1", o, "kind", &kind);
    const bool dense = st == RQ_OK && strcmp(kind, "dense") == 0;
    if (st == RQ_OK) st = get_integer(r, "R1", o, "n", dense ? RQ_ROTATION_DENSE_MAX : RQ_ROTATION_MAX, &n);
    if (st == RQ_OK && n == 0) st = fail(r, RQ_ERR_FORMAT, "R1: \"n\" is 0");
    if (st != RQ_OK) return st;
    if (dense) return parse_r1_dense(r, o, (size_t)n, q);
    if (strcmp(kind, "signed-hadamard") == 0) return parse_r1_hadamard(r, o, (size_t)n, false, q);
    if (strcmp(kind, "block-hadamard") == 0) return parse_r1_hadamard(r, o, (size_t)n, true, q);
    if (strcmp(kind, "identity") != 0)
        return fail(r, RQ_ERR_UNSUPPORTED,
                    "R1: kind \"%.100s\" is none of signed-hadamard, block-hadamard, dense, identity", kind);
    st = check_keys(r, "R1", o, identity_keys, RQ_COUNT_OF(identity_keys));
    return st == RQ_OK ? rq_rotation_identity((size_t)n, q, r->err) : st;
}

static rq_status parse_r2(reader *r, const json_t *o, rq_rotation_set *set) {
    static const char *const hadamard_keys[] = {"kind",      "n",      "K",       "m",      "construction",
                                                "kronecker", "apply",  "rng",     "stream", "signs_sha256",
                                                "HK_sha256", "layers", "n_layers"};
    static const char *const dense_keys[] = {"kind", "n", "apply", "file", "tensor", "sha256", "layers", "n_layers"};
    if (json_is_null(o)) return RQ_OK;
    if (!json_is_object(o)) return fail(r, RQ_ERR_FORMAT, "R2 is neither null nor a JSON object");
    const char *kind = NULL;
    uint64_t n = 0, n_layers = 0;
    size_t K = 0;
    rq_status st = get_string(r, "R2", o, "kind", &kind);
    if (st != RQ_OK) return st;
    const bool dense = strcmp(kind, "dense") == 0;
    if (!dense && strcmp(kind, "signed-hadamard") != 0)
        return fail(r, RQ_ERR_UNSUPPORTED, "R2: kind \"%.100s\" is neither signed-hadamard nor dense", kind);
    st = dense ? check_keys(r, "R2", o, dense_keys, RQ_COUNT_OF(dense_keys))
               : check_keys(r, "R2", o, hadamard_keys, RQ_COUNT_OF(hadamard_keys));
    if (st == RQ_OK) st = get_integer(r, "R2", o, "n", RQ_ROTATION_R2_MAX, &n);
    if (st == RQ_OK) st = get_integer(r, "R2", o, "n_layers", RQ_ROTATION_LAYERS_MAX, &n_layers);
    if (st == RQ_OK) st = expect_string(r, "R2", o, "layers", RQ_SIDECAR_LAYERS);
    if (st == RQ_OK)
        st = dense ? expect_string(r, "R2", o, "apply", RQ_SIDECAR_APPLY_DENSE)
                   : check_hadamard_words(r, "R2", o, (size_t)n, RQ_SIDECAR_APPLY_HADAMARD, &K);
    if (st != RQ_OK) return st;
    rq_error why;
    st = rq_rotation_check_r2((size_t)n, K, (size_t)n_layers, &why);
    if (st != RQ_OK) return fail(r, st, "%s", why.message);

    if (n_layers == 0) return fail(r, RQ_ERR_FORMAT, "R2: \"n_layers\" is 0");
    set->r2 = calloc((size_t)n_layers, sizeof *set->r2);
    if (!set->r2) return fail(r, RQ_ERR_NOMEM, "no memory for %llu rotations", (unsigned long long)n_layers);
    set->n_layers = (size_t)n_layers;
    return dense ? parse_r2_dense(r, o, (size_t)n, set->n_layers, set->r2)
                 : parse_r2_hadamard(r, o, (size_t)n, set->n_layers, set->r2);
}

static rq_status check_deviations(reader *r, const json_t *list) {
    if (!json_is_array(list)) return fail(r, RQ_ERR_FORMAT, "\"deviations\" is not an array");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return fail(r, RQ_ERR_FORMAT, "\"deviations\" has an entry that is not a string");
    return RQ_OK;
}

static rq_status parse_root(reader *r, const json_t *root, rq_rotation_set *set) {
    static const char *const keys[] = {"format", "version", "generator", "seed", "R1", "R2", "deviations"};
    if (!json_is_object(root)) return fail(r, RQ_ERR_FORMAT, "a rotation sidecar is a JSON object");
    /* Format and version first, so that a newer file is called newer and not malformed. */
    rq_status st = expect_string(r, "the file", root, "format", RQ_SIDECAR_FORMAT);
    if (st == RQ_OK) st = expect_integer(r, "the file", root, "version", RQ_SIDECAR_VERSION);
    if (st == RQ_OK) st = expect_string(r, "the file", root, "generator", RQ_SIDECAR_GENERATOR);
    if (st == RQ_OK) st = check_keys(r, "the file", root, keys, RQ_COUNT_OF(keys));
    if (st == RQ_OK) st = get_integer(r, "the file", root, "seed", RQ_ROTATION_SEED_MAX, &r->seed);
    if (st == RQ_OK) st = check_deviations(r, json_object_get(root, "deviations"));
    set->seed = r->seed;
    if (st == RQ_OK) st = parse_r1(r, json_object_get(root, "R1"), &set->r1);
    if (st == RQ_OK) st = parse_r2(r, json_object_get(root, "R2"), set);
    return st;
}

static rq_status parse_text(const char *label, const char *text, size_t bytes, const char *directory,
                            rq_rotation_set *set, rq_error *err) {
    reader r = {.label = label, .directory = directory, .err = err};
    if (bytes > SIDECAR_BYTES_MAX)
        return fail(&r, RQ_ERR_FORMAT, "%zu bytes, more than the limit of %zu", bytes, SIDECAR_BYTES_MAX);
    json_error_t where;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root) return fail(&r, RQ_ERR_FORMAT, "line %d, column %d: %s", where.line, where.column, where.text);
    rq_rotation_set made = {0};
    const rq_status st = parse_root(&r, root, &made);
    if (st == RQ_OK)
        *set = made;
    else
        rq_rotation_set_deinit(&made);
    rq_safetensors_close(r.tensors);
    free(r.tensors_name);
    json_decref(root);
    return st;
}

rq_status rq_rotation_set_parse(const char *text, size_t bytes, const char *directory, rq_rotation_set *set,
                                rq_error *err) {
    return parse_text("rotation sidecar", text, bytes, directory, set, err);
}

static rq_status read_file(const char *path, rq_rotation_set *set, rq_error *err) {
    char *text = NULL, *directory = NULL;
    size_t bytes = 0;
    rq_status st = rq_read_file(path, SIDECAR_BYTES_MAX, &text, &bytes, err);
    if (st != RQ_OK) return st;
    const char *slash = strrchr(path, '/');
    if (!slash)
        directory = rq_strdup(".");
    else
        directory = rq_format("%.*s", (int)(slash == path ? 1 : slash - path), path);
    st = directory ? parse_text(path, text, bytes, directory, set, err)
                   : rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a path", path);
    free(directory);
    free(text);
    return st;
}

rq_status rq_rotation_set_read(const char *path, rq_rotation_set *set, rq_error *err) {
    if (!rq_is_directory(path)) return read_file(path, set, err);
    char *file = rq_path_join(path, "rotation.json");
    const rq_status st =
        file ? read_file(file, set, err) : rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a path", path);
    free(file);
    return st;
}
