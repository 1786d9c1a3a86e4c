#include "rotq/plan.h"

#include "model/plan_build.h"

rq_status rq_plan_make(const rq_source *source, const rq_plan_options *options, rq_plan *plan, rq_notes *notes,
                       rq_error *err) {
    return rq_plan_build(rq_checkpoint_config(source->ckpt), source, rq_checkpoint_directory(source->ckpt), options,
                         plan, notes, err);
}

rq_status rq_plan_output_config(const rq_plan *plan, const rq_source *source, json_t **config, rq_error *err) {
    return rq_output_config_make(plan, rq_checkpoint_config(source->ckpt), config, err);
}
