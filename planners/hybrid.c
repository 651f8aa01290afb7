/* The search over hybrid plans; see hybrid.h. */
#include "planners/hybrid.h"

#include <math.h>
#include <string.h>

#include "planners/hybrid_balance.h"
#include "planners/hybrid_changes.h"
#include "planners/hybrid_even.h"
#include "planners/hybrid_model.h"
#include "planners/hybrid_plan.h"
#include "planners/hybrid_shares.h"
#include "planners/hybrid_stages.h"
#include "planners/inference_guess.h"
#include "planners/refine.h"
#include "propagation/micro_batches.h"

enum {
    MOST_FOUND = 24,
    BATCH = 2,
    LEAST_TRIES = 15,
    MOST_TRIES = 72,
    LEAST_SINGLE_CHANGES = 20,
    MOST_TRIED = 256,
    MOST_GUESSES = 4,
    MOST_EVEN = 2,
    MOST_VARIED = 2,
    LEAST_TABLES = 2
};
/* Simulated plans, unless the user says how many: as many as such a number of instructions has. A third of
 * them are changes of the best. */
enum { INSTRUCTIONS_TRIED = 315000 };
/* A plan of one stage takes a fraction of that. A large module's are searched with so many evaluations for
 * each simulated pipeline, where no pipeline fits; a small module's as if there were no pipelines. */
enum { STAGE_EVALUATIONS = 8 };
/* Of the seconds, where they are limited: plans of one stage come after the pipelines. */
#define PIPELINES_SHARE 0.6
enum { ALWAYS_SEARCHED = 10000 }; /* instructions */

typedef struct Hybrid {
    HybridPlans plans;
    LayerCosts *costs;
    HybridModel *model;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], number_count;
    HybridPipeline found[MOST_FOUND];
    int32_t found_count;
    HybridTry *best;              /* of those that fit; or NULL */
    HybridTry *tries[MOST_TRIED]; /* all that were simulated, in order */
    int32_t try_count;
    bool is_settled[MOST_TRIED]; /* [try]: its cuts need not be moved again */
    SearchResult single; /* of one stage and one micro-batch; its plan is NULL where that was not searched */
    MemoryFit nearest;
    Plan *nearest_plan; /* of those that do not fit the one nearest to it; or NULL */
    AmError refusal;    /* of the first pipeline that could not be made */
    int64_t evaluations;
    int64_t most_tries, most_changes; /* simulated pipelines; changes of the best of them */
    int64_t most_single_changes;      /* of the best of one stage */
    StopSignal stop;
    double end; /* of all that is done; 0: none */
} Hybrid;

/* Of those that the user allows; pipelines may have a half of what is left when their tables are made. */
static int64_t evaluations_left(const Hybrid *self) {
    int64_t limit = self->plans.options->evaluations;
    return limit > 0 ? limit - self->evaluations : INT64_MAX;
}

/* What shares of mixed devices take, of the best pipeline and of the plan of one stage; where there is
 * enough. */
static int64_t shares_reserve(const Hybrid *self) {
    const int64_t wanted = 2 * HYBRID_SHARES_TRIED;
    return self->plans.cluster->type_count > 1 && evaluations_left(self) >= 2 * wanted ? wanted : 0;
}

/* Pipelines to simulate at most, and changes of the best. */
static void allow_tries(Hybrid *self) {
    int64_t tries = INSTRUCTIONS_TRIED / (self->plans.whole->rules->count + 1), most = MOST_TRIES;
    if (tries < LEAST_TRIES) tries = LEAST_TRIES;
    if (self->plans.options->evaluations > 0) {
        tries = (evaluations_left(self) - shares_reserve(self)) / 2;
        most = MOST_TRIED;
    }
    if (tries > most) tries = most;
    self->most_changes = tries / 3;
    self->most_tries = tries - self->most_changes;
    self->most_single_changes = self->most_changes;
    if (self->plans.options->evaluations == 0 && self->most_single_changes < LEAST_SINGLE_CHANGES)
        self->most_single_changes = LEAST_SINGLE_CHANGES;
}

static bool must_stop(const Hybrid *self) {
    return stop_wanted(&self->stop);
}

static void keep_nearest(Hybrid *self, Plan *plan, const MemoryFit *fit) {
    if (self->nearest_plan && fit->needed_fraction >= self->nearest.needed_fraction) return;
    self->nearest = *fit;
    self->nearest_plan = plan;
}

static AmStatus simulate(Hybrid *self, HybridTry *tries, int32_t count, AmError *error) {
    self->plans.interrupted = self->best ? self->stop.interrupted : NULL;
    TRY(hybrid_plans_simulate(&self->plans, tries, count, error));
    for (int32_t k = 0; k < count; k++) {
        HybridTry *try = &tries[k];
        if (!try->plan) {
            if (self->refusal.code == AM_OK) self->refusal = try->error;
            continue;
        }
        self->evaluations++;
        hybrid_plans_log(&self->plans, try, self->evaluations);
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

/* Simulates tries, BATCH at a time; `*best` is then up to date. */
static AmStatus try_all(Hybrid *self, HybridTry *tries, int32_t count, AmError *error) {
    for (int32_t k = 0; k < count && self->try_count + BATCH <= MOST_TRIED && !must_stop(self); k += BATCH) {
        int32_t batch = count - k < BATCH ? count - k : BATCH;
        for (int32_t t = 0; t < batch; t++) self->tries[self->try_count++] = &tries[k + t];
        TRY(simulate(self, tries + k, batch, error));
    }
    return AM_OK;
}

/* Simulates pipelines. Modules in micro-batches serve several of them and are made at once, those with
 * recomputation as they come, since most are of one pipeline alone. */
static AmStatus try_pipelines(Hybrid *self, const HybridPipeline *pipelines, int32_t count, AmError *error) {
    ScheduleKind schedule = wanted_schedule(self->plans.options);
    HybridTry *tries = ARENA_ARRAY(self->plans.arena, HybridTry, count + 1);
    HybridTry *shared = ARENA_ARRAY(self->plans.arena, HybridTry, count + 1);
    int32_t shared_count = 0;
    if (self->plans.arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) {
        bool recomputes = false;
        tries[k] = (HybridTry){.pipeline = pipelines[k], .schedule = schedule};
        for (int32_t s = 0; s < pipelines[k].stage_count; s++)
            recomputes |= pipelines[k].stages[s].recipe.recomputes;
        if (!recomputes) shared[shared_count++] = tries[k];
    }
    TRY(hybrid_plans_open(&self->plans, shared, shared_count, error));
    return try_all(self, tries, count, error);
}

static bool was_tried(const Hybrid *self, const HybridPipeline *pipeline) {
    for (int32_t k = 0; k < self->try_count; k++)
        if (!self->tries[k]->is_apart && hybrid_same_pipeline(&self->tries[k]->pipeline, pipeline))
            return true;
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
            if (!is_settled[k] && !self->tries[k]->given && !self->tries[k]->is_strict &&
                (best < 0 || is_before(self->tries[k], self->tries[best])))
                best = k;
        if (best < 0 || !self->tries[best]->plan) break;
        const HybridTry *try = self->tries[best];
        HybridPipeline *pipeline = &proposed[count];
        HybridScales scales;
        is_settled[best] = true;
        *pipeline = try->pipeline;
        hybrid_scales(&scales, self->model, pipeline, try->seconds, try->busy, try->peak_bytes);
        if (!hybrid_balance(self->model, pipeline, &scales) || was_tried(self, pipeline)) continue;
        if (count == 1 && hybrid_same_pipeline(&proposed[0], pipeline)) continue;
        count++;
    }
    return count;
}

/* Moves the cuts of what was found until nothing is left to move, or up to `last` tries. */
static AmStatus refine(Hybrid *self, int64_t last, AmError *error) {
    HybridPipeline proposed[BATCH];
    while (!must_stop(self) && self->try_count + BATCH <= last) {
        int32_t count = propose(self, self->is_settled, proposed);
        if (count == 0) break;
        TRY(try_pipelines(self, proposed, count, error));
    }
    return AM_OK;
}

/* ---- changes of the best ---- */

/* The best pipeline under the schedule that was asked for, of those that others were tried with or of the
 * others; NULL: there is none. */
static HybridTry *best_varied(const Hybrid *self, bool is_varied) {
    HybridTry *best = NULL;
    for (int32_t k = 0; k < self->try_count; k++) {
        HybridTry *try = self->tries[k];
        if (try->is_apart || try->is_strict || try->is_varied != is_varied) continue;
        if (!best || is_before(try, best)) best = try;
    }
    return best;
}

/* The `most` best pipelines under the schedules that few modules and stages gain by. */
static AmStatus try_schedules(Hybrid *self, int32_t most, AmError *error) {
    HybridTry *tries = ARENA_ARRAY(self->plans.arena, HybridTry, 2 * most), *from;
    int32_t count = 0;
    if (!tries) return am_fail_memory(error, most);
    for (int32_t taken = 0; taken < most && (from = best_varied(self, false)); taken++) {
        from->is_varied = true;
        bool alternates = from->plan && from->fit.fits && from->schedule == SCHEDULE_1F1B;
        if (!alternates || from->pipeline.stage_count == 1 || from->pipeline.micro_batches == 1) continue;
        HybridTry changed = {
            .pipeline = from->pipeline, .schedule = SCHEDULE_ZB_H1, .is_strict = true, .cuts = from->cuts};
        tries[count++] = changed;
        changed.schedule = SCHEDULE_INTERLEAVED;
        if (hybrid_chunks_find(&changed.chunks, self->model, &changed.pipeline, SEARCH_DEFAULT_CHUNKS))
            tries[count++] = changed;
    }
    return try_all(self, tries, count, error);
}

static bool was_changed_so(const Hybrid *self, const HybridTry *changed) {
    for (int32_t k = 0; k < self->try_count; k++) {
        const HybridTry *try = self->tries[k];
        bool same = !try->given && try->genomes && try->schedule == changed->schedule &&
                    hybrid_same_pipeline(&try->pipeline, &changed->pipeline) &&
                    hybrid_same_cuts(try, changed);
        size_t bytes = sizeof *try->genomes * (size_t)changed->pipeline.stage_count;
        if (same && memcmp(try->genomes, changed->genomes, bytes) == 0) return true;
    }
    return false;
}

/* The changes of a try that were not tried yet. */
static AmStatus list_changed(Hybrid *self, const HybridTry *from, HybridTry **tries, int32_t *count,
                             int64_t most, AmError *error) {
    Arena *arena = self->plans.arena;
    HybridChange *changes = ARENA_ARRAY(arena, HybridChange, MOST_TRIED);
    int32_t change_count, stages = from->pipeline.stage_count;
    *tries = ARENA_ARRAY(arena, HybridTry, most);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, most);
    TRY(hybrid_changes_list(changes, MOST_TRIED, &change_count, &self->plans, from, error));
    for (int32_t k = 0; k < change_count && *count < most; k++) {
        Genome *genomes = ARENA_ARRAY(arena, Genome, stages);
        if (!genomes) return am_fail_memory(error, stages);
        memcpy(genomes, from->genomes, sizeof *genomes * (size_t)stages);
        genomes[changes[k].stage] = changes[k].genome;
        HybridTry changed = {.pipeline = from->pipeline,
                             .schedule = from->schedule,
                             .is_strict = true,
                             .is_apart = true,
                             .chunks = from->chunks,
                             .cuts = from->cuts,
                             .genomes = genomes};
        if (!was_changed_so(self, &changed)) (*tries)[(*count)++] = changed;
    }
    return AM_OK;
}

/* Changes the lists of a try's stages one by one, each time from the best so far, until no change helps or
 * nothing is left to spend. */
static AmStatus polish(Hybrid *self, const HybridTry *from, int64_t last, AmError *error) {
    for (const HybridTry *base = NULL; from && from != base && self->try_count < last;) {
        HybridTry *tries;
        int32_t count;
        base = from;
        TRY(list_changed(self, base, &tries, &count, last - self->try_count, error));
        for (int32_t k = 0; k < count && from == base && !must_stop(self); k += BATCH) {
            int32_t batch = count - k < BATCH ? count - k : BATCH;
            TRY(try_all(self, tries + k, batch, error));
            for (int32_t t = k; t < k + batch; t++)
                if (is_before(&tries[t], from)) from = &tries[t];
        }
    }
    return AM_OK;
}

/* The best try of one stage, or of several, that fits. */
static const HybridTry *best_of_kind(const Hybrid *self, bool has_stages) {
    const HybridTry *best = NULL;
    for (int32_t k = 0; k < self->try_count; k++) {
        const HybridTry *try = self->tries[k];
        bool is_one = try->plan && try->fit.fits && !try->given && (try->plan->stage_count > 1) == has_stages;
        if (is_one && (!best || try->seconds < best->seconds)) best = try;
    }
    return best;
}

static bool is_near_best(const Hybrid *self, const HybridTry *try) {
    const double near = 1.15;
    return try && try->seconds < near * self->best->seconds;
}

/* Changes lists and moves cuts of the best pipelines in turn, as long as either finds something to try; other
 * cuts that are quicker than those before get the other schedules, too. */
static AmStatus improve_pipelines(Hybrid *self, int64_t last, AmError *error) {
    enum { TURN = 4 };
    for (int32_t before = -1; before < self->try_count && self->try_count < last && !must_stop(self);) {
        before = self->try_count;
        int64_t turn = before + TURN < last ? before + TURN : last;
        TRY(polish(self, best_of_kind(self, true), turn, error));
        turn = self->try_count + TURN < last ? self->try_count + TURN : last;
        TRY(refine(self, turn, error));
        const HybridTry *varied = best_varied(self, true), *other = best_varied(self, false);
        bool is_quicker = varied && other && is_before(other, varied);
        if (is_quicker && self->try_count + 2 <= last) TRY(try_schedules(self, 1, error));
    }
    return AM_OK;
}

/* Up to `last` tries of several stages; of one stage, which are simulated sooner, besides, where one is near
 * the best. */
static AmStatus polish_best(Hybrid *self, int64_t last, AmError *error) {
    if (!self->best) return AM_OK;
    const HybridTry *one = best_of_kind(self, false), *several = best_of_kind(self, true);
    if (!is_near_best(self, one)) one = NULL;
    if (!is_near_best(self, several)) several = NULL;
    bool is_limited = self->plans.options->evaluations > 0 && several;
    int64_t most = is_limited ? (last - self->try_count) / 2 : self->most_single_changes,
            before = self->try_count;
    TRY(polish(self, one, before + most, error));
    if (!is_limited) last += self->try_count - before;
    return several ? improve_pipelines(self, last, error) : AM_OK;
}

/* ---- plans to begin with ---- */

/* One stage with one micro-batch. */
static HybridPipeline single_pipeline(const Hybrid *self, const HybridRecipe *recipe) {
    HybridPipeline pipeline = {.micro_batches = 1, .stage_count = 1};
    pipeline.stages[0] = (HybridStage){.end_unit = self->costs->unit_count,
                                       .place = {.width = self->plans.cluster->device_count},
                                       .recipe = *recipe};
    return pipeline;
}

/* Of a large module, before the tables are made: the first plan of those that need least memory that fits. An
 * interrupted search has that. */
static AmStatus try_first(Hybrid *self, const MicroBatching *settings, AmError *error) {
    enum { SOON_ENOUGH = 2000 /* instructions */, LEAST_LEFT = 16 /* evaluations */ };
    const Cluster *cluster = self->plans.cluster;
    const HybridRecipe recipes[] = {
        {.tensor = 1, .storage = 3},
        {.tensor = cluster->servers[0].device_count, .splits_sequence = true, .storage = 3}};
    bool is_wanted = settings->micro_batches <= 1 && self->plans.whole->rules->count > SOON_ENOUGH &&
                     evaluations_left(self) >= LEAST_LEFT;
    for (int32_t k = 0; k < 2 && is_wanted && !self->best; k++) {
        HybridTry *try = ARENA_ARRAY(self->plans.arena, HybridTry, 1);
        if (!try) return am_fail_memory(error, (int64_t)sizeof *try);
        if (cluster->device_count % recipes[k].tensor != 0) continue;
        *try = (HybridTry){.pipeline = single_pipeline(self, &recipes[k]), .is_apart = true};
        self->tries[self->try_count++] = try;
        TRY(simulate(self, try, 1, error)); /* also where the search is stopped from the start */
    }
    return AM_OK;
}

/* --init-plan, before all else, where it is a plan of the space that is asked for. */
static AmStatus try_given(Hybrid *self, const MicroBatching *settings, AmError *error) {
    const SearchOptions *options = self->plans.options;
    const Plan *initial = options->initial;
    HybridTry *try = ARENA_ARRAY(self->plans.arena, HybridTry, 1);
    if (!try) return am_fail_memory(error, (int64_t)sizeof *try);
    if (!initial || (settings->micro_batches > 0 && settings->micro_batches != initial->micro_batches))
        return AM_OK;
    if (options->schedule && initial->stage_count > 1 && plan_schedule(initial) != wanted_schedule(options))
        return AM_OK;
    try->given = initial;
    try->is_apart = true;
    self->tries[self->try_count++] = try;
    return simulate(self, try, 1, error); /* also where the search is stopped from the start */
}

/* ---- one stage ---- */

/* The recipes of one stage that fit by the tables, quickest first; slower than `most_seconds` none. */
static int32_t list_singles(const Hybrid *self, HybridPipeline *found, int32_t most, double most_seconds) {
    HybridPlace place;
    double excess;
    int32_t count = 0;
    if (!hybrid_model_place(self->model, 0, self->plans.cluster->device_count, &place)) return 0;
    for (int32_t k = 0; k < self->model->tensor_count * 8; k++) {
        const HybridRecipe recipe = {.tensor = self->model->tensors[k / 8],
                                     .splits_sequence = k / 4 % 2 == 1,
                                     .storage = (uint8_t)(k % 4)};
        HybridPipeline pipeline = single_pipeline(self, &recipe);
        int32_t at = count < most ? count : most;
        pipeline.stages[0].place = place;
        pipeline.seconds = hybrid_pipeline_seconds(self->model, &pipeline, &excess);
        if (excess > 0 || !(pipeline.seconds < most_seconds) || was_tried(self, &pipeline)) continue;
        while (at > 0 && found[at - 1].seconds > pipeline.seconds) at--;
        if (at == most) continue;
        if (count < most) count++;
        for (int32_t j = count - 1; j > at; j--) found[j] = found[j - 1];
        found[at] = pipeline;
    }
    return count;
}

/* The recipes of one stage with one micro-batch that may be the best plan by the tables and were not tried.
 */
static AmStatus try_singles(Hybrid *self, AmError *error) {
    enum { MOST = 4 };
    const double near = 1.1;
    double best = self->best ? self->best->seconds : INFINITY;
    int64_t most = evaluations_left(self) < MOST ? evaluations_left(self) : MOST;
    HybridPipeline found[MOST];
    int32_t count = list_singles(self, found, (int32_t)most, near * best);
    return try_pipelines(self, found, count, error);
}

/* The recipe that a pipeline of the tables is; EXPERT_COUNT: none. */
static Expert expert_of(const Hybrid *self, const HybridTry *try) {
    static const Expert wide[] = {EXPERT_DATA_PARALLEL, EXPERT_ZERO1, EXPERT_ZERO2, EXPERT_ZERO3};
    static const Expert deep[] = {EXPERT_MEGATRON, EXPERT_MEGATRON_ZERO1, EXPERT_MEGATRON_ZERO2,
                                  EXPERT_MEGATRON_ZERO3};
    const HybridPipeline *pipeline = &try->pipeline;
    const HybridRecipe *recipe = &pipeline->stages[0].recipe;
    int32_t server = self->plans.cluster->servers[0].device_count;
    if (try->given || try->is_apart || recipe->recomputes) return EXPERT_COUNT;
    if (recipe->tensor > 1 && recipe->tensor != server) return EXPERT_COUNT;
    if (pipeline->stage_count > 1) { /* the only ones with cuts of their own are even */
        bool is_other = try->schedule != wanted_schedule(self->plans.options) || recipe->storage > 0;
        if (!try->cuts || is_other) return EXPERT_COUNT;
        return recipe->tensor > 1 ? EXPERT_MEGATRON_3D : EXPERT_EVEN_PIPELINE;
    }
    if (pipeline->micro_batches > 1 || (recipe->splits_sequence && recipe->storage > 0)) return EXPERT_COUNT;
    if (recipe->splits_sequence) return EXPERT_MEGATRON_SEQUENCE;
    return recipe->tensor > 1 ? deep[recipe->storage] : wide[recipe->storage];
}

static void quote_try(Hybrid *self, const HybridTry *try) {
    Expert expert = expert_of(self, try);
    ExpertResult *quoted = &self->single.experts[expert < EXPERT_COUNT ? expert : 0];
    bool is_quoted = expert < EXPERT_COUNT && try->plan && try->fit.fits;
    if (is_quoted && !(quoted->seconds <= try->seconds)) *quoted = (ExpertResult){.seconds = try->seconds};
}

/* Of a large module the quickest recipes of one stage are simulated to be quoted, however far from the best
 * plan they are. They are no evaluations. */
static AmStatus quote_singles(Hybrid *self, AmError *error) {
    enum { LISTED = 16, QUOTED = 2 };
    HybridPipeline found[LISTED];
    HybridTry *tries = ARENA_ARRAY(self->plans.arena, HybridTry, QUOTED);
    int32_t count = 0;
    if (!tries) return am_fail_memory(error, QUOTED);
    int32_t listed = list_singles(self, found, LISTED, INFINITY);
    for (int32_t k = 0; k < listed && count < QUOTED; k++) {
        tries[count] = (HybridTry){.pipeline = found[k], .schedule = SCHEDULE_1F1B};
        count += expert_of(self, &tries[count]) < EXPERT_COUNT;
    }
    TRY(hybrid_plans_simulate(&self->plans, tries, count, error));
    for (int32_t k = 0; k < count; k++) quote_try(self, &tries[k]);
    return AM_OK;
}

/* Plans of one stage with one micro-batch by the searcher of their own space, and the experts' beside it; not
 * of a large module that is quicker in several stages. */
static AmStatus search_single(Hybrid *self, const MicroBatching *settings, AmError *error) {
    SearchOptions options = *self->plans.options;
    bool is_large = self->plans.whole->rules->count > ALWAYS_SEARCHED;
    bool is_left_out =
        is_large && self->best && (self->best->plan->stage_count > 1 || self->plans.options->is_trial);
    bool is_wanted = settings->micro_batches <= 1 && !is_left_out;
    for (int32_t e = 0; e < EXPERT_COUNT; e++)
        self->single.experts[e] = (ExpertResult){NAN, "its time by the tables is far from the best"};
    for (int32_t k = 0; k < self->try_count; k++) quote_try(self, self->tries[k]);
    bool is_quoted = is_left_out && self->model && !self->plans.options->is_trial;
    if (is_quoted && !must_stop(self)) TRY(quote_singles(self, error));
    if (!is_wanted || (self->best && must_stop(self))) return AM_OK;
    AmError refusal = {0};
    options.space = SPACE_SINGLE_STAGE;
    options.no_proof = true; /* of one stage alone: the whole space has a bound of its own */
    if (options.searcher == SEARCHER_EXHAUSTIVE || options.searcher == SEARCHER_AGENT)
        options.searcher = SEARCHER_DQN;
    int32_t instructions = self->plans.whole->canonical->instruction_count;
    if (options.evaluations > 0) options.evaluations = evaluations_left(self) - shares_reserve(self);
    else if (options.is_trial) options.evaluations = SEARCH_TRIAL_EVALUATIONS;
    else if (is_large && !self->best)
        options.evaluations = STAGE_EVALUATIONS * (self->most_tries + self->most_changes);
    else options.evaluations = search_evaluations_for(options.searcher, instructions);
    if (options.evaluations < 1) return AM_OK;
    if (self->stop.deadline > 0) options.seconds = fmax(self->stop.deadline - clock_seconds(), 1e-3);
    AmStatus status =
        search(&self->single, self->plans.arena, self->plans.whole, self->plans.cluster, &options, &refusal);
    self->evaluations += self->single.evaluations;
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) {
        if (self->refusal.code == AM_OK) self->refusal = refusal;
        if (status != AM_OK) self->single.plan = NULL;
        if (self->single.nearest) keep_nearest(self, self->single.nearest, &self->single.nearest_fit);
        if (self->single.plan) self->single.plan->space = plan_space_name(self->plans.options->space);
        return AM_OK;
    }
    if (error && error->code == AM_OK) *error = refusal;
    return status;
}

static bool is_single_better(const Hybrid *self) {
    const Plan *single = self->single.plan;
    return single && (!self->best || single->predicted_step_seconds <= self->best->seconds);
}

/* Exceptions for the best plan, where that has one stage and its lists were changed like those of pipelines.
 */
static AmStatus refine_single(Hybrid *self, AmError *error) {
    const HybridPlans *plans = &self->plans;
    Plan *plan = self->best && !is_single_better(self) ? self->best->plan : NULL;
    if (!plan || plan->stage_count > 1 || plan->micro_batches > 1 || must_stop(self)) return AM_OK;
    TRY(refine_plan(plan, evaluations_left(self) - shares_reserve(self), &self->evaluations, plans->arena,
                    plans->whole, plans->cluster, plans->options, &self->stop, error));
    self->best->seconds = plan->predicted_step_seconds;
    return AM_OK;
}

/* ---- mixed devices ---- */

/* Gives the plan, where it mixes device types in a stage, shares by their speeds if that is quicker. */
static AmStatus share_by_speed(Hybrid *self, Plan **plan, AmError *error) {
    const Cluster *cluster = self->plans.cluster;
    double *speeds = ARENA_ARRAY(self->plans.arena, double, cluster->type_count);
    Plan *shared;
    if (!*plan || !self->model || self->plans.options->is_even || must_stop(self)) return AM_OK;
    if (!hybrid_shares_apply(*plan, cluster) || evaluations_left(self) < HYBRID_SHARES_TRIED) return AM_OK;
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
        if (hybrid_same_pipeline(&self->found[k], pipeline)) return;
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

/* A quarter of the evaluations that the user allows. */
static int32_t most_tables(const Hybrid *self) {
    int64_t most = evaluations_left(self) / 4;
    return most < HYBRID_MOST_TABLES ? (int32_t)most : HYBRID_MOST_TABLES;
}

/* The best even pipelines by the tables, at most so many, simulated whatever rank they have; but not those
 * that are slower than what was found by more than the tables are ever wrong by. */
static AmStatus try_even(Hybrid *self, int64_t most, int32_t *count, AmError *error) {
    const double near = 1.3;
    HybridEven even[MOST_EVEN];
    TRY(hybrid_even_list(even, most < MOST_EVEN ? (int32_t)most : MOST_EVEN, count, self->model, error));
    while (self->found_count > 0 && *count > 0 &&
           even[*count - 1].pipeline.seconds > near * self->found[0].seconds)
        --*count;
    HybridTry *tries = ARENA_ARRAY(self->plans.arena, HybridTry, *count + 1);
    if (!tries) return am_fail_memory(error, *count);
    for (int32_t k = 0; k < *count; k++) {
        int32_t *cuts = ARENA_ARRAY(self->plans.arena, int32_t, HYBRID_MOST_STAGES + 1);
        if (!cuts) return am_fail_memory(error, HYBRID_MOST_STAGES);
        memcpy(cuts, even[k].cuts, sizeof even[k].cuts);
        tries[k] = (HybridTry){
            .pipeline = even[k].pipeline, .schedule = wanted_schedule(self->plans.options), .cuts = cuts};
    }
    return try_all(self, tries, *count, error);
}

/* The best pipelines by tables of these numbers of micro-batches, simulated. */
static AmStatus try_numbers(Hybrid *self, const int32_t *numbers, int32_t count, bool has_few_turns,
                            AmError *error) {
    const SearchOptions *options = self->plans.options;
    const HybridSettings settings = {.memory_fraction = options->memory_fraction,
                                     .may_recompute = true,
                                     .may_shard_storage = true,
                                     .has_few_turns = has_few_turns,
                                     .most_tables = most_tables(self)};
    if (settings.most_tables < LEAST_TABLES) return AM_OK;
    hybrid_model_close(self->model);
    self->model = NULL;
    TRY(hybrid_model_open(&self->model, self->costs, numbers, count, &settings, error));
    self->evaluations += hybrid_model_evaluations(self->model);
    allow_tries(self);
    int64_t most = 2 * self->most_tries / 3;
    if (most < 1 || must_stop(self)) return AM_OK;
    TRY(hybrid_stages_find(self->model, self->found, MOST_FOUND, &self->found_count, NULL, error));
    TRY(add_guesses(self, error));
    int32_t even_count = 0;
    if (options->searcher != SEARCHER_AGENT) TRY(try_even(self, most / 3, &even_count, error));
    if (self->found_count > most - even_count) self->found_count = (int32_t)most - even_count;
    return try_pipelines(self, self->found, self->found_count, error);
}

/* Stages of equal numbers of units and devices with one recipe; false where a stage may not be so. */
static bool deal_evenly(const Hybrid *self, HybridPipeline *pipeline, const HybridRecipe *recipe) {
    int32_t stages = pipeline->stage_count, units = self->costs->unit_count;
    int32_t width = self->plans.cluster->device_count / stages;
    for (int32_t s = 0; s < stages; s++) {
        HybridStage *stage = &pipeline->stages[s];
        *stage = (HybridStage){
            .first_unit = s * units / stages, .end_unit = (s + 1) * units / stages, .recipe = *recipe};
        if (!hybrid_model_place(self->model, s * width, width, &stage->place)) return false;
    }
    return true;
}

/* Where nothing fits by the tables, what lacks least by them is simulated all the same: it says what is in
 * the way. */
static AmStatus try_nearest(Hybrid *self, AmError *error) {
    const HybridModel *model = self->model;
    HybridPipeline nearest = {0}, pipeline;
    double least = INFINITY, excess;
    int32_t devices = self->plans.cluster->device_count, units = self->costs->unit_count;
    bool is_wanted = !self->best && !self->nearest_plan && model && !self->plans.options->is_trial;
    if (!is_wanted || must_stop(self) || evaluations_left(self) < 1) return AM_OK;
    for (int32_t stages = 1; stages <= HYBRID_MOST_STAGES && stages <= units; stages++)
        for (int32_t n = 0; n < model->number_count && devices % stages == 0; n++)
            for (int32_t k = 0; k < model->tensor_count * 8; k++) {
                const HybridRecipe recipe = {.tensor = model->tensors[k / 8],
                                             .splits_sequence = k / 4 % 2 == 1,
                                             .recomputes = k / 2 % 2 == 1,
                                             .storage = k % 2 == 1 ? 3 : 0};
                if (stages > 1 && model->numbers[n] < stages) continue;
                pipeline = (HybridPipeline){.micro_batches = model->numbers[n], .stage_count = stages};
                if (!deal_evenly(self, &pipeline, &recipe)) continue;
                pipeline.seconds = hybrid_pipeline_seconds(model, &pipeline, &excess);
                if (!isfinite(pipeline.seconds) || excess >= least) continue;
                least = excess;
                nearest = pipeline;
            }
    return isfinite(least) ? try_pipelines(self, &nearest, 1, error) : AM_OK;
}

/* Whether all pipelines of several turns were refused. */
static bool cannot_take_turns(const Hybrid *self) {
    bool refused = false;
    for (int32_t k = 0; k < self->try_count; k++) {
        if (self->tries[k]->is_apart || self->tries[k]->pipeline.micro_batches == 1) continue;
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
    self->costs->stop = self->stop;
    TRY(try_given(self, settings, error));
    TRY(try_first(self, settings, error));
    self->number_count = micro_batches_numbers(self->numbers, self->costs->context, settings->micro_batches);
    TRY(try_numbers(self, self->numbers, self->number_count, self->numbers[self->number_count - 1] == 1,
                    error));
    if (settings->micro_batches == 0 && cannot_take_turns(self) && !must_stop(self)) {
        self->try_count = 0;
        TRY(try_numbers(self, &one, 1, true, error));
    }
    TRY(try_nearest(self, error));
    TRY(refine(self, self->most_tries, error));
    bool is_large = self->plans.whole->rules->count > ALWAYS_SEARCHED;
    if (settings->micro_batches <= 1 && is_large && self->model) TRY(try_singles(self, error));
    int64_t last = self->try_count + self->most_changes;
    if (!options->schedule && self->most_changes >= 2 * MOST_VARIED)
        TRY(try_schedules(self, MOST_VARIED, error));
    return options->no_polish ? AM_OK : polish_best(self, last, error);
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
    self->stop.deadline = self->end;
    TRY(search_single(self, settings, error));
    TRY(refine_single(self, error));
    TRY(share_by_speed(self, &self->single.plan, error));
    if (self->best) {
        TRY(share_by_speed(self, &self->best->plan, error));
        self->best->seconds = self->best->plan->predicted_step_seconds;
    }
    if (self->best || self->single.plan) return AM_OK;
    if (self->stop.interrupted && *self->stop.interrupted)
        return am_fail(error, AM_INTERRUPTED, "", "interrupted before a plan was found that fits");
    if (self->nearest_plan)
        return memory_fail(&self->nearest, self->plans.cluster, self->plans.options->memory_fraction, error);
    if (self->refusal.code != AM_OK) {
        if (error) *error = self->refusal;
        return self->refusal.code;
    }
    const PlanContext *context;
    if (settings->micro_batches > 1) TRY(plan_context_for(&context, self->plans.whole, settings, error));
    return am_fail(error, AM_ERROR_INFEASIBLE, self->plans.whole->module->source,
                   "no hybrid plan fits by the tables of its layers");
}

/* Decisions that are given are of one stage's lists on one mesh. */
static AmStatus check_options(const SearchOptions *options, AmError *error) {
    bool is_agent = options->searcher == SEARCHER_AGENT;
    Agent *agent;
    if (options->agent) { /* it is told at once, not where it is first needed, that it is none */
        TRY(inference_agent_read(&agent, options->agent, error));
        agent_free(agent);
    }
    if (is_agent && options->evaluations > 0 && options->evaluations / 4 < LEAST_TABLES)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "--searcher agent needs --evaluations %d at least: a quarter of them makes the tables that "
            "it cuts by",
            4 * LEAST_TABLES);
    if (options->mesh || options->pin_count > 0 || options->kept)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--space hybrid chooses stages and their meshes: it takes no --mesh, --pin or "
                       "--keep-shardings");
    if (wanted_schedule(options) == SCHEDULE_INTERLEAVED)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--space %s has stages of one chunk: gpipe, 1f1b or zb_h1; interleaved_1f1b goes with "
                       "--expert even_pipeline or megatron_3d",
                       plan_space_name(options->space));
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
    self->stop =
        (StopSignal){.interrupted = options->interrupted,
                     .deadline = options->seconds > 0 ? start + PIPELINES_SHARE * options->seconds : 0};
    self->end = options->seconds > 0 ? start + options->seconds : 0;
    allow_tries(self);
    AmStatus status = run(self, settings, error);
    if (status == AM_OK) {
        *result = self->single;
        result->plan = is_single_better(self) ? self->single.plan : self->best->plan;
        result->plan->evaluations = self->evaluations;
        result->evaluations = self->evaluations;
        result->interrupted = options->interrupted && *options->interrupted;
        result->is_exact = false; /* of one stage's lists at most */
        result->exact_space = NULL;
        result->bound_seconds = 0;
    }
    if (status == AM_ERROR_INFEASIBLE) {
        result->evaluations = self->evaluations;
        result->nearest = self->nearest_plan;
        result->nearest_fit = self->nearest;
    }
    hybrid_plans_close(&self->plans);
    hybrid_model_close(self->model);
    layer_costs_close(self->costs);
    result->search_seconds = clock_seconds() - start;
    return status;
}
