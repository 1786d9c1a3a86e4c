/* The planner's inside: what rq_plan_make does with a checkpoint taken apart, so that it can be tested from values. */
#ifndef RQ_PLAN_BUILD_H
#define RQ_PLAN_BUILD_H

#include <jansson.h>

#include "base/base.h"
#include "model/recipe.h"
#include "rotq/plan.h"

/* What rq_plan.arena points to. */
typedef struct rq_plan_memory {
    rq_arena arena;
    json_t *recipe; /* a JSON recipe as it was read, for the metadata; NULL for none or a named one; owned */
} rq_plan_memory;

/* `directory` is where generation_config.json and tokenizer_config.json are looked for; NULL: nowhere.
 * plan->tensors[].source point into `source`; everything else belongs to the plan. */
RQ_CHECK rq_status rq_plan_build(const json_t *config, const rq_source *source, const char *directory,
                                 const rq_plan_options *options, rq_plan *plan, rq_notes *notes, rq_error *err);

/* Chooses formats by options and recipe, sizes everything, and fills the plan's totals. tensors[] must be sorted and
 * hold dense sizes' inputs; `candidate[i]` says which modules may be quantized. */
RQ_CHECK rq_status rq_plan_choose_formats(rq_plan *plan, const bool *candidate, rq_recipe *recipe, rq_notes *notes,
                                          rq_error *err);

/* config.json of the output, from the source's. */
RQ_CHECK rq_status rq_output_config_make(const rq_plan *plan, const json_t *source_config, json_t **config,
                                         rq_error *err);

#endif
