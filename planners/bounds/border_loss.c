/* Stabbing of weighted intervals: the largest weight that k places can intersect, each interval counted once.
 *
 *     best[k][b] = max over b' < b of best[k - 1][b'] + weight of the intervals that contain b, but not b'
 *
 * where b is the last of the k places and b' the one before. Intervals are short: for all b' far enough
 * before b the weight is that of all intervals that contain b. */
#include "planners/bounds/border_loss.h"

#include <string.h>

#include "base/extremes.h"

IntervalStabbing border_loss_create(Arena *arena, const BorderInterval *intervals, int32_t count,
                                    int32_t places) {
    IntervalStabbing self = {.places = places, .count = count, .longest = 1, .intervals = intervals};
    self.near = ARENA_ARRAY(arena, double, places *BORDER_LONGEST + 1);
    for (int32_t k = 0; k < count; k++) {
        int32_t length = intervals[k].end - intervals[k].first;
        if (length <= BORDER_LONGEST && length > self.longest) self.longest = length;
    }
    for (int32_t k = 0; k < 2; k++) self.most[k] = ARENA_ARRAY(arena, double, places + 1);
    return self;
}

/* near[b][j]: weight of the intervals that contain b and begin at b - j or later. */
void border_loss_weigh(IntervalStabbing *self, const double *weights) {
    memset(self->near, 0, sizeof *self->near * (size_t)(self->places * self->longest));
    self->always = 0;
    for (int32_t k = 0; k < self->count; k++) {
        const BorderInterval *interval = &self->intervals[k];
        if (interval->end - interval->first > BORDER_LONGEST) {
            self->always += weights[k];
            continue;
        }
        for (int32_t b = interval->first; b < interval->end; b++)
            self->near[b * self->longest + b - interval->first] += weights[k];
    }
    for (int32_t b = 0; b < self->places; b++)
        for (int32_t j = 1; j < self->longest; j++)
            self->near[b * self->longest + j] += self->near[b * self->longest + j - 1];
}

double border_loss_of_one(const IntervalStabbing *self) {
    double most = 0;
    for (int32_t b = 0; b < self->places; b++) most = larger(most, self->near[(b + 1) * self->longest - 1]);
    return self->always + most;
}

/* The most of places that end with b, one more than those of `before`; `far`: the most of these that end so
 * far before b that they meet nothing that b does. */
static double most_ending(const IntervalStabbing *self, const double *before, double far, int32_t b) {
    int32_t last = self->longest - 1, count = last < b ? last : b;
    const double *near = &self->near[b * self->longest];
    double most = larger(before[b], far + near[last]);
    for (int32_t j = 0; j < count; j++) most = larger(most, before[b - 1 - j] + near[j]);
    return most;
}

double border_loss_of(IntervalStabbing *self, int32_t points) {
    double *before = self->most[0], *here = self->most[1], most = 0, last = -1;
    for (int32_t b = 0; b < self->places; b++) before[b] = 0;
    for (int32_t k = 0; k < points && k < self->places && most > last; k++) {
        double far = 0;
        last = most;
        for (int32_t b = 0; b < self->places; b++) {
            if (b >= self->longest) far = larger(far, before[b - self->longest]);
            here[b] = most_ending(self, before, far, b);
            most = larger(most, here[b]);
        }
        double *other = before;
        before = here;
        here = other;
    }
    return self->always + most;
}
