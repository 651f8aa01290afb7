/* The bound of pipelines.
 *
 * Proposition: a step of S stages in M micro-batches takes at least min over cuts and widths of max over
 * paths p of sum over stages s of count(p, s) x work(s) / M. A path is a chain of iterations through the
 * stages; each waits for the one before (pipeline_paths.h). work(s) is the least time of the items
 * between the cuts of stage s on its devices (work_items.h, work_groups.h).
 *
 * Method: any mean of paths is at most the longest, and for a mean the minimum over cuts and widths is a
 * shortest path over states (cut_search.h). The pairs (M, S) with the lowest bounds are bounded again with
 * other means, until one of them has used all: its bound is the greatest of this method.
 */
#include "planners/bounds/bound_pipelines.h"

#include <math.h>

#include "base/system/parallel.h"
#include "cost/cluster/topology.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_mixed.h"
#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/cut_search.h"

/* Effort. Any number gives a bound; larger ones make it greater and take longer. */
enum {
    ROUND = 8,        /* cases that are bounded side by side with one more mix */
    ASCENTS = 2,      /* the same with an ascent, which takes longest */
    ASCENT_STEPS = 32 /* of potentials */
};
/* Sizes of tables. A cluster with more types or widths has no bound of pipelines. */
enum { MOST_STAGES = 64, MOST_WIDTHS = 256, MOST_MIXES = 6, MOST_TYPES = 6 };

/* The choices of weights that are tried. */
typedef struct CutMixes {
    int32_t count;
    CutMix of[MOST_MIXES];
} CutMixes;

/* Data common to all numbers of micro-batches. */
typedef struct BoundPipelines {
    Arena *arena;
    const Cluster *cluster;
    const ClusterDeviceType *types[MOST_TYPES]; /* those of the devices */
    int32_t devices[MOST_TYPES];                /* [type] their number */
    int32_t type_count;
    BoundGroups groups;
    int32_t widths[MOST_WIDTHS * MOST_TYPES]; /* [width * type_count + type] devices of a stage; the last
                                               * width is all of them */
    int32_t width_count;
    double memory[MOST_WIDTHS]; /* [width] bytes that plans may fill */
    const BoundSpace *space;
} BoundPipelines;

/* The tables of one number of micro-batches: seconds of one iteration on stages of each width. */
typedef struct BoundIteration {
    const BoundPipelines *of;
    int32_t micro_batches;
    double of_one_stage;   /* seconds of a step in one stage, without communication */
    ClassSeconds *seconds; /* [class * width_count + width] */
    CutWork cut_work;
    CutTables *cuts;
    AmStatus status;
    AmError error;
    Arena arena;
} BoundIteration;

/* ---- widths and weights ---- */

static int32_t most_stages(const BoundSpace *space, const Cluster *cluster) {
    return space->most_stages < cluster->device_count ? space->most_stages : cluster->device_count;
}

ScheduleKind bound_schedule_of(uint32_t schedules) {
    static const ScheduleKind weakest_first[] = {SCHEDULE_INTERLEAVED, SCHEDULE_ZB_2P, SCHEDULE_ZB_H1,
                                                 SCHEDULE_1F1B};
    for (size_t k = 0; k < sizeof weakest_first / sizeof *weakest_first; k++)
        if (schedules >> weakest_first[k] & 1) return weakest_first[k];
    return SCHEDULE_GPIPE;
}

/* Returns the mixes that are tried for a schedule of one chunk a stage. Its paths decide which kinds a mix
 * may have. Every mix of these gives a bound: the shares and factors decide how large it is. */
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
    static const CutMixes following = {6,
                                       {{{.share = {[PATH_PERIOD] = 1}}, 0.9, 0.85},
                                        {{.share = {[PATH_PERIOD] = 0.6, [PATH_WORK] = 0.4}}, 0.9, 0.85},
                                        {{.share = {[PATH_RETURN] = 0.5, [PATH_PERIOD] = 0.5}}, 0.9, 0.85},
                                        {{.share = {[PATH_RETURN] = 0.6, [PATH_WORK] = 0.4}}, 0.9, 0.85},
                                        {{.share = {[PATH_RETURN] = 1}}, 0.9, 0.85},
                                        {{.share = {[PATH_WORK] = 1}}, 1, 1}}};
    static const CutMixes work = {1, {{{.share = {[PATH_WORK] = 1}}, 1, 1}}};
    switch (schedule) {
    case SCHEDULE_GPIPE:
    case SCHEDULE_1F1B: return &alternating;
    case SCHEDULE_ZB_H1: return &zero_bubble;
    case SCHEDULE_ZB_2P: return &following;
    case SCHEDULE_INTERLEAVED:
    case SCHEDULE_KINDS: break;
    }
    return &work;
}

/* ---- cases ---- */

/* Returns the seconds in which a device launches an item in one iteration, of any part of it. */
static double launch_seconds(const BoundIteration *self, const DifferentWork *item, int32_t type) {
    const ClusterDeviceType *of = self->of->types[type];
    if (!item->work.is_run) return item->launches * of->kernel_launch_seconds;
    return of->profile || of->operators || of->measured ? 0 : of->kernel_launch_seconds;
}

/* Returns the seconds of an item in one iteration on each of so many devices of a type. Each runs a part 1 /
 * (M devices), at the rate of that size. Each iteration reads and writes a sum over the batch, wherever it is
 * added up. */
static double seconds_on_type(const BoundIteration *self, const DifferentWork *item, int32_t type,
                              int32_t devices) {
    double parts = (double)devices * (item->is_after ? 1 : self->micro_batches);
    OperatorWork part = item->work;
    if (!part.is_run) {
        double launch = launch_seconds(self, item, type);
        return launch + ((item->type_seconds ? item->type_seconds[type] : item->seconds) - launch) / parts;
    }
    part.flops /= parts;
    part.bytes /= parts;
    if (self->micro_batches > 1) part.bytes += item->sum_bytes * (2 - 1.0 / self->micro_batches) / devices;
    return operator_seconds(&part, self->of->types[type]);
}

/* Returns the least seconds of an item in one iteration on a stage. Devices of several types may have unequal
 * shares x. Each takes at least its launch, and x times the rest of its seconds alone. So the mean over the
 * devices, by the weights of their types, is at least that of the launches and the least weighted rest. */
static double seconds_on_stage(const BoundIteration *self, const DifferentWork *item, int32_t width) {
    const BoundPipelines *of = self->of;
    const int32_t *devices = &of->widths[width * of->type_count];
    int32_t used = 0, last = 0;
    double weights = 0, launches = 0, least = INFINITY;
    for (int32_t t = 0; t < of->type_count; t++) {
        if (devices[t] == 0) continue;
        used++;
        last = t;
    }
    if (used == 1) return seconds_on_type(self, item, last, devices[last]);
    for (int32_t t = 0; t < of->type_count; t++) {
        if (devices[t] == 0) continue;
        double weight = of->groups.work.type_weights[t], launch = launch_seconds(self, item, t);
        weights += devices[t] * weight;
        launches += devices[t] * weight * launch;
        least = fmin(least, weight * (seconds_on_type(self, item, t, 1) - launch));
    }
    return (launches + least) / weights;
}

/* Finds the least seconds in which the devices of a stage send, or receive, the part of an iteration that
 * crosses each border, over the fastest links (CutWork.transfers). */
static AmStatus find_transfers(BoundIteration *self, AmError *error) {
    const BoundPipelines *of = self->of;
    const BoundWork *work = &of->groups.work;
    int32_t row = of->groups.places + 1;
    double rate = topology_fastest_rate(of->cluster->topology);
    if (!work->crossing[0] || rate <= 0) return AM_OK;
    double *seconds = ARENA_ARRAY(&self->arena, double, PATH_PASSES * of->width_count * row);
    if (!seconds) return am_fail_memory(error, of->width_count * row);
    for (int32_t w = 0; w < of->width_count; w++) {
        int32_t devices = 0;
        for (int32_t t = 0; t < of->type_count; t++) devices += of->widths[w * of->type_count + t];
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            for (int32_t q = 1; q <= work->spine_count[0]; q++)
                seconds[(pass * of->width_count + w) * row + q] =
                    work->crossing[pass][q - 1] / (self->micro_batches * devices * rate);
    }
    self->cut_work.transfers = seconds;
    return AM_OK;
}

/* Makes the tables, in the iteration's arena. A class has the sum of its parts, for each width, pass and
 * order. */
static AmStatus fill_iteration(BoundIteration *self, AmError *error) {
    const BoundPipelines *of = self->of;
    const BoundGroups *groups = &of->groups;
    double *of_works = ARENA_ARRAY(&self->arena, double, groups->work_count + 1);
    ClassSeconds all = {0}; /* of all classes, on a stage of all devices */
    self->seconds = ARENA_ARRAY(&self->arena, ClassSeconds, groups->class_count * of->width_count);
    if (self->arena.failed) return am_fail_memory(error, groups->class_count);
    for (int32_t w = 0; w < of->width_count; w++) {
        for (int32_t k = 0; k < groups->work_count; k++)
            of_works[k] = seconds_on_stage(self, &groups->works[k], w);
        for (int32_t c = 0; c < groups->class_count; c++) {
            const GroupClass *class = &groups->classes[c];
            ClassSeconds *seconds = &self->seconds[c * of->width_count + w];
            for (int32_t k = class->first_part; k < class->first_part + class->part_count; k++) {
                const GroupPart *part = &groups->parts[k];
                seconds->of[part->is_backward][part->order] += of_works[part->work];
            }
            for (int32_t k = 0; k < PATH_PASSES * BOUND_ORDERS && w == of->width_count - 1; k++)
                (&all.of[0][0])[k] += class->count * (&seconds->of[0][0])[k];
        }
    }
    /* all iterations on one stage that has all devices, and the work after them */
    const PathCounts counts = path_counts(PATH_WORK, 1, self->micro_batches, 0);
    self->of_one_stage = class_seconds_weighed(&counts.more[0][0], &all);
    self->cut_work = (CutWork){.micro_batches = self->micro_batches,
                               .devices = of->devices,
                               .type_count = of->type_count,
                               .places = groups->places,
                               .width_count = of->width_count,
                               .class_count = groups->class_count,
                               .placed_count = groups->placed_count,
                               .widths = of->widths,
                               .seconds = self->seconds,
                               .placed = groups->placed,
                               .memory = of->space->memory.fraction > 0 ? of->memory : NULL,
                               .offloads_optimizer = of->space->memory.offloads_optimizer};
    TRY(find_transfers(self, error));
    return cut_tables_create(&self->cuts, &self->arena, &self->cut_work, error);
}

static void iteration_task(void *user, int32_t k) {
    BoundIteration *self = (BoundIteration *)user + k;
    self->status = fill_iteration(self, &self->error);
}

/* Pipelines of so many stages in so many iterations. */
typedef struct BoundCase {
    const BoundIteration *iteration;
    const CutMixes *mixes;
    int32_t stages, tried; /* mixes, and one ascent */
    int32_t best;          /* mix */
    double seconds, enough;
} BoundCase;

/* Returns whether a case has been bounded with every mix, and by an ascent. */
static bool is_tried(const BoundCase *self) {
    return self->tried > self->mixes->count;
}

/* Bounds a case in the next way: first with every mix of paths, then with the best of these improved, which
 * takes longest. */
static void case_task(void *user, int32_t k) {
    BoundCase *self = ((BoundCase **)user)[k];
    bool is_mix = self->tried < self->mixes->count;
    const CutMix *mix = &self->mixes->of[is_mix ? self->tried : self->best];
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

/* Finds the lowest cases with untried ways that are below all cases without, of up to so many stages. Cases
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
        if (lowest[k]->tried < lowest[k]->mixes->count) lowest[with_mixes++] = lowest[k];
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

/* Counts the devices of each type; false: there are too many types. */
static bool find_types(BoundPipelines *self) {
    for (int32_t d = 0; d < self->cluster->device_count; d++) {
        const ClusterDeviceType *type = cluster_device_type(self->cluster, d);
        int32_t t = 0;
        while (t < self->type_count && self->types[t] != type) t++;
        if (t == MOST_TYPES) return false;
        if (t == self->type_count) self->types[self->type_count++] = type;
        self->devices[t]++;
    }
    return true;
}

/* Lists the devices that a stage may have: of one type a power of two or a divisor of their number, of
 * several types any numbers. False: there are too many. */
static bool find_widths(BoundPipelines *self) {
    int32_t devices = self->cluster->device_count, types = self->type_count, all = 1;
    for (int32_t t = 0; t < types && all <= MOST_WIDTHS + 1; t++) all *= self->devices[t] + 1;
    if (types > 1 && all > MOST_WIDTHS + 1) return false;
    for (int32_t k = 1; types == 1 ? k <= devices : k < all; k++) {
        if (types == 1 && devices % k != 0 && (k & (k - 1)) != 0) continue;
        for (int32_t t = 0, left = k; t < types; left /= self->devices[t++] + 1) {
            int32_t count = left % (self->devices[t] + 1);
            self->widths[self->width_count * types + t] = count;
            self->memory[self->width_count] +=
                count * self->space->memory.fraction * (double)self->types[t]->memory_bytes;
        }
        self->width_count++;
    }
    return true;
}

AmStatus plan_bound_items(PipelineBound *bound, const BoundWork *work, const Cluster *cluster,
                          const BoundSpace *space, const BoundLaunches *launches,
                          const int32_t *micro_batches, int32_t count, AmError *error) {
    Arena arena = {0};
    BoundPipelines self = {
        .arena = &arena, .cluster = cluster, .groups = {.arena = &arena, .work = *work}, .space = space};
    const CutMixes *mixes = mixes_of(space->schedule);
    int32_t most = most_stages(space, cluster), case_count = 0;
    if (most > MOST_STAGES) most = MOST_STAGES;
    BoundIteration *iterations = ARENA_ARRAY(&arena, BoundIteration, count);
    BoundCase *cases = ARENA_ARRAY(&arena, BoundCase, count * most + 1);
    AmStatus status = AM_OK;
    if (arena.failed) TRY_OR_FAIL(am_fail_memory(error, count));
    if (!find_types(&self) || !find_widths(&self)) {
        *bound = (PipelineBound){0};
        goto fail;
    }
    TRY_OR_FAIL(bound_groups_find(&self.groups, error));
    for (int32_t k = 0; k < count; k++)
        iterations[k] = (BoundIteration){.of = &self, .micro_batches = micro_batches[k]};
    parallel_for(count, 0, iteration_task, iterations);
    bound->one_stage = INFINITY;
    for (int32_t k = 0; k < count; k++) {
        TRY_OR_FAIL(am_pass_error(iterations[k].status, &iterations[k].error, error));
        bound->one_stage = fmin(bound->one_stage, iterations[k].of_one_stage);
        for (int32_t stages = space->least_stages > 2 ? space->least_stages : 2; stages <= most; stages++)
            cases[case_count++] = (BoundCase){.iteration = &iterations[k],
                                              .mixes = mixes,
                                              .stages = stages,
                                              .seconds = bound_launches_seconds(launches, stages)};
    }
    bound->one_stage = fmax(bound->one_stage, bound_launches_seconds(launches, 1));
    bound->several_stages = bound_cases(cases, case_count, space->enough, &space->stop);
fail:
    for (int32_t k = 0; k < count && iterations; k++) arena_free(&iterations[k].arena);
    arena_free(&arena);
    return status;
}

/* Finds the bound of the work and of the kernel launches; NAN: unknown. */
static AmStatus bound_quickly(PlanBound *bound, BoundLaunches *launches, const PlanContext *primary,
                              const Cluster *cluster, const BoundSpace *space, AmError *error) {
    TRY(plan_bound_of_work(bound, primary, cluster, error));
    if (isnan(bound->seconds)) return AM_OK;
    TRY(bound_launches_find(launches, primary, cluster, error));
    bound->seconds = fmax(bound->seconds, bound_launches_seconds(launches, most_stages(space, cluster)));
    return AM_OK;
}

AmStatus plan_bound_quickly(PlanBound *bound, const PlanContext *primary, const Cluster *cluster,
                            const BoundSpace *space, AmError *error) {
    BoundLaunches launches;
    return bound_quickly(bound, &launches, primary, cluster, space, error);
}

/* Lists the work on the devices, which may be of several types. `*known` false: no claim. */
static AmStatus find_work(BoundWork *work, bool *known, Arena *arena, const PlanContext *primary,
                          const Cluster *cluster, AmError *error) {
    BoundPipelines types = {.cluster = cluster};
    LeastWork least;
    *known = find_types(&types);
    for (int32_t t = types.type_count - 1; t >= 0 && *known; t--) {
        BoundWork of_type;
        int32_t device = 0;
        while (cluster_device_type(cluster, device) != types.types[t]) device++;
        TRY(bound_work_find(&of_type, known, arena, primary, cluster, device, error));
        if (types.type_count == 1) *work = of_type;
        if (types.type_count == 1 || !*known) return AM_OK;
        if (t == types.type_count - 1) {
            *work = of_type;
            for (int32_t k = 0; k < work->item_count; k++) {
                work->items[k].type_seconds = ARENA_ARRAY(arena, double, types.type_count);
                if (arena->failed) return am_fail_memory(error, work->item_count);
            }
        }
        *known = of_type.item_count == work->item_count;
        for (int32_t k = 0; k < work->item_count && *known; k++)
            work->items[k].type_seconds[t] = of_type.items[k].seconds;
    }
    if (!*known) return AM_OK;
    double *weights = ARENA_ARRAY(arena, double, types.type_count);
    TRY(least_work_find(&least, arena, primary, cluster, error));
    if (arena->failed) return am_fail_memory(error, types.type_count);
    for (int32_t t = 0; t < types.type_count; t++)
        weights[t] = least.type_weights[types.types[t] - cluster->types];
    work->type_count = types.type_count;
    work->type_weights = weights;
    return AM_OK;
}

AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *primary, const Cluster *cluster,
                              const BoundSpace *space, AmError *error) {
    Arena arena = {0};
    BoundLaunches launches;
    BoundWork work = {0};
    PipelineBound found;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    double communicating = 0;
    bool known;
    bool is_supported = cluster->device_count > 1 && cluster->device_count <= BOUND_MOST_DEVICES &&
                        space->schedule != SCHEDULE_INTERLEAVED; /* its stages have no consecutive items */
    AmStatus status;
    TRY_OR_FAIL(bound_quickly(bound, &launches, primary, cluster, space, error));
    if (isnan(bound->seconds) || !is_supported) goto fail;
    BoundSpace narrowed = *space;
    narrowed.enough = bound->seconds;
    TRY_OR_FAIL(find_work(&work, &known, &arena, primary, cluster, error));
    if (!known) goto fail;
    int32_t count = micro_batches_numbers(numbers, primary, space->micro_batches);
    TRY_OR_FAIL(plan_bound_items(&found, &work, cluster, &narrowed, &launches, numbers, count, error));
    if (space->least_stages > 1 && found.several_stages > 0) found.one_stage = INFINITY;
    bool is_of_one_stage = found.one_stage < found.several_stages && found.several_stages > narrowed.enough;
    if (is_of_one_stage && !stop_wanted(&space->stop)) {
        if (cluster_is_mixed(cluster))
            TRY_OR_FAIL(plan_bound_mixed_orders(&communicating, primary, cluster, &space->memory,
                                                &space->stop, error));
        else
            TRY_OR_FAIL(plan_bound_one_stage(&communicating, primary, cluster, found.several_stages,
                                             &space->stop, error));
    }
    double seconds = fmin(found.several_stages, fmax(found.one_stage, communicating));
    if (isfinite(seconds)) bound->seconds = fmax(bound->seconds, seconds);
fail:
    arena_free(&arena);
    return status;
}

AmStatus plan_bound_alone(double *seconds, const PlanContext *primary, const Cluster *cluster,
                          int32_t micro_batches, AmError *error) {
    Arena arena = {0};
    BoundWork work = {0};
    PipelineBound found = {0};
    const BoundSpace space = {.most_stages = 1};
    const BoundLaunches launches = {0};
    bool known;
    AmStatus status;
    *seconds = 0;
    TRY_OR_FAIL(find_work(&work, &known, &arena, primary, cluster, error));
    if (known)
        TRY_OR_FAIL(plan_bound_items(&found, &work, cluster, &space, &launches, &micro_batches, 1, error));
    *seconds = found.one_stage;
fail:
    arena_free(&arena);
    return status;
}
