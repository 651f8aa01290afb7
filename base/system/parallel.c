/* Threads that draw the numbers of tasks from one counter.
 *
 * The caller of parallel_for() is one of them, so that the work is done even if no thread can be started.
 */
#define _GNU_SOURCE
#include "base/system/parallel.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 64

AmStatus parallel_start_thread(pthread_t *thread, void *(*work)(void *argument), void *argument,
                               AmError *error) {
    int cause = pthread_create(thread, NULL, work, argument);
    if (cause == 0) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, "", "cannot start a thread: %s (memory for its stack is needed)",
                   strerror(cause));
}

typedef struct Tasks {
    atomic_int next;
    int32_t count;
    void (*task)(void *user, int32_t k);
    void *user;
    locale_t locale; /* of the calling thread, which a new thread does not inherit */
} Tasks;

/* Runs the loop of a thread: takes the next number and runs its task. */
static void *work(void *argument) {
    Tasks *tasks = argument;
    uselocale(tasks->locale);
    for (;;) {
        int32_t k = atomic_fetch_add(&tasks->next, 1);
        if (k >= tasks->count) return NULL;
        tasks->task(tasks->user, k);
    }
}

/* Returns the value of AUTOMAP_THREADS; 0: not set, -1: no valid number of threads. */
static long wanted_threads(void) {
    const char *text = getenv("AUTOMAP_THREADS");
    if (!text || !*text) return 0;
    char *end;
    long threads = strtol(text, &end, 10);
    return end == text || *end || threads < 1 ? -1 : threads;
}

bool parallel_threads_are_valid(void) {
    return wanted_threads() >= 0;
}

int32_t parallel_threads(void) {
    long threads = wanted_threads();
    if (threads <= 0) {
        static atomic_long known;
        threads = atomic_load(&known);
        if (threads == 0) atomic_store(&known, threads = sysconf(_SC_NPROCESSORS_ONLN));
    }
    return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (int32_t)threads;
}

void parallel_for(int32_t count, int32_t threads, void (*task)(void *user, int32_t k), void *user) {
    Tasks tasks = {.count = count, .task = task, .user = user, .locale = uselocale((locale_t)0)};
    if (threads <= 0) threads = parallel_threads();
    if (threads > count) threads = count;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    pthread_t helpers[MAX_THREADS];
    int32_t started = 0;
    while (started < threads - 1 && pthread_create(&helpers[started], NULL, work, &tasks) == 0) started++;
    work(&tasks);
    for (int32_t k = 0; k < started; k++) pthread_join(helpers[k], NULL);
}

static void *run_task(void *argument) {
    const ParallelTask *task = argument;
    uselocale(task->locale);
    task->run(task->user);
    return NULL;
}

void parallel_begin(ParallelTask *task, void (*run)(void *user), void *user) {
    *task = (ParallelTask){.run = run, .user = user, .locale = uselocale((locale_t)0)};
    if (parallel_threads() > 1) task->has_thread = pthread_create(&task->thread, NULL, run_task, task) == 0;
}

void parallel_end(ParallelTask *task) {
    if (task->has_thread) pthread_join(task->thread, NULL);
    else task->run(task->user);
}
