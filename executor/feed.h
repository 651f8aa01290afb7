/* What parameters hold: initial values, and the batches of every step.
 *
 * A feed is the host's whole copy of one parameter's array. An array of the
 * parameter's own shape is the same at every step; one with a dimension more, or
 * with a first dimension that is a multiple of the parameter's, is cut into
 * consecutive batches that wrap around (interface, "run").
 */
#ifndef EXECUTOR_FEED_H
#define EXECUTOR_FEED_H

#include "base/array_file.h"
#include "executor/run.h"

typedef struct Feed {
    char *data;          /* C heap: `batches` arrays of the parameter's shape */
    int64_t batches;     /* 1: the same at every step */
    int64_t batch_bytes; /* of one whole array */
    const char *file;    /* where it came from, for messages; NULL: drawn */
} Feed;

/* Opens the files of a run once and reads parameters from them. */
typedef struct FeedSource {
    const PlanContext *context;
    const AmRunOptions *options;
    ArrayFile state, data;
    bool has_state, has_data;
} FeedSource;

AmStatus feed_open(FeedSource *source, const PlanContext *context, const AmRunOptions *options,
                   AmError *error);
void feed_close(FeedSource *source);
/* The caller releases it with feed_release(). */
AmStatus feed_read(Feed *feed, FeedSource *source, int32_t parameter, AmError *error);
void feed_release(Feed *feed);
/* Makes all feeds of several batches have the same number: the smallest that is
 * left after dropping at most a remainder, with a warning; AM_ERROR_INPUT where
 * they differ otherwise. */
AmStatus feed_align(Feed *feeds, const PlanContext *context, AmWarnings *warnings, AmError *error);

/* --state random: draws a parameter's array element by element from a counter,
 * so that it is the same for every sharding. `data` has room for it. */
AmStatus feed_draw(void *data, const PlanContext *context, int32_t parameter, uint64_t seed, AmError *error);

#endif
