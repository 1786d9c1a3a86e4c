/* Small things everything uses: checked sizes, alignment, little-endian access, text building, files.
 * Internal; nothing here is exported. */
#ifndef RQ_BASE_H
#define RQ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rotq/error.h"

#define RQ_COUNT_OF(a) (sizeof(a) / sizeof *(a))

static inline size_t rq_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline uint64_t rq_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Products and sums of untrusted numbers: false on overflow, *out then unspecified. */
static inline bool rq_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool rq_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool rq_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

static inline uint64_t rq_round_up_u64(uint64_t x, uint64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

uint64_t rq_load_u64_le(const unsigned char *p);
void rq_store_u64_le(unsigned char *p, uint64_t x);

/* 64-byte aligned, size rounded up; huge pages are suggested for large blocks. NULL when out of memory. */
void *rq_aligned_alloc(size_t bytes);
void rq_aligned_free(void *p);

/* printf into fresh memory; NULL when out of memory. */
char *rq_format(const char *format, ...) RQ_PRINTF(1, 2);
char *rq_strdup(const char *text);
bool rq_has_suffix(const char *text, const char *suffix);
bool rq_has_prefix(const char *text, const char *prefix);
/* Shell-like pattern: '*' any run (dots included), '?' one character. The whole name must match. */
bool rq_glob_match(const char *pattern, const char *name);

/* Growing text buffer; a failed append sets `failed` and later calls do nothing. */
typedef struct rq_text {
    char *data; /* NUL-terminated once anything was appended; owned */
    size_t length, capacity;
    bool failed;
} rq_text;
void rq_text_append(rq_text *text, const char *format, ...) RQ_PRINTF(2, 3);
void rq_text_deinit(rq_text *text);

/* Bump allocator for plan-time strings and tables; freed at once. Zeroed means empty. */
typedef struct rq_arena {
    struct rq_arena_chunk *head;
} rq_arena;
void *rq_arena_alloc(rq_arena *arena, size_t bytes); /* 16-byte aligned, zeroed; NULL when out of memory */
char *rq_arena_format(rq_arena *arena, const char *format, ...) RQ_PRINTF(2, 3);
void rq_arena_deinit(rq_arena *arena);

/* Whole file into fresh memory, NUL added after *bytes. RQ_ERR_FORMAT above `limit`. */
RQ_CHECK rq_status rq_read_file(const char *path, size_t limit, char **data, size_t *bytes, rq_error *err);
/* Creates or truncates; short writes and errors at close are errors. */
RQ_CHECK rq_status rq_write_file(const char *path, const void *data, size_t bytes, rq_error *err);
RQ_CHECK rq_status rq_copy_file(const char *from, const char *to, rq_error *err);
RQ_CHECK rq_status rq_remove_tree(const char *path, rq_error *err); /* missing is fine */
bool rq_path_exists(const char *path);
bool rq_is_directory(const char *path);
char *rq_path_join(const char *directory, const char *name); /* owned; NULL when out of memory */

/* SHA-256 of a buffer as 64 hex digits and NUL. */
void rq_sha256_hex(const void *data, size_t bytes, char hex[65]);

/* Monotonic seconds; CPU seconds of the process. */
double rq_now(void);
double rq_cpu_seconds(void);

#endif
