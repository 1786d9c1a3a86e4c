#define _GNU_SOURCE
#include "par/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

/* Whole CPUs of the control group's quota, 0 when there is none. */
static unsigned cgroup_quota(void) {
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) return 0;
    char line[64];
    unsigned cpus = 0;
    if (fgets(line, sizeof line, f)) {
        char *end = NULL;
        const unsigned long quota = strtoul(line, &end, 10); /* "max 100000" leaves end at the start */
        const unsigned long period = end == line ? 0 : strtoul(end, NULL, 10);
        if (period) cpus = (unsigned)((quota + period - 1) / period);
    }
    fclose(f);
    return cpus;
}

unsigned rq_cpu_count(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
    const unsigned quota = cgroup_quota();
    if (quota && (long)quota < n) n = (long)quota;
    return n < 1 ? 1 : (unsigned)n;
}

typedef struct thread_start {
    void (*fn)(void *, unsigned);
    void *context;
    unsigned thread;
} thread_start;

static void *run_one(void *p) {
    const thread_start *s = p;
    s->fn(s->context, s->thread);
    return NULL;
}

void rq_run_threads(unsigned threads, void (*fn)(void *context, unsigned thread), void *context) {
    pthread_t *ids = threads > 1 ? malloc((threads - 1) * sizeof *ids) : NULL;
    thread_start *starts = threads > 1 ? malloc((threads - 1) * sizeof *starts) : NULL;
    unsigned started = 0;
    if (ids && starts)
        while (started < threads - 1) {
            starts[started] = (thread_start){fn, context, started + 1};
            if (pthread_create(&ids[started], NULL, run_one, &starts[started]) != 0) break;
            started++;
        }
    fn(context, 0);
    for (unsigned i = 0; i < started; i++) pthread_join(ids[i], NULL);
    free(ids);
    free(starts);
}

typedef struct for_job {
    void (*fn)(void *, size_t);
    void *context;
    size_t n;
    atomic_size_t next;
} for_job;

static void for_worker(void *p, unsigned thread) {
    (void)thread;
    for_job *job = p;
    for (size_t i; (i = atomic_fetch_add(&job->next, 1)) < job->n;) job->fn(job->context, i);
}

void rq_parallel_for(unsigned threads, size_t n, void (*fn)(void *context, size_t i), void *context) {
    for_job job = {fn, context, n, 0};
    const unsigned useful = n < threads ? (unsigned)n : threads;
    rq_run_threads(useful ? useful : 1, for_worker, &job);
}
