/* Rendezvous: where ranks that are threads of one process meet.
 *
 * A group is a list of ranks in a fixed order. Its members show one another
 * something (`brought`), meet, use what the others brought, and meet again
 * before anybody changes it. Groups may be joined at any time and meet
 * independently of one another. A failure sets one flag and wakes everybody:
 * whoever waits, or comes later and would have to wait, gets AM_ERROR_RUNTIME.
 */
#ifndef EXECUTOR_RENDEZVOUS_H
#define EXECUTOR_RENDEZVOUS_H

#include <stdint.h>

#include "base/status.h"

typedef struct Rendezvous Rendezvous;

typedef struct RendezvousGroup {
    int32_t count;
    int32_t *ranks;       /* [count] */
    const void **brought; /* [count], by position in the group; written by its owner before it meets */
    int32_t name;
    struct RendezvousMeeting *meeting;
    struct RendezvousGroup *next;
} RendezvousGroup;

/* For ranks first .. first + count - 1. */
AmStatus rendezvous_open(Rendezvous **rendezvous, int32_t first, int32_t count, AmError *error);
/* When no thread uses it any more; NULL is fine. */
void rendezvous_close(Rendezvous *rendezvous);

/* The name of the group of these ranks, in this order; any thread, any number of times. */
AmStatus rendezvous_join(Rendezvous *rendezvous, const int32_t *ranks, int32_t count, int32_t *name,
                         AmError *error);
/* The group of that name, or NULL; it lives until rendezvous_close(). */
RendezvousGroup *rendezvous_group(Rendezvous *rendezvous, int32_t name);

/* Waits until all members have come here. `rank` is the caller, for the message. */
AmStatus rendezvous_meet(Rendezvous *rendezvous, RendezvousGroup *group, int32_t rank, AmError *error);
/* The same for all ranks. */
AmStatus rendezvous_barrier(Rendezvous *rendezvous, int32_t rank, AmError *error);
/* Releases all, now and later. */
void rendezvous_abort(Rendezvous *rendezvous);

#endif
