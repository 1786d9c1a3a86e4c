/* Which module gets which format, and how large everything is. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/names.h"
#include "model/plan_build.h"

#define LISTED_NAMES 6

static rq_status no_memory(rq_error *err) { return rq_fail(err, RQ_ERR_NOMEM, "plan: out of memory"); }

static rq_status too_large(const rq_plan_tensor *t, rq_error *err) {
    return rq_fail(err, RQ_ERR_SHAPE, "%s: its size does not fit in 64 bits", t->name);
}

/* Elements; bytes as stored. */
static rq_status measure(const rq_plan_tensor *t, uint64_t *elements, uint64_t *bytes, rq_error *err) {
    *elements = 1;
    for (unsigned i = 0; i < t->rank; i++)
        if (!rq_mul_u64(*elements, t->shape[i], elements)) return too_large(t, err);
    uint64_t per_row = 0;
    bool fits = true;
    if (t->quantize) {
        const size_t cols = (size_t)t->shape[1], scales = rq_quant_scale_bytes(&t->format, t->dtype, cols);
        per_row = (uint64_t)rq_quant_code_bytes(&t->format, cols) + scales;
        if (rq_quant_has_biases(&t->format)) per_row += scales;
        fits = rq_mul_u64(t->shape[0], per_row, bytes);
    } else {
        fits = rq_mul_u64(*elements, rq_dtype_bytes(t->dtype), bytes);
    }
    return fits ? RQ_OK : too_large(t, err);
}

static const char *other_name(const rq_plan_tensor *t, rq_arena *arena) {
    const size_t length = strlen(t->name);
    return rq_has_suffix(t->name, ".weight")
               ? rq_arena_format(arena, "%.*s", (int)(length - strlen(".weight")), t->name)
               : t->name;
}

/* One verdict per candidate, in order. */
static rq_status decide(rq_plan *plan, const bool *candidate, rq_recipe *recipe, rq_verdict *verdicts, rq_notes *notes,
                        rq_error *err) {
    rq_status st = RQ_OK;
    rq_plan_memory *memory = plan->arena;
    size_t n_modules = 0, n_others = 0;
    const char **modules = malloc((plan->count + 1) * sizeof *modules);
    const char **others = malloc((plan->count + 1) * sizeof *others);
    if (!modules || !others) {
        st = no_memory(err);
        goto done;
    }
    for (size_t i = 0; i < plan->count; i++) {
        const rq_plan_tensor *t = &plan->tensors[i];
        if (candidate[i])
            modules[n_modules++] = t->module;
        else if (!(others[n_others++] = t->module ? t->module : other_name(t, &memory->arena))) {
            st = no_memory(err);
            goto done;
        }
    }
    for (size_t i = 0; i < n_modules; i++) verdicts[i] = (rq_verdict){RQ_RULE_QUANTIZE, plan->options.format};
    if (recipe)
        st = rq_recipe_apply(recipe, modules, n_modules, others, n_others, plan->config.num_hidden_layers, verdicts,
                             notes, err);
done:
    free((void *)modules);
    free((void *)others);
    return st;
}

/* The stock operation takes whole groups only. */
static rq_status leave_dense(const rq_plan *plan, rq_plan_tensor *t, const rq_quant_format *format, rq_notes *notes,
                             rq_error *err) {
    const bool by_group = !format->group_size || !t->shape[1] || t->shape[1] % format->group_size != 0;
    t->dense_reason = by_group ? "group size does not divide columns" : "too few elements for the format";
    if (plan->options.strict)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "%s: its %" PRIu64 " columns do not fall into %s groups of %u, so it would stay dense, which "
                       "--strict forbids",
                       t->module, t->shape[1], rq_quant_mode_name(format->mode), format->group_size);
    rq_note_add(notes, RQ_NOTE_WARNING, "left-dense",
                "%s stays in %s: its %" PRIu64 " columns do not fall into %s groups of %u", t->module,
                rq_dtype_name(t->dtype), t->shape[1], rq_quant_mode_name(format->mode), format->group_size);
    return RQ_OK;
}

/* Routers, towers and passed-through tensors: a choice of ours that the user should see. */
static rq_status note_kept(const rq_plan *plan, const bool *candidate, rq_notes *notes, rq_error *err) {
    const char **names = malloc((plan->count + 1) * sizeof *names);
    size_t n = 0;
    for (size_t i = 0; names && i < plan->count; i++)
        if (!candidate[i] && plan->tensors[i].dense_reason) names[n++] = plan->tensors[i].module;
    char *list = names ? rq_names_summary(names, n, LISTED_NAMES) : NULL;
    if (list && n) rq_note_add(notes, RQ_NOTE_INFO, "kept-dense", "%zu modules are kept dense: %s", n, list);
    free((void *)names);
    const rq_status st = list ? RQ_OK : no_memory(err);
    free(list);
    return st;
}

rq_status rq_plan_choose_formats(rq_plan *plan, const bool *candidate, rq_recipe *recipe, rq_notes *notes,
                                 rq_error *err) {
    rq_status st = RQ_OK;
    const bool wanted = plan->options.quantize;
    rq_verdict *verdicts = calloc(plan->count + 1, sizeof *verdicts);
    if (!verdicts) return no_memory(err);
    if (wanted && (st = decide(plan, candidate, recipe, verdicts, notes, err))) goto done;
    if (recipe && recipe->fallback.action == RQ_RULE_QUANTIZE) plan->options.format = recipe->fallback.format;

    plan->parameters = plan->total_bytes = plan->quantized_modules = plan->dense_modules = 0;
    for (size_t i = 0, m = 0; i < plan->count; i++) {
        rq_plan_tensor *t = &plan->tensors[i];
        if (candidate[i] && wanted) {
            const rq_verdict *v = &verdicts[m++];
            t->quantize = v->action == RQ_RULE_QUANTIZE && rq_quant_fits(&v->format, t->shape[0], t->shape[1]);
            if (t->quantize)
                t->format = v->format;
            else if (v->action == RQ_RULE_QUANTIZE && (st = leave_dense(plan, t, &v->format, notes, err)))
                goto done;
        }
        uint64_t elements = 0;
        if ((st = measure(t, &elements, &t->bytes, err))) goto done;
        if (!rq_add_u64(plan->parameters, elements, &plan->parameters) ||
            !rq_add_u64(plan->total_bytes, t->bytes, &plan->total_bytes)) {
            st = too_large(t, err);
            goto done;
        }
        if (t->module) {
            plan->quantized_modules += t->quantize;
            plan->dense_modules += !t->quantize;
        }
    }
    if (wanted && (st = note_kept(plan, candidate, notes, err))) goto done;
    if (wanted && !plan->quantized_modules)
        rq_note_add(notes, RQ_NOTE_WARNING, "nothing-quantized", "no module is quantized");
    plan->bits_per_weight = plan->parameters ? 8.0 * (double)plan->total_bytes / (double)plan->parameters : 0.0;
done:
    free(verdicts);
    return st;
}
