/* Names of searchers and objectives, the spaces that the options of a search leave, and the options of its
 * parts. */
#include "planners/problem/search_scope.h"

#include <math.h>

#include "base/system/clock.h"
#include "ir/analysis/loops.h"

const char *search_objective_name(SearchObjective objective) {
    static const char *const names[OBJECTIVE_COUNT] = {"time", "paper", "cost"};
    return names[objective];
}

const char *searcher_name(Searcher searcher) {
    static const char *const names[] = {
#define SEARCHER_NAME(name, text, help) text,
        SEARCHER_LIST(SEARCHER_NAME)
#undef SEARCHER_NAME
    };
    return names[searcher];
}

const char *layers_choice_name(LayersChoice choice) {
    static const char *const names[LAYERS_CHOICES] = {"auto", "loop", "split"};
    return names[choice];
}

const char *offload_choice_name(OffloadChoice choice) {
    static const char *const names[] = {
        [OFFLOAD_AUTO] = "auto", [OFFLOAD_NONE] = "none", [OFFLOAD_OPTIMIZER] = "optimizer"};
    return names[choice];
}

bool search_is_pipeline_baseline(const SearchScope *scope) {
    return scope->searcher == SEARCHER_BASELINE && baseline_has_stages(scope->baseline);
}

bool search_is_recomputed_baseline(const SearchScope *scope) {
    bool recomputes = baseline_recompute(scope->baseline) != BASELINE_RECOMPUTES_NOTHING;
    return scope->searcher == SEARCHER_BASELINE && recomputes;
}

bool search_spans_stages(const SearchScope *scope) {
    bool is_joint = scope->kind == SPACE_AUTO || scope->kind == SPACE_HYBRID;
    return is_joint && scope->searcher != SEARCHER_BASELINE && scope->request->objective != OBJECTIVE_PAPER;
}

bool search_module_is_large(const PlanContext *primary) {
    enum { MOST_INSTRUCTIONS = 10000 };
    return ir_represented(primary->canonical) > MOST_INSTRUCTIONS;
}

bool search_has_stages(const SearchScope *scope) {
    return scope->kind == SPACE_PIPELINE || search_spans_stages(scope) || search_is_pipeline_baseline(scope);
}

const char *search_narrow(SearchScope *scope) {
    const SearchRequest *request = scope->request;
    const struct {
        bool is_given;
        const char *option;
    } narrowing[] = {
        {request->constraints.kept != NULL, "--keep-shardings"},
        {request->space.mesh != NULL, "--mesh"},
        {request->constraints.is_even && request->constraints.target == TARGET_AUTOMAP, "--even"},
        {target_row(request->constraints.target)->stages == TARGET_ONE_STAGE,
         request->constraints.target == TARGET_HLO ? "--for hlo" : "--for shardy"},
        {request->constraints.degrees.stages == 1, NULL},
        {scope->searcher == SEARCHER_EXACT, "--searcher exact"},
        {scope->searcher == SEARCHER_EXHAUSTIVE, "--searcher exhaustive"},
        {scope->searcher == SEARCHER_RANDOM, "--searcher random"}};
    if (scope->kind != SPACE_AUTO || request->objective == OBJECTIVE_PAPER) return NULL;
    if (scope->searcher == SEARCHER_BASELINE) {
        scope->kind = search_is_pipeline_baseline(scope) ? SPACE_PIPELINE : SPACE_SINGLE_STAGE;
        return NULL;
    }
    for (size_t k = 0; k < sizeof narrowing / sizeof *narrowing; k++) {
        if (!narrowing[k].is_given) continue;
        scope->kind = SPACE_SINGLE_STAGE;
        return narrowing[k].option;
    }
    return NULL;
}

SearchScope search_with_request(const SearchScope *scope, SearchRequest *request) {
    SearchScope changed = *scope;
    *request = *scope->request;
    changed.request = request;
    return changed;
}

MicroBatchSettings search_micro_batching(const SearchRequest *request, int32_t micro_batches) {
    return (MicroBatchSettings){.micro_batches = micro_batches, .relaxations = request->space.relaxations};
}

SearchScope search_one_stage_part(const SearchScope *scope) {
    SearchScope part = *scope;
    part.kind = SPACE_SINGLE_STAGE;
    part.skip_bound = true;
    if (part.searcher == SEARCHER_AGENT) part.searcher = SEARCHER_ANNEAL;
    return part;
}

void search_limit_seconds(SearchScope *part, const StopSignal *stop) {
    part->limits.seconds = stop->deadline > 0 ? fmax(stop->deadline - clock_seconds(), 1e-3) : 0;
}

SearchScope search_part(const SearchScope *scope, const SearchBudget *budget, int64_t size) {
    SearchScope part = *scope;
    part.limits.evaluations = size;
    part.limits.is_default = false;
    budget_share(&part.limits, budget);
    search_limit_seconds(&part, &budget->stop);
    return part;
}

SearchBudget search_user_budget(const SearchScope *scope) {
    SearchBudget budget = budget_begin(&scope->limits, 1, NULL);
    budget_set_cap(&budget, scope->limits.is_default ? 0 : scope->limits.evaluations);
    return budget;
}

uint32_t search_schedules(const SearchRequest *request) {
    if (!request->space.schedule) return target_row(request->constraints.target)->schedules;
    ScheduleKind kind = schedule_kind_find(request->space.schedule);
    return kind == SCHEDULE_KINDS ? 0 : 1U << kind;
}

AmStatus search_check_plan(const SearchScope *scope, const Plan *plan, AmError *error) {
    const SearchRequest *request = scope->request;
    TRY(placement_check_plan(scope->placement, plan, error));
    TRY(degrees_check_plan(&request->constraints.degrees, plan, error));
    return pins_check_plan(request->constraints.pins, request->constraints.pin_count, plan, error);
}

void search_describe_plan(Plan *plan, const PlanContext *context, const Cluster *cluster,
                          const SearchScope *scope) {
    const IrModule *module = plan_context_primary(context)->canonical;
    *plan = (Plan){.module_name = module->name,
                   .module_sha256 = context->sha256,
                   .module_instructions = module->instruction_count,
                   .cluster_name = cluster->name,
                   .cluster_sha256 = cluster->sha256,
                   .cluster_description = cluster->description,
                   .micro_batches = plan_context_micro_batches(context),
                   .context = context,
                   .schedule = "none",
                   .stage_count = 1,
                   .is_for_jax = scope->request->constraints.target == TARGET_JAX,
                   .searcher = searcher_name(scope->searcher),
                   .space = plan_space_name(scope->kind),
                   .seed = scope->seed,
                   .bound_seconds = NAN};
}
