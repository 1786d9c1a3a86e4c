/* Planning: from config and tensor names and shapes only, what happens to every output tensor. No weight is read.
 *
 * The WeightTransform of a family is a table of corridors (src/model/families.c): which tensors read the residual
 * stream behind which RMSNorm, which write it, which pair lives in head space. The planner instantiates the table per
 * layer, claims every tensor of the checkpoint, and fails on what nothing claims. Adding a family means adding a table.
 *
 * The fold (docs/fold.md), rows are outputs: W [out, in], y = x W^T + b
 *   untie -> gamma: readers W diag(g), norm := 1 -> R1: readers W R1, writers R1^T W and R1^T b, embeddings E R1
 *         -> R2 per head: v_proj R2^T on output blocks (bias too), o_proj R2 on input blocks -> quantize
 * All operations on one matrix are applied in one pass with one rounding. */
#ifndef ROTQ_PLAN_H
#define ROTQ_PLAN_H

#include "rotq/checkpoint.h"
#include "rotq/rotation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names as in config.json; RQ_DIM 0 where the family has none. */
typedef struct rq_model_config {
    char model_type[64];
    uint64_t hidden_size, num_hidden_layers, intermediate_size, num_attention_heads, num_key_value_heads, head_dim,
        vocab_size;
    bool tied;          /* effective: lm_head is the embedding */
    bool tied_explicit; /* the config says so, rather than a default */
    bool attention_bias, mlp_bias;
} rq_model_config;

/* Operations on one weight, in the order in which they are listed in rq_plan_tensor.ops. In dimension = columns. */
typedef enum rq_op_kind {
    RQ_OP_CLONE,   /* the source is another tensor (untying): lm_head from embed_tokens */
    RQ_OP_GAIN_IN, /* W diag(gain): `gain` names the RMSNorm weight */
    RQ_OP_R1_IN,   /* W R1 */
    RQ_OP_R2_IN,   /* W blockdiag(R2) over input blocks of head_dim */
    RQ_OP_R1_OUT,  /* R1^T W; for a bias R1^T b */
    RQ_OP_R2_OUT,  /* blockdiag(R2)^T W over output blocks of head_dim; for a bias likewise */
    RQ_OP_SET_ONES /* the norm whose gain was folded */
} rq_op_kind;

typedef struct rq_op {
    rq_op_kind kind;
    const char *gain; /* RQ_OP_GAIN_IN: source name of the norm weight; owned by the plan */
    unsigned layer;   /* R2: which one */
} rq_op;

#define RQ_MAX_OPS 6

typedef struct rq_plan_tensor {
    const char *name;   /* output name of the weight, "model.layers.0.mlp.up_proj.weight"; owned by the plan */
    const char *module; /* name without ".weight" when it is a Linear or Embedding weight, else NULL */
    const rq_source_tensor *source; /* borrowed from rq_source; never NULL */
    const char *role; /* static text: "embedding", "reader", "writer", "head", "norm", "bias", "v", "o", "copy"; without
                         a family also "linear" */
    rq_op ops[RQ_MAX_OPS];
    unsigned n_ops;
    unsigned rank;
    uint64_t shape[RQ_MAX_RANK];
    bool quantize;
    rq_quant_format format;   /* when quantize */
    rq_dtype dtype;           /* stored dtype when dense; dtype of scales and biases when quantized (affine) */
    const char *dense_reason; /* static text when a quantizable module stays dense against the request, else NULL */
    uint64_t bytes;           /* stored, all parts */
} rq_plan_tensor;

typedef enum rq_rule_action { RQ_RULE_QUANTIZE, RQ_RULE_DENSE } rq_rule_action;

typedef struct rq_plan_options {
    rq_rotation_spec rotation;
    bool keep_tied;     /* refuse to untie; legal only if the final gain is one (checked when weights are read) */
    bool allow_unknown; /* pass unknown tensors through instead of failing */
    bool dequantize;    /* accept an MLX-quantized source */
    bool strict;        /* a module left dense against the request is an error */
    bool quantize;
    rq_quant_format format; /* default for all modules */
    const char *recipe;     /* NULL, a named recipe, or a path to a JSON recipe file; borrowed */
    rq_scales_method scales;
    rq_dtype dtype; /* BF16, F16, F32 of everything dense, and of scales and biases */
    enum { RQ_TIE_AUTO, RQ_TIE_TIED, RQ_TIE_UNTIED } tie; /* what a missing tie_word_embeddings means */
} rq_plan_options;

RQ_EXPORT void
rq_plan_options_init(rq_plan_options *options); /* hadamard, seed 0, R2 hadamard, no quantization, BF16 */

typedef struct rq_plan {
    rq_model_config config;
    const char *family; /* "llama", ... or "generic" when nothing is folded and the family is unknown; static */
    bool folded;        /* false: plain copy / quantization, nothing rotated */
    bool untied;        /* lm_head was made from embed_tokens */
    bool requires_neutral_final_gain; /* keep_tied: the converter must find model.norm.weight == 1 */
    const char *final_norm;           /* its source name; owned; NULL when not folded */
    const char
        *dropped_head;       /* tied, yet lm_head is stored: source name of the head that is not used; owned; or NULL */
    size_t head_dim_r2;      /* 0 when R2 is off */
    rq_plan_tensor *tensors; /* [count], sorted by name; owned */
    size_t count;
    uint64_t parameters;  /* logical weights and biases, as mlx-lm counts them (scales and biases of groups not) */
    uint64_t total_bytes; /* of all stored tensors */
    uint64_t quantized_modules, dense_modules;
    double bits_per_weight; /* 8 * total_bytes / parameters: mlx-lm's number */
    rq_plan_options options;
    void *arena; /* owns every string */
} rq_plan;

/* Errors: RQ_ERR_UNSUPPORTED (family unknown or not foldable: the reason, the known families, the tensors without a
 * role; a quantized source without --dequantize), RQ_ERR_MISSING (a tensor that the table needs), RQ_ERR_SHAPE (a
 * tensor whose shape disagrees with config), RQ_ERR_USAGE (recipe rule that matches nothing). Notes: "left-dense",
 * "unknown-tensor", "stored-head-dropped", "tie-flag", "eos-disagrees" (generation_config against config and
 * tokenizer_config), ... */
RQ_EXPORT RQ_CHECK rq_status rq_plan_make(const rq_source *source, const rq_plan_options *options, rq_plan *plan,
                                          rq_notes *notes, rq_error *err);
RQ_EXPORT void rq_plan_deinit(rq_plan *plan);

/* The plan as a table for people, or JSON for programs. malloc'ed text; NULL when out of memory. peak_memory_bytes is
 * the converter's own estimate (rq_convert_memory). */
RQ_EXPORT char *rq_plan_table(const rq_plan *plan, uint64_t peak_memory_bytes);
RQ_EXPORT struct json_t *rq_plan_json(const rq_plan *plan, uint64_t peak_memory_bytes);

/* config.json of the output: tie flags, rope spelling, quantization and its mirror, foreign quantization removed.
 * Owned. */
RQ_EXPORT RQ_CHECK rq_status rq_plan_output_config(const rq_plan *plan, const rq_source *source, struct json_t **config,
                                                   rq_error *err);

/* Whether a directory holds every tensor that its family needs, in the shapes that its config promises, and nothing
 * that its family does not know: what `rq_check_directory` cannot tell without an index. A finding is a warning note
 * ("incomplete"). RQ_ERR_MISMATCH when there is one. */
RQ_EXPORT RQ_CHECK rq_status rq_check_complete(const char *directory, rq_notes *notes, rq_error *err);

#ifdef __cplusplus
}
#endif
#endif
