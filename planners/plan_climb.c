/* Hill climb over single changes of a plan.
 *
 * Changes are simulated in batches of a fixed size, so that the order of evaluations depends neither on the
 * number of threads nor on the cap: a climb with a smaller cap is a prefix of one with a larger cap. After an
 * improvement the pass goes on behind the change that was taken, on the changes of the new plan.
 */
#include "planners/plan_climb.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "planners/explain_parts.h"
#include "planners/layer_costs.h"
#include "planners/search_watch.h"
#include "propagation/micro_batches.h"

enum { CLIMB_BATCH = 2, MOST_PASSES = 8 /* over as many changes as the first plan has */ };

/* The changes of one plan. */
typedef struct Base {
    Arena arena;
    Explanation explanation;
    Explainer explainer;
    json_t *root;
} Base;

/* One change of the batch. */
typedef struct Step {
    Base *base;
    Arena arena;
    PlannedChange *change;
    const Plan *plan;
    Simulation *simulation;
} Step;

bool plan_climb_applies(const SearchOptions *options) {
    bool is_free = options->pin_count == 0 && !options->kept && !options->is_trial && !options->no_polish;
    bool explores = options->searcher == SEARCHER_DQN || options->searcher == SEARCHER_ANNEAL ||
                    options->searcher == SEARCHER_GREEDY || options->searcher == SEARCHER_AGENT;
    return is_free && explores && options->objective == OBJECTIVE_TIME;
}

int64_t plan_climb_reserve(const SearchOptions *options, int64_t evaluations) {
    enum { PART = 8, MOST = 64 };
    int64_t part = evaluations / PART;
    if (!plan_climb_applies(options)) return 0;
    return part < MOST ? part : MOST;
}

/* ---- places of cuts ---- */

/* Finds the places of cuts once for all plans; none where the module has no units. */
static AmStatus find_places(int32_t **places, int32_t *count, const PlanClimb *self, Arena *arena,
                            AmError *error) {
    const ProblemSettings settings = {
        .space = SPACE_AUTO, .memory_fraction = self->options->memory_fraction, .budget = {.limit = 1}};
    LayerCosts *costs;
    AmError why = {0};
    *count = 0;
    AmStatus status = layer_costs_open(&costs, self->whole, self->cluster, &settings, &why);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE && error) *error = why;
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) return status;
    int32_t units = status == AM_OK ? costs->unit_count : 1;
    *places = ARENA_ARRAY(arena, int32_t, units);
    if (*places && units > 1) memcpy(*places, costs->cuts + 1, sizeof **places * (size_t)(units - 1));
    if (*places) *count = units - 1;
    if (status == AM_OK) layer_costs_close(costs);
    return *places ? AM_OK : am_fail_memory(error, units);
}

/* ---- changes of a plan ---- */

static AmStatus open_base(Base *base, const Plan *plan, const PlanClimb *self, const int32_t *places,
                          int32_t place_count, AmError *error) {
    *base = (Base){0};
    if (!self->keeps_micro_batches) TRY(plan_stages_to_json(&base->root, plan, plan->context, error));
    base->explainer = (Explainer){.arena = &base->arena,
                                  .whole = self->whole,
                                  .context = plan_context_used(plan, self->whole),
                                  .plan = plan,
                                  .root = base->root,
                                  .cluster = self->cluster,
                                  .keeps_micro_batches = self->keeps_micro_batches,
                                  .keeps_schedule = self->options->schedule != NULL,
                                  .places = places,
                                  .place_count = place_count,
                                  .memory_fraction = self->options->memory_fraction,
                                  .stop = &self->stop,
                                  .result = &base->explanation,
                                  .error = error};
    TRY(explain_list_changes(&base->explainer));
    return base->arena.failed ? am_fail_memory(error, 0) : AM_OK;
}

static void close_base(Base *base) {
    explain_close(&base->explainer);
    json_decref(base->root);
    arena_free(&base->arena);
}

static void *copy_of(Arena *arena, const void *from, size_t size, int32_t count) {
    void *copy = arena_alloc(arena, size * (size_t)(count > 0 ? count : 1));
    if (copy && count > 0) memcpy(copy, from, size * (size_t)count);
    return copy;
}

static void copy_stage(PlanStage *stage, Arena *arena) {
    stage->ranges = copy_of(arena, stage->ranges, sizeof *stage->ranges, stage->range_count);
    stage->devices = copy_of(arena, stage->devices, sizeof *stage->devices, stage->mesh.device_count);
    stage->exceptions = copy_of(arena, stage->exceptions, sizeof *stage->exceptions, stage->exception_count);
    stage->boxing = copy_of(arena, stage->boxing, sizeof *stage->boxing, stage->boxing_count);
    stage->recompute = copy_of(arena, stage->recompute, sizeof *stage->recompute, stage->recompute_count);
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        PlanList *list = &stage->lists[axis];
        list->entries = copy_of(arena, list->entries, sizeof *list->entries, list->count);
        Mesh *mesh = &stage->mesh;
        mesh->axes[axis].name = arena_copy_string(arena, mesh->axes[axis].name);
        const double *shares = mesh->axes[axis].shares;
        if (shares) mesh->axes[axis].shares = copy_of(arena, shares, sizeof *shares, mesh->axes[axis].size);
    }
}

/* Copies the changed plan, with its prediction, beside what `old` says of its search. */
static AmStatus take_step(Plan **plan, const Step *step, const PlanClimb *self, Arena *arena,
                          AmError *error) {
    const Plan *old = *plan, *from = step->plan;
    const PlanContext *context = plan_context_used(from, self->whole);
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

static void simulate_task(void *user, int32_t k) {
    Step *step = &((Step *)user)[k];
    explain_simulate_change(&step->base->explainer, step->change, &step->arena, &step->plan,
                            &step->simulation);
}

/* Simulates the changes from `first` on, as a circle. Returns how many; `*best`: the fastest that fits, or
 * NULL. */
static int32_t simulate_batch(Step *steps, Step **best, PlanClimb *self, Base *base, int32_t first,
                              int32_t wanted) {
    int32_t all = explain_most_changes(&base->explainer), count = wanted;
    *best = NULL;
    if (self->cap > 0 && self->evaluations + count > self->cap) {
        count = (int32_t)(self->cap - self->evaluations);
        self->is_cut = true;
    }
    for (int32_t k = 0; k < count; k++) {
        steps[k] = (Step){.base = base, .change = &base->explainer.changes[(first + k) % all]};
        steps[k].change->status = AM_OK;
    }
    parallel_for(count, 0, simulate_task, steps);
    for (int32_t k = 0; k < count; k++) {
        const Simulation *simulation = steps[k].simulation;
        if (steps[k].change->status != AM_OK) continue;
        self->evaluations++;
        search_watch_count(self->options->watch, 1, simulation->fit.fits ? simulation->step_seconds : NAN);
        if (!simulation->fit.fits) continue;
        if (!*best || simulation->step_seconds < (*best)->simulation->step_seconds) *best = &steps[k];
    }
    return count;
}

/* Passes over the changes of `*plan` from number `*at` on; `*is_changed`: one was taken. */
static AmStatus climb_once(Plan **plan, bool *is_changed, int32_t *at, PlanClimb *self, Base *base,
                           Arena *arena, AmError *error) {
    int32_t all = explain_most_changes(&base->explainer);
    AmStatus status = AM_OK;
    *is_changed = false;
    for (int32_t done = 0; done < all && !*is_changed && !self->is_cut && status == AM_OK;) {
        Step steps[CLIMB_BATCH], *best;
        int32_t wanted = all - done < CLIMB_BATCH ? all - done : CLIMB_BATCH;
        if (stop_wanted(&self->stop)) {
            self->is_cut = true;
            return AM_OK;
        }
        int32_t count = simulate_batch(steps, &best, self, base, *at % all, wanted);
        *at = (*at + count) % all;
        done += count;
        for (int32_t k = 0; k < count && status == AM_OK; k++) {
            if (steps[k].change->status != AM_ERROR_INTERNAL) continue;
            status = steps[k].change->status;
            if (error) *error = steps[k].change->error;
        }
        double wanted_seconds = (*plan)->predicted_step_seconds * (1 - PLAN_CLIMB_GAIN);
        if (status == AM_OK && best && best->simulation->step_seconds < wanted_seconds) {
            status = take_step(plan, best, self, arena, error);
            *is_changed = true;
        }
        for (int32_t k = 0; k < count; k++) arena_free(&steps[k].arena);
    }
    return status;
}

AmStatus plan_climb(Plan **plan, PlanClimb *self, Arena *arena, AmError *error) {
    int32_t *places, place_count, at = 0;
    int64_t most = INT64_MAX;
    self->evaluations = 0;
    self->is_cut = stop_wanted(&self->stop);
    if (self->is_cut) return AM_OK;
    search_watch_phase(self->options->watch, SEARCH_PHASE_CHANGES);
    TRY(find_places(&places, &place_count, self, arena, error));
    for (bool is_changed = true; is_changed && !self->is_cut && self->evaluations < most;) {
        AmError failure = {0};
        Base *base = ARENA_ARRAY(arena, Base, 1);
        if (!base) return am_fail_memory(error, (int64_t)sizeof *base);
        is_changed = false;
        AmStatus status = open_base(base, *plan, self, places, place_count, &failure);
        bool has_changes = status == AM_OK && explain_most_changes(&base->explainer) > 0;
        if (has_changes && most == INT64_MAX) most = MOST_PASSES * explain_most_changes(&base->explainer);
        if (has_changes) status = climb_once(plan, &is_changed, &at, self, base, arena, &failure);
        close_base(base);
        if (status == AM_ERROR_INFEASIBLE) return AM_OK;
        if (status != AM_OK && error) *error = failure;
        TRY(status);
    }
    return AM_OK;
}
