/* The quantizers with 8 lanes: AVX2 with F16C (Haswell and later). */
#include <immintrin.h>

#include "kernels/quantize_group.h"

#define LANES 8u
#define WORDS 4
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef uint64_t vw __attribute__((vector_size(32))); /* WORDS of eight codes */
typedef uint8_t vb __attribute__((vector_size(32)));

static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vi v_set_int(int32_t x) { return (vi)_mm256_set1_epi32(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline void v_store_int(int32_t *p, vi x) { _mm256_storeu_si256((__m256i_u *)p, (__m256i)x); }
static inline vf v_min(vf x, vf y) { return _mm256_min_ps(x, y); } /* y when either is NaN */
static inline vf v_max(vf x, vf y) { return _mm256_max_ps(x, y); }
/* Exactly one rounding; used only where the scalar twin calls fmaf. */
static inline vf v_fma(vf x, vf y, vf z) { return _mm256_fmadd_ps(x, y, z); }
static inline vf v_fnma(vf x, vf y, vf z) { return _mm256_fnmadd_ps(x, y, z); } /* z - x * y */
static inline vi v_min_int(vi x, vi y) { return (vi)_mm256_min_epi32((__m256i)x, (__m256i)y); }
static inline vi v_max_int(vi x, vi y) { return (vi)_mm256_max_epi32((__m256i)x, (__m256i)y); }
static inline vf v_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vi v_to_int(vf x) { return (vi)_mm256_cvtps_epi32(x); }
static inline vi v_to_int_up(vf x) {
    return (vi)_mm256_cvtps_epi32(_mm256_round_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
}
static inline vf v_to_float(vi x) { return _mm256_cvtepi32_ps((__m256i)x); }
static inline bool v_any(vi x) { return !_mm256_testz_si256((__m256i)x, (__m256i)x); }
static inline vi v_to_f16(vf x) { return (vi)_mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
static inline vf v_from_f16(vi h) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)h, (__m256i)h), 0x88);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(words));
}

/* 32 lanes to bytes, in order, clamped to [0, 255]. */
static inline vb v_to_bytes(const vi q[4]) {
    const __m256i a = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]);
    const __m256i b = _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]);
    return (vb)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline vb v_bytes_min(vb x, vb y) { return (vb)_mm256_min_epu8((__m256i)x, (__m256i)y); }
/* E2M1 code from ceil(4x). */
static inline vb v_e2m1_of_quarters(vb k) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6));
    const __m256i code = _mm256_shuffle_epi8(table, _mm256_min_epu8((__m256i)k, _mm256_set1_epi8(15)));
    return (vb)_mm256_sub_epi8(code, _mm256_cmpgt_epi8((__m256i)k, _mm256_set1_epi8(20)));
}
/* 64 codes of 4 bits. */
static inline void v_pack_nibbles(const uint8_t *codes, uint8_t *out) {
    const __m256i weights = _mm256_set1_epi16(0x1001); /* even code + 16 * odd code */
    const __m256i a = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i_u *)codes), weights);
    const __m256i b = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i_u *)(codes + 32)), weights);
    _mm256_storeu_si256((__m256i_u *)out, _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8));
}

/* Lane i of the result is the largest lane of x[i]: pairs of vectors are merged three times, halving the lanes that
 * each still has to compare. */
#define REDUCE(name, type, op)                                                                               \
    static inline type name(const type x[8]) {                                                               \
        __m256 q[2];                                                                                         \
        for (size_t i = 0; i < 2; i++) {                                                                     \
            const __m256 a = (__m256)x[4 * i], b = (__m256)x[4 * i + 1];                                     \
            const __m256 c = (__m256)x[4 * i + 2], d = (__m256)x[4 * i + 3];                                 \
            const __m256 ab = op(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));                        \
            const __m256 cd = op(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));                        \
            q[i] = op(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));                     \
        }                                                                                                    \
        return (type)op(_mm256_permute2f128_ps(q[0], q[1], 0x20), _mm256_permute2f128_ps(q[0], q[1], 0x31)); \
    }
#define MAX_AS_INT(a, b) _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)))
REDUCE(v_reduce_max, vf, _mm256_max_ps)
REDUCE(v_reduce_min, vf, _mm256_min_ps)
REDUCE(v_reduce_max_int, vi, MAX_AS_INT)

/* out[t], lane i = w[i][j + t]. */
static inline void v_transpose(const float *const *w, size_t j, vf out[8]) {
    __m256 u[4][2]; /* [m][i]: elements 4k + m of groups 4i .. 4i+3 in 128-bit lane k */
    for (size_t i = 0; i < 2; i++) {
        const __m256 a = _mm256_loadu_ps(w[4 * i] + j), b = _mm256_loadu_ps(w[4 * i + 1] + j);
        const __m256 c = _mm256_loadu_ps(w[4 * i + 2] + j), d = _mm256_loadu_ps(w[4 * i + 3] + j);
        const __m256 ab = _mm256_unpacklo_ps(a, b), cd = _mm256_unpacklo_ps(c, d);
        const __m256 ab2 = _mm256_unpackhi_ps(a, b), cd2 = _mm256_unpackhi_ps(c, d);
        u[0][i] = _mm256_shuffle_ps(ab, cd, 0x44);
        u[1][i] = _mm256_shuffle_ps(ab, cd, 0xee);
        u[2][i] = _mm256_shuffle_ps(ab2, cd2, 0x44);
        u[3][i] = _mm256_shuffle_ps(ab2, cd2, 0xee);
    }
    for (size_t m = 0; m < 4; m++) {
        out[m] = _mm256_permute2f128_ps(u[m][0], u[m][1], 0x20);
        out[4 + m] = _mm256_permute2f128_ps(u[m][0], u[m][1], 0x31);
    }
}

#include "kernels/simd/quantize_body.h"
#include "kernels/simd/search_body.h"

void rq_quantize_kernels_avx2(rq_kernels *table) {
    table->quantize_mlx = quantize_mlx;
    table->quantize_search = quantize_search;
}
