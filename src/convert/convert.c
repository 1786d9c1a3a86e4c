#include "rotq/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "convert/engine.h"
#include "convert/identity.h"
#include "convert/output.h"
#include "convert/package.h"
#include "par/pool.h"

void rq_convert_options_init(rq_convert_options *options) {
    *options = (rq_convert_options){0};
    rq_plan_options_init(&options->plan);
}

/* Peak resident memory. Not getrusage alone: on Linux its figure survives exec, so a small program started by a large
 * one would report the large one's peak. */
static uint64_t peak_memory(void) {
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    for (char line[256]; f && !kib && fgets(line, sizeof line, f);)
        if (rq_has_prefix(line, "VmHWM:")) kib = strtoull(line + 6, NULL, 10);
    if (f) fclose(f);
    if (kib) return kib * 1024;
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
#ifdef __APPLE__
    return (uint64_t)u.ru_maxrss;
#else
    return (uint64_t)u.ru_maxrss * 1024;
#endif
}

enum { program_bytes = 24 << 20 }; /* code, libraries, stacks, headers and the plan itself */

/* Memory that does not depend on the number of threads. */
static uint64_t shared_memory(const rq_plan *plan, const rq_units *units) {
    uint64_t total = program_bytes + RQ_SLOTS * (uint64_t)(units->slot_in_bytes + units->slot_out_bytes) +
                     (uint64_t)units->n_units * sizeof *units->units + (uint64_t)units->n_tasks * sizeof *units->tasks;
    for (size_t i = 0; i < units->n_tasks; i++)
        if (rq_has_op(units->tasks[i].tensor, RQ_OP_GAIN_IN) || rq_has_op(units->tasks[i].tensor, RQ_OP_R2_IN))
            total += units->tasks[i].cols * sizeof(double);
    if (plan->folded && (plan->options.rotation.r1 == RQ_SPEC_RANDOM || plan->options.rotation.r1 == RQ_SPEC_FILE))
        total += 2 * plan->config.hidden_size * plan->config.hidden_size * sizeof(double);
    return total;
}

/* As many threads as asked for (0: as there are CPUs) whose scratch fits RQ_CONVERT_MEMORY; at least one. */
static unsigned affordable_threads(const rq_plan *plan, const rq_units *units, unsigned threads) {
    const uint64_t shared = shared_memory(plan, units), scratch = units->scratch_bytes ? units->scratch_bytes : 1;
    const uint64_t fit = shared < RQ_CONVERT_MEMORY ? (RQ_CONVERT_MEMORY - shared) / scratch : 0;
    if (!threads) threads = rq_cpu_count();
    return fit < 1 ? 1 : (unsigned)rq_min_u64(threads, fit);
}

uint64_t rq_convert_memory(const rq_plan *plan, unsigned threads) {
    rq_layout layout;
    if (rq_layout_make(plan, 0, &layout, NULL) != RQ_OK) return 0;
    rq_units units;
    uint64_t total = 0;
    if (rq_units_make(plan, &layout, sizeof(double), RQ_SLOT_BYTES, &units, NULL) == RQ_OK) {
        total = shared_memory(plan, &units) +
                (uint64_t)affordable_threads(plan, &units, threads) * (uint64_t)units.scratch_bytes;
        rq_units_deinit(&units);
    }
    rq_layout_deinit(&layout);
    return total;
}

static rq_status write_text(const rq_output *output, const char *name, const char *text, rq_error *err) {
    char *path = rq_path_join(output->temporary, name);
    const rq_status st = path ? rq_write_file(path, text, strlen(text), err) : rq_fail(err, RQ_ERR_NOMEM, "no memory");
    free(path);
    return st;
}

/* Everything of a run that must be released, in the order of acquisition. */
typedef struct run {
    rq_checkpoint *ckpt;
    rq_source source;
    rq_plan plan;
    rq_rotation_set rotations;
    rq_layout layout;
    rq_units units;
    rq_output output;
} run;

static rq_status make_rotations(run *r, rq_error *err) {
    if (!r->plan.folded) return RQ_OK;
    return rq_rotation_set_make(&r->plan.options.rotation, (size_t)r->plan.config.hidden_size, r->plan.head_dim_r2,
                                (size_t)r->plan.config.num_hidden_layers, &r->rotations, err);
}

static rq_status convert(run *r, const char *src, const char *dst, const rq_convert_options *options, unsigned *threads,
                         rq_notes *notes, rq_error *err) {
    const size_t real_bytes = options->fold_precision == RQ_FOLD_F32 ? sizeof(float) : sizeof(double);
    const size_t slot_bytes = options->slot_bytes ? options->slot_bytes : RQ_SLOT_BYTES;
    char fingerprint[65];
    rq_status st = rq_checkpoint_open(src, &r->ckpt, notes, err);
    if (st == RQ_OK) st = rq_source_init(r->ckpt, &r->source, err);
    if (st == RQ_OK) st = rq_plan_make(&r->source, &options->plan, &r->plan, notes, err);
    if (st == RQ_OK) st = rq_check_neutral_gain(&r->plan, &r->source, err);
    if (st == RQ_OK) st = rq_layout_make(&r->plan, options->max_shard_bytes, &r->layout, err);
    if (st == RQ_OK) st = rq_units_make(&r->plan, &r->layout, real_bytes, slot_bytes, &r->units, err);
    /* Whether DST may be written comes before everything that takes long: a dense rotation can take minutes to draw. */
    if (st == RQ_OK) st = rq_output_begin(dst, src, options->force, r->layout.tensor_bytes, &r->output, err);
    if (st == RQ_OK) st = rq_compare_dropped_head(&r->plan, &r->source, notes, err);
    if (st == RQ_OK) st = rq_source_fingerprint(&r->source, fingerprint, err);
    if (st == RQ_OK) st = make_rotations(r, err);
    if (st == RQ_OK) st = rq_output_create_shards(&r->output, &r->layout, err);
    if (st != RQ_OK) return st;

    const rq_engine_input input = {&r->plan,      &r->source, r->plan.folded ? &r->rotations : NULL, options, &r->units,
                                   r->output.fds, &r->layout};
    const char *simd = getenv("ROTQ_SIMD");
    if (simd && *simd && strcmp(simd, rq_kernels_get()->name) != 0)
        rq_note_add(notes, RQ_NOTE_WARNING, "simd",
                    "ROTQ_SIMD asks for %s, which this build or CPU does not have; %s runs", simd,
                    rq_kernels_get()->name);
    *threads = affordable_threads(&r->plan, &r->units, options->threads);
    st = rq_engine_run(&input, *threads, notes, err);
    if (st != RQ_OK) return st;

    char *index = NULL;
    st = rq_layout_index(&r->plan, &r->layout, &index, err);
    if (st == RQ_OK) st = write_text(&r->output, "model.safetensors.index.json", index, err);
    free(index);
    if (st == RQ_OK && r->plan.folded) st = rq_rotation_set_write(&r->rotations, r->output.temporary, err);
    if (st == RQ_OK)
        st = rq_package_files(&r->plan, &r->source, options, r->plan.folded ? &r->rotations : NULL, fingerprint,
                              r->output.temporary, err);
    if (st == RQ_OK && options->should_stop && options->should_stop(options->stop_context))
        st = rq_fail(err, RQ_ERR_INTERRUPTED, "interrupted");
    if (st == RQ_OK) st = rq_output_commit(&r->output, &r->layout, options->sync, notes, err);
    return st;
}

static uint64_t checkpoint_bytes(const rq_checkpoint *ckpt) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < rq_checkpoint_count(ckpt); i++) bytes += rq_checkpoint_at(ckpt, i)->bytes;
    return bytes;
}

rq_status rq_convert(const char *src, const char *dst, const rq_convert_options *options, rq_convert_result *result,
                     rq_notes *notes, rq_error *err) {
    const double started = rq_now(), cpu_started = rq_cpu_seconds();
    unsigned threads = 0;
    run r = {0};
    const rq_status st = convert(&r, src, dst, options, &threads, notes, err);
    if (st == RQ_OK && result)
        *result = (rq_convert_result){.source_bytes = checkpoint_bytes(r.ckpt),
                                      .output_bytes = r.layout.tensor_bytes,
                                      .seconds = rq_now() - started,
                                      .cpu_seconds = rq_cpu_seconds() - cpu_started,
                                      .peak_memory_bytes = peak_memory(),
                                      .bits_per_weight = r.plan.bits_per_weight,
                                      .threads = threads,
                                      .kernel = rq_kernels_get()->name};
    rq_output_deinit(&r.output);
    rq_units_deinit(&r.units);
    rq_layout_deinit(&r.layout);
    rq_rotation_set_deinit(&r.rotations);
    rq_plan_deinit(&r.plan);
    rq_source_deinit(&r.source);
    rq_checkpoint_close(r.ckpt);
    return st;
}
