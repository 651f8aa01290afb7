/* The best bound over cuts: weights of the work, by potentials of the states, that make the cheapest pipeline
 * as expensive as possible.
 *
 * The cost of every pipeline for any potentials is a bound (cut_search.h). The potentials begin balanced, as
 * if all work could be divided evenly, and then follow subgradients: the derivatives of the cost of the
 * cheapest pipeline, with Polyak's step sizes.
 */
#include <math.h>
#include <string.h>

#include "base/extremes.h"
#include "planners/bounds/cut_search.h"

enum { HALVINGS = 16 };

/* The relative increase over the best bound that the next step aims for. */
#define ASCENT 0.005

/* ---- balanced potentials ---- */

/* The counts of all work on stages of a place and width. */
typedef struct StageCounts {
    double once, above, more;
} StageCounts;

static StageCounts count_all(const CutSearch *self, const CutMix *mix, int32_t stage,
                             const ClassSeconds *all) {
    StageCounts sum = {0};
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        const PathCounts *counts = &self->counts[kind][stage];
        for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
            const double *seconds = all->of[pass];
            double share = mix->paths.share[kind];
            sum.above +=
                mix->above * share * counts->above[pass] * (seconds[BOUND_SPINE] + seconds[BOUND_BETWEEN]);
            for (int32_t order = 0; order < BOUND_ORDERS; order++) {
                sum.once += mix->once * share * counts->once[pass][order] * seconds[order];
                sum.more += share * counts->more[pass][order] * seconds[order];
            }
        }
    }
    return sum;
}

/* Returns the greatest potential of the last state if all work together is to count `each` on any stage. */
static double balance_for(CutSearch *self, const StageCounts *counts, double each) {
    const CutWork *work = self->tables->work;
    for (int32_t k = 0; k < self->state_count; k++) self->scratch.balance[k] = 0;
    for (int32_t k = 0; k < self->step_count; k++) {
        const Step *step = &self->steps[k];
        const StageCounts *here = &counts[step->stage * work->width_count + step->width];
        double wanted = each - here->once - self->scratch.balance[step->from] * here->above;
        double rise = here->more > 0 ? larger(wanted / here->more, 0) : 0;
        self->scratch.balance[step->to] =
            larger(self->scratch.balance[step->to], self->scratch.balance[step->from] + rise);
    }
    return self->scratch.balance[self->state_count - 1];
}

static void set_balanced_potentials(CutSearch *self, const CutMix *mix) {
    const CutWork *work = self->tables->work;
    ArenaMark mark = arena_mark(&self->arena);
    StageCounts *counts = ARENA_ARRAY(&self->arena, StageCounts, self->stages * work->width_count);
    double low = 0, high = 1e-12;
    if (!counts) return;
    for (int32_t s = 0; s < self->stages; s++)
        for (int32_t w = 0; w < work->width_count; w++) {
            StageCounts here = count_all(self, mix, s, &self->tables->all[w]);
            counts[s * work->width_count + w] = here;
            high = larger(high, here.once + here.above + here.more);
        }
    for (int32_t k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        if (balance_for(self, counts, middle) <= 1) low = middle;
        else high = middle;
    }
    double end = balance_for(self, counts, high);
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t k = 0; k < self->state_count; k++)
            self->potentials[kind][k] =
                mix->paths.share[kind] * (end > 0 ? self->scratch.balance[k] / end : 1);
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) self->potentials[kind][0] = 0;
    arena_release(&self->arena, mark);
}

/* ---- subgradient ascent ---- */

/* A stage of the cheapest pipeline: its seconds per iteration. */
typedef struct PathStage {
    const Step *step;
    int32_t first, end; /* places */
    ClassSeconds seconds;
} PathStage;

/* Returns the first place of a stage that ends with place `end` - 1, for the least cost. */
static double find_first(CutSearch *self, const Step *step, int32_t end, int32_t *first) {
    const CutTables *tables = self->tables;
    int32_t places = tables->work->places, longest = tables->longest;
    const double *from = &self->least[step->from * (places + 1)], *sums = self->scratch.sums;
    double least = from[end];
    double transfers = cut_transfers_weighed(tables->work, step, end);
    *first = end;
    cut_path_sum(self, step);
    for (int32_t p = cut_first_place(tables, step->width, end); p < end; p++) {
        int32_t k = end - 1 - p < longest ? end - 1 - p : longest - 1;
        double cost = from[p] + sums[end] - sums[p] -
                      self->scratch.of_sets[tables->across[(end - 1) * longest + k]] + transfers;
        if (cost >= least) continue;
        least = cost;
        *first = p;
    }
    return least;
}

/* Computes the stage's seconds; items that its border may divide count by the fraction of their cost
 * there. */
static void fill_stage(const CutSearch *self, PathStage *stage) {
    const CutTables *tables = self->tables;
    int32_t widths = tables->work->width_count, w = stage->step->width, length = stage->end - stage->first;
    double *sum = &stage->seconds.of[0][0];
    if (length == 0) return;
    for (int32_t p = stage->first; p < stage->end; p++)
        class_seconds_add(&stage->seconds, &tables->seconds[tables->at[p] * widths + w]);
    int32_t k = length < tables->longest ? length - 1 : tables->longest - 1;
    int32_t set = tables->across[(stage->end - 1) * tables->longest + k];
    const ClassSeconds *seconds = &tables->seconds[set * widths + w];
    double cost = class_seconds_weighed(stage->step->weights, seconds);
    double lost = cost > 0 ? 1 - self->scratch.set_across[set] / cost : 0;
    for (int32_t c = 0; c < COUNTS; c++) sum[c] -= lost * (&seconds->of[0][0])[c];
}

/* Writes the stages of the pipeline of least cost, from the last one on. */
static void find_path(CutSearch *self, PathStage *path) {
    const CutWork *work = self->tables->work;
    int32_t state = self->state_count - 1, end = work->places;
    for (int32_t s = self->stages - 1; s >= 0; s--) {
        double least = INFINITY;
        for (int32_t k = 0; k < self->step_count; k++) {
            int32_t first;
            if (self->steps[k].to != state) continue;
            double cost = find_first(self, &self->steps[k], end, &first);
            if (cost >= least) continue;
            least = cost;
            path[s] = (PathStage){.step = &self->steps[k], .first = first, .end = end};
        }
        fill_stage(self, &path[s]);
        state = path[s].step->from;
        end = path[s].first;
    }
}

/* Returns the seconds of the path of a kind that stays on a stage. */
static double path_seconds(const CutSearch *self, const PathStage *path, int32_t kind, int32_t stage) {
    const PathCounts *on = &self->counts[kind][stage];
    double sum = class_seconds_weighed(&on->more[0][0], &path[stage].seconds);
    for (int32_t u = 0; u < self->stages; u++) {
        sum += class_seconds_weighed(&self->counts[kind][u].once[0][0], &path[u].seconds);
        for (int32_t pass = 0; pass < PATH_PASSES && u > stage; pass++)
            sum += on->above[pass] *
                   (path[u].seconds.of[pass][BOUND_SPINE] + path[u].seconds.of[pass][BOUND_BETWEEN]);
        for (int32_t pass = 0; pass < PATH_PASSES && path[u].end > path[u].first; pass++) {
            double again = u >= stage && path_passes_again(kind) ? on->above[pass] : 0;
            sum += (self->counts[kind][u].once[pass][BOUND_SPINE] + again) *
                   cut_transfer(self->tables->work, pass, path[u].step->width, path[u].end);
        }
    }
    return sum;
}

/* Finds the derivatives of a pipeline's cost by the potentials of its states. Returns the sum of their
 * squares. */
static double find_slopes(const CutSearch *self, const PathStage *path, double *slopes[PATH_KINDS]) {
    int32_t last = self->state_count - 1, used = 0;
    double mean = 0, squares = 0;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        memset(slopes[kind], 0, sizeof **slopes * (size_t)self->state_count);
        if (self->potentials[kind][last] == 0) continue;
        for (int32_t s = 0; s < self->stages; s++) {
            double seconds = path_seconds(self, path, kind, s);
            if (s > 0) slopes[kind][path[s].step->from] -= seconds;
            slopes[kind][path[s].step->to] += seconds;
        }
        mean += slopes[kind][last];
        used++;
    }
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        if (self->potentials[kind][last] > 0) slopes[kind][last] -= mean / used; /* ends add up to 1 */
        for (int32_t k = 0; k <= last; k++) squares += slopes[kind][k] * slopes[kind][k];
    }
    return squares;
}

/* Potentials that do not fall and end with 1 together. */
static void move_potentials(CutSearch *self, double *const slopes[PATH_KINDS], double size) {
    int32_t last = self->state_count - 1;
    double sum = 0;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        double *potentials = self->potentials[kind];
        for (int32_t k = 1; k <= last; k++) potentials[k] = larger(potentials[k] + size * slopes[kind][k], 0);
        for (int32_t k = 0; k < self->step_count; k++)
            potentials[self->steps[k].to] =
                larger(potentials[self->steps[k].to], potentials[self->steps[k].from]);
        sum += potentials[last];
    }
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t k = 1; k <= last && sum > 0; k++) self->potentials[kind][k] /= sum;
}

/* Moves potentials so that the cheapest pipeline would cost slightly more than the best bound so far
 * (Polyak's steps); returns the best bound. */
static double ascend(CutSearch *self, int32_t ascent_steps, double enough) {
    PathStage *path = ARENA_ARRAY(&self->arena, PathStage, self->stages);
    double *slopes[PATH_KINDS], bound = cut_path_search(self), best = bound;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        slopes[kind] = ARENA_ARRAY(&self->arena, double, self->state_count);
    for (int32_t k = 0; k < ascent_steps && best < enough && !self->arena.failed; k++) {
        find_path(self, path);
        double squares = find_slopes(self, path, slopes);
        if (squares == 0) break;
        move_potentials(self, slopes, (best * (1 + ASCENT) - bound) / squares);
        bound = cut_path_search(self);
        best = larger(best, bound);
    }
    return best;
}

double cut_tables_bound(const CutTables *tables, int32_t stages, const CutMix *mix, int32_t ascent_steps,
                        double enough) {
    CutSearch self = {.tables = tables, .stages = stages};
    double bound = 0;
    if (cut_path_open(&self)) {
        set_balanced_potentials(&self, mix);
        bound = self.arena.failed ? 0 : self.step_count == 0 ? INFINITY : ascend(&self, ascent_steps, enough);
    }
    arena_free(&self.arena);
    return bound;
}
