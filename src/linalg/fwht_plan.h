/* Prepares the Hadamard transform of one order for the kernels (struct rq_fwht of kernels/kernels.h). */
#ifndef RQ_FWHT_PLAN_H
#define RQ_FWHT_PLAN_H

#include "kernels/kernels.h"
#include "rotq/error.h"

/* Fills *fwht for v -> (H_K^T (x) S_len) v, order = K * len. RQ_ERR_UNSUPPORTED when the order has no Hadamard form;
 * *fwht is then zeroed. Owned by the caller, read-only afterwards, freed by rq_fwht_deinit (a zeroed one is fine). */
RQ_CHECK rq_status rq_fwht_init(rq_fwht *fwht, size_t order, rq_error *err);
void rq_fwht_deinit(rq_fwht *fwht);

#endif
