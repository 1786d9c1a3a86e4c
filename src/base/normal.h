/* Standard normal numbers that are the same doubles on every machine.
 *
 * libm's log differs between platforms in the last bit, so the logarithm here is made of IEEE additions,
 * multiplications and divisions only; sqrt is correctly rounded everywhere.
 * Marsaglia's polar method on Philox4x32-10: attempt a uses counter (a low, a high, stream, 1). The last word keeps
 * normals apart from the signs of rotq/rotation.h, which use 0. */
#ifndef RQ_NORMAL_H
#define RQ_NORMAL_H

#include <stdbool.h>
#include <stdint.h>

/* A sequence: (seed, stream) names it. Plain data, one thread at a time. */
typedef struct rq_normals {
    uint64_t seed, attempt;
    uint32_t stream;
    bool has_spare;
    double spare; /* the polar method makes two at a time */
} rq_normals;

static inline rq_normals rq_normals_start(uint64_t seed, uint32_t stream) {
    return (rq_normals){.seed = seed, .stream = stream};
}
double rq_normals_next(rq_normals *normals);

/* Natural logarithm of a positive normal number, below 2 ulp. */
double rq_exact_order_log(double x);

#endif
