/* Auto-MAP's own mode: from the DQN's decisions to a plan.
 *
 * Operator partitioning is over the devices of one server, the batch over the servers. A strategy
 * becomes the axis priority: the dimension classes of its splits, by parameter. Auto data parallelism
 * is over all devices.
 */
#include "planners/automap_paper/paper_search.h"

#include <math.h>

#include "base/system/clock.h"
#include "cost/simulate/simulate.h"
#include "planners/automap_paper/paper_pipeline_plan.h"

typedef struct PaperSearch {
    SearchResult *result;
    PaperReport *report;
    Arena *arena;
    PlanContext *primary;
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
} PaperSearch;

/* ---- meshes ---- */

/* Finds the mesh of a stage on all devices, whose last axis is the one to decide about. */
static AmStatus find_mesh(const PaperSearch *self, Mesh *mesh, AmError *error) {
    const SearchRequest *request = self->request;
    const Cluster *cluster = self->cluster;
    if (request->space.mesh) {
        TRY(mesh_parse(mesh, self->arena, request->space.mesh, error));
        if (mesh->device_count != cluster->device_count)
            return am_fail(error, AM_ERROR_USAGE, "", "--mesh %s has %d devices, cluster %s has %d",
                           request->space.mesh, mesh->device_count, cluster->name, cluster->device_count);
        return AM_OK;
    }
    int32_t inside = cluster->device_count;
    if (self->scope->kind == SPACE_OPERATOR) {
        inside = cluster->servers[0].device_count;
        for (int32_t s = 1; s < cluster->server_count; s++)
            if (cluster->servers[s].device_count != inside)
                return am_fail(
                    error, AM_ERROR_USAGE, "",
                    "--objective paper: the servers of cluster %s have different numbers of devices",
                    cluster->name);
    }
    *mesh = (Mesh){.device_count = cluster->device_count};
    if (inside < cluster->device_count)
        mesh->axes[mesh->axis_count++] = (MeshAxis){.name = "data", .size = cluster->device_count / inside};
    mesh->axes[mesh->axis_count++] =
        (MeshAxis){.name = self->scope->kind == SPACE_DATA ? "data" : "model", .size = inside};
    return AM_OK;
}

/* ---- axis priorities ---- */

/* Puts the class of a parameter's dimension at the end of an axis priority, once. */
static AmStatus append_class(PlanAxisPriority *priority, int32_t *capacity, const PaperSearch *self,
                             LinkageMember member, AmError *error) {
    const PlanContext *context = self->primary;
    int32_t instruction = context->roles->parameters[member.parameter].instruction;
    int32_t class = classes_of(context->classes, context->rules, instruction, member.dimension);
    if (class < 0) return AM_OK;
    for (int32_t k = 0; k < priority->count; k++)
        if (priority->entries[k].class_index == class) return AM_OK;
    ARENA_RESERVE(self->arena, priority->entries, priority->count, *capacity);
    if (self->arena->failed) return am_fail_memory(error, priority->count);
    priority->entries[priority->count++] = (PlanEntry){.class_index = class};
    return AM_OK;
}

/* Appends the batch to an axis: the first dimension of every data input that has one. */
static AmStatus append_batch(PlanAxisPriority *priority, const PaperSearch *self, AmError *error) {
    const IrRoles *roles = self->primary->roles;
    int32_t capacity = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrShape *shape =
            &plan_context_instruction(self->primary, roles->parameters[p].instruction)->shape;
        if (roles->parameters[p].role == IR_ROLE_DATA && shape->type != DTYPE_TUPLE && shape->rank > 0)
            TRY(append_class(priority, &capacity, self, (LinkageMember){p, 0}, error));
    }
    return AM_OK;
}

/* ---- operator partitioning and auto data parallelism ---- */

/* Compares the strategy with the optimum: for readers, after the search. */
static AmStatus report_partition(PaperSearch *self, const PaperPartition *partition, StrictRoots roots,
                                 AmError *error) {
    PaperPartitionReport *report = &self->report->partition;
    LinkageGroups *groups;
    report->dimension_count = partition->dimension_count;
    report->decision_count = partition->decision_count;
    self->report->failures = partition->conflicts;
    report->partitioned = partition->best.partitioned;
    report->replicated = partition->best.replicated;
    report->reward = paper_strategy_reward(&partition->best);
    LinkageMember *members = ARENA_ARRAY(self->arena, LinkageMember, report->partitioned + 1);
    if (!members) return am_fail_memory(error, (int64_t)sizeof *members * report->partitioned);
    for (int32_t d = 0, count = 0; d < partition->dimension_count; d++) {
        report->variable_count += partition->dimensions[d].dimension == 0;
        if (partition->best.status[d] == 1) members[count++] = partition->dimensions[d];
    }
    report->dimensions = members;
    TRY(strict_groups(&groups, self->arena, self->primary, report->axis_size, roots, error));
    report->maximum = groups->best_partitioned;
    report->is_exact = groups->best_is_exact;
    return AM_OK;
}

static AmStatus search_partition(PaperSearch *self, AmError *error) {
    const SearchScope *scope = self->scope;
    StrictRoots roots = scope->kind == SPACE_DATA ? STRICT_DATA : STRICT_STATE;
    PaperPartition *partition;
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stage = ARENA_ARRAY(self->arena, PlanStage, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *plan);
    if (self->scope->micro_batches != 1)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--objective paper decides about whole batches in --space %s: no --micro-batches",
                       plan_space_name(scope->kind));
    TRY(find_mesh(self, &stage->mesh, error));
    self->report->partition.axis_size = stage->mesh.axes[stage->mesh.axis_count - 1].size;
    TRY(paper_partition_create(&partition, self->arena, self->primary, self->report->partition.axis_size,
                               roots, error));
    TRY(paper_learn(&self->report->learning, &partition->base, scope->kind, scope, error));
    if (!partition->has_best && self->report->learning.end == PAPER_INTERRUPTED)
        return am_fail(error, AM_INTERRUPTED, "", "interrupted before there was a strategy");
    if (!partition->has_best)
        return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary),
                       "all %lld episodes ended in a conflict", (long long)partition->conflicts);
    double start = clock_seconds();
    search_describe_plan(plan, self->primary, self->cluster, scope);
    int32_t count = stage->mesh.device_count, last = stage->mesh.axis_count - 1, capacity = 0;
    stage->devices = ARENA_ARRAY(self->arena, int32_t, count);
    stage->ranges = arena_alloc(self->arena, sizeof *stage->ranges);
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) stage->devices[d] = d;
    stage->ranges[0][1] = self->primary->rules->entry_count;
    stage->range_count = 1;
    for (int32_t axis = 0; axis < last; axis++) TRY(append_batch(&stage->axis_priorities[axis], self, error));
    for (int32_t d = 0; d < partition->dimension_count; d++)
        if (partition->best.status[d] == 1)
            TRY(append_class(&stage->axis_priorities[last], &capacity, self, partition->dimensions[d],
                             error));
    plan->stages = stage;
    Simulation *simulation;
    double memory_fraction = self->request->constraints.memory_fraction;
    TRY(simulate_plan(&simulation, self->arena, plan->context, plan, self->cluster,
                      &(SimulationOptions){.memory_fraction = memory_fraction}, error));
    TRY(simulation_predict(plan, self->arena, simulation, error));
    self->result->evaluations++;
    plan->evaluations = self->result->evaluations;
    if (!simulation->fit.fits) return memory_fail(&simulation->fit, self->cluster, memory_fraction, error);
    self->result->plan = plan;
    self->report->pricing_seconds = clock_seconds() - start;
    return report_partition(self, partition, roots, error);
}

/* ---- pipelines ---- */

static AmStatus report_cuts(PaperSearch *self, const PaperPipeline *pipeline, AmError *error) {
    PaperReport *report = self->report;
    const PaperChain *chain = pipeline->chain;
    double all = paper_iteration_seconds(&chain->end);
    report->pipeline.cut_count = pipeline->stage_count - 1;
    report->pipeline.pivot_count = pipeline->pivot_count;
    report->pipeline.candidate_count = chain->count;
    report->pipeline.seconds = pipeline->best_seconds;
    report->pipeline.cuts = ARENA_ARRAY(self->arena, PaperCutReport, report->pipeline.cut_count);
    if (!report->pipeline.cuts)
        return am_fail_memory(error, (int64_t)sizeof *report->pipeline.cuts * report->pipeline.cut_count);
    for (int32_t k = 0; k < report->pipeline.cut_count; k++) {
        const PaperPivot *pivot = &chain->pivots[pipeline->best[k].pivot];
        const IrInstruction *instruction = plan_context_instruction(self->primary, pivot->instruction);
        PaperCutReport *cut = &report->pipeline.cuts[k];
        *cut = (PaperCutReport){.instruction = pivot->instruction,
                                .device = pipeline->best[k].device,
                                .part = paper_iteration_seconds(pivot) / all,
                                .crossing = pivot->crossing,
                                .name = instruction->name,
                                .op_name = instruction->op_name};
        paper_chain_layers(&cut->before, &cut->after, self->primary, pivot->instruction);
    }
    return AM_OK;
}

#define PAPER_STORAGE 2 /* ZeRO 2 */

/* Prices the plan of the cuts, in micro-batches. The paper's memory is weights, gradients, state and
 * activations. If the other needs of a step do not fit besides, stages keep gradients and state in shards
 * (ZeRO 2), which does not change the cuts. */
static AmStatus price_pipeline(PaperSearch *self, const PaperPipeline *pipeline, AmError *error) {
    MicroBatchSettings rewriting = search_micro_batching(self->request, pipeline->micro_batches);
    const PlanContext *context;
    int32_t instructions[STAGES_MOST], devices[STAGES_MOST];
    PaperStageCuts cuts = {
        .count = self->report->pipeline.cut_count, .instructions = instructions, .devices = devices};
    MemoryFit fit;
    Plan *plan;
    if (paper_pipeline_is_tight(pipeline)) cuts.storage = PAPER_STORAGE;
    rewriting.separate_backward = true;
    TRY(plan_context_for(&context, self->primary, &rewriting, error));
    for (int32_t k = 0; k < cuts.count; k++) {
        instructions[k] = self->report->pipeline.cuts[k].instruction;
        devices[k] = self->report->pipeline.cuts[k].device;
    }
    TRY(paper_pipeline_plan(&plan, &fit, self->arena, context, self->cluster, self->scope, &cuts, error));
    self->result->evaluations++;
    if (!fit.fits && cuts.storage < PAPER_STORAGE) {
        cuts.storage = PAPER_STORAGE;
        TRY(paper_pipeline_plan(&plan, &fit, self->arena, context, self->cluster, self->scope, &cuts, error));
        self->result->evaluations++;
    }
    self->report->pipeline.storage = cuts.storage;
    plan->evaluations = self->result->evaluations;
    if (!fit.fits) return memory_fail(&fit, self->cluster, self->request->constraints.memory_fraction, error);
    self->result->plan = plan;
    return AM_OK;
}

static AmStatus search_pipeline(PaperSearch *self, AmError *error) {
    const SearchScope *scope = self->scope;
    PaperReport *report = self->report;
    PaperChain *chain;
    PaperPipeline *pipeline;
    int64_t batch = micro_batches_limit(self->primary), count = self->scope->micro_batches;
    if (count == 0) count = batch / PAPER_MICRO_BATCH;
    if (count < 1) count = 1;
    report->pipeline.micro_batches = (int32_t)count;
    if (count > batch || batch % count != 0 || count > MICRO_BATCHES_MOST)
        return am_fail(error, AM_ERROR_USAGE, "", "a batch of %lld makes no %lld equal micro-batches",
                       (long long)batch, (long long)count);
    if (scope->request->space.mesh)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--objective paper deals devices to stages by their arithmetic: no --mesh");
    TRY(paper_chain_build(&chain, self->arena, self->primary, self->cluster, report->pipeline.micro_batches,
                          self->cluster->device_count / self->cluster->server_count, error));
    TRY(paper_pipeline_create(&pipeline, self->arena, chain, self->cluster, report->pipeline.micro_batches,
                              scope->request->constraints.memory_fraction, error));
    TRY(paper_learn(&report->learning, &pipeline->base, scope->kind, scope, error));
    report->failures = pipeline->failures;
    if (!pipeline->best_fit.fits && report->learning.end == PAPER_INTERRUPTED)
        return am_fail(error, AM_INTERRUPTED, "", "interrupted before there was a pipeline");
    if (!pipeline->best_fit.fits)
        return memory_fail(&pipeline->best_fit, self->cluster, scope->request->constraints.memory_fraction,
                           error);
    TRY(report_cuts(self, pipeline, error));
    report->pipeline.shortest_seconds = paper_pipeline_shortest(pipeline);
    double start = clock_seconds();
    TRY(price_pipeline(self, pipeline, error));
    report->pricing_seconds = clock_seconds() - start;
    return AM_OK;
}

/* ---- the mode ---- */

/* Refuses options that the paper's decision vectors cannot represent. */
static AmStatus refuse_options(const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    const char *option = request->constraints.pin_count > 0 ? "--pin"
                         : request->constraints.kept        ? "--keep-shardings"
                         : request->space.initial           ? "--init-plan"
                         : request->constraints.is_even     ? "--even"
                                                            : NULL;
    if (option) return am_fail(error, AM_ERROR_USAGE, "", "--objective paper takes no %s", option);
    if (scope->searcher == SEARCHER_DQN) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "--objective paper searches by dqn, not by --searcher %s",
                   searcher_name(scope->searcher));
}

AmStatus paper_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                      const SearchScope *scope, AmError *error) {
    double start = clock_seconds();
    *result = (SearchResult){.model_gap = NAN};
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        result->baselines[e] =
            (BaselineResult){.seconds = NAN, .reason = "not priced in Auto-MAP's own mode"};
    PaperReport *report = ARENA_ARRAY(arena, PaperReport, 1);
    if (!report) return am_fail_memory(error, (int64_t)sizeof *report);
    *report = (PaperReport){.space = scope->kind};
    result->paper = report;
    PaperSearch self = {result, report, arena, primary, cluster, scope, scope->request};
    TRY(refuse_options(scope, error));
    bool is_partition = scope->kind == SPACE_OPERATOR || scope->kind == SPACE_DATA;
    if (!is_partition && scope->kind != SPACE_PIPELINE)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--objective paper needs --space operator, data or pipeline");
    TRY(is_partition ? search_partition(&self, error) : search_pipeline(&self, error));
    result->interrupted = report->learning.end == PAPER_INTERRUPTED;
    result->search_seconds = clock_seconds() - start;
    return AM_OK;
}
