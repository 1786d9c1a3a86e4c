#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "linalg/hadamard.h"
#include "rotate/limits.h"
#include "rotate/sidecar.h"
#include "rotq/checkpoint.h"

bool rq_sidecar_signs_sha256(const rq_rotation *rotations, size_t count, char hex[65]) {
    size_t bytes = 0;
    for (size_t r = 0; r < count; r++) bytes += rotations[r].order;
    char *text = malloc(bytes ? bytes : 1), *p = text;
    if (!text) return false;
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < rotations[r].order; i++) *p++ = rotations[r].signs[i] > 0 ? '+' : '-';
    rq_sha256_hex(text, bytes, hex);
    free(text);
    return true;
}

/* ---- JSON; every function returns NULL when out of memory ---- */

static json_t *hadamard_json(const rq_rotation *rotations, size_t count) {
    const rq_rotation *q = &rotations[0];
    const bool block = q->kind == RQ_ROTATION_BLOCK_HADAMARD;
    char signs[65], hk[65];
    if (!rq_sidecar_signs_sha256(rotations, count, signs) || !rq_hadamard_sha256(q->hk, q->K, hk)) return NULL;
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:s}", "kind",
                          block ? "block-hadamard" : "signed-hadamard", "n", (json_int_t)q->n, "K", (json_int_t)q->K,
                          "m", (json_int_t)q->m, "construction", q->construction, "kronecker", RQ_SIDECAR_KRONECKER,
                          "apply", block ? RQ_SIDECAR_APPLY_BLOCK : RQ_SIDECAR_APPLY_HADAMARD, "rng", RQ_SIDECAR_RNG,
                          "signs_sha256", signs, "HK_sha256", hk);
    if (o && block && json_object_set_new(o, "block", json_integer((json_int_t)q->order)) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *dense_digests(const rq_rotation *rotations, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++) {
        char hex[65];
        rq_sha256_hex(rotations[i].dense, rotations[i].n * rotations[i].n * sizeof(double), hex);
        if (json_array_append_new(list, json_string(hex)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *r1_json(const rq_rotation *q) {
    json_t *o = NULL;
    if (q->kind == RQ_ROTATION_IDENTITY) return json_pack("{s:s, s:I}", "kind", "identity", "n", (json_int_t)q->n);
    if (q->kind == RQ_ROTATION_DENSE) {
        char hex[65];
        rq_sha256_hex(q->dense, q->n * q->n * sizeof(double), hex);
        return json_pack("{s:s, s:I, s:s, s:s, s:s, s:s}", "kind", "dense", "n", (json_int_t)q->n, "apply",
                         RQ_SIDECAR_APPLY_DENSE, "file", RQ_SIDECAR_TENSORS, "tensor", "R1", "sha256", hex);
    }
    o = hadamard_json(q, 1);
    if (o && json_object_set_new(o, "stream", json_integer(q->stream)) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *r2_json(const rq_rotation *r2, size_t n_layers) {
    json_t *o = NULL;
    if (!r2) return json_null();
    if (r2[0].kind == RQ_ROTATION_DENSE)
        o = json_pack("{s:s, s:I, s:s, s:s, s:s, s:o}", "kind", "dense", "n", (json_int_t)r2[0].n, "apply",
                      RQ_SIDECAR_APPLY_DENSE, "file", RQ_SIDECAR_TENSORS, "tensor", RQ_SIDECAR_R2_TENSOR, "sha256",
                      dense_digests(r2, n_layers));
    else
        o = hadamard_json(r2, n_layers);
    if (!o) return NULL;
    int failed = json_object_set_new(o, "layers", json_string(RQ_SIDECAR_LAYERS));
    failed |= json_object_set_new(o, "n_layers", json_integer((json_int_t)n_layers));
    if (r2[0].kind != RQ_ROTATION_DENSE) failed |= json_object_set_new(o, "stream", json_string(RQ_SIDECAR_R2_STREAM));
    if (failed) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* What the file can say: Hadamard kinds come from the set's seed and the stream of their place. */
static rq_status check_describable(const rq_rotation_set *set, rq_error *err) {
    const rq_rotation *r1 = &set->r1;
    if (set->seed > RQ_ROTATION_SEED_MAX)
        return rq_fail(err, RQ_ERR_USAGE, "seed %llu is above 2^63 - 1, the largest that the sidecar can hold",
                       (unsigned long long)set->seed);
    if (r1->n == 0) return rq_fail(err, RQ_ERR_USAGE, "the rotation set is empty");
    if (r1->signs && (r1->seed != set->seed || r1->stream != 0))
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "R1 must have the set's seed and stream 0");
    if (!set->r2) return RQ_OK;
    if (set->n_layers == 0) return rq_fail(err, RQ_ERR_USAGE, "the rotation set has R2 for no layer");
    for (size_t i = 0; i < set->n_layers; i++) {
        const rq_rotation *q = &set->r2[i];
        if (q->kind != RQ_ROTATION_HADAMARD && q->kind != RQ_ROTATION_DENSE)
            return rq_fail(err, RQ_ERR_UNSUPPORTED, "R2 of layer %zu is neither signed-hadamard nor dense", i);
        if (q->kind != set->r2[0].kind || q->n != set->r2[0].n)
            return rq_fail(err, RQ_ERR_UNSUPPORTED, "R2 of layer %zu differs from layer 0 in kind or size", i);
        if (q->signs && (q->seed != set->seed || q->stream != 1 + i))
            return rq_fail(err, RQ_ERR_UNSUPPORTED, "R2 of layer %zu must have the set's seed and stream %zu", i,
                           i + 1);
    }
    return RQ_OK;
}

rq_status rq_rotation_set_json(const rq_rotation_set *set, char **text, rq_error *err) {
    const rq_status st = check_describable(set, err);
    if (st != RQ_OK) return st;
    json_t *root = json_pack("{s:s, s:i, s:s, s:I, s:o, s:o, s:[s, s, s]}", "format", RQ_SIDECAR_FORMAT, "version",
                             RQ_SIDECAR_VERSION, "generator", RQ_SIDECAR_GENERATOR, "seed", (json_int_t)set->seed, "R1",
                             r1_json(&set->r1), "R2", r2_json(set->r2, set->n_layers), "deviations",
                             "no embedding mean-centering", "no R3", "no R4 half-fold");
    char *body = root ? json_dumps(root, JSON_SORT_KEYS | JSON_INDENT(2)) : NULL;
    char *lines = body ? rq_format("%s\n", body) : NULL;
    free(body);
    json_decref(root);
    if (!lines) return rq_fail(err, RQ_ERR_NOMEM, "no memory for the rotation's JSON");
    *text = lines;
    return RQ_OK;
}

/* ---- safetensors ---- */

static rq_status write_all(int fd, const char *path, const void *data, size_t bytes, rq_error *err) {
    const char *p = data;
    while (bytes) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return rq_fail(err, RQ_ERR_IO, "%s: write failed: %s", path, n < 0 ? strerror(errno) : "no room");
        p += n;
        bytes -= (size_t)n;
    }
    return RQ_OK;
}

/* The elements of one matrix, computed first where a seed stands for it. */
static rq_status write_matrix(int fd, const char *path, const rq_rotation *q, rq_error *err) {
    const size_t bytes = q->n * q->n * sizeof(double); /* n is at most RQ_ROTATION_DENSE_MAX */
    if (q->dense) return write_all(fd, path, q->dense, bytes, err);
    double *computed = rq_aligned_alloc(bytes);
    if (!computed) return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a [%zu, %zu] matrix", path, q->n, q->n);
    rq_rotation_to_dense(q, computed);
    const rq_status st = write_all(fd, path, computed, bytes, err);
    rq_aligned_free(computed);
    return st;
}

typedef struct table_entry {
    const rq_rotation *matrix;
    char name[32];
} table_entry;

static rq_status write_matrices(int fd, const char *path, const table_entry *entries, const rq_tensor_info *infos,
                                size_t count, rq_error *err) {
    rq_status st = RQ_OK;
    for (size_t i = 0; st == RQ_OK && i < count; i++) { /* infos are in file order, entries in ours */
        size_t at = 0;
        while (strcmp(infos[i].name, entries[at].name) != 0) at++;
        st = write_matrix(fd, path, entries[at].matrix, err);
    }
    return st;
}

/* `everything`: also the kinds that the sidecar describes by a seed. No file when there is nothing to write. */
static rq_status write_tensors(const rq_rotation_set *set, bool everything, const char *path, rq_error *err) {
    rq_status st = RQ_OK;
    const size_t limit = 1 + (set->r2 ? set->n_layers : 0);
    size_t count = 0, header_bytes = 0;
    char *header = NULL;
    int fd = -1;
    table_entry *entries = calloc(limit, sizeof *entries);
    rq_tensor_info *infos = calloc(limit, sizeof *infos);
    if (!entries || !infos) {
        st = rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a table of %zu tensors", path, limit);
        goto done;
    }
    for (size_t i = 0; i < limit; i++) {
        const rq_rotation *q = i ? &set->r2[i - 1] : &set->r1;
        if (!everything && q->kind != RQ_ROTATION_DENSE) continue;
        if (q->n > RQ_ROTATION_DENSE_MAX) {
            st = rq_fail(err, RQ_ERR_UNSUPPORTED, "%s: a matrix of size %zu written out is above the limit of %zu",
                         path, q->n, RQ_ROTATION_DENSE_MAX);
            goto done;
        }
        table_entry *entry = &entries[count];
        entry->matrix = q;
        if (i)
            snprintf(entry->name, sizeof entry->name, "R2.%zu", i - 1);
        else
            snprintf(entry->name, sizeof entry->name, "R1");
        infos[count++] = (rq_tensor_info){.name = entry->name,
                                          .dtype = RQ_F64,
                                          .rank = 2,
                                          .shape = {q->n, q->n},
                                          .bytes = (uint64_t)q->n * q->n * sizeof(double)};
    }
    if (count == 0) goto done;
    st = rq_safetensors_build_header(infos, count, NULL, &header, &header_bytes, err);
    if (st != RQ_OK) goto done;
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot create: %s", path, strerror(errno));
        goto done;
    }
    st = write_all(fd, path, header, header_bytes, err);
    if (st == RQ_OK) st = write_matrices(fd, path, entries, infos, count, err);
done:
    if (fd >= 0 && close(fd) != 0 && st == RQ_OK)
        st = rq_fail(err, RQ_ERR_IO, "%s: close failed: %s", path, strerror(errno));
    free(header);
    free(infos);
    free(entries);
    return st;
}

rq_status rq_rotation_set_export(const rq_rotation_set *set, const char *path, rq_error *err) {
    return write_tensors(set, true, path, err);
}

rq_status rq_rotation_set_write(const rq_rotation_set *set, const char *directory, rq_error *err) {
    char *text = NULL, *json_path = NULL, *tensor_path = NULL;
    rq_status st = rq_rotation_set_json(set, &text, err);
    if (st != RQ_OK) return st;
    json_path = rq_path_join(directory, RQ_SIDECAR_JSON);
    tensor_path = rq_path_join(directory, RQ_SIDECAR_TENSORS);
    if (!json_path || !tensor_path) {
        st = rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a path", directory);
        goto done;
    }
    /* The matrices first: a description must never point at a file that is not there yet. */
    st = write_tensors(set, false, tensor_path, err);
    if (st == RQ_OK) st = rq_write_file(json_path, text, strlen(text), err);
done:
    free(text);
    free(tensor_path);
    free(json_path);
    return st;
}
