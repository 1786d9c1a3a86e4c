/* What a conversion knows about its source's identity, and checks that need weights before it starts. */
#ifndef RQ_IDENTITY_H
#define RQ_IDENTITY_H

#include "rotq/plan.h"

/* sha256 (hex) over the checkpoint's structure (config, names, dtypes, shapes) and the first and last 4 KiB of every
 * tensor's data: cheap, independent of sharding and directory names, and different for any two trained checkpoints. */
RQ_CHECK rq_status rq_source_fingerprint(const rq_source *source, char hex[65], rq_error *err);

/* Tied, yet a head is stored: says whether it equals the embedding, and by how much it differs ("stored-head"). */
RQ_CHECK rq_status rq_compare_dropped_head(const rq_plan *plan, const rq_source *source, rq_notes *notes,
                                           rq_error *err);

/* Staying tied under a rotation needs a final gain of ones: RQ_ERR_UNSUPPORTED names the first element that is not. */
RQ_CHECK rq_status rq_check_neutral_gain(const rq_plan *plan, const rq_source *source, rq_error *err);

#endif
