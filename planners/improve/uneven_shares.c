/* The search for shares. Lines of seconds and of memory go through simulated points. They give the balance
 * in integer numbers of units of the split dimensions; a line search between equal and balanced shares
 * follows.
 *
 * Example: VGG-19 on one V100 and one T4. At equal shares the V100 computes 200 ms and the T4 490 ms, so the
 * first balance is 0.71 : 0.29; fitted lines move it to 0.67 : 0.33, since updates do not depend on the
 * share.
 */
#include "planners/improve/uneven_shares.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "cost/simulate/simulate.h"
#include "planners/problem/candidate_pool.h"

enum { ROUNDS = 3, BISECTIONS = 60, LINE_POINTS = UNEVEN_SHARES_TRIED - ROUNDS - 1 };

/* Fractions of the way from equal shares to balanced ones. */
static const double line_points[LINE_POINTS] = {0.3, 0.6, 0.8, 1.2, 1.5};

/* The least share, of an equal one. */
#define LEAST_SHARE 0.02
/* The least FLOPs, relative to the class with the most, of a class that determines the unit of
 * shares. */
#define FAIR_PART 0.2
/* The least slope of a line of seconds, relative to its last point if all of it depended on the
 * share. */
#define LEAST_SLOPE 0.1
/* Plans that take more than this times the rival's step are no plans to begin with. */
#define NEAR_RIVAL 1.1
/* The first balanced shares take at most this times as long as the best ones. */
#define HOPELESS 1.3

/* ---- mixed axes ---- */

/* Returns the number of devices of a type at a coordinate. */
static int32_t count_type(const Mesh *mesh, const int32_t *devices, const Cluster *cluster, int32_t axis,
                          int32_t coordinate, int32_t type) {
    int32_t count = 0;
    for (int32_t d = 0; d < mesh->device_count; d++)
        count += mesh_coordinate(mesh, d, axis) == coordinate &&
                 cluster_device_type(cluster, devices[d]) == &cluster->types[type];
    return count;
}

static bool coordinates_are_alike(const Mesh *mesh, const int32_t *devices, const Cluster *cluster,
                                  int32_t axis, int32_t a, int32_t b) {
    for (int32_t t = 0; t < cluster->type_count; t++)
        if (count_type(mesh, devices, cluster, axis, a, t) != count_type(mesh, devices, cluster, axis, b, t))
            return false;
    return true;
}

bool uneven_shares_axis_is_mixed(const Mesh *mesh, const int32_t *devices, const Cluster *cluster,
                                 int32_t axis) {
    if (cluster->type_count == 1 || mesh->axes[axis].size == 1 || mesh->axes[axis].shares) return false;
    for (int32_t k = 1; k < mesh->axes[axis].size; k++)
        if (!coordinates_are_alike(mesh, devices, cluster, axis, 0, k)) return true;
    return false;
}

static bool stage_is_mixed(const PlanStage *stage, const Cluster *cluster, int32_t axis) {
    return !stage->is_even && axis < stage->mesh.axis_count &&
           uneven_shares_axis_is_mixed(&stage->mesh, stage->devices, cluster, axis);
}

bool uneven_shares_apply(const Plan *plan, const Cluster *cluster) {
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t axis = 0; axis < plan->stages[s].mesh.axis_count; axis++)
            if (stage_is_mixed(&plan->stages[s], cluster, axis)) return true;
    return false;
}

/* ---- one axis of a stage ---- */

/* Coordinates with the same devices. Seconds are seconds + slope x share; `most_share` fits in memory. */
typedef struct ShareClass {
    int32_t count;              /* coordinates */
    double share, busy, needed; /* of each, as simulated last; `needed`: of the memory that it may use */
    double share_before, busy_before; /* as simulated before; a share of 0: never */
    double needed_before;
    double seconds, slope, most_share;
} ShareClass;

/* The axis of a stage, if it is mixed. */
typedef struct SharedStage {
    int32_t size; /* coordinates; 0: the axis is not mixed here */
    int32_t class_count;
    int32_t *class_of; /* [coordinate] */
    ShareClass *classes;
    int64_t unit;   /* shares are multiples of 1 / unit; 0: any */
    int64_t *units; /* [coordinate] */
} SharedStage;

/* One choice of shares for all mixed stages. */
typedef struct ShareCandidate {
    double **shares;     /* [stage][coordinate] */
    double most_seconds; /* a plan that certainly takes longer needs no exact price; 0: all do */
    Plan plan;
    MemoryFit fit;
    bool is_left; /* it takes longer */
    AmStatus status;
    AmError error;
    Arena arena; /* of the prediction */
} ShareCandidate;

typedef struct ShareClimb {
    const ShareSearch *search;
    Arena *arena;
    const Plan *plan; /* best so far: the given plan or `found` */
    Plan *found;      /* the best of the candidates; NULL: none is better than the given plan */
    MemoryFit fit;    /* of `plan` */
    int64_t evaluations;
    int32_t axis;
    SharedStage *stages;                      /* [plan->stage_count] */
    double **candidates[UNEVEN_SHARES_TRIED]; /* choices of this axis */
    int32_t candidate_count;
    ShareCandidate batch[LINE_POINTS];
} ShareClimb;

static AmStatus open_stage(SharedStage *self, const ShareClimb *sharing, const PlanStage *stage,
                           AmError *error) {
    const Cluster *cluster = sharing->search->cluster;
    int32_t axis = sharing->axis, size = axis < stage->mesh.axis_count ? stage->mesh.axes[axis].size : 0;
    *self = (SharedStage){0};
    if (!stage_is_mixed(stage, cluster, axis)) return AM_OK;
    self->size = size;
    self->class_of = ARENA_ARRAY(sharing->arena, int32_t, size);
    self->classes = ARENA_ARRAY(sharing->arena, ShareClass, size);
    self->units = ARENA_ARRAY(sharing->arena, int64_t, size);
    /* The smallest dimension class that the axis splits with a sufficient part of its FLOPs, or 0 without
     * one. Its shares are integer numbers of units, as are those of dimensions that are multiples of it. */
    const Classes *classes = sharing->plan->context->classes;
    const PlanAxisPriority *priority = &stage->axis_priorities[axis];
    int64_t unit = 0;
    double most = 0;
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t e = 0; e < priority->count; e++) {
            int32_t c = priority->entries[e].class_index;
            if (priority->entries[e].kind != PLAN_COMPUTE || c < 0 || c >= classes->count) continue;
            const DimensionClass *class = &classes->classes[c];
            bool is_wanted = pass == 1 && class->flops >= FAIR_PART * most && class->flops > 0;
            if (pass == 0) most = fmax(most, class->flops);
            if (is_wanted && (unit == 0 || class->size < unit)) unit = class->size;
        }
    self->unit = unit;
    if (sharing->arena->failed) return am_fail_memory(error, size);
    for (int32_t k = 0; k < size; k++) {
        int32_t other = 0;
        while (!coordinates_are_alike(&stage->mesh, stage->devices, cluster, axis, k, other)) other++;
        self->class_of[k] = other < k ? self->class_of[other] : self->class_count++;
        self->classes[self->class_of[k]].count++;
    }
    return AM_OK;
}

/* Returns the rank of a stage's device: devices across stages in the order of first occurrence. */
static int32_t rank_of(const Plan *plan, int32_t stage, int32_t device) {
    int32_t wanted = plan->stages[stage].devices[device], rank = 0;
    for (int32_t s = 0; s <= stage; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++) {
            bool is_known = false;
            if (plan->stages[s].devices[d] == wanted) return rank;
            for (int32_t t = 0; t < s && !is_known; t++)
                for (int32_t e = 0; e < plan->stages[t].mesh.device_count && !is_known; e++)
                    is_known = plan->stages[t].devices[e] == plan->stages[s].devices[d];
            rank += !is_known;
        }
    return rank;
}

/* Reads the next points of the lines from a simulated plan with these shares (NULL: equal ones). */
static void measure_lines(SharedStage *self, const ShareClimb *sharing, const Plan *plan, int32_t stage,
                          const double *shares) {
    const PlanStage *of = &plan->stages[stage];
    const Cluster *cluster = sharing->search->cluster;
    if (self->size == 0) return;
    for (int32_t c = 0; c < self->class_count; c++) {
        ShareClass *class = &self->classes[c];
        class->share_before = class->share;
        class->busy_before = class->busy;
        class->needed_before = class->needed;
        class->share = class->busy = class->needed = 0;
    }
    for (int32_t k = 0; k < self->size; k++) {
        ShareClass *class = &self->classes[self->class_of[k]];
        class->share += (shares ? shares[k] : 1.0 / self->size) / class->count;
    }
    for (int32_t d = 0; d < of->mesh.device_count; d++) {
        const PlanDevicePrediction *device = &plan->predicted[rank_of(plan, stage, d)];
        ShareClass *class = &self->classes[self->class_of[mesh_coordinate(&of->mesh, d, sharing->axis)]];
        double limit = memory_usable(cluster, &of->devices[d], 1, sharing->search->memory_fraction);
        class->busy = fmax(class->busy, device->compute_seconds);
        class->needed = fmax(class->needed, (double)(device->peak_bytes + device->channel_bytes) / limit);
    }
}

/* Lines through the last two points, or through the last one and nothing at no share. */
static void fit_lines(ShareClass *class) {
    double slope = class->busy / class->share, growth = class->needed / class->share;
    double apart = class->share - class->share_before;
    if (class->share_before > 0 && fabs(apart) > 1e-9) {
        slope = fmax((class->busy - class->busy_before) / apart, LEAST_SLOPE * slope);
        growth = fmax((class->needed - class->needed_before) / apart, 0);
    }
    class->slope = fmax(slope, 1e-15);
    class->seconds = class->busy - class->slope * class->share;
    if (growth * class->share < 1e-6) class->most_share = class->needed <= 1 ? 1 : class->share;
    else class->most_share = class->share + (1 - class->needed) / growth;
}

/* ---- the balance ---- */

static double share_at(const SharedStage *self, const ShareClass *class, double seconds) {
    double least = LEAST_SHARE / self->size, share = (seconds - class->seconds) / class->slope;
    return fmax(fmin(share, class->most_share), least);
}

/* Computes shares [coordinate] with which all classes with free memory end at once. If all together
 * lack memory, shares follow memory. */
static void balance(SharedStage *self, double *shares) {
    double low = 0, high = 0, room = 0;
    for (int32_t c = 0; c < self->class_count; c++) {
        ShareClass *class = &self->classes[c];
        fit_lines(class);
        low = fmin(low, class->seconds);
        high = fmax(high, class->seconds + class->slope);
        room += class->count * share_at(self, class, INFINITY);
    }
    for (int32_t k = 0; k < BISECTIONS; k++) {
        double middle = (low + high) / 2, sum = 0;
        for (int32_t c = 0; c < self->class_count; c++)
            sum += self->classes[c].count * share_at(self, &self->classes[c], middle);
        if (sum < 1) low = middle;
        else high = middle;
    }
    for (int32_t k = 0; k < self->size; k++) {
        const ShareClass *class = &self->classes[self->class_of[k]];
        shares[k] = room < 1 ? share_at(self, class, INFINITY) / room : share_at(self, class, high);
    }
}

/* Returns the coordinate furthest from its share, which gets one unit more (`step` 1) or less (-1). A
 * coordinate whose memory is full gets more only where all are full. */
static int32_t choose_coordinate(const SharedStage *self, const double *shares, int32_t step) {
    double unit = (double)self->unit, most = -INFINITY;
    int32_t chosen = 0;
    for (int32_t k = 0; k < self->size; k++) {
        double have = (double)self->units[k], lacks = step * (shares[k] * unit - have);
        bool is_full = have + 1 > self->classes[self->class_of[k]].most_share * unit;
        if (step > 0 ? is_full : have <= 1) lacks -= 2 * unit;
        if (lacks <= most) continue;
        most = lacks;
        chosen = k;
    }
    return chosen;
}

/* Makes shares sum to 1, in integer numbers of units, at least one for each coordinate. */
static void round_to_units(const SharedStage *self, double *shares) {
    double sum = 0;
    int64_t left = self->unit;
    for (int32_t k = 0; k < self->size; k++) sum += shares[k];
    for (int32_t k = 0; k < self->size; k++) shares[k] /= sum;
    if (self->unit < self->size) return;
    for (int32_t k = 0; k < self->size; k++) {
        self->units[k] = (int64_t)fmax(floor(shares[k] * (double)self->unit), 1);
        left -= self->units[k];
    }
    for (; left > 0; left--) self->units[choose_coordinate(self, shares, 1)]++;
    for (; left < 0; left++) self->units[choose_coordinate(self, shares, -1)]--;
    for (int32_t k = 0; k < self->size; k++) shares[k] = (double)self->units[k] / (double)self->unit;
}

/* ---- candidates ---- */

static AmStatus new_shares(double ***shares, const ShareClimb *self, AmError *error) {
    *shares = ARENA_ARRAY(self->arena, double *, self->plan->stage_count);
    for (int32_t s = 0; *shares && s < self->plan->stage_count; s++)
        (*shares)[s] = ARENA_ARRAY(self->arena, double, self->stages[s].size + 1);
    return self->arena->failed ? am_fail_memory(error, self->plan->stage_count) : AM_OK;
}

static bool are_equal_shares(const SharedStage *self, const double *shares) {
    for (int32_t k = 1; k < self->size; k++)
        if (fabs(shares[k] - shares[0]) > 1e-12) return false;
    return true;
}

/* Returns whether the shares are equal everywhere, or those of a candidate. */
static bool is_known(const ShareClimb *self, double *const *shares) {
    bool is_equal = true;
    for (int32_t s = 0; s < self->plan->stage_count; s++)
        is_equal &= are_equal_shares(&self->stages[s], shares[s]);
    for (int32_t t = 0; t < self->candidate_count && !is_equal; t++) {
        bool is_same = true;
        for (int32_t s = 0; s < self->plan->stage_count; s++)
            for (int32_t k = 0; k < self->stages[s].size; k++)
                is_same &= fabs(shares[s][k] - self->candidates[t][s][k]) <= 1e-12;
        is_equal = is_same;
    }
    return is_equal;
}

/* Makes the plan `of` with these shares on the axis. */
static AmStatus set_shares(ShareCandidate *candidate, const ShareClimb *self, const Plan *of,
                           AmError *error) {
    PlanStage *stages = ARENA_ARRAY(self->arena, PlanStage, of->stage_count);
    if (!stages) return am_fail_memory(error, of->stage_count);
    memcpy(stages, of->stages, sizeof *stages * (size_t)of->stage_count);
    candidate->plan = *of;
    candidate->plan.stages = stages;
    candidate->plan.bound = NULL;
    candidate->plan.bound_seconds = NAN;
    for (int32_t s = 0; s < of->stage_count; s++)
        if (!are_equal_shares(&self->stages[s], candidate->shares[s]))
            stages[s].mesh.axes[self->axis].shares = candidate->shares[s];
    return AM_OK;
}

/* Frees the lowered programs, one for each share of a stage, before the next candidate is simulated. */
static void simulate_task(void *user, int32_t k) {
    ShareClimb *self = user;
    ShareCandidate *candidate = &self->batch[k];
    Arena scratch = {0};
    Simulation *simulation;
    const SimulationOptions options = {.memory_fraction = self->search->memory_fraction,
                                       .most_seconds = candidate->most_seconds};
    candidate->status = simulate_plan(&simulation, &scratch, candidate->plan.context, &candidate->plan,
                                      self->search->cluster, &options, &candidate->error);
    candidate->is_left = candidate->status == AM_OK && simulation->is_left;
    if (candidate->status == AM_OK && !candidate->is_left) {
        candidate->fit = simulation->fit;
        candidate->status =
            simulation_predict(&candidate->plan, &candidate->arena, simulation, &candidate->error);
    }
    arena_free(&scratch);
}

/* Moves a candidate's plan and its prediction to the search's arena. A plan that cannot be lowered, or that
 * was left, is NULL. */
static AmStatus keep_candidate(Plan **plan, const ShareClimb *self, ShareCandidate *candidate,
                               AmError *error) {
    *plan = NULL;
    if (candidate->status == AM_ERROR_INFEASIBLE || candidate->is_left) return AM_OK;
    TRY(am_pass_error(candidate->status, &candidate->error, error));
    size_t bytes = sizeof *candidate->plan.predicted * (size_t)candidate->plan.device_count;
    PlanDevicePrediction *predicted = arena_alloc(self->arena, bytes);
    *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)bytes);
    memcpy(predicted, candidate->plan.predicted, bytes);
    **plan = candidate->plan;
    (*plan)->predicted = predicted;
    return AM_OK;
}

/* Simulates the first `count` candidates side by side; plans[k] is NULL where none could be lowered, or where
 * it was left. */
static AmStatus run_batch(ShareClimb *self, int32_t count, const Plan *of, Plan **plans, AmError *error) {
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < count; k++) TRY(set_shares(&self->batch[k], self, of, error));
    parallel_for(count, 0, simulate_task, self);
    self->evaluations += count;
    for (int32_t k = 0; k < count; k++) {
        if (status == AM_OK) status = keep_candidate(&plans[k], self, &self->batch[k], error);
        arena_free(&self->batch[k].arena);
    }
    return status;
}

/* Returns the seconds above which no plan is better than the best so far or near the rival; 0: there is no
 * limit. */
static double most_seconds(const ShareClimb *self) {
    double most = self->fit.fits ? self->plan->predicted_step_seconds : INFINITY;
    if (self->search->rival_seconds > 0) most = fmin(most, NEAR_RIVAL * self->search->rival_seconds);
    return isfinite(most) ? most : 0;
}

static bool may_go_on(const ShareClimb *self, int32_t count) {
    return self->evaluations + count <= self->search->most && !stop_wanted(self->search->stop);
}

static void take_if_better(ShareClimb *self, Plan *plan, const MemoryFit *fit) {
    double seconds = self->plan->predicted_step_seconds;
    if (!plan || !plan_is_better(plan->predicted_step_seconds, fit, seconds, &self->fit)) return;
    self->plan = self->found = plan;
    self->fit = *fit;
}

/* Balances the shares of `of`, which are equal on this axis, round by round; `**balanced` are the last
 * ones. */
static AmStatus balance_stages(ShareClimb *self, const Plan *of, double ***balanced, AmError *error) {
    Plan *plan;
    for (int32_t s = 0; s < of->stage_count; s++) measure_lines(&self->stages[s], self, of, s, NULL);
    for (int32_t round = 0; round < ROUNDS && may_go_on(self, 1); round++) {
        double **shares;
        TRY(new_shares(&shares, self, error));
        for (int32_t s = 0; s < of->stage_count; s++) {
            if (self->stages[s].size == 0) continue;
            balance(&self->stages[s], shares[s]);
            round_to_units(&self->stages[s], shares[s]);
        }
        if (is_known(self, shares)) return AM_OK;
        *balanced = shares;
        self->candidates[self->candidate_count++] = shares;
        self->batch[0] = (ShareCandidate){.shares = shares};
        if (round == ROUNDS - 1) self->batch[0].most_seconds = most_seconds(self); /* no line needs it */
        TRY(run_batch(self, 1, of, &plan, error));
        if (!plan) return AM_OK;
        take_if_better(self, plan, &self->batch[0].fit);
        /* Other shares on this axis than the first balanced ones cannot come near the rival. */
        double rival = self->search->rival_seconds;
        if (rival > 0 && plan->predicted_step_seconds > HOPELESS * rival) {
            *balanced = NULL;
            return AM_OK;
        }
        for (int32_t s = 0; s < of->stage_count; s++)
            measure_lines(&self->stages[s], self, plan, s, shares[s]);
    }
    return AM_OK;
}

/* Applies Whale's algorithm 1: shares [coordinate] follow the peak rates. While a coordinate lacks memory, a
 * unit of its load moves to the one with the least load for its rate that has room. */
static AmStatus follow_peaks(const SharedStage *self, const ShareClimb *sharing, const PlanStage *stage,
                             double *shares, AmError *error) {
    const double unit = 1.0 / (double)(self->unit > self->size ? self->unit : 64 * self->size);
    double *peaks = ARENA_ARRAY(sharing->arena, double, self->size), sum = 0;
    if (!peaks) return am_fail_memory(error, self->size);
    for (int32_t d = 0; d < stage->mesh.device_count; d++) {
        const ClusterDeviceType *type = cluster_device_type(sharing->search->cluster, stage->devices[d]);
        peaks[mesh_coordinate(&stage->mesh, d, sharing->axis)] += type->flops_per_second[DTYPE_F32];
    }
    for (int32_t k = 0; k < self->size; k++) sum += peaks[k];
    for (int32_t k = 0; k < self->size; k++) shares[k] = peaks[k] / sum;
    for (int64_t moved = 0; moved < 1 / unit; moved++) {
        int32_t from = -1, to = -1;
        for (int32_t k = 0; k < self->size; k++) {
            double most = self->classes[self->class_of[k]].most_share;
            bool is_full = shares[k] > most && shares[k] > unit;
            if (is_full && (from < 0 ||
                            shares[k] / most > shares[from] / self->classes[self->class_of[from]].most_share))
                from = k;
            if (shares[k] + unit <= most && (to < 0 || shares[k] / peaks[k] < shares[to] / peaks[to])) to = k;
        }
        if (from < 0 || to < 0) break;
        shares[from] -= unit;
        shares[to] += unit;
    }
    return AM_OK;
}

/* Simulates the shares of Whale's algorithm. */
static AmStatus price_peaks(ShareClimb *self, const Plan *of, AmError *error) {
    double **shares;
    Plan *plan;
    if (!may_go_on(self, 1)) return AM_OK;
    TRY(new_shares(&shares, self, error));
    for (int32_t s = 0; s < of->stage_count; s++) {
        if (self->stages[s].size == 0) continue;
        TRY(follow_peaks(&self->stages[s], self, &of->stages[s], shares[s], error));
        round_to_units(&self->stages[s], shares[s]);
    }
    if (is_known(self, shares)) return AM_OK;
    self->candidates[self->candidate_count++] = shares;
    self->batch[0] = (ShareCandidate){.shares = shares, .most_seconds = most_seconds(self)};
    TRY(run_batch(self, 1, of, &plan, error));
    take_if_better(self, plan, &self->batch[0].fit);
    return AM_OK;
}

/* Shares on the line through the equal and the balanced ones. */
static AmStatus search_line(ShareClimb *self, const Plan *of, double *const *balanced, AmError *error) {
    Plan *plans[LINE_POINTS];
    int32_t count = 0;
    for (int32_t p = 0; p < LINE_POINTS && may_go_on(self, count + 1); p++) {
        double **shares;
        TRY(new_shares(&shares, self, error));
        for (int32_t s = 0; s < of->stage_count; s++) {
            SharedStage *stage = &self->stages[s];
            double equal = stage->size > 0 ? 1.0 / stage->size : 0;
            for (int32_t k = 0; k < stage->size; k++)
                shares[s][k] = fmax(equal + line_points[p] * (balanced[s][k] - equal), LEAST_SHARE * equal);
            if (stage->size > 0) round_to_units(stage, shares[s]);
        }
        if (is_known(self, shares)) continue;
        self->candidates[self->candidate_count++] = shares;
        self->batch[count++] = (ShareCandidate){.shares = shares, .most_seconds = most_seconds(self)};
    }
    TRY(run_batch(self, count, of, plans, error));
    for (int32_t k = 0; k < count; k++) take_if_better(self, plans[k], &self->batch[k].fit);
    return AM_OK;
}

static AmStatus search_axis(ShareClimb *self, AmError *error) {
    const Plan *of = self->plan;
    double **balanced = NULL;
    bool is_mixed = false;
    self->candidate_count = 0;
    for (int32_t s = 0; s < of->stage_count; s++) {
        TRY(open_stage(&self->stages[s], self, &of->stages[s], error));
        is_mixed |= self->stages[s].size > 0;
    }
    if (!is_mixed) return AM_OK;
    TRY(balance_stages(self, of, &balanced, error));
    if (!balanced) return AM_OK;
    TRY(price_peaks(self, of, error));
    return search_line(self, of, balanced, error);
}

/* Returns the memory of the device with least room. */
static MemoryFit fit_of(const Plan *plan, const ShareSearch *search) {
    MemoryFit fullest = {.fits = true};
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++) {
            const PlanDevicePrediction *device = &plan->predicted[rank_of(plan, s, d)];
            MemoryFit fit = memory_fit(device->peak_bytes + device->channel_bytes, search->cluster,
                                       &plan->stages[s].devices[d], 1, search->memory_fraction);
            if (fit.needed_fraction > fullest.needed_fraction) fullest = fit;
        }
    return fullest;
}

AmStatus uneven_shares_find(Plan **best, MemoryFit *fit, int64_t *evaluations, Arena *arena, const Plan *plan,
                            const ShareSearch *search, AmError *error) {
    *best = NULL;
    ShareClimb *self = ARENA_ARRAY(arena, ShareClimb, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (ShareClimb){.search = search, .arena = arena, .plan = plan, .fit = fit_of(plan, search)};
    self->stages = ARENA_ARRAY(arena, SharedStage, plan->stage_count);
    if (!self->stages) return am_fail_memory(error, plan->stage_count);
    AmStatus status = AM_OK;
    for (; self->axis < MESH_MAX_AXES && status == AM_OK; self->axis++) status = search_axis(self, error);
    *evaluations += self->evaluations;
    *fit = self->fit;
    if (status == AM_OK) *best = self->found;
    return status;
}
