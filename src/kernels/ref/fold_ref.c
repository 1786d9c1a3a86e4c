/* Scalar reference of the fold kernels: the truth the SIMD versions are held to. */
#include "kernels/fold_scalar.h"

#define REAL double
#define FN(name) name##_f64
#include "kernels/ref/fold_ref_body.h"
#undef REAL
#undef FN

#define REAL float
#define FN(name) name##_f32
#include "kernels/ref/fold_ref_body.h"
#undef REAL
#undef FN

static void store(void *dst, const float *y, rq_dtype dtype, size_t n) {
    switch (dtype) {
    case RQ_BF16:
        for (size_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = rq_f32_to_bf16(y[i]);
        break;
    case RQ_F16:
        for (size_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = rq_f32_to_f16(y[i]);
        break;
    default:
        memcpy(dst, y, n * sizeof *y);
        break;
    }
}

size_t rq_nonfinite_ref(const void *src, rq_dtype dtype, size_t n) {
    size_t i = 0;
    while (i < n && isfinite(rq_element(src, dtype, i))) i++;
    return i;
}

const rq_fold_kernels rq_fold_ref[2] = {
    {sizeof(double), load_f64, fwht_row_f64, fwht_cols_f64, dense_rows_f64, round_to_f64, load_panel_f64,
     round_panel_f64, fold_row_f64, fold_cols_f64},
    {sizeof(float), load_f32, fwht_row_f32, fwht_cols_f32, dense_rows_f32, round_to_f32, load_panel_f32,
     round_panel_f32, fold_row_f32, fold_cols_f32},
};

void rq_fold_kernels_ref(rq_kernels *table) {
    table->fold[0] = rq_fold_ref[0];
    table->fold[1] = rq_fold_ref[1];
    table->store = store;
    table->find_nonfinite = rq_nonfinite_ref;
}
