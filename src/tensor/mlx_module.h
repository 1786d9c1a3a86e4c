/* Quantized MLX modules as a directory holds them: what config.json says about module P, and whether P.weight (packed,
 * U32), P.scales and P.biases bear it out. One set of rules for reading a source and for checking a finished model. */
#ifndef RQ_MLX_MODULE_H
#define RQ_MLX_MODULE_H

#include <jansson.h>

#include "rotq/checkpoint.h"

/* config.json's MLX quantization object: `quantization`, or `quantization_config` when that is MLX's mirror (bits and
 * group_size, no quant_method). NULL when there is none. Borrowed. */
const json_t *rq_mlx_quantization(const json_t *config);

/* The foreign scheme that config.json declares ("gptq", "fp8", ...; "unknown" when it does not name itself), or NULL.
 * Like mlx-lm, an MLX `quantization` beside it wins. Borrowed from config or static. */
const char *rq_foreign_quantization(const json_t *config);

/* The format of the object's own keys group_size, bits and mode, absent ones at the mode's default, as mlx-lm passes
 * them on. RQ_ERR_FORMAT when a value is illegal. */
RQ_CHECK rq_status rq_mlx_read_format(const json_t *object, const char *what, rq_quant_format *format, rq_error *err);

typedef enum rq_mlx_origin {
    RQ_MLX_SILENT,   /* neither override nor top level: taken from the shapes, or there is none */
    RQ_MLX_DENSE,    /* override false or null */
    RQ_MLX_OVERRIDE, /* override with a format */
    RQ_MLX_TOP       /* the top level's format */
} rq_mlx_origin;

/* What the object says about exactly this module path: SILENT, DENSE, OVERRIDE, or (override true) TOP. */
RQ_CHECK rq_status rq_mlx_override(const json_t *quantization, const char *module, rq_mlx_origin *origin,
                                   rq_quant_format *format, rq_error *err);

typedef struct rq_mlx_module {
    size_t weight, scales, biases; /* in the checkpoint; biases SIZE_MAX for the float modes */
    rq_quant_format format;
    rq_mlx_origin origin; /* of the format */
    uint64_t cols;        /* logical */
} rq_mlx_module;

/* Looks at module `path`, of which at least one packed part exists. On a defect returns its status, the sentence in err
 * and in *code a static identifier ("missing-scales", "scales-shape", ...; NULL when memory ran out).
 *
 * Format: the override if there is one. Otherwise the shapes leave up to three candidates, since they give only
 * bits * group_size: the top level's format if it is among them, else the only one, else the only one whose width
 * config.json mentions (hidden_size, ...). mlx-lm, which knows the width from the model class, needs no such rule;
 * where a wrong top level happens to explain the shapes, the planner's comparison with config.json finds the width
 * wrong. */
RQ_CHECK rq_status rq_mlx_inspect(const rq_checkpoint *ckpt, const char *path, rq_mlx_module *module, const char **code,
                                  rq_error *err);

#endif
