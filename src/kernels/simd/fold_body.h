/* The fold's vector body at working precision REAL, named FN(...). fold_isa.h includes it twice (double, float) for
 * every instruction set, which defines VECTOR_BYTES, RADIX_LOG2 (stages that a pass keeps in registers) and FMA.
 *
 * Plain vector code (GCC vector extensions): the operations are the reference's, one lane per element. Multiplying by
 * +-1 inside an FMA is exact, so FMA(x, -1, y) is the reference's y - x to the last bit, zeros included. Registers are
 * named, not an array: gcc 12 leaves unrolled arrays in memory. */

#define V FN(V)
typedef REAL V __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL FN(U) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

#define LD(p) (*(const FN(U) *)(p))
#define ST(p, v) (*(FN(U) *)(p) = (v))
#define BF(a, b) FN(butterfly)(&(a), &(b))

static inline __attribute__((always_inline)) void FN(butterfly)(V *a, V *b) {
    const V difference = *a - *b;
    *a = *a + *b;
    *b = difference;
}

/* ---- Sylvester stages between 1, 2, 4, 8 or 16 vectors: GET(i) yields vector i, PUT(i, v) takes it ---- */

#define PASS1(GET, PUT)      \
    do {                     \
        const V a0 = GET(0); \
        PUT(0, a0);          \
    } while (0)
#define PASS2(GET, PUT)             \
    do {                            \
        V a0 = GET(0), a1 = GET(1); \
        BF(a0, a1);                 \
        PUT(0, a0), PUT(1, a1);     \
    } while (0)
#define PASS4(GET, PUT)                                       \
    do {                                                      \
        V a0 = GET(0), a1 = GET(1), a2 = GET(2), a3 = GET(3); \
        BF(a0, a1), BF(a2, a3), BF(a0, a2), BF(a1, a3);       \
        PUT(0, a0), PUT(1, a1), PUT(2, a2), PUT(3, a3);       \
    } while (0)
#define PASS8(GET, PUT)                                                                                           \
    do {                                                                                                          \
        V a0 = GET(0), a1 = GET(1), a2 = GET(2), a3 = GET(3), a4 = GET(4), a5 = GET(5), a6 = GET(6), a7 = GET(7); \
        BF(a0, a1), BF(a2, a3), BF(a4, a5), BF(a6, a7);                                                           \
        BF(a0, a2), BF(a1, a3), BF(a4, a6), BF(a5, a7);                                                           \
        BF(a0, a4), BF(a1, a5), BF(a2, a6), BF(a3, a7);                                                           \
        PUT(0, a0), PUT(1, a1), PUT(2, a2), PUT(3, a3), PUT(4, a4), PUT(5, a5), PUT(6, a6), PUT(7, a7);           \
    } while (0)
#define PASS16(GET, PUT)                                                                                          \
    do {                                                                                                          \
        V a0 = GET(0), a1 = GET(1), a2 = GET(2), a3 = GET(3), a4 = GET(4), a5 = GET(5), a6 = GET(6), a7 = GET(7); \
        V a8 = GET(8), a9 = GET(9), aa = GET(10), ab = GET(11), ac = GET(12), ad = GET(13), ae = GET(14),         \
          af = GET(15);                                                                                           \
        BF(a0, a1), BF(a2, a3), BF(a4, a5), BF(a6, a7), BF(a8, a9), BF(aa, ab), BF(ac, ad), BF(ae, af);           \
        BF(a0, a2), BF(a1, a3), BF(a4, a6), BF(a5, a7), BF(a8, aa), BF(a9, ab), BF(ac, ae), BF(ad, af);           \
        BF(a0, a4), BF(a1, a5), BF(a2, a6), BF(a3, a7), BF(a8, ac), BF(a9, ad), BF(aa, ae), BF(ab, af);           \
        BF(a0, a8), BF(a1, a9), BF(a2, aa), BF(a3, ab), BF(a4, ac), BF(a5, ad), BF(a6, ae), BF(a7, af);           \
        PUT(0, a0), PUT(1, a1), PUT(2, a2), PUT(3, a3), PUT(4, a4), PUT(5, a5), PUT(6, a6), PUT(7, a7);           \
        PUT(8, a8), PUT(9, a9), PUT(10, aa), PUT(11, ab), PUT(12, ac), PUT(13, ad), PUT(14, ae), PUT(15, af);     \
    } while (0)
#if RADIX_LOG2 >= 4
#define RADIX_MAX ((size_t)16)
#else
#define RADIX_MAX ((size_t)8)
#endif
/* `legs` is a constant of the enclosing inlined function. */
#define PASS(legs, GET, PUT)  \
    do {                      \
        if ((legs) == 16)     \
            PASS16(GET, PUT); \
        else if ((legs) == 8) \
            PASS8(GET, PUT);  \
        else if ((legs) == 4) \
            PASS4(GET, PUT);  \
        else if ((legs) == 2) \
            PASS2(GET, PUT);  \
        else                  \
            PASS1(GET, PUT);  \
    } while (0)
/* CALL(n) for the constant n that equals legs. */
#if RADIX_LOG2 >= 4
#define BY_LEGS(legs, CALL) \
    do {                    \
        switch (legs) {     \
        case 16:            \
            CALL(16);       \
            break;          \
        case 8:             \
            CALL(8);        \
            break;          \
        case 4:             \
            CALL(4);        \
            break;          \
        case 2:             \
            CALL(2);        \
            break;          \
        default:            \
            CALL(1);        \
            break;          \
        }                   \
    } while (0)
#else
#define BY_LEGS(legs, CALL) \
    do {                    \
        switch (legs) {     \
        case 8:             \
            CALL(8);        \
            break;          \
        case 4:             \
            CALL(4);        \
            break;          \
        case 2:             \
            CALL(2);        \
            break;          \
        default:            \
            CALL(1);        \
            break;          \
        }                   \
    } while (0)
#endif

#define BY_WIDTH(wide, CALL) \
    do {                     \
        switch (wide) {      \
        case 4:              \
            CALL(4);         \
            break;           \
        case 2:              \
            CALL(2);         \
            break;           \
        default:             \
            CALL(1);         \
            break;           \
        }                    \
    } while (0)

static inline size_t FN(legs_of)(size_t left) { return left < RADIX_MAX ? left : RADIX_MAX; }

/* One pass: `legs` rows h apart, for all `len` rows of `cols` elements, `row` elements apart. */
static inline __attribute__((always_inline)) void FN(stage_pass)(REAL *x, size_t h, size_t len, size_t row, size_t cols,
                                                                 const size_t legs) {
    const size_t d = h * row;
    for (size_t i = 0; i < len; i += legs * h)
        for (size_t j = i; j < i + h; j++)
            for (size_t c = 0; c < cols; c += LANES) {
                REAL *p = x + j * row + c;
#define GET(k) LD(p + (size_t)(k)*d)
#define PUT(k, v) ST(p + (size_t)(k)*d, v)
                PASS(legs, GET, PUT);
#undef GET
#undef PUT
            }
}

/* The stages of stride h0, 2 h0, ... h1 / 2 between `len` rows (powers of two). cols is a multiple of LANES. */
static void FN(stages)(REAL *x, size_t h0, size_t h1, size_t len, size_t row, size_t cols) {
    for (size_t h = h0; h < h1;) {
        const size_t legs = FN(legs_of)(h1 / h);
#define CALL(n) FN(stage_pass)(x, h, len, row, cols, n)
        BY_LEGS(legs, CALL);
#undef CALL
        h *= legs;
    }
}

/* ---- stages inside one vector ---- */

#if LANES == 2
#define SIGN1 \
    { 1, -1 }
#define SWAP1(v) __builtin_shufflevector(v, v, 1, 0)
#elif LANES == 4
#define SIGN1 \
    { 1, -1, 1, -1 }
#define SIGN2 \
    { 1, 1, -1, -1 }
#define SWAP1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#define SWAP2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1)
#elif LANES == 8
#define SIGN1 \
    { 1, -1, 1, -1, 1, -1, 1, -1 }
#define SIGN2 \
    { 1, 1, -1, -1, 1, 1, -1, -1 }
#define SIGN4 \
    { 1, 1, 1, 1, -1, -1, -1, -1 }
#define SWAP1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#define SWAP2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3)
#else
#define SIGN1 \
    { 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1 }
#define SIGN2 \
    { 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1 }
#define SIGN4 \
    { 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1 }
#define SIGN8 \
    { 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1 }
#define SWAP1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SWAP2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP8(v) __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#endif

static inline __attribute__((always_inline)) V FN(inside)(V v) {
    v = FMA(v, ((V)SIGN1), SWAP1(v));
#if LANES >= 4
    v = FMA(v, ((V)SIGN2), SWAP2(v));
#endif
#if LANES >= 8
    v = FMA(v, ((V)SIGN4), SWAP4(v));
#endif
#if LANES >= 16
    v = FMA(v, ((V)SIGN8), SWAP8(v));
#endif
    return v;
}

/* ---- elements in, rounded values out ---- */

typedef uint16_t FN(u16v) __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef uint32_t FN(u32v) __attribute__((vector_size(LANES * 4)));
typedef float FN(f32v) __attribute__((vector_size(LANES * 4)));
typedef float FN(f32u) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* LANES elements from element i of src on; BF16, F32, or F64 (double only). */
static inline __attribute__((always_inline)) V FN(widen)(const void *src, size_t i, const rq_dtype dtype) {
    if (dtype == RQ_BF16) {
#ifdef WIDEN_BF16
        return WIDEN_BF16((const uint16_t *)src + i);
#else
        const FN(u32v) u = __builtin_convertvector(*(const FN(u16v) *)((const uint16_t *)src + i), FN(u32v));
        return __builtin_convertvector((FN(f32v))(u << 16), V);
#endif
    }
    if (dtype == RQ_F32) {
#ifdef WIDEN_F32
        return WIDEN_F32((const float *)src + i);
#else
        return __builtin_convertvector((FN(f32v)) * (const FN(f32u) *)((const float *)src + i), V);
#endif
    }
    return LD((const REAL *)src + i);
}

/* What a fused last pass learns about its results, as f32 bit patterns u before rounding to bf16. */
typedef struct FN(seen) {
    FN(u32v) tie; /* least low half of u + 0x8000, shifted up: zero when some u is half way between two bf16 values */
    FN(u32v) top; /* greatest u << 1: the magnitude */
} FN(seen);

/* Constants of the rounding, held in registers: gcc rebuilds immediates inside loops otherwise. */
typedef struct FN(rounding) {
    FN(u32v) half, upper;
    V scale;
} FN(rounding);

static inline __attribute__((always_inline)) FN(rounding) FN(rounding_make)(double scale) {
    FN(rounding) r = {(FN(u32v)){0} + 0x8000u, (FN(u32v)){0} + 0xffff0000u, (V){0} + (REAL)scale};
    KEEP_IN_REGISTER(r.half);
    KEEP_IN_REGISTER(r.upper);
    KEEP_IN_REGISTER(r.scale);
    return r;
}

#define SEEN_NOTHING                         \
    {                                        \
        (FN(u32v)){0} - 1u, (FN(u32v)) { 0 } \
    }

/* y = v * scale rounded to `to` (BF16 or F32). Doubles that meet a tie of bf16 are marked and redone, so they may go
 * either way here; floats are rounded to even at once. */
static inline __attribute__((always_inline)) void FN(put)(float *y, V v, const FN(rounding) * r, const rq_dtype to,
                                                          FN(seen) * seen) {
    FN(f32v) f = __builtin_convertvector(v * r->scale, FN(f32v));
    FN(u32v) u = (FN(u32v))f;
    seen->top = FN(max_u32)(seen->top, u + u);
    if (to == RQ_BF16) {
        if (sizeof(REAL) == 8) {
            u += r->half;
            seen->tie = FN(min_u32)(seen->tie, u << 16);
        } else {
            u += 0x7fffu + ((u >> 16) & 1u);
        }
        f = (FN(f32v))(u & r->upper);
    }
    *(FN(f32u) *)y = f;
}

static inline bool FN(saw_tie)(const FN(seen) * seen, const rq_dtype to) {
    return sizeof(REAL) == 8 && to == RQ_BF16 && FN(least)(seen->tie) == 0;
}

/* No NaN, no infinity, nothing that rounds to infinity. The middle between the largest bf16 value and infinity is a
 * tie: a double that met it was redone, and its repaired value decides. */
static inline bool FN(saw_finite)(const FN(seen) * seen, const rq_dtype to) {
    const uint32_t middle = 2u * 0x7f7f8000u + (sizeof(REAL) == 8 ? 1u : 0u);
    return FN(greatest)(seen->top) < (to == RQ_BF16 ? middle : 2u * 0x7f800000u);
}

/* Defined by fold_isa.h. */
static void FN(load)(void *x, const void *src, rq_dtype dtype, const void *gain, size_t n);
static bool FN(round_to)(float *y, const void *x, double scale, rq_dtype dtype, size_t n);
static void FN(load_panel)(void *x, size_t x_stride, const void *src, size_t src_stride, rq_dtype dtype,
                           const void *row_gain, size_t rows, size_t cols);
static bool FN(round_panel)(float *y, size_t y_stride, const void *x, size_t x_stride, double scale, rq_dtype dtype,
                            size_t rows, size_t cols);

/* ---- between the K blocks: quads shared by all outputs ---- */

/* Where rounded results go. A panel of [K][len][width] counts as K rows of len * width columns, so that two vectors
 * share the codes even where the width is one vector. */
typedef struct FN(sink) {
    float *y;      /* column c of row b goes to y + b * y_step + c / width * y_stride + c % width */
    size_t y_step; /* between rows */
    size_t width, y_stride;
    double scale;
    rq_dtype to;
} FN(sink);

/* Rows b * step (b = 0..K-1) of x, `wide` vectors each. `round` is whether results go to the sink; x is then untouched.
 */
static inline __attribute__((always_inline)) void FN(across_width)(REAL *x, size_t step, const rq_fwht *fwht, V *quads,
                                                                   const size_t wide, const bool round,
                                                                   const FN(sink) * sink, float *const y[2],
                                                                   const rq_dtype to, FN(seen) * seen) {
    const FN(rounding) rounding = FN(rounding_make)(round ? sink->scale : 1.0);
    const size_t K = fwht->K, n = K / 4;
    for (size_t q = 0; q < n; q++)
        for (size_t w = 0; w < wide; w++) {
            const REAL *p = x + 4 * q * step + w * LANES;
            const V x0 = LD(p), x1 = LD(p + step), x2 = LD(p + 2 * step), x3 = LD(p + 3 * step);
            const V left0 = x0 + x1, left1 = x0 - x1, right0 = x2 + x3, right1 = x2 - x3;
            /* code bits: x1, x2, x3 negative relative to x0; x3 relative to x2 is bit 1 xor bit 2 */
            V *o = quads + (q * 8) * wide + w;
            o[0 * wide] = left0 + right0, o[1 * wide] = left1 + right0;
            o[2 * wide] = left0 - right1, o[3 * wide] = left1 - right1;
            o[4 * wide] = left0 + right1, o[5 * wide] = left1 + right1;
            o[6 * wide] = left0 - right0, o[7 * wide] = left1 - right0;
        }
    const REAL *sign =
        sizeof(REAL) == 8 ? (const REAL *)(const void *)fwht->sign : (const REAL *)(const void *)fwht->sign_f32;
    const uint16_t *term = fwht->term;
    for (size_t i = 0; i < K; i++, sign += n, term += n) {
        const V *o = quads + term[0] * wide;
        V s = (V){0} + sign[0];
        V sum0 = o[0] * s, sum1 = sum0, sum2 = sum0, sum3 = sum0;
        if (wide >= 2) sum1 = o[1] * s;
        if (wide >= 4) sum2 = o[2] * s, sum3 = o[3] * s;
        for (size_t q = 1; q < n; q++) {
            o = quads + term[q] * wide;
            s = (V){0} + sign[q];
            sum0 = FMA(o[0], s, sum0);
            if (wide >= 2) sum1 = FMA(o[1], s, sum1);
            if (wide >= 4) sum2 = FMA(o[2], s, sum2), sum3 = FMA(o[3], s, sum3);
        }
        if (round) {
            FN(put)(y[0] + i * sink->y_step, sum0, &rounding, to, seen);
            if (wide >= 2) FN(put)(y[1] + i * sink->y_step, sum1, &rounding, to, seen);
            if (wide >= 4) FN(put)(y[2] + i * sink->y_step, sum2, &rounding, to, seen);
            if (wide >= 4) FN(put)(y[3] + i * sink->y_step, sum3, &rounding, to, seen);
        } else {
            ST(x + i * step, sum0);
            if (wide >= 2) ST(x + i * step + LANES, sum1);
            if (wide >= 4) ST(x + i * step + (size_t)2 * LANES, sum2), ST(x + i * step + (size_t)3 * LANES, sum3);
        }
    }
}

/* `wide` vectors from column c on, to the sink, with the rare tie redone from x. */
static inline __attribute__((always_inline)) bool FN(across_rounded)(REAL *x, size_t step, const rq_fwht *fwht,
                                                                     V *quads, const size_t wide, size_t c,
                                                                     const FN(sink) * sink, const rq_dtype to) {
    float *y[4];
    for (size_t w = 0; w < 4; w++) {
        const size_t at = c + w * LANES;
        y[w] = sink->y + at / sink->width * sink->y_stride + at % sink->width;
    }
    FN(seen) seen = SEEN_NOTHING;
    FN(across_width)(x + c, step, fwht, quads, wide, true, sink, y, to, &seen);
    if (__builtin_expect(!FN(saw_tie)(&seen, to), 1)) return FN(saw_finite)(&seen, to);
    FN(across_width)(x + c, step, fwht, quads, wide, false, sink, y, to, &seen);
    bool finite = FN(saw_finite)(&seen, to);
    for (size_t i = 0; i < fwht->K; i++)
        for (size_t w = 0; w < wide; w++)
            finite &= rq_fix_ties(y[w] + i * sink->y_step, (const double *)(const void *)(x + c + i * step + w * LANES),
                                  sink->scale, LANES);
    return finite;
}

/* K rows of `cols` columns, `step` apart; cols is a multiple of LANES. sink NULL: back to x. */
static bool FN(across)(REAL *x, size_t step, size_t cols, const rq_fwht *fwht, const FN(sink) * sink) {
    V quads[2 * 2 * RQ_FWHT_K_MAX]; /* K / 4 quads, 8 combinations, up to 4 vectors; 2 for the large K */
    const size_t widest = fwht->K <= RQ_FWHT_K_MAX / 2 ? 4 : 2;
    bool finite = true;
    for (size_t c = 0; c < cols;) {
        size_t wide = widest;
        while (c + wide * LANES > cols) wide /= 2;
#define PLAIN(n) FN(across_width)(x + c, step, fwht, quads, n, false, NULL, NULL, RQ_F32, NULL)
#define ROUNDED(n)                                                                                \
    finite &= sink->to == RQ_BF16 ? FN(across_rounded)(x, step, fwht, quads, n, c, sink, RQ_BF16) \
                                  : FN(across_rounded)(x, step, fwht, quads, n, c, sink, RQ_F32)
        if (!sink)
            BY_WIDTH(wide, PLAIN);
        else
            BY_WIDTH(wide, ROUNDED);
#undef PLAIN
#undef ROUNDED
        c += wide * LANES;
    }
    return finite;
}

/* ---- rows ---- */

/* The first pass of a row: elements, gain, stages inside a vector and between `legs` neighbouring vectors. */
static inline __attribute__((always_inline)) void FN(row_first_as)(REAL *x, const void *src, const rq_dtype dtype,
                                                                   const REAL *gain, size_t n, const size_t legs) {
    for (size_t i = 0; i < n; i += legs * LANES) {
        REAL *p = x + i;
#define PUT(k, v) ST(p + (size_t)(k)*LANES, v)
        if (gain) {
#define GET(k) FN(inside)(FN(widen)(src, i + (size_t)(k)*LANES, dtype) * LD(gain + i + (size_t)(k)*LANES))
            PASS(legs, GET, PUT);
#undef GET
        } else {
#define GET(k) FN(inside)(FN(widen)(src, i + (size_t)(k)*LANES, dtype))
            PASS(legs, GET, PUT);
#undef GET
        }
#undef PUT
    }
}

/* dtype BF16 or F32 with a gain, or the working type without. */
static void FN(row_first)(REAL *x, const void *src, rq_dtype dtype, const REAL *gain, size_t n, size_t legs) {
#define BF16_CALL(n_) FN(row_first_as)(x, src, RQ_BF16, gain, n, n_)
#define F32_CALL(n_) FN(row_first_as)(x, src, RQ_F32, gain, n, n_)
#define REAL_CALL(n_) FN(row_first_as)(x, src, sizeof(REAL) == 8 ? RQ_F64 : RQ_F32, NULL, n, n_)
    if (!gain)
        BY_LEGS(legs, REAL_CALL);
    else if (dtype == RQ_BF16)
        BY_LEGS(legs, BF16_CALL);
    else
        BY_LEGS(legs, F32_CALL);
#undef BF16_CALL
#undef F32_CALL
#undef REAL_CALL
}

/* Last passes of rows * cols / LANES vectors: legs x + k * d go straight into y + k * yd, row r of them at x + r * cols
 * and y + r * y_stride. x keeps its input, so that the rare tie is redone from it, plainly. */
static inline __attribute__((always_inline)) bool FN(last_as)(float *y, size_t y_stride, size_t yd, REAL *x, size_t d,
                                                              size_t rows, size_t cols, double scale, const rq_dtype to,
                                                              const size_t legs) {
    const FN(rounding) rounding = FN(rounding_make)(scale);
    FN(seen) all = SEEN_NOTHING;
    bool finite = true;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c += LANES) {
            REAL *p = x + r * cols + c;
            float *q = y + r * y_stride + c;
            FN(seen) seen = SEEN_NOTHING;
#define GET(k) LD(p + (size_t)(k)*d)
#define PUT(k, v) FN(put)(q + (size_t)(k)*yd, v, &rounding, to, &seen)
            PASS(legs, GET, PUT);
#undef PUT
            all.top = FN(max_u32)(all.top, seen.top);
            if (__builtin_expect(!FN(saw_tie)(&seen, to), 1)) continue;
#define PUT(k, v) ST(p + (size_t)(k)*d, v)
            PASS(legs, GET, PUT);
#undef PUT
#undef GET
            for (size_t k = 0; k < legs; k++)
                finite &= rq_fix_ties(q + k * yd, (const double *)(const void *)(p + k * d), scale, LANES);
        }
    return FN(saw_finite)(&all, to) && finite;
}

static bool FN(last)(float *y, size_t y_stride, size_t yd, REAL *x, size_t d, size_t rows, size_t cols, double scale,
                     rq_dtype to, size_t legs) {
    bool finite = false;
#define BF16_CALL(n) finite = FN(last_as)(y, y_stride, yd, x, d, rows, cols, scale, RQ_BF16, n)
#define F32_CALL(n) finite = FN(last_as)(y, y_stride, yd, x, d, rows, cols, scale, RQ_F32, n)
    if (to == RQ_BF16)
        BY_LEGS(legs, BF16_CALL);
    else
        BY_LEGS(legs, F32_CALL);
#undef BF16_CALL
#undef F32_CALL
    return finite;
}

static void FN(fwht_row)(void *x_, const rq_fwht *fwht) {
    REAL *x = x_;
    const size_t len = fwht->len;
    if (len < LANES) {
        rq_fold_ref[FN(index)].fwht_row(x, fwht);
        return;
    }
    const size_t first = FN(legs_of)(len / LANES), done = first * LANES;
    FN(row_first)(x, x, sizeof(REAL) == 8 ? RQ_F64 : RQ_F32, NULL, fwht->order, first);
    for (size_t i = 0; i < fwht->order; i += len) FN(stages)(x + i, 1, len / done, len / done, done, done);
    if (fwht->K > 1) (void)FN(across)(x, len, len, fwht, NULL);
}

static bool FN(fold_row)(float *y, void *x_, const void *src, rq_dtype dtype, const void *gain, const rq_fwht *fwht,
                         size_t n, double scale, rq_dtype to) {
    REAL *x = x_;
    const bool in = (dtype == RQ_BF16 || dtype == RQ_F32) && gain, out = to == RQ_BF16 || to == RQ_F32;
    if (!fwht || !in || !out || fwht->len < LANES) {
        FN(load)(x, src, dtype, gain, n);
        for (size_t b = 0; fwht && b < n; b += fwht->order) FN(fwht_row)(x + b, fwht);
        return FN(round_to)(y, x, scale, to, n);
    }
    const size_t len = fwht->len, first = FN(legs_of)(len / LANES), done = first * LANES, rows = len / done;
    const size_t last = FN(legs_of)(rows),
                 h = fwht->K > 1 ? rows : rows / last; /* stages 1..h/2 before the last pass */
    bool finite = true;
    FN(row_first)(x, src, dtype, gain, n, first);
    for (size_t i = 0; i < n; i += len) {
        FN(stages)(x + i, 1, h, rows, done, done);
        if (fwht->K == 1) finite &= FN(last)(y + i, 0, h * done, x + i, h * done, 1, h * done, scale, to, last);
    }
    if (fwht->K > 1)
        for (size_t i = 0; i < n; i += fwht->order) {
            const FN(sink) sink = {y + i, len, len, 0, scale, to};
            finite &= FN(across)(x + i, len, len, fwht, &sink);
        }
    return finite;
}

/* ---- columns ---- */

/* Rows whose panel fits the first-level cache beside what streams by. */
static inline size_t FN(cached_rows)(size_t len, size_t cols) {
    size_t rows = len;
    while (rows > RADIX_MAX && rows * cols * sizeof(REAL) > 16384) rows /= 2;
    return rows;
}

/* Stages inside blocks of rows that fit the first-level cache run before those between blocks. */
static void FN(fwht_cols)(void *x_, size_t cols, size_t stride, const rq_fwht *fwht) {
    REAL *x = x_;
    const size_t whole = cols / LANES * LANES, len = fwht->len;
    if (whole) {
        const size_t block = FN(cached_rows)(len, whole);
        for (size_t i = 0; i < fwht->order; i += block) FN(stages)(x + i * stride, 1, block, block, stride, whole);
        for (size_t i = 0; i < fwht->order; i += len) FN(stages)(x + i * stride, block, len, len, stride, whole);
        if (fwht->K > 1)
            for (size_t o = 0; o < len; o++) (void)FN(across)(x + o * stride, len * stride, whole, fwht, NULL);
    }
    if (whole < cols) rq_fold_ref[FN(index)].fwht_cols(x + whole, cols - whole, stride, fwht);
}

/* The first pass of a panel: `legs` neighbouring rows at a time, each times its gain. */
static inline __attribute__((always_inline)) void FN(cols_first_as)(REAL *x, const char *src, size_t src_stride,
                                                                    const rq_dtype dtype, const REAL *gain, size_t rows,
                                                                    size_t cols, const size_t legs) {
    for (size_t i = 0; i < rows; i += legs)
        for (size_t c = 0; c < cols; c += LANES) {
            REAL *p = x + i * cols + c;
            const char *q = src + i * src_stride;
#define PUT(k, v) ST(p + (size_t)(k)*cols, v)
#define GET(k) (FN(widen)(q + (size_t)(k)*src_stride, c, dtype) * gain[i + (size_t)(k)])
            PASS(legs, GET, PUT);
#undef GET
#undef PUT
        }
}

static void FN(cols_first)(REAL *x, const char *src, size_t src_stride, rq_dtype dtype, const REAL *gain, size_t rows,
                           size_t cols, size_t legs) {
#define BF16_CALL(n) FN(cols_first_as)(x, src, src_stride, RQ_BF16, gain, rows, cols, n)
#define REAL_CALL(n) FN(cols_first_as)(x, src, src_stride, sizeof(REAL) == 8 ? RQ_F64 : RQ_F32, gain, rows, cols, n)
    if (dtype == RQ_BF16)
        BY_LEGS(legs, BF16_CALL);
    else
        BY_LEGS(legs, REAL_CALL);
#undef BF16_CALL
#undef REAL_CALL
}

static bool FN(fold_cols)(float *y, size_t y_stride, void *x_, const void *src_, size_t src_stride, rq_dtype dtype,
                          const void *gain_, const rq_fwht *fwht, size_t cols, double scale, rq_dtype to) {
    REAL *x = x_;
    const REAL *gain = gain_;
    const char *src = src_;
    const bool in = dtype == RQ_BF16 || dtype == (sizeof(REAL) == 8 ? RQ_F64 : RQ_F32);
    if (!in || !gain || (to != RQ_BF16 && to != RQ_F32) || cols % LANES) {
        FN(load_panel)(x, cols, src, src_stride, dtype, gain, fwht->order, cols);
        FN(fwht_cols)(x, cols, cols, fwht);
        return FN(round_panel)(y, y_stride, x, cols, scale, to, fwht->order, cols);
    }
    const size_t len = fwht->len, block = FN(cached_rows)(len, cols), first = FN(legs_of)(block);
    /* The stages before the last pass, which has up to RADIX_MAX legs of rows h apart. */
    const size_t last = fwht->K > 1 ? 1 : FN(legs_of)(len / first), h = fwht->K > 1 ? len : len / last;
    bool finite = true;
    for (size_t b = 0; b < fwht->order; b += block) {
        FN(cols_first)(x + b * cols, src + b * src_stride, src_stride, dtype, gain + b, block, cols, first);
        FN(stages)(x + b * cols, first, block < h ? block : h, block, cols, cols);
    }
    for (size_t b = 0; b < fwht->order; b += len) {
        if (block < h) FN(stages)(x + b * cols, block, h, len, cols, cols);
        if (fwht->K == 1)
            finite &=
                FN(last)(y + b * y_stride, y_stride, h * y_stride, x + b * cols, h * cols, h, cols, scale, to, last);
    }
    if (fwht->K > 1) {
        const FN(sink) sink = {y, len * y_stride, cols, y_stride, scale, to};
        finite &= FN(across)(x, len * cols, len * cols, fwht, &sink);
    }
    return finite;
}

/* Four vectors by two register columns: q streams by once for four rows, and a strip of it stays in cache for the next.
 */
static void FN(dense_rows)(void *y_, const void *x_, size_t rows, const void *q_, size_t n) {
    REAL *y = y_;
    const REAL *x = x_, *q = q_;
    const size_t wide = (size_t)2 * LANES, whole = n / wide * wide;
    for (size_t j = 0; j < whole; j += wide) {
        size_t r = 0;
        for (; r + 4 <= rows; r += 4) {
            const REAL *x0 = x + r * n, *x1 = x0 + n, *x2 = x1 + n, *x3 = x2 + n;
            V a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
            for (size_t i = 0; i < n; i++) {
                const V q0 = LD(q + i * n + j), q1 = LD(q + i * n + j + LANES);
                a0 += q0 * x0[i], b0 += q1 * x0[i];
                a1 += q0 * x1[i], b1 += q1 * x1[i];
                a2 += q0 * x2[i], b2 += q1 * x2[i];
                a3 += q0 * x3[i], b3 += q1 * x3[i];
            }
            REAL *o = y + r * n + j;
            ST(o, a0), ST(o + LANES, b0), ST(o + n, a1), ST(o + n + LANES, b1);
            ST(o + 2 * n, a2), ST(o + 2 * n + LANES, b2), ST(o + 3 * n, a3), ST(o + 3 * n + LANES, b3);
        }
        for (; r < rows; r++) {
            V a0 = {0}, b0 = {0};
            for (size_t i = 0; i < n; i++) {
                const REAL s = x[r * n + i];
                a0 += LD(q + i * n + j) * s, b0 += LD(q + i * n + j + LANES) * s;
            }
            ST(y + r * n + j, a0), ST(y + r * n + j + LANES, b0);
        }
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t j = whole; j < n; j++) {
            REAL sum = 0;
            for (size_t i = 0; i < n; i++) sum += x[r * n + i] * q[i * n + j];
            y[r * n + j] = sum;
        }
}

#undef LD
#undef ST
#undef BF
#undef SEEN_NOTHING
#undef PASS1
#undef PASS2
#undef PASS4
#undef PASS8
#undef PASS16
#undef PASS
#undef RADIX_MAX
#undef BY_LEGS
#undef BY_WIDTH
#undef SIGN1
#undef SIGN2
#undef SIGN4
#undef SIGN8
#undef SWAP1
#undef SWAP2
#undef SWAP4
#undef SWAP8
#undef V
