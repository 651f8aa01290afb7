/* The numbers by which groups of ranks find one another in NCCL: process 0 merges the lists of all processes
 * and makes a number for each group. */
#include "executor/cuda/comm/nccl_groups.h"

#include <stdlib.h>
#include <string.h>

enum { NUMBER_WORDS = NCCL_GROUP_NUMBER_BYTES / 4, MOST_WORDS = 1 << 24 };

bool nccl_same_ranks(const int32_t *a, int32_t a_count, const int32_t *b, int32_t b_count) {
    return a_count == b_count && memcmp(a, b, sizeof *a * (size_t)a_count) == 0;
}

/* Words of the record at `at`; 0 if it does not fit, since data of another process is not trusted. */
static int64_t record_words(const int32_t *words, int64_t count, int64_t at) {
    if (at >= count || words[at] < 1 || words[at] > count - at - 1 - NUMBER_WORDS) return 0;
    return 1 + words[at] + NUMBER_WORDS;
}

/* Returns the place of the group of these ranks, or NULL. */
static int32_t *find_number(const NcclGroupList *list, const int32_t *ranks, int32_t count) {
    int64_t size;
    for (int64_t at = 0; (size = record_words(list->words, list->word_count, at)) > 0; at += size)
        if (nccl_same_ranks(list->words + at + 1, list->words[at], ranks, count))
            return list->words + at + 1 + count;
    return NULL;
}

AmStatus nccl_groups_add(NcclGroupList *list, const int32_t *ranks, int32_t count, AmError *error) {
    int64_t size = 1 + (int64_t)count + NUMBER_WORDS;
    if (find_number(list, ranks, count)) return AM_OK;
    if (list->word_count + size > list->word_capacity) {
        int64_t capacity = 2 * (list->word_count + size);
        int32_t *words = realloc(list->words, sizeof *words * (size_t)capacity);
        if (!words) return am_fail_memory(error, (int64_t)sizeof *words * capacity);
        list->words = words;
        list->word_capacity = capacity;
    }
    int32_t *record = list->words + list->word_count;
    memset(record, 0, sizeof *record * (size_t)size);
    record[0] = count;
    memcpy(record + 1, ranks, sizeof *record * (size_t)count);
    list->word_count += size;
    return AM_OK;
}

void nccl_groups_free(NcclGroupList *list) {
    free(list->words);
    *list = (NcclGroupList){0};
}

/* Adds the lists of the other processes. */
static AmStatus collect(NcclGroupList *list, ProcessGroup *processes, AmError *error) {
    bool first = processes->process == 0;
    ProcessPart *parts = first ? calloc((size_t)processes->count, sizeof *parts) : NULL;
    AmStatus status;
    if (first && !parts) return am_fail_memory(error, (int64_t)sizeof *parts * processes->count);
    TRY_OR_FAIL(process_group_gather(processes, list->words, 4 * list->word_count, 4 * (int64_t)MOST_WORDS,
                                     parts, error));
    for (int32_t p = 1; first && p < processes->count && status == AM_OK; p++) {
        const int32_t *words = parts[p].bytes;
        int64_t size, count = parts[p].count / 4;
        for (int64_t at = 0; status == AM_OK && (size = record_words(words, count, at)) > 0; at += size)
            status = nccl_groups_add(list, words + at + 1, words[at], error);
    }
    if (first) process_group_release_parts(processes, parts);
fail:
    free(parts);
    return status;
}

/* Process 0's list in place of the others'. */
static AmStatus distribute(NcclGroupList *list, ProcessGroup *processes, AmError *error) {
    int64_t count = list->word_count;
    TRY(process_group_broadcast(processes, &count, (int64_t)sizeof count, error));
    if (count < 0 || count > (int64_t)MOST_WORDS * BOOTSTRAP_MOST_PROCESSES)
        return am_fail(error, AM_ERROR_RUNTIME, "", "process 0 sent an invalid list of groups");
    if (count > list->word_capacity) {
        int32_t *words = realloc(list->words, sizeof *words * (size_t)count);
        if (!words) return am_fail_memory(error, (int64_t)sizeof *words * count);
        list->words = words;
        list->word_capacity = count;
    }
    list->word_count = count;
    return process_group_broadcast(processes, list->words, (int64_t)sizeof *list->words * count, error);
}

AmStatus nccl_groups_share(NcclGroupList *list, ProcessGroup *processes,
                           AmStatus (*make)(void *number, AmError *error), AmError *error) {
    int64_t size;
    bool several = processes && processes->count > 1;
    if (several) TRY(collect(list, processes, error));
    for (int64_t at = 0; (!several || processes->process == 0) &&
                         (size = record_words(list->words, list->word_count, at)) > 0;
         at += size)
        TRY(make(list->words + at + 1 + list->words[at], error));
    return several ? distribute(list, processes, error) : AM_OK;
}

AmStatus nccl_groups_number(const NcclGroupList *list, const int32_t *ranks, int32_t count, void *number,
                            AmError *error) {
    const int32_t *found = find_number(list, ranks, count);
    if (!found)
        return am_fail(error, AM_ERROR_INTERNAL, "", "a group of %d ranks that no process has listed", count);
    memcpy(number, found, NCCL_GROUP_NUMBER_BYTES);
    return AM_OK;
}
