#include "linalg/fwht_plan.h"

#include <math.h>
#include <stdlib.h>

#include "linalg/hadamard.h"

_Static_assert(RQ_HADAMARD_K_MAX <= RQ_FWHT_K_MAX, "the kernels' scratch must hold every K");

/* Signs of four inputs as fwht_row and fwht_cols read them: bit 3 the sign of the first, bits 0..2 the others relative
 * to it. */
static uint8_t quad_code(const int8_t h[4]) {
    const unsigned s0 = h[0] < 0;
    unsigned code = s0 << 3;
    for (unsigned k = 1; k < 4; k++) code |= ((unsigned)(h[k] < 0) ^ s0) << (k - 1);
    return (uint8_t)code;
}

rq_status rq_fwht_init(rq_fwht *fwht, size_t order, rq_error *err) {
    *fwht = (rq_fwht){0};
    size_t K = 0;
    unsigned m = 0;
    const char *construction = NULL;
    if (!rq_hadamard_split(order, &K, &m, &construction))
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "no Hadamard matrix of order %zu can be generated", order);

    rq_status st = RQ_OK;
    const size_t quads = K / 4, terms = K * quads;
    rq_fwht made = {.order = order, .K = K, .len = (size_t)1 << m, .scale = 1.0 / sqrt((double)order)};
    int8_t *h = calloc(K, K);
    made.hk = calloc(K, K);
    if (terms) { /* none for K == 1 */
        made.quad = malloc(terms);
        made.term = malloc(terms * sizeof *made.term);
        made.sign = malloc(terms * sizeof *made.sign);
        made.sign_f32 = malloc(terms * sizeof *made.sign_f32);
    }
    if (!h || !made.hk || (terms && (!made.quad || !made.term || !made.sign || !made.sign_f32))) {
        st = rq_fail(err, RQ_ERR_NOMEM, "no memory for the Hadamard matrix of order %zu", K);
        goto done;
    }
    if (!rq_hadamard_matrix(K, h)) {
        st = rq_fail(err, RQ_ERR_UNSUPPORTED, "no Hadamard matrix of order %zu can be generated", K);
        goto done;
    }
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) made.hk[i * K + j] = h[j * K + i];
    for (size_t i = 0; i < K; i++)
        for (size_t q = 0; q < quads; q++) {
            const size_t t = i * quads + q;
            made.quad[t] = quad_code(made.hk + i * K + 4 * q);
            made.term[t] = (uint16_t)(q * 8 + (made.quad[t] & 7u));
            made.sign[t] = made.quad[t] >> 3 ? -1.0 : 1.0;
            made.sign_f32[t] = made.quad[t] >> 3 ? -1.0f : 1.0f;
        }
    *fwht = made;
    made = (rq_fwht){0}; /* moved to the caller */
done:
    rq_fwht_deinit(&made);
    free(h);
    return st;
}

void rq_fwht_deinit(rq_fwht *fwht) {
    if (!fwht) return;
    free(fwht->quad);
    free(fwht->term);
    free(fwht->sign);
    free(fwht->sign_f32);
    free(fwht->hk);
    *fwht = (rq_fwht){0};
}
