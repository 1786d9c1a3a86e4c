/* The fold's scalar reference at working precision REAL, named FN(...). Included twice by fold_ref.c.
 * Written to be read: every faster version must give these bits. */

static void FN(load)(void *x_, const void *src, rq_dtype dtype, const void *gain_, size_t n) {
    REAL *x = x_;
    const REAL *gain = gain_;
    for (size_t i = 0; i < n; i++) {
        const REAL value = (REAL)rq_element(src, dtype, i);
        x[i] = gain ? value * gain[i] : value;
    }
}

/* One group of `K` values at distance `step`: y = H_K^T x by quads. */
static void FN(across_blocks)(REAL *x, size_t step, const rq_fwht *fwht, REAL *y) {
    const size_t K = fwht->K, quads = K / 4;
    for (size_t i = 0; i < K; i++) {
        REAL sum = 0;
        for (size_t q = 0; q < quads; q++) {
            const REAL x0 = x[(4 * q) * step], x1 = x[(4 * q + 1) * step];
            const REAL x2 = x[(4 * q + 2) * step], x3 = x[(4 * q + 3) * step];
            const unsigned code = fwht->quad[i * quads + q];
            const bool minus1 = code & 1, minus2 = code >> 1 & 1, minus3 = minus2 != (code >> 2 & 1);
            const REAL left = minus1 ? x0 - x1 : x0 + x1;
            const REAL right = minus3 ? x2 - x3 : x2 + x3;
            const REAL quad = minus2 ? left - right : left + right;
            if (q == 0)
                sum = code >> 3 ? -quad : quad;
            else
                sum = code >> 3 ? sum - quad : sum + quad;
        }
        y[i] = sum;
    }
    for (size_t i = 0; i < K; i++) x[i * step] = y[i];
}

/* Element e of vector c stands at x[e * step + c * next]. */
static void FN(fwht)(REAL *x, size_t step, size_t vectors, size_t next, const rq_fwht *fwht) {
    REAL y[RQ_FWHT_K_MAX];
    for (size_t c = 0; c < vectors; c++) {
        REAL *v = x + c * next;
        for (size_t h = 1; h < fwht->len; h *= 2)
            for (size_t i = 0; i < fwht->order; i += 2 * h)
                for (size_t j = i; j < i + h; j++) {
                    const REAL a = v[j * step], b = v[(j + h) * step];
                    v[j * step] = a + b;
                    v[(j + h) * step] = a - b;
                }
        if (fwht->K > 1)
            for (size_t o = 0; o < fwht->len; o++) FN(across_blocks)(v + o * step, fwht->len * step, fwht, y);
    }
}

static void FN(fwht_row)(void *x, const rq_fwht *fwht) { FN(fwht)(x, 1, 1, 0, fwht); }

static void FN(fwht_cols)(void *x, size_t cols, size_t stride, const rq_fwht *fwht) {
    FN(fwht)(x, stride, cols, 1, fwht);
}

static void FN(dense_rows)(void *y_, const void *x_, size_t rows, const void *q_, size_t n) {
    const REAL *q = q_;
    for (size_t r = 0; r < rows; r++) {
        REAL *y = (REAL *)y_ + r * n;
        const REAL *x = (const REAL *)x_ + r * n;
        for (size_t j = 0; j < n; j++) y[j] = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) y[j] += x[i] * q[i * n + j];
    }
}

static bool FN(round_to)(float *y, const void *x_, double scale, rq_dtype dtype, size_t n) {
    const REAL *x = x_, s = (REAL)scale;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        y[i] = rq_round_value((double)(REAL)(x[i] * s), dtype);
        finite = finite && isfinite(y[i]);
    }
    return finite;
}

static void FN(load_panel)(void *x, size_t x_stride, const void *src, size_t src_stride, rq_dtype dtype,
                           const void *row_gain, size_t rows, size_t cols) {
    for (size_t r = 0; r < rows; r++) {
        REAL *row = (REAL *)x + r * x_stride;
        FN(load)(row, (const char *)src + r * src_stride, dtype, NULL, cols);
        if (row_gain)
            for (size_t c = 0; c < cols; c++) row[c] *= ((const REAL *)row_gain)[r];
    }
}

static bool FN(round_panel)(float *y, size_t y_stride, const void *x, size_t x_stride, double scale, rq_dtype dtype,
                            size_t rows, size_t cols) {
    bool finite = true;
    for (size_t r = 0; r < rows; r++)
        finite &= FN(round_to)(y + r * y_stride, (const REAL *)x + r * x_stride, scale, dtype, cols);
    return finite;
}

static bool FN(fold_row)(float *y, void *x, const void *src, rq_dtype dtype, const void *gain, const rq_fwht *fwht,
                         size_t n, double scale, rq_dtype to) {
    FN(load)(x, src, dtype, gain, n);
    for (size_t b = 0; fwht && b < n; b += fwht->order) FN(fwht_row)((REAL *)x + b, fwht);
    return FN(round_to)(y, x, scale, to, n);
}

static bool FN(fold_cols)(float *y, size_t y_stride, void *x, const void *src, size_t src_stride, rq_dtype dtype,
                          const void *row_gain, const rq_fwht *fwht, size_t cols, double scale, rq_dtype to) {
    FN(load_panel)(x, cols, src, src_stride, dtype, row_gain, fwht->order, cols);
    FN(fwht_cols)(x, cols, cols, fwht);
    return FN(round_panel)(y, y_stride, x, cols, scale, to, fwht->order, cols);
}
