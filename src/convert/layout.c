#include "convert/layout.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void rq_tensor_extent(const rq_plan_tensor *tensor, uint64_t *rows, uint64_t *cols) {
    uint64_t r = 1;
    for (unsigned i = 0; i + 1 < tensor->rank; i++) r *= tensor->shape[i];
    *rows = r;
    *cols = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
}

/* One stored tensor on its way into a header. */
typedef struct stored {
    rq_tensor_info info;
    rq_part *part;
} stored;

static int by_name(const void *a, const void *b) {
    return strcmp(((const stored *)a)->info.name, ((const stored *)b)->info.name);
}

static void set_info(rq_tensor_info *info, const char *name, rq_dtype dtype, const rq_plan_tensor *t, uint64_t cols,
                     uint64_t bytes) {
    *info = (rq_tensor_info){.name = name, .dtype = dtype, .rank = t->rank, .bytes = bytes};
    memcpy(info->shape, t->shape, sizeof info->shape);
    if (t->rank) info->shape[t->rank - 1] = cols;
}

/* The one to three stored tensors of plan tensor t. Returns how many, 0 when out of memory. */
static size_t stored_parts(rq_layout *layout, const rq_plan_tensor *t, rq_tensor_layout *place, stored *out) {
    uint64_t rows, cols;
    rq_tensor_extent(t, &rows, &cols);
    if (!t->quantize) {
        set_info(&out[0].info, t->name, t->dtype, t, cols, rows * cols * rq_dtype_bytes(t->dtype));
        out[0].part = &place->weight;
        return 1;
    }
    const char *scales = rq_arena_format(&layout->arena, "%s.scales", t->module);
    const char *biases = rq_arena_format(&layout->arena, "%s.biases", t->module);
    if (!scales || !biases) return 0;
    const uint64_t code_bytes = rq_quant_code_bytes(&t->format, cols);
    const uint64_t scale_bytes = rq_quant_scale_bytes(&t->format, t->dtype, cols);
    const uint64_t groups = cols / t->format.group_size;
    set_info(&out[0].info, t->name, RQ_U32, t, code_bytes / 4, rows * code_bytes);
    set_info(&out[1].info, scales, rq_quant_scale_dtype(&t->format, t->dtype), t, groups, rows * scale_bytes);
    out[0].part = &place->weight, out[1].part = &place->scales;
    if (!rq_quant_has_biases(&t->format)) return 2;
    set_info(&out[2].info, biases, t->dtype, t, groups, rows * scale_bytes);
    out[2].part = &place->biases;
    return 3;
}

static rq_status finish_shard(rq_layout *layout, size_t shard, stored *parts, size_t count, rq_error *err) {
    static const char *const metadata[] = {"format", "mlx", NULL};
    rq_shard *s = &layout->shards[shard];
    rq_tensor_info *infos = malloc((count ? count : 1) * sizeof *infos);
    if (!infos) return rq_fail(err, RQ_ERR_NOMEM, "no memory for a header of %zu tensors", count);
    qsort(parts, count, sizeof *parts, by_name);
    for (size_t i = 0; i < count; i++) infos[i] = parts[i].info;
    rq_status st = rq_safetensors_build_header(infos, count, metadata, &s->header, &s->header_bytes, err);
    if (st == RQ_OK) {
        s->file_bytes = s->header_bytes;
        for (size_t i = 0; i < count; i++) {
            const stored key = {.info = {.name = infos[i].name}};
            const stored *found = bsearch(&key, parts, count, sizeof *parts, by_name);
            *found->part = (rq_part){(unsigned)shard, infos[i].offset, infos[i].bytes};
            s->file_bytes += infos[i].bytes;
        }
    }
    free(infos);
    return st;
}

rq_status rq_layout_make(const rq_plan *plan, uint64_t max_shard_bytes, rq_layout *layout, rq_error *err) {
    *layout = (rq_layout){0};
    rq_status st = RQ_OK;
    const uint64_t limit = max_shard_bytes ? max_shard_bytes : RQ_SHARD_BYTES;
    stored *parts = malloc((3 * plan->count + 1) * sizeof *parts);
    size_t *first = malloc((plan->count + 2) * sizeof *first); /* parts of shard s: first[s] .. first[s + 1] */
    layout->tensors = calloc(plan->count + 1, sizeof *layout->tensors);
    if (!parts || !first || !layout->tensors) goto nomem;

    size_t n = 0, shards = 1;
    uint64_t in_shard = 0;
    first[0] = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const size_t k = stored_parts(layout, &plan->tensors[i], &layout->tensors[i], parts + n);
        if (!k) goto nomem;
        uint64_t bytes = 0;
        for (size_t j = 0; j < k; j++) bytes += parts[n + j].info.bytes;
        if (in_shard && in_shard + bytes > limit) {
            first[shards++] = n;
            in_shard = 0;
        }
        in_shard += bytes;
        layout->tensor_bytes += bytes;
        n += k;
    }
    first[shards] = n;

    layout->shards = calloc(shards, sizeof *layout->shards);
    if (!layout->shards) goto nomem;
    layout->n_shards = shards;
    for (size_t s = 0; s < shards; s++) {
        layout->shards[s].name =
            shards == 1 ? rq_arena_format(&layout->arena, "model.safetensors")
                        : rq_arena_format(&layout->arena, "model-%05zu-of-%05zu.safetensors", s + 1, shards);
        if (!layout->shards[s].name) goto nomem;
        st = finish_shard(layout, s, parts + first[s], first[s + 1] - first[s], err);
        if (st != RQ_OK) goto done;
    }
    goto done;
nomem:
    st = rq_fail(err, RQ_ERR_NOMEM, "no memory to lay out %zu tensors", plan->count);
done:
    free(parts);
    free(first);
    if (st != RQ_OK) rq_layout_deinit(layout);
    return st;
}

void rq_layout_deinit(rq_layout *layout) {
    for (size_t s = 0; layout->shards && s < layout->n_shards; s++) free(layout->shards[s].header);
    free(layout->shards);
    free(layout->tensors);
    rq_arena_deinit(&layout->arena);
    *layout = (rq_layout){0};
}

/* False when out of memory; a NULL name is a failed allocation as well. */
static bool map_part(json_t *map, const rq_layout *layout, const char *name, const rq_part *part) {
    return name && json_object_set_new(map, name, json_string(layout->shards[part->shard].name)) == 0;
}

static bool map_module(json_t *map, const rq_layout *layout, const rq_plan_tensor *t, const rq_tensor_layout *place) {
    char *scales = rq_format("%s.scales", t->module), *biases = NULL;
    bool good = map_part(map, layout, scales, &place->scales);
    if (good && rq_quant_has_biases(&t->format)) {
        biases = rq_format("%s.biases", t->module);
        good = map_part(map, layout, biases, &place->biases);
    }
    free(scales);
    free(biases);
    return good;
}

rq_status rq_layout_index(const rq_plan *plan, const rq_layout *layout, char **text, rq_error *err) {
    json_t *map = json_object();
    bool good = map != NULL;
    for (size_t i = 0; good && i < plan->count; i++) {
        const rq_plan_tensor *t = &plan->tensors[i];
        good = map_part(map, layout, t->name, &layout->tensors[i].weight) &&
               (!t->quantize || map_module(map, layout, t, &layout->tensors[i]));
    }
    if (!good) {
        json_decref(map);
        return rq_fail(err, RQ_ERR_NOMEM, "no memory for the index of %zu tensors", plan->count);
    }
    json_t *root = json_pack("{s:{s:I,s:I},s:o}", "metadata", "total_size", (json_int_t)layout->tensor_bytes,
                             "total_parameters", (json_int_t)plan->parameters, "weight_map", map);
    *text = root ? json_dumps(root, JSON_INDENT(4) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    return *text ? RQ_OK : rq_fail(err, RQ_ERR_NOMEM, "no memory for the index of %zu tensors", plan->count);
}
