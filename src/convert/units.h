/* The static work list of a conversion.
 *
 * Tasks say what is done to a tensor (or a column range of one) with resolved numbers; units are the pieces that
 * threads take in order. A unit may wait for a stage (a set of units), always one that stands entirely before it in the
 * list; a thread that has to wait holds nothing that others need, so the list cannot deadlock.
 *
 *   rows    read a block of rows, input side, block-diagonal output side, round, quantize, write
 *   load    read a block of rows into a slot, input side applied
 *   panel   output side on a panel of columns of the slot, round, quantize into the slot's output
 *   store   write a block of rows of the slot's output
 *
 * Planning here is pure: extents and options in, lists out. */
#ifndef RQ_UNITS_H
#define RQ_UNITS_H

#include "convert/layout.h"
#include "kernels/kernels.h"
#include "rotq/convert.h"

#define RQ_SLOTS 2
#define RQ_NO_STAGE UINT32_MAX

typedef enum rq_unit_kind { RQ_UNIT_ROWS, RQ_UNIT_LOAD, RQ_UNIT_PANEL, RQ_UNIT_STORE } rq_unit_kind;

/* A rotation made ready for the kernels at the working precision. signs and matrix are double or float. */
typedef struct rq_applied {
    const rq_rotation *rotation;
    const rq_fwht *fwht; /* Hadamard kinds */
    const void *signs;   /* [rotation->n], NULL for dense */
    const void *matrix;  /* [n, n], dense */
} rq_applied;

typedef struct rq_task {
    const rq_plan_tensor *tensor;
    const rq_tensor_layout *place;
    uint64_t rows, cols;        /* of the whole tensor */
    uint64_t col0, width;       /* this task's columns; the whole tensor for rows units */
    bool columns;               /* load / panel / store instead of rows */
    bool ones;                  /* write ones, read nothing */
    bool chunked;               /* a vector without operations: its rows units are ranges of elements */
    bool dense;                 /* a rotation of this task may be a dense matrix, which needs more scratch */
    bool raw;                   /* stored elements are the source's: copied */
    const rq_applied *in, *out; /* NULL when there is no rotation on that side */
    const void *load_gain;      /* [cols], real: gain and the input rotation's signs; NULL means 1 */
    const void *out_signs;      /* [rows] (or [cols] of a vector), real; NULL means 1 */
    double scale;               /* product of the rotations' 1/sqrt(order) */
    uint32_t block_rows;        /* of rows, load and store units */
    uint32_t panel_cols;        /* of panel units */
    unsigned slot;
    rq_dtype slot_dtype;        /* elements in the slot: the source's, or the working precision after an input side */
    size_t in_bytes, out_bytes; /* the slot's two buffers */
} rq_task;

typedef struct rq_unit {
    rq_unit_kind kind;
    uint32_t task;
    uint64_t begin, end; /* rows; columns relative to col0 for panels */
    uint32_t stage;      /* counted down when the unit is done, or RQ_NO_STAGE */
    uint32_t wait;       /* must be counted down to zero first, or RQ_NO_STAGE */
} rq_unit;

typedef struct rq_units {
    rq_task *tasks; /* owned */
    size_t n_tasks;
    rq_unit *units; /* owned */
    size_t n_units;
    uint32_t *stages; /* [n_stages] units per stage; owned */
    size_t n_stages;
    size_t slot_in_bytes, slot_out_bytes; /* per slot */
    size_t scratch_bytes;                 /* per thread */
    uint64_t source_bytes;                /* all that is read */
} rq_units;

/* Tasks with extents and sizes but without numbers (in, out, gains are filled by the engine). `real_bytes` is 8 or 4.
 * Columns are cut so that one slot stays below RQ_SLOT_BYTES. */
#define RQ_SLOT_BYTES ((size_t)256 << 20)
RQ_CHECK rq_status rq_units_make(const rq_plan *plan, const rq_layout *layout, size_t real_bytes, size_t slot_bytes,
                                 rq_units *units, rq_error *err);
void rq_units_deinit(rq_units *units);

/* Scratch layout of one thread, sizes for task t; the engine carves the same pieces. */
typedef struct rq_scratch_sizes {
    size_t raw, work, work2, values, codes, scales, biases;
} rq_scratch_sizes;
rq_scratch_sizes rq_task_scratch(const rq_task *task, size_t real_bytes);
size_t rq_scratch_total(const rq_scratch_sizes *s);

/* Ops of a plan tensor, by side. */
const rq_op *rq_find_op(const rq_plan_tensor *tensor, rq_op_kind kind);
static inline bool rq_has_op(const rq_plan_tensor *tensor, rq_op_kind kind) { return rq_find_op(tensor, kind) != NULL; }

/* Columns transformed at once: a cache line of working precision. 5120 rows of 8 doubles are 320 KiB, inside a
 * second-level cache. */
static inline size_t rq_subpanel(size_t real_bytes) { return 64 / real_bytes; }
/* A slot holds its matrix in strips of this many columns, each [rows][RQ_STRIP]: panels then read memory in order,
 * where whole rows would be a page or more apart. */
#define RQ_STRIP ((size_t)32)
#define RQ_DENSE_ROWS 16 /* rows that share one pass over a dense rotation */

#endif
