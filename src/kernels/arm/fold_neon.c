/* The fold on NEON (AArch64 base): 2 doubles or 4 floats a vector, 32 registers. */
#include <arm_neon.h>

#define VECTOR_BYTES 16
#define LANES_F64 2
#define LANES_F32 4
#define RADIX_LOG2 4
#define FMA_F64(a, b, c) ((V_f64)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#define FMA_F32(a, b, c) ((V_f32)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define FOLD_TABLE rq_fold_kernels_neon
#include "kernels/simd/fold_isa.h"
