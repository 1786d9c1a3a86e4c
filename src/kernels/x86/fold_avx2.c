/* The fold on AVX2 + FMA: 4 doubles or 8 floats a vector, 16 registers. */
#include <immintrin.h>

#define VECTOR_BYTES 32
#define LANES_F64 4
#define LANES_F32 8
#define RADIX_LOG2 3
#define FMA_F64(a, b, c) ((V_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define FMA_F32(a, b, c) ((V_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FOLD_TABLE rq_fold_kernels_avx2
#include "kernels/simd/fold_isa.h"
