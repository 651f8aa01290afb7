/* Statistics of predicted beside measured step times.
 *
 * The error of a row is predicted / measured - 1. Orders are compared within groups, whose rows differ in
 * strategy alone.
 */
#ifndef PUBLISHED_SUMMARY_H
#define PUBLISHED_SUMMARY_H

#include "base/arena.h"
#include "base/status.h"

/* One run. NAN: not measured, or not predicted. */
typedef struct PublishedPair {
    const char *group;
    double measured, predicted; /* seconds of a step */
    bool is_oom, is_ok;         /* as measured; neither: unknown */
    bool has_memory, fits;      /* as predicted */
} PublishedPair;

typedef struct PublishedSummary {
    int32_t rows;     /* with a measured time */
    int32_t compared; /* of these, with a prediction */
    int32_t failed;   /* measured, by time or as out of memory, without a prediction */
    /* NAN without rows */
    double median, mean, percentile_90; /* of the absolute error */
    double bias;                        /* mean error */
    int64_t concordant, discordant;     /* pairs of a group with unequal measured times */
    double tau;                         /* (concordant - discordant) / such pairs; NAN without pairs */
    int32_t groups;                     /* of two and more compared rows */
    double regret;                      /* median over groups: measured time of the predicted best over the
                                           least, minus one */
    int32_t oom_found, oom_missed, ok_found, ok_refused; /* measured oom, then ok: predicted so, or not */
} PublishedSummary;

/* Returns the value at a quantile from 0 to 1, with linear interpolation; sorts the values. NAN of none. */
double published_quantile(double *values, int32_t count, double quantile);

/* Adds the pairs of two lists that are ordered alike and those ordered in opposite ways; ties in either list
 * are neither. `*unequal` counts pairs of unequal x. O(n log n). */
AmStatus published_pairs(const double *x, const double *y, int32_t count, int64_t *concordant,
                         int64_t *discordant, int64_t *unequal, AmError *error);

/* Compares all pairs, and pairs of rows within groups. AM_ERROR_INTERNAL: no memory. */
AmStatus published_summarize(PublishedSummary *summary, const PublishedPair *pairs, int32_t count,
                             AmError *error);

#endif
