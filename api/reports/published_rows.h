/* The rows of `published`: each a training step, a cluster and a strategy, simulated.
 *
 * published_predict() simulates the plan of each row's strategy, and published_search() searches a plan for
 * the same model and cluster. published/runs.h describes the fields.
 */
#ifndef API_REPORTS_PUBLISHED_ROWS_H
#define API_REPORTS_PUBLISHED_ROWS_H

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

/* The plan of a search. */
typedef struct PublishedChoice {
    double seconds;    /* NAN: none */
    const char *plan;  /* in words; NULL: none */
    const char *error; /* the reason why there is none; or NULL */
} PublishedChoice;

typedef struct PublishedRow {
    const PublishedRun *run;
    PublishedOutcome outcome;
    AmError error;
    TransformerShape shape;
    Strategy strategy; /* the fastest one where a field is empty */
    int64_t micro_batch;
    double step_seconds;
    MemoryFit fit; /* of the fullest device */
    PublishedChoice search;
} PublishedRow;

/* Predicts all rows, side by side; rows of one shape share its module. A failure of a row is the row's.
 * `watch` counts them; or NULL. `rows` are in the arena. AM_INTERRUPTED after an interrupt. */
AmStatus published_predict(PublishedRow *rows, int32_t count, double memory_fraction, SearchWatch *watch,
                           AmError *error);

/* Opens the module and the cluster of a row, which the caller frees. AM_ERROR_INPUT: a field has no
 * meaning. */
AmStatus published_open(PlanContext **primary, Cluster **cluster, Arena *arena, const PublishedRow *row,
                        AmError *error);

/* Returns whether two runs have the same model and the same cluster, whatever their strategies are. */
bool published_is_same_problem(const PublishedRun *run, const PublishedRun *other);

typedef struct PublishedSearch {
    double seconds; /* of each model and cluster, at most */
    double memory_fraction;
    SearchWatch *watch; /* counts rows; or NULL */
    Arena *arena;       /* for the texts */
} PublishedSearch;

/* Searches a plan for each row, also where it has no strategy. Rows of the same model and cluster share one
 * search. A row without a plan has an error. */
AmStatus published_search(PublishedRow *rows, int32_t count, const PublishedSearch *settings, AmError *error);

/* Writes the module and the plan of a row; either path may be NULL. */
AmStatus published_write(const PublishedRow *row, double memory_fraction, const char *module_path,
                         const char *plan_path, AmError *error);

#endif
