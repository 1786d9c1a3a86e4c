/* The scalar twin of the scale search (kernels/quantize_search.h). The order of every operation here is what the SIMD
 * bodies repeat. */
#include "kernels/quantize_search.h"

#include <math.h>

#include "kernels/quantize_group.h"

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

/* What mlx makes of these weights once they are rounded to T: for groups that no candidate fits. */
static rq_group as_mlx(const rq_quant_format *format, rq_dtype T, const float *w, uint8_t *codes) {
    float rounded[RQ_GROUP_MAX];
    for (unsigned i = 0; i < format->group_size; i++) rounded[i] = rq_round_to_dtype(w[i], T);
    return rq_group_mlx_ref(format, T, rounded, codes);
}

/* ---- affine ---- */

typedef struct affine_problem {
    const float *x; /* [g], the weights times `up` */
    unsigned g;
    float n;
    rq_dtype T;
    float up, down; /* powers of two, up * down = 1 */
} affine_problem;

/* Everything in units of x; scale * down and bias * down are values of T. */
typedef struct candidate {
    float scale, bias, inverse;
    float error; /* infinity when scale and bias are of no use */
} candidate;

typedef struct code_sums {
    float q, qq, xq;
} code_sums;

/* Of d = x - bias. Adding RQ_ROUNDER rounds to an integer, ties to even. */
static float nearest_code(const affine_problem *p, const candidate *c, float d) {
    const float rounded = fmaf(d, c->inverse, RQ_ROUNDER), most = RQ_ROUNDER + p->n;
    return (rounded > RQ_ROUNDER ? (rounded < most ? rounded : most) : RQ_ROUNDER) - RQ_ROUNDER;
}

static void add_code(code_sums *sums, float x, float q) {
    sums->q += q;
    sums->qq = fmaf(q, q, sums->qq);
    sums->xq = fmaf(x, q, sums->xq);
}

/* The candidate for a scale and bias in units of w, values of T. Adds up the sums of codes when asked. */
static candidate evaluate(const affine_problem *p, float scale, float bias, code_sums *sums) {
    candidate c = {.scale = scale * p->up, .bias = bias * p->up};
    c.inverse = 1.0f / c.scale;
    float error = 0;
    for (unsigned i = 0; i < p->g; i++) {
        const float d = p->x[i] - c.bias, q = nearest_code(p, &c, d);
        const float e = fmaf(-q, c.scale, d);
        error = fmaf(e, e, error);
        if (sums) add_code(sums, p->x[i], q);
    }
    const bool usable = fabsf(c.scale) < INFINITY && fabsf(c.bias) < INFINITY && fabsf(c.inverse) < INFINITY;
    c.error = usable ? error : INFINITY;
    return c;
}

/* Codes from lo (0) to hi (n). */
static candidate evaluate_range(const affine_problem *p, float lo, float hi) {
    const float scale = rq_round_to_dtype((hi - lo) / p->n * p->down, p->T);
    return evaluate(p, scale, rq_round_to_dtype(lo * p->down, p->T), NULL);
}

static bool improve(candidate *best, const candidate *c) {
    if (!(c->error < best->error)) return false;
    *best = *c;
    return true;
}

/* Least squares for scale and bias given the sums of some codes. */
static candidate evaluate_fit(const affine_problem *p, float sum_x, code_sums in, code_sums *out) {
    const float g = (float)p->g;
    const float slope = (g * in.xq - sum_x * in.q) / (g * in.qq - in.q * in.q);
    const float scale = rq_round_to_dtype(slope * p->down, p->T);
    const float offset = (sum_x - scale * p->up * in.q) / g;
    return evaluate(p, scale, rq_round_to_dtype(offset * p->down, p->T), out);
}

static candidate search_affine(const affine_problem *p, float lo, float hi, float sum_x, const rq_affine_search *search,
                               candidate best) {
    float best_lo = lo, best_hi = hi;
    const float middle = (lo + hi) * 0.5f, half = (hi - lo) * 0.5f;
    for (int i = 0; i < RQ_SHRINKS; i++) {
        const float l = middle - half * search->shrink[i], h = middle + half * search->shrink[i];
        const candidate c = evaluate_range(p, l, h);
        if (improve(&best, &c)) {
            best_lo = l;
            best_hi = h;
        }
    }
    for (int i = 0; i < RQ_NUDGES; i++) {
        const float nudge = (hi - lo) * search->nudge[i], l = best_lo, h = best_hi;
        const float lows[2] = {l + nudge, l - nudge}, highs[2] = {h + nudge, h - nudge};
        for (int k = 0; k < 2; k++) {
            const candidate c = evaluate_range(p, lows[k], h);
            if (improve(&best, &c)) best_lo = lows[k];
        }
        for (int k = 0; k < 2; k++) {
            const candidate c = evaluate_range(p, best_lo, highs[k]);
            if (improve(&best, &c)) best_hi = highs[k];
        }
    }
    code_sums first = {0}, second = {0};
    for (unsigned i = 0; i < p->g; i++) add_code(&first, p->x[i], nearest_code(p, &best, p->x[i] - best.bias));
    const candidate polished = evaluate_fit(p, sum_x, first, &second);
    improve(&best, &polished);
    const candidate again = evaluate_fit(p, sum_x, second, NULL);
    improve(&best, &again);
    return best;
}

static rq_group affine_group(const rq_quant_format *format, rq_dtype T, const float *w, uint8_t *codes) {
    const unsigned g = format->group_size;
    float x[RQ_GROUP_MAX], lo = INFINITY, hi = -INFINITY, sum_x = 0;
    for (unsigned i = 0; i < g; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = hi < w[i] ? w[i] : hi;
    }
    /* The exponent of the largest magnitude, kept where both powers of two are normal numbers. */
    const float amax = fabsf(lo) > fabsf(hi) ? fabsf(lo) : fabsf(hi);
    uint32_t exponent = bits_of(amax) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    affine_problem p = {.x = x,
                        .g = g,
                        .n = (float)((1u << format->bits) - 1),
                        .T = T,
                        .up = float_of((254 - exponent) << 23),
                        .down = float_of(exponent << 23)};
    for (unsigned i = 0; i < g; i++) {
        x[i] = w[i] * p.up;
        sum_x += x[i];
    }
    const float rounded_lo = rq_round_to_dtype(lo, T), rounded_hi = rq_round_to_dtype(hi, T);
    if (!(fabsf(sum_x) < INFINITY && fabsf(rounded_lo) < INFINITY && fabsf(rounded_hi) < INFINITY))
        return as_mlx(format, T, w, codes);

    float scale, bias;
    rq_affine_range_ref(format->bits, rounded_lo, rounded_hi, &scale, &bias);
    candidate best = evaluate(&p, rq_round_to_dtype(scale, T), rq_round_to_dtype(bias, T), NULL);
    best = search_affine(&p, lo * p.up, hi * p.up, sum_x, &rq_affine_searches[format->bits], best);
    if (!(best.error < INFINITY)) return as_mlx(format, T, w, codes);
    for (unsigned i = 0; i < g; i++) codes[i] = (uint8_t)nearest_code(&p, &best, x[i] - best.bias);
    return (rq_group){.scale = best.scale * p.down, .bias = best.bias * p.down};
}

/* ---- float modes ---- */

/* x >= 0 as the nearest value of a small float type: its spacing is that of f32 numbers `shift` exponents higher, down
 * to the exponent of `least`. */
static float nearest_value(float x, float least, uint32_t shift, float most) {
    x = x < most ? x : most;
    const uint32_t own = bits_of(x) & 0x7f800000u, floor = bits_of(least);
    const float step = float_of((own > floor ? own : floor) + (shift << 23));
    return (x + step) - step;
}

static float nearest_e2m1(float x) { return nearest_value(x, 1.0f, 22, 6.0f); }
static float nearest_e4m3(float x) { return nearest_value(x, 0x1p-6f, 20, 448.0f); }

static uint8_t e2m1_code(float x) { /* ties to the smaller magnitude, no negative zero, as mlx */
    const float a = fabsf(x);
    const int code = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
    return (uint8_t)(code && x < 0 ? code | 8 : code);
}

static bool rounds_to_finite(const float *w, unsigned n, rq_dtype T) {
    bool finite = true;
    for (unsigned i = 0; i < n; i++) finite &= fabsf(rq_round_to_dtype(w[i], T)) < INFINITY;
    return finite;
}

static float largest_magnitude(const float *w, unsigned n) {
    float a = 0;
    for (unsigned i = 0; i < n; i++) a = fabsf(w[i]) > a ? fabsf(w[i]) : a;
    return a;
}

static rq_group mx_group(unsigned bits, rq_dtype T, const float *w, uint8_t *codes) {
    const int first = rq_mx_exponent_ref(bits, T, rq_round_to_dtype(largest_magnitude(w, 32), T));
    const float unit = rq_exp2_int(-first);
    int best = first;
    float least = INFINITY;
    for (int k = 0; k < RQ_MX_EXPONENTS; k++) {
        const int e = first + rq_mx_exponents[k];
        const float in = rq_exp2_int(-rq_mx_exponents[k]), out = rq_exp2_int(2 * rq_mx_exponents[k]);
        float error = 0;
        for (unsigned i = 0; i < 32; i++) {
            const float x = fabsf(w[i]) * unit * in;
            const float d = x - (bits == 4 ? nearest_e2m1(x) : nearest_e4m3(x));
            error = fmaf(d, d, error);
        }
        error *= out;
        if (e >= -127 && error < least) {
            least = error;
            best = e;
        }
    }
    for (unsigned i = 0; i < 32; i++) {
        const float x = w[i] * rq_exp2_int(-best);
        codes[i] = bits == 4 ? e2m1_code(x) : rq_f32_to_e4m3(x);
    }
    return (rq_group){.byte = (uint8_t)(best + 127)};
}

static rq_group nvfp4_group(rq_dtype T, const float *w, uint8_t *codes) {
    const float amax = largest_magnitude(w, 16);
    const int first = rq_f32_to_e4m3(rq_round_to_dtype(rq_round_to_dtype(amax, T) / 6.0f, T));
    int best = first;
    float least = INFINITY, best_inverse = 0;
    for (int k = 0; k < RQ_NVFP4_BYTES; k++) {
        const int byte = first + rq_nvfp4_bytes[k];
        if (k > 0 && (byte < 1 || byte > 0x7e)) continue;
        const float scale = rq_e4m3_to_f32((uint8_t)byte), inverse = byte ? 1.0f / scale : 0;
        float error = 0;
        for (unsigned i = 0; i < 16; i++) {
            const float a = fabsf(w[i]), d = fmaf(-nearest_e2m1(a * inverse), scale, a);
            error = fmaf(d, d, error);
        }
        if (k == 0 || error < least) {
            least = error;
            best = byte;
            best_inverse = inverse;
        }
    }
    for (unsigned i = 0; i < 16; i++) codes[i] = e2m1_code(w[i] * best_inverse);
    return (rq_group){.byte = (uint8_t)best, .zeroed = best == 0 && amax > 0};
}

rq_group rq_group_search_ref(const rq_quant_format *format, rq_dtype storage, const float *w, uint8_t *codes) {
    if (format->mode == RQ_AFFINE) return affine_group(format, storage, w, codes);
    if (!rounds_to_finite(w, format->group_size, storage)) return as_mlx(format, storage, w, codes);
    if (format->mode == RQ_NVFP4) return nvfp4_group(storage, w, codes);
    return mx_group(format->bits, storage, w, codes);
}
