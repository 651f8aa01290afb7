/* The least cost of a pipeline over all cuts and all widths of stages, as a shortest path over states and
 * places.
 *
 *     least[to][q] = min over steps from -> to and places p <= q of least[from][p] + cost(step, p .. q)
 *
 * A state is the number of stages and devices so far, a step one more stage of some width, and a place an
 * operator of the forward spine. cost() is the weighted seconds of the work between the places, less what the
 * border at q may divide. The weights come from the potentials of the states.
 */
#include "planners/bounds/cut_search.h"

#include <math.h>
#include <string.h>

#include "base/extremes.h"

enum { MOST_STEPS_AND_PLACES = 1 << 22 };

/* For functions that are compiled once more with AVX2, whose vectors have CUT_LANES doubles. */
#define INLINED static inline __attribute__((always_inline))

/* ---- states ---- */

/* Numbers of devices of each type, up to all of them, as one number with a digit for each type. */
typedef struct DeviceCounts {
    int32_t count;  /* of these numbers */
    int32_t *added; /* [width] the number that a stage of that width adds */
} DeviceCounts;

/* Returns whether a stage of width w fits beside d devices. */
static bool fits_beside(const CutWork *work, int32_t d, int32_t w) {
    for (int32_t t = 0; t < work->type_count; d /= work->devices[t++] + 1)
        if (d % (work->devices[t] + 1) + work->widths[w * work->type_count + t] > work->devices[t])
            return false;
    return true;
}

/* Lists all steps on the way from no stage to all of them. */
static void find_steps(CutSearch *self) {
    const CutWork *work = self->tables->work;
    DeviceCounts counts = {1, ARENA_ARRAY(&self->arena, int32_t, work->width_count + 1)};
    for (int32_t t = 0; t < work->type_count && counts.added; t++) {
        for (int32_t w = 0; w < work->width_count; w++)
            counts.added[w] += counts.count * work->widths[w * work->type_count + t];
        counts.count *= work->devices[t] + 1;
    }
    int32_t stages = self->stages, row = counts.count, all = row - 1;
    bool *can = ARENA_ARRAY(&self->arena, bool, (stages + 1) * row);
    int32_t *state_of = ARENA_ARRAY(&self->arena, int32_t, (stages + 1) * row);
    if (self->arena.failed) return;
    can[0] = true; /* [s * row + d]: s stages can have d devices together */
    for (int32_t s = 0; s < stages; s++)
        for (int32_t w = 0; w < work->width_count; w++)
            for (int32_t d = 0; d + counts.added[w] < row; d++)
                if (can[s * row + d] && fits_beside(work, d, w))
                    can[(s + 1) * row + d + counts.added[w]] = true;
    for (int32_t s = 0; s <= stages; s++)
        for (int32_t d = 0; d <= all; d++) {
            bool is_on_way = can[s * row + d] && can[(stages - s) * row + all - d];
            state_of[s * row + d] = is_on_way ? self->state_count++ : -1;
        }
    for (int32_t s = 0; s < stages; s++)
        for (int32_t d = 0; d <= all; d++)
            for (int32_t w = 0; w < work->width_count && d + counts.added[w] <= all; w++) {
                Step step = {.stage = s,
                             .width = w,
                             .from = state_of[s * row + d],
                             .to = state_of[(s + 1) * row + d + counts.added[w]]};
                if (step.from < 0 || step.to < 0 || !fits_beside(work, d, w)) continue;
                ARENA_RESERVE(&self->arena, self->steps, self->step_count, self->step_capacity);
                if (self->arena.failed) return;
                self->steps[self->step_count++] = step;
            }
}

/* ---- weights ---- */

static void weigh_step(const CutSearch *self, Step *step) {
    memset(step->weights, 0, sizeof step->weights);
    memset(step->across, 0, sizeof step->across);
    memset(step->passing, 0, sizeof step->passing);
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        const PathCounts *counts = &self->counts[kind][step->stage];
        const double *potentials = self->potentials[kind];
        double end = potentials[self->state_count - 1], rise = potentials[step->to] - potentials[step->from];
        if (end == 0) continue;
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            step->passing[pass] += end * counts->once[pass][BOUND_SPINE] +
                                   path_passes_again(kind) * self->above[kind][pass][step->to];
        for (int32_t k = 0; k < COUNTS; k++) {
            int32_t pass = k / BOUND_ORDERS, order = k % BOUND_ORDERS;
            bool is_passed = order == BOUND_SPINE || order == BOUND_BETWEEN;
            double weight = end * counts->once[pass][order] + rise * counts->more[pass][order];
            if (is_passed) weight += self->above[kind][pass][step->from];
            bool is_whole = order == BOUND_SPINE || order == BOUND_AFTER;
            step->weights[k] += weight;
            step->across[k] += is_whole ? weight : rise * counts->across[pass][order];
        }
    }
}

/* Finds the least cost of a class on any stage, and across a border. */
static void find_least_of_class(const CutSearch *self, const LeastWeights *least, int32_t class,
                                double *anywhere, double *across) {
    const CutWork *work = self->tables->work;
    const ClassSeconds *seconds = &work->seconds[class * work->width_count];
    int32_t only = 0, orders = 0; /* passes and orders in which the class has seconds */
    for (int32_t k = 0; k < COUNTS; k++) {
        if ((&seconds->of[0][0])[k] == 0) continue;
        only = k;
        orders++;
    }
    *anywhere = *across = INFINITY;
    if (orders <= 1) {
        for (int32_t w = 0; w < work->width_count; w++) {
            double of = (&seconds[w].of[0][0])[only];
            if (isinf(least[w].weights[only])) continue;
            *anywhere = smaller(*anywhere, of * least[w].weights[only]);
            *across = smaller(*across, of * least[w].across[only]);
        }
        return;
    }
    for (int32_t k = 0; k < self->step_count; k++) {
        const Step *step = &self->steps[k];
        *anywhere = smaller(*anywhere, class_seconds_weighed(step->weights, &seconds[step->width]));
        *across = smaller(*across, class_seconds_weighed(step->across, &seconds[step->width]));
    }
}

/* Finds the least cost of every class across a border. Returns the sum of the items without a place, each
 * with its least cost on any stage. */
static double find_least(CutSearch *self) {
    const CutTables *tables = self->tables;
    LeastWeights *least = self->scratch.least_weights;
    double sum = 0;
    for (int32_t w = 0; w < tables->work->width_count; w++)
        for (int32_t k = 0; k < COUNTS; k++) least[w].weights[k] = least[w].across[k] = INFINITY;
    for (int32_t s = 0; s < self->step_count; s++)
        for (int32_t k = 0; k < COUNTS; k++) {
            LeastWeights *here = &least[self->steps[s].width];
            here->weights[k] = smaller(here->weights[k], self->steps[s].weights[k]);
            here->across[k] = smaller(here->across[k], self->steps[s].across[k]);
        }
    for (int32_t c = 0; c < tables->work->class_count; c++) {
        double anywhere, *across = &self->across[c];
        find_least_of_class(self, least, c, &anywhere, across);
        sum += (tables->unplaced[c] - tables->divisible[c]) * anywhere +
               tables->divisible[c] * smaller(anywhere, *across);
    }
    for (int32_t b = 0; b < tables->set_count; b++) {
        const PlaceSet *set = &tables->sets[b];
        self->scratch.set_across[b] = 0;
        for (int32_t k = 0; k < set->member_count; k++)
            self->scratch.set_across[b] += self->across[tables->members[set->first_member + k]];
    }
    return sum;
}

/* ---- the path ---- */

/* Sums as cut_path_sum(), for several steps from one state: of_sets [set * lanes], sums [(places + 1) *
 * lanes]. */
INLINED void sum_lanes(CutSearch *self, const Step *const *steps, int32_t lanes, double *of_sets,
                       double *sums) {
    const CutTables *tables = self->tables;
    for (int32_t b = 0; b < tables->set_count; b++)
        for (int32_t l = 0; l < lanes; l++)
            of_sets[b * lanes + l] = class_seconds_weighed(
                steps[l]->weights, &tables->seconds[b * tables->work->width_count + steps[l]->width]);
    double sum[CUT_LANES] = {0};
    for (int32_t p = 0; p < tables->work->places; p++) {
        const double *here = &of_sets[tables->at[p] * lanes];
        for (int32_t l = 0; l < lanes; l++) sum[l] += here[l];
        for (int32_t l = 0; l < lanes; l++) sums[(p + 1) * lanes + l] = sum[l];
    }
    for (int32_t b = 0; b < tables->set_count; b++)
        for (int32_t l = 0; l < lanes; l++) of_sets[b * lanes + l] -= self->scratch.set_across[b];
}

void cut_path_sum(CutSearch *self, const Step *step) {
    sum_lanes(self, &step, 1, self->scratch.of_sets, self->scratch.sums);
}

/* One number for each of the steps that are extended together. */
typedef double Lanes __attribute__((vector_size(8 * CUT_LANES), aligned(8), may_alias));
typedef int64_t LaneMask __attribute__((vector_size(8 * CUT_LANES), aligned(8)));

#define SELECT_LANES(mask, a, b) ((Lanes)(((mask) & (LaneMask)(a)) | (~(mask) & (LaneMask)(b))))
#define SMALLER_LANES(a, b)      SELECT_LANES((a) < (b), a, b)

/* The least cost of a lane over a range of places whose ends only grow. */
typedef struct LaneWindow {
    int32_t *places; /* [head .. end - 1] that are or may become the least, in order and of rising cost */
    int32_t head, end;
    int32_t entered; /* places seen so far */
} LaneWindow;

/* Returns the least of before[first .. last]; INFINITY: the range is empty. */
INLINED double window_least(LaneWindow *self, const Lanes *before, int32_t lane, int32_t first,
                            int32_t last) {
    for (; self->entered <= last; self->places[self->end++] = self->entered++)
        while (self->end > self->head &&
               before[self->places[self->end - 1]][lane] >= before[self->entered][lane])
            self->end--;
    while (self->head < self->end && self->places[self->head] < first) self->head++;
    return self->head < self->end ? before[self->places[self->head]][lane] : INFINITY;
}

/* Extends the least costs before a stage by those of the stage, for up to CUT_LANES steps from one state:
 * their sums do not wait for one another. */
INLINED void take_lanes(CutSearch *self, const Step *first, int32_t count) {
    const CutTables *tables = self->tables;
    int32_t places = tables->work->places, longest = tables->longest;
    const Step *steps[CUT_LANES];
    double *to[CUT_LANES];
    Lanes *sums = (Lanes *)self->scratch.lane_sums, *before = (Lanes *)self->scratch.lane_before,
          *any = (Lanes *)self->scratch.lane_any, *sets = (Lanes *)self->scratch.lane_sets;
    for (int32_t l = 0; l < CUT_LANES; l++) {
        steps[l] = first + (l < count ? l : 0);
        to[l] = &self->least[steps[l]->to * (places + 1)];
    }
    const double *from = &self->least[first->from * (places + 1)];
    sum_lanes(self, steps, CUT_LANES, self->scratch.lane_sets, self->scratch.lane_sums);
    const Lanes infinite = {INFINITY, INFINITY, INFINITY, INFINITY};
    LaneWindow windows[CUT_LANES];
    for (int32_t l = 0; l < CUT_LANES; l++)
        windows[l] = (LaneWindow){.places = &self->scratch.lane_windows[l * (places + 1)]};
    Lanes lowest = infinite;
    for (int32_t p = 0; p <= places; p++) {
        Lanes here = from[p] - sums[p];
        lowest = SMALLER_LANES(lowest, here);
        before[p] = here;
        any[p] = lowest;
    }
    for (int32_t q = first->stage == self->stages - 1 ? places : 0; q <= places; q++) {
        const int32_t *across = q > 0 ? &tables->across[(q - 1) * longest] : NULL;
        const Lanes none = {from[q], from[q], from[q], from[q]}; /* of a stage without places */
        Lanes least = infinite, transfers = {0};
        LaneMask firsts = {0}; /* places from which on a stage that ends here fits */
        int32_t lowest_first = q;
        for (int32_t l = 0; l < CUT_LANES && tables->first_places; l++) {
            firsts[l] = cut_first_place(tables, steps[l]->width, q);
            if (firsts[l] < lowest_first) lowest_first = (int32_t)firsts[l];
        }
        bool is_scarce = tables->first_places && (firsts[0] | firsts[1] | firsts[2] | firsts[3]);
        if (!tables->first_places) lowest_first = 0;
        for (int32_t k = 0; k < longest && q - 1 - k >= lowest_first; k++) {
            bool is_last = k == longest - 1;
            Lanes start = is_last ? any[q - longest] : before[q - 1 - k];
            for (int32_t l = 0; l < CUT_LANES && is_last && is_scarce; l++)
                start[l] = window_least(&windows[l], before, l, (int32_t)firsts[l], q - longest);
            Lanes here = start + sums[q] - sets[across[k]];
            if (is_scarce) here = SELECT_LANES(firsts <= q - 1 - k, here, infinite);
            least = SMALLER_LANES(least, here);
        }
        for (int32_t l = 0; l < CUT_LANES && tables->work->transfers; l++)
            transfers[l] = cut_transfers_weighed(tables->work, steps[l], q);
        least = SMALLER_LANES(least + transfers, none);
        for (int32_t l = 0; l < count; l++) to[l][q] = smaller(to[l][q], least[l]);
    }
}

/* Extends the least costs before a stage by those of up to CUT_LANES steps from one state. */
static void take_steps(CutSearch *self, const Step *first, int32_t count) {
    take_lanes(self, first, count);
}

#if defined __x86_64__
__attribute__((target("avx2"))) static void take_steps_avx2(CutSearch *self, const Step *first,
                                                            int32_t count) {
    take_lanes(self, first, count);
}
#endif

double cut_path_search(CutSearch *self) {
    const CutWork *work = self->tables->work;
    const int32_t places = work->places;
    /* The weight above a state is the least over all paths to it. */
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
            double *above = self->above[kind][pass];
            for (int32_t k = 0; k < self->state_count; k++) above[k] = k == 0 ? 0 : INFINITY;
            for (int32_t k = 0; k < self->step_count; k++) {
                const Step *step = &self->steps[k];
                double rise = self->potentials[kind][step->to] - self->potentials[kind][step->from];
                double added = rise * self->counts[kind][step->stage].above[pass];
                above[step->to] = smaller(above[step->to], above[step->from] + added);
            }
        }
    for (int32_t k = 0; k < self->step_count; k++) weigh_step(self, &self->steps[k]);
    double anywhere = find_least(self);
    for (int32_t k = 0; k < self->state_count * (places + 1); k++) self->least[k] = k == 0 ? 0 : INFINITY;
    void (*take_several)(CutSearch *, const Step *, int32_t) = take_steps;
#if defined __x86_64__
    if (__builtin_cpu_supports("avx2")) take_several = take_steps_avx2;
#endif
    for (int32_t k = 0, count; k < self->step_count; k += count) {
        const Step *first = &self->steps[k];
        for (count = 1; count < CUT_LANES && k + count < self->step_count; count++)
            if (first[count].from != first->from) break;
        take_several(self, first, count);
    }
    return anywhere + self->least[self->state_count * (places + 1) - 1];
}

/* ---- memory ---- */

bool cut_path_open(CutSearch *self) {
    const CutTables *tables = self->tables;
    Arena *arena = &self->arena;
    int32_t row = tables->work->places + 1;
    find_steps(self);
    if (arena->failed || (int64_t)self->step_count * row > MOST_STEPS_AND_PLACES) return false;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        self->counts[kind] = ARENA_ARRAY(arena, PathCounts, self->stages);
        self->potentials[kind] = ARENA_ARRAY(arena, double, self->state_count + 1);
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            self->above[kind][pass] = ARENA_ARRAY(arena, double, self->state_count + 1);
        for (int32_t s = 0; s < self->stages && self->counts[kind]; s++)
            self->counts[kind][s] = path_counts((PathKind)kind, self->stages, tables->work->micro_batches, s);
    }
    self->scratch.least_weights = ARENA_ARRAY(arena, LeastWeights, tables->work->width_count + 1);
    self->across = ARENA_ARRAY(arena, double, tables->work->class_count + 1);
    self->scratch.set_across = ARENA_ARRAY(arena, double, tables->set_count + 1);
    self->scratch.of_sets = ARENA_ARRAY(arena, double, tables->set_count + 1);
    self->scratch.balance = ARENA_ARRAY(arena, double, self->state_count + 1);
    self->least = ARENA_ARRAY(arena, double, self->state_count *row + 1);
    self->scratch.sums = ARENA_ARRAY(arena, double, row);
    self->scratch.lane_sets = ARENA_ARRAY(arena, double, tables->set_count *CUT_LANES + 1);
    self->scratch.lane_sums = ARENA_ARRAY(arena, double, row *CUT_LANES);
    self->scratch.lane_before = ARENA_ARRAY(arena, double, row *CUT_LANES);
    self->scratch.lane_any = ARENA_ARRAY(arena, double, row *CUT_LANES);
    self->scratch.lane_windows = ARENA_ARRAY(arena, int32_t, row * CUT_LANES);
    return !arena->failed;
}
