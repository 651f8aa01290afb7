/* The inbox of a worker of an actor graph: a ring of messages that a mutex guards.
 *
 * A sender posts and signals only if the receiver sleeps. The receiver first watches the atomic counter,
 * then sleeps on the condition.
 */
#define _POSIX_C_SOURCE 200809L
#include "executor/actors/inbox.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "executor/actors/spin_wait.h"

AmStatus inbox_open(Inbox *inbox, int64_t messages, AmError *error) {
    pthread_condattr_t attributes;
    uint32_t capacity = 16;
    while (capacity < messages && capacity < UINT32_C(1) << 30) capacity *= 2;
    if (capacity < messages) return am_fail_memory(error, messages * (int64_t)sizeof(InboxMessage));
    inbox->ring = malloc(sizeof(InboxMessage) * capacity);
    if (!inbox->ring) return am_fail_memory(error, (int64_t)sizeof(InboxMessage) * capacity);
    inbox->capacity = capacity;
    inbox->head = 0;
    inbox->is_sleeping = false;
    atomic_init(&inbox->count, 0);
    atomic_init(&inbox->alerted, false);
    pthread_mutex_init(&inbox->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&inbox->arrived, &attributes);
    pthread_condattr_destroy(&attributes);
    return AM_OK;
}

void inbox_close(Inbox *inbox) {
    if (!inbox->ring) return;
    pthread_mutex_destroy(&inbox->mutex);
    pthread_cond_destroy(&inbox->arrived);
    free(inbox->ring);
    inbox->ring = NULL;
}

void inbox_post(Inbox *inbox, InboxMessage message) {
    pthread_mutex_lock(&inbox->mutex);
    uint32_t count = atomic_load_explicit(&inbox->count, memory_order_relaxed);
    assert(count < inbox->capacity);
    inbox->ring[(inbox->head + count) & (inbox->capacity - 1)] = message;
    atomic_store_explicit(&inbox->count, count + 1, memory_order_release);
    bool wake = inbox->is_sleeping;
    pthread_mutex_unlock(&inbox->mutex);
    if (wake) pthread_cond_signal(&inbox->arrived);
}

void inbox_alert(Inbox *inbox) {
    pthread_mutex_lock(&inbox->mutex);
    atomic_store(&inbox->alerted, true);
    pthread_mutex_unlock(&inbox->mutex);
    pthread_cond_signal(&inbox->arrived);
}

int32_t inbox_take(Inbox *inbox, InboxMessage *messages, int32_t most) {
    if (inbox_is_empty(inbox)) return 0;
    pthread_mutex_lock(&inbox->mutex);
    uint32_t count = atomic_load_explicit(&inbox->count, memory_order_relaxed);
    uint32_t taken = count < (uint32_t)most ? count : (uint32_t)most;
    for (uint32_t k = 0; k < taken; k++) messages[k] = inbox->ring[(inbox->head + k) & (inbox->capacity - 1)];
    inbox->head = (inbox->head + taken) & (inbox->capacity - 1);
    atomic_store_explicit(&inbox->count, count - taken, memory_order_relaxed);
    pthread_mutex_unlock(&inbox->mutex);
    return (int32_t)taken;
}

static bool has_news(Inbox *inbox) {
    return !inbox_is_empty(inbox) || atomic_load_explicit(&inbox->alerted, memory_order_acquire);
}

bool inbox_wait(Inbox *inbox, int32_t spins, double seconds) {
    struct timespec until;
    for (SpinWait wait = spin_wait_begin(spins); spins >= 0 && spin_wait_lasts(&wait);)
        if (has_news(inbox)) break;
    pthread_mutex_lock(&inbox->mutex);
    if (!has_news(inbox) && seconds > 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
        until.tv_sec += (time_t)(nanoseconds / 1000000000);
        until.tv_nsec = (long)(nanoseconds % 1000000000);
        inbox->is_sleeping = true;
        int result = 0;
        while (!has_news(inbox) && result == 0)
            result = pthread_cond_timedwait(&inbox->arrived, &inbox->mutex, &until);
        inbox->is_sleeping = false;
    }
    bool news = has_news(inbox);
    atomic_store(&inbox->alerted, false);
    pthread_mutex_unlock(&inbox->mutex);
    return news;
}
