/* config.json -> rq_model_config, with the defaults that mlx-lm's loaders apply.
 *
 * Keys are looked up at the top level, then under `text_config`. */
#ifndef RQ_MODEL_CONFIG_H
#define RQ_MODEL_CONFIG_H

#include <jansson.h>

#include "model/families.h"
#include "rotq/plan.h"

/* Top level, else text_config; NULL when absent or null. Borrowed. */
const json_t *rq_config_get(const json_t *config, const char *key);

/* Everything but the tie. family NULL: nothing is required, what is absent is 0.
 * RQ_ERR_FORMAT names the key, what it holds, and what was expected. */
RQ_CHECK rq_status rq_model_config_read(const json_t *config, const rq_family *family, rq_model_config *out,
                                        rq_error *err);

/* The tie. The flag at the top rules, else text_config's, else `absent` (RQ_TIE_*), else the loaders' default: tied,
 * unless a head is stored, which makes the absence ambiguous (RQ_ERR_UNSUPPORTED). Adds "tie-flag" notes. */
RQ_CHECK rq_status rq_model_config_tie(const json_t *config, bool head_is_stored, int absent, rq_model_config *out,
                                       rq_notes *notes, rq_error *err);

/* Size of a symbolic dimension. */
uint64_t rq_model_config_dim(const rq_model_config *config, rq_dim dim);

/* "eos-disagrees" when config.json, generation_config.json and tokenizer_config.json name different end tokens. The
 * files are only looked at, never judged: a malformed one is no finding of ours. */
void rq_note_eos(const json_t *config, const char *directory, rq_notes *notes);

#endif
