/* Hadamard matrices H_K, generated: no table but four small integers for each of three Williamson orders.
 *
 * rq_hadamard_split and rq_hadamard_matrix are declared in rotq/rotation.h. The rule that applies is a function of K
 * alone, first of: Sylvester (K = 2^m), Paley I (K - 1 prime), Paley II (K/2 - 1 a prime = 1 mod 4), Williamson (K/4
 * has a stored quadruple), doubling (K/2 has a matrix). docs/rotations.md has the formulas.
 * Sources: Paley 1933, Williamson 1944, Sylvester 1867. */
#ifndef RQ_HADAMARD_H
#define RQ_HADAMARD_H

#include <stddef.h>
#include <stdint.h>

#include "rotq/rotation.h"

/* The K x K product is dense, so a large K costs what the fast transform was to save; it also bounds what a hostile
 * sidecar can make us allocate (256 KiB). Every K of the list is below 200. */
#define RQ_HADAMARD_K_MAX 512u

/* Name of the construction that serves K (static text), NULL when there is none. */
const char *rq_hadamard_construction(size_t K);

/* Digest of the canonical text of a +-1 matrix: rows of '+' and '-', each ended by a newline. Needs no memory that can
 * run out in practice: returns false only then. */
RQ_CHECK bool rq_hadamard_sha256(const int8_t *hk, size_t K, char hex[65]);

#endif
