/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds of a
 * keyed bijection on a 128-bit counter. Stateless, so any sign of any stream can be made by itself. */
#include "rotq/rotation.h"

void rq_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio and sqrt(3) - 1: the Weyl sequence of the key schedule */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void rq_philox_signs(uint64_t seed, uint32_t stream, double *signs, size_t n) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4] = {0};
    for (size_t i = 0; i < n; i++) {
        if (i % 128 == 0) {
            const uint64_t block = i / 128;
            const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), stream, 0};
            rq_philox4x32(counter, key, word);
        }
        signs[i] = word[i / 32 % 4] >> (i % 32) & 1 ? -1.0 : 1.0;
    }
}
