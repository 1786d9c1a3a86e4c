/* Threads. The pool is created by whoever runs a job and passed down; work is always a range of independent items, so
 * results never depend on how many threads there are. */
#ifndef RQ_POOL_H
#define RQ_POOL_H

#include "rotq/error.h"

/* CPUs this process may use: affinity mask and the control group's quota. At least 1. */
unsigned rq_cpu_count(void);

/* Runs fn(context, thread) on `threads` threads (this one included) and waits for all of them.
 * When a thread cannot be started, the others still run: fn must hand out its work dynamically. */
void rq_run_threads(unsigned threads, void (*fn)(void *context, unsigned thread), void *context);

/* fn(context, i) for i in [0, n), handed out in order. */
void rq_parallel_for(unsigned threads, size_t n, void (*fn)(void *context, size_t i), void *context);

#endif
