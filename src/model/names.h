/* Lists of tensor names for people: layers collapse, long lists are cut.
 *
 *   model.layers.*.self_attn.sink_proj.weight (30), lm_head.bias, and 4 more */
#ifndef RQ_NAMES_H
#define RQ_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* `limit` patterns at most. Owned; NULL when out of memory. */
char *rq_names_summary(const char *const *names, size_t count, size_t limit);

#endif
