/* Raw tensors to logical ones. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/json_util.h"
#include "tensor/mlx_module.h"

#define SCALE_SUFFIX "_scale_inv"
#define DEFAULT_BLOCK 128

/* Name of the tensor or module that `name` belongs to: without the suffix. Owned. */
static char *without_suffix(const char *name, const char *suffix) {
    return rq_format("%.*s", (int)(strlen(name) - strlen(suffix)), name);
}

static rq_status no_memory(const rq_checkpoint *ckpt, rq_error *err) {
    return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for its tables", rq_checkpoint_directory(ckpt));
}

static rq_status refuse_foreign(const rq_checkpoint *ckpt, rq_error *err) {
    const json_t *config = rq_checkpoint_config(ckpt);
    const char *method = rq_foreign_quantization(config);
    if (method && strcmp(method, "fp8") != 0)
        return rq_fail(err, RQ_ERR_UNSUPPORTED,
                       "%s: config.json declares foreign quantization \"%s\"; expected dense weights, MLX formats or "
                       "F8_E4M3 with weight_scale_inv",
                       rq_checkpoint_directory(ckpt), method);
    if (method || rq_mlx_quantization(config)) return RQ_OK;
    char *path = rq_path_join(rq_checkpoint_directory(ckpt), "hf_quant_config.json");
    if (!path) return no_memory(ckpt, err);
    const rq_status st = rq_path_exists(path)
                             ? rq_fail(err, RQ_ERR_UNSUPPORTED,
                                       "%s: its presence means ModelOpt quantization, which is not supported", path)
                             : RQ_OK;
    free(path);
    return st;
}

/* ---- F8_E4M3 ---- */

static uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/* config.json's weight_block_size, if it is there. */
static bool configured_block(const json_t *config, uint64_t block[2]) {
    const json_t *size = json_object_get(json_object_get(config, "quantization_config"), "weight_block_size");
    if (json_array_size(size) != 2) return false;
    for (size_t d = 0; d < 2; d++) {
        const json_int_t n = json_integer_value(json_array_get(size, d)); /* 0 when it is no integer */
        if (n <= 0) return false;
        block[d] = (uint64_t)n;
    }
    return true;
}

/* The block edge with which `size` elements need `scales` scales: 128 if that fits, else the power of two that does (at
 * most one does when there are two or more scales). One scale covers everything. */
static bool derive_block(uint64_t size, uint64_t scales, uint64_t *block) {
    if (scales == 0 || size == 0) return false;
    if (ceil_div(size, DEFAULT_BLOCK) == scales) {
        *block = DEFAULT_BLOCK;
        return true;
    }
    if (scales == 1) {
        *block = size;
        return true;
    }
    for (*block = 1; *block < size; *block *= 2)
        if (ceil_div(size, *block) == scales) return true;
    return false;
}

static rq_status init_f8(const rq_checkpoint *ckpt, size_t i, rq_source_tensor *t, rq_error *err) {
    const rq_tensor_info *w = rq_checkpoint_at(ckpt, i);
    uint64_t block[2] = {0, 0};
    char *name = rq_format("%s" SCALE_SUFFIX, w->name);
    if (!name) return no_memory(ckpt, err);
    const bool found = rq_checkpoint_find(ckpt, name, &t->scales);
    free(name);
    if (!found)
        return rq_fail(err, RQ_ERR_MISSING, "tensor \"%s\" is F8_E4M3, but there is no \"%s" SCALE_SUFFIX "\"", w->name,
                       w->name);
    const rq_tensor_info *s = rq_checkpoint_at(ckpt, t->scales);
    if (w->rank != 2)
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "tensor \"%s\" is F8_E4M3 of rank %u, expected a matrix", w->name,
                       w->rank);
    if (s->dtype != RQ_F32 && s->dtype != RQ_BF16)
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "tensor \"%s\" is %s, expected F32 or BF16 block scales", s->name,
                       rq_dtype_name(s->dtype));
    const bool configured = configured_block(rq_checkpoint_config(ckpt), block);
    bool fits = s->rank == 2 || s->bytes == rq_dtype_bytes(s->dtype);
    if (s->bytes == rq_dtype_bytes(s->dtype) && s->rank != 2) {
        block[0] = w->shape[0]; /* one scale for the whole tensor */
        block[1] = w->shape[1];
        fits = block[0] > 0 && block[1] > 0;
    } else {
        for (size_t d = 0; d < 2 && fits; d++)
            fits = configured ? ceil_div(w->shape[d], block[d]) == s->shape[d]
                              : derive_block(w->shape[d], s->shape[d], &block[d]);
    }
    if (!fits)
        return rq_fail(
            err, RQ_ERR_SHAPE, "tensor \"%s\" [%llu, %llu]: block scales of rank %u [%llu, %llu] do not fit (%s)",
            w->name, (unsigned long long)w->shape[0], (unsigned long long)w->shape[1], s->rank,
            (unsigned long long)s->shape[0], (unsigned long long)s->shape[1],
            configured ? "config.json gives weight_block_size"
                       : "config.json gives no weight_block_size, and no block of 128 or power of two explains them");
    t->encoding = RQ_ENC_F8_BLOCK;
    t->dtype = RQ_F64;
    t->scale_block[0] = block[0];
    t->scale_block[1] = block[1];
    return RQ_OK;
}

/* ---- packed MLX ---- */

static rq_status init_packed(const rq_checkpoint *ckpt, size_t i, rq_source_tensor *t, rq_error *err) {
    rq_mlx_module module;
    const char *code = NULL;
    char *path = without_suffix(rq_checkpoint_at(ckpt, i)->name, ".weight");
    if (!path) return no_memory(ckpt, err);
    const rq_status st = rq_mlx_inspect(ckpt, path, &module, &code, err);
    free(path);
    if (st != RQ_OK) return st;
    t->encoding = RQ_ENC_MLX_QUANT;
    t->format = module.format;
    t->scales = module.scales;
    t->biases = module.biases;
    t->shape[t->rank - 1] = module.cols;
    t->dtype = module.format.mode == RQ_AFFINE ? rq_checkpoint_at(ckpt, module.scales)->dtype : RQ_BF16;
    return RQ_OK;
}

/* ---- all ---- */

static void mark(const rq_checkpoint *ckpt, const char *path, const char *part, bool *companion, bool *failed) {
    size_t i = 0;
    char *name = rq_format("%s%s", path, part);
    if (!name)
        *failed = true;
    else if (rq_checkpoint_find(ckpt, name, &i))
        companion[i] = true;
    free(name);
}

/* Tensor i is a part of another's encoding: checks that the other exists and marks the parts. */
static rq_status mark_companions(const rq_checkpoint *ckpt, size_t i, bool *companion, rq_error *err) {
    const rq_tensor_info *t = rq_checkpoint_at(ckpt, i);
    size_t w = 0;
    bool failed = false;
    if (rq_has_suffix(t->name, ".global_scale"))
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "tensor \"%s\": quantization with a global scale is not supported",
                       t->name);
    if (rq_has_suffix(t->name, ".scales")) {
        rq_mlx_module module;
        const char *code = NULL;
        char *path = without_suffix(t->name, ".scales");
        if (!path) return no_memory(ckpt, err);
        const rq_status st = rq_mlx_inspect(ckpt, path, &module, &code, err);
        companion[i] = true;
        mark(ckpt, path, ".biases", companion, &failed);
        free(path);
        if (st != RQ_OK) return st;
    } else if (rq_has_suffix(t->name, SCALE_SUFFIX)) {
        char *name = without_suffix(t->name, SCALE_SUFFIX);
        if (!name) return no_memory(ckpt, err);
        const bool found = rq_checkpoint_find(ckpt, name, &w);
        free(name);
        if (!found) return rq_fail(err, RQ_ERR_MISSING, "tensor \"%s\" scales a tensor that is not there", t->name);
        if (rq_checkpoint_at(ckpt, w)->dtype != RQ_F8_E4M3)
            return rq_fail(err, RQ_ERR_FORMAT, "tensor \"%s\" scales \"%s\", which is %s, expected F8_E4M3", t->name,
                           rq_checkpoint_at(ckpt, w)->name, rq_dtype_name(rq_checkpoint_at(ckpt, w)->dtype));
        companion[i] = true;
    }
    return failed ? no_memory(ckpt, err) : RQ_OK;
}

static rq_status init_tensor(const rq_checkpoint *ckpt, size_t i, rq_source_tensor *t, rq_error *err) {
    const rq_tensor_info *raw = rq_checkpoint_at(ckpt, i);
    *t = (rq_source_tensor){.name = raw->name,
                            .encoding = rq_dtype_is_float(raw->dtype) ? RQ_ENC_PLAIN : RQ_ENC_OPAQUE,
                            .dtype = raw->dtype,
                            .rank = raw->rank,
                            .data = i,
                            .scales = SIZE_MAX,
                            .biases = SIZE_MAX};
    memcpy(t->shape, raw->shape, sizeof t->shape);
    if (raw->dtype == RQ_F8_E4M3) return init_f8(ckpt, i, t, err);
    if (raw->dtype == RQ_U32 && rq_has_suffix(raw->name, ".weight")) return init_packed(ckpt, i, t, err);
    return RQ_OK;
}

rq_status rq_source_init(const rq_checkpoint *ckpt, rq_source *source, rq_error *err) {
    const size_t n = rq_checkpoint_count(ckpt);
    rq_status st = RQ_ERR_NOMEM;
    bool *companion = calloc(n + 1, sizeof *companion);
    rq_source_tensor *tensors = calloc(n + 1, sizeof *tensors);
    *source = (rq_source){.ckpt = ckpt, .tensors = tensors};
    if (!companion || !tensors) {
        st = no_memory(ckpt, err);
        goto done;
    }
    if ((st = refuse_foreign(ckpt, err)) != RQ_OK) goto done;
    for (size_t i = 0; i < n; i++)
        if ((st = mark_companions(ckpt, i, companion, err)) != RQ_OK) goto done;
    for (size_t i = 0; i < n; i++) {
        if (companion[i]) continue;
        rq_source_tensor *t = &tensors[source->count++];
        if ((st = init_tensor(ckpt, i, t, err)) != RQ_OK) goto done;
        source->is_quantized = source->is_quantized || t->encoding == RQ_ENC_MLX_QUANT;
        source->is_fp8 = source->is_fp8 || t->encoding == RQ_ENC_F8_BLOCK;
    }
done:
    free(companion);
    if (st != RQ_OK) rq_source_deinit(source);
    return st;
}

void rq_source_deinit(rq_source *source) {
    if (!source) return;
    free(source->tensors);
    *source = (rq_source){0};
}

static int compare_key(const void *key, const void *element) {
    return strcmp(key, ((const rq_source_tensor *)element)->name);
}

const rq_source_tensor *rq_source_find(const rq_source *source, const char *name) {
    return bsearch(name, source->tensors, source->count, sizeof *source->tensors, compare_key);
}
