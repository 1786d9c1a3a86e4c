/* The JSON header of a safetensors file.
 *
 * A reader of its own rather than jansson's tree: a tree of a hostile 100 MB header takes gigabytes, while this one
 * pass keeps only the table we return (at most three times the text, one allocation, sized before parsing). The grammar
 * is strict JSON; the rules on top are those of the official reader (safetensors 0.8), which are the strictest around.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "rotq/checkpoint.h"

#define MAX_DEPTH 64 /* of values under keys we do not know */
/* {"dtype":"U8","shape":[],"data_offsets":[0,0]} with `"":` before it is longer: so many tensors fit at most. */
#define MIN_ENTRY_BYTES 48

typedef struct header_parser {
    const char *label;
    const unsigned char *start, *p, *end;
    char *names; /* decoded strings are never longer than their text, so this cannot overflow */
    size_t names_used;
    rq_error *err;
    rq_status status; /* of the failure; RQ_OK until then */
} header_parser;

static bool fail_here(header_parser *h, const char *what) {
    if (h->status == RQ_OK)
        h->status =
            rq_fail(h->err, RQ_ERR_FORMAT, "%s: header byte %zu: %s", h->label, (size_t)(h->p - h->start), what);
    return false;
}

static bool fail_tensor(header_parser *h, rq_status status, const char *name, const char *what) {
    if (h->status == RQ_OK)
        h->status = rq_fail(h->err, status, "%s: tensor \"%s\" (header byte %zu): %s", h->label, name,
                            (size_t)(h->p - h->start), what);
    return false;
}

static void skip_space(header_parser *h) {
    while (h->p < h->end && (*h->p == ' ' || *h->p == '\n' || *h->p == '\r' || *h->p == '\t')) h->p++;
}

/* Next byte after white space without taking it; 0 at the end (a NUL byte in the text is no token either). */
static unsigned char peek(header_parser *h) {
    skip_space(h);
    return h->p < h->end ? *h->p : 0;
}

static bool take(header_parser *h, unsigned char c) {
    if (peek(h) != c || h->p == h->end) return false;
    h->p++;
    return true;
}

static bool hex4(header_parser *h, unsigned *out) {
    unsigned v = 0;
    if (h->end - h->p < 4) return fail_here(h, "the text ends inside an escape");
    for (int i = 0; i < 4; i++, h->p++) {
        const unsigned char c = *h->p;
        const unsigned char low = c | 0x20;
        if (c >= '0' && c <= '9')
            v = v << 4 | (unsigned)(c - '0');
        else if (low >= 'a' && low <= 'f')
            v = v << 4 | (unsigned)(low - 'a' + 10);
        else
            return fail_here(h, "bad hex digit in an escape");
    }
    *out = v;
    return true;
}

static size_t put_utf8(char *out, unsigned c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* After the backslash. */
static bool escape(header_parser *h, char *out, size_t *n) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (h->p == h->end) return fail_here(h, "the text ends inside a string");
    const unsigned char c = *h->p;
    if (c != 'u') {
        const char *at = c ? strchr(from, c) : NULL;
        if (!at) return fail_here(h, "unknown escape");
        h->p++;
        out[(*n)++] = to[at - from];
        return true;
    }
    unsigned u = 0;
    h->p++;
    if (!hex4(h, &u)) return false;
    if (u == 0) return fail_here(h, "NUL in a string");
    if (u >= 0xdc00 && u < 0xe000) return fail_here(h, "second half of a surrogate pair without the first");
    if (u >= 0xd800 && u < 0xdc00) {
        unsigned v = 0;
        if (h->end - h->p < 2 || h->p[0] != '\\' || h->p[1] != 'u') return fail_here(h, "half a surrogate pair");
        h->p += 2;
        if (!hex4(h, &v)) return false;
        if (v < 0xdc00 || v >= 0xe000) return fail_here(h, "half a surrogate pair");
        u = 0x10000 + ((u - 0xd800) << 10) + (v - 0xdc00);
    }
    *n += put_utf8(out + *n, u);
    return true;
}

/* Bytes of the well-formed UTF-8 sequence at p (RFC 3629: no overlong forms, no surrogates, up to U+10FFFF), or 0. */
static size_t utf8_length(const unsigned char *p, const unsigned char *end) {
    const unsigned char c = p[0];
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    if (n == 0 || (size_t)(end - p) < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] >= 0xa0) || (c == 0xf0 && p[1] < 0x90) ||
        (c == 0xf4 && p[1] >= 0x90))
        return 0;
    return n;
}

/* Decodes a string to the end of the names buffer and terminates it, without keeping it: the next string overwrites it
 * unless the caller advances names_used past the NUL. */
static bool string(header_parser *h, const char **text, size_t *length) {
    if (!take(h, '"')) return fail_here(h, "expected a string");
    char *out = h->names + h->names_used;
    size_t n = 0;
    for (;;) {
        if (h->p == h->end) return fail_here(h, "the text ends inside a string");
        const unsigned char c = *h->p;
        if (c == '"') break;
        if (c < 0x20) return fail_here(h, "control character in a string");
        if (c == '\\') {
            h->p++;
            if (!escape(h, out, &n)) return false;
        } else {
            const size_t k = utf8_length(h->p, h->end);
            if (k == 0) return fail_here(h, "not UTF-8");
            memcpy(out + n, h->p, k);
            n += k;
            h->p += k;
        }
    }
    h->p++;
    out[n] = '\0';
    *text = out;
    *length = n;
    return true;
}

static bool digits(header_parser *h) {
    const unsigned char *first = h->p;
    while (h->p < h->end && *h->p >= '0' && *h->p <= '9') h->p++;
    return h->p > first || fail_here(h, "expected a digit");
}

static bool skip_number(header_parser *h) {
    if (*h->p == '-') h->p++;
    if (h->p < h->end && *h->p == '0')
        h->p++;
    else if (!digits(h))
        return false;
    if (h->p < h->end && *h->p == '.') {
        h->p++;
        if (!digits(h)) return false;
    }
    if (h->p < h->end && (*h->p | 0x20) == 'e') {
        h->p++;
        if (h->p < h->end && (*h->p == '+' || *h->p == '-')) h->p++;
        if (!digits(h)) return false;
    }
    return true;
}

static bool skip_word(header_parser *h, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(h->end - h->p) < n || memcmp(h->p, word, n) != 0) return fail_here(h, "expected a value");
    h->p += n;
    return true;
}

/* NOLINTNEXTLINE(misc-no-recursion): depth is bounded by MAX_DEPTH */
static bool skip_value(header_parser *h, int depth) {
    const char *text = NULL;
    size_t n = 0;
    const unsigned char c = peek(h);
    if (depth == MAX_DEPTH) return fail_here(h, "nested too deeply");
    if (c == '"') return string(h, &text, &n);
    if (c == '-' || (c >= '0' && c <= '9')) return skip_number(h);
    if (c == 't') return skip_word(h, "true");
    if (c == 'f') return skip_word(h, "false");
    if (c == 'n') return skip_word(h, "null");
    if (c != '[' && c != '{') return fail_here(h, "expected a value");
    const unsigned char close = c == '[' ? ']' : '}';
    h->p++;
    if (take(h, close)) return true;
    do {
        if (c == '{') {
            if (!string(h, &text, &n)) return false;
            if (!take(h, ':')) return fail_here(h, "expected ':'");
        }
        if (!skip_value(h, depth + 1)) return false;
    } while (take(h, ','));
    return take(h, close) || fail_here(h, "expected ',' or the closing bracket");
}

/* {"key": "value", ...} or null: checked, not kept. */
static bool metadata(header_parser *h) {
    const char *text = NULL;
    size_t n = 0;
    if (peek(h) == 'n') return skip_word(h, "null");
    if (!take(h, '{')) return fail_here(h, "__metadata__ is neither an object nor null");
    if (take(h, '}')) return true;
    do {
        if (!string(h, &text, &n)) return false;
        if (!take(h, ':')) return fail_here(h, "expected ':'");
        if (peek(h) != '"') return fail_here(h, "a value in __metadata__ is not a string");
        if (!string(h, &text, &n)) return false;
    } while (take(h, ','));
    return take(h, '}') || fail_here(h, "expected ',' or '}'");
}

static bool integer(header_parser *h, const char *name, const char *where, uint64_t *out) {
    const unsigned char c = peek(h);
    char what[96];
    uint64_t v = 0;
    const unsigned char *first = h->p;
    if (c < '0' || c > '9') {
        snprintf(what, sizeof what, "%s: expected integers from 0 on", where);
        return fail_tensor(h, RQ_ERR_FORMAT, name, what);
    }
    for (; h->p < h->end && *h->p >= '0' && *h->p <= '9'; h->p++)
        if (!rq_mul_u64(v, 10, &v) || !rq_add_u64(v, (uint64_t)(*h->p - '0'), &v)) {
            snprintf(what, sizeof what, "%s: the number does not fit 64 bits", where);
            return fail_tensor(h, RQ_ERR_FORMAT, name, what);
        }
    if (*first == '0' && h->p - first > 1) return fail_here(h, "a number with a leading zero");
    if (h->p < h->end && (*h->p == '.' || (*h->p | 0x20) == 'e')) {
        snprintf(what, sizeof what, "%s: expected integers, found a fraction or exponent", where);
        return fail_tensor(h, RQ_ERR_FORMAT, name, what);
    }
    *out = v;
    return true;
}

/* Reads [n, n, ...] of at most `limit` numbers. */
static bool integers(header_parser *h, const char *name, const char *where, uint64_t *out, unsigned limit,
                     unsigned *count) {
    char what[96];
    unsigned n = 0;
    if (!take(h, '[')) {
        snprintf(what, sizeof what, "%s: expected a list of integers", where);
        return fail_tensor(h, RQ_ERR_FORMAT, name, what);
    }
    *count = 0;
    if (take(h, ']')) return true;
    do {
        if (n == limit) {
            snprintf(what, sizeof what, "%s: more than %u numbers", where, limit);
            return fail_tensor(h, RQ_ERR_FORMAT, name, what);
        }
        if (!integer(h, name, where, &out[n])) return false;
        n++;
    } while (take(h, ','));
    *count = n;
    return take(h, ']') || fail_here(h, "expected ',' or ']'");
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

/* dtype, shape and range against each other; t->offset and t->bytes become the range. */
static bool check_entry(header_parser *h, rq_tensor_info *t, const uint64_t range[2]) {
    char what[160];
    uint64_t bytes = 1;
    if (range[0] > range[1]) {
        snprintf(what, sizeof what, "begins at data byte %llu, after its end %llu", (unsigned long long)range[0],
                 (unsigned long long)range[1]);
        return fail_tensor(h, RQ_ERR_FORMAT, t->name, what);
    }
    bool fits = true;
    for (unsigned d = 0; d < t->rank; d++) fits = fits && rq_mul_u64(bytes, t->shape[d], &bytes);
    if (!fits || !rq_mul_u64(bytes, rq_dtype_bytes(t->dtype), &bytes))
        return fail_tensor(h, RQ_ERR_FORMAT, t->name, "the size that its shape gives does not fit 64 bits");
    if (bytes != range[1] - range[0]) {
        snprintf(what, sizeof what, "its shape needs %llu bytes, its data_offsets hold %llu", (unsigned long long)bytes,
                 (unsigned long long)(range[1] - range[0]));
        return fail_tensor(h, RQ_ERR_FORMAT, t->name, what);
    }
    t->offset = range[0];
    t->bytes = bytes;
    return true;
}

static unsigned field_named(const char *key) {
    if (strcmp(key, "dtype") == 0) return HAS_DTYPE;
    if (strcmp(key, "shape") == 0) return HAS_SHAPE;
    return strcmp(key, "data_offsets") == 0 ? HAS_OFFSETS : 0;
}

static bool entry_field(header_parser *h, rq_tensor_info *t, uint64_t range[2], unsigned *seen) {
    const char *key = "";
    size_t length = 0;
    unsigned count = 0;
    if (!string(h, &key, &length)) return false;
    if (!take(h, ':')) return fail_here(h, "expected ':'");
    const unsigned field = field_named(key);
    if (field & *seen) return fail_tensor(h, RQ_ERR_FORMAT, t->name, "a field is given twice");
    *seen |= field;
    if (field == HAS_DTYPE) {
        const char *dtype = NULL;
        char what[96];
        if (peek(h) != '"') return fail_tensor(h, RQ_ERR_FORMAT, t->name, "dtype is not a string");
        if (!string(h, &dtype, &length)) return false;
        if (rq_dtype_parse(dtype, &t->dtype)) return true;
        snprintf(what, sizeof what, "dtype \"%.40s\" is not one this reader knows", dtype);
        return fail_tensor(h, RQ_ERR_UNSUPPORTED, t->name, what);
    }
    if (field == HAS_SHAPE) return integers(h, t->name, "shape", t->shape, RQ_MAX_RANK, &t->rank);
    if (field == HAS_OFFSETS) {
        if (!integers(h, t->name, "data_offsets", range, 2, &count)) return false;
        return count == 2 || fail_tensor(h, RQ_ERR_FORMAT, t->name, "data_offsets: expected two numbers");
    }
    return skip_value(h, 0);
}

static bool entry(header_parser *h, rq_tensor_info *t) {
    uint64_t range[2] = {0, 0};
    unsigned seen = 0;
    if (!take(h, '{')) return fail_tensor(h, RQ_ERR_FORMAT, t->name, "its entry is not an object");
    if (!take(h, '}')) {
        do {
            if (!entry_field(h, t, range, &seen)) return false;
        } while (take(h, ','));
        if (!take(h, '}')) return fail_here(h, "expected ',' or '}'");
    }
    if (seen != HAS_ALL) return fail_tensor(h, RQ_ERR_FORMAT, t->name, "its entry lacks dtype, shape or data_offsets");
    return check_entry(h, t, range);
}

static bool entries(header_parser *h, rq_tensor_info *infos, size_t capacity, size_t *count) {
    (void)capacity; /* unused without asserts */
    bool has_metadata = false;
    *count = 0;
    if (!take(h, '{')) return fail_here(h, "expected an object");
    if (!take(h, '}')) {
        do {
            const char *name = NULL;
            size_t length = 0;
            if (!string(h, &name, &length)) return false;
            if (!take(h, ':')) return fail_here(h, "expected ':'");
            if (strcmp(name, "__metadata__") == 0) {
                if (has_metadata) return fail_here(h, "__metadata__ is given twice");
                has_metadata = true;
                if (!metadata(h)) return false;
                continue;
            }
            assert(*count < capacity); /* every complete entry before this one took MIN_ENTRY_BYTES */
            rq_tensor_info *t = &infos[*count];
            *t = (rq_tensor_info){.name = name};
            h->names_used += length + 1;
            if (!entry(h, t)) return false;
            ++*count;
        } while (take(h, ','));
        if (!take(h, '}')) return fail_here(h, "expected ',' or '}'");
    }
    skip_space(h);
    return h->p == h->end || fail_here(h, "text after the closing brace");
}

static int by_offset(const void *a, const void *b) {
    const rq_tensor_info *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const rq_tensor_info *const *)a)->name, (*(const rq_tensor_info *const *)b)->name);
}

static rq_status check_names(const header_parser *h, const rq_tensor_info *infos, size_t count) {
    rq_status st = RQ_OK;
    const rq_tensor_info **sorted = malloc((count ? count : 1) * sizeof(rq_tensor_info *));
    if (!sorted) return rq_fail(h->err, RQ_ERR_NOMEM, "%s: no memory for %zu tensors", h->label, count);
    for (size_t i = 0; i < count; i++) sorted[i] = &infos[i];
    qsort(sorted, count, sizeof(rq_tensor_info *), by_name);
    for (size_t i = 1; i < count && st == RQ_OK; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            st = rq_fail(h->err, RQ_ERR_FORMAT, "%s: the header names tensor \"%s\" twice", h->label, sorted[i]->name);
    free(sorted);
    return st;
}

/* The tensors, in order of offset, tile [0, data_bytes). */
static rq_status check_coverage(const header_parser *h, const rq_tensor_info *infos, size_t count,
                                uint64_t data_bytes) {
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const rq_tensor_info *t = &infos[i];
        const uint64_t end = t->offset + t->bytes;
        if (end > data_bytes)
            return rq_fail(h->err, RQ_ERR_FORMAT,
                           "%s: truncated: tensor \"%s\" ends at data byte %llu, the file has %llu data bytes",
                           h->label, t->name, (unsigned long long)end, (unsigned long long)data_bytes);
        if (t->offset < at)
            return rq_fail(h->err, RQ_ERR_FORMAT,
                           "%s: tensor \"%s\" begins at data byte %llu, inside tensor \"%s\", which ends at %llu",
                           h->label, t->name, (unsigned long long)t->offset, infos[i - 1].name, (unsigned long long)at);
        if (t->offset > at)
            return rq_fail(h->err, RQ_ERR_FORMAT,
                           "%s: data bytes %llu to %llu, before tensor \"%s\", belong to no tensor", h->label,
                           (unsigned long long)at, (unsigned long long)t->offset, t->name);
        at = end;
    }
    if (at != data_bytes)
        return rq_fail(h->err, RQ_ERR_FORMAT, "%s: %llu bytes after the last tensor belong to no tensor", h->label,
                       (unsigned long long)(data_bytes - at));
    return RQ_OK;
}

rq_status rq_safetensors_parse_header(const char *label, const char *header, size_t header_bytes, uint64_t data_bytes,
                                      rq_tensor_info **infos, size_t *count, rq_error *err) {
    if (header_bytes == 0 || header_bytes > RQ_SAFETENSORS_HEADER_MAX)
        return rq_fail(err, RQ_ERR_FORMAT, "%s: header length %zu, expected 1 to %u", label, header_bytes,
                       RQ_SAFETENSORS_HEADER_MAX);
    const size_t capacity = header_bytes / MIN_ENTRY_BYTES + 1;
    size_t n = 0;
    char *block = malloc(capacity * sizeof(rq_tensor_info) + header_bytes);
    if (!block) return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a header of %zu bytes", label, header_bytes);
    rq_tensor_info *table = (rq_tensor_info *)(void *)block;
    header_parser h = {.label = label,
                       .start = (const unsigned char *)header,
                       .p = (const unsigned char *)header,
                       .end = (const unsigned char *)header + header_bytes,
                       .names = block + capacity * sizeof *table,
                       .err = err};
    if (!entries(&h, table, capacity, &n)) goto failed;
    if ((h.status = check_names(&h, table, n)) != RQ_OK) goto failed;
    qsort(table, n, sizeof *table, by_offset);
    if ((h.status = check_coverage(&h, table, n, data_bytes)) != RQ_OK) goto failed;

    *infos = table; /* its unused middle was never touched, so it costs addresses, not memory */
    *count = n;
    return RQ_OK;
failed:
    free(block);
    return h.status;
}
