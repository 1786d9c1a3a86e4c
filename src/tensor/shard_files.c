#include "tensor/shard_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define CONSOLIDATED "consolidated.safetensors" /* Mistral's second copy under other names */

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_model_shard(const char *name) { return rq_glob_match("model*.safetensors", name); }

rq_status rq_list_safetensors(const char *directory, rq_file_list *list, rq_error *err) {
    rq_status st = RQ_OK;
    size_t capacity = 0;
    *list = (rq_file_list){0};
    DIR *dir = opendir(directory);
    if (!dir)
        return rq_fail(err, errno == ENOENT ? RQ_ERR_MISSING : RQ_ERR_IO, "%s: cannot list the directory: %s",
                       directory, strerror(errno));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno != 0) st = rq_fail(err, RQ_ERR_IO, "%s: listing failed: %s", directory, strerror(errno));
            break;
        }
        if (entry->d_name[0] == '.' || !rq_has_suffix(entry->d_name, ".safetensors")) continue;
        if (list->count == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            char **names = realloc(list->names, capacity * sizeof *names);
            if (names) list->names = names;
            if (!names) {
                st = rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for its file names", directory);
                break;
            }
        }
        if (!(list->names[list->count] = rq_strdup(entry->d_name))) {
            st = rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for its file names", directory);
            break;
        }
        list->count++;
    }
    closedir(dir);
    if (st != RQ_OK) rq_file_list_deinit(list);
    if (list->count) qsort(list->names, list->count, sizeof *list->names, compare);
    return st;
}

void rq_file_list_deinit(rq_file_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->names[i]);
    free(list->names);
    *list = (rq_file_list){0};
}

bool rq_choose_shards(const rq_file_list *list, bool *chosen) {
    enum { ONE_FILE, MODEL_FILES, ANY_FILES, NO_RULE };
    for (int rule = ONE_FILE; rule < NO_RULE; rule++) {
        bool any = false;
        for (size_t i = 0; i < list->count; i++) {
            const char *name = list->names[i];
            chosen[i] = rule == ONE_FILE      ? strcmp(name, "model.safetensors") == 0
                        : rule == MODEL_FILES ? is_model_shard(name)
                                              : strcmp(name, CONSOLIDATED) != 0;
            any = any || chosen[i];
        }
        if (any) return true;
    }
    return false;
}

/* "model-00003-of-00007.safetensors": 7; 0 for every other name. */
static unsigned set_size(const char *name) {
    static const char form[] = "model-#####-of-#####.safetensors"; /* # is a digit */
    const size_t size_at = sizeof "model-#####-of-" - 1;
    unsigned size = 0;
    if (strlen(name) != sizeof form - 1) return 0;
    for (size_t i = 0; name[i]; i++) {
        const bool digit = name[i] >= '0' && name[i] <= '9';
        if (form[i] == '#' ? !digit : form[i] != name[i]) return 0;
        if (form[i] == '#' && i >= size_at) size = 10 * size + (unsigned)(name[i] - '0');
    }
    return size;
}

bool rq_find_incomplete_set(const rq_file_list *list, const bool *chosen, const char **name, unsigned *expected,
                            unsigned *found) {
    unsigned last = 0;
    for (size_t i = 0; i < list->count; i++) {
        const unsigned size = chosen[i] ? set_size(list->names[i]) : 0;
        unsigned n = 0;
        if (size == 0 || size == last) continue; /* the list is sorted: files of a set stand together */
        last = size;
        for (size_t j = 0; j < list->count; j++) n += set_size(list->names[j]) == size;
        if (n < size) {
            *name = list->names[i];
            *expected = size;
            *found = n;
            return true;
        }
    }
    return false;
}

bool rq_is_stray(const char *name, bool has_index) {
    return has_index ? is_model_shard(name) : strcmp(name, CONSOLIDATED) != 0;
}
