/* The fold on AVX-512: 8 doubles or 16 floats a vector, 32 registers. */
#include <immintrin.h>
#include <stdint.h>

#define VECTOR_BYTES 64
#define LANES_F64 8
#define LANES_F32 16
#define RADIX_LOG2 4
#define FMA_F64(a, b, c) ((V_f64)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define FMA_F32(a, b, c) ((V_f32)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))

/* Unsigned minima and maxima of f32 bit patterns; the across-lane forms run once per sixteen vectors. */
#define min_u32_f64(a, b) ((u32v_f64)_mm256_min_epu32((__m256i)(a), (__m256i)(b)))
#define max_u32_f64(a, b) ((u32v_f64)_mm256_max_epu32((__m256i)(a), (__m256i)(b)))
#define least_f64(v) (uint32_t) _mm512_mask_reduce_min_epu32(0xff, _mm512_castsi256_si512((__m256i)(v)))
#define greatest_f64(v) (uint32_t) _mm512_mask_reduce_max_epu32(0xff, _mm512_castsi256_si512((__m256i)(v)))
#define min_u32_f32(a, b) ((u32v_f32)_mm512_min_epu32((__m512i)(a), (__m512i)(b)))
#define max_u32_f32(a, b) ((u32v_f32)_mm512_max_epu32((__m512i)(a), (__m512i)(b)))
#define least_f32(v) (uint32_t) _mm512_reduce_min_epu32((__m512i)(v))
#define greatest_f32(v) (uint32_t) _mm512_reduce_max_epu32((__m512i)(v))
#define WIDEN_BF16_F32(p) \
    ((V_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p))), 16))
#define WIDEN_BF16_F64(p)                        \
    ((V_f64)_mm512_cvtps_pd(_mm256_castsi256_ps( \
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))), 16))))
#define WIDEN_F32_F64(p) ((V_f64)_mm512_cvtps_pd(_mm256_loadu_ps(p)))

#define VECTOR_REGISTER "v"
#define FOLD_TABLE rq_fold_kernels_avx512
#include "kernels/simd/fold_isa.h"
