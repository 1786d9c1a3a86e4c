/* JSON as the stock tools write it, and small JSON files of a model directory.
 *
 * jansson prints every real with 17 digits (1e-05 becomes 1.0000000000000001e-05), so a config copied by it would
 * differ from its source in every eps. This writer prints the shortest text that reads back to the same double. */
#ifndef RQ_JSON_TEXT_H
#define RQ_JSON_TEXT_H

#include <jansson.h>

#include "rotq/error.h"

/* Indented by 4, ASCII only, keys in the order of insertion, newline at the end. Owned; NULL when out of memory. */
char *rq_json_pretty(const json_t *value);

/* As rq_json_pretty, with the top-level keys sorted: config.json as mlx-lm saves it. */
char *rq_json_pretty_sorted(const json_t *object);

/* Every object with sorted keys, recursively: a new reference; NULL when out of memory. */
json_t *rq_json_sorted_copy(const json_t *value);

/* Parses directory/name, an object. *value is NULL when the file does not exist. */
RQ_CHECK rq_status rq_json_read_side_file(const char *directory, const char *name, json_t **value, rq_error *err);

#endif
