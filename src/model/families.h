/* Model families as data: which tensors touch the residual stream, and how. docs/fold.md explains the tables.
 *
 * A corridor is one template of weights ("model.layers.{}.mlp.up_proj"; {} is the layer). Its role says what the fold
 * does to it; its dimensions are symbols of config.json, so every shape can be checked before a weight is read. The
 * planner walks these tables and knows no names. */
#ifndef RQ_FAMILIES_H
#define RQ_FAMILIES_H

#include <stdbool.h>
#include <stddef.h>

typedef enum rq_dim {
    RQ_DIM_NONE, /* the tensor has no such dimension */
    RQ_DIM_V,    /* vocab_size */
    RQ_DIM_H,    /* hidden_size */
    RQ_DIM_Q,    /* num_attention_heads * head_dim */
    RQ_DIM_KV,   /* num_key_value_heads * head_dim */
    RQ_DIM_I,    /* intermediate_size */
    RQ_DIM_HD,   /* head_dim */
    RQ_DIM_COUNT
} rq_dim;

typedef enum rq_corridor_role {
    RQ_ROLE_EMBEDDING, /* writes the residual stream, one row per token: E R1 */
    RQ_ROLE_READER,    /* reads it behind the RMSNorm `norm`: W diag(g) R1 */
    RQ_ROLE_V,         /* a reader whose output is head space: W diag(g) R1, then R2^T per head (bias too) */
    RQ_ROLE_O,         /* writes it from head space: R1^T W (bias too), R2 per head on the input */
    RQ_ROLE_WRITER,    /* R1^T W (bias too) */
    RQ_ROLE_HEAD,      /* the reader behind the final norm; made from the embedding when the model is tied */
    RQ_ROLE_NORM,      /* an RMSNorm on the stream: its gain moves into the readers and becomes one */
    RQ_ROLE_HEAD_NORM  /* a norm in head space, which no rotation enters: copied */
} rq_corridor_role;

typedef enum rq_bias_rule {
    RQ_BIAS_NEVER,
    RQ_BIAS_REQUIRED,
    RQ_BIAS_IF_ATTENTION_BIAS, /* config.attention_bias decides */
    RQ_BIAS_IF_MLP_BIAS        /* config.mlp_bias decides */
} rq_bias_rule;

typedef struct rq_corridor {
    const char *module; /* weight and bias are module + ".weight", ".bias" */
    const char *norm;   /* readers: module of the norm in front of them */
    rq_corridor_role role;
    rq_dim rows, cols;
    rq_bias_rule bias;
} rq_corridor;

typedef enum rq_head_dim_rule {
    RQ_HEAD_DIM_OPTIONAL, /* config.head_dim, hidden / heads when absent or null */
    RQ_HEAD_DIM_DERIVED,  /* always hidden / heads; config.head_dim is not read */
    RQ_HEAD_DIM_REQUIRED
} rq_head_dim_rule;

typedef struct rq_family {
    const char *name; /* model_type */
    const rq_corridor *corridors;
    size_t count;
    rq_head_dim_rule head_dim;
    bool kv_heads_required; /* else num_attention_heads when absent */
    bool reads_bias_flags;  /* the loader honours attention_bias and mlp_bias */
    bool r2;                /* nothing but a weighted mean over positions stands between v and o */
} rq_family;

/* NULL when there is no table for this model_type. */
const rq_family *rq_family_find(const char *model_type);

/* "llama, mistral, qwen2, qwen3" */
const char *rq_family_names(void);

/* Why this model_type without a table cannot be rotated; NULL when we have never heard of it. Static text. */
const char *rq_family_refusal(const char *model_type);

/* Why not even plain quantization gives a model that loads; NULL when nothing is known against it. */
const char *rq_family_plain_refusal(const char *model_type);

/* Shell patterns of tensors that loaders recompute and drop (rotary tables); NULL-terminated. */
extern const char *const rq_ignored_tensors[];

#endif
