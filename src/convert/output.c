#include "convert/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TEMPORARY ".rotq-tmp-"

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

/* Directories ".NAME.rotq-tmp-PID" whose process is gone were left by a killed run. */
static void remove_leftovers(const char *parent, const char *base) {
    char *prefix = rq_format(".%s" TEMPORARY, base);
    DIR *d = prefix ? opendir(parent) : NULL;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (!rq_has_prefix(entry->d_name, prefix)) continue;
        char *end = NULL;
        const long pid = strtol(entry->d_name + strlen(prefix), &end, 10);
        if (*end || pid <= 0 || pid > INT32_MAX || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        char *path = rq_path_join(parent, entry->d_name);
        if (path) (void)!rq_remove_tree(path, NULL);
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

/* `path` exists: may it be replaced? */
static rq_status check_existing(const char *path, const char *source, bool force, rq_error *err) {
    if (!force)
        return rq_fail(err, RQ_ERR_EXISTS, "%s exists; give another output path, or --force to replace it", path);
    char *real = realpath(path, NULL), *real_source = realpath(source, NULL);
    rq_status st = RQ_OK;
    if (!real || !real_source)
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot resolve the path: %s", real ? source : path, strerror(errno));
    else if (strcmp(real, real_source) == 0 || (rq_has_prefix(real_source, real) && real_source[strlen(real)] == '/'))
        st =
            rq_fail(err, RQ_ERR_EXISTS, "%s is the source or contains it; it is not replaced, even with --force", path);
    char *config = st == RQ_OK ? rq_path_join(path, "config.json") : NULL;
    if (st == RQ_OK && (!rq_is_directory(path) || !(config && rq_path_exists(config))) && !is_empty_directory(path))
        st = rq_fail(err, RQ_ERR_EXISTS,
                     "%s does not look like a model directory (no config.json); it is not replaced, even with --force",
                     path);
    free(config);
    free(real);
    free(real_source);
    return st;
}

rq_status rq_output_begin(const char *path, const char *source, bool force, uint64_t bytes, rq_output *output,
                          rq_error *err) {
    *output = (rq_output){0};
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
    char *temporary = rq_format("%s/.%s" TEMPORARY "%ld", parent, base, (long)getpid());
    if (!temporary) goto nomem;
    if (mkdir(temporary, 0777) != 0) {
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot create: %s", temporary, strerror(errno));
        free(temporary);
        goto done;
    }
    output->temporary = temporary;
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
        if (entry->d_name[0] == '.') continue;
        char *file = rq_path_join(path, entry->d_name);
        st = file ? sync_path(file, err) : rq_fail(err, RQ_ERR_NOMEM, "no memory for a path");
        free(file);
    }
    closedir(d);
    return st == RQ_OK ? sync_path(path, err) : st;
}

/* Every shard has the size its header promises: the last guard against a hole nobody wrote. */
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

rq_status rq_output_commit(rq_output *output, const rq_layout *layout, bool sync, rq_error *err) {
    rq_status st = close_shards(output, layout, err);
    if (st == RQ_OK && sync) st = sync_directory(output->temporary, err);
    if (st != RQ_OK) return st;
    char *old = output->replace ? rq_format("%s-old", output->temporary) : NULL;
    if (output->replace && (!old || rename(output->final_path, old) != 0)) {
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot move the old directory away: %s", output->final_path, strerror(errno));
        free(old);
        return st;
    }
    /* Without replace the target must still be absent: rename would silently take over an empty directory. */
    if ((!output->replace && rq_path_exists(output->final_path)) ||
        rename(output->temporary, output->final_path) != 0) {
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot move the finished directory there: %s", output->final_path,
                     strerror(errno ? errno : EEXIST));
        if (old) (void)!rename(old, output->final_path);
        free(old);
        return st;
    }
    free(output->temporary);
    output->temporary = NULL;
    if (old) (void)!rq_remove_tree(old, NULL);
    free(old);
    if (sync) {
        char *parent = parent_of(output->final_path);
        if (parent) st = sync_path(parent, err);
        free(parent);
    }
    return st;
}

void rq_output_deinit(rq_output *output) {
    for (size_t s = 0; output->fds && s < output->n_shards; s++)
        if (output->fds[s] >= 0) close(output->fds[s]);
    if (output->temporary) (void)!rq_remove_tree(output->temporary, NULL);
    free(output->temporary);
    free(output->final_path);
    free(output->fds);
    *output = (rq_output){0};
}
