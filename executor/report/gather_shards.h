/* Gathers global arrays from the shards of ranks in any process.
 *
 * Every part of a parameter or output has one representative rank (rank.h). Process 0 has the global
 * array: its own ranks' parts go straight to their positions. Another process packs the parts of
 * its ranks, each after a header with its position, and sends them when all gather. */
#ifndef EXECUTOR_REPORT_GATHER_SHARDS_H
#define EXECUTOR_REPORT_GATHER_SHARDS_H

#include "executor/program/rank.h"

/* The ranks of this process, and the processes that share the plan. */
typedef struct ShardOwner {
    Rank *ranks;
    int32_t rank_count;
    ProcessGroup *processes; /* NULL: this process has all ranks */
} ShardOwner;

typedef struct GatheredArray {
    const ShardOwner *owner;
    const IrShape *shape;
    bool is_parameter;
    int32_t index;       /* of the parameter or output */
    char *global;        /* process 0: the array; elsewhere NULL */
    char *packed;        /* other processes: their parts; NULL where they have none */
    int64_t *offsets;    /* [rank_count + 1]: of each rank's part in it */
    bool needs_no_other; /* process 0 has all parts; known after gathered_find_places() */
} GatheredArray;

/* Opens the arrays. Memory is the C heap's: gathered_close() releases it, also after a failure of this. */
AmStatus gathered_open(GatheredArray *array, const ShardOwner *owner, const IrShape *shape, bool is_parameter,
                       int32_t index, AmError *error);
void gathered_close(GatheredArray *array);

/* Finds out which arrays process 0 can put together alone. All processes, same arrays. */
AmStatus gathered_find_places(GatheredArray *arrays, int32_t count, ProcessGroup *processes, AmError *error);

/* Takes the current part of rank r; called by that rank's thread. */
void gathered_take(GatheredArray *array, int32_t r);
/* Sends the parts taken in all processes to process 0, where `global` is complete afterwards. Called
 * by one thread of every process, all for the same array. */
AmStatus gathered_gather(GatheredArray *array, AmError *error);

#endif
