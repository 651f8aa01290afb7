/* Whole arrays out of the shards that ranks hold, in whatever process they are.
 *
 * Every part of a parameter or output has one rank that speaks for it (rank.h).
 * Process 0 has the whole array: its own ranks' parts go straight to their places.
 * Another process packs the parts of its ranks, each behind a header that says where
 * it belongs, and sends them when all are asked to gather. */
#ifndef EXECUTOR_WHOLE_H
#define EXECUTOR_WHOLE_H

#include "executor/rank.h"

/* The ranks of this process, and the processes that share the plan. */
typedef struct WholeOwner {
    Rank *ranks;
    int32_t rank_count;
    World *world; /* NULL: this process has all ranks */
} WholeOwner;

typedef struct WholeArray {
    const WholeOwner *owner;
    const IrShape *shape;
    bool is_parameter;
    int32_t index;       /* of the parameter or output */
    char *whole;         /* process 0: the array; elsewhere NULL */
    char *packed;        /* other processes: their parts; NULL where they have none */
    int64_t *offsets;    /* [rank_count + 1]: of each rank's part in it */
    bool needs_no_other; /* process 0 has all parts; known after whole_find_places() */
} WholeArray;

/* Memory is the C heap's: whole_close() releases it, also after a failure of this. */
AmStatus whole_open(WholeArray *array, const WholeOwner *owner, const IrShape *shape, bool is_parameter,
                    int32_t index, AmError *error);
void whole_close(WholeArray *array);

/* Finds out which arrays process 0 can put together alone. All processes, same arrays. */
AmStatus whole_find_places(WholeArray *arrays, int32_t count, World *world, AmError *error);

/* The part of rank r, as it is now; by that rank's thread. */
void whole_take(WholeArray *array, int32_t r);
/* What was taken everywhere goes to process 0, where `whole` is complete afterwards. By one
 * thread of every process, all for the same array. */
AmStatus whole_gather(WholeArray *array, AmError *error);

#endif
