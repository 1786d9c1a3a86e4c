/* Compares every quantize kernel of this CPU with the scalar reference, without a test framework (tests/arm64.sh). */
#include "quantize_cases.h"

int main(void) {
    static const char *const versions[] = {"avx2", "avx512", "neon"};
    const rq_kernels *reference = rq_kernels_named("scalar");
    size_t cases = 0, differ = 0, compared = 0;
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
        const rq_kernels *version = rq_kernels_named(versions[v]);
        if (!version) continue;
        compared++;
        differ += case_compare_all(reference, version, RQ_SCALES_MLX, &cases);
        differ += case_compare_all(reference, version, RQ_SCALES_SEARCH, &cases);
    }
    printf("%zu versions, %zu cases compared with the scalar reference, %zu differ\n", compared, cases, differ);
    return compared == 0 || differ != 0;
}
