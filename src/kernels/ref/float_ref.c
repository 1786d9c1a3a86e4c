/* Scalar conversions of the small float types. NaN handling follows the hardware instructions (quieted, payload kept),
 * so that a SIMD kernel may use those. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float rq_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1f) return float_of(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0));
    if (exponent == 0) { /* zero or subnormal: an integer times 2^-24, exact */
        const float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t rq_f32_to_f16(float f) {
    const uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to infinity */
    if (a < 0x38800000u) { /* below 2^-14: adding 2^23 * 2^-24 rounds at the subnormal step, ties to even */
        const float shifted = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13));
}

float rq_e4m3_to_f32(uint8_t c) {
    const uint32_t sign = (uint32_t)(c & 0x80u) << 24, a = c & 0x7fu;
    if (a == 0x7f) return float_of(sign | 0x7fc00000u);
    if (a < 8) return sign ? -(float)a * 0x1p-9f : (float)a * 0x1p-9f;
    return float_of(sign | ((a << 20) + (120u << 23)));
}

uint8_t rq_f32_to_e4m3(float f) {
    const uint32_t u = bits_of(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 and more, infinity, NaN */
    /* 2^(e+20) has the spacing 2^(e-3) of E4M3 in [2^e, 2^(e+1)), and 2^-9 below 2^-6: the sum rounds at that step, and
     * its low bits count the steps. A count of 16 carries into the exponent by itself. */
    const uint32_t exponent = (a & 0x7f800000u) > 0x3c800000u ? a & 0x7f800000u : 0x3c800000u;
    const uint32_t step = exponent + (20u << 23);
    const uint32_t code = bits_of(float_of(a) + float_of(step)) - step + ((exponent - 0x3c800000u) >> 20);
    return (uint8_t)(sign | (code < 0x7eu ? code : 0x7eu));
}
