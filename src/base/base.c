#include "base/base.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

uint64_t rq_load_u64_le(const unsigned char *p) {
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

void rq_store_u64_le(unsigned char *p, uint64_t x) {
    for (int i = 0; i < 8; i++) p[i] = (unsigned char)(x >> 8 * i);
}

void *rq_aligned_alloc(size_t bytes) {
    const size_t huge = (size_t)2 << 20;
    if (bytes > SIZE_MAX - huge) return NULL;
    const size_t align = bytes >= huge ? huge : 64;
    const size_t size = (bytes + align - 1) / align * align;
    void *p = NULL;
    if (posix_memalign(&p, align, size ? size : align) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (align == huge) (void)madvise(p, size, MADV_HUGEPAGE); /* fewer TLB misses in strided panels; only advice */
#endif
    return p;
}

void rq_aligned_free(void *p) { free(p); }

static char *format_v(const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    char *text = n < 0 ? NULL : malloc((size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}

char *rq_format(const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_v(format, args);
    va_end(args);
    return text;
}

char *rq_strdup(const char *text) {
    const size_t n = strlen(text) + 1;
    char *copy = malloc(n);
    if (copy) memcpy(copy, text, n);
    return copy;
}

bool rq_has_suffix(const char *text, const char *suffix) {
    const size_t n = strlen(text), k = strlen(suffix);
    return n >= k && memcmp(text + n - k, suffix, k) == 0;
}

bool rq_has_prefix(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

/* Greedy with one point of return: linear in practice, at worst pattern times name. */
bool rq_glob_match(const char *pattern, const char *name) {
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

void rq_text_append(rq_text *text, const char *format, ...) {
    if (text->failed) return;
    va_list args;
    va_start(args, format);
    char *piece = format_v(format, args);
    va_end(args);
    if (!piece) {
        text->failed = true;
        return;
    }
    const size_t n = strlen(piece);
    if (text->length + n + 1 > text->capacity) {
        const size_t capacity = 2 * (text->length + n + 1);
        char *data = realloc(text->data, capacity);
        if (!data) {
            free(piece);
            text->failed = true;
            return;
        }
        text->data = data;
        text->capacity = capacity;
    }
    memcpy(text->data + text->length, piece, n + 1);
    text->length += n;
    free(piece);
}

void rq_text_deinit(rq_text *text) {
    free(text->data);
    *text = (rq_text){0};
}

struct rq_arena_chunk {
    struct rq_arena_chunk *next;
    size_t used, size;
    max_align_t data[];
};

void *rq_arena_alloc(rq_arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 15) / 16 * 16;
    struct rq_arena_chunk *chunk = arena->head;
    if (!chunk || chunk->size - chunk->used < bytes) {
        const size_t size = bytes > 65536 ? bytes : 65536;
        chunk = calloc(1, sizeof *chunk + size);
        if (!chunk) return NULL;
        chunk->size = size;
        chunk->next = arena->head;
        arena->head = chunk;
    }
    void *p = (char *)chunk->data + chunk->used;
    chunk->used += bytes;
    return p;
}

char *rq_arena_format(rq_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_v(format, args);
    va_end(args);
    if (!text) return NULL;
    const size_t n = strlen(text) + 1;
    char *copy = rq_arena_alloc(arena, n);
    if (copy) memcpy(copy, text, n);
    free(text);
    return copy;
}

void rq_arena_deinit(rq_arena *arena) {
    while (arena->head) {
        struct rq_arena_chunk *next = arena->head->next;
        free(arena->head);
        arena->head = next;
    }
}

void rq_sha256_hex(const void *data, size_t bytes, char hex[65]) {
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};
    unsigned n = 0;
    (void)EVP_Digest(data, bytes, digest, &n, EVP_sha256(), NULL);
    for (size_t i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

double rq_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double rq_cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}
