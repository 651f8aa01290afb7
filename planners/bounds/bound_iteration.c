/* The bound over pipelines of one number of micro-batches, by windows of places for a number of stages. */
#include "planners/bounds/bound_turn.h"

#include <math.h>
#include <string.h>

#include "base/extremes.h"
#include "planners/bounds/border_loss.h"

enum { HALVINGS = 16, MOST_ORDERS = 1024, MOST_MULTISETS = 64 };

typedef struct IterationScratch {
    double *pays;         /* [(class * stages + stage) * widths + width] */
    double *least, *lost; /* [class]: pays by itself; and how much less where it lies across a border */
    double *apart;        /* [window class]: how much less its classes pay by themselves */
    double *of_intervals; /* [placed], [window] */
    IntervalStabbing losses[BOUND_WINDOW_KINDS];
} IterationScratch;

static void fill_class(BoundIteration *self, int32_t c, int32_t w, const double *of_works) {
    const BoundPipelines *of = self->of;
    const GroupClass *class = &of->groups.classes[c];
    ClassSeconds *seconds = &self->seconds[c * of->width_count + w];
    for (int32_t k = class->first_part; k < class->first_part + class->part_count; k++) {
        const GroupPart *part = &of->groups.parts[k];
        seconds->of[part->is_backward][part->order] += of_works[part->work];
    }
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            self->all[w].of[pass][order] += class->count * seconds->of[pass][order];
}

/* Seconds of a device's part of one iteration. A sum over the batch is read and written in every iteration,
 * wherever it is added up. */
static double part_seconds(const BoundIteration *self, const DifferentWork *whole, int32_t devices) {
    double parts = (double)devices * (whole->is_after ? 1 : self->micro_batches);
    OperatorWork part = whole->work;
    if (!part.is_run) return whole->seconds / parts;
    part.flops /= parts;
    part.bytes /= parts;
    if (self->micro_batches > 1) part.bytes += whole->sum_bytes * (2 - 1.0 / self->micro_batches) / devices;
    return operator_seconds(&part, self->of->type);
}

AmStatus bound_iteration_fill(BoundIteration *self, AmError *error) {
    const BoundPipelines *of = self->of;
    double *of_works = ARENA_ARRAY(&self->arena, double, of->groups.work_count + 1);
    self->seconds = ARENA_ARRAY(&self->arena, ClassSeconds, of->groups.class_count * of->width_count);
    if (self->arena.failed) return am_fail_memory(error, of->groups.class_count);
    for (int32_t w = 0; w < of->width_count; w++) {
        for (int32_t k = 0; k < of->groups.work_count; k++)
            of_works[k] = part_seconds(self, &of->groups.works[k], of->widths[w]);
        for (int32_t c = 0; c < of->groups.class_count; c++) fill_class(self, c, w, of_works);
    }
    self->cut_work = (CutWork){.micro_batches = self->micro_batches,
                               .devices = of->cluster->device_count,
                               .places = of->groups.places,
                               .width_count = of->width_count,
                               .class_count = of->groups.class_count,
                               .placed_count = of->groups.placed_count,
                               .widths = of->widths,
                               .seconds = self->seconds,
                               .placed = of->groups.placed};
    return cut_tables_create(&self->cuts, &self->arena, &self->cut_work, error);
}

/* ---- one number of stages ---- */

typedef struct Case {
    const BoundIteration *iteration;
    int32_t stages;
    const PathMix *mix;
    bool is_counted; /* pipelines have so many stages of each width; else any */
    int32_t of_width[BOUND_MOST_WIDTHS];
    bool is_usable[BOUND_MOST_WIDTHS];
    double weight[BOUND_MOST_STAGES][BOUND_MOST_WIDTHS];
    double above[BOUND_MOST_STAGES + 1][PATH_PASSES]; /* at least what weights of the stages before add */
    PathCounts counts[BOUND_MOST_STAGES];
} Case;

/* Widths that, with those of the other stages, add up to all devices. False: none does. */
static bool find_usable(Case *self) {
    const BoundPipelines *of = self->iteration->of;
    int32_t devices = of->cluster->device_count;
    bool can[2][BOUND_MOST_DEVICES + 1] = {{true}}, found = false;
    for (int32_t s = 1; s < self->stages; s++) {
        bool *from = can[(s - 1) % 2], *to = can[s % 2];
        memset(to, 0, sizeof can[0]);
        for (int32_t w = 0; w < of->width_count; w++)
            for (int32_t d = 0; d + of->widths[w] <= devices; d++) to[d + of->widths[w]] |= from[d];
    }
    for (int32_t w = 0; w < of->width_count; w++) {
        self->is_usable[w] = can[(self->stages - 1) % 2][devices - of->widths[w]];
        found |= self->is_usable[w];
    }
    return found;
}

/* A step takes at least as long as any mean of paths. */
static PathCounts mixed_counts(const Case *self, int32_t stage) {
    PathCounts sum = {0};
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        double share = self->mix->share[kind];
        if (share == 0) continue;
        PathCounts counts = path_counts((PathKind)kind, self->stages, self->iteration->micro_batches, stage);
        for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
            sum.above[pass] += share * counts.above[pass];
            for (int32_t order = 0; order < BOUND_ORDERS; order++) {
                sum.once[pass][order] += share * counts.once[pass][order];
                sum.more[pass][order] += share * counts.more[pass][order];
                sum.across[pass][order] += share * counts.across[pass][order];
            }
        }
    }
    return sum;
}

static double sum_counts(const double (*counts)[BOUND_ORDERS], const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum += counts[pass][order] * seconds->of[pass][order];
    return sum;
}

/* The contribution of the stages before a class's to its path. */
static double sum_above(const double above[PATH_PASSES], const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        sum += above[pass] * (seconds->of[pass][BOUND_SPINE] + seconds->of[pass][BOUND_BETWEEN]);
    return sum;
}

static void set_above(Case *self, int32_t s) {
    double least = INFINITY;
    for (int32_t w = 0; w < self->iteration->of->width_count; w++)
        if (self->is_usable[w]) least = smaller(least, self->weight[s][w]);
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        self->above[s + 1][pass] = self->above[s][pass] + least * self->counts[s].above[pass];
}

/* Weights by which all groups together would pay `each` on any stage. */
static void set_weights(Case *self, double each) {
    const BoundIteration *iteration = self->iteration;
    for (int32_t s = 0; s < self->stages; s++) {
        const PathCounts *counts = &self->counts[s];
        for (int32_t w = 0; w < iteration->of->width_count; w++) {
            const ClassSeconds *all = &iteration->all[w];
            double wanted = each - sum_counts(counts->once, all) - sum_above(self->above[s], all);
            double more = sum_counts(counts->more, all);
            self->weight[s][w] = more > 0 ? larger(wanted / more, 0) : 0;
        }
        set_above(self, s);
    }
}

/* The most that the weights of a pipeline with any widths add up to; -1: none add up to all devices. */
static double heaviest_of_any(const Case *self) {
    const BoundPipelines *of = self->iteration->of;
    int32_t devices = of->cluster->device_count;
    double sums[2][BOUND_MOST_DEVICES + 1]; /* [before, after a stage][devices] */
    for (int32_t d = 0; d <= devices; d++) sums[0][d] = d == 0 ? 0 : -1;
    for (int32_t s = 0; s < self->stages; s++) {
        double *from = sums[s % 2], *to = sums[(s + 1) % 2];
        for (int32_t d = 0; d <= devices; d++) to[d] = -1;
        for (int32_t w = 0; w < of->width_count; w++)
            for (int32_t d = 0; self->is_usable[w] && d + of->widths[w] <= devices; d++)
                if (from[d] >= 0)
                    to[d + of->widths[w]] = larger(to[d + of->widths[w]], from[d] + self->weight[s][w]);
    }
    return sums[self->stages % 2][devices];
}

/* The same over the orders of the widths: of each set of stages that come first. A set is a number, whose
 * digits are how many it has of each width. */
static double heaviest_of_order(const Case *self) {
    const BoundPipelines *of = self->iteration->of;
    double sums[MOST_ORDERS];
    int32_t digit[BOUND_MOST_WIDTHS] = {0}, states = 1, taken = 0;
    for (int32_t w = 0; w < of->width_count; w++) states *= self->of_width[w] + 1;
    sums[0] = 0;
    for (int32_t state = 1; state < states; state++) {
        int32_t w = 0;
        for (; digit[w] == self->of_width[w]; w++) {
            taken -= digit[w];
            digit[w] = 0;
        }
        digit[w]++;
        taken++;
        sums[state] = 0;
        for (int32_t last = 0, stride = 1; last < of->width_count; stride *= self->of_width[last++] + 1)
            if (digit[last] > 0)
                sums[state] = larger(sums[state], sums[state - stride] + self->weight[taken - 1][last]);
    }
    return sums[states - 1];
}

static double heaviest(const Case *self) {
    return self->is_counted ? heaviest_of_order(self) : heaviest_of_any(self);
}

/* The payment of a class on a stage of some width; `*lost`: the part lost if it lies across a
 * border. */
static double class_pays(const Case *self, int32_t c, int32_t s, int32_t w, double *lost) {
    const PathCounts *counts = &self->counts[s];
    const BoundIteration *iteration = self->iteration;
    const ClassSeconds *seconds = &iteration->seconds[c * iteration->of->width_count + w];
    double weight = self->weight[s][w], pays = 0;
    *lost = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++) {
            bool is_passed = order == BOUND_SPINE || order == BOUND_BETWEEN;
            double all = counts->once[pass][order] + (is_passed ? self->above[s][pass] : 0) +
                         weight * counts->more[pass][order];
            pays += all * seconds->of[pass][order];
            if (order != BOUND_SPINE && order != BOUND_AFTER)
                *lost += (all - weight * counts->across[pass][order]) * seconds->of[pass][order];
        }
    return pays;
}

/* Computes the payments of every class on every stage, with the current weights. */
static void set_pays(const Case *self, IterationScratch *scratch) {
    const BoundPipelines *of = self->iteration->of;
    for (int32_t c = 0; c < of->groups.class_count; c++) {
        double least = INFINITY, across = INFINITY;
        for (int32_t s = 0; s < self->stages; s++)
            for (int32_t w = 0; w < of->width_count; w++) {
                double lost;
                if (!self->is_usable[w]) continue;
                double pays = class_pays(self, c, s, w, &lost);
                scratch->pays[(c * of->most_stages + s) * of->width_count + w] = pays;
                least = smaller(least, pays);
                across = smaller(across, pays - lost);
            }
        scratch->least[c] = least;
        scratch->lost[c] = least - across;
    }
}

/* The least payment of a window that no border divides; `*apart`: the reduction if one does. */
static double window_pays(const Case *self, const Windows *windows, const WindowClass *window,
                          const IterationScratch *scratch, double *apart) {
    const BoundPipelines *of = self->iteration->of;
    const int32_t *members = &windows->members[window->first_member];
    double least = INFINITY, sum_apart = 0;
    for (int32_t k = 0; k < window->member_count; k++) sum_apart += scratch->least[members[k]];
    for (int32_t s = 0; s < self->stages; s++)
        for (int32_t w = 0; w < of->width_count; w++) {
            double sum = 0;
            if (!self->is_usable[w]) continue;
            for (int32_t k = 0; k < window->member_count; k++)
                sum += scratch->pays[(members[k] * of->most_stages + s) * of->width_count + w];
            least = smaller(least, sum);
        }
    *apart = larger(least - sum_apart, 0);
    return least;
}

/* Weights by which groups pay as much as the widths that add up to all devices allow. */
static void set_balanced_weights(Case *self) {
    const BoundIteration *iteration = self->iteration;
    const double every[PATH_PASSES][BOUND_ORDERS] = {{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    double low = 0, high = 1;
    for (int32_t k = 0; k < self->stages; k++) self->counts[k] = mixed_counts(self, k);
    for (int32_t w = 0; w < iteration->of->width_count; w++)
        high = larger(high, (iteration->micro_batches + 1) * sum_counts(every, &iteration->all[w]));
    for (int32_t k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        set_weights(self, middle);
        if (heaviest(self) <= 1) low = middle;
        else high = middle;
    }
    set_weights(self, low);
}

/* The payment of all windows of a kind, minus the largest part that borders between stages may
 * divide: S - 1 places of the spine, each window and each path once. Omitted if the result cannot
 * matter: below `best`, or above `enough`. */
static double bound_windows(const Case *self, int32_t kind, double best, double enough,
                            IterationScratch *scratch) {
    const BoundPipelines *of = self->iteration->of;
    const Windows *windows = &of->windows[kind];
    IntervalStabbing *losses = &scratch->losses[kind];
    double sum = 0, all = 0;
    for (int32_t c = 0; c < windows->class_count; c++)
        sum += windows->classes[c].count *
               window_pays(self, windows, &windows->classes[c], scratch, &scratch->apart[c]);
    if (self->stages == 1 || sum <= best) return sum;
    for (int32_t k = 0; k < windows->interval_count; k++) {
        scratch->of_intervals[k] =
            k < windows->count ? scratch->apart[windows->class_of[k]] : scratch->lost[windows->class_of[k]];
        all += scratch->of_intervals[k];
    }
    border_loss_weigh(losses, scratch->of_intervals);
    double of_one = border_loss_of_one(losses), of_each = smaller((self->stages - 1) * of_one, all);
    bool is_done = sum - of_one <= best || sum - of_each >= enough || self->stages == 2;
    return sum - (is_done ? of_each : smaller(border_loss_of(losses, self->stages - 1), of_each));
}

static double bound_case(Case *self, double best, double enough, IterationScratch *scratch) {
    set_balanced_weights(self);
    set_pays(self, scratch);
    for (int32_t kind = 0; kind < BOUND_WINDOW_KINDS && best < enough; kind++)
        best = larger(best, bound_windows(self, kind, best, enough, scratch));
    return best;
}

/* The best over mixtures of paths, or the first that is enough. The last mixture is enough for most modules,
 * so it is the first. */
static double bound_widths(Case *self, double enough, IterationScratch *scratch) {
    const PathMixes *mixes = self->iteration->of->mixes;
    int32_t last = self->stages == 1 ? mixes->count - 1 : 0;
    double best = 0;
    for (int32_t k = mixes->count - 1; k >= last && best < enough; k--) {
        self->mix = &mixes->mixes[k];
        best = larger(best, bound_case(self, best, enough, scratch));
    }
    return best;
}

/* Returns whether the orders of so many stages of each width can be gone through. */
static bool has_few_orders(const Case *self) {
    int64_t orders = 1;
    for (int32_t w = 0; w < self->iteration->of->width_count && orders <= MOST_ORDERS; w++)
        orders *= self->of_width[w] + 1;
    return orders <= MOST_ORDERS;
}

/* Goes through the numbers of stages of each width, from width w on, that add up to `stages` and `devices`.
 * False: there are too many, or orders of one. */
static bool bound_numbers_of_widths(Case *self, int32_t w, int32_t stages, int32_t devices, int32_t *left,
                                    double *least, IterationScratch *scratch) {
    const BoundPipelines *of = self->iteration->of;
    if (stages == 0 && devices == 0) {
        if (--*left < 0 || !has_few_orders(self)) return false;
        for (int32_t k = 0; k < of->width_count; k++) self->is_usable[k] = self->of_width[k] > 0;
        *least = smaller(*least, bound_widths(self, *least, scratch));
        return true;
    }
    if (w < 0 || (int64_t)of->widths[w] * stages < devices) return true;
    for (int32_t count = 0; count <= stages && count * of->widths[w] <= devices; count++) {
        self->of_width[w] = count;
        if (!bound_numbers_of_widths(self, w - 1, stages - count, devices - count * of->widths[w], left,
                                     least, scratch))
            return false;
    }
    self->of_width[w] = 0;
    return true;
}

/* The least over all pipelines of so many stages by windows, or `least`: for all widths one by one that they
 * can have, or, where these are many, for all at once. */
static double bound_by_windows(const BoundIteration *iteration, int32_t stages, double least,
                               IterationScratch *scratch) {
    const BoundPipelines *of = iteration->of;
    Case self = {.iteration = iteration, .stages = stages, .is_counted = true};
    double counted = least;
    int32_t left = MOST_MULTISETS;
    if (bound_numbers_of_widths(&self, of->width_count - 1, stages, of->cluster->device_count, &left,
                                &counted, scratch))
        return counted;
    self = (Case){.iteration = iteration, .stages = stages};
    return find_usable(&self) ? smaller(least, bound_widths(&self, least, scratch)) : least;
}

static bool open_scratch(IterationScratch *scratch, Arena *arena, const BoundPipelines *of) {
    for (int32_t k = 0; k < BOUND_WINDOW_KINDS; k++)
        scratch->losses[k] = border_loss_create(arena, of->windows[k].intervals,
                                                of->windows[k].interval_count, of->groups.places);
    scratch->pays = ARENA_ARRAY(arena, double, of->groups.class_count * of->most_stages * of->width_count);
    scratch->least = ARENA_ARRAY(arena, double, of->groups.class_count + 1);
    scratch->lost = ARENA_ARRAY(arena, double, of->groups.class_count + 1);
    scratch->apart = ARENA_ARRAY(arena, double, of->groups.placed_count + 1);
    scratch->of_intervals = ARENA_ARRAY(arena, double, 2 * of->groups.placed_count + 1);
    return !arena->failed;
}

double bound_iteration_windows(const BoundIteration *iteration, int32_t stages, double enough) {
    Arena arena = {0};
    IterationScratch scratch;
    double seconds = 0;
    if (open_scratch(&scratch, &arena, iteration->of))
        seconds = bound_by_windows(iteration, stages, enough, &scratch);
    arena_free(&arena);
    return seconds;
}
