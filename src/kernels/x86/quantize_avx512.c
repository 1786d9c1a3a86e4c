/* The quantizers with 16 lanes: AVX-512 F, BW, DQ, VL (Skylake-SP and later). */
#include <immintrin.h>

#include "kernels/quantize_group.h"

#define LANES 16u
#define WORDS 8
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint64_t vw __attribute__((vector_size(64))); /* WORDS of eight codes */
typedef uint8_t vb __attribute__((vector_size(32)));

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vi v_set_int(int32_t x) { return (vi)_mm512_set1_epi32(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline void v_store_int(int32_t *p, vi x) { _mm512_storeu_si512(p, (__m512i)x); }
static inline vf v_min(vf x, vf y) { return _mm512_min_ps(x, y); } /* y when either is NaN */
static inline vf v_max(vf x, vf y) { return _mm512_max_ps(x, y); }
/* Exactly one rounding; used only where the scalar twin calls fmaf. */
static inline vf v_fma(vf x, vf y, vf z) { return _mm512_fmadd_ps(x, y, z); }
static inline vf v_fnma(vf x, vf y, vf z) { return _mm512_fnmadd_ps(x, y, z); } /* z - x * y */
static inline vi v_min_int(vi x, vi y) { return (vi)_mm512_min_epi32((__m512i)x, (__m512i)y); }
static inline vi v_max_int(vi x, vi y) { return (vi)_mm512_max_epi32((__m512i)x, (__m512i)y); }
static inline vi v_to_int(vf x) { return (vi)_mm512_cvtps_epi32(x); }
static inline vf v_to_float(vi x) { return _mm512_cvtepi32_ps((__m512i)x); }
static inline bool v_any(vi x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0; }
static inline vf v_from_f16(vi h) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)h)); }

/* Without optimization gcc defines these as macros whose own constants trip -Wsign-conversion here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
static inline vf v_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vi v_to_int_up(vf x) {
    return (vi)_mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
static inline vi v_to_f16(vf x) { return (vi)_mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
#pragma GCC diagnostic pop

/* 32 lanes to bytes, in order, clamped to [0, 255]. */
static inline vb v_to_bytes(const vi q[2]) {
    const __m512i words = _mm512_packs_epi32((__m512i)q[0], (__m512i)q[1]);
    const __m512i bytes = _mm512_packus_epi16(words, words);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    return (vb)_mm512_castsi512_si256(_mm512_permutexvar_epi32(order, bytes));
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
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_loadu_si512(codes), _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256((__m256i_u *)out, _mm512_cvtepi16_epi8(pairs)); /* even code + 16 * odd code */
}

/* Lane i of the result is the largest lane of x[i]: pairs of vectors are merged four times, halving the lanes that
 * each still has to compare. */
#define REDUCE(name, type, op)                                                                                \
    static inline type name(const type x[16]) {                                                               \
        __m512 q[4];                                                                                          \
        for (size_t i = 0; i < 4; i++) {                                                                      \
            const __m512 a = (__m512)x[4 * i], b = (__m512)x[4 * i + 1];                                      \
            const __m512 c = (__m512)x[4 * i + 2], d = (__m512)x[4 * i + 3];                                  \
            const __m512 ab = op(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));                         \
            const __m512 cd = op(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));                         \
            q[i] = op(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));                      \
        }                                                                                                     \
        const __m512 lo = op(_mm512_shuffle_f32x4(q[0], q[1], 0x88), _mm512_shuffle_f32x4(q[0], q[1], 0xdd)); \
        const __m512 hi = op(_mm512_shuffle_f32x4(q[2], q[3], 0x88), _mm512_shuffle_f32x4(q[2], q[3], 0xdd)); \
        return (type)op(_mm512_shuffle_f32x4(lo, hi, 0x88), _mm512_shuffle_f32x4(lo, hi, 0xdd));              \
    }
#define MAX_AS_INT(a, b) _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
REDUCE(v_reduce_max, vf, _mm512_max_ps)
REDUCE(v_reduce_min, vf, _mm512_min_ps)
REDUCE(v_reduce_max_int, vi, MAX_AS_INT)

/* out[t], lane i = w[i][j + t]. */
static inline void v_transpose(const float *const *w, size_t j, vf out[16]) {
    __m512 u[4][4]; /* [m][i]: elements 4k + m of groups 4i .. 4i+3 in 128-bit lane k */
    for (size_t i = 0; i < 4; i++) {
        const __m512 a = _mm512_loadu_ps(w[4 * i] + j), b = _mm512_loadu_ps(w[4 * i + 1] + j);
        const __m512 c = _mm512_loadu_ps(w[4 * i + 2] + j), d = _mm512_loadu_ps(w[4 * i + 3] + j);
        const __m512 ab = _mm512_unpacklo_ps(a, b), cd = _mm512_unpacklo_ps(c, d);
        const __m512 ab2 = _mm512_unpackhi_ps(a, b), cd2 = _mm512_unpackhi_ps(c, d);
        u[0][i] = _mm512_shuffle_ps(ab, cd, 0x44);
        u[1][i] = _mm512_shuffle_ps(ab, cd, 0xee);
        u[2][i] = _mm512_shuffle_ps(ab2, cd2, 0x44);
        u[3][i] = _mm512_shuffle_ps(ab2, cd2, 0xee);
    }
    for (size_t m = 0; m < 4; m++) {
        const __m512 even = _mm512_shuffle_f32x4(u[m][0], u[m][1], 0x88);
        const __m512 even2 = _mm512_shuffle_f32x4(u[m][2], u[m][3], 0x88);
        const __m512 odd = _mm512_shuffle_f32x4(u[m][0], u[m][1], 0xdd);
        const __m512 odd2 = _mm512_shuffle_f32x4(u[m][2], u[m][3], 0xdd);
        out[m] = _mm512_shuffle_f32x4(even, even2, 0x88);
        out[4 + m] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        out[8 + m] = _mm512_shuffle_f32x4(even, even2, 0xdd);
        out[12 + m] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
}

#include "kernels/simd/quantize_body.h"
#include "kernels/simd/search_body.h"

void rq_quantize_kernels_avx512(rq_kernels *table) {
    table->quantize_mlx = quantize_mlx;
    table->quantize_search = quantize_search;
}
