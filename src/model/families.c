#include "model/families.h"

#include <string.h>

#include "base/base.h"

#define LAYER "model.layers.{}."
#define INPUT_NORM LAYER "input_layernorm"
#define POST_NORM LAYER "post_attention_layernorm"
#define FINAL_NORM "model.norm"

/* What the four families share; they differ in biases (by argument) and in q_norm and k_norm. */
#define TRUNK(qkv_bias, o_bias, mlp_bias)                                                      \
    {"model.embed_tokens", NULL, RQ_ROLE_EMBEDDING, RQ_DIM_V, RQ_DIM_H, RQ_BIAS_NEVER},        \
        {INPUT_NORM, NULL, RQ_ROLE_NORM, RQ_DIM_H, RQ_DIM_NONE, RQ_BIAS_NEVER},                \
        {LAYER "self_attn.q_proj", INPUT_NORM, RQ_ROLE_READER, RQ_DIM_Q, RQ_DIM_H, qkv_bias},  \
        {LAYER "self_attn.k_proj", INPUT_NORM, RQ_ROLE_READER, RQ_DIM_KV, RQ_DIM_H, qkv_bias}, \
        {LAYER "self_attn.v_proj", INPUT_NORM, RQ_ROLE_V, RQ_DIM_KV, RQ_DIM_H, qkv_bias},      \
        {LAYER "self_attn.o_proj", NULL, RQ_ROLE_O, RQ_DIM_H, RQ_DIM_Q, o_bias},               \
        {POST_NORM, NULL, RQ_ROLE_NORM, RQ_DIM_H, RQ_DIM_NONE, RQ_BIAS_NEVER},                 \
        {LAYER "mlp.gate_proj", POST_NORM, RQ_ROLE_READER, RQ_DIM_I, RQ_DIM_H, mlp_bias},      \
        {LAYER "mlp.up_proj", POST_NORM, RQ_ROLE_READER, RQ_DIM_I, RQ_DIM_H, mlp_bias},        \
        {LAYER "mlp.down_proj", NULL, RQ_ROLE_WRITER, RQ_DIM_H, RQ_DIM_I, mlp_bias},           \
        {FINAL_NORM, NULL, RQ_ROLE_NORM, RQ_DIM_H, RQ_DIM_NONE, RQ_BIAS_NEVER}, {              \
        "lm_head", FINAL_NORM, RQ_ROLE_HEAD, RQ_DIM_V, RQ_DIM_H, RQ_BIAS_NEVER                 \
    }

/* mlx-lm loads mistral with its llama class, flags included. */
static const rq_corridor llama[] = {
    TRUNK(RQ_BIAS_IF_ATTENTION_BIAS, RQ_BIAS_IF_ATTENTION_BIAS, RQ_BIAS_IF_MLP_BIAS),
};

static const rq_corridor qwen2[] = {
    TRUNK(RQ_BIAS_REQUIRED, RQ_BIAS_NEVER, RQ_BIAS_NEVER),
};

static const rq_corridor qwen3[] = {
    TRUNK(RQ_BIAS_NEVER, RQ_BIAS_NEVER, RQ_BIAS_NEVER),
    {LAYER "self_attn.q_norm", NULL, RQ_ROLE_HEAD_NORM, RQ_DIM_HD, RQ_DIM_NONE, RQ_BIAS_NEVER},
    {LAYER "self_attn.k_norm", NULL, RQ_ROLE_HEAD_NORM, RQ_DIM_HD, RQ_DIM_NONE, RQ_BIAS_NEVER},
};

static const rq_family families[] = {
    {"llama", llama, RQ_COUNT_OF(llama), RQ_HEAD_DIM_OPTIONAL, false, true, true},
    {"mistral", llama, RQ_COUNT_OF(llama), RQ_HEAD_DIM_OPTIONAL, false, true, true},
    {"qwen2", qwen2, RQ_COUNT_OF(qwen2), RQ_HEAD_DIM_DERIVED, true, false, true},
    {"qwen3", qwen3, RQ_COUNT_OF(qwen3), RQ_HEAD_DIM_REQUIRED, true, false, true},
};

static const char output_norms[] = "its blocks end in a norm whose gain acts elementwise on what is added to the "
                                   "residual stream, so a rotation of the stream is not exact";
static const char layer_norm[] = "its LayerNorm subtracts the mean, which a rotation of the residual stream changes";
static const char channel_gates[] = "it mixes per-layer embeddings into the residual stream through elementwise "
                                    "gates, which a rotation does not pass";
static const char no_table[] = "a fold may exist, but there is no corridor table for it yet";

/* First match wins: narrower patterns stand first. Legality is section "Where R1 is not legal" of docs/fold.md. */
static const struct {
    const char *pattern, *reason;
} refusals[] = {
    {"gemma3n*", channel_gates}, {"gemma", no_table},        {"gemma*", output_norms},  {"olmo2", output_norms},
    {"olmo3", output_norms},     {"glm4", output_norms},     {"exaone4", output_norms}, {"cohere*", layer_norm},
    {"phi", layer_norm},         {"phi-msft", layer_norm},   {"phixtral", layer_norm},  {"phimoe", layer_norm},
    {"phi3small", layer_norm},   {"gpt_neox", layer_norm},   {"gptj", layer_norm},      {"gpt2", layer_norm},
    {"gpt_bigcode", layer_norm}, {"starcoder2", layer_norm}, {"stablelm", layer_norm},  {"olmo", layer_norm},
    {"nemotron", layer_norm},    {"dbrx", layer_norm},       {"bloom", layer_norm},     {"opt", layer_norm},
    {"granite*", no_table},      {"minicpm*", no_table},     {"qwen3_5*", no_table},    {"qwen3_next*", no_table},
    {"qwen2_moe", no_table},     {"qwen3_moe", no_table},    {"qwen2_vl", no_table},    {"qwen2_5_vl", no_table},
    {"qwen3_vl*", no_table},     {"mixtral", no_table},      {"mistral3", no_table},    {"ministral3", no_table},
    {"llama4*", no_table},       {"gpt_oss", no_table},      {"deepseek*", no_table},   {"glm*", no_table},
    {"phi3", no_table},          {"smollm3", no_table},
};

const char *const rq_ignored_tensors[] = {"*.rotary_emb.inv_freq", NULL};

const rq_family *rq_family_find(const char *model_type) {
    for (size_t i = 0; i < RQ_COUNT_OF(families); i++)
        if (strcmp(families[i].name, model_type) == 0) return &families[i];
    return NULL;
}

const char *rq_family_names(void) { return "llama, mistral, qwen2, qwen3"; }

const char *rq_family_refusal(const char *model_type) {
    for (size_t i = 0; i < RQ_COUNT_OF(refusals); i++)
        if (rq_glob_match(refusals[i].pattern, model_type)) return refusals[i].reason;
    return NULL;
}

const char *rq_family_plain_refusal(const char *model_type) {
    if (strcmp(model_type, "gpt2") == 0)
        return "its linear weights are stored transposed and the loader turns them, which packed weights do not "
               "survive";
    return NULL;
}
