/* The scale search over vectors: one group per lane, so that every step of the scalar twin (ref/search_ref.c) is one
 * vector operation in the same order, and choosing between candidates is a select. Included after quantize_body.h;
 * needs v_transpose besides. Groups that the vector code does not cover (`odd`) go to the scalar twin. */

#include "kernels/quantize_search.h"

/* ---- affine ---- */

typedef struct problem {
    vf n, up, down, sum_x;
    vi n_int;
    const vf *x; /* [g]: element j of LANES groups, times `up` */
    size_t g;
    rq_dtype T;
} problem;

typedef struct candidate {
    vf scale, bias, inverse, error;
} candidate;

typedef struct code_sums {
    vf q, qq, xq;
} code_sums;

/* Adding 1.5 * 2^23 rounds to an integer, ties to even. Codes are clamped in that form as integers, since the bits of
 * floats order like integers; a quotient too large for the trick is clamped all the same. */
INLINE vi rounded_code(vf d, vf inverse, vi n) {
    const vi zero = (vi)v_set(RQ_ROUNDER);
    return v_min_int(v_max_int((vi)v_fma(d, inverse, v_set(RQ_ROUNDER)), zero), zero + n);
}

INLINE vf nearest_code(const problem *p, vf d, vf inverse) {
    return (vf)rounded_code(d, inverse, p->n_int) - v_set(RQ_ROUNDER);
}

INLINE candidate candidate_of(const problem *p, vf scale, vf bias) {
    candidate c = {.scale = scale * p->up, .bias = bias * p->up};
    c.inverse = v_set(1) / c.scale;
    return c;
}

INLINE void finish(candidate *c, vf error) {
    const vf end = v_set(__builtin_inff());
    const vi usable = (abs_f(c->scale) < end) & (abs_f(c->bias) < end) & (abs_f(c->inverse) < end);
    c->error = select_f(usable, error, end);
}

INLINE candidate evaluate(const problem *p, vf scale, vf bias, code_sums *sums) {
    candidate c = candidate_of(p, scale, bias);
    vf error = v_set(0);
    for (size_t i = 0; i < p->g; i++) {
        const vf x = p->x[i], d = x - c.bias, q = nearest_code(p, d, c.inverse);
        const vf e = v_fnma(q, c.scale, d);
        error = v_fma(e, e, error);
        if (sums) {
            sums->q += q;
            sums->qq = v_fma(q, q, sums->qq);
            sums->xq = v_fma(x, q, sums->xq);
        }
    }
    finish(&c, error);
    return c;
}

/* Two ranges in one pass over the weights. */
INLINE void evaluate_ranges(const problem *p, const vf lo[2], const vf hi[2], candidate c[2]) {
    for (int k = 0; k < 2; k++) {
        const vf scale = round_to_dtype((hi[k] - lo[k]) / p->n * p->down, p->T);
        c[k] = candidate_of(p, scale, round_to_dtype(lo[k] * p->down, p->T));
    }
    const vf s0 = c[0].scale, b0 = c[0].bias, i0 = c[0].inverse;
    const vf s1 = c[1].scale, b1 = c[1].bias, i1 = c[1].inverse;
    vf error0 = v_set(0), error1 = v_set(0);
    for (size_t i = 0; i < p->g; i++) {
        const vf x = p->x[i], d0 = x - b0, d1 = x - b1;
        const vf e0 = v_fnma(nearest_code(p, d0, i0), s0, d0), e1 = v_fnma(nearest_code(p, d1, i1), s1, d1);
        error0 = v_fma(e0, e0, error0);
        error1 = v_fma(e1, e1, error1);
    }
    finish(&c[0], error0);
    finish(&c[1], error1);
}

INLINE vi improve(candidate *best, const candidate *c) {
    const vi better = c->error < best->error;
    best->scale = select_f(better, c->scale, best->scale);
    best->bias = select_f(better, c->bias, best->bias);
    best->inverse = select_f(better, c->inverse, best->inverse);
    best->error = select_f(better, c->error, best->error);
    return better;
}

INLINE candidate evaluate_fit(const problem *p, code_sums in, code_sums *out) {
    const vf g = v_set((float)p->g);
    const vf slope = (g * in.xq - p->sum_x * in.q) / (g * in.qq - in.q * in.q);
    const vf scale = round_to_dtype(slope * p->down, p->T);
    const vf offset = (p->sum_x - scale * p->up * in.q) / g;
    return evaluate(p, scale, round_to_dtype(offset * p->down, p->T), out);
}

INLINE candidate search_affine(const problem *p, vf lo, vf hi, const rq_affine_search *search, candidate best) {
    vf best_lo = lo, best_hi = hi, lows[2], highs[2];
    candidate c[2];
    const vf middle = (lo + hi) * v_set(0.5f), half = (hi - lo) * v_set(0.5f);
    for (int i = 0; i < RQ_SHRINKS; i += 2) {
        for (int k = 0; k < 2; k++) {
            lows[k] = middle - half * v_set(search->shrink[i + k]);
            highs[k] = middle + half * v_set(search->shrink[i + k]);
        }
        evaluate_ranges(p, lows, highs, c);
        for (int k = 0; k < 2; k++) {
            const vi better = improve(&best, &c[k]);
            best_lo = select_f(better, lows[k], best_lo);
            best_hi = select_f(better, highs[k], best_hi);
        }
    }
    for (int i = 0; i < RQ_NUDGES; i++) {
        const vf nudge = (hi - lo) * v_set(search->nudge[i]);
        lows[0] = best_lo + nudge;
        lows[1] = best_lo - nudge;
        highs[0] = highs[1] = best_hi;
        evaluate_ranges(p, lows, highs, c);
        for (int k = 0; k < 2; k++) best_lo = select_f(improve(&best, &c[k]), lows[k], best_lo);
        highs[0] = best_hi + nudge;
        highs[1] = best_hi - nudge;
        lows[0] = lows[1] = best_lo;
        evaluate_ranges(p, lows, highs, c);
        for (int k = 0; k < 2; k++) best_hi = select_f(improve(&best, &c[k]), highs[k], best_hi);
    }
    code_sums first = {v_set(0), v_set(0), v_set(0)}, second = first;
    for (size_t i = 0; i < p->g; i++) {
        const vf x = p->x[i], q = nearest_code(p, x - best.bias, best.inverse);
        first.q += q;
        first.qq = v_fma(q, q, first.qq);
        first.xq = v_fma(x, q, first.xq);
    }
    const candidate polished = evaluate_fit(p, first, &second);
    improve(&best, &polished);
    const candidate again = evaluate_fit(p, second, NULL);
    improve(&best, &again);
    return best;
}

/* Codes of 32 elements under a scale and bias in units of w * up. */
INLINE void nearest_unit(const float *w, float up, float bias, float inverse, int n, uint8_t *codes) {
    vi q[UNIT_VECS];
    for (size_t u = 0; u < UNIT_VECS; u++) {
        const vf d = v_load(w + u * LANES) * v_set(up) - v_set(bias);
        q[u] = rounded_code(d, v_set(inverse), v_set_int(n)) - (vi)v_set(RQ_ROUNDER);
    }
    const vb bytes = v_to_bytes(q);
    memcpy(codes, &bytes, UNIT);
}

INLINE void affine_search_batch(batch *b, unsigned bits, size_t g, rq_dtype T, const rq_quant_format *format) {
    float up[BATCH], bias[BATCH], inverse[BATCH];
    int32_t odd[BATCH], scale_bits[BATCH], bias_bits[BATCH];
    for (size_t at = 0; at < b->count; at += LANES) {
        vf x[RQ_GROUP_MAX];
        for (size_t j = 0; j < g; j += LANES) v_transpose(b->w + at, j, x + j);
        vf lo = v_set(__builtin_inff()), hi = v_set(-__builtin_inff());
        for (size_t j = 0; j < g; j++) {
            lo = v_min(x[j], lo); /* NaN is skipped */
            hi = v_max(x[j], hi);
        }
        const vi amax = select_i(abs_f(lo) > abs_f(hi), (vi)abs_f(lo), (vi)abs_f(hi));
        vi exponent = shift_right(amax, 23);
        exponent = select_i(exponent < 1, v_set_int(1), exponent);
        exponent = select_i(exponent > 253, v_set_int(253), exponent);
        problem p = {.x = x, .g = g, .T = T, .n_int = v_set_int((1 << bits) - 1), .sum_x = v_set(0)};
        p.n = v_to_float(p.n_int);
        p.up = (vf)shift_left(254 - exponent, 23);
        p.down = (vf)shift_left(exponent, 23);
        for (size_t j = 0; j < g; j++) {
            x[j] *= p.up;
            p.sum_x += x[j];
        }
        const vf rounded_lo = round_to_dtype(lo, T), rounded_hi = round_to_dtype(hi, T), end = v_set(__builtin_inff());
        const vi finite = (abs_f(p.sum_x) < end) & (abs_f(rounded_lo) < end) & (abs_f(rounded_hi) < end);
        vf step, base;
        affine_range(rounded_lo, rounded_hi, p.n, &step, &base);
        candidate best = evaluate(&p, round_to_dtype(step, T), round_to_dtype(base, T), NULL);
        best = search_affine(&p, lo * p.up, hi * p.up, &rq_affine_searches[bits], best);
        v_store(up + at, p.up);
        v_store(bias + at, best.bias);
        v_store(inverse + at, best.inverse);
        v_store_int(odd + at, ~(finite & (best.error < end)));
        v_store_int(scale_bits + at, stored_bits(best.scale * p.down, T));
        v_store_int(bias_bits + at, stored_bits(best.bias * p.down, T));
    }
    for (size_t i = 0; i < b->count; i++) {
        uint8_t *codes = b->codes + i * g;
        if (__builtin_expect(odd[i], 0)) {
            const rq_group made = rq_group_search_ref(format, T, b->w[i], codes);
            rq_put_value(b->scale[i], made.scale, T);
            rq_put_value(b->bias[i], made.bias, T);
            continue;
        }
        put_bits(b->scale[i], scale_bits[i], T);
        put_bits(b->bias[i], bias_bits[i], T);
        for (size_t j = 0; j < g; j += UNIT)
            nearest_unit(b->w[i] + j, up[i], bias[i], inverse[i], (1 << bits) - 1, codes + j);
    }
}

/* ---- float modes ---- */

INLINE vf nearest_value(vf x, float least, uint32_t shift, float most) {
    x = v_min(x, v_set(most));
    const vf step = (vf)add_bits(v_max_int((vi)x & 0x7f800000, (vi)v_set(least)), shift << 23);
    return (x + step) - step;
}

INLINE vf nearest_e2m1(vf x) { return nearest_value(x, 1, 22, 6); }
INLINE vf nearest_e4m3(vf x) { return nearest_value(x, 0x1p-6f, 20, 448); }

/* |w| of LANES groups, one per lane, and the largest of each as bits (NaN on top). */
INLINE vi load_magnitudes(const float *const *w, size_t g, vf *x) {
    vi amax = {0};
    for (size_t j = 0; j < g; j += LANES) v_transpose(w, j, x + j);
    for (size_t j = 0; j < g; j++) {
        x[j] = abs_f(x[j]);
        amax = v_max_int((vi)x[j], amax);
    }
    return amax;
}

INLINE void mx_search_batch(batch *b, bool wide, rq_dtype T, const rq_quant_format *format) {
    float r[BATCH];
    int32_t odd[BATCH], byte[BATCH];
    for (size_t at = 0; at < b->count; at += LANES) {
        vf x[32], least = v_set(0);
        const vi amax = load_magnitudes(b->w + at, 32, x);
        const vf rounded = round_to_dtype((vf)amax, T);
        const vi first = mx_byte(rounded, wide, T);
        vi best = first;
        const vf unit = (vf)shift_left(254 - first, 23);
        for (int k = 0; k < RQ_MX_EXPONENTS; k++) {
            const vf in = v_set(rq_exp2_int(-rq_mx_exponents[k])), out = v_set(rq_exp2_int(2 * rq_mx_exponents[k]));
            vf error = v_set(0);
            for (int j = 0; j < 32; j++) {
                const vf y = x[j] * unit * in;
                const vf d = y - (wide ? nearest_e4m3(y) : nearest_e2m1(y));
                error = v_fma(d, d, error);
            }
            error *= out;
            const vi better = k == 0 ? v_set_int(-1) : error < least;
            least = select_f(better, error, least);
            best = select_i(better, first + rq_mx_exponents[k], best);
        }
        const vi small = (amax != 0) & (amax < (27 << 23)); /* 2^-100 */
        v_store_int(odd + at, small | (amax >= 0x7f800000) | ((vi)rounded >= 0x7f800000) | (first > 250));
        v_store_int(byte + at, best);
        v_store(r + at, (vf)shift_left(254 - best, 23));
    }
    for (size_t i = 0; i < b->count; i++) {
        uint8_t *codes = b->codes + i * 32;
        if (__builtin_expect(odd[i], 0)) {
            *(uint8_t *)b->scale[i] = rq_group_search_ref(format, T, b->w[i], codes).byte;
            continue;
        }
        *(uint8_t *)b->scale[i] = (uint8_t)byte[i];
        if (wide)
            e4m3_unit(b->w[i], r[i], codes);
        else
            e2m1_unit(b->w[i], b->w[i] + 16, r[i], r[i], false, 2 << 23, codes);
    }
}

INLINE void nvfp4_search_batch(batch *b, rq_dtype T, const rq_quant_format *format, rq_quant_counts *counts) {
    float r[BATCH];
    int32_t odd[BATCH], byte[BATCH], zeroed[BATCH];
    for (size_t at = 0; at < b->count; at += LANES) {
        vf x[16], least = v_set(0), best_inverse = v_set(0);
        const vi amax = load_magnitudes(b->w + at, 16, x);
        const vf rounded = round_to_dtype((vf)amax, T);
        const vi first = e4m3_codes(round_to_dtype(rounded / v_set(6), T));
        vi best = first;
        for (int k = 0; k < RQ_NVFP4_BYTES; k++) {
            const vi code = first + rq_nvfp4_bytes[k];
            const vf scale = e4m3_values(code);
            const vf inverse = (vf)(~(code == 0) & (vi)(v_set(1) / scale));
            vf error = v_set(0);
            for (int j = 0; j < 16; j++) {
                const vf d = v_fnma(nearest_e2m1(x[j] * inverse), scale, x[j]);
                error = v_fma(d, d, error);
            }
            const vi better = k == 0 ? v_set_int(-1) : (error < least) & (code >= 1) & (code <= 0x7e);
            least = select_f(better, error, least);
            best = select_i(better, code, best);
            best_inverse = select_f(better, inverse, best_inverse);
        }
        v_store_int(odd + at, (amax >= 0x7f800000) | ((vi)rounded >= 0x7f800000));
        v_store_int(byte + at, best);
        v_store_int(zeroed + at, (best == 0) & (amax != 0));
        v_store(r + at, best_inverse);
    }
    for (size_t i = b->count; i < BATCH; i++) r[i] = 0;
    for (size_t i = 0; i < b->count; i += 2)
        e2m1_unit(b->w[i], b->w[i + 1], r[i], r[i + 1], false, 2 << 23, b->codes + i * 16);
    for (size_t i = 0; i < b->count; i++) {
        if (__builtin_expect(odd[i], 0)) {
            const rq_group made = rq_group_search_ref(format, T, b->w[i], b->codes + i * 16);
            byte[i] = made.byte;
            zeroed[i] = made.zeroed;
        }
        *(uint8_t *)b->scale[i] = (uint8_t)byte[i];
        counts->zeroed_groups += zeroed[i] & 1;
    }
}

/* ---- the kernel ---- */

static void search_batch(batch *b, const rq_quant_format *format, rq_dtype T, rq_quant_counts *counts) {
    fill_up(b);
    switch (format->mode) {
    case RQ_AFFINE:
        affine_search_batch(b, format->bits, format->group_size, T, format);
        break;
    case RQ_MXFP4:
        mx_search_batch(b, false, T, format);
        break;
    case RQ_MXFP8:
        mx_search_batch(b, true, T, format);
        break;
    case RQ_NVFP4:
        nvfp4_search_batch(b, T, format, counts);
        break;
    }
    pack_batch(b, format, counts);
}

static void quantize_search(const rq_quant_format *format, rq_dtype storage, const float *w, size_t w_stride,
                            size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                            size_t scales_stride, rq_quant_counts *counts) {
    for_batches(search_batch, format, storage, w, w_stride, rows, cols, codes, codes_stride, scales, biases,
                scales_stride, counts);
}
