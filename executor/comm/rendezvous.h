/* Rendezvous of ranks that are threads of one process: barriers of groups, and data shown in between.
 *
 * A group is a list of ranks in a fixed order. Its members publish data (`brought`), wait for all, use the
 * data of the others, and wait again before any member changes it. Groups may be joined at any time
 * and synchronize independently of each other. A failure sets one flag and wakes all: members that wait,
 * or arrive later, get AM_ERROR_RUNTIME.
 *
 * Small data needs one rendezvous instead of two: a member copies it into its letter, waits for all and
 * reads the letters of the others. Each member has two, used alternately by the number of the round, so
 * that the next one is written while slower members still read this one; before the first is
 * written again, all have reached the round in between and have read it.
 */
#ifndef EXECUTOR_COMM_RENDEZVOUS_H
#define EXECUTOR_COMM_RENDEZVOUS_H

#include <stdint.h>

#include "base/status.h"

typedef struct Rendezvous Rendezvous;

typedef struct RendezvousGroup {
    int32_t count;
    int32_t *ranks;       /* [count] */
    const void **brought; /* [count], by position in the group; written by its owner before a rendezvous */
    int32_t name;
    char *letters; /* [2][count], each letter_bytes long; NULL: none */
    int64_t letter_bytes;
    struct RendezvousBarrier *barrier;
    struct RendezvousGroup *next;
} RendezvousGroup;

/* Opens a rendezvous for ranks first .. first + count - 1. */
AmStatus rendezvous_open(Rendezvous **rendezvous, int32_t first, int32_t count, AmError *error);
/* Closes it, when no thread uses it any more; NULL is fine. */
void rendezvous_close(Rendezvous *rendezvous);

/* Finds the name of the group of these ranks, in this order; any thread, any number of times. */
AmStatus rendezvous_join(Rendezvous *rendezvous, const int32_t *ranks, int32_t count, int32_t *name,
                         AmError *error);
/* Returns the group of that name, or NULL; it lives until rendezvous_close(). */
RendezvousGroup *rendezvous_group(Rendezvous *rendezvous, int32_t name);

/* Gives the group's members letters of at least so many bytes, aligned to 64; not while members wait. */
AmStatus rendezvous_reserve_letters(Rendezvous *rendezvous, RendezvousGroup *group, int64_t bytes,
                                    AmError *error);
/* Returns the number of complete rendezvous of the group. A member sees a constant between two of its own. */
uint64_t rendezvous_round(const RendezvousGroup *group);
/* Returns the letter of the member at `position` for the rendezvous after round `round`: written by it before
 * that rendezvous, read by all after it and until they reach the next one. */
char *rendezvous_letter(const RendezvousGroup *group, uint64_t round, int32_t position);

/* Waits until all members have come here. `rank` is the caller, for the message. */
AmStatus rendezvous_wait(Rendezvous *rendezvous, RendezvousGroup *group, int32_t rank, AmError *error);
/* Waits until all ranks have come here. `rank` is the caller, for the message. */
AmStatus rendezvous_barrier(Rendezvous *rendezvous, int32_t rank, AmError *error);
/* Releases all, now and later. */
void rendezvous_abort(Rendezvous *rendezvous);

#endif
