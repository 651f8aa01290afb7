/* The search over pipelines, with one-stage plans in addition.
 *
 * Plans are simulated in this order: the given plan; a first plan of a large module; the best pipelines by
 * tables of stages (stage_dp.h), even ones and those of the cut agent among them; pipelines with more
 * recomputation, moved cuts and other schedules; local changes of the best; at last one-stage plans.
 */
#include "planners/pipeline/pipeline_search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "planners/improve/uneven_shares.h"
#include "planners/pipeline/cut_agent_guess.h"
#include "planners/pipeline/pipeline_even.h"
#include "planners/pipeline/pipeline_improve.h"
#include "planners/pipeline/pipeline_one_stage.h"
#include "planners/pipeline/pipeline_policy.h"
#include "planners/pipeline/stage_model.h"
#include "planners/problem/mesh_pins.h"
#include "planners/problem/placement.h"

enum { MOST_FOUND = 24, MOST_GUESSES = 4, MOST_EVEN = 2, MOST_VARIED = 2, MOST_NEAR = 6, LEAST_TABLES = 2 };
/* Pipelines that take at most this many times as long as the best may be better under another schedule. */
#define NEAR 1.02
/* The best pipeline of another order of the devices may take so many times as long. */
#define NEAR_ORDER 1.2
/* The fraction of a time limit for pipelines; one-stage plans come after them. */
#define PIPELINES_SHARE 0.6

/* ---- plans to begin with ---- */

/* Simulates a first plan of a large module before the tables are made: the first one that fits
 * among those with the least memory. An interrupted search returns it. */
static AmStatus price_first(PipelineCandidates *self, AmError *error) {
    enum { SOON_ENOUGH = 2000 /* instructions */, LEAST_LEFT = 16 /* evaluations */ };
    const Cluster *cluster = self->plans.cluster;
    const Degrees *degrees = &self->plans.request->constraints.degrees;
    const StageStrategy strategies[] = {
        {.tensor = 1, .storage = 3},
        {.tensor = cluster->servers[0].device_count, .splits_sequence = true, .storage = 3}};
    bool is_wanted = self->plans.scope->micro_batches <= 1 &&
                     plan_context_count(self->plans.primary) > SOON_ENOUGH &&
                     pipeline_evaluations_left(self) >= LEAST_LEFT;
    for (int32_t k = 0; k < 2 && is_wanted && !self->best; k++) {
        PipelineCandidate *candidate = ARENA_ARRAY(self->plans.arena, PipelineCandidate, 1);
        if (!candidate) return am_fail_memory(error, (int64_t)sizeof *candidate);
        if (!degrees_allow_stages(degrees, 1)) continue;
        if (!degrees_allow_mesh(degrees, cluster->device_count, strategies[k].tensor)) continue;
        *candidate = (PipelineCandidate){.pipeline = pipeline_one_stage_layout(self, &strategies[k]),
                                         .origin = PLAN_ORIGIN_BASELINE,
                                         .is_apart = true};
        TRY(pipeline_price_one(self, candidate, error));
    }
    return AM_OK;
}

/* Simulates the plan of --init-plan first, if it is in the requested space. */
static AmStatus price_given(PipelineCandidates *self, AmError *error) {
    const SearchScope *scope = self->plans.scope;
    const Plan *initial = scope->request->space.initial;
    PipelineCandidate *candidate = ARENA_ARRAY(self->plans.arena, PipelineCandidate, 1);
    if (!candidate) return am_fail_memory(error, (int64_t)sizeof *candidate);
    if (!initial || (scope->micro_batches > 0 && scope->micro_batches != initial->micro_batches))
        return AM_OK;
    if (scope->request->space.schedule && initial->stage_count > 1 &&
        plan_schedule(initial) != pipeline_wanted_schedule(scope))
        return AM_OK;
    candidate->given = initial;
    candidate->is_apart = true;
    return pipeline_price_one(self, candidate, error);
}

/* ---- the best by the tables ---- */

/* Pipelines, quickest first. */
typedef struct Found {
    PipelineLayout pipelines[MOST_FOUND];
    int32_t count;
} Found;

/* Returns whether two pipelines, of one order or of two, have equal stages on as many devices of each type,
 * and equal steps by the tables. */
static bool is_alike(const PipelineCandidates *self, const PipelineLayout *a, const PipelineLayout *b) {
    const Cluster *of_a = stage_model_of(self->model, a)->cluster,
                  *of_b = stage_model_of(self->model, b)->cluster;
    if (a->seconds != b->seconds || a->micro_batches != b->micro_batches || a->stage_count != b->stage_count)
        return false;
    for (int32_t s = 0; s < a->stage_count; s++) {
        const StageLayout *x = &a->stages[s], *y = &b->stages[s];
        bool is_equal = x->first_unit == y->first_unit && x->end_unit == y->end_unit &&
                        x->place.width == y->place.width &&
                        memcmp(&x->strategy, &y->strategy, sizeof x->strategy) == 0;
        for (int32_t t = 0; is_equal && t < of_a->type_count; t++) {
            int32_t more = 0;
            for (int32_t d = 0; d < x->place.width; d++)
                more += (cluster_device_type(of_a, x->place.first + d) == &of_a->types[t]) -
                        (cluster_device_type(of_b, y->place.first + d) == &of_b->types[t]);
            is_equal = more == 0;
        }
        if (!is_equal) return false;
    }
    return true;
}

/* Puts a pipeline among those found, unless one is alike; the slowest gives way where there are enough. */
static void add_found(Found *found, const PipelineLayout *pipeline, const PipelineCandidates *self) {
    int32_t at = found->count;
    for (int32_t k = 0; k < found->count; k++)
        if (pipeline_same_layout(&found->pipelines[k], pipeline) ||
            is_alike(self, &found->pipelines[k], pipeline))
            return;
    while (at > 0 && found->pipelines[at - 1].seconds > pipeline->seconds) at--;
    if (at == MOST_FOUND) return;
    if (found->count < MOST_FOUND) found->count++;
    for (int32_t k = found->count - 1; k > at; k--) found->pipelines[k] = found->pipelines[k - 1];
    found->pipelines[at] = *pipeline;
}

/* Keeps the pipelines found for the policy, which may simulate those that the search leaves out. */
static AmStatus keep_found(PipelineCandidates *self, const Found *found, AmError *error) {
    PipelineLayout *kept = ARENA_ARRAY(self->plans.arena, PipelineLayout, found->count + 1);
    if (!kept) return am_fail_memory(error, found->count);
    memcpy(kept, found->pipelines, sizeof *kept * (size_t)found->count);
    self->found = kept;
    self->found_count = found->count;
    return AM_OK;
}

/* Adds the pipelines of the agent that cuts pipelines; with its searcher, they replace those found. */
static AmStatus add_guesses(Found *found, const PipelineCandidates *self, AmError *error) {
    const SearchScope *scope = self->plans.scope;
    PipelineLayout guesses[MOST_GUESSES];
    Agent *agent;
    int32_t count;
    if (scope->request->method.agent) TRY(cut_agent_read(&agent, scope->request->method.agent, error));
    else TRY(cut_agent_built_in(&agent, error));
    AmStatus status = cut_agent_guess(guesses, MOST_GUESSES, &count, self->model, agent, error);
    agent_free(agent);
    TRY(status);
    if (scope->searcher == SEARCHER_AGENT && count > 0) found->count = 0;
    for (int32_t k = 0; k < count; k++) {
        if (!degrees_allow_stages(&scope->request->constraints.degrees, guesses[k].stage_count)) continue;
        guesses[k].origin = PLAN_ORIGIN_AGENT;
        add_found(found, &guesses[k], self);
    }
    return AM_OK;
}

/* Returns a quarter of the evaluations that are allowed. */
static int32_t most_tables(const PipelineCandidates *self) {
    int64_t most = pipeline_evaluations_left(self) / 4;
    return most < PIPELINE_MOST_TABLES ? (int32_t)most : PIPELINE_MOST_TABLES;
}

/* Lists the best even pipelines by the tables, fastest first: of the devices' own order, and where other
 * orders were searched, as many of these, one of each. */
static AmStatus list_even(PipelineEven even[2 * MOST_EVEN], int32_t most, int32_t *count,
                          const PipelineCandidates *self, AmError *error) {
    TRY(pipeline_even_list(even, most, count, self->model, error));
    int32_t own = *count;
    for (int32_t k = 0; k < self->orders.count && most > 0; k++) {
        PipelineEven other;
        int32_t found, at = *count;
        TRY(pipeline_even_list(&other, 1, &found, self->orders.models[k], error));
        other.pipeline.order = self->orders.models[k];
        bool is_new = found > 0;
        for (int32_t j = 0; j < *count && is_new; j++)
            is_new = !is_alike(self, &even[j].pipeline, &other.pipeline);
        if (!is_new) continue;
        while (at > own && even[at - 1].pipeline.seconds > other.pipeline.seconds) at--;
        if (at == own + most) continue;
        if (*count < own + most) ++*count;
        memmove(&even[at + 1], &even[at], sizeof *even * (size_t)(*count - 1 - at));
        even[at] = other;
    }
    return AM_OK;
}

/* Simulates the best even pipelines by the tables, up to a number of each order and for any rank, except
 * those that are slower than the best plan by more than the tables' error. */
static AmStatus price_even(PipelineCandidates *self, const Found *found, int64_t most, int32_t *count,
                           AmError *error) {
    const double near = 1.3; /* times the best step by the tables */
    PipelineEven even[2 * MOST_EVEN];
    int32_t listed;
    TRY(list_even(even, most < MOST_EVEN ? (int32_t)most : MOST_EVEN, &listed, self, error));
    PipelineCandidate *candidates = ARENA_ARRAY(self->plans.arena, PipelineCandidate, listed + 1);
    if (!candidates) return am_fail_memory(error, listed);
    *count = 0;
    for (int32_t k = 0; k < listed; k++) {
        if (found->count > 0 && even[k].pipeline.seconds > near * found->pipelines[0].seconds) continue;
        int32_t *cuts = ARENA_ARRAY(self->plans.arena, int32_t, PIPELINE_MOST_STAGES + 1);
        if (!cuts) return am_fail_memory(error, PIPELINE_MOST_STAGES);
        memcpy(cuts, even[k].cuts, sizeof even[k].cuts);
        candidates[(*count)++] = (PipelineCandidate){.pipeline = even[k].pipeline,
                                                     .origin = PLAN_ORIGIN_BASELINE,
                                                     .schedule = pipeline_wanted_schedule(self->plans.scope),
                                                     .cuts = cuts};
    }
    return pipeline_price_all(self, candidates, *count, error);
}

/* Drops the plans of one stage and one micro-batch, which the policy has itself. */
static void drop_one_stage(Found *found) {
    int32_t count = 0;
    for (int32_t k = 0; k < found->count; k++) {
        const PipelineLayout *pipeline = &found->pipelines[k];
        if (pipeline->stage_count > 1 || pipeline->micro_batches > 1) found->pipelines[count++] = *pipeline;
    }
    found->count = count;
}

/* Simulates the best pipelines by tables of these numbers of micro-batches. */
static AmStatus price_numbers(PipelineCandidates *self, const int32_t *numbers, int32_t count,
                              bool has_few_iterations, AmError *error) {
    const SearchScope *scope = self->plans.scope;
    StageModelSettings settings = {.memory_fraction = scope->request->constraints.memory_fraction,
                                   .may_recompute = true,
                                   .may_shard_storage = true,
                                   .has_few_iterations = has_few_iterations,
                                   .degrees = scope->request->constraints.degrees,
                                   .are_alike = target_row(scope->request->constraints.target)->stages ==
                                                TARGET_ALIKE_STAGES,
                                   .most_tables = most_tables(self)};
    Found found;
    if (settings.most_tables < LEAST_TABLES || !budget_try_take(&self->budget, LEAST_TABLES)) return AM_OK;
    bool is_reduced = budget_left(&self->budget) < settings.most_tables;
    if (is_reduced) settings.most_tables = (int32_t)budget_left(&self->budget);
    device_orders_close(&self->orders);
    stage_model_close(self->model);
    self->model = NULL;
    search_watch_phase(scope->request->callbacks.watch, SEARCH_PHASE_TABLES);
    TRY(stage_model_open(&self->model, self->costs, numbers, count, &settings, error));
    self->budget.used += stage_model_evaluations(self->model);
    search_watch_count(scope->request->callbacks.watch, stage_model_evaluations(self->model), NAN);
    /* A table that cannot be made takes no evaluation, so some may be missing although evaluations are
     * left. */
    self->budget.is_cut |= is_reduced && self->model->table_count == settings.most_tables;
    if (self->budget.is_cut || !budget_try_take(&self->budget, 1)) return AM_OK;
    pipeline_allow_candidates(self);
    search_watch_phase(scope->request->callbacks.watch, SEARCH_PHASE_PIPELINES);
    search_watch_expect(scope->request->callbacks.watch, self->most_candidates + self->most_changes);
    int64_t most = 2 * self->most_candidates / 3;
    if (most < 1 || pipeline_must_stop(self)) return AM_OK;
    TRY(stage_dp_find(self->model, found.pipelines, MOST_FOUND, &found.count, NULL, error));
    if (!scope->request->devices.keeps_order)
        TRY(device_orders_find(&self->orders, self->model, found.pipelines, found.count, error));
    for (int32_t k = 0; k < self->orders.count; k++) add_found(&found, &self->orders.pipelines[k][0], self);
    TRY(add_guesses(&found, self, error));
    TRY(keep_found(self, &found, error));
    int32_t even_count = 0;
    if (scope->searcher != SEARCHER_AGENT) TRY(price_even(self, &found, most / 3, &even_count, error));
    if (found.count > most - even_count) found.count = (int32_t)most - even_count;
    if (pipeline_policy_chooses(self)) drop_one_stage(&found);
    return pipeline_price_layouts(self, found.pipelines, found.count, error);
}

/* Stages of equal numbers of units and devices with one strategy; false where a stage may not be so. */
static bool deal_evenly(const PipelineCandidates *self, PipelineLayout *pipeline,
                        const StageStrategy *strategy) {
    int32_t stages = pipeline->stage_count, units = self->costs->units.count;
    int32_t width = self->plans.cluster->device_count / stages;
    for (int32_t s = 0; s < stages; s++) {
        StageLayout *stage = &pipeline->stages[s];
        *stage = (StageLayout){
            .first_unit = s * units / stages, .end_unit = (s + 1) * units / stages, .strategy = *strategy};
        if (!stage_model_range(self->model, s * width, width, &stage->place)) return false;
    }
    return true;
}

/* Simulates the pipeline closest to the memory limit if none fits by the tables: it identifies the
 * obstacle. */
static AmStatus price_nearest(PipelineCandidates *self, AmError *error) {
    const StageModel *model = self->model;
    PipelineLayout nearest = {0}, pipeline;
    double least = INFINITY, excess;
    int32_t devices = self->plans.cluster->device_count, units = self->costs->units.count;
    bool is_wanted = !self->pool.best.plan && model && self->plans.scope->purpose != PURPOSE_TRIAL;
    if (!is_wanted || pipeline_must_stop(self) || pipeline_evaluations_left(self) < 1) return AM_OK;
    const Degrees *degrees = &self->plans.request->constraints.degrees;
    for (int32_t stages = 1; stages <= PIPELINE_MOST_STAGES && stages <= units; stages++)
        for (int32_t n = 0;
             n < model->number_count && devices % stages == 0 && degrees_allow_stages(degrees, stages); n++)
            for (int32_t k = 0; k < model->tensor_count * 8; k++) {
                const StageStrategy strategy = {.tensor = model->tensors[k / 8],
                                                .splits_sequence = k / 4 % 2 == 1,
                                                .recompute = k / 2 % 2 == 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE,
                                                .storage = k % 2 == 1 ? 3 : 0};
                if (stages > 1 && model->numbers[n] < stages && degrees->stages == 0) continue;
                pipeline = (PipelineLayout){.micro_batches = model->numbers[n], .stage_count = stages};
                if (!deal_evenly(self, &pipeline, &strategy)) continue;
                pipeline.seconds = stage_model_seconds(model, &pipeline, &excess);
                if (!isfinite(pipeline.seconds) || excess >= least) continue;
                least = excess;
                nearest = pipeline;
            }
    return isfinite(least) ? pipeline_price_layouts(self, &nearest, 1, error) : AM_OK;
}

/* Returns whether all pipelines of several iterations were refused. */
static bool cannot_take_iterations(const PipelineCandidates *self) {
    bool refused = false;
    for (int32_t k = 0; k < self->priced_count; k++) {
        if (self->priced[k]->is_apart || self->priced[k]->pipeline.micro_batches == 1) continue;
        if (self->priced[k]->plan) return false;
        refused = true;
    }
    return refused;
}

static AmStatus search_pipelines(PipelineCandidates *self, AmError *error) {
    const SearchScope *scope = self->plans.scope;
    const int32_t one = 1;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    /* The tables are for meshes of any degrees: they receive the pins apart, and the layouts the degrees. */
    ProblemSettings of_problem = problem_settings(SPACE_AUTO, scope->request->constraints.memory_fraction);
    of_problem.constraints.is_even = scope->request->constraints.is_even;
    of_problem.constraints.offloads_optimizer = scope->request->constraints.offloads_optimizer;
    const LayerPins pins = {scope->request->constraints.pins, scope->request->constraints.pin_count,
                            scope->placement};
    TRY(layer_costs_open(&self->costs, self->plans.primary, self->plans.cluster, &of_problem, &pins, error));
    self->plans.costs = self->costs;
    self->costs->stop = self->budget.stop;
    TRY(price_given(self, error));
    TRY(price_first(self, error));
    int32_t number_count = micro_batches_numbers(numbers, self->costs->context, scope->micro_batches);
    TRY(price_numbers(self, numbers, number_count, numbers[number_count - 1] == 1, error));
    if (scope->micro_batches == 0 && cannot_take_iterations(self) && !pipeline_must_stop(self)) {
        self->priced_count = 0;
        TRY(price_numbers(self, &one, 1, true, error));
    }
    TRY(price_nearest(self, error));
    TRY(pipeline_recompute_more(self, self->most_candidates, error));
    if (pipeline_policy_chooses(self)) return AM_OK;
    TRY(pipeline_move_cuts(self, self->most_candidates, error));
    TRY(pipeline_one_stage_price(self, error));
    int64_t last = self->priced_count + self->most_changes;
    if (!scope->request->space.schedule && self->most_changes >= 2 * MOST_VARIED) {
        TRY(pipeline_price_schedules(self, MOST_VARIED, INFINITY, error));
        int32_t before = self->priced_count;
        TRY(pipeline_price_schedules(self, MOST_NEAR, NEAR, error));
        last += self->priced_count - before;
    }
    return scope->request->method.no_polish ? AM_OK : pipeline_improve(self, last, error);
}

/* ---- mixed devices ---- */

/* Adds the same plan with unequal shares where a stage mixes device types and that is better. */
static AmStatus share_by_speed(PipelineCandidates *self, const PlanCandidate *candidate, AmError *error) {
    const SearchScope *scope = self->plans.scope;
    int64_t wanted = pipeline_evaluations_left(self), left = budget_left(&self->budget);
    const ShareSearch search = {.cluster = self->plans.cluster,
                                .memory_fraction = scope->request->constraints.memory_fraction,
                                .most = wanted < left ? wanted : left,
                                .stop = &self->budget.stop};
    Plan *shared;
    MemoryFit fit;
    if (scope->request->constraints.is_even || pipeline_must_stop(self)) return AM_OK;
    if (!uneven_shares_apply(candidate->plan, search.cluster)) return AM_OK;
    if (!budget_try_take(&self->budget, 1)) return AM_OK;
    TRY(uneven_shares_find(&shared, &fit, &self->budget.used, self->plans.arena, candidate->plan, &search,
                           error));
    if (shared) pool_add(&self->pool, shared, &fit, PLAN_ORIGIN_IMPROVEMENT, NULL);
    return AM_OK;
}

/* ---- other orders of mixed servers ---- */

/* Simulates those pipelines of other orders of the devices that are by the tables nearly as fast as the best
 * pipeline. The fastest by the tables is often not that of an order. */
static AmStatus price_orders(PipelineCandidates *self, AmError *error) {
    const DeviceOrders *orders = &self->orders;
    int32_t count = 0;
    double least = INFINITY;
    PipelineLayout *pipelines =
        ARENA_ARRAY(self->plans.arena, PipelineLayout, orders->count * DEVICE_ORDERS_EACH + 1);
    if (!pipelines) return am_fail_memory(error, orders->count);
    for (int32_t k = 0; k < self->priced_count; k++) {
        const PipelineCandidate *priced = self->priced[k];
        if (!priced->is_apart && !priced->cuts) least = fmin(least, priced->pipeline.seconds);
    }
    for (int32_t k = 0; k < orders->count; k++)
        for (int32_t j = 0; j < orders->pipeline_counts[k]; j++) {
            const PipelineLayout *pipeline = &orders->pipelines[k][j];
            bool is_new = pipeline->seconds <= NEAR_ORDER * least && !pipeline_was_priced(self, pipeline);
            for (int32_t p = 0; p < self->priced_count && is_new; p++)
                is_new = self->priced[p]->is_apart || !is_alike(self, &self->priced[p]->pipeline, pipeline);
            for (int32_t p = 0; p < count && is_new; p++) is_new = !is_alike(self, &pipelines[p], pipeline);
            if (is_new) pipelines[count++] = *pipeline;
        }
    return count > 0 ? pipeline_price_layouts(self, pipelines, count, error) : AM_OK;
}

/* Simulates further pipelines of other orders, each order's best one under other schedules, and changes of
 * the best one where it is a new one. They come after the one-stage plans, so that a small budget has
 * these. */
static AmStatus search_orders(PipelineCandidates *self, AmError *error) {
    const SearchScope *scope = self->plans.scope;
    const PipelineCandidate *before = self->best;
    bool is_free = scope->limits.evaluations == 0 && scope->purpose != PURPOSE_TRIAL;
    if (!is_free || self->orders.count == 0 || pipeline_must_stop(self)) return AM_OK;
    TRY(price_orders(self, error));
    if (!scope->request->space.schedule && self->most_changes >= 2 * MOST_VARIED)
        TRY(pipeline_price_orders(self, NEAR_ORDER, error));
    if (self->best == before || scope->request->method.no_polish) return AM_OK;
    return pipeline_improve(self, self->priced_count + self->most_changes, error);
}

/* ---- all of it ---- */

/* Fails because no plan has the stages that pins name, the last one `last`. */
static AmStatus fail_pinned_stages(const PipelineCandidates *self, const PropagationPin *last,
                                   AmError *error) {
    const SearchScope *scope = self->plans.scope;
    char text[DEGREES_TEXT_BYTES], label[PIN_LABEL_BYTES], expected[96] = "other stages for the scopes";
    int32_t free_stage =
        placement_free_stage(scope->request->constraints.pins, scope->request->constraints.pin_count);
    if (free_stage >= 0)
        snprintf(expected, sizeof expected, "operators between the scopes for stage %d, which no pin names",
                 free_stage);
    return am_fail(error, AM_ERROR_INFEASIBLE, pin_file(last), "%s: no plan with %s was %s (expected %s%s)",
                   pin_place(label, last), degrees_text(text, &scope->request->constraints.degrees),
                   self->budget.is_cut ? "priced within the limit" : "found", expected,
                   self->budget.is_cut ? ", or more --evaluations or --seconds" : "");
}

/* Returns whether so many stages, at places that the search considers, have all devices. */
static bool stages_can_fill(const PipelineCandidates *self, int32_t stages) {
    const StageModel *model = self->model;
    const int32_t devices = self->plans.cluster->device_count;
    uint32_t *counts = ARENA_ARRAY(self->plans.arena, uint32_t, devices + 1); /* bit n: by n stages */
    if (!counts || stages > PIPELINE_MOST_STAGES) return true;                /* unknown */
    counts[0] = 1;
    for (int32_t first = 0; first < devices; first++)
        for (int32_t k = 0; counts[first] && k < model->place_count; k++)
            if (model->places[k].first == first) counts[first + model->places[k].width] |= counts[first] << 1;
    return counts[devices] >> stages & 1;
}

/* Fails because no plan with the fixed degrees was found. */
static AmStatus fail_degrees(const PipelineCandidates *self, AmError *error) {
    const Degrees *degrees = &self->plans.request->constraints.degrees;
    const char *source = plan_context_file(self->plans.primary);
    char text[DEGREES_TEXT_BYTES];
    const SearchScope *scope = self->plans.scope;
    const PropagationPin *last;
    if (placement_stages(scope->request->constraints.pins, scope->request->constraints.pin_count, &last) > 1)
        return fail_pinned_stages(self, last, error);
    if (self->model && degrees->stages > 0 && !stages_can_fill(self, degrees->stages))
        return am_fail(
            error, AM_ERROR_INFEASIBLE, source,
            "no plan has %s: no such stages have all %d devices of %s (expected stages of a number of "
            "devices that divides %d, or of a power of two)",
            degrees_text(text, degrees), self->plans.cluster->device_count, self->plans.cluster->name,
            self->plans.cluster->device_count);
    if (self->budget.is_cut)
        return am_fail(
            error, AM_ERROR_INFEASIBLE, source,
            "no plan with %s was priced within the limit (expected more --evaluations or --seconds)",
            degrees_text(text, degrees));
    return am_fail(error, AM_ERROR_INFEASIBLE, source, "no plan of at most %d stages on %d devices has %s",
                   PIPELINE_MOST_STAGES, self->plans.cluster->device_count, degrees_text(text, degrees));
}

/* Searches pipelines first, then one-stage plans with the rest, into `result`. Pipelines have until
 * self->budget.stop's deadline, the whole search until `end`. */
static AmStatus search_candidates(PipelineCandidates *self, SearchResult *result, double end,
                                  AmError *error) {
    AmError refusal = {0};
    AmStatus status = search_pipelines(self, &refusal);
    if (status == AM_ERROR_INFEASIBLE) {
        if (self->refusal.code == AM_OK) self->refusal = refusal;
    } else {
        TRY(am_pass_error(status, &refusal, error));
    }
    bool is_late = stop_wanted(&self->budget.stop);
    self->budget.stop.deadline = end;
    TRY(pipeline_one_stage_search(result, self, error));
    TRY(pipeline_one_stage_add_overrides(result, self, error));
    TRY(search_orders(self, error));
    PlanCandidate nearest = {0};
    if (self->best) nearest = self->pool.best;
    else if (!pool_best(&result->pool) && self->plans.scope->purpose != PURPOSE_TRIAL)
        nearest =
            candidate_is_better(&self->pool.best, &result->pool.best) ? self->pool.best : result->pool.best;
    if (nearest.plan) TRY(share_by_speed(self, &nearest, error));
    pool_merge(&result->pool, &self->pool);
    search_result_choose(result);
    if (result->plan) return AM_OK;
    if (stop_flag_is_set(self->budget.stop.interrupted))
        return am_fail(error, AM_INTERRUPTED, "", "interrupted before a plan was found that fits");
    if (result->nearest)
        return memory_fail(&result->nearest_fit, self->plans.cluster,
                           self->plans.request->constraints.memory_fraction, error);
    const SearchScope *scope = self->plans.scope;
    const PlanConstraints *constraints = &scope->request->constraints;
    self->budget.is_cut |= is_late || stop_wanted(&self->budget.stop);
    if (scope->request->devices.keeps_order) TRY(placement_check_order(scope->placement, error));
    TRY(pins_check_meshes(self->plans.primary, constraints->pins, constraints->pin_count,
                          &constraints->degrees, constraints->is_even, self->plans.cluster->device_count,
                          error));
    if (placement_free_stage(constraints->pins, constraints->pin_count) >= 0)
        return fail_degrees(self, error);
    if (self->refusal.code != AM_OK && self->budget.is_cut && constraints->pin_count > 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->plans.primary),
                       "no plan with the pins was priced within the limit (expected more --evaluations or "
                       "--seconds); the first one: %s",
                       self->refusal.text);
    TRY(am_pass_error(self->refusal.code, &self->refusal, error));
    const PlanContext *context;
    const MicroBatchSettings rewriting = search_micro_batching(scope->request, scope->micro_batches);
    if (rewriting.micro_batches > 1) TRY(plan_context_for(&context, self->plans.primary, &rewriting, error));
    if (!degrees_are_free(&constraints->degrees)) return fail_degrees(self, error);
    bool lacks_tables = scope->limits.evaluations > 0 && (!self->model || self->model->lacks_tables);
    return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->plans.primary),
                   self->budget.is_cut || lacks_tables ? BUDGET_CUT_TEXT
                                                       : "no pipeline fits by the tables of its layers");
}

AmStatus pipeline_check_options(const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    bool is_agent = scope->searcher == SEARCHER_AGENT;
    Agent *agent;
    if (request->method.agent) { /* reports an invalid agent before the search */
        TRY(cut_agent_read(&agent, request->method.agent, error));
        agent_free(agent);
    }
    if (is_agent && scope->limits.evaluations > 0 && scope->limits.evaluations / 4 < LEAST_TABLES)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--searcher agent needs --evaluations %d at least: a quarter of them makes the tables "
                       "that it cuts by",
                       4 * LEAST_TABLES);
    if (request->space.mesh || request->constraints.kept)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "--space hybrid chooses stages and their meshes: it takes no --mesh or --keep-shardings");
    if (pipeline_wanted_schedule(scope) == SCHEDULE_INTERLEAVED)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--space %s has stages of one chunk: gpipe, 1f1b or zb_h1; interleaved_1f1b needs "
                       "--baseline even_pipeline or megatron_3d",
                       plan_space_name(scope->kind));
    return AM_OK;
}

AmStatus pipeline_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                         const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    double start = clock_seconds();
    *result = (SearchResult){.model_gap = NAN};
    PipelineCandidates *self = ARENA_ARRAY(arena, PipelineCandidates, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->plans = (PipelinePlans){.arena = arena,
                                  .primary = primary,
                                  .cluster = cluster,
                                  .scope = scope,
                                  .request = scope->request,
                                  .relaxations = request->space.relaxations};
    double share = degrees_allow_stages(&request->constraints.degrees, 1) ? PIPELINES_SHARE : 1;
    self->budget = budget_begin(&scope->limits, share, request->callbacks.interrupted);
    self->budget.limit = scope->limits.evaluations > 0 ? scope->limits.evaluations : INT64_MAX;
    double end = scope->limits.seconds > 0 ? start + scope->limits.seconds : 0;
    pipeline_allow_candidates(self);
    AmStatus status = search_candidates(self, result, end, error);
    bool is_estimated = (status == AM_OK || status == AM_ERROR_INFEASIBLE) && self->model &&
                        search_module_is_large(primary) &&
                        !ir_source_recomputes(primary->roles, primary->canonical);
    AmStatus estimated =
        is_estimated ? pipeline_estimate_recomputed(result->estimates, self->model, error) : AM_OK;
    if (estimated != AM_OK) status = estimated;
    if (result->plan) result->plan->evaluations = self->budget.used;
    result->evaluations = self->budget.used;
    result->interrupted = stop_flag_is_set(request->callbacks.interrupted);
    result->is_cut |= self->budget.is_cut;
    result->is_exact = false; /* within the axis priorities of one stage */
    result->exact_space = NULL;
    result->bound_seconds = 0;
    pipeline_plans_close(&self->plans);
    device_orders_close(&self->orders);
    stage_model_close(self->model);
    layer_costs_close(self->costs);
    result->search_seconds = clock_seconds() - start;
    return status;
}
