/* Values of parameters: initial values, and the examples of every step.
 *
 * The arrays and tokens of --state and --data are compared with the module's parameters once. An
 * array of the parameter's own shape is set before the first step. Others are divided into
 * examples, as many per step as the batch has: an array with an additional dimension or with a
 * first dimension that is a multiple of the parameter's; a token file in windows (feed_source.h).
 * All of them wrap around together, which is an epoch; with options->shuffle each epoch has another
 * permutation of the examples, computed from seed and epoch, so that it depends on neither plan nor
 * ranks.
 *
 * An actor loads the batches and cuts them into the ranks' shards, in a thread of its own and in
 * options->prefetch places: the step's own, and those of later steps. The first is loaded before
 * the first step, so that its errors are errors of the input. Later steps allocate no memory.
 */
#ifndef EXECUTOR_DATA_FEED_H
#define EXECUTOR_DATA_FEED_H

#include "executor/program/rank.h"
#include "executor/program/run_options.h"

enum { FEED_PREFETCH = 2, FEED_MOST_PREFETCH = 64 };

typedef struct Feeds Feeds;

/* The position at which the data continues, as a checkpoint stores it. */
typedef struct FeedPosition {
    uint64_t seed; /* of the order */
    bool shuffled;
    int64_t epoch, batch; /* of the batch that comes next */
    int64_t batches;      /* in an epoch; 0: no parameter has several, and the other fields are unused */
} FeedPosition;

/* Reads the state, sets constant parameters in all ranks, and finds the data; parameters that
 * `is_resumed` [parameter] marks (NULL: none) are set by the caller. AM_ERROR_INPUT names a
 * parameter without a file, or an array that does not fit. `ranks`, options and context are used
 * until feeds_close(). */
AmStatus feeds_open(Feeds **feeds, const PlanContext *context, const RunOptions *options, Rank *ranks,
                    int32_t rank_count, const bool *is_resumed, AmError *error);
/* Ends the loading; NULL is allowed. */
void feeds_close(Feeds *feeds);

/* Returns whether the parameter, by its number in `context`, has other values in every step. */
bool feeds_has_batches(const Feeds *feeds, int32_t parameter);

/* Returns the position of the data after `steps` steps since feeds_start(). */
FeedPosition feeds_position(const Feeds *feeds, int64_t steps);
/* Starts from there instead of the beginning; before feeds_start(). AM_ERROR_INPUT: the position was
 * taken with another number of batches or another order. */
AmStatus feeds_seek(Feeds *feeds, const FeedPosition *position, AmError *error);

/* Loads the first batch. AM_ERROR_INPUT: it is bad. */
AmStatus feeds_start(Feeds *feeds, AmError *error);
/* Places for batches; 0: nothing comes in batches, so there is nothing to load. */
int32_t feeds_depth(const Feeds *feeds);
/* Returns whether a batch is loaded so soon that no thread need be woken for it. */
bool feeds_are_small(const Feeds *feeds);
/* Fires an actor (actors.h): loads the batch of step `iteration`, counted from feeds_start(). Place
 * `iteration` modulo the depth must be free: all ranks have taken its contents. The ranks that take the batch
 * receive a failure. */
AmStatus feeds_load(void *feeds, int64_t iteration, AmError *error);
/* Sets the parameters of rank number r of this process to those of step `step`, which is
 * loaded; by the rank's thread. AM_ERROR_RUNTIME: it could not be loaded. */
AmStatus feeds_take(Feeds *feeds, int32_t r, int64_t step, AmError *error);

/* Draws a parameter's array for --state random element by element from a counter, so that it is the same for
 * every sharding. `data` has room for it. */
AmStatus feed_draw(void *data, const PlanContext *context, int32_t parameter, uint64_t seed, AmError *error);
/* Finds the size of the dimension that an integer parameter indexes, such as the vocabulary; 0: not known. */
AmStatus feed_index_limit(int64_t *limit, const PlanContext *context, int32_t parameter, AmError *error);

#endif
