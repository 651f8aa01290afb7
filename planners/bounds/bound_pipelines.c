/* The bound of pipelines.
 *
 * Proposition: a step of S stages in M micro-batches takes at least min over cuts and widths of max over
 * paths p of sum over stages s of count(p, s) x work(s) / M. A path is a chain of iterations through the
 * stages; each waits for the one before (pipeline_paths.h). work(s) is the least time of the items
 * between the cuts of stage s on its devices (work_items.h, work_groups.h).
 *
 * Method: any mean of paths is at most the longest, and for a mean the minimum over cuts and widths is a
 * shortest path over states (cut_tables.h). The pairs (M, S) with the lowest bounds are bounded again with
 * other means, until one of them has used all: its bound is the greatest of this method.
 */
#include "planners/bounds/bound_pipelines.h"

#include <math.h>

#include "base/system/parallel.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_one_stage.h"
#include "planners/bounds/iteration_tables.h"

enum { ROUND = 8, ASCENTS = 2, ASCENT_STEPS = 32, MOST_STAGES = 64 };

/* ---- widths and weights ---- */

static int32_t most_stages(const BoundSpace *space, const Cluster *cluster) {
    return space->most_stages < cluster->device_count ? space->most_stages : cluster->device_count;
}

/* Mixes of the paths that hold for a schedule of one chunk a stage. */
static const CutMixes *mixes_of(ScheduleKind schedule) {
    static const CutMixes alternating = {6,
                                         {{{.share = {[PATH_LAST] = 1}}, 0.9, 0.85},
                                          {{.share = {[PATH_ITERATIONS] = 1}}, 0.9, 0.85},
                                          {{.share = {[PATH_STAYS] = 1}}, 0.9, 0.85},
                                          {{.share = {[PATH_LAST] = 0.5, [PATH_WORK] = 0.5}}, 0.9, 0.85},
                                          {{.share = {[PATH_STAYS] = 0.5, [PATH_WORK] = 0.5}}, 0.9, 0.85},
                                          {{.share = {[PATH_WORK] = 1}}, 1, 1}}};
    static const CutMixes zero_bubble = {
        6,
        {{{.share = {[PATH_STAYS] = 1}}, 0.9, 0.85},
         {{.share = {[PATH_STAYS] = 0.7, [PATH_WORK] = 0.3}}, 0.9, 0.85},
         {{.share = {[PATH_STAYS] = 0.6, [PATH_WORK] = 0.4}}, 0.9, 0.85},
         {{.share = {[PATH_STAYS] = 1}}, 1, 0.85},
         {{.share = {[PATH_STAYS] = 0.4, [PATH_WEIGHTS] = 0.2, [PATH_WORK] = 0.4}}, 1, 1},
         {{.share = {[PATH_WORK] = 1}}, 1, 1}}};
    static const CutMixes work = {1, {{{.share = {[PATH_WORK] = 1}}, 1, 1}}};
    switch (schedule) {
    case SCHEDULE_GPIPE:
    case SCHEDULE_1F1B: return &alternating;
    case SCHEDULE_ZB_H1: return &zero_bubble;
    case SCHEDULE_ZB_2P: /* the next step fills the bubble */
    case SCHEDULE_INTERLEAVED:
    case SCHEDULE_KINDS: break;
    }
    return &work;
}

/* ---- cases ---- */

static void iteration_task(void *user, int32_t k) {
    BoundIteration *self = (BoundIteration *)user + k;
    self->status = bound_iteration_fill(self, &self->error);
}

/* Pipelines of so many stages in so many iterations. */
typedef struct BoundCase {
    const BoundIteration *iteration;
    int32_t stages, tried; /* mixes, and one ascent */
    int32_t best;          /* mix */
    double seconds, enough;
} BoundCase;

static bool is_tried(const BoundCase *self) {
    return self->tried > self->iteration->of->mixes->count;
}

/* Bounds a case in the next way: first with every mix of paths, then with the best of these improved, which
 * takes longest. */
static void case_task(void *user, int32_t k) {
    BoundCase *self = ((BoundCase **)user)[k];
    const CutMixes *mixes = self->iteration->of->mixes;
    bool is_mix = self->tried < mixes->count;
    const CutMix *mix = &mixes->mixes[is_mix ? self->tried : self->best];
    double seconds =
        cut_tables_bound(self->iteration->cuts, self->stages, mix, is_mix ? 0 : ASCENT_STEPS, self->enough);
    if (is_mix && seconds > self->seconds) self->best = self->tried;
    self->seconds = fmax(self->seconds, seconds);
    self->tried++;
}

/* Returns the least bound of the cases that have been bounded in every way; INFINITY: no case has. */
static double least_tried(const BoundCase *cases, int32_t count) {
    double least = INFINITY;
    for (int32_t k = 0; k < count; k++)
        if (is_tried(&cases[k])) least = fmin(least, cases[k].seconds);
    return least;
}

/* Finds the lowest cases with untried ways that are below all cases without, of up to so many stages. Those
 * with untried mixes come alone; else few ascents, since the lowest of them may end the search. */
static int32_t find_lowest(BoundCase *cases, int32_t count, int32_t least_stages, int32_t most_stages,
                           BoundCase *lowest[ROUND]) {
    double least = least_tried(cases, count);
    int32_t found = 0, with_mixes = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t place = found < ROUND ? found : ROUND - 1;
        if (cases[k].stages < least_stages || cases[k].stages > most_stages) continue;
        if (is_tried(&cases[k]) || cases[k].seconds >= least) continue;
        if (found == ROUND && lowest[place]->seconds <= cases[k].seconds) continue;
        found += found < ROUND;
        for (; place > 0 && lowest[place - 1]->seconds > cases[k].seconds; place--)
            lowest[place] = lowest[place - 1];
        lowest[place] = &cases[k];
        cases[k].enough = least;
    }
    for (int32_t k = 0; k < found; k++)
        if (lowest[k]->tried < lowest[k]->iteration->of->mixes->count) lowest[with_mixes++] = lowest[k];
    return with_mixes > 0 ? with_mixes : found < ASCENTS ? found : ASCENTS;
}

/* Returns the least bound over all numbers of stages above one and of micro-batches, or one that is at most
 * `enough`. The lowest cases are refined, until one of them has been bounded in every way: first of those
 * with the fewest stages, whose tables are small, then of those with the most, then of all. */
static double bound_cases(BoundCase *cases, int32_t count, double enough, const StopSignal *stop) {
    BoundCase *lowest[ROUND];
    double least = INFINITY;
    int32_t fewest = count > 0 ? cases[0].stages : 0, most = count > 0 ? cases[count - 1].stages : 0;
    const int32_t stages[][2] = {{fewest, fewest}, {most, most}, {fewest, most}};
    for (int32_t k = 0; k < (int32_t)(sizeof stages / sizeof *stages); k++)
        for (int32_t found; least_tried(cases, count) > enough &&
                            (found = find_lowest(cases, count, stages[k][0], stages[k][1], lowest)) > 0;) {
            if (stop_wanted(stop)) return 0;
            parallel_for(found, 0, case_task, lowest);
        }
    for (int32_t k = 0; k < count; k++) least = fmin(least, cases[k].seconds);
    return least;
}

/* Finds the bounds of one stage and of several, each over all numbers of micro-batches. */
static AmStatus bound_iterations(PipelineBound *bound, BoundPipelines *self, BoundIteration *iterations,
                                 int32_t count, AmError *error) {
    BoundCase *cases = ARENA_ARRAY(self->arena, BoundCase, count * self->most_stages + 1);
    int32_t case_count = 0, least_stages = self->space->least_stages > 2 ? self->space->least_stages : 2;
    if (!cases) return am_fail_memory(error, count);
    parallel_for(count, 0, iteration_task, iterations);
    bound->one_stage = INFINITY;
    for (int32_t k = 0; k < count; k++) {
        TRY(am_pass_error(iterations[k].status, &iterations[k].error, error));
        bound->one_stage = fmin(bound->one_stage, iterations[k].of_one_stage);
        for (int32_t stages = least_stages; stages <= self->most_stages; stages++)
            cases[case_count++] = (BoundCase){.iteration = &iterations[k],
                                              .stages = stages,
                                              .seconds = bound_launches_seconds(&self->launches, stages)};
    }
    bound->one_stage = fmax(bound->one_stage, bound_launches_seconds(&self->launches, 1));
    bound->several_stages = bound_cases(cases, case_count, self->space->enough, &self->space->stop);
    return AM_OK;
}

AmStatus plan_bound_items(PipelineBound *bound, const BoundWork *work, const Cluster *cluster,
                          const BoundSpace *space, const BoundLaunches *launches,
                          const int32_t *micro_batches, int32_t count, AmError *error) {
    Arena arena = {0};
    BoundPipelines self = {.arena = &arena,
                           .cluster = cluster,
                           .type = cluster_device_type(cluster, 0),
                           .space = space,
                           .groups = {.arena = &arena, .work = *work},
                           .launches = *launches,
                           .mixes = mixes_of(space->schedule)};
    BoundIteration *iterations = ARENA_ARRAY(&arena, BoundIteration, count);
    AmStatus status = iterations ? bound_groups_find(&self.groups, error) : am_fail_memory(error, count);
    int32_t devices = self.cluster->device_count;
    for (int32_t width = 1; width <= devices && self.width_count < BOUND_MOST_WIDTHS; width++)
        if (devices % width == 0 || (width & (width - 1)) == 0) self.widths[self.width_count++] = width;
    self.most_stages = most_stages(self.space, self.cluster);
    if (self.most_stages > MOST_STAGES) self.most_stages = MOST_STAGES;
    for (int32_t k = 0; k < count && iterations; k++)
        iterations[k] = (BoundIteration){.of = &self, .micro_batches = micro_batches[k]};
    if (status == AM_OK) status = bound_iterations(bound, &self, iterations, count, error);
    for (int32_t k = 0; k < count && iterations; k++) arena_free(&iterations[k].arena);
    arena_free(&arena);
    return status;
}

/* Finds the bound by the work of a module. `*seconds` stays unchanged if the device type supports no
 * claim. */
static AmStatus bound_module(double *seconds, Arena *arena, const PlanContext *whole, const Cluster *cluster,
                             const BoundSpace *space, const BoundLaunches *launches, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, whole, space->micro_batches);
    PipelineBound bound;
    double communicating = 0;
    BoundWork work = {0};
    bool known;
    TRY(bound_work_find(&work, &known, arena, whole, cluster, 0, error));
    if (!known) return AM_OK;
    TRY(plan_bound_items(&bound, &work, cluster, space, launches, numbers, count, error));
    bool is_of_one_stage = bound.one_stage < bound.several_stages && bound.several_stages > space->enough;
    if (is_of_one_stage && !stop_wanted(&space->stop))
        TRY(plan_bound_one_stage(&communicating, whole, cluster, bound.several_stages, &space->stop, error));
    *seconds = fmin(bound.several_stages, fmax(bound.one_stage, communicating));
    return AM_OK;
}

/* Finds the bound of the work and of the kernel launches; NAN: unknown. */
static AmStatus bound_quickly(PlanBound *bound, BoundLaunches *launches, const PlanContext *whole,
                              const Cluster *cluster, const BoundSpace *space, AmError *error) {
    TRY(plan_bound_of_work(bound, whole, cluster, error));
    if (isnan(bound->seconds)) return AM_OK;
    TRY(bound_launches_find(launches, whole, cluster, error));
    bound->seconds = fmax(bound->seconds, bound_launches_seconds(launches, most_stages(space, cluster)));
    return AM_OK;
}

AmStatus plan_bound_quickly(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            const BoundSpace *space, AmError *error) {
    BoundLaunches launches;
    return bound_quickly(bound, &launches, whole, cluster, space, error);
}

AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                              const BoundSpace *space, AmError *error) {
    Arena arena = {0};
    BoundLaunches launches;
    double seconds = 0;
    AmStatus status = bound_quickly(bound, &launches, whole, cluster, space, error);
    bool is_supported = cluster->type_count == 1 && cluster->device_count > 1 &&
                        cluster->device_count <= BOUND_MOST_DEVICES &&
                        space->schedule != SCHEDULE_INTERLEAVED; /* its stages have no consecutive items */
    BoundSpace narrowed = *space;
    narrowed.enough = bound->seconds;
    if (status == AM_OK && !isnan(bound->seconds) && is_supported)
        status = bound_module(&seconds, &arena, whole, cluster, &narrowed, &launches, error);
    if (status == AM_OK && isfinite(seconds)) bound->seconds = fmax(bound->seconds, seconds);
    arena_free(&arena);
    return status;
}
