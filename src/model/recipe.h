/* Recipes: which module gets how many bits.
 *
 * A recipe is one of the named ones below or a JSON file (docs/recipes.md):
 *   {"default": {"bits": 4, "group_size": 64},
 *    "rules": [{"match": "*.mlp.*", "bits": 3}, {"match": "lm_head", "quantize": false}]}
 * Rules are shell patterns on module names; the first that matches decides. What a rule leaves out comes from the
 * default, and what the default leaves out from the options, as long as the mode is the same; another mode brings its
 * own bits and group size.
 *
 * Named: "tq-mixed" (4 bits, MLP 3), and mlx-lm 0.32.2's "mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6". */
#ifndef RQ_RECIPE_H
#define RQ_RECIPE_H

#include <jansson.h>

#include "rotq/plan.h"

typedef struct rq_verdict {
    rq_rule_action action;
    rq_quant_format format; /* RQ_RULE_QUANTIZE */
} rq_verdict;

typedef struct rq_recipe_rule {
    char *match; /* owned */
    rq_verdict verdict;
} rq_recipe_rule;

typedef struct rq_recipe {
    char *name;     /* of a named recipe, else NULL; owned */
    json_t *source; /* a JSON recipe as it was read, else NULL; owned */
    char *label;    /* for messages: the name, or the file's name; owned */
    rq_verdict fallback;
    rq_recipe_rule *rules; /* [count]; owned */
    size_t count;
    unsigned low_bits, high_bits; /* mixed_*: positions decide, not patterns; else 0 */
} rq_recipe;

/* `text` is a name or the path of a JSON file. `base` is the format that the options ask for.
 * RQ_ERR_USAGE: an unknown name, an unknown key, a missing "match", an illegal format. */
RQ_CHECK rq_status rq_recipe_open(const char *text, const rq_quant_format *base, rq_recipe *recipe, rq_error *err);

/* From a JSON value in memory; `label` names it in errors. */
RQ_CHECK rq_status rq_recipe_parse(const json_t *value, const char *label, const rq_quant_format *base,
                                   rq_recipe *recipe, rq_error *err);
void rq_recipe_deinit(rq_recipe *recipe);

/* One verdict per module. `others` are names of parts that cannot be quantized: a rule that matches some of them is
 * told so in a "recipe-declined" note. A rule that every module it matches reached too late is a "recipe-shadowed"
 * warning; a rule that matches no module is RQ_ERR_USAGE. */
RQ_CHECK rq_status rq_recipe_apply(const rq_recipe *recipe, const char *const *modules, size_t n_modules,
                                   const char *const *others, size_t n_others, uint64_t n_layers, rq_verdict *verdicts,
                                   rq_notes *notes, rq_error *err);

#endif
