/* The files of a run, and one parameter's examples in them. Private to feeding.
 *
 * --data NAME[,NAME]=FILE names the parameters that a file feeds. Without names an array feeds the
 * parameter of its own name, and a token file the integer data parameters: `inputs` gets tokens i
 * .. i + T - 1 of every window and `targets`, if there is one, the next ones, T being the last
 * dimension. Windows are consecutive, so that every token but the first is a target once.
 */
#ifndef EXECUTOR_DATA_FEED_SOURCE_H
#define EXECUTOR_DATA_FEED_SOURCE_H

#include "base/files/array_rows.h"
#include "base/files/token_file.h"
#include "executor/data/feed.h"

/* The source of the values of each parameter. */
typedef struct Feed {
    const IrParameter *parameter; /* of the module as read */
    int32_t number;               /* of the parameter in the ranks' programs; of its first layer */
    const IrShape *shape;
    const char *path;  /* of the file; NULL: drawn */
    const char *array; /* its name there */
    char *once;        /* not in batches: the array; C heap, until the ranks have it */
    int64_t batches;   /* more than 1, or tokens: in batches */
    int64_t examples;  /* of them all, a remainder that fills no batch included */
    int64_t per_batch;
    bool in_order;       /* one value a step, such as a learning rate: never shuffled */
    int64_t batch_bytes; /* stored, or in the parameter's type: the larger one */
    Dtype stored;
    bool has_rows, has_tokens;
    ArrayRows rows;   /* one for each example */
    TokenFile tokens; /* windows of `window` tokens, `shift` after the first of the window */
    int64_t window, stride, shift, limit;
    int64_t *values; /* [window] */
    void *bytes;     /* the window in its stored form */
} Feed;

static inline bool feed_in_batches(const Feed *feed) {
    return feed->has_rows || feed->has_tokens;
}

/* A file of --state or --data. */
typedef struct FeedFile {
    const char *path; /* without the names */
    bool is_tokens;
    int32_t inputs, targets; /* parameters that tokens go to; -1: none. Arrays: the one named, or -1 */
    ArrayFile arrays;
} FeedFile;

typedef struct FeedSource {
    const PlanContext *context; /* of the whole module */
    const RunOptions *options;
    Arena *arena;
    FeedFile state, *data;
    bool has_state;
    int32_t data_count;
} FeedSource;

/* Opens the files of --state and --data; they are read later. AM_ERROR_INPUT: a file cannot be read. */
AmStatus feed_source_open(FeedSource *source, const PlanContext *context, const RunOptions *options,
                          Arena *arena, AmError *error);
void feed_source_close(FeedSource *source); /* also after a failure */
/* Finds the file that feeds a parameter and the array in it, NULL for tokens. `*file` is NULL if
 * the parameter is drawn at random. AM_ERROR_INPUT: no file has it, or two data files do. */
AmStatus feed_source_find(FeedFile **file, const ArrayEntry **entry, FeedSource *source, int32_t parameter,
                          AmError *error);

/* Opens one parameter's feed: found, and read if it is not in batches. feed_close() also after a failure. */
AmStatus feed_open(Feed *feed, FeedSource *source, int32_t parameter, AmError *error);
void feed_close(Feed *feed);

/* Examples chosen[0 .. per_batch - 1], or number `batch * per_batch` and the following where `chosen` is
 * NULL, into data (batch_bytes), in the parameter's type. */
AmStatus feed_read_batch(const Feed *feed, const int64_t *chosen, int64_t batch, char *data, AmError *error);

#endif
