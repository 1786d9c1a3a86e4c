#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "rotq/checkpoint.h"

struct rq_safetensors {
    char *path;                     /* owned */
    int fd;                         /* -1 when closed */
    rq_tensor_info *infos;          /* [count], in order of offset; one owned block with the names */
    const rq_tensor_info **by_name; /* [count]; owned */
    size_t count;
};

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const rq_tensor_info *const *)a)->name, (*(const rq_tensor_info *const *)b)->name);
}

static int compare_key(const void *key, const void *element) {
    return strcmp(key, (*(const rq_tensor_info *const *)element)->name);
}

/* The file's size, known to be a regular file. */
static rq_status open_file(rq_safetensors *file, uint64_t *size, rq_error *err) {
    struct stat s;
    /* O_NONBLOCK: opening a named pipe must not hang. It means nothing for regular files. */
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return rq_fail(err, errno == ENOENT ? RQ_ERR_MISSING : RQ_ERR_IO, "%s: cannot open: %s", file->path,
                       strerror(errno));
    if (fstat(file->fd, &s) != 0) return rq_fail(err, RQ_ERR_IO, "%s: %s", file->path, strerror(errno));
    if (!S_ISREG(s.st_mode)) return rq_fail(err, RQ_ERR_IO, "%s: not a regular file", file->path);
    *size = (uint64_t)s.st_size;
    return RQ_OK;
}

static rq_status read_header(rq_safetensors *file, uint64_t size, rq_error *err) {
    rq_status st = RQ_OK;
    unsigned char prefix[8];
    char *header = NULL;
    if (size < sizeof prefix)
        return rq_fail(err, RQ_ERR_FORMAT, "%s: %llu bytes, too short for the 8-byte header length", file->path,
                       (unsigned long long)size);
    st = rq_safetensors_read(file, 0, prefix, sizeof prefix, err);
    if (st != RQ_OK) return st;
    const uint64_t n = rq_load_u64_le(prefix);
    if (n == 0 || n > RQ_SAFETENSORS_HEADER_MAX)
        return rq_fail(err, RQ_ERR_FORMAT, "%s: header length %llu at byte 0, expected 1 to %u", file->path,
                       (unsigned long long)n, RQ_SAFETENSORS_HEADER_MAX);
    if (n > size - sizeof prefix)
        return rq_fail(err, RQ_ERR_FORMAT, "%s: truncated: header length %llu at byte 0, but only %llu bytes follow",
                       file->path, (unsigned long long)n, (unsigned long long)(size - sizeof prefix));
    header = malloc((size_t)n);
    if (!header)
        return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for a header of %llu bytes", file->path,
                       (unsigned long long)n);
    const uint64_t data_start = sizeof prefix + n;
    st = rq_safetensors_read(file, sizeof prefix, header, (size_t)n, err);
    if (st == RQ_OK)
        st = rq_safetensors_parse_header(file->path, header, (size_t)n, size - data_start, &file->infos, &file->count,
                                         err);
    free(header);
    if (st != RQ_OK) return st;
    for (size_t i = 0; i < file->count; i++) file->infos[i].offset += data_start;
    return RQ_OK;
}

rq_status rq_safetensors_open(const char *path, rq_safetensors **out, rq_error *err) {
    uint64_t size = 0;
    rq_status st = RQ_ERR_NOMEM;
    rq_safetensors *file = malloc(sizeof *file);
    char *copy = rq_strdup(path);
    if (!file || !copy) {
        free(file);
        free(copy);
        return rq_fail(err, RQ_ERR_NOMEM, "%s: no memory", path);
    }
    *file = (rq_safetensors){.path = copy, .fd = -1};
    if ((st = open_file(file, &size, err)) != RQ_OK) goto failed;
    if ((st = read_header(file, size, err)) != RQ_OK) goto failed;
    file->by_name = malloc((file->count + 1) * sizeof(rq_tensor_info *));
    if (!file->by_name) {
        st = rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for %zu tensors", path, file->count);
        goto failed;
    }
    for (size_t i = 0; i < file->count; i++) file->by_name[i] = &file->infos[i];
    qsort(file->by_name, file->count, sizeof(rq_tensor_info *), compare_names);
    *out = file;
    return RQ_OK;
failed:
    rq_safetensors_close(file);
    return st;
}

void rq_safetensors_close(rq_safetensors *file) {
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    free(file->by_name);
    free(file->infos);
    free(file->path);
    free(file);
}

size_t rq_safetensors_count(const rq_safetensors *file) { return file->count; }

const rq_tensor_info *rq_safetensors_at(const rq_safetensors *file, size_t i) { return &file->infos[i]; }

const rq_tensor_info *rq_safetensors_find(const rq_safetensors *file, const char *name) {
    const rq_tensor_info **at = bsearch(name, file->by_name, file->count, sizeof(rq_tensor_info *), compare_key);
    return at ? *at : NULL;
}

const char *rq_safetensors_path(const rq_safetensors *file) { return file->path; }

rq_status rq_safetensors_read(const rq_safetensors *file, uint64_t offset, void *buffer, size_t bytes, rq_error *err) {
    size_t done = 0;
    if (offset > INT64_MAX || bytes > INT64_MAX - offset)
        return rq_fail(err, RQ_ERR_USAGE, "%s: %zu bytes at offset %llu lie outside any file", file->path, bytes,
                       (unsigned long long)offset);
    while (done < bytes) {
        const ssize_t n = pread(file->fd, (char *)buffer + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return rq_fail(err, RQ_ERR_IO, "%s: reading %zu bytes at offset %llu failed after %zu: %s", file->path,
                           bytes, (unsigned long long)offset, done, strerror(errno));
        if (n == 0)
            return rq_fail(err, RQ_ERR_IO, "%s: short file: expected %zu bytes at offset %llu, found %zu", file->path,
                           bytes, (unsigned long long)offset, done);
        done += (size_t)n;
    }
    return RQ_OK;
}

void rq_safetensors_prefetch(const rq_safetensors *file, uint64_t offset, uint64_t bytes) {
#ifdef POSIX_FADV_WILLNEED
    if (offset <= INT64_MAX && bytes <= INT64_MAX - offset && bytes > 0)
        (void)posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
#else
    (void)file;
    (void)offset;
    (void)bytes;
#endif
}
