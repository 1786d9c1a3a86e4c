/* Words of the sidecar's JSON that writer and reader share. docs/rotations.md shows whole files. */
#ifndef RQ_SIDECAR_H
#define RQ_SIDECAR_H

#include "rotq/rotation.h"

#define RQ_SIDECAR_FORMAT "rotq-rotation"
#define RQ_SIDECAR_VERSION 1
/* Names the constructions, the order of signs and the digests; changes when any of them does. */
#define RQ_SIDECAR_GENERATOR "rotq-hadamard-1"
#define RQ_SIDECAR_JSON "rotation.json"
#define RQ_SIDECAR_TENSORS "rotation.safetensors"

#define RQ_SIDECAR_APPLY_HADAMARD "W@Q, Q = diag(s) (HK x S) / sqrt(n)"
#define RQ_SIDECAR_APPLY_BLOCK "W@Q, Q = I x (diag(s) (HK x S) / sqrt(block))"
#define RQ_SIDECAR_APPLY_DENSE "W@Q, Q = tensor[row, column]"
#define RQ_SIDECAR_KRONECKER "HK-outer"
#define RQ_SIDECAR_RNG "philox4x32-10"
#define RQ_SIDECAR_R2_STREAM "1 + layer"
#define RQ_SIDECAR_R2_TENSOR "R2.<layer>"
#define RQ_SIDECAR_LAYERS "all"

/* Digest of the signs of `count` rotations: '+' and '-', `order` of each, nothing between. False without memory. */
RQ_CHECK bool rq_sidecar_signs_sha256(const rq_rotation *rotations, size_t count, char hex[65]);

#endif
