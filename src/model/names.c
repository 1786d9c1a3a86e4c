#include "model/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Copies a name, numbers between dots replaced by '*'. */
static char *collapse(const char *name) {
    char *out = rq_strdup(name);
    if (!out) return NULL;
    char *to = out;
    const char *from = name;
    while (*from) {
        const bool at_start = from == name || from[-1] == '.';
        const size_t digits = strspn(from, "0123456789");
        if (at_start && digits && (from[digits] == '.' || !from[digits])) {
            *to++ = '*';
            from += digits;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    return out;
}

char *rq_names_summary(const char *const *names, size_t count, size_t limit) {
    rq_text out = {0};
    char **patterns = calloc(limit ? limit : 1, sizeof *patterns);
    size_t *counts = calloc(limit ? limit : 1, sizeof *counts);
    size_t n = 0, rest = 0;
    bool failed = !patterns || !counts;
    for (size_t i = 0; i < count && !failed; i++) {
        char *pattern = collapse(names[i]);
        if (!pattern) {
            failed = true;
            break;
        }
        size_t k = 0;
        while (k < n && strcmp(patterns[k], pattern) != 0) k++;
        if (k < n) {
            counts[k]++;
        } else if (n < limit) {
            patterns[n] = pattern;
            counts[n++] = 1;
            pattern = NULL;
        } else {
            rest++;
        }
        free(pattern);
    }
    for (size_t k = 0; k < n && !failed; k++) {
        rq_text_append(&out, "%s%s", k ? ", " : "", patterns[k]);
        if (counts[k] > 1) rq_text_append(&out, " (%zu)", counts[k]);
    }
    if (rest) rq_text_append(&out, " and %zu more", rest);
    if (!n) rq_text_append(&out, "none");
    for (size_t k = 0; k < n; k++) free(patterns[k]);
    free(patterns);
    free(counts);
    if (failed || out.failed) {
        rq_text_deinit(&out);
        return NULL;
    }
    return out.data;
}
