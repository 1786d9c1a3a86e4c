/* Orthogonal rotations Q [n, n] that the fold moves into weight pairs.
 *
 * signed-hadamard   Q = diag(s) (H_K (x) S_{2^m}) / sqrt(n),  n = K * 2^m; s in {-1,+1}^n; S Sylvester; H_K generated
 *                   by the constructions of docs/rotations.md (Sylvester, Paley I and II, Williamson, doubling)
 * block-hadamard    Q = I_{n/B} (x) (diag(s) H_B / sqrt(B)), the same signed block everywhere
 * dense             any orthogonal matrix, row-major f64 in memory, stored in a safetensors file beside the sidecar
 * identity
 *
 * Both folds are one map on vectors, v -> Q^T v: `W Q` applies it to the rows of W, `Q^T W` to its columns.
 *
 * Signs come from Philox4x32-10 (Salmon et al. 2011): key = seed, counter = (block low, block high, stream, 0); sign i
 * is bit i%32 of word (i/32)%4 of block i/128, a set bit means -1. Streams: 0 for R1, 1 + layer for R2.
 * Sources: QuaRot (arXiv 2404.00456), SpinQuant (arXiv 2405.16406), Paley 1933, Williamson 1944. */
#ifndef ROTQ_ROTATION_H
#define ROTQ_ROTATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rotq/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rq_rotation_kind {
    RQ_ROTATION_IDENTITY,
    RQ_ROTATION_HADAMARD,
    RQ_ROTATION_BLOCK_HADAMARD,
    RQ_ROTATION_DENSE
} rq_rotation_kind;

/* One matrix. Plain data: zeroed means empty; rq_rotation_deinit frees what it owns. Read-only once made. */
typedef struct rq_rotation {
    rq_rotation_kind kind;
    size_t n;     /* Q is [n, n] */
    size_t order; /* order of the Hadamard transform: n, or the block size B; 0 for dense and identity */
    size_t K;     /* order = K * 2^m; K is 1 or 4 * odd */
    unsigned m;
    const char *construction; /* "sylvester", "paley1", "paley2", "williamson", "doubling" (of H_K); static text */
    int8_t *hk;               /* [K, K] row-major, +1 or -1; owned; NULL for dense and identity */
    double *signs;            /* [n], +1 or -1; owned; NULL for dense and identity */
    double *dense;            /* [n, n] row-major; owned; dense only */
    uint64_t seed;
    uint32_t stream;
} rq_rotation;

/* Writes K and m of order = K * 2^m and returns true when a Hadamard matrix of this order can be generated. */
RQ_EXPORT bool rq_hadamard_split(size_t order, size_t *K, unsigned *m, const char **construction);
/* H_K into out [K, K]; false when there is no construction. K = 1 or a multiple of 4 (or 2). */
RQ_EXPORT bool rq_hadamard_matrix(size_t K, int8_t *out);

/* RQ_ERR_UNSUPPORTED when `order` (n, or block) has no Hadamard form: the sentence names `--rotation random`. */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_hadamard(size_t n, uint64_t seed, uint32_t stream, rq_rotation *q,
                                                  rq_error *err);
RQ_EXPORT RQ_CHECK rq_status rq_rotation_block_hadamard(size_t n, size_t block, uint64_t seed, uint32_t stream,
                                                        rq_rotation *q, rq_error *err);
/* Haar-distributed Q of a Gaussian matrix's QR, any n; the same doubles on every machine. O(n^3). */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_random(size_t n, uint64_t seed, uint32_t stream, rq_rotation *q,
                                                rq_error *err);
RQ_EXPORT RQ_CHECK rq_status rq_rotation_identity(size_t n, rq_rotation *q, rq_error *err);
/* Takes a copy of q [n, n]; RQ_ERR_SHAPE unless max |Q^T Q - I| <= 1e-5. */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_dense(size_t n, const double *q_matrix, rq_rotation *q, rq_error *err);
RQ_EXPORT void rq_rotation_deinit(rq_rotation *q);

/* Q as a dense matrix, out [n, n] row-major. */
RQ_EXPORT void rq_rotation_to_dense(const rq_rotation *q, double *out);
/* max |Q^T Q - I|; O(n^2 log n) for the Hadamard kinds, O(n^3) for dense. Negative when out of memory. */
RQ_EXPORT double rq_rotation_orthogonality_error(const rq_rotation *q);

/* What the command line asks for. A seed above 2^63 - 1 is RQ_ERR_USAGE: the sidecar holds a JSON integer. */
typedef struct rq_rotation_spec {
    enum { RQ_SPEC_HADAMARD, RQ_SPEC_BLOCK, RQ_SPEC_RANDOM, RQ_SPEC_NONE, RQ_SPEC_FILE } r1;
    size_t block;     /* RQ_SPEC_BLOCK */
    const char *file; /* RQ_SPEC_FILE: a rotation sidecar or its directory; seed and r2 are then the file's. Borrowed */
    enum { RQ_R2_HADAMARD, RQ_R2_RANDOM, RQ_R2_NONE } r2;
    uint64_t seed;
} rq_rotation_spec;

/* "hadamard" | "block:B" | "random" | "none" | a path to a sidecar (contains '/', ends in .json, or is a directory).
 * Writes r1, block and file (borrows text) only. */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_spec_parse(const char *text, rq_rotation_spec *spec, rq_error *err);

/* All rotations of one model: R1 on the residual stream and one R2 per layer in head space. */
typedef struct rq_rotation_set {
    uint64_t seed;
    rq_rotation r1;
    rq_rotation *r2; /* [n_layers]; NULL when there is no R2 */
    size_t n_layers;
} rq_rotation_set;

/* head_dim 0: the family has no R2. RQ_SPEC_FILE reads the sidecar and checks n, head_dim and n_layers. */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_set_make(const rq_rotation_spec *spec, size_t hidden, size_t head_dim,
                                                  size_t n_layers, rq_rotation_set *set, rq_error *err);
RQ_EXPORT void rq_rotation_set_deinit(rq_rotation_set *set);

/* The sidecar: rotation.json, and rotation.safetensors beside it when a matrix is dense (F64). Byte-stable: keys
 * sorted, same set same bytes. rebuild is exact: Hadamard kinds from the seed (digests of signs and H_K verified),
 * dense from the file (sha256 verified). `path` is the json file, or a directory that holds it as rotation.json; the
 * safetensors name is in it, relative, never leaving its directory. */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_set_write(const rq_rotation_set *set, const char *directory, rq_error *err);
RQ_EXPORT RQ_CHECK rq_status rq_rotation_set_read(const char *path, rq_rotation_set *set, rq_error *err);
/* As _read, from a JSON text in memory (the fuzz target); dense kinds resolve files in `directory`, and are
 * RQ_ERR_MISSING when it is NULL. */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_set_parse(const char *text, size_t bytes, const char *directory,
                                                   rq_rotation_set *set, rq_error *err);
/* The text that _write would put into rotation.json; owned by the caller, freed with free(). */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_set_json(const rq_rotation_set *set, char **text, rq_error *err);
/* Every matrix written out, whatever its kind: a safetensors file with F64 tensors "R1" and "R2.<layer>". */
RQ_EXPORT RQ_CHECK rq_status rq_rotation_set_export(const rq_rotation_set *set, const char *path, rq_error *err);

/* The random stream itself, for tests and other users. */
RQ_EXPORT void rq_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
RQ_EXPORT void rq_philox_signs(uint64_t seed, uint32_t stream, double *signs, size_t n);

#ifdef __cplusplus
}
#endif
#endif
