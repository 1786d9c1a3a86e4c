/* JSON files of a model directory, read the way we want all of them read: size bounded before anything is allocated,
 * duplicate keys refused (two readers would pick different values), the root an object, errors with file, line and
 * column. */
#ifndef RQ_JSON_UTIL_H
#define RQ_JSON_UTIL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rotq/error.h"

#define RQ_CONFIG_BYTES_MAX ((size_t)16 << 20) /* real ones are a few KB */

/* `label` stands for the file in errors. On success *json is a new reference to an object. */
RQ_CHECK rq_status rq_json_parse(const char *label, const char *text, size_t bytes, json_t **json, rq_error *err);

/* Reads and parses. When `text` is not NULL, the file's bytes go to the caller too (owned, [*bytes] and a NUL). */
RQ_CHECK rq_status rq_json_load(const char *path, size_t limit, json_t **json, char **text, size_t *bytes,
                                rq_error *err);

/* The member when it is an integer >= 0, else false. */
bool rq_json_u64(const json_t *object, const char *key, uint64_t *value);
/* The member's text when it is a string, else NULL. Borrowed. */
const char *rq_json_text(const json_t *object, const char *key);

#endif
