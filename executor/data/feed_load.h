/* Batches and their buffers. Private to feeding.
 *
 * Batch t goes to place t mod depth. A place holds every parameter's batch in the shards of this
 * process's ranks, each distinct one once, so that a rank only copies its own to its device. The
 * caller ensures that all ranks have read a place before it is reused: as an actor, by a quota of
 * `depth` registers.
 */
#ifndef EXECUTOR_DATA_FEED_LOAD_H
#define EXECUTOR_DATA_FEED_LOAD_H

#include "base/permutation.h"
#include "executor/data/feed_source.h"

/* The examples of the batch of each rank. */
typedef struct FeedOrder {
    int64_t batches, examples, per_batch; /* of an epoch; examples and per_batch: of the shuffled data */
    uint64_t seed;
    bool shuffled;
    int64_t start; /* batches before the first step, of all epochs */
} FeedOrder;

/* One distinct shard of a batch. */
typedef struct FeedCut {
    const ShardLayout *layout; /* a rank's own */
    bool is_whole;
    int64_t offset; /* in the place */
} FeedCut;

/* A parameter's batch: read whole, then cut. */
typedef struct FeedLoad {
    const Feed *feed;
    FeedCut *cuts; /* [cut_count] */
    int32_t cut_count;
    int32_t *cut_of; /* [rank_count], -1: the rank does not hold the parameter */
    char *whole;     /* where no cut is the whole; else NULL */
} FeedLoad;

typedef struct FeedLoader {
    Rank *ranks;
    int32_t rank_count, depth, count;
    FeedLoad *loads; /* [count] */
    FeedOrder order;
    int64_t *chosen; /* [order.per_batch]; NULL: in order */
    Permutation permutation;
    int64_t permuted_epoch; /* of `permutation`; -1: none yet */
    char *places;           /* [depth] of place_bytes; C heap */
    int64_t place_bytes;
    bool has_first;  /* batch 0 is there already */
    bool has_failed; /* the loader's: nothing is loaded any more */
    bool *is_lost;   /* [depth]: what should be in the place could not be loaded */
    AmError error;   /* why */
} FeedLoader;

/* Plans places and allocates; arrays of the arena's, places of the C heap's. feed_loader_close() also
 * after a failure. */
AmStatus feed_loader_open(FeedLoader *loader, Arena *arena, const Feed *feeds, int32_t feed_count,
                          Rank *ranks, int32_t rank_count, int32_t depth, AmError *error);
void feed_loader_close(FeedLoader *loader);

/* Loads the first batch. */
AmStatus feed_loader_start(FeedLoader *loader, const FeedOrder *order, Arena *arena, AmError *error);
/* Loads batch `step`; readers receive a failure. One call at a time, in order. */
void feed_loader_load(FeedLoader *loader, int64_t step);
/* Copies batch `step`, which is loaded, to rank r. AM_ERROR_RUNTIME: it could not be. */
AmStatus feed_loader_take(FeedLoader *loader, int32_t r, int64_t step, AmError *error);

#endif
