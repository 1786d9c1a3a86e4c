/* Sizes we accept, and the one internal constructor. The limits come before every allocation, since a few bytes of
 * hostile sidecar could otherwise ask for any amount of memory; all are far above the models that exist. */
#ifndef RQ_ROTATE_LIMITS_H
#define RQ_ROTATE_LIMITS_H

#include "rotq/rotation.h"

#define RQ_ROTATION_MAX ((size_t)1 << 20)     /* Hadamard kinds and identity: 8 MiB of signs */
#define RQ_ROTATION_DENSE_MAX ((size_t)16384) /* 2 GiB of doubles */
#define RQ_ROTATION_DENSE_TOLERANCE 1e-5      /* learned matrices are often stored as f32 */
#define RQ_ROTATION_R2_MAX ((size_t)4096)     /* head_dim */
#define RQ_ROTATION_LAYERS_MAX ((size_t)4096)
#define RQ_ROTATION_R2_SIGNS_MAX ((size_t)1 << 20) /* head_dim * layers */
#define RQ_ROTATION_R2_HK_MAX ((size_t)1 << 26)    /* K * K * layers: each layer owns a copy of H_K */

#define RQ_ROTATION_SEED_MAX ((uint64_t)INT64_MAX) /* a JSON integer */

/* rq_rotation_dense without the copy: on success *q_matrix (from rq_aligned_alloc) moves into *q and is NULL. */
RQ_CHECK rq_status rq_rotation_adopt_dense(size_t n, double **q_matrix, rq_rotation *q, rq_error *err);

/* RQ_ERR_UNSUPPORTED when `layers` matrices of order head_dim are beyond the limits above. K is that of the Hadamard
 * form, 0 for dense matrices. */
RQ_CHECK rq_status rq_rotation_check_r2(size_t head_dim, size_t K, size_t layers, rq_error *err);

#endif
