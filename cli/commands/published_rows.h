/* The rows of published: each as a training step, a cluster and a strategy, simulated. */
#ifndef CLI_COMMANDS_PUBLISHED_ROWS_H
#define CLI_COMMANDS_PUBLISHED_ROWS_H

#include "cost/simulate/simulate.h"
#include "models/transformer.h"
#include "planners/problem/search_watch.h"
#include "planners/strategy.h"
#include "published/runs.h"

typedef enum PublishedOutcome {
    PUBLISHED_PREDICTED,
    PUBLISHED_FAILED,     /* `error` has the reason */
    PUBLISHED_NO_STRATEGY /* nothing to simulate */
} PublishedOutcome;

typedef struct PublishedRow {
    const PublishedRun *run;
    PublishedOutcome outcome;
    AmError error;
    TransformerShape shape;
    Strategy strategy; /* the fastest one where a field is empty */
    int64_t micro_batch;
    double step_seconds;
    MemoryFit fit; /* of the fullest device */
} PublishedRow;

/* Predicts all rows, side by side; rows of one shape share its module. A failure of a row is the row's.
 * `watch` counts them; or NULL. `rows` are in the arena. AM_INTERRUPTED after an interrupt. */
AmStatus published_predict(PublishedRow *rows, int32_t count, double memory_fraction, SearchWatch *watch,
                           AmError *error);

/* Writes the module and the plan of a row; either path may be NULL. */
AmStatus published_write(const PublishedRow *row, double memory_fraction, const char *module_path,
                         const char *plan_path, AmError *error);

#endif
