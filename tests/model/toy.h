/* Checkpoints without files: names and shapes by hand, as rq_source_init would deliver them. */
#ifndef TESTS_MODEL_TOY_H
#define TESTS_MODEL_TOY_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/plan_build.h"

typedef struct toy {
    json_t *config;
    rq_source source;
    rq_plan plan;
    rq_notes notes;
    rq_error err;
    rq_plan_options options;
} toy;

static inline void toy_add(toy *t, const char *name, uint64_t rows, uint64_t cols) {
    rq_source *s = &t->source;
    s->tensors = realloc(s->tensors, (s->count + 1) * sizeof *s->tensors);
    assert_non_null(s->tensors);
    char *copy = malloc(strlen(name) + 1);
    assert_non_null(copy);
    memcpy(copy, name, strlen(name) + 1);
    s->tensors[s->count++] = (rq_source_tensor){.name = copy,
                                                .dtype = RQ_F32,
                                                .rank = cols ? 2 : 1,
                                                .shape = {rows, cols},
                                                .data = s->count,
                                                .scales = SIZE_MAX,
                                                .biases = SIZE_MAX};
}

static inline int toy_order(const void *a, const void *b) {
    return strcmp(((const rq_source_tensor *)a)->name, ((const rq_source_tensor *)b)->name);
}

static inline void toy_sort(toy *t) {
    if (t->source.count) qsort(t->source.tensors, t->source.count, sizeof *t->source.tensors, toy_order);
}

static inline rq_source_tensor *toy_find(toy *t, const char *name) {
    for (size_t i = 0; i < t->source.count; i++)
        if (strcmp(t->source.tensors[i].name, name) == 0) return &t->source.tensors[i];
    return NULL;
}

static inline void toy_remove(toy *t, const char *name) {
    rq_source_tensor *found = toy_find(t, name);
    assert_non_null(found);
    free((char *)found->name);
    const size_t i = (size_t)(found - t->source.tensors);
    memmove(found, found + 1, (t->source.count - i - 1) * sizeof *found);
    t->source.count--;
}

static inline void toy_add_layer(toy *t, int layer, const char *part, uint64_t rows, uint64_t cols) {
    char name[160];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    toy_add(t, name, rows, cols);
}

/* A model of 2 or more layers. hidden 128, 4 heads of 32, 2 kv heads, inter 256, vocab 320. */
static inline toy toy_make(const char *family, int layers, bool head, bool biases) {
    toy t = {0};
    const bool qwen2 = strcmp(family, "qwen2") == 0, qwen3 = strcmp(family, "qwen3") == 0;
    t.config =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:b}", "model_type", family, "hidden_size",
                  128, "num_hidden_layers", layers, "intermediate_size", 256, "num_attention_heads", 4,
                  "num_key_value_heads", 2, "head_dim", 32, "vocab_size", 320, "rms_norm_eps", 1e-5, "rope_theta",
                  10000.0, "torch_dtype", "float32", "tie_word_embeddings", !head);
    assert_non_null(t.config);
    if (biases) {
        json_object_set_new(t.config, "attention_bias", json_true());
        json_object_set_new(t.config, "mlp_bias", json_true());
    }
    toy_add(&t, "model.embed_tokens.weight", 320, 128);
    toy_add(&t, "model.norm.weight", 128, 0);
    if (head) toy_add(&t, "lm_head.weight", 320, 128);
    for (int i = 0; i < layers; i++) {
        toy_add_layer(&t, i, "input_layernorm.weight", 128, 0);
        toy_add_layer(&t, i, "post_attention_layernorm.weight", 128, 0);
        toy_add_layer(&t, i, "self_attn.q_proj.weight", 128, 128);
        toy_add_layer(&t, i, "self_attn.k_proj.weight", 64, 128);
        toy_add_layer(&t, i, "self_attn.v_proj.weight", 64, 128);
        toy_add_layer(&t, i, "self_attn.o_proj.weight", 128, 128);
        toy_add_layer(&t, i, "mlp.gate_proj.weight", 256, 128);
        toy_add_layer(&t, i, "mlp.up_proj.weight", 256, 128);
        toy_add_layer(&t, i, "mlp.down_proj.weight", 128, 256);
        if (biases || qwen2) {
            toy_add_layer(&t, i, "self_attn.q_proj.bias", 128, 0);
            toy_add_layer(&t, i, "self_attn.k_proj.bias", 64, 0);
            toy_add_layer(&t, i, "self_attn.v_proj.bias", 64, 0);
        }
        if (biases) {
            toy_add_layer(&t, i, "self_attn.o_proj.bias", 128, 0);
            toy_add_layer(&t, i, "mlp.gate_proj.bias", 256, 0);
            toy_add_layer(&t, i, "mlp.up_proj.bias", 256, 0);
            toy_add_layer(&t, i, "mlp.down_proj.bias", 128, 0);
        }
        if (qwen3) {
            toy_add_layer(&t, i, "self_attn.q_norm.weight", 32, 0);
            toy_add_layer(&t, i, "self_attn.k_norm.weight", 32, 0);
        }
    }
    toy_sort(&t);
    rq_plan_options_init(&t.options);
    return t;
}

static inline rq_status toy_plan(toy *t) {
    return rq_plan_build(t->config, &t->source, NULL, &t->options, &t->plan, &t->notes, &t->err);
}

/* Plans again from scratch. */
static inline rq_status toy_replan(toy *t) {
    rq_plan_deinit(&t->plan);
    rq_notes_deinit(&t->notes);
    return toy_plan(t);
}

static inline void toy_free(toy *t) {
    rq_plan_deinit(&t->plan);
    rq_notes_deinit(&t->notes);
    for (size_t i = 0; i < t->source.count; i++) free((char *)t->source.tensors[i].name);
    free(t->source.tensors);
    json_decref(t->config);
    *t = (toy){0};
}

static inline const rq_plan_tensor *planned(const toy *t, const char *name) {
    for (size_t i = 0; i < t->plan.count; i++)
        if (strcmp(t->plan.tensors[i].name, name) == 0) return &t->plan.tensors[i];
    return NULL;
}

static inline const rq_note *noted(const toy *t, const char *code) {
    for (size_t i = 0; i < t->notes.count; i++)
        if (strcmp(t->notes.items[i].code, code) == 0) return &t->notes.items[i];
    return NULL;
}

/* "gain(model.norm) r1_in": the operations of one planned tensor as text. */
static inline const char *ops_text(const toy *t, const char *name) {
    static const char *const names[] = {"clone", "gain", "r1_in", "r2_in", "r1_out", "r2_out", "ones"};
    static char text[512];
    const rq_plan_tensor *p = planned(t, name);
    size_t used = 0;
    if (!p) return "(not planned)";
    text[0] = '\0';
    for (unsigned i = 0; i < p->n_ops; i++) {
        const rq_op *op = &p->ops[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "", names[op->kind]);
        if (op->kind == RQ_OP_GAIN_IN) used += (size_t)snprintf(text + used, sizeof text - used, "(%s)", op->gain);
        if (op->kind == RQ_OP_R2_IN || op->kind == RQ_OP_R2_OUT)
            used += (size_t)snprintf(text + used, sizeof text - used, "(%u)", op->layer);
    }
    return text;
}

static inline void assert_plans(toy *t) {
    const rq_status st = toy_plan(t);
    if (st) print_error("%s\n", t->err.message);
    assert_int_equal(st, RQ_OK);
}

static inline void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

#endif
