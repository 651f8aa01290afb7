/* The search over strategies (strategy.h): degrees, micro-batches, chunks, ZeRO and sequence parallelism.
 *
 * Every split of the devices into data x tensor x stages is simulated with its best number of micro-batches,
 * found by doubling and halving. On the fastest splits, or on all until a plan fits, the search then varies
 * one other choice after the other: the level of ZeRO, the sequence in shards, chunks. Faster splits that do
 * not fit recompute layers, or the parts of layers that the trainer recomputes selectively. A plan counts
 * only if the target's exporter accepts it.
 */
#include "planners/search_strategies.h"

#include <math.h>

#include "base/random.h"
#include "planners/baselines/layer_spans.h"
#include "planners/export/export_check.h"
#include "planners/strategy.h"

enum { MOST_SPLITS = 256, REFINED = 4, MOST_CHUNKS = 8, ZERO_LEVELS = 3 };

/* A strategy and its step. */
typedef struct PricedStrategy {
    Strategy strategy;
    double seconds; /* INFINITY: refused */
    MemoryFit fit;
} PricedStrategy;

typedef struct StrategySearch {
    SearchContext *search;
    const TargetRow *target;
    const Cluster *cluster;
    SearchResult *result;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], number_count;
    PricedStrategy splits[MOST_SPLITS]; /* fastest first */
    int32_t split_count;
    int32_t layers;  /* that can be recomputed */
    AmError refusal; /* the first */
} StrategySearch;

/* Notes why a strategy is no candidate; other failures end the search. */
static AmStatus note_refusal(StrategySearch *self, AmStatus status, const AmError *why, AmError *error) {
    if (status == AM_OK) return AM_OK;
    if (status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) {
        if (self->refusal.code == AM_OK) self->refusal = *why;
        return AM_OK;
    }
    return am_pass_error(status, why, error);
}

/* Returns whether the target's trainer has that level of ZeRO. */
static bool has_zero(const StrategySearch *self, int32_t level) {
    return self->target->zero_levels >> level & 1;
}

/* Simulates a strategy; adds it to the result if it fits and the exporter accepts it. */
static AmStatus price_strategy(StrategySearch *self, PricedStrategy *priced, AmError *error) {
    SearchContext *search = self->search;
    SearchResult *result = search->result;
    const SearchScope *scope = search->scope;
    ArenaMark mark = arena_mark(search->arena);
    const PlanContext *context;
    PlanCandidate candidate;
    AmError why = {0};
    priced->seconds = INFINITY;
    priced->fit = (MemoryFit){0};
    const Degrees *degrees = &scope->request->constraints.degrees;
    Strategy *strategy = &priced->strategy;
    strategy->is_for_jax = scope->request->constraints.target == TARGET_JAX;
    if (budget_is_over(&search->budget) || !degrees_allow_stages(degrees, strategy->stages) ||
        !degrees_allow_mesh(degrees, strategy->data * strategy->tensor, strategy->tensor))
        return AM_OK;
    AmStatus status = strategy_context(&context, search->primary, strategy, &why);
    if (status == AM_OK)
        status = strategy_simulate(&candidate, search->arena, context, search->cluster, strategy,
                                   scope->request->constraints.memory_fraction, &why);
    if (status == AM_OK && search_check_plan(scope, candidate.plan, &why) != AM_OK)
        status = AM_ERROR_INFEASIBLE;
    if (status != AM_OK) {
        arena_release(search->arena, mark);
        return note_refusal(self, status, &why, error);
    }
    search->budget.used++;
    priced->fit = candidate.fit;
    priced->seconds = candidate.seconds;
    search_watch_count(scope->request->callbacks.watch, 1, priced->fit.fits ? priced->seconds : NAN);
    if (!candidate_is_better(&candidate, &result->pool.best)) {
        arena_release(search->arena, mark);
        return AM_OK;
    }
    status = export_check(scope->request->constraints.target, search->primary, candidate.plan, &why);
    if (status != AM_OK) {
        priced->seconds = INFINITY;
        arena_release(search->arena, mark);
        return note_refusal(self, status, &why, error);
    }
    candidate.plan->searcher = searcher_name(scope->searcher);
    candidate.plan->space = plan_space_name(scope->kind);
    candidate.plan->seed = scope->seed;
    pool_add(&result->pool, candidate.plan, &candidate.fit, candidate.origin, NULL);
    search_result_choose(result);
    return AM_OK;
}

/* Compares steps, or memory where neither fits. */
static bool is_better(const PricedStrategy *a, const PricedStrategy *b) {
    if (!isfinite(a->seconds) || !isfinite(b->seconds)) return isfinite(a->seconds) && !isfinite(b->seconds);
    return plan_is_better(a->seconds, &a->fit, b->seconds, &b->fit);
}

/* Takes `changed` in place of `best` if it is better. */
static AmStatus try_change(StrategySearch *self, PricedStrategy *best, const Strategy *changed,
                           AmError *error) {
    PricedStrategy priced = {.strategy = *changed};
    TRY(price_strategy(self, &priced, error));
    if (is_better(&priced, best)) *best = priced;
    return AM_OK;
}

/* ---- splits ---- */

/* Prices a split with numbers of micro-batches from `from` on in one direction, as long as that is better. */
static AmStatus climb_numbers(StrategySearch *self, PricedStrategy *best, int32_t from, int32_t step,
                              AmError *error) {
    for (int32_t k = from + step; k >= 0 && k < self->number_count; k += step) {
        PricedStrategy changed = {.strategy = best->strategy};
        changed.strategy.micro_batches = self->numbers[k];
        TRY(price_strategy(self, &changed, error));
        if (is_better(&changed, best)) *best = changed;
        else if (isfinite(changed.seconds)) return AM_OK;
    }
    return AM_OK;
}

/* Adds a split with its best number of micro-batches. */
static AmStatus add_split(StrategySearch *self, int32_t tensor, int32_t stages, AmError *error) {
    const bool offloads = self->search->request->constraints.offloads_optimizer;
    PricedStrategy best = {.strategy = {.data = self->cluster->device_count / tensor / stages,
                                        .tensor = tensor,
                                        .stages = stages,
                                        .chunks = 1,
                                        .zero = offloads && has_zero(self, 1),
                                        .offloads_optimizer = offloads,
                                        .schedule = SCHEDULE_1F1B}};
    int32_t from = 0;
    while (from + 1 < self->number_count && self->numbers[from] < stages) from++;
    best.strategy.micro_batches = self->numbers[from];
    TRY(price_strategy(self, &best, error));
    TRY(climb_numbers(self, &best, from, 1, error));
    if (best.strategy.micro_batches == self->numbers[from]) TRY(climb_numbers(self, &best, from, -1, error));
    int32_t at = self->split_count;
    if (at == MOST_SPLITS) return AM_OK;
    self->split_count++;
    for (; at > 0 && is_better(&best, &self->splits[at - 1]); at--) self->splits[at] = self->splits[at - 1];
    self->splits[at] = best;
    return AM_OK;
}

/* ---- other choices ---- */

static AmStatus refine_strategy(StrategySearch *self, PricedStrategy *best, AmError *error) {
    const Strategy split = best->strategy;
    Strategy changed = split;
    for (int32_t level = 1; split.data > 1 && level <= ZERO_LEVELS; level++) {
        if (!has_zero(self, level)) continue;
        changed = best->strategy;
        changed.zero = level;
        TRY(try_change(self, best, &changed, error));
    }
    if (split.tensor > 1) {
        changed = best->strategy;
        changed.splits_sequence = true;
        TRY(try_change(self, best, &changed, error));
    }
    for (int32_t chunks = 2; split.stages > 1 && chunks <= MOST_CHUNKS; chunks *= 2) {
        changed = best->strategy;
        changed.chunks = chunks;
        changed.schedule = SCHEDULE_INTERLEAVED;
        if (changed.micro_batches % split.stages == 0) TRY(try_change(self, best, &changed, error));
    }
    for (int32_t k = 0; k < self->number_count; k++)
        if (self->numbers[k] == best->strategy.micro_batches) {
            TRY(climb_numbers(self, best, k, 1, error));
            return climb_numbers(self, best, k, -1, error);
        }
    return AM_OK;
}

/* Finds the fewest recomputed layers in each part that fit, where the trainer may recompute some. */
static AmStatus recompute_less(StrategySearch *self, PricedStrategy *best, AmError *error) {
    int32_t parts = best->strategy.stages * best->strategy.chunks;
    int32_t fits = (self->layers + parts - 1) / parts, lacks = 0;
    if (!self->target->recomputes_some) return AM_OK;
    while (fits - lacks > 1) {
        PricedStrategy fewer = *best;
        fewer.strategy.recomputed_layers = (fits + lacks) / 2;
        TRY(price_strategy(self, &fewer, error));
        if (is_better(&fewer, best)) *best = fewer;
        if (fewer.fit.fits) fits = fewer.strategy.recomputed_layers;
        else lacks = fewer.strategy.recomputed_layers;
    }
    return AM_OK;
}

/* Recomputes modules (LayerModule) of all layers of a split, 0 all of each layer, with each level of ZeRO. */
static AmStatus recompute_layers(StrategySearch *self, PricedStrategy *best, const Strategy *split,
                                 uint32_t modules, AmError *error) {
    for (int32_t level = 0; level <= ZERO_LEVELS; level++) {
        Strategy changed = *split;
        changed.recomputed_layers = STRATEGY_ALL_LAYERS;
        changed.recomputed_modules = modules;
        changed.zero = level;
        if (has_zero(self, level) && (level == 0 || split->data > 1))
            TRY(try_change(self, best, &changed, error));
    }
    return AM_OK;
}

/* Recomputes all layers of a split that does not fit, and then as few as fit; and the modules of all layers
 * that take the least work and fit. */
static AmStatus recompute(StrategySearch *self, const PricedStrategy *split, AmError *error) {
    const TargetRow *target = self->target;
    PricedStrategy best = *split, selective = *split;
    TRY(recompute_layers(self, &best, &split->strategy, 0, error));
    if (best.strategy.recomputed_layers > 0) {
        TRY(refine_strategy(self, &best, error));
        if (best.fit.fits) TRY(recompute_less(self, &best, error));
    }
    for (int32_t k = 0; target->selective[k] && !selective.fit.fits; k++)
        TRY(recompute_layers(self, &selective, &split->strategy, target->selective[k], error));
    return selective.fit.fits ? refine_strategy(self, &selective, error) : AM_OK;
}

/* ---- random strategies ---- */

static int32_t random_divisor(Random *random, int32_t of) {
    int32_t divisors[64], count = 0;
    for (int32_t k = 1; k <= of && count < 64; k++)
        if (of % k == 0) divisors[count++] = k;
    return divisors[random_below(random, count)];
}

static AmStatus draw_strategies(StrategySearch *self, AmError *error) {
    const SearchContext *search = self->search;
    int32_t devices = search->cluster->device_count;
    int64_t wanted = search->scope->limits.evaluations > 0 ? search->scope->limits.evaluations : 1;
    Random random;
    random_seed(&random, search->scope->seed);
    for (int64_t k = 0; k < 8 * wanted && search->budget.used < wanted; k++) {
        PricedStrategy drawn = {.strategy = {.schedule = SCHEDULE_1F1B, .chunks = 1}};
        Strategy *strategy = &drawn.strategy;
        strategy->tensor = random_divisor(&random, devices);
        strategy->stages = random_divisor(&random, devices / strategy->tensor);
        strategy->data = devices / strategy->tensor / strategy->stages;
        strategy->micro_batches = self->numbers[random_below(&random, self->number_count)];
        if (strategy->data > 1) {
            int32_t level = (int32_t)random_below(&random, ZERO_LEVELS + 1);
            if (has_zero(self, level)) strategy->zero = level;
        }
        if (strategy->tensor > 1) strategy->splits_sequence = random_below(&random, 2) == 1;
        if (strategy->stages > 1 && random_below(&random, 3) == 0) {
            strategy->chunks = 2;
            strategy->schedule = SCHEDULE_INTERLEAVED;
        }
        if (self->layers > 0 && random_below(&random, 4) == 0) {
            strategy->recomputed_layers = STRATEGY_ALL_LAYERS;
            strategy->recomputed_modules = /* 0 at the end of the list */
                target_row(search->request->constraints.target)
                    ->selective[random_below(&random, TARGET_SELECTIVE)];
        }
        TRY(price_strategy(self, &drawn, error));
    }
    return AM_OK;
}

/* ---- all of it ---- */

static AmStatus search_splits(StrategySearch *self, AmError *error) {
    int32_t devices = self->cluster->device_count;
    for (int32_t tensor = 1; tensor <= devices; tensor++)
        for (int32_t stages = 1; stages <= devices / tensor && stages <= STAGES_MOST; stages++)
            if (devices % (tensor * stages) == 0) TRY(add_split(self, tensor, stages, error));
    for (int32_t k = 0; (k < REFINED || !self->result->plan) && k < self->split_count; k++) {
        PricedStrategy refined = self->splits[k];
        if (isfinite(refined.seconds)) TRY(refine_strategy(self, &refined, error));
    }
    for (int32_t k = 0, tried = 0; self->layers > 0 && tried < REFINED && k < self->split_count; k++) {
        /* Recomputation, which takes time, may make a split that does not fit the best plan. */
        const PricedStrategy *split = &self->splits[k];
        const PlanCandidate *best = &self->result->pool.best;
        bool has_fit = self->result->plan && best->fit.fits;
        if (!isfinite(split->seconds) || split->fit.fits) continue;
        if (has_fit && split->seconds >= best->seconds) continue;
        TRY(recompute(self, split, error));
        tried++;
    }
    return AM_OK;
}

/* Counts the layers that plans may recompute: none where the source recomputes (jax.checkpoint). */
static AmStatus count_layers(StrategySearch *self, AmError *error) {
    Arena scratch = {0};
    LayerSpans spans;
    const PlanContext *primary = self->search->primary;
    if (ir_source_recomputes(primary->roles, primary->canonical)) return AM_OK;
    AmStatus status = layer_spans_find(&spans, &scratch, primary, error);
    if (status == AM_OK) self->layers = spans.count;
    arena_free(&scratch);
    return status;
}

AmStatus search_strategies(SearchContext *self, AmError *error) {
    const SearchRequest *request = self->request;
    SearchResult *result = self->result;
    StrategySearch search = {.search = self,
                             .target = target_row(request->constraints.target),
                             .cluster = self->cluster,
                             .result = result};
    search.number_count = micro_batches_numbers(search.numbers, self->primary, self->micro_batches);
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        result->baselines[e] =
            (BaselineResult){.seconds = NAN, .reason = "not priced: strategies are searched"};
    search_watch_phase(request->callbacks.watch, SEARCH_PHASE_PIPELINES);
    TRY(count_layers(&search, error));
    if (self->scope->searcher == SEARCHER_RANDOM) TRY(draw_strategies(&search, error));
    else TRY(search_splits(&search, error));
    result->evaluations = self->budget.used;
    if (result->plan) {
        result->plan->evaluations = self->budget.used;
        return AM_OK;
    }
    if (stop_flag_is_set(self->budget.stop.interrupted))
        return am_fail(error, AM_INTERRUPTED, "", "interrupted before a plan was found that fits");
    if (result->nearest)
        return memory_fail(&result->nearest_fit, self->cluster, request->constraints.memory_fraction, error);
    if (search.refusal.code == AM_OK)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "no strategy was priced before the search ended");
    return am_pass_error(AM_ERROR_INFEASIBLE, &search.refusal, error);
}
