#include "rotq/plan.h"

/* A plain plan claims every tensor of the directory by the family's table, as a conversion would. */
rq_status rq_check_complete(const char *directory, rq_notes *notes, rq_error *err) {
    rq_checkpoint *ckpt = NULL;
    rq_source source = {0};
    rq_plan plan = {0};
    rq_plan_options options;
    rq_error found = {0};
    rq_plan_options_init(&options);
    options.rotation.r1 = RQ_SPEC_NONE;
    options.dequantize = true;
    rq_status st = rq_checkpoint_open(directory, &ckpt, NULL, &found);
    if (st == RQ_OK) st = rq_source_init(ckpt, &source, &found);
    if (st == RQ_OK) st = rq_plan_make(&source, &options, &plan, NULL, &found);
    if (st != RQ_OK && st != RQ_ERR_NOMEM) {
        rq_note_add(notes, RQ_NOTE_WARNING, "incomplete", "%s", found.message);
        st = rq_fail(err, RQ_ERR_MISMATCH, "%s does not hold the model that its config.json promises", directory);
    } else if (st != RQ_OK && err) {
        *err = found;
    }
    rq_plan_deinit(&plan);
    rq_source_deinit(&source);
    rq_checkpoint_close(ckpt);
    return st;
}
