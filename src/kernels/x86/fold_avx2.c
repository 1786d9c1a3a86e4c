/* The fold on AVX2 + FMA: 4 doubles or 8 floats a vector, 16 registers. */
#include <immintrin.h>
#include <stdint.h>

#define VECTOR_BYTES 32
#define LANES_F64 4
#define LANES_F32 8
#define RADIX_LOG2 3
#define FMA_F64(a, b, c) ((V_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define FMA_F32(a, b, c) ((V_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))

static inline uint32_t least4(__m128i v) {
    v = _mm_min_epu32(v, _mm_shuffle_epi32(v, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_min_epu32(v, _mm_shuffle_epi32(v, 0xb1)));
}
static inline uint32_t greatest4(__m128i v) {
    v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(v, _mm_shuffle_epi32(v, 0xb1)));
}
#define HALVES(op, v) op(_mm256_castsi256_si128((__m256i)(v)), _mm256_extracti128_si256((__m256i)(v), 1))

#define min_u32_f64(a, b) ((u32v_f64)_mm_min_epu32((__m128i)(a), (__m128i)(b)))
#define max_u32_f64(a, b) ((u32v_f64)_mm_max_epu32((__m128i)(a), (__m128i)(b)))
#define least_f64(v) least4((__m128i)(v))
#define greatest_f64(v) greatest4((__m128i)(v))
#define min_u32_f32(a, b) ((u32v_f32)_mm256_min_epu32((__m256i)(a), (__m256i)(b)))
#define max_u32_f32(a, b) ((u32v_f32)_mm256_max_epu32((__m256i)(a), (__m256i)(b)))
#define least_f32(v) least4(HALVES(_mm_min_epu32, v))
#define greatest_f32(v) greatest4(HALVES(_mm_max_epu32, v))
#define WIDEN_BF16_F32(p) \
    ((V_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))), 16))
#define WIDEN_BF16_F64(p)                     \
    ((V_f64)_mm256_cvtps_pd(_mm_castsi128_ps( \
        _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))), 16))))
#define WIDEN_F32_F64(p) ((V_f64)_mm256_cvtps_pd(_mm_loadu_ps(p)))

#define VECTOR_REGISTER "x"
#define FOLD_TABLE rq_fold_kernels_avx2
#include "kernels/simd/fold_isa.h"
