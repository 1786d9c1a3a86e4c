#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/checkpoint_internal.h"
#include "tensor/json_util.h"
#include "tensor/shard_files.h"
#include "tensor/shard_index.h"

typedef struct raw_tensor {
    const rq_tensor_info *info; /* borrowed from files[file] */
    size_t file;
} raw_tensor;

struct rq_checkpoint {
    char *directory;
    json_t *config;
    char *config_text; /* as on disk, for the fingerprint */
    size_t config_bytes;
    rq_safetensors **files; /* [n_files], in order of file name; NULL where a lenient open met no file */
    size_t n_files;
    raw_tensor *tensors; /* [count], sorted by name */
    size_t count;
};

typedef struct opener {
    rq_checkpoint *ckpt;
    bool lenient, has_index;
    rq_shard_index index;
    rq_file_list list;  /* of the directory */
    const char **names; /* [ckpt->n_files] of the files that make the model; borrowed from index or list */
    rq_notes *notes;
    rq_error *err;
} opener;

static rq_status no_memory(const opener *o) {
    return rq_fail(o->err, RQ_ERR_NOMEM, "%s: no memory for its tables", o->ckpt->directory);
}

static rq_status read_config(opener *o) {
    rq_checkpoint *c = o->ckpt;
    char *path = rq_path_join(c->directory, "config.json");
    if (!path) return no_memory(o);
    const rq_status st = rq_json_load(path, RQ_CONFIG_BYTES_MAX, &c->config, &c->config_text, &c->config_bytes, o->err);
    free(path);
    return st;
}

static rq_status read_index(opener *o) {
    char *text = NULL;
    size_t bytes = 0;
    char *path = rq_path_join(o->ckpt->directory, RQ_INDEX_NAME);
    if (!path) return no_memory(o);
    rq_status st = rq_path_exists(path) ? rq_read_file(path, RQ_INDEX_BYTES_MAX, &text, &bytes, o->err) : RQ_OK;
    if (st == RQ_OK && text) {
        st = rq_shard_index_parse(path, text, bytes, &o->index, o->err);
        o->has_index = st == RQ_OK;
    }
    free(text);
    free(path);
    return st;
}

/* Fills names with the files that make the model, and says which others a loader would pick up. */
static rq_status choose_files(opener *o) {
    rq_checkpoint *c = o->ckpt;
    rq_status st = rq_list_safetensors(c->directory, &o->list, o->err);
    bool *chosen = calloc(o->list.count + 1, sizeof *chosen);
    const char *set = NULL;
    unsigned expected = 0, found = 0;
    if (st != RQ_OK) goto done;
    o->names = calloc(o->list.count + o->index.n_shards + 1, sizeof *o->names);
    if (!chosen || !o->names) {
        st = no_memory(o);
        goto done;
    }
    for (size_t s = 0; s < o->index.n_shards; s++) {
        o->names[c->n_files++] = o->index.shards[s];
        for (size_t i = 0; i < o->list.count; i++)
            if (strcmp(o->list.names[i], o->index.shards[s]) == 0) chosen[i] = true;
    }
    if (!o->has_index) {
        if (!rq_choose_shards(&o->list, chosen)) {
            st = rq_fail(o->err, RQ_ERR_MISSING, "%s: holds no .safetensors file and no " RQ_INDEX_NAME, c->directory);
            goto done;
        }
        for (size_t i = 0; i < o->list.count; i++)
            if (chosen[i]) o->names[c->n_files++] = o->list.names[i];
        if (rq_find_incomplete_set(&o->list, chosen, &set, &expected, &found)) {
            if (!o->lenient) {
                st = rq_fail(o->err, RQ_ERR_MISSING, "%s/%s: one of %u shards by its name, but the directory holds %u",
                             c->directory, set, expected, found);
                goto done;
            }
            rq_note_add(o->notes, RQ_NOTE_WARNING, "missing-shard",
                        "%s is one of %u shards by its name, but the directory holds %u", set, expected, found);
        }
    }
    for (size_t i = 0; i < o->list.count; i++) {
        /* What mlx-vlm would read too matters for a finished model, not for a source. */
        const bool stray = rq_is_stray(o->list.names[i], o->has_index || !o->lenient);
        if (!chosen[i] && stray)
            rq_note_add(o->notes, RQ_NOTE_WARNING, "stray-safetensors",
                        "%s is not part of the model, but some loaders would read it too", o->list.names[i]);
    }
done:
    free(chosen);
    return st;
}

static size_t tensors_indexed_in(const rq_shard_index *index, size_t shard) {
    size_t n = 0;
    for (size_t i = 0; i < index->count; i++) n += index->entries[i].shard == shard;
    return n;
}

static rq_status open_files(opener *o) {
    rq_checkpoint *c = o->ckpt;
    const char *first_missing = NULL;
    size_t missing_files = 0, missing_tensors = 0;
    c->files = calloc(c->n_files + 1, sizeof(rq_safetensors *));
    if (!c->files) return no_memory(o);
    for (size_t f = 0; f < c->n_files; f++) {
        char *path = rq_path_join(c->directory, o->names[f]);
        if (!path) return no_memory(o);
        const rq_status st = rq_safetensors_open(path, &c->files[f], o->err);
        free(path);
        if (st == RQ_ERR_MISSING && o->has_index) {
            const size_t n = tensors_indexed_in(&o->index, f);
            missing_files++;
            missing_tensors += n;
            if (!first_missing) first_missing = o->names[f];
            if (o->lenient)
                rq_note_add(o->notes, RQ_NOTE_WARNING, "missing-shard",
                            "%s does not exist, though the index puts %zu tensors there", o->names[f], n);
        } else if (st != RQ_OK) {
            return st;
        }
    }
    if (missing_files == 0 || o->lenient) return RQ_OK;
    return rq_fail(o->err, RQ_ERR_MISSING,
                   "%s/%s: does not exist, though the index names it (missing in all: %zu of %zu files, %zu of %zu "
                   "tensors)",
                   c->directory, first_missing, missing_files, c->n_files, missing_tensors, o->index.count);
}

static int by_name_then_file(const void *a, const void *b) {
    const raw_tensor *x = a, *y = b;
    const int order = strcmp(x->info->name, y->info->name);
    if (order != 0) return order;
    return x->file < y->file ? -1 : x->file > y->file;
}

/* One name and its copies copies[0, n), and its entry in the index if it has one. Puts the copy that counts first. */
static rq_status settle(opener *o, raw_tensor *copies, size_t n, const rq_index_entry *entry) {
    const char *name = copies[0].info->name;
    if (!entry && n > 1) {
        if (!o->lenient)
            return rq_fail(o->err, RQ_ERR_FORMAT,
                           "%s: tensor \"%s\" is in %s and in %s, and no index says which counts", o->ckpt->directory,
                           name, o->names[copies[0].file], o->names[copies[1].file]);
        rq_note_add(o->notes, RQ_NOTE_WARNING, "index-mismatch",
                    "tensor \"%s\" is in %s and in %s, and no index says which counts", name, o->names[copies[0].file],
                    o->names[copies[1].file]);
    } else if (!entry && o->has_index) {
        rq_note_add(o->notes, RQ_NOTE_WARNING, o->lenient ? "index-mismatch" : "unindexed-tensor",
                    "tensor \"%s\" is in %s but not in the index", name, o->names[copies[0].file]);
    } else if (entry) {
        for (size_t i = 0; i < n; i++) {
            if (copies[i].file != entry->shard) continue;
            const raw_tensor swap = copies[0];
            copies[0] = copies[i];
            copies[i] = swap;
        }
        for (size_t i = 1; i < n && copies[0].file == entry->shard; i++)
            rq_note_add(o->notes, RQ_NOTE_WARNING, o->lenient ? "index-mismatch" : "duplicate-tensor",
                        "tensor \"%s\" is also in %s; the copy in %s counts, as the index says", name,
                        o->names[copies[i].file], o->names[copies[0].file]);
    }
    return RQ_OK;
}

typedef struct missing_tensors {
    const rq_index_entry *first;
    size_t count;
} missing_tensors;

/* The index names a tensor that is not in the file it names. */
static void note_missing(opener *o, missing_tensors *missing, const rq_index_entry *entry) {
    if (!o->ckpt->files[entry->shard]) return; /* the whole file is missing: reported once, by open_files */
    if (missing->count++ == 0) missing->first = entry;
    if (o->lenient)
        rq_note_add(o->notes, RQ_NOTE_WARNING, "index-mismatch", "tensor \"%s\" is not in %s, where the index puts it",
                    entry->tensor, o->names[entry->shard]);
}

static rq_status collect_tensors(opener *o) {
    rq_checkpoint *c = o->ckpt;
    rq_status st = RQ_OK;
    missing_tensors missing = {0};
    size_t total = 0, next = 0; /* next: in the index, walked in step with the sorted tensors */
    for (size_t f = 0; f < c->n_files; f++) total += c->files[f] ? rq_safetensors_count(c->files[f]) : 0;
    raw_tensor *all = calloc(total + 1, sizeof *all);
    if (!all) return no_memory(o);
    c->tensors = all;
    total = 0;
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; c->files[f] && i < rq_safetensors_count(c->files[f]); i++)
            all[total++] = (raw_tensor){rq_safetensors_at(c->files[f], i), f};
    qsort(all, total, sizeof *all, by_name_then_file);

    for (size_t i = 0, n = 1; i < total && st == RQ_OK; i += n, n = 1) {
        const char *name = all[i].info->name;
        const rq_index_entry *entry = NULL;
        while (i + n < total && strcmp(all[i + n].info->name, name) == 0) n++;
        for (; next < o->index.count && strcmp(o->index.entries[next].tensor, name) < 0; next++)
            note_missing(o, &missing, &o->index.entries[next]);
        if (next < o->index.count && strcmp(o->index.entries[next].tensor, name) == 0)
            entry = &o->index.entries[next++];
        st = settle(o, &all[i], n, entry);
        if (entry && all[i].file != entry->shard) note_missing(o, &missing, entry);
        c->tensors[c->count++] = all[i];
    }
    for (; next < o->index.count; next++) note_missing(o, &missing, &o->index.entries[next]);
    if (st == RQ_OK && missing.count > 0 && !o->lenient)
        st = rq_fail(o->err, RQ_ERR_MISSING,
                     "%s/%s: lacks tensor \"%s\", which the index puts there (tensors missing in all: %zu)",
                     c->directory, o->names[missing.first->shard], missing.first->tensor, missing.count);
    return st;
}

static void check_total_size(opener *o) {
    uint64_t total = 0;
    if (!o->index.has_total_size) return;
    for (size_t i = 0; i < o->ckpt->count; i++) total += o->ckpt->tensors[i].info->bytes;
    if ((double)total != o->index.total_size)
        rq_note_add(o->notes, o->lenient ? RQ_NOTE_WARNING : RQ_NOTE_INFO, o->lenient ? "index-mismatch" : "index-size",
                    "the index gives a total_size of %.0f bytes, the tensors have %llu", o->index.total_size,
                    (unsigned long long)total);
}

static rq_status open_directory(const char *directory, bool lenient, rq_checkpoint **ckpt, rq_notes *notes,
                                rq_error *err) {
    rq_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory", directory);
    opener o = {.ckpt = c, .lenient = lenient, .notes = notes, .err = err};
    c->directory = rq_strdup(directory);
    rq_status st = c->directory ? RQ_OK : rq_fail(err, RQ_ERR_NOMEM, "%s: no memory", directory);
    if (st == RQ_OK && !rq_is_directory(directory))
        st = rq_fail(err, rq_path_exists(directory) ? RQ_ERR_IO : RQ_ERR_MISSING, "%s: %s", directory,
                     rq_path_exists(directory) ? "not a directory" : "no such directory");
    if (st == RQ_OK) st = read_config(&o);
    if (st == RQ_OK) st = read_index(&o);
    if (st == RQ_OK) st = choose_files(&o);
    if (st == RQ_OK) st = open_files(&o);
    if (st == RQ_OK) st = collect_tensors(&o);
    if (st == RQ_OK) check_total_size(&o);
    free(o.names);
    rq_file_list_deinit(&o.list);
    rq_shard_index_deinit(&o.index);
    if (st == RQ_OK)
        *ckpt = c;
    else
        rq_checkpoint_close(c);
    return st;
}

rq_status rq_checkpoint_open(const char *directory, rq_checkpoint **ckpt, rq_notes *notes, rq_error *err) {
    return open_directory(directory, false, ckpt, notes, err);
}

rq_status rq_checkpoint_open_lenient(const char *directory, rq_checkpoint **ckpt, rq_notes *notes, rq_error *err) {
    return open_directory(directory, true, ckpt, notes, err);
}

void rq_checkpoint_close(rq_checkpoint *ckpt) {
    if (!ckpt) return;
    for (size_t f = 0; ckpt->files && f < ckpt->n_files; f++) rq_safetensors_close(ckpt->files[f]);
    free(ckpt->files);
    free(ckpt->tensors);
    free(ckpt->config_text);
    json_decref(ckpt->config);
    free(ckpt->directory);
    free(ckpt);
}

const char *rq_checkpoint_directory(const rq_checkpoint *ckpt) { return ckpt->directory; }

const struct json_t *rq_checkpoint_config(const rq_checkpoint *ckpt) { return ckpt->config; }

size_t rq_checkpoint_count(const rq_checkpoint *ckpt) { return ckpt->count; }

const rq_tensor_info *rq_checkpoint_at(const rq_checkpoint *ckpt, size_t i) { return ckpt->tensors[i].info; }

const rq_safetensors *rq_checkpoint_file(const rq_checkpoint *ckpt, size_t i) {
    return ckpt->files[ckpt->tensors[i].file];
}

static int compare_key(const void *key, const void *element) {
    return strcmp(key, ((const raw_tensor *)element)->info->name);
}

bool rq_checkpoint_find(const rq_checkpoint *ckpt, const char *name, size_t *i) {
    const raw_tensor *at = bsearch(name, ckpt->tensors, ckpt->count, sizeof *ckpt->tensors, compare_key);
    if (!at) return false;
    *i = (size_t)(at - ckpt->tensors);
    return true;
}

rq_status rq_checkpoint_fingerprint(const rq_checkpoint *ckpt, char hex[65], rq_error *err) {
    rq_text text = {0};
    rq_sha256_hex(ckpt->config_text, ckpt->config_bytes, hex);
    rq_text_append(&text, "config %s\n", hex);
    for (size_t i = 0; i < ckpt->count; i++) {
        const rq_tensor_info *t = ckpt->tensors[i].info;
        /* The length before the name keeps names with spaces or newlines from imitating other lists. */
        rq_text_append(&text, "%zu:%s %s", strlen(t->name), t->name, rq_dtype_name(t->dtype));
        for (unsigned d = 0; d < t->rank; d++) rq_text_append(&text, " %llu", (unsigned long long)t->shape[d]);
        rq_text_append(&text, " = %llu\n", (unsigned long long)t->bytes);
    }
    const bool failed = text.failed;
    if (!failed) rq_sha256_hex(text.data, text.length, hex);
    rq_text_deinit(&text);
    return failed ? rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for the fingerprint", ckpt->directory) : RQ_OK;
}
