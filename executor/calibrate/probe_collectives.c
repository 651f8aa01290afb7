/* Selects and orders the measurements of collectives and derives their curves.
 *
 * The counts of ranks share the time evenly. The remaining cases of a count share its time, small sizes
 * first. A lack of time therefore omits the largest sizes, or a whole count.
 */
#include "executor/calibrate/probe_collectives.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/files/json_digits.h"
#include "base/system/clock.h"

enum { KINDS = 4, MOST_GROUPS = 16, MOST_CASES = KINDS * PROBE_MOST_COLLECTIVE_SIZES };
enum { ARRAYS = 3 }; /* of a size that a rank may have: operand, result, and a packed one */

static const ProgramCollectiveKind kinds[KINDS] = {PROGRAM_ALL_REDUCE, PROGRAM_ALL_GATHER,
                                                   PROGRAM_REDUCE_SCATTER, PROGRAM_ALL_TO_ALL};

/* The measurements so far. */
typedef struct Measured {
    const ProbeListener *listener;
    int32_t size_count, group_count;
    int32_t groups[MOST_GROUPS]; /* ranks of each */
    int32_t planned, measured;   /* counts of ranks: all, and those that are done */
    double seconds[MOST_GROUPS][KINDS][PROBE_MOST_COLLECTIVE_SIZES];
} Measured;

/* Returns the next larger number of ranks that divides them, above all of them if there is none. */
static int32_t next_group(int32_t size, int32_t ranks) {
    for (int32_t next = size + 1; next <= ranks; next++)
        if (ranks % next == 0) return next;
    return ranks + 1;
}

static int32_t count_sizes(const ProbeRanks *ranks) {
    int32_t count = 0;
    while (count < PROBE_MOST_COLLECTIVE_SIZES && ranks->sizes[count] > 0 &&
           (count == 0 || ARRAYS * ranks->sizes[count] <= ranks->most_bytes))
        count++;
    return count;
}

static void report_progress(void *user, int32_t done) {
    const Measured *self = user;
    double of_group = (double)done / (KINDS * self->size_count);
    probe_progress(self->listener, (self->measured + of_group) / self->planned);
}

static AmStatus measure_group(Measured *self, const ProbeRanks *ranks, int32_t n, double end,
                              AmError *error) {
    ProbeCase cases[MOST_CASES];
    for (int32_t c = 0; c < KINDS * self->size_count; c++)
        cases[c] = (ProbeCase){.kind = kinds[c % KINDS], .bytes = ranks->sizes[c / KINDS]};
    TRY(probe_time_cases(ranks, n, cases, KINDS * self->size_count, end,
                         &(ProbeCaseListener){report_progress, self}, error));
    int32_t complete = 0; /* sizes for which every kind was measured */
    while (complete < KINDS * self->size_count && cases[complete].seconds >= 0) complete++;
    complete /= KINDS;
    self->measured++;
    if (self->group_count == 0) self->size_count = complete;
    if (complete < self->size_count || complete == 0) return AM_OK;
    for (int32_t c = 0; c < KINDS * complete; c++)
        self->seconds[self->group_count][c % KINDS][c / KINDS] = cases[c].seconds;
    for (int32_t k = 0; k < KINDS; k++) {
        double *seconds = self->seconds[self->group_count][k];
        for (int32_t s = complete - 2; s >= 0; s--) seconds[s] = fmin(seconds[s], seconds[s + 1]);
    }
    self->groups[self->group_count++] = n;
    return AM_OK;
}

static AmStatus measure_groups(Measured *self, const ProbeRanks *ranks, double end, AmError *error) {
    for (int32_t n = 2; n <= ranks->count; n = next_group(n, ranks->count))
        self->planned += ranks->count % n == 0 && self->planned < MOST_GROUPS;
    for (int32_t n = 2; n <= ranks->count && self->measured < self->planned;
         n = next_group(n, ranks->count)) {
        if (ranks->count % n != 0) continue;
        double now = clock_seconds();
        if (self->measured > 0 && (now > end || self->group_count == 0)) break;
        TRY(measure_group(self, ranks, n, now + (end - now) / (self->planned - self->measured), error));
    }
    return AM_OK;
}

static AmStatus report_kind(const Measured *self, const ProbeRanks *ranks, int32_t k, AmError *error) {
    const ProbeListener *listener = self->listener;
    for (int32_t g = 0; g < self->group_count && listener->collective; g++)
        for (int32_t s = 0; s < self->size_count; s++)
            TRY(listener->collective(listener->user, listener->type, kinds[k], self->groups[g],
                                     (double)ranks->sizes[s], self->seconds[g][k][s], error));
    return AM_OK;
}

static json_t *curve_of(const Measured *self, const ProbeRanks *ranks, int32_t k) {
    json_t *groups = json_array(), *bytes = json_array(), *seconds = json_array();
    for (int32_t s = 0; s < self->size_count; s++)
        json_array_append_new(bytes, json_integer(ranks->sizes[s]));
    for (int32_t g = 0; g < self->group_count; g++) {
        json_array_append_new(groups, json_integer(self->groups[g]));
        for (int32_t s = 0; s < self->size_count; s++)
            json_array_append_new(seconds, json_four_digits(self->seconds[g][k][s]));
    }
    return json_pack("{s:[o, o], s:o}", "sizes", groups, bytes, "seconds", seconds);
}

AmStatus probe_collectives(json_t **collectives, const ProbeRanks *ranks, double end,
                           const ProbeListener *listener, AmError *error) {
    Measured *self = calloc(1, sizeof *self);
    *collectives = json_object();
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->listener = listener;
    self->size_count = count_sizes(ranks);
    AmStatus status = measure_groups(self, ranks, end, error);
    for (int32_t k = 0; k < KINDS && status == AM_OK && self->group_count > 0; k++) {
        json_object_set_new(*collectives, program_collective_name(kinds[k]), curve_of(self, ranks, k));
        status = report_kind(self, ranks, k, error);
    }
    free(self);
    return status;
}

AmStatus probe_transfers(double *sizes, double *seconds, int32_t *count, const ProbeRanks *ranks, double end,
                         AmError *error) {
    ProbeCase cases[PROBE_MOST_COLLECTIVE_SIZES];
    ProbeRanks two = *ranks;
    int32_t planned = count_sizes(ranks);
    two.count = 2;
    *count = 0;
    for (int32_t c = 0; c < planned; c++)
        cases[c] = (ProbeCase){.is_transfer = true, .bytes = ranks->sizes[c]};
    TRY(probe_time_cases(&two, 2, cases, planned, end, NULL, error));
    while (*count < planned && cases[*count].seconds >= 0) {
        sizes[*count] = (double)cases[*count].bytes;
        seconds[*count] = cases[*count].seconds;
        ++*count;
    }
    return AM_OK;
}

AmStatus probe_try_ranks(const ProbeRanks *ranks, AmError *error) {
    ProbeCase one = {.kind = PROGRAM_ALL_REDUCE, .bytes = 4};
    return probe_time_cases(ranks, ranks->count, &one, 1, clock_seconds() + 1, NULL, error);
}
