/* The search over hybrid plans; see hybrid.h. */
#include "planners/hybrid.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "planners/hybrid_balance.h"
#include "planners/hybrid_plan.h"
#include "planners/hybrid_shares.h"
#include "planners/hybrid_stages.h"
#include "planners/inference_guess.h"

enum {
    MOST_NUMBERS = 17,
    MOST_FOUND = 24,
    BATCH = 2,
    LEAST_TRIES = 10,
    MOST_TRIES = 48,
    MOST_TRIED = 256,
    MOST_GUESSES = 4
};
/* Simulated plans, unless the user says how many: as many as such a number of instructions has. */
enum { INSTRUCTIONS_TRIED = 210000 };
/* A plan of one stage takes a fraction of that; it is searched where the tables see it near the best
 * pipeline. */
enum { STAGE_EVALUATIONS = 8 };
#define WORTH_SEARCHING 1.5
enum { ALWAYS_SEARCHED = 10000 }; /* instructions */

typedef struct Hybrid {
    HybridPlans plans;
    LayerCosts *costs;
    HybridModel *model;
    int32_t numbers[MOST_NUMBERS], number_count;
    HybridPipeline found[MOST_FOUND];
    int32_t found_count;
    HybridTry *best;              /* of those that fit; or NULL */
    HybridTry *tries[MOST_TRIED]; /* all that were simulated, in order */
    int32_t try_count;
    SearchResult single; /* of one stage and one micro-batch; its plan is NULL where that was not searched */
    MemoryFit nearest;
    Plan *nearest_plan; /* of those that do not fit the one nearest to it; or NULL */
    AmError refusal;    /* of the first pipeline that could not be made */
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

static void keep_nearest(Hybrid *self, Plan *plan, const MemoryFit *fit) {
    if (self->nearest_plan && fit->needed_fraction >= self->nearest.needed_fraction) return;
    self->nearest = *fit;
    self->nearest_plan = plan;
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
            keep_nearest(self, try->plan, &try->fit);
        } else if (!self->best || try->seconds < self->best->seconds) {
            self->best = try;
        }
    }
    return AM_OK;
}

static ScheduleKind wanted_schedule(const SearchOptions *options) {
    return options->schedule ? schedule_kind_find(options->schedule) : SCHEDULE_1F1B;
}

/* Simulates pipelines, BATCH at a time; `*best` is then up to date. */
static AmStatus try_pipelines(Hybrid *self, const HybridPipeline *pipelines, int32_t count,
                              ScheduleKind schedule, AmError *error) {
    for (int32_t k = 0; k < count && self->try_count + BATCH <= self->most_tries; k += BATCH) {
        int32_t batch = count - k < BATCH ? count - k : BATCH;
        HybridTry *tries = ARENA_ARRAY(self->plans.arena, HybridTry, batch);
        if (!tries) return am_fail_memory(error, batch);
        for (int32_t t = 0; t < batch; t++) {
            tries[t] = (HybridTry){.pipeline = pipelines[k + t], .schedule = schedule};
            self->tries[self->try_count++] = &tries[t];
        }
        TRY(simulate(self, tries, batch, error));
        if (must_stop(self)) break;
    }
    return AM_OK;
}

static bool same_pipeline(const HybridPipeline *a, const HybridPipeline *b) {
    return a->micro_batches == b->micro_batches && a->stage_count == b->stage_count &&
           memcmp(a->stages, b->stages, sizeof *a->stages * (size_t)a->stage_count) == 0;
}

static bool was_tried(const Hybrid *self, const HybridPipeline *pipeline) {
    for (int32_t k = 0; k < self->try_count; k++)
        if (same_pipeline(&self->tries[k]->pipeline, pipeline)) return true;
    return false;
}

/* Quicker ones first; those that do not fit come last, nearest first. */
static bool is_before(const HybridTry *a, const HybridTry *b) {
    if (!a->plan || !b->plan) return a->plan && !b->plan;
    if (a->fit.fits != b->fit.fits) return a->fit.fits;
    return a->fit.fits ? a->seconds < b->seconds : a->fit.needed_fraction < b->fit.needed_fraction;
}

/* The best tries whose cuts can still be moved for the better: their pipelines then, at most BATCH. */
static int32_t propose(Hybrid *self, bool *is_settled, HybridPipeline *proposed) {
    int32_t count = 0;
    while (count < BATCH) {
        int32_t best = -1;
        for (int32_t k = 0; k < self->try_count; k++)
            if (!is_settled[k] && (best < 0 || is_before(self->tries[k], self->tries[best]))) best = k;
        if (best < 0 || !self->tries[best]->plan) break;
        const HybridTry *try = self->tries[best];
        HybridPipeline *pipeline = &proposed[count];
        HybridScales scales;
        is_settled[best] = true;
        *pipeline = try->pipeline;
        hybrid_scales(&scales, self->model, pipeline, try->seconds, try->busy, try->peak_bytes);
        if (!hybrid_balance(self->model, pipeline, &scales) || was_tried(self, pipeline)) continue;
        if (count == 1 && same_pipeline(&proposed[0], pipeline)) continue;
        count++;
    }
    return count;
}

/* Moves the cuts of what was found until nothing is left to move or to spend. */
static AmStatus refine(Hybrid *self, AmError *error) {
    bool is_settled[MOST_TRIED] = {false};
    HybridPipeline proposed[BATCH];
    ScheduleKind schedule = wanted_schedule(self->plans.options);
    while (!must_stop(self) && self->try_count + BATCH <= self->most_tries) {
        int32_t count = propose(self, is_settled, proposed);
        if (count == 0) break;
        TRY(try_pipelines(self, proposed, count, schedule, error));
    }
    return AM_OK;
}

/* ---- one stage ---- */

/* The least that the tables say of one stage with one micro-batch, whether it fits or not. */
static double single_estimate(const Hybrid *self) {
    HybridPipeline pipeline = {.micro_batches = 1, .stage_count = 1};
    int32_t devices = self->plans.cluster->device_count;
    double least = INFINITY, excess;
    pipeline.stages[0].end_unit = self->costs->unit_count;
    if (!hybrid_model_place(self->model, 0, devices, &pipeline.stages[0].place)) return 0;
    for (int32_t tensor = 1; tensor <= devices; tensor++) {
        if (devices % tensor != 0) continue;
        pipeline.stages[0].recipe = (HybridRecipe){.tensor = tensor};
        least = fmin(least, hybrid_pipeline_seconds(self->model, &pipeline, &excess));
    }
    return least;
}

/* Plans of one stage with one micro-batch by the searcher of their own space, and the experts' beside it. */
static AmStatus search_single(Hybrid *self, const MicroBatching *settings, AmError *error) {
    SearchOptions options = *self->plans.options;
    bool is_wanted = settings->micro_batches <= 1;
    double best = self->best ? self->best->seconds : INFINITY;
    bool is_large = self->plans.whole->rules->count > ALWAYS_SEARCHED;
    if (self->model && is_wanted && is_large) is_wanted = single_estimate(self) < WORTH_SEARCHING * best;
    for (int32_t e = 0; e < EXPERT_COUNT; e++)
        self->single.experts[e] = (ExpertResult){NAN, "its time by the tables is far from the best"};
    if (!is_wanted || (self->best && must_stop(self))) return AM_OK;
    AmError refusal = {0};
    options.space = SPACE_AUTO;
    options.no_proof = true; /* of one stage alone: the whole space has a bound of its own */
    if (options.searcher == SEARCHER_EXHAUSTIVE || options.searcher == SEARCHER_AGENT)
        options.searcher = SEARCHER_DQN;
    if (options.evaluations == search_default_evaluations(options.searcher) || options.evaluations == 0)
        options.evaluations = STAGE_EVALUATIONS * self->most_tries;
    if (self->deadline > 0) options.seconds = fmax(self->deadline - clock_seconds(), 1e-3);
    AmStatus status =
        search(&self->single, self->plans.arena, self->plans.whole, self->plans.cluster, &options, &refusal);
    self->evaluations += self->single.evaluations;
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) {
        if (self->refusal.code == AM_OK) self->refusal = refusal;
        if (status != AM_OK) self->single.plan = NULL;
        if (self->single.nearest) keep_nearest(self, self->single.nearest, &self->single.nearest_fit);
        if (self->single.plan) self->single.plan->space = plan_space_name(SPACE_HYBRID);
        return AM_OK;
    }
    if (error && error->code == AM_OK) *error = refusal;
    return status;
}

/* ---- mixed devices ---- */

/* Gives the plan, where it mixes device types in a stage, shares by their speeds if that is quicker. */
static AmStatus share_by_speed(Hybrid *self, Plan **plan, AmError *error) {
    const Cluster *cluster = self->plans.cluster;
    double *speeds = ARENA_ARRAY(self->plans.arena, double, cluster->type_count);
    Plan *shared;
    if (!*plan || !self->model || self->plans.options->is_even || must_stop(self)) return AM_OK;
    if (!hybrid_shares_apply(*plan, cluster)) return AM_OK;
    if (!speeds) return am_fail_memory(error, cluster->type_count);
    hybrid_model_speeds(self->model, speeds);
    TRY(hybrid_shares_find(&shared, &self->evaluations, self->plans.arena, *plan, cluster, speeds,
                           self->plans.options->memory_fraction, error));
    if (shared) *plan = shared;
    return AM_OK;
}

/* ---- all of it ---- */

/* Puts a pipeline among those found, by its seconds; the slowest gives way where there are enough. */
static void add_found(Hybrid *self, const HybridPipeline *pipeline) {
    int32_t at = self->found_count;
    for (int32_t k = 0; k < self->found_count; k++)
        if (same_pipeline(&self->found[k], pipeline)) return;
    while (at > 0 && self->found[at - 1].seconds > pipeline->seconds) at--;
    if (at == MOST_FOUND) return;
    if (self->found_count < MOST_FOUND) self->found_count++;
    for (int32_t k = self->found_count - 1; k > at; k--) self->found[k] = self->found[k - 1];
    self->found[at] = *pipeline;
}

/* The inference agent's pipelines beside those found, or with its searcher in place of them. */
static AmStatus add_guesses(Hybrid *self, AmError *error) {
    const SearchOptions *options = self->plans.options;
    HybridPipeline guesses[MOST_GUESSES];
    Agent *agent;
    int32_t count;
    if (options->agent) TRY(inference_agent_read(&agent, options->agent, error));
    else TRY(inference_agent_built_in(&agent, error));
    AmStatus status = inference_guess(guesses, MOST_GUESSES, &count, self->model, agent, error);
    agent_free(agent);
    TRY(status);
    if (options->searcher == SEARCHER_AGENT && count > 0) self->found_count = 0;
    for (int32_t k = 0; k < count; k++) add_found(self, &guesses[k]);
    return AM_OK;
}

/* The best pipelines by tables of these numbers of micro-batches, simulated. */
static AmStatus try_numbers(Hybrid *self, const int32_t *numbers, int32_t count, bool has_few_turns,
                            AmError *error) {
    const SearchOptions *options = self->plans.options;
    const HybridSettings settings = {.memory_fraction = options->memory_fraction,
                                     .may_shard_storage = true,
                                     .has_few_turns = has_few_turns};
    int64_t most = 2 * self->most_tries / 3;
    hybrid_model_close(self->model);
    self->model = NULL;
    TRY(hybrid_model_open(&self->model, self->costs, numbers, count, &settings, error));
    self->evaluations += hybrid_model_evaluations(self->model);
    TRY(hybrid_stages_find(self->model, self->found, MOST_FOUND, &self->found_count, NULL, error));
    TRY(add_guesses(self, error));
    if (self->found_count > most) self->found_count = (int32_t)most;
    TRY(hybrid_plans_open(&self->plans, self->found, self->found_count, error));
    return try_pipelines(self, self->found, self->found_count, wanted_schedule(options), error);
}

/* Whether all pipelines of several turns were refused. */
static bool cannot_take_turns(const Hybrid *self) {
    bool refused = false;
    for (int32_t k = 0; k < self->try_count; k++) {
        if (self->tries[k]->pipeline.micro_batches == 1) continue;
        if (self->tries[k]->plan) return false;
        refused = true;
    }
    return refused;
}

static AmStatus search_pipelines(Hybrid *self, const MicroBatching *settings, AmError *error) {
    const SearchOptions *options = self->plans.options;
    const int32_t one = 1;
    const ProblemSettings of_problem = {.space = SPACE_AUTO,
                                        .memory_fraction = options->memory_fraction,
                                        .budget = {.limit = 1},
                                        .is_even = options->is_even};
    TRY(layer_costs_open(&self->costs, self->plans.whole, self->plans.cluster, &of_problem, error));
    self->plans.costs = self->costs;
    list_numbers(self, settings->micro_batches);
    TRY(try_numbers(self, self->numbers, self->number_count, self->numbers[self->number_count - 1] == 1,
                    error));
    if (settings->micro_batches == 0 && cannot_take_turns(self) && !must_stop(self)) {
        self->try_count = 0;
        TRY(try_numbers(self, &one, 1, true, error));
    }
    return refine(self, error);
}

static AmStatus run(Hybrid *self, const MicroBatching *settings, AmError *error) {
    AmError refusal = {0};
    AmStatus status = search_pipelines(self, settings, &refusal);
    if (status == AM_ERROR_INFEASIBLE) {
        if (self->refusal.code == AM_OK) self->refusal = refusal;
    } else if (status != AM_OK) {
        if (error) *error = refusal;
        return status;
    }
    TRY(search_single(self, settings, error));
    TRY(share_by_speed(self, &self->single.plan, error));
    if (self->best) {
        TRY(share_by_speed(self, &self->best->plan, error));
        self->best->seconds = self->best->plan->predicted_step_seconds;
    }
    if (self->best || self->single.plan) return AM_OK;
    if (self->nearest_plan)
        return memory_fail(&self->nearest, self->plans.cluster, self->plans.options->memory_fraction, error);
    if (self->refusal.code != AM_OK) {
        if (error) *error = self->refusal;
        return self->refusal.code;
    }
    return am_fail(error, AM_ERROR_INFEASIBLE, self->plans.whole->module->source,
                   "no hybrid plan fits by the tables of its layers");
}

/* Decisions that are given are of one stage's lists on one mesh. */
static AmStatus check_options(const SearchOptions *options, AmError *error) {
    if (options->mesh || options->pin_count > 0 || options->kept || options->initial)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--space hybrid chooses stages and their meshes: it takes no --mesh, --pin, "
                       "--keep-shardings or --init-plan");
    if (wanted_schedule(options) == SCHEDULE_INTERLEAVED)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--space hybrid has stages of one chunk: gpipe, 1f1b or zb_h1");
    return AM_OK;
}

AmStatus hybrid_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                       const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    double start = clock_seconds();
    *result = (SearchResult){.model_gap = NAN};
    TRY(check_options(options, error));
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
    if (options->evaluations > 0 && options->evaluations != search_default_evaluations(options->searcher))
        self->most_tries = options->evaluations < MOST_TRIED ? options->evaluations : MOST_TRIED;
    AmStatus status = run(self, settings, error);
    if (status == AM_OK) {
        bool is_single = self->single.plan &&
                         (!self->best || self->single.plan->predicted_step_seconds <= self->best->seconds);
        *result = self->single;
        result->plan = is_single ? self->single.plan : self->best->plan;
        result->plan->evaluations = self->evaluations;
        result->evaluations = self->evaluations;
        result->interrupted = options->interrupted && *options->interrupted;
    }
    if (status == AM_ERROR_INFEASIBLE) {
        result->nearest = self->nearest_plan;
        result->nearest_fit = self->nearest;
    }
    hybrid_plans_close(&self->plans);
    hybrid_model_close(self->model);
    layer_costs_close(self->costs);
    result->search_seconds = clock_seconds() - start;
    return status;
}
