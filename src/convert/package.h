/* Everything in an output directory that is not a tensor: config.json, optiq_metadata.json, README.md, and the files
 * that are carried over from the source.
 *
 * All of it is a function of source, options and seed: no time stamps, no paths, no thread counts. */
#ifndef RQ_PACKAGE_H
#define RQ_PACKAGE_H

#include <jansson.h>

#include "rotq/convert.h"

/* What the metadata says about a conversion beyond the plan. */
typedef struct rq_package_facts {
    const rq_plan *plan;
    const rq_rotation_set *rotations; /* NULL when nothing is rotated */
    rq_fold_precision precision;
    const char *fingerprint; /* of the source; borrowed */
    const char *base_model;  /* "org/name", or NULL; borrowed */
} rq_package_facts;

/* Writes config.json, optiq_metadata.json and README.md into out_dir (which exists) and copies the side files there.
 * `fingerprint` is a hex digest of the source. A side file that exists and cannot be copied is an error: RQ_ERR_MISSING
 * when it is a link that leads nowhere, else RQ_ERR_IO. */
RQ_CHECK rq_status rq_package_files(const rq_plan *plan, const rq_source *source, const rq_convert_options *options,
                                    const rq_rotation_set *rotations, const char *fingerprint, const char *out_dir,
                                    rq_error *err);

/* The same from parts, for tests. */
RQ_CHECK rq_status rq_package_write(const rq_package_facts *facts, const json_t *source_config, const char *source_dir,
                                    const char *out_dir, rq_error *err);

/* optiq_metadata.json's text. Owned; NULL when out of memory. */
char *rq_package_metadata(const rq_package_facts *facts);

/* README.md's text. Owned; NULL when out of memory. */
char *rq_package_model_card(const rq_package_facts *facts);

/* True for names that are carried over verbatim: tokenizers, chat templates, processors, generation_config.json, the
 * model's own *.py, and licences. Never weights, indexes, config.json or README.md. One of them is a directory,
 * additional_chat_templates, of which the *.jinja files are carried. */
bool rq_package_is_side_file(const char *name);

/* "org/name" out of the config's _name_or_path when it looks like a repository rather than a path; else NULL. */
const char *rq_package_base_model(const json_t *source_config);

#endif
