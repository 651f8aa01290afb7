/* Meetings by a mutex and a condition per group: see rendezvous.h. */
#include "executor/rendezvous.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct RendezvousMeeting {
    pthread_mutex_t mutex;
    pthread_cond_t all_here;
    int32_t arrived;
    uint64_t round;
} RendezvousMeeting;

struct Rendezvous {
    atomic_bool failed;
    pthread_mutex_t mutex;   /* guards the list of groups */
    RendezvousGroup *groups; /* newest first; they stay where they are */
    int32_t group_count;
    RendezvousGroup *everybody;
};

static void free_group(RendezvousGroup *group) {
    if (!group) return;
    if (group->meeting) {
        pthread_mutex_destroy(&group->meeting->mutex);
        pthread_cond_destroy(&group->meeting->all_here);
    }
    free(group->meeting);
    free(group->ranks);
    free(group->brought);
    free(group);
}

static AmStatus new_group(RendezvousGroup **result, const int32_t *ranks, int32_t count, AmError *error) {
    RendezvousGroup *group = calloc(1, sizeof *group);
    RendezvousMeeting *meeting = calloc(1, sizeof *meeting);
    if (group) {
        group->ranks = malloc(sizeof(int32_t) * (size_t)count);
        group->brought = calloc((size_t)count, sizeof *group->brought);
    }
    if (!group || !meeting || !group->ranks || !group->brought) {
        free(meeting);
        free_group(group);
        return am_fail_memory(error, count * 16);
    }
    pthread_mutex_init(&meeting->mutex, NULL);
    pthread_cond_init(&meeting->all_here, NULL);
    memcpy(group->ranks, ranks, sizeof(int32_t) * (size_t)count);
    group->count = count;
    group->meeting = meeting;
    *result = group;
    return AM_OK;
}

AmStatus rendezvous_join(Rendezvous *rendezvous, const int32_t *ranks, int32_t count, int32_t *name,
                         AmError *error) {
    AmStatus status = AM_OK;
    pthread_mutex_lock(&rendezvous->mutex);
    RendezvousGroup *group = rendezvous->groups;
    while (group &&
           (group->count != count || memcmp(group->ranks, ranks, sizeof(int32_t) * (size_t)count) != 0))
        group = group->next;
    if (!group) {
        status = new_group(&group, ranks, count, error);
        if (status == AM_OK) {
            group->next = rendezvous->groups;
            group->name = rendezvous->group_count++;
            rendezvous->groups = group;
        }
    }
    if (status == AM_OK) *name = group->name;
    pthread_mutex_unlock(&rendezvous->mutex);
    return status;
}

RendezvousGroup *rendezvous_group(Rendezvous *rendezvous, int32_t name) {
    pthread_mutex_lock(&rendezvous->mutex);
    RendezvousGroup *group = rendezvous->groups;
    while (group && group->name != name) group = group->next;
    pthread_mutex_unlock(&rendezvous->mutex);
    return group;
}

AmStatus rendezvous_open(Rendezvous **result, int32_t first, int32_t count, AmError *error) {
    Rendezvous *rendezvous = calloc(1, sizeof *rendezvous);
    int32_t *everybody = malloc(sizeof(int32_t) * (size_t)(count > 0 ? count : 1));
    int32_t name;
    if (!rendezvous || !everybody) {
        free(rendezvous);
        free(everybody);
        return am_fail_memory(error, count * 4);
    }
    atomic_init(&rendezvous->failed, false);
    pthread_mutex_init(&rendezvous->mutex, NULL);
    for (int32_t r = 0; r < count; r++) everybody[r] = first + r;
    AmStatus status = rendezvous_join(rendezvous, everybody, count, &name, error);
    free(everybody);
    if (status != AM_OK) {
        rendezvous_close(rendezvous);
        return status;
    }
    rendezvous->everybody = rendezvous->groups;
    *result = rendezvous;
    return AM_OK;
}

void rendezvous_close(Rendezvous *rendezvous) {
    if (!rendezvous) return;
    while (rendezvous->groups) {
        RendezvousGroup *next = rendezvous->groups->next;
        free_group(rendezvous->groups);
        rendezvous->groups = next;
    }
    pthread_mutex_destroy(&rendezvous->mutex);
    free(rendezvous);
}

AmStatus rendezvous_meet(Rendezvous *rendezvous, RendezvousGroup *group, int32_t rank, AmError *error) {
    RendezvousMeeting *meeting = group->meeting;
    bool complete = true;
    pthread_mutex_lock(&meeting->mutex);
    uint64_t round = meeting->round;
    if (++meeting->arrived == group->count) {
        meeting->arrived = 0;
        meeting->round++;
        pthread_cond_broadcast(&meeting->all_here);
    } else {
        while (meeting->round == round && !atomic_load(&rendezvous->failed))
            pthread_cond_wait(&meeting->all_here, &meeting->mutex);
        complete = meeting->round != round;
    }
    pthread_mutex_unlock(&meeting->mutex);
    return complete ? AM_OK
                    : am_fail(error, AM_ERROR_RUNTIME, "", "rank %d was stopped because another rank failed",
                              rank);
}

AmStatus rendezvous_barrier(Rendezvous *rendezvous, int32_t rank, AmError *error) {
    return rendezvous_meet(rendezvous, rendezvous->everybody, rank, error);
}

void rendezvous_abort(Rendezvous *rendezvous) {
    atomic_store(&rendezvous->failed, true);
    pthread_mutex_lock(&rendezvous->mutex);
    for (RendezvousGroup *group = rendezvous->groups; group; group = group->next) {
        pthread_mutex_lock(&group->meeting->mutex);
        pthread_cond_broadcast(&group->meeting->all_here);
        pthread_mutex_unlock(&group->meeting->mutex);
    }
    pthread_mutex_unlock(&rendezvous->mutex);
}
