/* Statistics of predicted beside measured step times: errors, quantiles and orders.
 *
 * published_pairs() counts the pairs of rows that prediction and measurement order alike (Kendall's tau) by
 * merge sort. Pairs are formed inside of groups of rows.
 */
#include "published/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"

double published_quantile(double *values, int32_t count, double quantile) {
    if (count == 0) return NAN;
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    double place = quantile * (count - 1);
    int32_t below = (int32_t)floor(place);
    if (below + 1 >= count) return values[count - 1];
    return values[below] + (place - below) * (values[below + 1] - values[below]);
}

/* ---- pairs (Knight 1966) ---- */

typedef struct Point {
    double x, y;
} Point;

static int compare_points(const void *left, const void *right) {
    const Point *a = left, *b = right;
    if (a->x != b->x) return a->x < b->x ? -1 : 1;
    return (a->y > b->y) - (a->y < b->y);
}

/* Sorts by y and returns the number of pairs that stood in descending order. */
static int64_t sort_counting(Point *points, Point *other, int32_t count) {
    if (count < 2) return 0;
    int32_t half = count / 2, a = 0, b = half;
    int64_t swaps = sort_counting(points, other, half) + sort_counting(points + half, other, count - half);
    for (int32_t k = 0; k < count; k++) {
        bool takes_left = b == count || (a < half && points[a].y <= points[b].y);
        if (!takes_left) swaps += half - a;
        other[k] = points[takes_left ? a++ : b++];
    }
    memcpy(points, other, sizeof *points * (size_t)count);
    return swaps;
}

/* Pairs of neighbours that are equal in x, y or both, in a list sorted by them. */
static int64_t count_ties(const Point *points, int32_t count, bool by_x, bool by_y) {
    int64_t ties = 0;
    for (int32_t k = 0, end; k < count; k = end) {
        for (end = k + 1; end < count; end++)
            if ((by_x && points[end].x != points[k].x) || (by_y && points[end].y != points[k].y)) break;
        ties += (int64_t)(end - k) * (end - k - 1) / 2;
    }
    return ties;
}

AmStatus published_pairs(const double *x, const double *y, int32_t count, int64_t *concordant,
                         int64_t *discordant, int64_t *unequal, AmError *error) {
    Arena arena = {0};
    Point *points = ARENA_ARRAY(&arena, Point, count + 1), *other = ARENA_ARRAY(&arena, Point, count + 1);
    if (arena.failed) {
        arena_free(&arena);
        return am_fail_memory(error, count * (int64_t)sizeof *points);
    }
    for (int32_t k = 0; k < count; k++) points[k] = (Point){x[k], y[k]};
    qsort(points, (size_t)count, sizeof *points, compare_points);
    int64_t all = (int64_t)count * (count - 1) / 2;
    int64_t ties_x = count_ties(points, count, true, false),
            ties_both = count_ties(points, count, true, true);
    int64_t swaps = sort_counting(points, other, count);
    int64_t ties_y = count_ties(points, count, false, true);
    *discordant += swaps;
    *concordant += all - ties_x - ties_y + ties_both - swaps;
    *unequal += all - ties_x;
    arena_free(&arena);
    return AM_OK;
}

static int compare_groups(const void *left, const void *right) {
    const PublishedPair *const *a = left, *const *b = right;
    int order = strcmp((*a)->group, (*b)->group);
    return order ? order : (*a > *b) - (*a < *b);
}

/* Computes errors, their quantiles, and the orders inside of groups. */
AmStatus published_summarize(PublishedSummary *summary, const PublishedPair *pairs, int32_t count,
                             AmError *error) {
    Arena arena = {0};
    const PublishedPair **sorted = ARENA_ARRAY(&arena, const PublishedPair *, count + 1);
    double *errors = ARENA_ARRAY(&arena, double, count + 1), *x = ARENA_ARRAY(&arena, double, count + 1);
    double *y = ARENA_ARRAY(&arena, double, count + 1), *regrets = ARENA_ARRAY(&arena, double, count + 1);
    double sum = 0, sum_absolute = 0;
    int64_t unequal = 0;
    int32_t compared = 0;
    AmStatus status = AM_OK;
    *summary = (PublishedSummary){0};
    if (arena.failed) TRY_OR_FAIL(am_fail_memory(error, count * 40));
    for (int32_t k = 0; k < count; k++) {
        const PublishedPair *pair = &pairs[k];
        bool is_measured = isfinite(pair->measured);
        summary->rows += is_measured;
        summary->failed += (is_measured || pair->is_oom) && !isfinite(pair->predicted);
        if (pair->has_memory && pair->is_oom) *(pair->fits ? &summary->oom_missed : &summary->oom_found) += 1;
        if (pair->has_memory && pair->is_ok) *(pair->fits ? &summary->ok_found : &summary->ok_refused) += 1;
        if (!is_measured || !isfinite(pair->predicted)) continue;
        double relative = pair->predicted / pair->measured - 1;
        errors[compared] = fabs(relative);
        sorted[compared++] = pair;
        sum += relative;
        sum_absolute += fabs(relative);
    }
    summary->compared = compared;
    summary->mean = compared > 0 ? sum_absolute / compared : NAN;
    summary->bias = compared > 0 ? sum / compared : NAN;
    summary->median = published_quantile(errors, compared, 0.5);
    summary->percentile_90 = published_quantile(errors, compared, 0.9);
    qsort(sorted, (size_t)compared, sizeof *sorted, compare_groups);
    for (int32_t k = 0, end; k < compared; k = end) {
        for (end = k + 1; end < compared && strcmp(sorted[end]->group, sorted[k]->group) == 0;) end++;
        int32_t best = 0, fastest = 0; /* of the group */
        for (int32_t i = 0; i < end - k; i++) {
            x[i] = sorted[k + i]->measured;
            y[i] = sorted[k + i]->predicted;
            if (y[i] < y[best]) best = i;
            if (x[i] < x[fastest]) fastest = i;
        }
        if (end - k < 2) continue;
        regrets[summary->groups++] = x[best] / x[fastest] - 1;
        TRY_OR_FAIL(
            published_pairs(x, y, end - k, &summary->concordant, &summary->discordant, &unequal, error));
    }
    int64_t difference = summary->concordant - summary->discordant;
    summary->tau = unequal > 0 ? (double)difference / (double)unequal : NAN;
    summary->regret = published_quantile(regrets, summary->groups, 0.5);
fail:
    arena_free(&arena);
    return status;
}
