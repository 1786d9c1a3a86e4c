/* Speed of the quantize kernels on one core, for the two shapes of their callers: whole rows, and columns of one group
 * from many rows. Prints millions of weights per second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/quantize_group.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Roughly normal, without libm. */
static float weight(uint32_t *state) {
    float sum = 0;
    for (int i = 0; i < 6; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) * 0x1p-24f - 0.5f;
    }
    return 0.03f * sum;
}

static double rate(const rq_kernels *kernels, rq_scales_method method, const rq_quant_format *format, rq_dtype T,
                   size_t rows, size_t cols, size_t stride) {
    float *w = malloc(rows * stride * sizeof *w);
    char *codes = malloc(rows * cols), *scales = malloc(rows * cols), *biases = malloc(rows * cols);
    uint32_t state = 1;
    double best = 1e9;
    if (!w || !codes || !scales || !biases) exit(2);
    for (size_t i = 0; i < rows * stride; i++) {
        const float x = weight(&state);
        w[i] = method == RQ_SCALES_MLX ? rq_round_to_dtype(x, T) : x;
    }
    for (int repeat = 0; repeat < 12; repeat++) {
        rq_quant_counts counts = {0};
        const double start = now();
        for (int k = 0; k < 4; k++)
            (method == RQ_SCALES_SEARCH ? kernels->quantize_search : kernels->quantize_mlx)(
                format, T, w, stride, rows, cols, codes, cols * format->bits / 8, scales, biases,
                cols / format->group_size * rq_dtype_bytes(T), &counts);
        const double seconds = (now() - start) / 4;
        if (seconds < best) best = seconds;
    }
    free(w);
    free(codes);
    free(scales);
    free(biases);
    return 1e-6 * (double)(rows * cols) / best;
}

int main(void) {
    static const rq_quant_format formats[] = {{RQ_AFFINE, 4, 64}, {RQ_AFFINE, 4, 32}, {RQ_AFFINE, 4, 128},
                                              {RQ_AFFINE, 2, 64}, {RQ_AFFINE, 3, 64}, {RQ_AFFINE, 5, 64},
                                              {RQ_AFFINE, 6, 64}, {RQ_AFFINE, 8, 64}, {RQ_MXFP4, 4, 32},
                                              {RQ_MXFP8, 8, 32},  {RQ_NVFP4, 4, 16}};
    static const char *const versions[] = {"scalar", "avx2", "avx512", "neon"};
    printf("%-8s %-22s %10s %10s %10s %10s   Mweights/s, bf16, one core\n", "version", "format", "mlx rows", "mlx cols",
           "search", "mlx f32");
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
        const rq_kernels *kernels = rq_kernels_named(versions[v]);
        for (size_t f = 0; kernels && f < sizeof formats / sizeof *formats; f++) {
            char name[64];
            const size_t column = formats[f].group_size < 64 ? 64 : formats[f].group_size;
            snprintf(name, sizeof name, "%s b%u g%u", rq_quant_mode_name(formats[f].mode), formats[f].bits,
                     formats[f].group_size);
            printf("%-8s %-22s %10.0f %10.0f %10.0f %10.0f\n", versions[v], name,
                   rate(kernels, RQ_SCALES_MLX, &formats[f], RQ_BF16, 16, 4096, 4096),
                   rate(kernels, RQ_SCALES_MLX, &formats[f], RQ_BF16, 2048, column, column + 8),
                   rate(kernels, RQ_SCALES_SEARCH, &formats[f], RQ_BF16, 16, 4096, 4096),
                   rate(kernels, RQ_SCALES_MLX, &formats[f], RQ_F32, 16, 4096, 4096));
        }
    }
    return 0;
}
