/* The search over hybrid plans; see hybrid.h. */
#include "planners/hybrid.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "planners/hybrid_plan.h"
#include "planners/hybrid_stages.h"

enum { MOST_NUMBERS = 17, MOST_FOUND = 24, BATCH = 2, LEAST_TRIES = 6, MOST_TRIES = 48 };
/* Simulated plans, unless the user says how many: as many as such a number of instructions has. */
enum { INSTRUCTIONS_TRIED = 170000 };

typedef struct Hybrid {
    HybridPlans plans;
    LayerCosts *costs;
    HybridModel *model;
    int32_t numbers[MOST_NUMBERS], number_count;
    HybridPipeline found[MOST_FOUND];
    int32_t found_count;
    HybridTry *best; /* of those that fit; or NULL */
    MemoryFit nearest;
    AmError refusal; /* of the first pipeline that could not be made */
    int64_t evaluations, most_tries;
    double deadline;
} Hybrid;

static void list_numbers(Hybrid *self, int32_t wanted) {
    if (wanted > 0) {
        self->numbers[self->number_count++] = wanted;
        return;
    }
    for (int64_t m = 1; self->costs->batch % m == 0 && self->number_count < MOST_NUMBERS; m *= 2)
        self->numbers[self->number_count++] = (int32_t)m;
}

static bool must_stop(const Hybrid *self) {
    const SearchOptions *options = self->plans.options;
    if (options->interrupted && *options->interrupted) return true;
    return self->deadline > 0 && clock_seconds() > self->deadline;
}

/* A line for the log: the pipeline, what the tables say of it and what was simulated. */
static void log_try(const Hybrid *self, const HybridTry *try) {
    const SearchOptions *options = self->plans.options;
    const HybridPipeline *pipeline = &try->pipeline;
    Text text = {0};
    if (!options->on_episode) return;
    text_append(&text, "{\"evaluations\": %lld, \"micro_batches\": %d, \"schedule\": \"%s\", \"stages\": [",
                (long long)self->evaluations, pipeline->micro_batches, try->plan->schedule);
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        const HybridStage *stage = &pipeline->stages[s];
        text_append(&text, "%s{\"units\": [%d, %d], \"data\": %d, \"model\": %d, \"zero\": %d}",
                    s ? ", " : "", stage->first_unit, stage->end_unit,
                    stage->place.width / stage->recipe.tensor, stage->recipe.tensor, stage->recipe.storage);
    }
    text_append(&text, "], \"estimate\": %.9g, \"seconds\": %.9g, \"fits\": %s}", pipeline->seconds,
                try->seconds, try->fit.fits ? "true" : "false");
    if (!text.failed) options->on_episode(options->user, text.data);
    text_free(&text);
}

static AmStatus simulate(Hybrid *self, HybridTry *tries, int32_t count, AmError *error) {
    TRY(hybrid_plans_simulate(&self->plans, tries, count, error));
    for (int32_t k = 0; k < count; k++) {
        HybridTry *try = &tries[k];
        if (!try->plan) {
            if (self->refusal.code == AM_OK) self->refusal = try->error;
            continue;
        }
        self->evaluations++;
        log_try(self, try);
        if (!try->fit.fits) {
            bool nearer =
                self->nearest.needed_bytes == 0 || try->fit.needed_fraction < self->nearest.needed_fraction;
            if (nearer) self->nearest = try->fit;
        } else if (!self->best || try->seconds < self->best->seconds) {
            self->best = try;
        }
    }
    return AM_OK;
}

static ScheduleKind wanted_schedule(const SearchOptions *options) {
    return options->schedule ? schedule_kind_find(options->schedule) : SCHEDULE_1F1B;
}

static AmStatus simulate_found(Hybrid *self, AmError *error) {
    ScheduleKind schedule = wanted_schedule(self->plans.options);
    for (int32_t k = 0; k < self->found_count && k < self->most_tries; k += BATCH) {
        int32_t count = self->found_count - k < BATCH ? self->found_count - k : BATCH;
        HybridTry *tries = ARENA_ARRAY(self->plans.arena, HybridTry, count);
        if (!tries) return am_fail_memory(error, count);
        for (int32_t t = 0; t < count; t++)
            tries[t] = (HybridTry){.pipeline = self->found[k + t], .schedule = schedule};
        TRY(simulate(self, tries, count, error));
        if (must_stop(self)) break;
    }
    return AM_OK;
}

static AmStatus run(Hybrid *self, const MicroBatching *settings, AmError *error) {
    const SearchOptions *options = self->plans.options;
    const ProblemSettings of_problem = {
        .space = SPACE_AUTO, .memory_fraction = options->memory_fraction, .budget = {.limit = 1}};
    const HybridSettings of_model = {.memory_fraction = options->memory_fraction, .may_shard_storage = true};
    TRY(layer_costs_open(&self->costs, self->plans.whole, self->plans.cluster, &of_problem, error));
    self->plans.costs = self->costs;
    list_numbers(self, settings->micro_batches);
    TRY(hybrid_model_open(&self->model, self->costs, self->numbers, self->number_count, &of_model, error));
    self->evaluations += hybrid_model_evaluations(self->model);
    TRY(hybrid_stages_find(self->model, self->found, MOST_FOUND, &self->found_count, error));
    TRY(simulate_found(self, error));
    if (self->best) return AM_OK;
    if (self->nearest.needed_bytes > 0)
        return memory_fail(&self->nearest, self->plans.cluster, options->memory_fraction, error);
    if (self->refusal.code != AM_OK) {
        if (error) *error = self->refusal;
        return self->refusal.code;
    }
    return am_fail(error, AM_ERROR_INFEASIBLE, self->plans.whole->module->source,
                   "no hybrid plan fits by the tables of its layers");
}

AmStatus hybrid_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                       const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    double start = clock_seconds();
    *result = (SearchResult){0};
    for (int32_t e = 0; e < EXPERT_COUNT; e++) result->experts[e] = (ExpertResult){.seconds = NAN};
    Hybrid *self = ARENA_ARRAY(arena, Hybrid, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->plans = (HybridPlans){.arena = arena,
                                .whole = whole,
                                .cluster = cluster,
                                .options = options,
                                .relaxations = settings->relaxations};
    self->deadline = options->seconds > 0 ? start + options->seconds : 0;
    self->most_tries = INSTRUCTIONS_TRIED / (whole->rules->count + 1);
    if (self->most_tries < LEAST_TRIES) self->most_tries = LEAST_TRIES;
    if (self->most_tries > MOST_TRIES) self->most_tries = MOST_TRIES;
    if (options->evaluations > 0 && options->evaluations != SEARCH_DEFAULT_EVALUATIONS)
        self->most_tries = options->evaluations;
    AmStatus status = run(self, settings, error);
    if (status == AM_OK) {
        result->plan = self->best->plan;
        result->plan->evaluations = self->evaluations;
        result->evaluations = self->evaluations;
        result->interrupted = options->interrupted && *options->interrupted;
    }
    hybrid_plans_close(&self->plans);
    hybrid_model_close(self->model);
    layer_costs_close(self->costs);
    result->search_seconds = clock_seconds() - start;
    return status;
}
