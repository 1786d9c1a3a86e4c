/* The conversion: apply a plan to a checkpoint, streamed, into a directory that appears atomically.
 *
 * Planning (rotq/plan.h) fixes every output byte's place before the first weight is read, so work is a static list of
 * units that threads take in order and whose results go to known offsets. Output bytes depend on source, options and
 * seed only. */
#ifndef ROTQ_CONVERT_H
#define ROTQ_CONVERT_H

#include "rotq/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The converter's own memory stays below this, and the number of threads gives way to keep it so. A dense R1 (random,
 * or read from a file) comes on top with 16 bytes per element while it is made, 8 afterwards: 0.4 GB at hidden size
 * 5120. */
#define RQ_CONVERT_MEMORY ((uint64_t)1 << 30)

typedef enum rq_fold_precision { RQ_FOLD_F64, RQ_FOLD_F32 } rq_fold_precision;

typedef struct rq_progress {
    const char *tensor;               /* most recently started */
    uint64_t bytes_done, bytes_total; /* of source weights */
    double seconds;
} rq_progress;

typedef struct rq_convert_options {
    rq_plan_options plan;
    rq_fold_precision fold_precision;
    bool allow_nonfinite;
    bool force;               /* replace an existing output directory */
    bool sync;                /* fsync everything before the directory appears */
    unsigned threads;         /* 0: the CPUs this process may use */
    uint64_t max_shard_bytes; /* 0: 5 GiB */
    size_t slot_bytes;        /* 0: 256 MiB; matrices rotated on their output side are cut into columns to fit */
    /* Called from one thread at a time, at most ten times a second; may be NULL. */
    void (*progress)(void *context, const rq_progress *progress);
    void *progress_context;
    /* Asked now and then, from any thread: true stops the run, which leaves nothing behind. May be NULL. */
    bool (*should_stop)(void *context);
    void *stop_context;
} rq_convert_options;

RQ_EXPORT void rq_convert_options_init(rq_convert_options *options);

typedef struct rq_convert_result {
    uint64_t source_bytes, output_bytes; /* of all tensors in the directories */
    double seconds, cpu_seconds;
    uint64_t peak_memory_bytes; /* peak resident size of the process (VmHWM), mapped files included */
    double bits_per_weight;
    unsigned threads;
    const char *kernel; /* static: "scalar", "avx2", "avx512", "neon" */
} rq_convert_result;

/* Converts directory `src` into `dst` (which must not exist, unless force). On any failure dst is as it was before. */
RQ_EXPORT RQ_CHECK rq_status rq_convert(const char *src, const char *dst, const rq_convert_options *options,
                                        rq_convert_result *result, rq_notes *notes, rq_error *err);

/* Upper estimate of the converter's own memory for a plan, from shapes and thread count (0: default) alone. */
RQ_EXPORT uint64_t rq_convert_memory(const rq_plan *plan, unsigned threads);

#ifdef __cplusplus
}
#endif
#endif
