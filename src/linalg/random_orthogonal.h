/* Haar-distributed orthogonal matrices, the same doubles on every machine and for every number of threads.
 *
 * The Q of G = Q R, G Gaussian and R's diagonal positive, is Haar-distributed (Mezzadri, arXiv math-ph/0609050). We
 * never form G: after k reflections the rest of column k is again a fresh Gaussian vector, independent of the earlier
 * ones, so the k-th reflector may be made from n - k new normals (Stewart 1980, "The efficient generation of random
 * orthogonal matrices"). Q = H_0 H_1 ... H_{n-2} D with D the signs that make R's diagonal positive.
 *
 * Order of operations: a dot product has eight partial sums (element j goes to sum j mod 8) added as
 * ((0+4)+(2+6)) + ((1+5)+(3+7)); rows of Q^T are independent of each other. */
#ifndef RQ_RANDOM_ORTHOGONAL_H
#define RQ_RANDOM_ORTHOGONAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rotq/error.h"

/* Q [n, n] row-major into out; 4/3 n^3 operations. Scratch of n (n + 1) / 2 doubles: false when there is no memory. */
RQ_CHECK bool rq_random_orthogonal(size_t n, uint64_t seed, uint32_t stream, double *out);

/* max |Q^T Q - I| of any Q [n, n], infinite when an element is not finite. n^3 operations, threaded. Scratch of n
 * (n + 3) doubles: -1 when there is no memory. */
double rq_dense_orthogonality_error(const double *q, size_t n);

#endif
