#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

bool rq_path_exists(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0;
}

bool rq_is_directory(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

char *rq_path_join(const char *directory, const char *name) {
    const size_t n = strlen(directory);
    return rq_format("%s%s%s", directory, n && directory[n - 1] == '/' ? "" : "/", name);
}

rq_status rq_read_file(const char *path, size_t limit, char **data, size_t *bytes, rq_error *err) {
    rq_status st = RQ_OK;
    char *buffer = NULL;
    size_t used = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return rq_fail(err, errno == ENOENT ? RQ_ERR_MISSING : RQ_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        st = rq_fail(err, RQ_ERR_IO, "%s: not a regular file", path);
        goto done;
    }
    if ((uint64_t)s.st_size > limit) {
        st = rq_fail(err, RQ_ERR_FORMAT, "%s: %lld bytes, more than the limit of %zu", path, (long long)s.st_size,
                     limit);
        goto done;
    }
    const size_t size = (size_t)s.st_size;
    buffer = malloc(size + 1);
    if (!buffer) {
        st = rq_fail(err, RQ_ERR_NOMEM, "%s: no memory for %zu bytes", path, size);
        goto done;
    }
    while (used < size) {
        const ssize_t n = read(fd, buffer + used, size - used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            st = rq_fail(err, RQ_ERR_IO, "%s: read stopped at byte %zu of %zu: %s", path, used, size,
                         n < 0 ? strerror(errno) : "end of file");
            goto done;
        }
        used += (size_t)n;
    }
    buffer[size] = '\0';
    *data = buffer;
    *bytes = size;
    buffer = NULL; /* moved to the caller */
done:
    free(buffer);
    close(fd);
    return st;
}

rq_status rq_write_file(const char *path, const void *data, size_t bytes, rq_error *err) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return rq_fail(err, RQ_ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int e = errno;
            close(fd);
            return rq_fail(err, RQ_ERR_IO, "%s: write stopped at byte %zu of %zu: %s", path, done, bytes, strerror(e));
        }
        done += (size_t)n;
    }
    if (close(fd) != 0) return rq_fail(err, RQ_ERR_IO, "%s: close failed: %s", path, strerror(errno));
    return RQ_OK;
}

rq_status rq_copy_file(const char *from, const char *to, rq_error *err) {
    rq_status st = RQ_OK;
    const size_t chunk = (size_t)1 << 20;
    char *buffer = malloc(chunk);
    if (!buffer) return rq_fail(err, RQ_ERR_NOMEM, "no memory to copy %s", from);
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    const int out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (in < 0 || out < 0) {
        st = rq_fail(err, RQ_ERR_IO, "%s: cannot open: %s", in < 0 ? from : to, strerror(errno));
        goto done;
    }
    for (;;) {
        const ssize_t n = read(in, buffer, chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            st = rq_fail(err, RQ_ERR_IO, "%s: read failed: %s", from, strerror(errno));
            goto done;
        }
        if (n == 0) break;
        for (ssize_t done = 0; done < n;) {
            const ssize_t w = write(out, buffer + done, (size_t)(n - done));
            if (w < 0 && errno == EINTR) continue;
            if (w <= 0) {
                st = rq_fail(err, RQ_ERR_IO, "%s: write failed: %s", to, strerror(errno));
                goto done;
            }
            done += w;
        }
    }
done:
    if (in >= 0) close(in);
    if (out >= 0 && close(out) != 0 && st == RQ_OK)
        st = rq_fail(err, RQ_ERR_IO, "%s: close failed: %s", to, strerror(errno));
    free(buffer);
    return st;
}

rq_status rq_remove_tree(const char *path, rq_error *err) {
    struct stat s;
    if (lstat(path, &s) != 0) {
        if (errno == ENOENT) return RQ_OK;
        return rq_fail(err, RQ_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(s.st_mode)) {
        if (unlink(path) != 0) return rq_fail(err, RQ_ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
        return RQ_OK;
    }
    DIR *d = opendir(path);
    if (!d) return rq_fail(err, RQ_ERR_IO, "%s: cannot list: %s", path, strerror(errno));
    rq_status st = RQ_OK;
    for (struct dirent *e; st == RQ_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *child = rq_path_join(path, e->d_name);
        st = child ? rq_remove_tree(child, err) : rq_fail(err, RQ_ERR_NOMEM, "no memory to remove %s", path);
        free(child);
    }
    closedir(d);
    if (st == RQ_OK && rmdir(path) != 0) st = rq_fail(err, RQ_ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    return st;
}
