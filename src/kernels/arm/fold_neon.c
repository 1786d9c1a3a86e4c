/* The fold on NEON (AArch64 base): 2 doubles or 4 floats a vector, 32 registers. */
#include <arm_neon.h>

#define VECTOR_BYTES 16
#define LANES_F64 2
#define LANES_F32 4
#define RADIX_LOG2 4
#define FMA_F64(a, b, c) ((V_f64)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#define FMA_F32(a, b, c) ((V_f32)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))

#define min_u32_f64(a, b) ((u32v_f64)vmin_u32((uint32x2_t)(a), (uint32x2_t)(b)))
#define max_u32_f64(a, b) ((u32v_f64)vmax_u32((uint32x2_t)(a), (uint32x2_t)(b)))
#define least_f64(v) vminv_u32((uint32x2_t)(v))
#define greatest_f64(v) vmaxv_u32((uint32x2_t)(v))
#define min_u32_f32(a, b) ((u32v_f32)vminq_u32((uint32x4_t)(a), (uint32x4_t)(b)))
#define max_u32_f32(a, b) ((u32v_f32)vmaxq_u32((uint32x4_t)(a), (uint32x4_t)(b)))
#define least_f32(v) vminvq_u32((uint32x4_t)(v))
#define greatest_f32(v) vmaxvq_u32((uint32x4_t)(v))
#define VECTOR_REGISTER "w"
#define FOLD_TABLE rq_fold_kernels_neon
#include "kernels/simd/fold_isa.h"
