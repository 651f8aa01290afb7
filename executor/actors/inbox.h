/* An inbox: messages to one worker of an actor graph, from any other.
 *
 * A ring that a mutex guards. Its size is given once and is enough by the graph's quotas
 * (actor_graph.c), so posting neither waits nor allocates. The receiver looks at an
 * atomic counter while it has other work; when it has none it watches the counter
 * for a limited time, and then sleeps on a condition.
 */
#ifndef EXECUTOR_ACTORS_INBOX_H
#define EXECUTOR_ACTORS_INBOX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum InboxKind {
    INBOX_REQ, /* `count` registers are full: to the consumer */
    INBOX_ACK  /* `count` registers are free again: to the producer */
} InboxKind;

typedef struct InboxMessage {
    InboxKind kind;
    int32_t edge, count;
} InboxMessage;

typedef struct Inbox {
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    InboxMessage *ring; /* [capacity], a power of two */
    uint32_t capacity, head;
    _Atomic uint32_t count;
    atomic_bool alerted;
    bool is_sleeping;
} Inbox;

/* Makes room for `messages` that have not been taken. Release with inbox_close(). */
AmStatus inbox_open(Inbox *inbox, int64_t messages, AmError *error);
void inbox_close(Inbox *inbox);

void inbox_post(Inbox *inbox, InboxMessage message);
/* Ends the receiver's waiting without a message. */
void inbox_alert(Inbox *inbox);

/* Moves up to `most` messages to `messages`, in the order of posting; returns how many. */
int32_t inbox_take(Inbox *inbox, InboxMessage *messages, int32_t most);
static inline bool inbox_is_empty(const Inbox *inbox) {
    return atomic_load_explicit(&inbox->count, memory_order_acquire) == 0;
}

/* Waits for a message or an alert, which it takes back, at most `seconds`; before it sleeps it is patient
 * (spin_wait.h, with `spins`; -1: it is not). False: the time is over. */
bool inbox_wait(Inbox *inbox, int32_t spins, double seconds);

#endif
