/* A small random Llama checkpoint on disk, for tests that need a directory. Weights are a function of the tensor's
 * place, so tests can recompute them. Everything lives under a fresh temporary directory. */
#ifndef TINY_LLAMA_H
#define TINY_LLAMA_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/kernels.h"
#include "rotq/rotq.h"

typedef struct tiny_llama {
    size_t hidden, inter, heads, kv_heads, head_dim, layers, vocab;
    bool tied, bias;
} tiny_llama;

static inline char *tiny_temporary_directory(void) {
    char *path = rq_strdup("/tmp/rotq-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline float tiny_value(uint64_t tensor, uint64_t i) { /* about N(0, 0.02) with a few loud columns */
    uint64_t z = (tensor + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const double u = (double)(z & 0xffff) + (double)(z >> 16 & 0xffff) + (double)(z >> 32 & 0xffff) + (double)(z >> 48);
    return (float)((u - 131070.0) / 37837.0 * 0.02 * (i % 61 == 7 ? 8 : 1));
}

typedef struct tiny_tensor {
    char name[96];
    unsigned rank;
    uint64_t shape[2];
    bool gain;
} tiny_tensor;

static inline size_t tiny_tensors(const tiny_llama *m, tiny_tensor *out) {
    size_t n = 0;
#define ADD(rank_, a, b, gain_, ...)                                                        \
    do {                                                                                    \
        snprintf(out[n].name, sizeof out[n].name, __VA_ARGS__);                             \
        out[n].rank = rank_, out[n].shape[0] = a, out[n].shape[1] = b, out[n].gain = gain_; \
        n++;                                                                                \
    } while (0)
    const uint64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    ADD(2, m->vocab, m->hidden, false, "model.embed_tokens.weight");
    for (size_t l = 0; l < m->layers; l++) {
        ADD(1, m->hidden, 0, true, "model.layers.%zu.input_layernorm.weight", l);
        ADD(1, m->hidden, 0, true, "model.layers.%zu.post_attention_layernorm.weight", l);
        ADD(2, q, m->hidden, false, "model.layers.%zu.self_attn.q_proj.weight", l);
        ADD(2, kv, m->hidden, false, "model.layers.%zu.self_attn.k_proj.weight", l);
        ADD(2, kv, m->hidden, false, "model.layers.%zu.self_attn.v_proj.weight", l);
        ADD(2, m->hidden, q, false, "model.layers.%zu.self_attn.o_proj.weight", l);
        ADD(2, m->inter, m->hidden, false, "model.layers.%zu.mlp.gate_proj.weight", l);
        ADD(2, m->inter, m->hidden, false, "model.layers.%zu.mlp.up_proj.weight", l);
        ADD(2, m->hidden, m->inter, false, "model.layers.%zu.mlp.down_proj.weight", l);
        if (m->bias) {
            ADD(1, q, 0, false, "model.layers.%zu.self_attn.q_proj.bias", l);
            ADD(1, kv, 0, false, "model.layers.%zu.self_attn.k_proj.bias", l);
            ADD(1, kv, 0, false, "model.layers.%zu.self_attn.v_proj.bias", l);
            ADD(1, m->hidden, 0, false, "model.layers.%zu.self_attn.o_proj.bias", l);
        }
    }
    ADD(1, m->hidden, 0, true, "model.norm.weight");
    if (!m->tied) ADD(2, m->vocab, m->hidden, false, "lm_head.weight");
#undef ADD
    return n;
}

/* Element i of tensor t as it is stored: rounded to bf16. */
static inline float tiny_stored(const tiny_tensor *t, size_t index, uint64_t i) {
    const float v = t->gain ? 1.0f + 10.0f * tiny_value(index, i) : tiny_value(index, i);
    return rq_bf16_to_f32(rq_f32_to_bf16(v));
}

static inline void tiny_write_config(const tiny_llama *m, const char *directory) {
    char *path = rq_path_join(directory, "config.json");
    char *text =
        rq_format("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": %zu, "
                  "\"intermediate_size\": %zu, \"num_hidden_layers\": %zu, \"num_attention_heads\": %zu, "
                  "\"num_key_value_heads\": %zu, \"head_dim\": %zu, \"vocab_size\": %zu, \"rms_norm_eps\": 1e-5, "
                  "\"rope_theta\": 10000.0, \"tie_word_embeddings\": %s, \"attention_bias\": %s, \"torch_dtype\": "
                  "\"bfloat16\"}\n",
                  m->hidden, m->inter, m->layers, m->heads, m->kv_heads, m->head_dim, m->vocab,
                  m->tied ? "true" : "false", m->bias ? "true" : "false");
    assert_int_equal(rq_write_file(path, text, strlen(text), NULL), RQ_OK);
    free(path);
    free(text);
}

/* Writes the checkpoint as bf16 into `directory` (created). */
static inline void tiny_write(const tiny_llama *m, const char *directory) {
    tiny_tensor *tensors = calloc(16 * m->layers + 8, sizeof *tensors);
    const size_t n = tiny_tensors(m, tensors);
    rq_tensor_info *infos = calloc(n, sizeof *infos);
    for (size_t i = 0; i < n; i++) {
        const uint64_t elements = tensors[i].shape[0] * (tensors[i].rank == 2 ? tensors[i].shape[1] : 1);
        infos[i] =
            (rq_tensor_info){.name = tensors[i].name, .dtype = RQ_BF16, .rank = tensors[i].rank, .bytes = 2 * elements};
        infos[i].shape[0] = tensors[i].shape[0], infos[i].shape[1] = tensors[i].shape[1];
    }
    char *header = NULL;
    size_t bytes = 0;
    rq_error err;
    assert_int_equal(rq_safetensors_build_header(infos, n, NULL, &header, &bytes, &err), RQ_OK);
    (void)mkdir(directory, 0777);
    tiny_write_config(m, directory);
    char *path = rq_path_join(directory, "model.safetensors");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, 1, bytes, f), bytes);
    for (size_t i = 0; i < n; i++) {
        size_t t = 0;
        while (strcmp(tensors[t].name, infos[i].name) != 0) t++;
        for (uint64_t e = 0; e < infos[i].bytes / 2; e++) {
            const uint16_t h = rq_f32_to_bf16(tiny_stored(&tensors[t], t, e));
            assert_int_equal(fwrite(&h, 2, 1, f), 1);
        }
    }
    assert_int_equal(fclose(f), 0);
    free(path);
    free(header);
    free(infos);
    free(tensors);
}

/* All elements of a stored floating-point tensor, as f32. malloc'ed. */
static inline float *tiny_read(const char *directory, const char *name, size_t *count) {
    rq_error err = {0};
    rq_checkpoint *ckpt = NULL;
    if (rq_checkpoint_open(directory, &ckpt, NULL, &err) != RQ_OK) fail_msg("%s", err.message);
    size_t i = 0;
    if (!rq_checkpoint_find(ckpt, name, &i)) fail_msg("%s is not in %s", name, directory);
    const rq_tensor_info *t = rq_checkpoint_at(ckpt, i);
    const size_t n = (size_t)t->bytes / rq_dtype_bytes(t->dtype);
    void *raw = malloc((size_t)t->bytes + 1);
    float *out = malloc(n * sizeof *out + 1);
    assert_int_equal(rq_safetensors_read(rq_checkpoint_file(ckpt, i), t->offset, raw, (size_t)t->bytes, &err), RQ_OK);
    for (size_t e = 0; e < n; e++)
        out[e] = t->dtype == RQ_BF16 ? rq_bf16_to_f32(((uint16_t *)raw)[e]) : ((float *)raw)[e];
    free(raw);
    rq_checkpoint_close(ckpt);
    *count = n;
    return out;
}

#endif
