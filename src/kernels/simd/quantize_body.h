/* The mlx quantizers over vectors. Included by one file per instruction set after it has defined the vector
 * primitives (v_*), LANES and the types vf (LANES floats), vi (LANES int32_t), vb (32 bytes).
 *
 * Groups are taken 16 at a time: (1) each group's range, lanes along the group; (2) scales of the 16 groups at once,
 * lanes across groups; (3) codes, lanes along the group, as one byte each; (4) bytes packed into bit streams, whole
 * runs of neighbouring groups at a time.
 *
 * Where a division by a group's scale decides a code, the fast path multiplies by reciprocals and can prove that the
 * code is the division's; see affine_unit and e2m1_unit. Groups with NaN, infinity or extreme exponents go to the
 * scalar reference. */

#define BATCH 16
#define UNIT 32 /* elements coded at once */
#define UNIT_VECS (UNIT / LANES)
#define BATCH_VECS (BATCH / LANES)
#define INLINE static inline __attribute__((always_inline))

typedef struct batch {
    size_t count;           /* groups in use; the rest repeat the last one */
    const float *w[BATCH];  /* the group's elements */
    uint8_t *packed[BATCH]; /* where its codes go */
    char *scale[BATCH], *bias[BATCH];
    uint8_t codes[BATCH * RQ_GROUP_MAX + UNIT]; /* one byte a code; group i at i * group_size */
} batch;

INLINE vi select_i(vi mask, vi a, vi b) { return (mask & a) | (~mask & b); }
INLINE vf select_f(vi mask, vf a, vf b) { return (vf)select_i(mask, (vi)a, (vi)b); }
INLINE vf abs_f(vf x) { return (vf)((vi)x & 0x7fffffff); }
/* On bit patterns: as unsigned numbers, so that they wrap for groups that go to the scalar path afterwards. */
INLINE vi shift_right(vi x, unsigned n) { return (vi)((vu)x >> n); }
INLINE vi shift_left(vi x, unsigned n) { return (vi)((vu)x << n); }
INLINE vi add_bits(vi x, uint32_t bits) { return (vi)((vu)x + bits); }

INLINE vi bf16_bits(vf x) { /* of finite x or infinity */
    const vu u = (vu)x;
    return (vi)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

INLINE vf round_to_dtype(vf x, rq_dtype T) {
    if (T == RQ_BF16) return (vf)shift_left(bf16_bits(x), 16);
    if (T == RQ_F16) return v_from_f16(v_to_f16(x));
    return x;
}

/* The stored bits of x, low in each lane. */
INLINE vi stored_bits(vf x, rq_dtype T) {
    if (T == RQ_BF16) return bf16_bits(x);
    if (T == RQ_F16) return v_to_f16(x);
    return (vi)x;
}

INLINE void put_bits(char *dst, int32_t bits, rq_dtype T) {
    if (T == RQ_F32) {
        memcpy(dst, &bits, sizeof bits);
    } else {
        const uint16_t h = (uint16_t)bits;
        memcpy(dst, &h, sizeof h);
    }
}

/* ---- affine ---- */

/* Codes of 32 elements. `below` and `above` bracket 1/s: |below| <= 1/|s| <= |above|. Rounding is monotone, so the
 * code of fl(d / s) lies between the codes of fl(d * below) and fl(d * above); where these agree it is decided, and
 * where they do not (a tie between two codes), the division decides. */
INLINE void affine_unit(const float *w, float bias, float s, float below, float above, unsigned n, uint8_t *codes) {
    const vf b = v_set(bias), lo = v_set(below), hi = v_set(above);
    vi q[UNIT_VECS], differ = {0};
    for (size_t u = 0; u < UNIT_VECS; u++) {
        const vf d = v_load(w + u * LANES) - b;
        q[u] = v_to_int(d * lo);
        differ |= q[u] ^ v_to_int(d * hi);
    }
    if (__builtin_expect(v_any(differ), 0))
        for (size_t u = 0; u < UNIT_VECS; u++) q[u] = v_to_int((v_load(w + u * LANES) - b) / v_set(s));
    const vb bytes = v_bytes_min(v_to_bytes(q), (vb){0} + (uint8_t)n);
    memcpy(codes, &bytes, UNIT);
}

/* rq_affine_range_ref. */
INLINE void affine_range(vf low, vf high, vf n, vf *scale, vf *bias) {
    const vf eps = v_set(1e-7f);
    const vi from_min = abs_f(low) > abs_f(high);
    vf step = (high - low) / n;
    step = select_f(step < eps, eps, step);
    step = (vf)((vi)step ^ (~from_min & INT32_MIN));
    const vf edge = select_f(from_min, low, high);
    const vf q0 = v_round(edge / step);
    const vi anchored = q0 != v_set(0);
    *scale = select_f(anchored, edge / q0, step);
    *bias = (vf)((vi)edge & anchored);
}

INLINE void affine_batch(batch *b, unsigned bits, size_t g, rq_dtype T, const rq_quant_format *format) {
    const unsigned n = (1u << bits) - 1;
    vf most[BATCH], least[BATCH];
    for (size_t i = 0; i < BATCH; i++) {
        vf high = v_set(-__builtin_inff()), low = v_set(__builtin_inff());
        for (size_t j = 0; j < g; j += LANES) {
            const vf x = v_load(b->w[i] + j);
            high = v_max(x, high); /* NaN is skipped */
            low = v_min(x, low);
        }
        most[i] = high;
        least[i] = low;
    }

    float s[BATCH], bias[BATCH], below[BATCH], above[BATCH];
    int32_t odd[BATCH], scale_bits[BATCH], bias_bits[BATCH];
    for (size_t v = 0; v < BATCH_VECS; v++) {
        const vf high = v_reduce_max(most + v * LANES), low = v_reduce_min(least + v * LANES);
        vf step, base;
        affine_range(low, high, v_set((float)n), &step, &base);
        const vf inverse = v_set(1) / step;
        /* Comparisons that fail for NaN: also every group that holds an infinity. */
        const vi fine = (abs_f(step) <= v_set(0x1p100f)) & (abs_f(step) >= v_set(0x1p-100f)) &
                        (abs_f(base) <= v_set(0x1p120f)) & (abs_f(high - low) <= v_set(0x1p120f));
        v_store(s + v * LANES, step);
        v_store(bias + v * LANES, base);
        v_store(below + v * LANES,
                (vf)add_bits((vi)inverse, UINT32_MAX)); /* rounded to nearest, so one step encloses it */
        v_store(above + v * LANES, (vf)add_bits((vi)inverse, 1));
        v_store_int(odd + v * LANES, ~fine);
        v_store_int(scale_bits + v * LANES, stored_bits(step, T));
        v_store_int(bias_bits + v * LANES, stored_bits(base, T));
    }

    for (size_t i = 0; i < b->count; i++) {
        uint8_t *codes = b->codes + i * g;
        if (__builtin_expect(odd[i], 0)) {
            const rq_group made = rq_group_mlx_ref(format, T, b->w[i], codes);
            rq_put_value(b->scale[i], made.scale, T);
            rq_put_value(b->bias[i], made.bias, T);
            continue;
        }
        put_bits(b->scale[i], scale_bits[i], T);
        put_bits(b->bias[i], bias_bits[i], T);
        for (size_t j = 0; j < g; j += UNIT) affine_unit(b->w[i] + j, bias[i], s[i], below[i], above[i], n, codes + j);
    }
}

/* ---- float modes ---- */

/* Codes of 32 elements, 16 under each of two scales. x = |w| * r is compared with the seven thresholds between E2M1
 * values at once: they are multiples of 1/4, so ceil(4x) tells on which side of each x lies, ties going down. `shift`
 * is added to x's bits: 2 in the exponent for the factor 4, less the rounding of x to T, since
 * rnd_T(x) <= t  <=>  x <= t + half a T-step (t's mantissa is even)  <=>  bits(x) - half a step <= bits(t). */
INLINE void e2m1_unit(const float *w0, const float *w1, float r0, float r1, bool divide, int32_t shift,
                      uint8_t *codes) {
    vi q[UNIT_VECS];
    for (size_t u = 0; u < UNIT_VECS; u++) {
        const bool second = u >= UNIT_VECS / 2;
        const vf w = v_load(second ? w1 + (u - UNIT_VECS / 2) * LANES : w0 + u * LANES);
        const vf r = v_set(second ? r1 : r0);
        const vf x = v_min(divide ? abs_f(w) / r : abs_f(w) * r, v_set(7));
        q[u] = v_to_int_up((vf)((vi)x + shift)) | (shift_right((vi)w, 24) & 0x80);
    }
    const vb k = v_to_bytes(q);
    const vb code = v_e2m1_of_quarters(k & 0x7f);
    const vb bytes = code | v_bytes_min(k >> 4 & 8, code << 3); /* no sign on zero */
    memcpy(codes, &bytes, UNIT);
}

/* E4M3 codes (in each lane's low byte) of x >= 0, as rq_f32_to_e4m3. */
INLINE vi e4m3_codes(vf x) {
    x = v_min(x, v_set(448));
    const vi exponent = v_max_int((vi)x & 0x7f800000, v_set_int(0x3c800000));
    const vi step = exponent + (20 << 23);
    return (vi)(x + (vf)step) - step + shift_right(exponent - 0x3c800000, 20);
}

/* Values of E4M3 codes in [0, 0x7e]. */
INLINE vf e4m3_values(vi code) {
    return select_f(code < 8, v_to_float(code) * v_set(0x1p-9f), (vf)add_bits(shift_left(code, 20), 120u << 23));
}

INLINE void e4m3_unit(const float *w, float r, uint8_t *codes) {
    vi q[UNIT_VECS];
    for (size_t u = 0; u < UNIT_VECS; u++) {
        const vf x = v_load(w + u * LANES);
        q[u] = e4m3_codes(abs_f(x) * v_set(r)) | (shift_right((vi)x, 24) & 0x80);
    }
    const vb bytes = v_to_bytes(q);
    memcpy(codes, &bytes, UNIT);
}

/* Largest magnitude of each group, as bits: integers order magnitudes like floats, with infinity and NaN on top. */
INLINE void batch_amax(const batch *b, size_t g, vi amax[BATCH_VECS]) {
    vi most[BATCH];
    for (size_t i = 0; i < BATCH; i++) {
        vi m = {0};
        for (size_t j = 0; j < g; j += LANES) m = v_max_int((vi)v_load(b->w[i] + j) & 0x7fffffff, m);
        most[i] = m;
    }
    for (size_t v = 0; v < BATCH_VECS; v++) amax[v] = v_reduce_max_int(most + v * LANES);
}

/* Biased exponent of mlx's scale, where that is a normal number: the smallest power of two that is not below amax / M
 * rounded to T; 127 for 0. */
INLINE vi mx_byte(vf amax, bool wide, rq_dtype T) {
    const vf s = round_to_dtype(amax / v_set(wide ? 448 : 6), T);
    return select_i(s == v_set(0), v_set_int(127), shift_right(add_bits((vi)s, 0x7fffff), 23));
}

INLINE void mx_batch(batch *b, bool wide, rq_dtype T, const rq_quant_format *format) {
    vi amax[BATCH_VECS];
    float r[BATCH];
    int32_t odd[BATCH], byte[BATCH];
    batch_amax(b, 32, amax);
    for (size_t v = 0; v < BATCH_VECS; v++) {
        const vi e = mx_byte((vf)amax[v], wide, T);
        const vi small = (amax[v] != 0) & (amax[v] < (27 << 23)); /* 2^-100 */
        v_store_int(odd + v * LANES, small | (amax[v] >= 0x7f800000));
        v_store_int(byte + v * LANES, e);
        v_store(r + v * LANES, (vf)shift_left(254 - e, 23)); /* exact: w * 2^-e, and no rounding to T is left to do */
    }
    for (size_t i = 0; i < b->count; i++) {
        uint8_t *codes = b->codes + i * 32;
        if (__builtin_expect(odd[i], 0)) {
            *(uint8_t *)b->scale[i] = rq_group_mlx_ref(format, T, b->w[i], codes).byte;
            continue;
        }
        *(uint8_t *)b->scale[i] = (uint8_t)byte[i];
        if (wide)
            e4m3_unit(b->w[i], r[i], codes);
        else
            e2m1_unit(b->w[i], b->w[i] + 16, r[i], r[i], false, 2 << 23, codes);
    }
}

/* For BF16 and F16 a product with the reciprocal decides as the division does. x is compared with t + half a step of T,
 * an odd number of one bit more than T has (9 or 12 bits); times an E4M3 scale that is at least as many bits, so it
 * never equals w, and at most 16 bits, so w differs from it by more than 2^-17 of its value. The product with the
 * rounded reciprocal is off by less than 2^-22. F32 weights divide. */
INLINE void nvfp4_batch(batch *b, rq_dtype T, const rq_quant_format *format, rq_quant_counts *counts) {
    const bool divide = T == RQ_F32;
    const int32_t shift = (2 << 23) - (T == RQ_BF16 ? 0x8000 : T == RQ_F16 ? 0x1000 : 0);
    vi amax[BATCH_VECS];
    float r[BATCH];
    int32_t odd[BATCH], byte[BATCH], zeroed[BATCH];
    batch_amax(b, 16, amax);
    for (size_t v = 0; v < BATCH_VECS; v++) {
        const vi code = e4m3_codes(round_to_dtype((vf)amax[v] / v_set(6), T));
        const vf scale = e4m3_values(code);
        const vi zero = code == 0;
        v_store_int(odd + v * LANES, amax[v] >= (151 << 23)); /* 2^24: distances to the E2M1 values would round */
        v_store_int(byte + v * LANES, code);
        v_store_int(zeroed + v * LANES, zero & (amax[v] != 0));
        v_store(r + v * LANES,
                divide ? select_f(zero, v_set(__builtin_inff()), scale) : (vf)(~zero & (vi)(v_set(1) / scale)));
    }
    for (size_t i = 0; i < b->count; i += 2) /* BATCH is even: i + 1 is a group or a repeated one */
        e2m1_unit(b->w[i], b->w[i + 1], r[i], r[i + 1], divide, shift, b->codes + i * 16);
    for (size_t i = 0; i < b->count; i++) {
        if (__builtin_expect(odd[i], 0)) byte[i] = rq_group_mlx_ref(format, T, b->w[i], b->codes + i * 16).byte;
        *(uint8_t *)b->scale[i] = (uint8_t)byte[i];
        counts->zeroed_groups += zeroed[i] & 1;
    }
}

/* ---- packing ---- */

/* Words of eight codes, each word closed up to 8 * bits bits. */
INLINE vw close_up(vw x, unsigned bits) {
    const vw even8 = {0}, m8 = even8 + 0x00ff00ff00ff00ffu, m16 = even8 + 0x0000ffff0000ffffu,
             m32 = even8 + 0xffffffffu;
    x = (x & m8) | ((x & ~m8) >> (8 - bits));
    x = (x & m16) | ((x & ~m16) >> (16 - 2 * bits));
    return (x & m32) | ((x & ~m32) >> (32 - 4 * bits));
}

INLINE void pack_bits(unsigned bits, const uint8_t *codes, size_t n, uint8_t *out) {
    enum { STEP = 8 * WORDS };
    uint8_t *const end = out + n / 8 * bits;
    for (size_t i = 0; i < n; i += STEP) { /* may read past n, inside the batch's buffer */
        uint64_t words[WORDS];
        vw x;
        memcpy(&x, codes + i, sizeof x);
        x = close_up(x, bits);
        memcpy(words, &x, sizeof x);
        const size_t count = n - i < STEP ? (n - i) / 8 : WORDS;
        for (size_t k = 0; k < count; k++, out += bits) {
            if (end - out >= 8) {
                memcpy(out, &words[k], 8); /* its upper bytes are overwritten by the next word */
            } else {
                for (unsigned byte = 0; byte < bits; byte++) out[byte] = (uint8_t)(words[k] >> (8 * byte));
            }
        }
    }
}

INLINE void pack_nibbles(const uint8_t *codes, size_t n, uint8_t *out) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) v_pack_nibbles(codes + i, out + i / 2);
    for (; i < n; i += 8) { /* eight codes at a time: n is a multiple of 16 */
        uint64_t x;
        memcpy(&x, codes + i, 8);
        x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
        x = (x | x >> 8) & 0x0000ffff0000ffffu;
        const uint32_t word = (uint32_t)(x | x >> 16);
        memcpy(out + i / 2, &word, 4);
    }
}

INLINE void pack_codes(unsigned bits, const uint8_t *codes, size_t n, uint8_t *out) {
    switch (bits) {
    case 2:
        pack_bits(2, codes, n, out);
        break;
    case 3:
        pack_bits(3, codes, n, out);
        break;
    case 4:
        pack_nibbles(codes, n, out);
        break;
    case 5:
        pack_bits(5, codes, n, out);
        break;
    case 6:
        pack_bits(6, codes, n, out);
        break;
    default:
        memcpy(out, codes, n);
    }
}

/* ---- the kernel ---- */

/* Makes the unused groups repeat the last one, so that all lanes have something to read. */
INLINE void fill_up(batch *b) {
    for (size_t i = b->count; i < BATCH; i++) b->w[i] = b->w[b->count - 1];
}

/* Packs the codes and empties the batch. */
INLINE void pack_batch(batch *b, const rq_quant_format *format, rq_quant_counts *counts) {
    const size_t g = format->group_size, code_bytes = g * format->bits / 8;
    for (size_t i = 0, run; i < b->count; i += run) {
        for (run = 1; i + run < b->count && b->packed[i + run] == b->packed[i] + run * code_bytes;) run++;
        pack_codes(format->bits, b->codes + i * g, run * g, b->packed[i]);
    }
    counts->groups += b->count;
    b->count = 0;
}

static void mlx_batch(batch *b, const rq_quant_format *format, rq_dtype T, rq_quant_counts *counts) {
    fill_up(b);
    switch (format->mode) {
    case RQ_AFFINE:
        affine_batch(b, format->bits, format->group_size, T, format);
        break;
    case RQ_MXFP4:
        mx_batch(b, false, T, format);
        break;
    case RQ_MXFP8:
        mx_batch(b, true, T, format);
        break;
    case RQ_NVFP4:
        nvfp4_batch(b, T, format, counts);
        break;
    }
    pack_batch(b, format, counts);
}

typedef void batch_fn(batch *b, const rq_quant_format *format, rq_dtype T, rq_quant_counts *counts);

INLINE void for_batches(batch_fn *code, const rq_quant_format *format, rq_dtype T, const float *w, size_t w_stride,
                        size_t rows, size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                        size_t scales_stride, rq_quant_counts *counts) {
    const size_t g = format->group_size, code_bytes = g * format->bits / 8, groups = cols / g;
    const bool affine = format->mode == RQ_AFFINE;
    const size_t scale_bytes = affine ? rq_dtype_bytes(T) : 1;
    batch b;
    b.count = 0;
    for (size_t r = 0; r < rows; r++) {
        const float *row = w + r * w_stride;
        uint8_t *packed = (uint8_t *)codes + r * codes_stride;
        char *scale = (char *)scales + r * scales_stride;
        char *bias = affine ? (char *)biases + r * scales_stride : scale;
        for (size_t j = 0; j < groups; j++) {
            b.w[b.count] = row + j * g;
            b.packed[b.count] = packed + j * code_bytes;
            b.scale[b.count] = scale + j * scale_bytes;
            b.bias[b.count] = bias + j * scale_bytes;
            if (++b.count == BATCH) code(&b, format, T, counts);
        }
    }
    if (b.count) code(&b, format, T, counts);
}

static void quantize_mlx(const rq_quant_format *format, rq_dtype storage, const float *w, size_t w_stride, size_t rows,
                         size_t cols, void *codes, size_t codes_stride, void *scales, void *biases,
                         size_t scales_stride, rq_quant_counts *counts) {
    for_batches(mlx_batch, format, storage, w, w_stride, rows, cols, codes, codes_stride, scales, biases, scales_stride,
                counts);
}
