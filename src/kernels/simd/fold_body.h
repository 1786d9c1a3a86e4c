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

/* ---- Sylvester stages between 2, 4, 8 or 16 vectors, `d` elements apart ---- */

static inline __attribute__((always_inline)) void FN(radix2)(REAL *x, size_t d) {
    V a0 = LD(x), a1 = LD(x + d);
    BF(a0, a1);
    ST(x, a0), ST(x + d, a1);
}

static inline __attribute__((always_inline)) void FN(radix4)(REAL *x, size_t d) {
    V a0 = LD(x), a1 = LD(x + d), a2 = LD(x + 2 * d), a3 = LD(x + 3 * d);
    BF(a0, a1), BF(a2, a3), BF(a0, a2), BF(a1, a3);
    ST(x, a0), ST(x + d, a1), ST(x + 2 * d, a2), ST(x + 3 * d, a3);
}

static inline __attribute__((always_inline)) void FN(radix8)(REAL *x, size_t d) {
    V a0 = LD(x), a1 = LD(x + d), a2 = LD(x + 2 * d), a3 = LD(x + 3 * d);
    V a4 = LD(x + 4 * d), a5 = LD(x + 5 * d), a6 = LD(x + 6 * d), a7 = LD(x + 7 * d);
    BF(a0, a1), BF(a2, a3), BF(a4, a5), BF(a6, a7);
    BF(a0, a2), BF(a1, a3), BF(a4, a6), BF(a5, a7);
    BF(a0, a4), BF(a1, a5), BF(a2, a6), BF(a3, a7);
    ST(x, a0), ST(x + d, a1), ST(x + 2 * d, a2), ST(x + 3 * d, a3);
    ST(x + 4 * d, a4), ST(x + 5 * d, a5), ST(x + 6 * d, a6), ST(x + 7 * d, a7);
}

#define STAGES16                                                                                        \
    do {                                                                                                \
        BF(a0, a1), BF(a2, a3), BF(a4, a5), BF(a6, a7), BF(a8, a9), BF(aa, ab), BF(ac, ad), BF(ae, af); \
        BF(a0, a2), BF(a1, a3), BF(a4, a6), BF(a5, a7), BF(a8, aa), BF(a9, ab), BF(ac, ae), BF(ad, af); \
        BF(a0, a4), BF(a1, a5), BF(a2, a6), BF(a3, a7), BF(a8, ac), BF(a9, ad), BF(aa, ae), BF(ab, af); \
        BF(a0, a8), BF(a1, a9), BF(a2, aa), BF(a3, ab), BF(a4, ac), BF(a5, ad), BF(a6, ae), BF(a7, af); \
    } while (0)
#define STORE16(x, d)                                                                                   \
    do {                                                                                                \
        ST(x, a0), ST((x) + (d), a1), ST((x) + 2 * (d), a2), ST((x) + 3 * (d), a3);                     \
        ST((x) + 4 * (d), a4), ST((x) + 5 * (d), a5), ST((x) + 6 * (d), a6), ST((x) + 7 * (d), a7);     \
        ST((x) + 8 * (d), a8), ST((x) + 9 * (d), a9), ST((x) + 10 * (d), aa), ST((x) + 11 * (d), ab);   \
        ST((x) + 12 * (d), ac), ST((x) + 13 * (d), ad), ST((x) + 14 * (d), ae), ST((x) + 15 * (d), af); \
    } while (0)

static inline __attribute__((always_inline)) void FN(radix16)(REAL *x, size_t d) {
    V a0 = LD(x), a1 = LD(x + d), a2 = LD(x + 2 * d), a3 = LD(x + 3 * d);
    V a4 = LD(x + 4 * d), a5 = LD(x + 5 * d), a6 = LD(x + 6 * d), a7 = LD(x + 7 * d);
    V a8 = LD(x + 8 * d), a9 = LD(x + 9 * d), aa = LD(x + 10 * d), ab = LD(x + 11 * d);
    V ac = LD(x + 12 * d), ad = LD(x + 13 * d), ae = LD(x + 14 * d), af = LD(x + 15 * d);
    STAGES16;
    STORE16(x, d);
}

/* All stages between `len` rows (a power of two) of `cols` elements, `row` elements apart. cols is a multiple of LANES.
 */
static void FN(stages)(REAL *x, size_t len, size_t row, size_t cols) {
    for (size_t h = 1; h < len;) {
        const size_t left = len / h;
        const size_t legs = left >= 16 && RADIX_LOG2 >= 4 ? 16 : left >= 8 ? 8 : left;
        const size_t d = h * row;
        for (size_t i = 0; i < len; i += legs * h)
            for (size_t j = i; j < i + h; j++) {
                REAL *p = x + j * row;
                if (legs == 16)
                    for (size_t c = 0; c < cols; c += LANES) FN(radix16)(p + c, d);
                else if (legs == 8)
                    for (size_t c = 0; c < cols; c += LANES) FN(radix8)(p + c, d);
                else if (legs == 4)
                    for (size_t c = 0; c < cols; c += LANES) FN(radix4)(p + c, d);
                else
                    for (size_t c = 0; c < cols; c += LANES) FN(radix2)(p + c, d);
            }
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

/* ---- between the K blocks: 2 vectors at a time, quads shared by all outputs ---- */

/* Rows b * step (b = 0..K-1), `cols` elements each, a multiple of LANES; one or two vectors wide per turn. */
static inline __attribute__((always_inline)) void FN(across_width)(REAL *x, size_t step, const rq_fwht *fwht, V *quads,
                                                                   const size_t wide) {
    static const REAL sign[2] = {1, -1};
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
    for (size_t i = 0; i < K; i++) {
        const uint8_t *code = fwht->quad + i * n;
        const V *first = quads + (code[0] & 7u) * wide;
        const REAL s0 = sign[code[0] >> 3];
        V sum0 = first[0] * s0, sum1 = wide == 2 ? first[1] * s0 : sum0;
        for (size_t q = 1; q < n; q++) {
            const V *o = quads + (q * 8 + (code[q] & 7u)) * wide;
            const V s = sign[code[q] >> 3] - (V){0};
            sum0 = FMA(o[0], s, sum0);
            if (wide == 2) sum1 = FMA(o[1], s, sum1);
        }
        ST(x + i * step, sum0);
        if (wide == 2) ST(x + i * step + LANES, sum1);
    }
}

static void FN(across)(REAL *x, size_t step, size_t cols, const rq_fwht *fwht) {
    V quads[2 * 2 * RQ_FWHT_K_MAX];
    size_t c = 0;
    for (; c + 2 * LANES <= cols; c += 2 * LANES) FN(across_width)(x + c, step, fwht, quads, 2);
    if (c < cols) FN(across_width)(x + c, step, fwht, quads, 1);
}

/* ---- entry points ---- */

static void FN(fwht_row)(void *x_, const rq_fwht *fwht) {
    REAL *x = x_;
    const size_t len = fwht->len;
    if (len < LANES) {
        rq_fold_ref[FN(index)].fwht_row(x, fwht);
        return;
    }
    const size_t vectors = len / LANES, legs = vectors < 8 ? vectors : 8;
    for (size_t i = 0; i < fwht->order; i += legs * LANES) {
        REAL *p = x + i;
        if (legs == 8) {
            V a0 = FN(inside)(LD(p)), a1 = FN(inside)(LD(p + LANES));
            V a2 = FN(inside)(LD(p + 2 * LANES)), a3 = FN(inside)(LD(p + 3 * LANES));
            V a4 = FN(inside)(LD(p + 4 * LANES)), a5 = FN(inside)(LD(p + 5 * LANES));
            V a6 = FN(inside)(LD(p + 6 * LANES)), a7 = FN(inside)(LD(p + 7 * LANES));
            BF(a0, a1), BF(a2, a3), BF(a4, a5), BF(a6, a7);
            BF(a0, a2), BF(a1, a3), BF(a4, a6), BF(a5, a7);
            BF(a0, a4), BF(a1, a5), BF(a2, a6), BF(a3, a7);
            ST(p, a0), ST(p + LANES, a1), ST(p + 2 * LANES, a2), ST(p + 3 * LANES, a3);
            ST(p + 4 * LANES, a4), ST(p + 5 * LANES, a5), ST(p + 6 * LANES, a6), ST(p + 7 * LANES, a7);
        } else {
            for (size_t v = 0; v < legs; v++) ST(p + v * LANES, FN(inside)(LD(p + v * LANES)));
            FN(stages)(p, legs, LANES, LANES);
        }
    }
    if (len > legs * LANES)
        for (size_t b = 0; b < fwht->K; b++) FN(stages)(x + b * len, len / (legs * LANES), legs * LANES, legs * LANES);
    if (fwht->K > 1) FN(across)(x, len, len, fwht);
}

/* Stages run inside blocks of rows that fit the first-level cache before they run between blocks. */
static void FN(fwht_cols)(void *x_, size_t cols, size_t stride, const rq_fwht *fwht) {
    REAL *x = x_;
    const size_t whole = cols / LANES * LANES, len = fwht->len;
    if (whole) {
        size_t block = len;
        while (block > 16 && block * whole * sizeof(REAL) > 16384) block /= 2;
        for (size_t i = 0; i < fwht->order; i += block) FN(stages)(x + i * stride, block, stride, whole);
        if (block < len)
            for (size_t i = 0; i < fwht->order; i += len)
                for (size_t j = i; j < i + block; j++) FN(stages)(x + j * stride, len / block, block * stride, whole);
        if (fwht->K > 1)
            for (size_t o = 0; o < len; o++) FN(across)(x + o * stride, len * stride, whole, fwht);
    }
    if (whole < cols) rq_fold_ref[FN(index)].fwht_cols(x + whole, cols - whole, stride, fwht);
}

/* Four vectors by two register columns: q streams by once for four rows, and a strip of it stays in cache for the next.
 */
static void FN(dense_rows)(void *y_, const void *x_, size_t rows, const void *q_, size_t n) {
    REAL *y = y_;
    const REAL *x = x_, *q = q_;
    const size_t wide = 2 * LANES, whole = n / wide * wide;
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
#undef STAGES16
#undef STORE16
#undef SIGN1
#undef SIGN2
#undef SIGN4
#undef SIGN8
#undef SWAP1
#undef SWAP2
#undef SWAP4
#undef SWAP8
#undef V
