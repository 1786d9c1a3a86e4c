#include "tensor/mlx_module.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/json_util.h"

/* ---- config.json ---- */

static bool looks_like_mlx(const json_t *object) {
    return json_is_object(object) && !json_object_get(object, "quant_method") &&
           json_is_integer(json_object_get(object, "bits")) && json_is_integer(json_object_get(object, "group_size"));
}

const json_t *rq_mlx_quantization(const json_t *config) {
    const json_t *object = json_object_get(config, "quantization");
    if (json_is_object(object)) return object;
    object = json_object_get(config, "quantization_config");
    return looks_like_mlx(object) ? object : NULL;
}

const char *rq_foreign_quantization(const json_t *config) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    enum { PLACES = 2 };
    const json_t *const places[PLACES] = {config, json_object_get(config, "text_config")};
    if (rq_mlx_quantization(config)) return NULL;
    for (size_t p = 0; p < PLACES; p++)
        for (size_t k = 0; k < RQ_COUNT_OF(keys); k++) {
            const json_t *object = json_object_get(places[p], keys[k]);
            if (!json_is_object(object) || json_object_size(object) == 0) continue;
            const char *method = rq_json_text(object, "quant_method");
            if (!method) method = rq_json_text(object, "format");
            return method ? method : "unknown";
        }
    return NULL;
}

static rq_status read_small(const json_t *object, const char *key, const char *what, unsigned *value, rq_error *err) {
    uint64_t v = 0;
    const json_t *member = json_object_get(object, key);
    *value = 0;
    if (!member || json_is_null(member)) return RQ_OK;
    if (!rq_json_u64(object, key, &v) || v == 0 || v > 65536)
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: %s of %s is not a small positive integer", key, what);
    *value = (unsigned)v;
    return RQ_OK;
}

rq_status rq_mlx_read_format(const json_t *object, const char *what, rq_quant_format *format, rq_error *err) {
    rq_quant_mode mode = RQ_AFFINE;
    unsigned bits = 0, group_size = 0;
    rq_error detail = {0};
    const json_t *mode_value = json_object_get(object, "mode");
    const char *mode_name = json_string_value(mode_value);
    if (mode_value && (!mode_name || !rq_quant_mode_parse(mode_name, &mode)))
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: mode \"%s\" of %s is not one of affine, mxfp4, mxfp8, nvfp4",
                       mode_name ? mode_name : "(no text)", what);
    rq_status st = read_small(object, "bits", what, &bits, err);
    if (st == RQ_OK) st = read_small(object, "group_size", what, &group_size, err);
    if (st != RQ_OK) return st;
    if (rq_quant_format_make(mode, bits, group_size, format, &detail) != RQ_OK)
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: %s: %s", what, detail.message);
    return RQ_OK;
}

rq_status rq_mlx_override(const json_t *quantization, const char *module, rq_mlx_origin *origin,
                          rq_quant_format *format, rq_error *err) {
    const json_t *value = json_object_get(quantization, module);
    if (!value) {
        *origin = RQ_MLX_SILENT;
        return RQ_OK;
    }
    if (json_is_false(value) || json_is_null(value)) {
        *origin = RQ_MLX_DENSE;
        return RQ_OK;
    }
    if (!json_is_true(value) && !json_is_object(value))
        return rq_fail(err, RQ_ERR_FORMAT, "config.json: the override of \"%s\" is neither an object nor a boolean",
                       module);
    *origin = json_is_true(value) ? RQ_MLX_TOP : RQ_MLX_OVERRIDE;
    return rq_mlx_read_format(json_is_true(value) ? quantization : value, module, format, err);
}

/* ---- shapes ---- */

/* Whether packed words and scale columns of these dtypes are this format; the logical width in *cols. */
static bool explains(const rq_quant_format *format, const rq_tensor_info *weight, const rq_tensor_info *scales,
                     uint64_t *cols) {
    uint64_t stream = 0;
    const unsigned last = weight->rank - 1;
    if ((scales->dtype == RQ_U8) != (format->mode != RQ_AFFINE)) return false;
    if (!rq_mul_u64(weight->shape[last], 32, &stream) || stream == 0 || stream % format->bits != 0) return false;
    *cols = stream / format->bits;
    return *cols % format->group_size == 0 && *cols / format->group_size == scales->shape[last];
}

static size_t candidates(const rq_tensor_info *weight, const rq_tensor_info *scales, rq_quant_format out[32]) {
    static const unsigned widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const rq_quant_format floats[] = {{RQ_MXFP4, 4, 32}, {RQ_MXFP8, 8, 32}, {RQ_NVFP4, 4, 16}};
    size_t n = 0;
    uint64_t cols = 0;
    for (size_t b = 0; b < RQ_COUNT_OF(widths); b++)
        for (size_t g = 0; g < RQ_COUNT_OF(groups); g++) {
            const rq_quant_format f = {RQ_AFFINE, widths[b], groups[g]};
            if (explains(&f, weight, scales, &cols)) out[n++] = f;
        }
    for (size_t i = 0; i < RQ_COUNT_OF(floats); i++)
        if (explains(&floats[i], weight, scales, &cols)) out[n++] = floats[i];
    return n;
}

/* Whether some dimension in config.json is `cols`: any integer of the top level or of text_config, or heads times
 * head_dim. */
static bool mentions_width(const json_t *config, uint64_t cols) {
    enum { PLACES = 2 };
    const json_t *const places[PLACES] = {config, json_object_get(config, "text_config")};
    for (size_t p = 0; p < PLACES; p++) {
        uint64_t heads = 0, head_dim = 0, product = 0;
        json_t *object = (json_t *)places[p]; /* jansson's iteration takes no const */
        const char *key = NULL;
        json_t *value = NULL;
        json_object_foreach(object, key, value) {
            if (json_is_integer(value) && json_integer_value(value) > 0 && (uint64_t)json_integer_value(value) == cols)
                return true;
        }
        if (rq_json_u64(object, "num_attention_heads", &heads) && rq_json_u64(object, "head_dim", &head_dim) &&
            rq_mul_u64(heads, head_dim, &product) && product == cols)
            return true;
    }
    return false;
}

static bool same_format(const rq_quant_format *a, const rq_quant_format *b) {
    return a->mode == b->mode && a->bits == b->bits && a->group_size == b->group_size;
}

/* Chooses among `n` candidates as the header says. False when several are as good. */
static bool choose(const json_t *config, const rq_quant_format *top, const rq_quant_format *list, size_t n,
                   const rq_tensor_info *weight, const rq_tensor_info *scales, rq_quant_format *format,
                   rq_mlx_origin *origin) {
    size_t mentioned = 0;
    *format = list[0];
    *origin = RQ_MLX_SILENT;
    for (size_t i = 0; i < n && top; i++)
        if (same_format(&list[i], top)) {
            *format = list[i];
            *origin = RQ_MLX_TOP;
            return true;
        }
    if (n == 1) return true;
    for (size_t i = 0; i < n; i++) {
        uint64_t cols = 0;
        if (!explains(&list[i], weight, scales, &cols) || !mentions_width(config, cols)) continue;
        *format = list[i];
        mentioned++;
    }
    return mentioned == 1;
}

/* ---- one module ---- */

static bool find_part(const rq_checkpoint *ckpt, const char *path, const char *part, size_t *i, bool *no_memory) {
    char *name = rq_format("%s.%s", path, part);
    *i = SIZE_MAX;
    if (!name) {
        *no_memory = true;
        return false;
    }
    const bool found = rq_checkpoint_find(ckpt, name, i);
    free(name);
    return found;
}

static const char *shape_text(const rq_tensor_info *t, char *text, size_t size) {
    size_t n = 0;
    text[0] = '\0';
    for (unsigned d = 0; d < t->rank && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
    return text;
}

static bool is_scale_dtype(rq_dtype dtype) {
    return dtype == RQ_U8 || dtype == RQ_F16 || dtype == RQ_BF16 || dtype == RQ_F32;
}

static bool same_shape(const rq_tensor_info *a, const rq_tensor_info *b, unsigned dims) {
    if (a->rank != b->rank) return false;
    for (unsigned d = 0; d < dims; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

/* Which parts there are, and their dtypes. */
static rq_status inspect_parts(const rq_checkpoint *ckpt, const char *path, rq_mlx_module *m, const char **code,
                               rq_error *err) {
    size_t global = 0;
    bool no_memory = false;
    const bool has_weight = find_part(ckpt, path, "weight", &m->weight, &no_memory);
    const bool has_scales = find_part(ckpt, path, "scales", &m->scales, &no_memory);
    const bool has_biases = find_part(ckpt, path, "biases", &m->biases, &no_memory);
    const bool has_global = find_part(ckpt, path, "global_scale", &global, &no_memory);
    if (no_memory) return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory", rq_checkpoint_directory(ckpt));
    if (has_global) {
        *code = "global-scale";
        return rq_fail(err, RQ_ERR_UNSUPPORTED, "module \"%s\" has a global_scale, which is not supported", path);
    }
    if (!has_weight) {
        *code = "missing-weight";
        return rq_fail(err, RQ_ERR_MISSING, "module \"%s\" has scales but no weight", path);
    }
    const rq_tensor_info *weight = rq_checkpoint_at(ckpt, m->weight);
    if (weight->dtype != RQ_U32) {
        *code = "weight-dtype";
        return rq_fail(err, RQ_ERR_FORMAT, "module \"%s\" has scales, but its weight is %s, expected packed U32", path,
                       rq_dtype_name(weight->dtype));
    }
    if (!has_scales) {
        *code = "missing-scales";
        return rq_fail(err, RQ_ERR_MISSING, "module \"%s\" has a packed weight (U32) but no scales", path);
    }
    const rq_tensor_info *scales = rq_checkpoint_at(ckpt, m->scales);
    if (!is_scale_dtype(scales->dtype)) {
        *code = "scales-dtype";
        return rq_fail(err, RQ_ERR_FORMAT, "the scales of module \"%s\" are %s, expected BF16, F16, F32 or U8", path,
                       rq_dtype_name(scales->dtype));
    }
    if (scales->dtype != RQ_U8 && !has_biases) {
        *code = "missing-biases";
        return rq_fail(err, RQ_ERR_MISSING, "module \"%s\" has %s scales, which makes it affine, but no biases", path,
                       rq_dtype_name(scales->dtype));
    }
    if (scales->dtype == RQ_U8 && has_biases) {
        *code = "scales-dtype";
        return rq_fail(err, RQ_ERR_FORMAT, "module \"%s\" has biases, which makes it affine, but U8 scales", path);
    }
    if (has_biases && rq_checkpoint_at(ckpt, m->biases)->dtype != scales->dtype) {
        *code = "scales-dtype";
        return rq_fail(err, RQ_ERR_FORMAT, "module \"%s\" has %s scales but %s biases", path,
                       rq_dtype_name(scales->dtype), rq_dtype_name(rq_checkpoint_at(ckpt, m->biases)->dtype));
    }
    return RQ_OK;
}

static rq_status inspect_shapes(const rq_checkpoint *ckpt, const char *path, const rq_mlx_module *m, rq_error *err) {
    char a[192], b[192];
    const rq_tensor_info *weight = rq_checkpoint_at(ckpt, m->weight), *scales = rq_checkpoint_at(ckpt, m->scales);
    if (weight->rank < 2 || !same_shape(weight, scales, weight->rank - 1))
        return rq_fail(err, RQ_ERR_SHAPE, "module \"%s\": scales [%s] do not fit the packed weight [%s]", path,
                       shape_text(scales, a, sizeof a), shape_text(weight, b, sizeof b));
    if (m->biases != SIZE_MAX && !same_shape(scales, rq_checkpoint_at(ckpt, m->biases), scales->rank))
        return rq_fail(err, RQ_ERR_SHAPE, "module \"%s\": scales [%s] and biases [%s] differ in shape", path,
                       shape_text(scales, a, sizeof a), shape_text(rq_checkpoint_at(ckpt, m->biases), b, sizeof b));
    return RQ_OK;
}

static rq_status inspect_format(const rq_checkpoint *ckpt, const char *path, rq_mlx_module *m, const char **code,
                                rq_error *err) {
    char a[192], b[192];
    const json_t *config = rq_checkpoint_config(ckpt), *quantization = rq_mlx_quantization(config);
    const rq_tensor_info *weight = rq_checkpoint_at(ckpt, m->weight), *scales = rq_checkpoint_at(ckpt, m->scales);
    rq_quant_format list[32], top = {0};
    *code = "override-invalid";
    rq_status st = rq_mlx_override(quantization, path, &m->origin, &m->format, err);
    if (st != RQ_OK) return st;
    if (m->origin == RQ_MLX_DENSE) {
        *code = "undeclared-quantized";
        return rq_fail(err, RQ_ERR_FORMAT, "module \"%s\" is packed, but config.json's override says it is dense",
                       path);
    }
    *code = "scales-shape";
    if (m->origin != RQ_MLX_SILENT) {
        if (explains(&m->format, weight, scales, &m->cols)) return RQ_OK;
        return rq_fail(
            err, RQ_ERR_SHAPE,
            "module \"%s\": config.json says %s, %u bits, groups of %u; weight [%s] with %s scales [%s] is not "
            "that",
            path, rq_quant_mode_name(m->format.mode), m->format.bits, m->format.group_size,
            shape_text(weight, a, sizeof a), rq_dtype_name(scales->dtype), shape_text(scales, b, sizeof b));
    }
    const size_t n = candidates(weight, scales, list);
    if (n == 0)
        return rq_fail(err, RQ_ERR_SHAPE, "module \"%s\": no format explains weight [%s] with %s scales [%s]", path,
                       shape_text(weight, a, sizeof a), rq_dtype_name(scales->dtype), shape_text(scales, b, sizeof b));
    const bool has_top = quantization && rq_mlx_read_format(quantization, "quantization", &top, NULL) == RQ_OK;
    if (!choose(config, has_top ? &top : NULL, list, n, weight, scales, &m->format, &m->origin)) {
        *code = "ambiguous-format";
        return rq_fail(
            err, RQ_ERR_SHAPE,
            "module \"%s\": weight [%s] with scales [%s] could be more than one format (%u bits in groups of "
            "%u, ...), and config.json does not say which",
            path, shape_text(weight, a, sizeof a), shape_text(scales, b, sizeof b), m->format.bits,
            m->format.group_size);
    }
    (void)explains(&m->format, weight, scales, &m->cols);
    return RQ_OK;
}

rq_status rq_mlx_inspect(const rq_checkpoint *ckpt, const char *path, rq_mlx_module *module, const char **code,
                         rq_error *err) {
    *module = (rq_mlx_module){0};
    *code = NULL;
    rq_status st = inspect_parts(ckpt, path, module, code, err);
    if (st != RQ_OK) return st;
    *code = "scales-shape";
    st = inspect_shapes(ckpt, path, module, err);
    if (st == RQ_OK) st = inspect_format(ckpt, path, module, code, err);
    if (st == RQ_OK) *code = NULL;
    return st;
}
