#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_avx2_f16c_fma(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C);
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* Filled once, read-only afterwards: the one mutable global of the library. */
static struct {
    rq_kernels versions[3]; /* from the plainest to the fastest */
    size_t count;
    const rq_kernels *chosen;
} all;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A new version starts as a copy of the one before, so it may leave a kernel as it is. */
static rq_kernels *next_version(const char *name) {
    rq_kernels *table = &all.versions[all.count++];
    if (all.count > 1) *table = table[-1];
    table->name = name;
    return table;
}

static const rq_kernels *find(const char *name) {
    for (size_t i = 0; i < all.count; i++)
        if (strcmp(all.versions[i].name, name) == 0) return &all.versions[i];
    return NULL;
}

static void fill(void) {
    rq_kernels *table = next_version("scalar");
    rq_fold_kernels_ref(table);
    rq_quantize_kernels_ref(table);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (has_avx2_f16c_fma()) {
        table = next_version("avx2");
        rq_fold_kernels_avx2(table);
        rq_quantize_kernels_avx2(table);
        if (has_avx512()) {
            table = next_version("avx512");
            rq_fold_kernels_avx512(table);
            rq_quantize_kernels_avx512(table);
        }
    }
#elif defined(__aarch64__) /* NEON is part of the base architecture */
    table = next_version("neon");
    rq_fold_kernels_neon(table);
    rq_quantize_kernels_neon(table);
#endif
    all.chosen = table;
    const char *forced = getenv("ROTQ_SIMD");
    if (forced && *forced) {
        const rq_kernels *wanted = find(forced);
        all.chosen = wanted ? wanted : &all.versions[0];
    }
}

const rq_kernels *rq_kernels_get(void) {
    pthread_once(&once, fill);
    return all.chosen;
}

const rq_kernels *rq_kernels_named(const char *name) {
    pthread_once(&once, fill);
    return find(name);
}
