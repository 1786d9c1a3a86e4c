/* Status codes, the error sentence, and notes.
 *
 * Everything that can fail returns rq_status and takes a last argument `rq_error *err`, which may be NULL and on
 * failure receives one sentence: which file, tensor, byte or line; what was found; what was expected.
 * The library never prints, exits or aborts on input.
 *
 * Notes are the other channel: things a user must hear about although the job went on (a tensor left dense, an index
 * that disagrees with its shards). They go to the terminal and into every machine-readable report.
 *
 * Thread safety: an rq_error or rq_notes belongs to one thread at a time. */
#ifndef ROTQ_ERROR_H
#define ROTQ_ERROR_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RQ_EXPORT __attribute__((visibility("default")))
#define RQ_CHECK __attribute__((warn_unused_result))
#define RQ_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define RQ_EXPORT
#define RQ_CHECK
#define RQ_PRINTF(fmt, args)
#endif

/* X(name, text, process exit code of the rotq program) */
#define RQ_STATUS_LIST(X)                                                                \
    X(OK, "ok", 0)                                                                       \
    X(ERR_USAGE, "wrong use of an option or function", 2)                                \
    X(ERR_IO, "reading or writing failed", 3)                                            \
    X(ERR_NOMEM, "out of memory", 4)                                                     \
    X(ERR_FORMAT, "malformed input file", 5)                                             \
    X(ERR_SHAPE, "tensor shapes do not fit", 6)                                          \
    X(ERR_MISSING, "a needed file or tensor is missing", 7)                              \
    X(ERR_UNSUPPORTED, "not supported, or refused because the result would be wrong", 8) \
    X(ERR_NONFINITE, "NaN or infinity in the weights", 9)                                \
    X(ERR_EXISTS, "the output exists", 10)                                               \
    X(ERR_MISMATCH, "a check found a difference", 11)                                    \
    X(ERR_INTERRUPTED, "interrupted", 130)

typedef enum rq_status {
#define RQ_STATUS_ENUM(name, text, code) RQ_##name,
    RQ_STATUS_LIST(RQ_STATUS_ENUM)
#undef RQ_STATUS_ENUM
} rq_status;

#define RQ_ERROR_BYTES 1024

typedef struct rq_error {
    rq_status status;
    char message[RQ_ERROR_BYTES]; /* one sentence, no trailing newline; truncated, never overrun */
} rq_error;

RQ_EXPORT const char *rq_status_text(rq_status status);
RQ_EXPORT int rq_status_exit_code(rq_status status);

/* Fills *err (when not NULL) with a formatted sentence. */
RQ_EXPORT void rq_set_error(rq_error *err, rq_status status, const char *format, ...) RQ_PRINTF(3, 4);
/* Fills *err and yields `status`, so that a failing line reads `return rq_fail(err, RQ_ERR_IO, ...)`. A macro, so that
 * compilers and analyzers see that the value is not RQ_OK. */
#define rq_fail(err, status, ...) (rq_set_error(err, status, __VA_ARGS__), (rq_status)(status))

typedef enum rq_note_level { RQ_NOTE_INFO, RQ_NOTE_WARNING } rq_note_level;

typedef struct rq_note {
    rq_note_level level;
    char *code; /* stable kebab-case identifier for scripts, e.g. "left-dense"; owned */
    char *text; /* one sentence; owned */
} rq_note;

typedef struct rq_notes {
    rq_note *items; /* [count], in the order they were added; owned */
    size_t count, capacity;
    size_t lost; /* notes that found no memory */
} rq_notes;

/* A zeroed rq_notes is empty and ready. rq_note_add on NULL does nothing; running out of memory counts in `lost`. */
RQ_EXPORT void rq_note_add(rq_notes *notes, rq_note_level level, const char *code, const char *format, ...)
    RQ_PRINTF(4, 5);
RQ_EXPORT void rq_notes_deinit(rq_notes *notes);

#ifdef __cplusplus
}
#endif
#endif
