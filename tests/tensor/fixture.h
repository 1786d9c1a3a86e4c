/* Little model directories for tests: a fresh temporary directory, files in it, safetensors from a table or from raw
 * header text. Every helper fails the running test when the system refuses. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants the above first */
#include <cmocka.h>

#include "base/base.h"
#include "rotq/checkpoint.h"

typedef struct fx_tensor {
    const char *name;
    rq_dtype dtype;
    unsigned rank;
    uint64_t shape[RQ_MAX_RANK];
    const void *data; /* NULL: every byte is `fill` */
    unsigned char fill;
} fx_tensor;

static inline char *fx_dir(void) {
    char *dir = rq_strdup("/tmp/rotq-test-XXXXXX");
    assert_non_null(dir);
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void fx_done(char *dir) {
    rq_error err;
    assert_int_equal(rq_remove_tree(dir, &err), RQ_OK);
    free(dir);
}

static inline char *fx_path(const char *dir, const char *name) {
    char *path = rq_path_join(dir, name);
    assert_non_null(path);
    return path;
}

static inline void fx_write(const char *dir, const char *name, const void *data, size_t bytes) {
    rq_error err;
    char *path = fx_path(dir, name);
    if (rq_write_file(path, data, bytes, &err) != RQ_OK) fail_msg("%s", err.message);
    free(path);
}

static inline void fx_text(const char *dir, const char *name, const char *text) {
    fx_write(dir, name, text, strlen(text));
}

static inline void fx_unlink(const char *dir, const char *name) {
    char *path = fx_path(dir, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* Length prefix, `header` as it is, `data_bytes` zero bytes. */
static inline void fx_raw(const char *dir, const char *name, const char *header, size_t header_bytes,
                          size_t data_bytes) {
    unsigned char *all = calloc(1, 8 + header_bytes + data_bytes + 1);
    assert_non_null(all);
    rq_store_u64_le(all, header_bytes);
    memcpy(all + 8, header, header_bytes);
    fx_write(dir, name, all, 8 + header_bytes + data_bytes);
    free(all);
}

/* The tensors in the order given. Written without the library's own header writer. */
static inline void fx_safetensors(const char *dir, const char *name, const fx_tensor *tensors, size_t count) {
    rq_text header = {0};
    uint64_t at = 0;
    rq_text_append(&header, "{");
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = rq_dtype_bytes(tensors[i].dtype);
        rq_text_append(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", tensors[i].name,
                       rq_dtype_name(tensors[i].dtype));
        for (unsigned d = 0; d < tensors[i].rank; d++) {
            rq_text_append(&header, "%s%llu", d ? "," : "", (unsigned long long)tensors[i].shape[d]);
            bytes *= tensors[i].shape[d];
        }
        rq_text_append(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                       (unsigned long long)(at + bytes));
        at += bytes;
    }
    rq_text_append(&header, "}");
    assert_false(header.failed);
    unsigned char *all = calloc(1, 8 + header.length + at + 1);
    assert_non_null(all);
    rq_store_u64_le(all, header.length);
    memcpy(all + 8, header.data, header.length);
    unsigned char *p = all + 8 + header.length;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = rq_dtype_bytes(tensors[i].dtype);
        for (unsigned d = 0; d < tensors[i].rank; d++) bytes *= tensors[i].shape[d];
        if (tensors[i].data)
            memcpy(p, tensors[i].data, (size_t)bytes);
        else
            memset(p, tensors[i].fill, (size_t)bytes);
        p += bytes;
    }
    fx_write(dir, name, all, 8 + header.length + (size_t)at);
    free(all);
    rq_text_deinit(&header);
}

/* Whether some note has this code and, when text is not NULL, holds this text. */
static inline bool fx_noted(const rq_notes *notes, const char *code, const char *text) {
    for (size_t i = 0; i < notes->count; i++)
        if (strcmp(notes->items[i].code, code) == 0 && (!text || strstr(notes->items[i].text, text))) return true;
    return false;
}

static inline void fx_assert_in(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

#endif
