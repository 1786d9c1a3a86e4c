/* Feeds tensors through rq_quantize and rq_dequantize for tests in other languages. Reads requests from standard
 * input until it ends: a line "MODE BITS GROUP METHOD DTYPE ROWS COLS", then ROWS * COLS f32. Answers each with codes,
 * scales, biases (affine only) and the dequantized f32 values, raw. METHOD is mlx or search. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rotq/quant.h"

static int serve(const rq_quant_format *format, rq_scales_method method, rq_dtype dtype, size_t rows, size_t cols) {
    const size_t code_bytes = rq_quant_code_bytes(format, cols),
                 scale_bytes = rq_quant_scale_bytes(format, dtype, cols);
    const size_t elements = rows * cols;
    float *w = calloc(elements + 1, sizeof *w);
    char *codes = calloc(rows + 1, code_bytes), *scales = calloc(rows + 1, scale_bytes),
         *biases = calloc(rows + 1, scale_bytes);
    int failed = 1;
    if (!w || !codes || !scales || !biases || fread(w, sizeof *w, elements, stdin) != elements) goto done;
    rq_quantize(format, method, dtype, w, cols, rows, cols, codes, code_bytes, scales,
                rq_quant_has_biases(format) ? biases : NULL, scale_bytes, NULL);
    rq_dequantize(format, dtype, codes, code_bytes, scales, biases, scale_bytes, rows, cols, w, cols);
    fwrite(codes, code_bytes, rows, stdout);
    fwrite(scales, scale_bytes, rows, stdout);
    if (rq_quant_has_biases(format)) fwrite(biases, scale_bytes, rows, stdout);
    fwrite(w, sizeof *w, elements, stdout);
    failed = fflush(stdout);
done:
    free(w);
    free(codes);
    free(scales);
    free(biases);
    return failed;
}

int main(void) {
    char line[256], mode_name[16], method_name[16], dtype_name[16];
    while (fgets(line, sizeof line, stdin)) {
        unsigned bits, group_size;
        size_t rows, cols;
        rq_quant_mode mode;
        rq_dtype dtype;
        rq_quant_format format;
        rq_error err;
        if (sscanf(line, "%15s %u %u %15s %15s %zu %zu", mode_name, &bits, &group_size, method_name, dtype_name, &rows,
                   &cols) != 7 ||
            !rq_quant_mode_parse(mode_name, &mode) || !rq_dtype_parse(dtype_name, &dtype)) {
            fprintf(stderr, "cannot read the request: %s", line);
            return 2;
        }
        if (rq_quant_format_make(mode, bits, group_size, &format, &err) != RQ_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 2;
        }
        if (serve(&format, strcmp(method_name, "search") == 0 ? RQ_SCALES_SEARCH : RQ_SCALES_MLX, dtype, rows, cols)) {
            fputs("short read, short write, or out of memory\n", stderr);
            return 2;
        }
    }
    return 0;
}
