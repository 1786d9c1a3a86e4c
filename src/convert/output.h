/* The output directory: built beside its final place, made visible by one rename, removed on any failure. */
#ifndef RQ_OUTPUT_H
#define RQ_OUTPUT_H

#include "convert/layout.h"

/* Suffix of shards until the directory is complete, so that what a killed run leaves behind loads nowhere. */
#define RQ_PARTIAL ".partial"

typedef struct rq_output {
    char *final_path; /* without trailing slashes; owned */
    char *temporary;  /* directory that is being filled, beside final_path; owned */
    int lock;         /* held on a file in it while this run lives, -1 when closed */
    int *fds;         /* [n_shards], -1 when closed; owned */
    size_t n_shards;
    bool replace;
} rq_output;

/* Refuses an existing `path` (RQ_ERR_EXISTS) unless `force`, which replaces an empty directory or one that holds a
 * model and nothing else that we would not write ourselves; never the source, nor a directory that contains it or that
 * its files are links into. Checks that the file system has `bytes` free. Removes what killed runs to the same path
 * have left: directories whose lock nobody holds. */
RQ_CHECK rq_status rq_output_begin(const char *path, const char *source, bool force, uint64_t bytes, rq_output *output,
                                   rq_error *err);
/* Creates the shards with their headers, ready for positioned writes. */
RQ_CHECK rq_status rq_output_create_shards(rq_output *output, const rq_layout *layout, rq_error *err);
/* Closes the shards, gives them their names, renames the directory; a directory that is replaced changes places with
 * the new one in one step where the system can do that. With `sync`, everything reaches the disk first. What fails
 * after the new directory is in place is a note ("old-output", "sync"). */
RQ_CHECK rq_status rq_output_commit(rq_output *output, const rq_layout *layout, bool sync, rq_notes *notes,
                                    rq_error *err);
/* Removes the temporary directory when it was not committed. Safe on a zeroed output. */
void rq_output_deinit(rq_output *output);

#endif
