/* The fold on AVX-512: 8 doubles or 16 floats a vector, 32 registers. */
#include <immintrin.h>

#define VECTOR_BYTES 64
#define LANES_F64 8
#define LANES_F32 16
#define RADIX_LOG2 4
#define FMA_F64(a, b, c) ((V_f64)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define FMA_F32(a, b, c) ((V_f32)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define FOLD_TABLE rq_fold_kernels_avx512
#include "kernels/simd/fold_isa.h"
