/* Writing a safetensors header, in the official writer's order: largest item first, so that with a header padded to a
 * multiple of 8 every tensor is aligned to its element. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "rotq/checkpoint.h"

static int in_file_order(const void *a, const void *b) {
    const rq_tensor_info *x = a, *y = b;
    const size_t n = rq_dtype_bytes(x->dtype), m = rq_dtype_bytes(y->dtype);
    if (n != m) return n > m ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Runs of ordinary bytes go out together; only what JSON forbids inside a string is escaped. */
static void append_string(rq_text *out, const char *s) {
    rq_text_append(out, "\"");
    while (*s) {
        size_t n = 0;
        while ((unsigned char)s[n] >= 0x20 && s[n] != '"' && s[n] != '\\') n++;
        if (n > 0)
            rq_text_append(out, "%.*s", (int)rq_min_size(n, 1u << 20), s);
        else
            rq_text_append(out, "\\u%04x", (unsigned)(unsigned char)*s);
        s += n > 0 ? rq_min_size(n, 1u << 20) : 1;
    }
    rq_text_append(out, "\"");
}

static rq_status place(rq_tensor_info *t, uint64_t *at, rq_error *err) {
    uint64_t bytes = 1;
    bool fits = t->rank <= RQ_MAX_RANK;
    for (unsigned d = 0; fits && d < t->rank; d++) fits = rq_mul_u64(bytes, t->shape[d], &bytes);
    if (!fits || !rq_mul_u64(bytes, rq_dtype_bytes(t->dtype), &bytes) || bytes != t->bytes)
        return rq_fail(err, RQ_ERR_SHAPE, "tensor \"%s\": %llu bytes do not fit its %s shape", t->name,
                       (unsigned long long)t->bytes, rq_dtype_name(t->dtype));
    t->offset = *at;
    if (!rq_add_u64(*at, t->bytes, at))
        return rq_fail(err, RQ_ERR_SHAPE, "the tensors of one file exceed 64 bits at \"%s\"", t->name);
    return RQ_OK;
}

static void append_entry(rq_text *out, const rq_tensor_info *t) {
    const uint64_t end = t->offset + t->bytes;
    append_string(out, t->name);
    rq_text_append(out, ":{\"dtype\":\"%s\",\"shape\":[", rq_dtype_name(t->dtype));
    for (unsigned d = 0; d < t->rank; d++) rq_text_append(out, d ? ",%llu" : "%llu", (unsigned long long)t->shape[d]);
    rq_text_append(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset, (unsigned long long)end);
}

rq_status rq_safetensors_build_header(rq_tensor_info *infos, size_t count, const char *const *metadata, char **out,
                                      size_t *out_bytes, rq_error *err) {
    rq_status st = RQ_OK;
    rq_text text = {0};
    uint64_t at = 0;
    const char *comma = "";

    if (count) qsort(infos, count, sizeof *infos, in_file_order);
    rq_text_append(&text, "........{"); /* room for the length */
    if (metadata && metadata[0]) {
        rq_text_append(&text, "\"__metadata__\":{");
        for (size_t i = 0; metadata[i]; i += 2) {
            rq_text_append(&text, "%s", i ? "," : "");
            append_string(&text, metadata[i]);
            rq_text_append(&text, ":");
            append_string(&text, metadata[i + 1]);
        }
        rq_text_append(&text, "}");
        comma = ",";
    }
    for (size_t i = 0; i < count; i++) {
        if ((st = place(&infos[i], &at, err)) != RQ_OK) goto done;
        rq_text_append(&text, "%s", comma);
        append_entry(&text, &infos[i]);
        comma = ",";
    }
    rq_text_append(&text, "}");
    rq_text_append(&text, "%*s", (int)((8 - text.length % 8) % 8), "");
    if (text.failed) {
        st = rq_fail(err, RQ_ERR_NOMEM, "no memory for a safetensors header of %zu tensors", count);
        goto done;
    }
    if (text.length - 8 > RQ_SAFETENSORS_HEADER_MAX || !rq_add_u64(at, text.length, &at)) {
        st = rq_fail(err, RQ_ERR_UNSUPPORTED, "a safetensors header of %zu bytes: readers take at most %u",
                     text.length - 8, RQ_SAFETENSORS_HEADER_MAX);
        goto done;
    }
    for (size_t i = 0; i < count; i++) infos[i].offset += text.length;
    rq_store_u64_le((unsigned char *)text.data, text.length - 8);
    *out = text.data;
    *out_bytes = text.length;
    text.data = NULL; /* moved to the caller */
done:
    rq_text_deinit(&text);
    return st;
}
