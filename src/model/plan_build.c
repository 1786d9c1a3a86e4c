#include "model/plan_build.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/families.h"
#include "model/generic.h"
#include "model/names.h"

#define LISTED_NAMES 6

typedef struct draft {
    rq_plan_tensor tensor;
    bool candidate; /* a module that may be quantized */
} draft;

typedef struct builder {
    const json_t *config;
    const rq_source *source;
    const rq_family *family; /* NULL: generic */
    rq_plan *plan;
    rq_arena *arena;
    rq_notes *notes;
    rq_error *err;
    draft *drafts; /* [count] */
    size_t count, capacity;
    bool *claimed; /* [source->count] */
} builder;

void rq_plan_options_init(rq_plan_options *options) {
    *options = (rq_plan_options){
        .rotation = {.r1 = RQ_SPEC_HADAMARD, .r2 = RQ_R2_HADAMARD},
        .format = {RQ_AFFINE, 4, 64},
        .scales = RQ_SCALES_MLX,
        .dtype = RQ_BF16,
        .tie = RQ_TIE_AUTO,
    };
}

void rq_plan_deinit(rq_plan *plan) {
    if (!plan) return;
    rq_plan_memory *memory = plan->arena;
    if (memory) {
        rq_arena_deinit(&memory->arena);
        json_decref(memory->recipe);
        free(memory);
    }
    free(plan->tensors);
    *plan = (rq_plan){0};
}

static rq_status no_memory(rq_error *err) { return rq_fail(err, RQ_ERR_NOMEM, "plan: out of memory"); }

/* "[320, 128]" */
static const char *shape_text(const uint64_t *shape, unsigned rank, char *buffer, size_t bytes) {
    size_t used = (size_t)snprintf(buffer, bytes, "[");
    for (unsigned i = 0; i < rank && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%" PRIu64, i ? ", " : "", shape[i]);
    if (used < bytes) snprintf(buffer + used, bytes - used, "]");
    return buffer;
}

/* ---- drafts ---- */

static bool find_tensor(const builder *b, const char *name, size_t *index) {
    const rq_source_tensor *found = b->source->count ? rq_source_find(b->source, name) : NULL;
    if (found) *index = (size_t)(found - b->source->tensors);
    return found != NULL;
}

/* Appends; NULL when out of memory. `name` must live in the arena or the source's checkpoint: it is copied. */
static rq_plan_tensor *add(builder *b, const char *name, size_t index, const char *role) {
    if (b->count == b->capacity) {
        const size_t capacity = b->capacity ? 2 * b->capacity : 256;
        draft *drafts = realloc(b->drafts, capacity * sizeof *drafts);
        if (!drafts) return NULL;
        b->drafts = drafts;
        b->capacity = capacity;
    }
    const rq_source_tensor *source = &b->source->tensors[index];
    draft *d = &b->drafts[b->count];
    *d = (draft){.tensor = {.source = source, .role = role, .rank = source->rank}};
    d->tensor.name = rq_arena_format(b->arena, "%s", name);
    if (!d->tensor.name) return NULL;
    memcpy(d->tensor.shape, source->shape, sizeof d->tensor.shape);
    d->tensor.dtype = rq_dtype_is_float(source->dtype) ? b->plan->options.dtype : source->dtype;
    b->claimed[index] = true;
    b->count++;
    return &d->tensor;
}

/* Marks the tensor added last as the weight of a module. */
static rq_status make_module(builder *b, bool candidate) {
    draft *d = &b->drafts[b->count - 1];
    const size_t length = strlen(d->tensor.name) - strlen(".weight");
    d->tensor.module = rq_arena_format(b->arena, "%.*s", (int)length, d->tensor.name);
    d->candidate = candidate;
    return d->tensor.module ? RQ_OK : no_memory(b->err);
}

static void add_op(rq_plan_tensor *tensor, rq_op op) { tensor->ops[tensor->n_ops++] = op; }

/* ---- corridors ---- */

/* The first corridor of a role; every table has an embedding and a head. */
static const rq_corridor *corridor_of(const rq_family *family, rq_corridor_role role) {
    size_t i = 0;
    while (i < family->count && family->corridors[i].role != role) i++;
    return i < family->count ? &family->corridors[i] : &family->corridors[0];
}

/* The template with {} replaced; NULL when out of memory. */
static const char *instantiate(builder *b, const char *module, uint64_t layer, const char *suffix) {
    const char *hole = strstr(module, "{}");
    if (!hole) return rq_arena_format(b->arena, "%s%s", module, suffix);
    return rq_arena_format(b->arena, "%.*s%" PRIu64 "%s%s", (int)(hole - module), module, layer, hole + 2, suffix);
}

static const char *role_name(rq_corridor_role role) {
    switch (role) {
    case RQ_ROLE_EMBEDDING:
        return "embedding";
    case RQ_ROLE_READER:
        return "reader";
    case RQ_ROLE_V:
        return "v";
    case RQ_ROLE_O:
        return "o";
    case RQ_ROLE_WRITER:
        return "writer";
    case RQ_ROLE_HEAD:
        return "head";
    case RQ_ROLE_NORM:
        return "norm";
    case RQ_ROLE_HEAD_NORM:
        break;
    }
    return "copy";
}

/* Finds a tensor that the table needs and checks it against config.json. */
static rq_status need(builder *b, const char *name, uint64_t rows, uint64_t cols, size_t *index) {
    const uint64_t expected[2] = {rows, cols};
    const unsigned rank = cols ? 2 : 1;
    char want[64], found[200];
    if (!find_tensor(b, name, index))
        return rq_fail(b->err, RQ_ERR_MISSING,
                       "%s %s is missing: config.json describes a %s model with %" PRIu64 " layers that has it", name,
                       shape_text(expected, rank, want, sizeof want), b->family->name,
                       b->plan->config.num_hidden_layers);
    const rq_source_tensor *t = &b->source->tensors[*index];
    if (t->rank != rank || t->shape[0] != rows || (rank == 2 && t->shape[1] != cols))
        return rq_fail(b->err, RQ_ERR_SHAPE, "%s has shape %s, but by config.json it should be %s", name,
                       shape_text(t->shape, t->rank, found, sizeof found),
                       shape_text(expected, rank, want, sizeof want));
    if (!rq_dtype_is_float(t->dtype))
        return rq_fail(b->err, RQ_ERR_UNSUPPORTED,
                       "%s has dtype %s, but a weight is expected in BF16, F16, F32 or F8_E4M3 with a scale", name,
                       rq_dtype_name(t->dtype));
    return RQ_OK;
}

static bool bias_expected(const builder *b, rq_bias_rule rule) {
    switch (rule) {
    case RQ_BIAS_REQUIRED:
        return true;
    case RQ_BIAS_IF_ATTENTION_BIAS:
        return b->plan->config.attention_bias;
    case RQ_BIAS_IF_MLP_BIAS:
        return b->plan->config.mlp_bias;
    case RQ_BIAS_NEVER:
        break;
    }
    return false;
}

static rq_status claim_bias(builder *b, const rq_corridor *c, uint64_t layer, uint64_t rows) {
    const char *name = instantiate(b, c->module, layer, ".bias");
    size_t index = 0;
    if (!name) return no_memory(b->err);
    if (!bias_expected(b, c->bias)) {
        /* Passing it through would leave it unrotated, dropping it would change the model. */
        if (c->bias != RQ_BIAS_NEVER && find_tensor(b, name, &index))
            return rq_fail(b->err, RQ_ERR_UNSUPPORTED, "%s is stored, but config.json's %s is not true", name,
                           c->bias == RQ_BIAS_IF_MLP_BIAS ? "mlp_bias" : "attention_bias");
        return RQ_OK;
    }
    const rq_status st = need(b, name, rows, 0, &index);
    if (st) return st;
    rq_plan_tensor *t = add(b, name, index, "bias");
    if (!t) return no_memory(b->err);
    if (!b->plan->folded) return RQ_OK;
    if (c->role == RQ_ROLE_WRITER || c->role == RQ_ROLE_O) add_op(t, (rq_op){.kind = RQ_OP_R1_OUT});
    if (c->role == RQ_ROLE_V && b->plan->head_dim_r2) add_op(t, (rq_op){RQ_OP_R2_OUT, NULL, (unsigned)layer});
    return RQ_OK;
}

/* The operations of docs/fold.md on one weight: gain, then R1, then R2. */
static rq_status add_ops(builder *b, const rq_corridor *c, uint64_t layer, rq_plan_tensor *t) {
    const rq_plan *plan = b->plan;
    if (!plan->folded) return RQ_OK;
    if (c->norm) {
        const char *gain = instantiate(b, c->norm, layer, ".weight");
        if (!gain) return no_memory(b->err);
        add_op(t, (rq_op){.kind = RQ_OP_GAIN_IN, .gain = gain});
    }
    switch (c->role) {
    case RQ_ROLE_EMBEDDING:
    case RQ_ROLE_READER:
    case RQ_ROLE_HEAD:
        add_op(t, (rq_op){.kind = RQ_OP_R1_IN});
        break;
    case RQ_ROLE_V:
        add_op(t, (rq_op){.kind = RQ_OP_R1_IN});
        if (plan->head_dim_r2) add_op(t, (rq_op){RQ_OP_R2_OUT, NULL, (unsigned)layer});
        break;
    case RQ_ROLE_O:
        add_op(t, (rq_op){.kind = RQ_OP_R1_OUT});
        if (plan->head_dim_r2) add_op(t, (rq_op){RQ_OP_R2_IN, NULL, (unsigned)layer});
        break;
    case RQ_ROLE_WRITER:
        add_op(t, (rq_op){.kind = RQ_OP_R1_OUT});
        break;
    case RQ_ROLE_NORM:
        /* With the tie kept there is no reader that could take the final gain; it must be one already. */
        if (!(plan->requires_neutral_final_gain && strcmp(t->name, plan->final_norm) == 0))
            add_op(t, (rq_op){.kind = RQ_OP_SET_ONES});
        break;
    case RQ_ROLE_HEAD_NORM:
        break;
    }
    return RQ_OK;
}

static rq_status claim_weight(builder *b, const rq_corridor *c, uint64_t layer) {
    rq_plan *plan = b->plan;
    const uint64_t rows = rq_model_config_dim(&plan->config, c->rows),
                   cols = rq_model_config_dim(&plan->config, c->cols);
    const char *name = instantiate(b, c->module, layer, ".weight"), *source_name = name;
    if (!name) return no_memory(b->err);
    size_t index = 0;
    const bool untie = c->role == RQ_ROLE_HEAD && plan->config.tied;
    if (untie) {
        if (find_tensor(b, name, &index)) {
            b->claimed[index] = true;
            plan->dropped_head = name;
            rq_note_add(b->notes, RQ_NOTE_INFO, "stored-head-dropped",
                        "%s is stored although config.json ties it to the embedding; the tie rules and the stored "
                        "head is not used",
                        name);
        }
        if (!plan->untied) return RQ_OK;
        source_name = instantiate(b, corridor_of(b->family, RQ_ROLE_EMBEDDING)->module, 0, ".weight");
        if (!source_name) return no_memory(b->err);
    }
    rq_status st = need(b, source_name, rows, cols, &index);
    if (st) return st;
    rq_plan_tensor *t = add(b, name, index, role_name(c->role));
    if (!t) return no_memory(b->err);
    if (untie) add_op(t, (rq_op){.kind = RQ_OP_CLONE});
    if ((st = add_ops(b, c, layer, t))) return st;
    if (c->cols != RQ_DIM_NONE && (st = make_module(b, true))) return st;
    return claim_bias(b, c, layer, rows);
}

static rq_status claim_corridors(builder *b) {
    for (size_t i = 0; i < b->family->count; i++) {
        const rq_corridor *c = &b->family->corridors[i];
        const uint64_t layers = strstr(c->module, "{}") ? b->plan->config.num_hidden_layers : 1;
        for (uint64_t layer = 0; layer < layers; layer++) {
            const rq_status st = claim_weight(b, c, layer);
            if (st) return st;
        }
    }
    return RQ_OK;
}

/* ---- what no corridor claims ---- */

/* Names of unclaimed tensors; owned array of borrowed names. NULL when out of memory. */
static const char **unclaimed_names(const builder *b, size_t *count) {
    const char **names = malloc((b->source->count + 1) * sizeof *names);
    *count = 0;
    for (size_t i = 0; names && i < b->source->count; i++)
        if (!b->claimed[i]) names[(*count)++] = b->source->tensors[i].name;
    return names;
}

static void drop_ignored(builder *b) {
    size_t dropped = 0;
    const char *first = NULL;
    for (size_t i = 0; i < b->source->count; i++)
        for (const char *const *pattern = rq_ignored_tensors; *pattern && !b->claimed[i]; pattern++)
            if (rq_glob_match(*pattern, b->source->tensors[i].name)) {
                b->claimed[i] = true;
                if (!dropped++) first = b->source->tensors[i].name;
            }
    if (dropped)
        rq_note_add(b->notes, RQ_NOTE_INFO, "ignored-tensor",
                    "%zu rotary tables that loaders compute themselves are left out, %s the first", dropped, first);
}

static rq_status pass_through(builder *b, size_t index) {
    const rq_source_tensor *source = &b->source->tensors[index];
    const char *reason = NULL;
    const rq_generic_kind kind = rq_generic_classify(source, &reason);
    const char *role = kind == RQ_GENERIC_LINEAR ? "linear" : kind == RQ_GENERIC_EMBEDDING ? "embedding" : "copy";
    rq_plan_tensor *t = add(b, source->name, index, b->plan->folded ? "copy" : role);
    if (!t) return no_memory(b->err);
    if (kind == RQ_GENERIC_OTHER) {
        if (!b->plan->folded && rq_generic_keeps_dtype(source)) t->dtype = source->dtype;
        return RQ_OK;
    }
    /* In a folded model a tensor without a role is not ours to touch. */
    const bool candidate = kind != RQ_GENERIC_KEPT && !b->plan->folded;
    if (!candidate) t->dense_reason = b->plan->folded ? "passed through: no role in this family" : reason;
    return make_module(b, candidate);
}

static rq_status claim_rest(builder *b) {
    rq_status st = RQ_OK;
    size_t count = 0;
    const char **names = unclaimed_names(b, &count);
    char *list = names ? rq_names_summary(names, count, LISTED_NAMES) : NULL;
    if (!list) {
        st = no_memory(b->err);
        goto done;
    }
    if (count && b->family && b->plan->folded && !b->plan->options.allow_unknown) {
        st = rq_fail(b->err, RQ_ERR_UNSUPPORTED,
                     "%zu tensors have no role in family %s (%.600s); an unrotated reader of the residual stream would "
                     "break the model. Known families: %s. --allow-unknown passes them through",
                     count, b->family->name, list, rq_family_names());
        goto done;
    }
    if (count && b->family)
        rq_note_add(b->notes, RQ_NOTE_WARNING, "unknown-tensor", "%zu tensors have no role in family %s and are %s: %s",
                    count, b->family->name, b->plan->folded ? "passed through unrotated" : "treated by their shape",
                    list);
    for (size_t i = 0; i < b->source->count && !st; i++)
        if (!b->claimed[i]) st = pass_through(b, i);
done:
    free(list);
    free((void *)names);
    return st;
}

/* ---- may it be rotated at all ---- */

static rq_status refuse_family(builder *b) {
    const char *type = b->plan->config.model_type, *reason = rq_family_refusal(type);
    if (reason)
        return rq_fail(b->err, RQ_ERR_UNSUPPORTED,
                       "model_type %s cannot be rotated: %s. Families that can: %s; --rotation none converts without "
                       "a rotation",
                       type, reason, rq_family_names());
    size_t count = 0;
    const char **names = unclaimed_names(b, &count);
    char *list = names ? rq_names_summary(names, count, LISTED_NAMES) : NULL;
    const rq_status st =
        rq_fail(b->err, RQ_ERR_UNSUPPORTED,
                "model_type %s is not known, so its %zu tensors have no role in a fold (%.500s). Families "
                "that can be rotated: %s; --rotation none converts without a rotation",
                type, count, list ? list : "", rq_family_names());
    free(list);
    free((void *)names);
    return st;
}

/* Fixes head_dim_r2, and finds out early whether the rotations can be made. */
static rq_status check_rotations(builder *b) {
    rq_plan *plan = b->plan;
    rq_rotation_spec *spec = &plan->options.rotation;
    const size_t hidden = (size_t)plan->config.hidden_size, head_dim = (size_t)plan->config.head_dim;
    plan->head_dim_r2 = b->family->r2 ? head_dim : 0;
    size_t K = 0;
    unsigned m = 0;
    const char *construction = NULL;
    if (spec->r1 == RQ_SPEC_FILE) {
        rq_rotation_set set = {0};
        const rq_status st =
            rq_rotation_set_make(spec, hidden, head_dim, (size_t)plan->config.num_hidden_layers, &set, b->err);
        if (st) return st;
        if (!set.r2) plan->head_dim_r2 = 0;
        spec->seed = set.seed;
        rq_rotation_set_deinit(&set);
        return RQ_OK;
    }
    if (spec->r2 == RQ_R2_NONE) plan->head_dim_r2 = 0;
    if (spec->r1 == RQ_SPEC_HADAMARD && !rq_hadamard_split(hidden, &K, &m, &construction))
        return rq_fail(b->err, RQ_ERR_UNSUPPORTED,
                       "no Hadamard matrix of order %zu (hidden_size) can be generated: use --rotation random", hidden);
    if (spec->r1 == RQ_SPEC_BLOCK &&
        (!spec->block || hidden % spec->block || !rq_hadamard_split(spec->block, &K, &m, &construction)))
        return rq_fail(
            b->err, RQ_ERR_UNSUPPORTED,
            "hidden_size %zu does not fall into Hadamard blocks of %zu: use another block or --rotation random", hidden,
            spec->block);
    if (plan->head_dim_r2 && spec->r2 == RQ_R2_HADAMARD && !rq_hadamard_split(head_dim, &K, &m, &construction))
        return rq_fail(
            b->err, RQ_ERR_UNSUPPORTED,
            "no Hadamard matrix of order %zu (head_dim) can be generated for R2: use --r2 random or --r2 none",
            head_dim);
    return RQ_OK;
}

/* ---- the whole ---- */

static rq_status check_options(const builder *b) {
    const rq_plan_options *o = &b->plan->options;
    if (o->dtype != RQ_BF16 && o->dtype != RQ_F16 && o->dtype != RQ_F32)
        return rq_fail(b->err, RQ_ERR_USAGE, "dtype %s cannot be stored; BF16, F16 and F32 can",
                       rq_dtype_name(o->dtype));
    if (b->source->is_quantized && !o->dequantize)
        return rq_fail(b->err, RQ_ERR_UNSUPPORTED,
                       "the source is quantized already; --dequantize turns it into plain weights first");
    return RQ_OK;
}

/* Strings of the options are borrowed by contract; the plan outlives its caller's. */
static rq_status copy_options(builder *b, const rq_plan_options *options) {
    rq_plan_options *o = &b->plan->options;
    *o = *options;
    if (options->recipe && !(o->recipe = rq_arena_format(b->arena, "%s", options->recipe))) return no_memory(b->err);
    if (options->rotation.file && !(o->rotation.file = rq_arena_format(b->arena, "%s", options->rotation.file)))
        return no_memory(b->err);
    if (o->recipe) o->quantize = true;
    return RQ_OK;
}

static rq_status read_config(builder *b) {
    rq_plan *plan = b->plan;
    const char *type = json_string_value(json_object_get(b->config, "model_type"));
    b->family = type ? rq_family_find(type) : NULL;
    rq_status st = rq_model_config_read(b->config, b->family, &plan->config, b->err);
    if (st) return st;
    plan->family = b->family ? b->family->name : "generic";
    plan->folded = plan->options.rotation.r1 != RQ_SPEC_NONE;
    if (!b->family) {
        const char *reason = rq_family_plain_refusal(type);
        if (plan->folded) return refuse_family(b);
        if (reason) return rq_fail(b->err, RQ_ERR_UNSUPPORTED, "model_type %s cannot be converted: %s", type, reason);
        plan->config.tied = json_is_true(rq_config_get(b->config, "tie_word_embeddings"));
        plan->config.tied_explicit = rq_config_get(b->config, "tie_word_embeddings") != NULL;
        return RQ_OK;
    }
    size_t unused = 0;
    const rq_corridor *head = corridor_of(b->family, RQ_ROLE_HEAD);
    const char *head_name = instantiate(b, head->module, 0, ".weight");
    if (!head_name) return no_memory(b->err);
    st = rq_model_config_tie(b->config, find_tensor(b, head_name, &unused), (int)plan->options.tie, &plan->config,
                             b->notes, b->err);
    if (st || !plan->folded) return st;
    plan->untied = plan->config.tied && !plan->options.keep_tied;
    plan->requires_neutral_final_gain = plan->config.tied && plan->options.keep_tied;
    plan->final_norm = instantiate(b, head->norm, 0, ".weight");
    return plan->final_norm ? check_rotations(b) : no_memory(b->err);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const draft *)a)->tensor.name, ((const draft *)b)->tensor.name);
}

/* Moves the drafts into the plan, sorted, and gives them their formats and sizes. */
static rq_status finish(builder *b) {
    rq_status st = RQ_OK;
    rq_plan *plan = b->plan;
    rq_plan_memory *memory = plan->arena;
    rq_recipe recipe = {0};
    bool *candidate = calloc(b->count + 1, sizeof *candidate);
    plan->tensors = calloc(b->count + 1, sizeof *plan->tensors);
    if (!candidate || !plan->tensors) {
        st = no_memory(b->err);
        goto done;
    }
    if (b->count) qsort(b->drafts, b->count, sizeof *b->drafts, by_name);
    for (size_t i = 0; i < b->count; i++) {
        plan->tensors[i] = b->drafts[i].tensor;
        candidate[i] = b->drafts[i].candidate;
        if (!plan->options.quantize) plan->tensors[i].dense_reason = NULL;
    }
    plan->count = b->count;
    if (plan->options.recipe) {
        if ((st = rq_recipe_open(plan->options.recipe, &plan->options.format, &recipe, b->err))) goto done;
        memory->recipe = json_incref(recipe.source);
    }
    st = rq_plan_choose_formats(plan, candidate, plan->options.recipe ? &recipe : NULL, b->notes, b->err);
done:
    rq_recipe_deinit(&recipe);
    free(candidate);
    return st;
}

rq_status rq_plan_build(const json_t *config, const rq_source *source, const char *directory,
                        const rq_plan_options *options, rq_plan *plan, rq_notes *notes, rq_error *err) {
    rq_status st = RQ_OK;
    rq_plan made = {0};
    json_t *output_config = NULL;
    builder b = {.config = config, .source = source, .plan = &made, .notes = notes, .err = err};
    made.arena = calloc(1, sizeof(rq_plan_memory));
    b.claimed = calloc(source->count + 1, sizeof *b.claimed);
    if (!made.arena || !b.claimed) {
        st = no_memory(err);
        goto done;
    }
    b.arena = &((rq_plan_memory *)made.arena)->arena;
    if ((st = copy_options(&b, options))) goto done;
    if ((st = check_options(&b))) goto done;
    if ((st = read_config(&b))) goto done;
    if (b.family && (st = claim_corridors(&b))) goto done;
    drop_ignored(&b);
    if ((st = claim_rest(&b))) goto done;
    if ((st = finish(&b))) goto done;
    /* Whatever stands in the way of writing config.json should be known now, not after an hour of work. */
    if ((st = rq_output_config_make(&made, config, &output_config, err))) goto done;
    rq_note_eos(config, directory, notes);
    *plan = made;
    made = (rq_plan){0};
done:
    json_decref(output_config);
    rq_plan_deinit(&made);
    free(b.claimed);
    free(b.drafts);
    return st;
}
