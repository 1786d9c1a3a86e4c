/* The quantizers with 4 lanes: AArch64 Advanced SIMD, part of the base architecture. */
#include <arm_neon.h>

#include "kernels/quantize_group.h"

#define LANES 4u
#define WORDS 2
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef uint64_t vw __attribute__((vector_size(16))); /* WORDS of eight codes */
typedef uint8_t vb __attribute__((vector_size(32)));

static inline vf v_set(float x) { return vdupq_n_f32(x); }
static inline vi v_set_int(int32_t x) { return vdupq_n_s32(x); }
static inline vf v_load(const float *p) { return vld1q_f32(p); }
static inline void v_store(float *p, vf x) { vst1q_f32(p, x); }
static inline void v_store_int(int32_t *p, vi x) { vst1q_s32(p, x); }
/* y when either is NaN, also a signalling one, which the minimum instructions would let through. */
static inline vf v_min(vf x, vf y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
static inline vf v_max(vf x, vf y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
/* Exactly one rounding; used only where the scalar twin calls fmaf. */
static inline vf v_fma(vf x, vf y, vf z) { return vfmaq_f32(z, x, y); }
static inline vf v_fnma(vf x, vf y, vf z) { return vfmsq_f32(z, x, y); } /* z - x * y */
static inline vi v_min_int(vi x, vi y) { return vminq_s32(x, y); }
static inline vi v_max_int(vi x, vi y) { return vmaxq_s32(x, y); }
static inline vf v_round(vf x) { return vrndnq_f32(x); }
static inline vi v_to_int(vf x) { return vcvtnq_s32_f32(x); }
static inline vi v_to_int_up(vf x) { return vcvtpq_s32_f32(x); }
static inline vf v_to_float(vi x) { return vcvtq_f32_s32(x); }
static inline bool v_any(vi x) { return vmaxvq_u32((uint32x4_t)x) != 0; }
static inline vi v_to_f16(vf x) { return (vi)vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(x))); }
static inline vf v_from_f16(vi h) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)h))); }

/* 32 lanes to bytes, in order, clamped to [0, 255]. */
static inline vb v_to_bytes(const vi q[8]) {
    uint8_t bytes[32];
    vb out;
    for (size_t i = 0; i < 4; i++)
        vst1_u8(bytes + 8 * i, vqmovun_s16(vcombine_s16(vqmovn_s32(q[2 * i]), vqmovn_s32(q[2 * i + 1]))));
    memcpy(&out, bytes, sizeof out);
    return out;
}

/* Both halves of a vb. */
typedef union halves {
    vb all;
    uint8x16_t half[2];
} halves;
static inline vb v_bytes_min(vb x, vb y) {
    halves a = {.all = x};
    const halves b = {.all = y};
    for (size_t i = 0; i < 2; i++) a.half[i] = vminq_u8(a.half[i], b.half[i]);
    return a.all;
}
/* E2M1 code from ceil(4x). */
static inline vb v_e2m1_of_quarters(vb k) {
    static const uint8_t codes[16] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6};
    const uint8x16_t table = vld1q_u8(codes);
    halves a = {.all = k};
    for (size_t i = 0; i < 2; i++) {
        const uint8x16_t top = vcgtq_u8(a.half[i], vdupq_n_u8(20));
        a.half[i] = vsubq_u8(vqtbl1q_u8(table, vminq_u8(a.half[i], vdupq_n_u8(15))), top);
    }
    return a.all;
}
/* 64 codes of 4 bits. */
static inline void v_pack_nibbles(const uint8_t *codes, uint8_t *out) {
    for (size_t i = 0; i < 2; i++) {
        const uint8x16x2_t pairs = vld2q_u8(codes + 32 * i);
        vst1q_u8(out + 16 * i, vorrq_u8(pairs.val[0], vshlq_n_u8(pairs.val[1], 4)));
    }
}

/* Lane i of the result is the largest lane of x[i]. No lane is NaN. */
static inline vf v_reduce_max(const vf x[4]) { return vpmaxq_f32(vpmaxq_f32(x[0], x[1]), vpmaxq_f32(x[2], x[3])); }
static inline vf v_reduce_min(const vf x[4]) { return vpminq_f32(vpminq_f32(x[0], x[1]), vpminq_f32(x[2], x[3])); }
static inline vi v_reduce_max_int(const vi x[4]) { return vpmaxq_s32(vpmaxq_s32(x[0], x[1]), vpmaxq_s32(x[2], x[3])); }

/* out[t], lane i = w[i][j + t]. */
static inline void v_transpose(const float *const *w, size_t j, vf out[4]) {
    const float32x4_t a = vld1q_f32(w[0] + j), b = vld1q_f32(w[1] + j);
    const float32x4_t c = vld1q_f32(w[2] + j), d = vld1q_f32(w[3] + j);
    const float32x4_t ab = vzip1q_f32(a, b), ab2 = vzip2q_f32(a, b);
    const float32x4_t cd = vzip1q_f32(c, d), cd2 = vzip2q_f32(c, d);
    out[0] = vcombine_f32(vget_low_f32(ab), vget_low_f32(cd));
    out[1] = vcombine_f32(vget_high_f32(ab), vget_high_f32(cd));
    out[2] = vcombine_f32(vget_low_f32(ab2), vget_low_f32(cd2));
    out[3] = vcombine_f32(vget_high_f32(ab2), vget_high_f32(cd2));
}

#include "kernels/simd/quantize_body.h"
#include "kernels/simd/search_body.h"

void rq_quantize_kernels_neon(rq_kernels *table) {
    table->quantize_mlx = quantize_mlx;
    table->quantize_search = quantize_search;
}
