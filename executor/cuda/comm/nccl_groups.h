/* The numbers by which groups of ranks find one another in NCCL.
 *
 * One process makes a group's number (128 bytes), and every member needs it.
 * Each process lists the groups that its ranks are in; process 0 collects the
 * lists, makes a number for every group once, and sends all of them to all.
 */
#ifndef EXECUTOR_CUDA_COMM_NCCL_GROUPS_H
#define EXECUTOR_CUDA_COMM_NCCL_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/comm/comm.h"

enum { NCCL_GROUP_NUMBER_BYTES = 128 };

/* Groups without duplicates, one record each: count, ranks[count], number, in 32-bit words. */
typedef struct NcclGroupList {
    int32_t *words;
    int64_t word_count, word_capacity;
} NcclGroupList;

/* Returns whether two lists have the same ranks in the same order. */
bool nccl_same_ranks(const int32_t *a, int32_t a_count, const int32_t *b, int32_t b_count);

AmStatus nccl_groups_add(NcclGroupList *list, const int32_t *ranks, int32_t count, AmError *error);
void nccl_groups_free(NcclGroupList *list);

/* Shares the lists, a collective among the processes (NULL: this one is alone): afterwards every list is that
 * of all groups, with the numbers that process 0 has made by `make`. */
AmStatus nccl_groups_share(NcclGroupList *list, ProcessGroup *processes,
                           AmStatus (*make)(void *number, AmError *error), AmError *error);

/* Finds a shared group's number; AM_ERROR_INTERNAL for an unlisted one. */
AmStatus nccl_groups_number(const NcclGroupList *list, const int32_t *ranks, int32_t count, void *number,
                            AmError *error);

#endif
