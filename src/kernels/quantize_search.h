/* The search for a group's scale, as both twins (ref/search_ref.c, simd/search_body.h) run it.
 *
 * Products and sums are fused (fmaf, one rounding) where the scalar twin says so, which every instruction set we use
 * has.
 *
 * Affine. The error of a candidate (scale, bias), both already rounded to the stored type, is the f32 sum in order of
 * ((w - bias) - code * scale)^2 with the nearest codes. Candidates, each kept only when strictly better:
 *   1. what mlx stores for this group, so that the result is never worse;
 *   2. the range [lo, hi] shrunk about its middle by `shrink`;
 *   3. twice: the low end of the best range moved by +-nudge * (hi - lo), then the high end;
 *   4. two rounds of least squares for (scale, bias) given the codes; the bias is fitted to the rounded scale.
 * 15 error passes come within 1 % of a 10 x 10 grid of ranges with the same polish (normal and Student-t weights,
 * BF16), and beat it from 5 bits on, where the grid is too coarse.
 * Weights are scaled by a power of two first, so that squares neither overflow nor vanish.
 *
 * mxfp4, mxfp8: mlx's exponent, one less, one more. nvfp4: the E4M3 bytes from one below mlx's (amax on 6) to six above
 * it, which covers amax on 4. */
#ifndef RQ_QUANTIZE_SEARCH_H
#define RQ_QUANTIZE_SEARCH_H

/* See nearest_code: 1.5 * 2^23, beyond which f32 numbers are the integers. */
#define RQ_ROUNDER 0x1.8p23f

enum { RQ_SHRINKS = 4, RQ_NUDGES = 2, RQ_NVFP4_BYTES = 8, RQ_MX_EXPONENTS = 3 };

typedef struct rq_affine_search {
    float shrink[RQ_SHRINKS];
    float nudge[RQ_NUDGES];
} rq_affine_search;

/* By bits. Found by trial on normal and Student-t(4) weights, groups of 64. */
static const rq_affine_search rq_affine_searches[9] = {
    [2] = {{0.9f, 0.8f, 0.7f, 0.6f}, {0.1f, 0.04f}},     [3] = {{0.95f, 0.88f, 0.81f, 0.74f}, {0.06f, 0.03f}},
    [4] = {{1, 0.95f, 0.9f, 0.85f}, {0.04f, 0.02f}},     [5] = {{1, 0.97f, 0.94f, 0.91f}, {0.02f, 0.01f}},
    [6] = {{1, 0.985f, 0.97f, 0.955f}, {0.01f, 0.005f}}, [8] = {{1, 0.996f, 0.992f, 0.988f}, {0.01f, 0.004f}},
};

/* Added to mlx's byte; the first is mlx's own. */
static const int rq_nvfp4_bytes[RQ_NVFP4_BYTES] = {0, -1, 1, 2, 3, 4, 5, 6};
static const int rq_mx_exponents[RQ_MX_EXPONENTS] = {0, -1, 1};

#endif
