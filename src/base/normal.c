#include "base/normal.h"

#include <math.h>
#include <string.h>

#include "rotq/rotation.h"

double rq_exact_order_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m); /* [1, 2) */
    if (m > 1.4142135623730951) {
        m *= 0.5; /* so that no x just below 1 is a difference of two larger logarithms */
        exponent++;
    }
    /* log m = 2 atanh f = 2 (f + f^3/3 + f^5/5 + ...), |f| < 0.1716: eleven terms leave 2^-60. */
    const double f = (m - 1.0) / (m + 1.0);
    const double g = f * f;
    double tail = 1.0 / 21.0;
    for (int d = 19; d >= 3; d -= 2) tail = tail * g + 1.0 / d;
    const double high = 0x1.62e42feep-1, low = 0x1.a39ef35793c76p-33; /* ln 2; exponent * high is exact */
    const double small = 2.0 * f * g * tail + exponent * low;
    return exponent * high + (2.0 * f + small);
}

/* Odd multiples of 2^-53 in (-1, 1): symmetric, and never 0. */
static double symmetric_uniform(uint32_t high, uint32_t low) {
    const int64_t integer = (int64_t)(((uint64_t)high << 32 | low) >> 11); /* 53 bits */
    return (double)(2 * integer + 1 - ((int64_t)1 << 53)) * 0x1p-53;
}

double rq_normals_next(rq_normals *normals) {
    if (normals->has_spare) {
        normals->has_spare = false;
        return normals->spare;
    }
    const uint32_t key[2] = {(uint32_t)normals->seed, (uint32_t)(normals->seed >> 32)};
    for (;;) {
        const uint64_t a = normals->attempt++;
        const uint32_t counter[4] = {(uint32_t)a, (uint32_t)(a >> 32), normals->stream, 1};
        uint32_t word[4];
        rq_philox4x32(counter, key, word);
        const double u = symmetric_uniform(word[0], word[1]), v = symmetric_uniform(word[2], word[3]);
        const double s = u * u + v * v;
        if (s >= 1.0) continue;
        const double factor = sqrt(-2.0 * rq_exact_order_log(s) / s);
        normals->spare = v * factor;
        normals->has_spare = true;
        return u * factor;
    }
}
