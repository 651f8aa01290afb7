/* Hill climb (local_search/climb.h) over the changes of a plan that `explain` lists, each simulated. After an
 * improvement the pass continues after the change that was taken, on the changes of the new plan. */
#include "planners/improve/plan_climb.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/improve/plan_memo.h"
#include "planners/improve/plan_moves.h"
#include "planners/layers/layer_costs.h"
#include "planners/local_search/climb.h"
#include "planners/problem/search_watch.h"

enum { MOST_PASSES = 8 /* over as many changes as the first plan has */ };

bool plan_climb_applies(const SearchScope *scope) {
    const SearchRequest *request = scope->request;
    bool is_free =
        !request->constraints.kept && scope->purpose != PURPOSE_TRIAL && !request->method.no_polish;
    bool explores = scope->searcher == SEARCHER_AUTO || scope->searcher == SEARCHER_DQN ||
                    scope->searcher == SEARCHER_ANNEAL || scope->searcher == SEARCHER_GREEDY ||
                    scope->searcher == SEARCHER_AGENT;
    return is_free && explores && request->objective != OBJECTIVE_PAPER;
}

int64_t plan_climb_reserve(const SearchScope *scope, int64_t evaluations) {
    enum { PART = 8, MOST = 64 };
    int64_t part = evaluations / PART;
    if (!plan_climb_applies(scope)) return 0;
    return part < MOST ? part : MOST;
}

AmStatus plan_climb_open(PlanClimb *self, Arena *arena, AmError *error) {
    self->budget.is_cut = stop_wanted(&self->budget.stop);
    self->memo.arena = arena;
    if (self->budget.is_cut || self->places) return AM_OK;
    const SearchRequest *request = self->request;
    ProblemSettings settings = problem_settings(SPACE_AUTO, request->constraints.memory_fraction);
    settings.constraints.offloads_optimizer = request->constraints.offloads_optimizer;
    const LayerPins pins = {request->constraints.pins, request->constraints.pin_count,
                            self->scope->placement};
    LayerCosts *costs;
    AmError why = {0};
    AmStatus status = layer_costs_open(&costs, self->primary, self->cluster, &settings, &pins, &why);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE && error) *error = why;
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) return status;
    int32_t count = status == AM_OK ? costs->units.count - 1 : 0;
    int32_t *places = ARENA_ARRAY(arena, int32_t, count + 1);
    if (places && count > 0) memcpy(places, costs->units.cuts + 1, sizeof *places * (size_t)count);
    if (status == AM_OK) layer_costs_close(costs);
    if (!places) return am_fail_memory(error, count);
    self->places = places;
    self->place_count = count;
    return AM_OK;
}

void plan_climb_close(PlanClimb *self) {
    for (int32_t k = 0; k < PLAN_CLIMB_BATCH; k++) arena_free(&self->scratch[k]);
    arena_free(&self->of_base);
}

/* ---- changes of a plan ---- */

/* In instructions. A change of recomputation makes a module anew, which takes as long as several
 * evaluations. */
enum { LARGE = 30000 };

AmStatus plan_climb_list(ClimbBase *base, const Plan *plan, const PlanClimb *self, Arena *arena,
                         AmError *error) {
    const SearchRequest *request = self->request;
    bool is_large = self->budget.has_cap && plan_context_count(self->primary) > LARGE;
    *base = (ClimbBase){.arena = arena};
    bool recomputes = false; /* changes of recomputation are read from the plan's document */
    for (int32_t k = 0; k < plan->stage_count; k++) recomputes |= plan->stages[k].recompute.range_count > 0;
    if (!self->keeps_micro_batches || recomputes)
        TRY(plan_stages_to_json(&base->root, plan, plan->context, error));
    base->explainer = (Explainer){.arena = arena,
                                  .primary = self->primary,
                                  .context = plan_context_used(plan, self->primary),
                                  .plan = plan,
                                  .root = base->root,
                                  .cluster = self->cluster,
                                  .keeps.micro_batches = self->keeps_micro_batches,
                                  .schedules = request->space.schedule ? 0 : search_schedules(request),
                                  .keeps.attention = true,
                                  .places.of = self->places,
                                  .places.count = self->place_count,
                                  .memory_fraction = request->constraints.memory_fraction,
                                  .stop = &self->budget.stop,
                                  .changes.most_priced = is_large ? budget_left(&self->budget) : 0,
                                  .result = &base->explanation,
                                  .error = error};
    TRY(explain_list_changes(&base->explainer));
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

void plan_climb_unlist(ClimbBase *base) {
    explain_close(&base->explainer);
    json_decref(base->root);
    arena_release(base->arena, (ArenaMark){0});
    base->arena->failed = false;
}

static void *copy_of(Arena *arena, const void *from, size_t size, int32_t count) {
    void *copy = arena_alloc(arena, size * (size_t)(count > 0 ? count : 1));
    if (copy && count > 0) memcpy(copy, from, size * (size_t)count);
    return copy;
}

static void copy_stage(PlanStage *stage, Arena *arena) {
    stage->ranges = copy_of(arena, stage->ranges, sizeof *stage->ranges, stage->range_count);
    stage->devices = copy_of(arena, stage->devices, sizeof *stage->devices, stage->mesh.device_count);
    stage->overrides = copy_of(arena, stage->overrides, sizeof *stage->overrides, stage->override_count);
    stage->reshard = copy_of(arena, stage->reshard, sizeof *stage->reshard, stage->reshard_count);
    PlanRecomputation *recompute = &stage->recompute;
    recompute->ranges = copy_of(arena, recompute->ranges, sizeof *recompute->ranges, recompute->range_count);
    recompute->saved = copy_of(arena, recompute->saved, sizeof *recompute->saved, recompute->saved_count);
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        PlanAxisPriority *priority = &stage->axis_priorities[axis];
        priority->entries = copy_of(arena, priority->entries, sizeof *priority->entries, priority->count);
        Mesh *mesh = &stage->mesh;
        mesh->axes[axis].name = arena_copy_string(arena, mesh->axes[axis].name);
        const double *shares = mesh->axes[axis].shares;
        if (shares) mesh->axes[axis].shares = copy_of(arena, shares, sizeof *shares, mesh->axes[axis].size);
    }
}

AmStatus plan_climb_take(Plan **plan, const ClimbStep *step, const PlanClimb *self, Arena *arena,
                         AmError *error) {
    const Plan *old = *plan, *from = step->plan;
    const PlanContext *context = plan_context_used(from, self->primary);
    Plan *made = copy_of(arena, old, sizeof *old, 1);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    made->context = context;
    made->micro_batches = from->micro_batches;
    made->stage_count = from->stage_count;
    made->stages = copy_of(arena, from->stages, sizeof *from->stages, from->stage_count);
    if (!made->stages) return am_fail_memory(error, from->stage_count);
    for (int32_t s = 0; s < made->stage_count; s++) copy_stage(&made->stages[s], arena);
    made->schedule = from->stage_count > 1 ? schedule_kind_name(plan_schedule(from)) : old->schedule;
    TRY(micro_batches_state_relaxations(made, arena, context, error));
    TRY(simulation_predict(made, arena, step->simulation, error));
    *plan = made;
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* ---- the climb ---- */

bool plan_climb_add(ClimbBatch *batch, const Plan *plan, double seconds, PlanClimb *self) {
    uint64_t key = plan_memo_key(plan);
    if (target_check_plan(self->request->constraints.target, plan, NULL) != AM_OK) return false;
    if (search_check_plan(self->scope, plan, NULL) != AM_OK) return false;
    for (int32_t k = 0; k < batch->count; k++)
        if (batch->steps[k].key == key) return false;
    if (plan_memo_excludes(&self->memo, key, seconds)) return false;
    batch->steps[batch->count++] = (ClimbStep){.plan = plan, .key = key};
    return true;
}

typedef struct ClimbTasks {
    ClimbBatch *batch;
    PlanClimb *climb;
    const ClimbBase *base;
} ClimbTasks;

static void simulate_task(void *user, int32_t k) {
    const ClimbTasks *self = user;
    const PlanClimb *climb = self->climb;
    ClimbStep *step = &self->batch->steps[k];
    const SimulationOptions options = {.memory_fraction = climb->request->constraints.memory_fraction,
                                       .stop = &climb->budget.stop,
                                       .known = &self->base->explainer.ranks,
                                       .most_seconds = self->batch->most_seconds};
    step->status = simulate_plan(&step->simulation, &self->climb->scratch[k], self->base->explainer.context,
                                 step->plan, climb->cluster, &options, &step->error);
}

AmStatus plan_climb_price(ClimbBatch *batch, PlanClimb *self, const ClimbBase *base, AmError *error) {
    ClimbTasks pricing = {batch, self, base};
    batch->best = NULL;
    batch->count = (int32_t)budget_take(&self->budget, batch->count);
    parallel_for(batch->count, 0, simulate_task, &pricing);
    for (int32_t k = 0; k < batch->count; k++) {
        ClimbStep *step = &batch->steps[k];
        if (step->status == AM_INTERRUPTED) {
            self->budget.is_cut = true;
            continue;
        }
        if (step->status == AM_ERROR_INTERNAL) return am_pass_error(step->status, &step->error, error);
        bool is_left = step->status == AM_OK && step->simulation->is_left;
        bool fits = step->status == AM_OK && (step->simulation->fit.fits || is_left);
        step->seconds = fits ? step->simulation->step_seconds : NAN;
        if (!plan_memo_add(&self->memo, step->key, step->seconds)) return am_fail_memory(error, 0);
        if (step->status != AM_OK) continue;
        self->budget.used++;
        search_watch_count(self->request->callbacks.watch, 1, step->seconds);
        if (fits && !is_left && !(batch->best && batch->best->seconds <= step->seconds)) batch->best = step;
    }
    return AM_OK;
}

void plan_climb_clear(ClimbBatch *batch, PlanClimb *self) {
    *batch = (ClimbBatch){0};
    for (int32_t k = 0; k < PLAN_CLIMB_BATCH; k++) {
        arena_release(&self->scratch[k], (ArenaMark){0});
        self->scratch[k].failed = false;
    }
}

/* A climb that can be interrupted and continued. */
typedef struct ClimbPath {
    Plan *plan; /* the best so far */
    ClimbPlace place;
} ClimbPath;

/* A part of a climb, up to a number of evaluations. */
typedef struct ClimbRun {
    PlanClimb *climb;
    ClimbPath *path;
    Arena *arena;   /* of the plans that are taken */
    int64_t most;   /* no further changes are listed beyond these evaluations; 0: by the first list */
    int64_t end;    /* the evaluations are at an end */
    bool is_beyond; /* `most` are made */
    bool is_listed; /* `base` is in use */
    ClimbBase base; /* changes of the present plan */
    PrefixMove *prefixes;
    DeviceSwap *swaps;
    int32_t prefix_count, swap_count;
    ClimbBatch batch;
} ClimbRun;

static double wanted_seconds(const ClimbRun *self) {
    return self->path->plan->predicted_step_seconds * (1 - PLAN_CLIMB_GAIN);
}

static bool is_over(void *user) {
    const ClimbRun *self = user;
    PlanClimb *climb = self->climb;
    if (self->is_beyond || climb->budget.used >= self->end) return true;
    climb->budget.is_cut |= stop_wanted(&climb->budget.stop);
    return climb->budget.is_cut;
}

static void unlist(ClimbRun *self) {
    if (self->is_listed) plan_climb_unlist(&self->base);
    self->is_listed = false;
}

static AmStatus list_changes(void *user, int32_t *count, AmError *error) {
    ClimbRun *self = user;
    PlanClimb *climb = self->climb;
    unlist(self);
    self->is_listed = true;
    TRY(plan_climb_list(&self->base, self->path->plan, climb, &climb->of_base, error));
    TRY(plan_list_prefixes(&self->prefixes, &self->prefix_count, self->base.arena, self->path->plan, error));
    self->swap_count = 0;
    if (!climb->request->devices.keeps_order && !climb->keeps_devices)
        TRY(plan_list_swaps(&self->swaps, &self->swap_count, self->base.arena, self->path->plan,
                            climb->cluster, error));
    *count = explain_most_changes(&self->base.explainer) + self->prefix_count + self->swap_count;
    if (self->most == 0) self->most = climb->budget.used + (int64_t)MOST_PASSES * *count;
    return AM_OK;
}

static AmStatus make_change(void *user, int32_t move, ClimbMove *made, AmError *error) {
    ClimbRun *self = user;
    PlanClimb *climb = self->climb;
    const Explainer *explainer = &self->base.explainer;
    int32_t singles = explain_most_changes(explainer);
    Arena *arena = &climb->scratch[self->batch.count];
    const Plan *changed;
    if (self->batch.count == 0) plan_climb_clear(&self->batch, climb);
    int32_t prefix = move - singles, swap = prefix - self->prefix_count;
    if (move < singles) TRY(explain_make_change(&changed, &explainer->changes.of[move], arena, error));
    else if (swap < 0)
        TRY(plan_move_prefix(&changed, arena, self->path->plan, &self->prefixes[prefix], error));
    else TRY(plan_swap_devices(&changed, arena, self->path->plan, &self->swaps[swap], error));
    if (plan_climb_add(&self->batch, changed, wanted_seconds(self), climb)) *made = CLIMB_ADDED;
    return AM_OK;
}

static AmStatus price_batch(void *user, bool *is_better, AmError *error) {
    ClimbRun *self = user;
    self->batch.most_seconds = wanted_seconds(self);
    TRY(plan_climb_price(&self->batch, self->climb, &self->base, error));
    *is_better = self->batch.best && self->batch.best->seconds < wanted_seconds(self);
    if (!*is_better) plan_climb_clear(&self->batch, self->climb);
    return AM_OK;
}

static AmStatus take_best(void *user, AmError *error) {
    ClimbRun *self = user;
    TRY(plan_climb_take(&self->path->plan, self->batch.best, self->climb, self->arena, error));
    plan_climb_clear(&self->batch, self->climb);
    self->is_beyond = self->climb->budget.used >= self->most;
    return AM_OK;
}

/* Climbs until `end` evaluations were made. After `limit` further evaluations (0: eight passes) no changes
 * are listed. */
static AmStatus climb_path(ClimbPath *path, PlanClimb *self, int64_t limit, int64_t end, Arena *arena,
                           AmError *error) {
    ClimbRun following = {.climb = self,
                          .path = path,
                          .arena = arena,
                          .most = limit > 0 ? self->budget.used + limit : 0,
                          .end = end};
    const Climb climb = {.order = CLIMB_ONWARD,
                         .batch = PLAN_CLIMB_BATCH,
                         .user = &following,
                         .is_over = is_over,
                         .list = list_changes,
                         .make = make_change,
                         .price = price_batch,
                         .take = take_best};
    AmError failure = {0};
    AmStatus status = climb_run(&climb, &path->place, &failure);
    unlist(&following);
    plan_climb_clear(&following.batch, self);
    if (status == AM_INTERRUPTED) self->budget.is_cut = true;
    if (status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) {
        path->place.is_end = true;
        return AM_OK;
    }
    return am_pass_error(status, &failure, error);
}

AmStatus plan_climb(Plan **plan, PlanClimb *self, int64_t limit, Arena *arena, AmError *error) {
    ClimbPath path = {.plan = *plan};
    AmStatus status = climb_path(&path, self, limit, INT64_MAX, arena, error);
    *plan = path.plan;
    return status;
}

AmStatus plan_climb_rivals(Plan **plan, Plan *rival, PlanClimb *self, bool is_short, Arena *arena,
                           AmError *error) {
    enum { TRIAL = 32, SHORT_TRIAL = 8 /* evaluations */ };
    const int64_t trial = is_short ? SHORT_TRIAL : TRIAL;
    ClimbPath paths[] = {{.plan = *plan}, {.plan = rival}};
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < 2; k++)
        for (bool is_promising = true;
             is_promising && !paths[k].place.is_end && !self->budget.is_cut && status == AM_OK;) {
            double before = paths[k].plan->predicted_step_seconds;
            status = climb_path(&paths[k], self, 0, self->budget.used + trial, arena, error);
            is_promising =
                !is_short && paths[k].plan->predicted_step_seconds < before * (1 - PLAN_CLIMB_PROMISE);
        }
    bool is_rival = paths[1].plan->predicted_step_seconds < paths[0].plan->predicted_step_seconds;
    ClimbPath *best = &paths[is_rival ? 1 : 0];
    if (status == AM_OK) status = climb_path(best, self, 0, INT64_MAX, arena, error);
    *plan = best->plan;
    return status;
}
