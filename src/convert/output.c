#define _GNU_SOURCE /* renameat2 */
#include "convert/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define TEMPORARY ".rotq-tmp-"
#define LOCK_NAME ".lock"

static char *parent_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return rq_strdup(".");
    if (slash == path) return rq_strdup("/");
    return rq_format("%.*s", (int)(slash - path), path);
}

static const char *base_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether the process that fills this directory is gone. A directory without a lock file is between two system calls of
 * a living run, or was left there: an hour decides. */
static bool is_abandoned(const char *directory) {
    char *path = rq_path_join(directory, LOCK_NAME);
    if (!path) return false;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    bool abandoned = false;
    struct stat s;
    if (fd >= 0)
        abandoned = flock(fd, LOCK_EX | LOCK_NB) == 0;
    else if (errno == ENOENT && stat(directory, &s) == 0)
        abandoned = s.st_mtime + 3600 < time(NULL);
    if (fd >= 0) close(fd);
    free(path);
    return abandoned;
}

static void remove_leftovers(const char *parent, const char *base) {
    char *prefix = rq_format(".%s" TEMPORARY, base);
    DIR *d = prefix ? opendir(parent) : NULL;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        /* "-old" is a replaced model whose successor never came: the only copy, for its owner to move back. */
        if (!rq_has_prefix(entry->d_name, prefix) || rq_has_suffix(entry->d_name, "-old")) continue;
        char *path = rq_path_join(parent, entry->d_name);
        if (path && is_abandoned(path)) (void)!rq_remove_tree(path, NULL);
        free(path);
    }
    if (d) closedir(d);
    free(prefix);
}

static bool is_empty_directory(const char *path) {
    DIR *d = opendir(path);
    if (!d) return false;
    size_t entries = 0;
    while (entries < 3 && readdir(d)) entries++;
    closedir(d);
    return entries == 2; /* . and .. */
}

/* A model directory as this program or a stock converter writes it: config.json, weights, and no directory of other
 * things. */
static bool is_model_directory(const char *path) {
    bool config = false, weights = false, foreign = false;
    DIR *d = opendir(path);
    if (!d) return false;
    for (struct dirent *entry; (entry = readdir(d));) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        config |= strcmp(name, "config.json") == 0;
        weights |= rq_has_prefix(name, "model") && rq_has_suffix(name, ".safetensors");
        char *child = rq_path_join(path, name);
        foreign |= !child || (rq_is_directory(child) && strcmp(name, "optiq") != 0 &&
                              strcmp(name, "additional_chat_templates") != 0);
        free(child);
    }
    closedir(d);
    return config && weights && !foreign;
}

static bool is_inside(const char *path, const char *directory) {
    return rq_has_prefix(path, directory) && (path[strlen(directory)] == '/' || path[strlen(directory)] == '\0');
}

/* Whether `source`, or a file that an entry of it links to, lies in `real` (a resolved path). */
static bool source_lies_in(const char *source, const char *real) {
    char *resolved = realpath(source, NULL);
    bool inside = !resolved || is_inside(resolved, real);
    free(resolved);
    DIR *d = inside ? NULL : opendir(source);
    for (struct dirent *entry; d && !inside && (entry = readdir(d));) {
        if (strcmp(entry->d_name, "..") == 0) continue;
        char *child = rq_path_join(source, entry->d_name);
        resolved = child ? realpath(child, NULL) : NULL;
        inside = resolved && is_inside(resolved, real);
        free(resolved);
        free(child);
    }
    if (d) closedir(d);
    return inside;
}

/* `path` exists: may it be replaced? */
static rq_status check_existing(const char *path, const char *source, bool force, rq_error *err) {
    if (!force)
        return rq_fail(err, RQ_ERR_EXISTS, "%s exists; give another output path, or --force to replace it", path);
    char *real = realpath(path, NULL);
    rq_status st = RQ_OK;
    if (!real)
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot resolve the path: %s", path, strerror(errno));
    else if (source_lies_in(source, real))
        st = rq_fail(
            err, RQ_ERR_EXISTS,
            "%s is the source, contains it, or holds files that it links to; it is not replaced, even with --force",
            path);
    else if (!rq_is_directory(path) || (!is_model_directory(path) && !is_empty_directory(path)))
        st = rq_fail(
            err, RQ_ERR_EXISTS,
            "%s does not look like a model directory (config.json, model*.safetensors, no foreign directories); it is "
            "not replaced, even with --force",
            path);
    free(real);
    return st;
}

/* Makes the directory and takes its lock. */
static rq_status make_temporary(rq_output *output, const char *parent, const char *base, rq_error *err) {
    char *name = rq_format("%s/.%s" TEMPORARY "XXXXXX", parent, base);
    if (!name) return rq_fail(err, RQ_ERR_NOMEM, "no memory for a path in %s", parent);
    if (!mkdtemp(name)) {
        const rq_status st = rq_fail(err, RQ_ERR_IO, "%s: cannot create: %s", name, strerror(errno));
        free(name);
        return st;
    }
    output->temporary = name;
    char *lock = rq_path_join(name, LOCK_NAME);
    output->lock = lock ? open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    free(lock);
    const mode_t mask = umask(0); /* mkdtemp makes it private; the result should be as mkdir's */
    umask(mask);
    if (output->lock < 0 || flock(output->lock, LOCK_EX | LOCK_NB) != 0 || chmod(name, 0777 & ~mask) != 0)
        return rq_fail(err, RQ_ERR_IO, "%s: cannot prepare: %s", name, strerror(errno));
    return RQ_OK;
}

rq_status rq_output_begin(const char *path, const char *source, bool force, uint64_t bytes, rq_output *output,
                          rq_error *err) {
    *output = (rq_output){.lock = -1};
    rq_status st = RQ_OK;
    char *parent = NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    output->final_path = rq_format("%.*s", (int)n, path);
    if (!output->final_path) goto nomem;
    const char *base = base_of(output->final_path);
    if (n == 0 || strcmp(base, ".") == 0 || strcmp(base, "..") == 0 || *base == '\0') {
        st = rq_fail(err, RQ_ERR_USAGE, "\"%s\" cannot be an output directory", path);
        goto done;
    }
    if (rq_path_exists(output->final_path)) {
        st = check_existing(output->final_path, source, force, err);
        if (st != RQ_OK) goto done;
        output->replace = true;
    }
    parent = parent_of(output->final_path);
    if (!parent) goto nomem;
    if (!rq_is_directory(parent)) {
        st = rq_fail(err, RQ_ERR_MISSING, "%s: the parent directory does not exist", parent);
        goto done;
    }
    struct statvfs fs;
    if (statvfs(parent, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes) {
        st = rq_fail(err, RQ_ERR_IO, "%s: the output needs %llu MB and %llu MB are free", parent,
                     (unsigned long long)(bytes / 1000000),
                     (unsigned long long)((uint64_t)fs.f_bavail * fs.f_frsize / 1000000));
        goto done;
    }
    remove_leftovers(parent, base);
    st = make_temporary(output, parent, base, err);
    goto done;
nomem:
    st = rq_fail(err, RQ_ERR_NOMEM, "no memory for the path of %s", path);
done:
    free(parent);
    if (st != RQ_OK) rq_output_deinit(output);
    return st;
}

static char *shard_path(const rq_output *output, const rq_layout *layout, size_t s, const char *suffix) {
    return rq_format("%s/%s%s", output->temporary, layout->shards[s].name, suffix);
}

rq_status rq_output_create_shards(rq_output *output, const rq_layout *layout, rq_error *err) {
    output->fds = malloc(layout->n_shards * sizeof *output->fds);
    if (!output->fds) return rq_fail(err, RQ_ERR_NOMEM, "no memory for %zu shards", layout->n_shards);
    output->n_shards = layout->n_shards;
    for (size_t s = 0; s < layout->n_shards; s++) output->fds[s] = -1;
    rq_status st = RQ_OK;
    for (size_t s = 0; st == RQ_OK && s < layout->n_shards; s++) {
        char *path = shard_path(output, layout, s, RQ_PARTIAL);
        if (!path) return rq_fail(err, RQ_ERR_NOMEM, "no memory for a path");
        st = rq_write_file(path, layout->shards[s].header, layout->shards[s].header_bytes, err);
        if (st == RQ_OK) {
            output->fds[s] = open(path, O_WRONLY | O_CLOEXEC);
            if (output->fds[s] < 0) st = rq_fail(err, RQ_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
        }
        free(path);
    }
    return st;
}

static rq_status sync_path(const char *path, rq_error *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool good = fd >= 0 && fsync(fd) == 0;
    const int e = errno;
    if (fd >= 0) close(fd);
    return good ? RQ_OK : rq_fail(err, RQ_ERR_IO, "%s: sync failed: %s", path, strerror(e));
}

static rq_status sync_directory(const char *path, rq_error *err) {
    DIR *d = opendir(path);
    if (!d) return rq_fail(err, RQ_ERR_IO, "%s: cannot list: %s", path, strerror(errno));
    rq_status st = RQ_OK;
    for (struct dirent *entry; st == RQ_OK && (entry = readdir(d));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *child = rq_path_join(path, entry->d_name);
        if (!child)
            st = rq_fail(err, RQ_ERR_NOMEM, "no memory for a path");
        else
            st = rq_is_directory(child) ? sync_directory(child, err) : sync_path(child, err);
        free(child);
    }
    closedir(d);
    return st == RQ_OK ? sync_path(path, err) : st;
}

/* Every shard has the size its header promises: a guard against a missing tail. */
static rq_status close_shards(rq_output *output, const rq_layout *layout, rq_error *err) {
    for (size_t s = 0; s < output->n_shards; s++) {
        struct stat info;
        if (fstat(output->fds[s], &info) != 0 || (uint64_t)info.st_size != layout->shards[s].file_bytes)
            return rq_fail(err, RQ_ERR_IO, "%s: %lld bytes were written, %llu were planned", layout->shards[s].name,
                           (long long)info.st_size, (unsigned long long)layout->shards[s].file_bytes);
        const int closed = close(output->fds[s]);
        output->fds[s] = -1;
        if (closed != 0)
            return rq_fail(err, RQ_ERR_IO, "%s: close failed: %s", layout->shards[s].name, strerror(errno));
        char *from = shard_path(output, layout, s, RQ_PARTIAL), *to = shard_path(output, layout, s, "");
        const bool renamed = from && to && rename(from, to) == 0;
        free(from);
        free(to);
        if (!renamed) return rq_fail(err, RQ_ERR_IO, "%s: rename failed: %s", layout->shards[s].name, strerror(errno));
    }
    return RQ_OK;
}

/* Puts the new directory where the old one is and the old one in its place, in one step. False where that is not to be
 * had. */
static bool exchange(const char *a, const char *b) {
#if defined(__linux__) && defined(RENAME_EXCHANGE)
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
#elif defined(__APPLE__)
    return renamex_np(a, b, RENAME_SWAP) == 0;
#else
    (void)a, (void)b;
    return false;
#endif
}

/* Two steps, with the way back. On success `temporary` holds the old directory. */
static rq_status replace_in_two_steps(const rq_output *output, rq_error *err) {
    char *old = rq_format("%s-old", output->temporary);
    rq_status st = RQ_OK;
    if (!old || rename(output->final_path, old) != 0)
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot move the old directory away: %s", output->final_path, strerror(errno));
    else if (rename(output->temporary, output->final_path) != 0) {
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot move the finished directory there: %s", output->final_path,
                     strerror(errno));
        (void)!rename(old, output->final_path);
    } else if (rename(old, output->temporary) != 0)
        st = rq_fail(err, RQ_ERR_IO, "%s: the new directory is in place, the old one remains here: %s", old,
                     strerror(errno));
    free(old);
    return st;
}

static rq_status put_in_place(rq_output *output, rq_error *err) {
    if (output->replace)
        return exchange(output->temporary, output->final_path) ? RQ_OK : replace_in_two_steps(output, err);
    /* The target must still be absent: rename would silently take over an empty directory. */
    if (rq_path_exists(output->final_path))
        return rq_fail(err, RQ_ERR_EXISTS, "%s appeared while the conversion ran", output->final_path);
    if (rename(output->temporary, output->final_path) != 0)
        return rq_fail(err, errno == ENOTEMPTY || errno == EEXIST ? RQ_ERR_EXISTS : RQ_ERR_IO,
                       "%s: cannot move the finished directory there: %s", output->final_path, strerror(errno));
    free(output->temporary);
    output->temporary = NULL;
    return RQ_OK;
}

rq_status rq_output_commit(rq_output *output, const rq_layout *layout, bool sync, rq_notes *notes, rq_error *err) {
    rq_status st = close_shards(output, layout, err);
    char *lock = rq_path_join(output->temporary, LOCK_NAME);
    if (st == RQ_OK && (!lock || unlink(lock) != 0))
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot remove the lock: %s", output->temporary, strerror(errno));
    free(lock);
    if (st == RQ_OK && sync) st = sync_directory(output->temporary, err);
    if (st == RQ_OK) st = put_in_place(output, err);
    if (st != RQ_OK) return st;
    rq_error late = {0};
    if (sync) {
        char *parent = parent_of(output->final_path);
        if (parent && sync_path(parent, &late) != RQ_OK)
            rq_note_add(notes, RQ_NOTE_WARNING, "sync", "%s", late.message);
        free(parent);
    }
    if (output->temporary && rq_remove_tree(output->temporary, &late) != RQ_OK)
        rq_note_add(notes, RQ_NOTE_WARNING, "old-output", "the replaced directory remains in part: %s", late.message);
    free(output->temporary);
    output->temporary = NULL;
    return RQ_OK;
}

void rq_output_deinit(rq_output *output) {
    for (size_t s = 0; output->fds && s < output->n_shards; s++)
        if (output->fds[s] >= 0) close(output->fds[s]);
    if (output->temporary) (void)!rq_remove_tree(output->temporary, NULL);
    if (output->final_path && output->lock >= 0) close(output->lock); /* a zeroed output holds none */
    free(output->temporary);
    free(output->final_path);
    free(output->fds);
    *output = (rq_output){.lock = -1};
}
