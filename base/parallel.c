/* A counter that threads draw task numbers from; the caller is one of them. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MAX_THREADS 64

typedef struct Tasks {
    atomic_int next;
    int32_t count;
    void (*task)(void *user, int32_t k);
    void *user;
} Tasks;

static void *work(void *argument) {
    Tasks *tasks = argument;
    for (;;) {
        int32_t k = atomic_fetch_add(&tasks->next, 1);
        if (k >= tasks->count) return NULL;
        tasks->task(tasks->user, k);
    }
}

void parallel_for(int32_t count, int32_t threads, void (*task)(void *user, int32_t k), void *user) {
    Tasks tasks = {.count = count, .task = task, .user = user};
    if (threads <= 0) threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (threads > count) threads = count;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    pthread_t helpers[MAX_THREADS];
    int32_t started = 0;
    while (started < threads - 1 && pthread_create(&helpers[started], NULL, work, &tasks) == 0) started++;
    work(&tasks);
    for (int32_t k = 0; k < started; k++) pthread_join(helpers[k], NULL);
}
