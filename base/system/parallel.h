/* Threads: their start, independent tasks on several of them, and a task beside its caller. */
#ifndef BASE_SYSTEM_PARALLEL_H
#define BASE_SYSTEM_PARALLEL_H

#include <locale.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Starts a thread with the default attributes. AM_ERROR_INTERNAL: there is no memory for its stack, or the
 * limit of threads is reached. */
AmStatus parallel_start_thread(pthread_t *thread, void *(*work)(void *argument), void *argument,
                               AmError *error);

/* Returns the largest number of working threads: the environment variable AUTOMAP_THREADS, else one per
 * processor. */
int32_t parallel_threads(void);
/* Returns whether AUTOMAP_THREADS is a valid number of threads, or not set; an invalid value is
 * ignored. */
bool parallel_threads_are_valid(void);

/* Calls task(user, k) for every k in [0, count), each once, on at most `threads` threads (0:
 * parallel_threads()). Tasks are taken in order. The result of a task must not depend on its
 * thread. If no thread can be created, the caller runs all tasks. Returns when all are done. */
void parallel_for(int32_t count, int32_t threads, void (*task)(void *user, int32_t k), void *user);

/* A task beside its caller. */
typedef struct ParallelTask {
    void (*run)(void *user);
    void *user;
    locale_t locale; /* of the caller */
    pthread_t thread;
    bool has_thread;
} ParallelTask;

/* Starts run(user) in a thread of its own; `task` and `user` must outlive it. Without a second thread the
 * task waits for parallel_end(). */
void parallel_begin(ParallelTask *task, void (*run)(void *user), void *user);
/* Returns when the task is done. */
void parallel_end(ParallelTask *task);

#endif
