/* Prices the baselines of a one-stage search. Each has a mesh of its own, for example a model axis as large
 * as a server, and an axis plan on it (baseline.h). They are priced side by side, and do not count as
 * evaluations. A baseline without a price has a reason: no such plan, no storage in shards, or too little
 * memory.
 */
#include <math.h>
#include <stdlib.h>

#include "base/system/parallel.h"
#include "ir/analysis/loops.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/problem/search_watch.h"
#include "planners/single_stage/single_stage_state.h"

/* The splits of a baseline beside the batch. */
typedef struct BaselineForm {
    bool splits_model, splits_sequence; /* a sequence without the model is context parallelism */
    uint8_t storage;    /* number of storage kinds (ZeRO stage) on axes that split the batch */
    bool is_in_groups;  /* devices of the last axis are a group of servers */
    uint8_t of_between; /* in groups: the number of storage kinds between them */
} BaselineForm;

static const BaselineForm baseline_forms[BASELINE_COUNT] = {
    [BASELINE_MEGATRON] = {.splits_model = true},
    [BASELINE_MEGATRON_SEQUENCE] = {.splits_model = true, .splits_sequence = true},
    [BASELINE_ZERO1] = {.storage = 1},
    [BASELINE_ZERO2] = {.storage = 2},
    [BASELINE_ZERO3] = {.storage = 3},
    [BASELINE_HSDP] = {.storage = 3, .is_in_groups = true},
    [BASELINE_HSDP_ZERO2] = {.storage = 3, .is_in_groups = true, .of_between = 2},
    [BASELINE_MEGATRON_ZERO1] = {.splits_model = true, .storage = 1},
    [BASELINE_MEGATRON_ZERO2] = {.splits_model = true, .storage = 2},
    [BASELINE_MEGATRON_ZERO3] = {.splits_model = true, .storage = 3},
    [BASELINE_CONTEXT_ZERO3] = {.splits_sequence = true, .storage = 3}};

static const char no_groups[] = "the devices make no groups of servers";

static const char *why_no_storage(const StageProblem *problem) {
    if (problem->pins.count > 0) return "the pins set the storage of the parameters";
    return problem->space == SPACE_OPERATOR ? "the space has operators alone" : "no weight is updated";
}

/* Sets the baseline's storage over an axis; returns the obstacle, or NULL. */
static const char *store_over(const StageProblem *problem, const BaselineForm *form, int32_t axis,
                              AxisPlan *axis_plan) {
    int32_t most = problem_storage_kinds(problem, axis);
    int32_t wanted = form->is_in_groups && axis == 0 ? form->of_between : form->storage;
    if (problem->mesh.axes[axis].size == 1) return NULL;
    axis_plan->storage[axis] = (uint8_t)(wanted < most ? wanted : most);
    return wanted > most ? why_no_storage(problem) : NULL;
}

/* Splits the weights over a group, after the batch, along the class set that most of them have: a gradient is
 * then summed inside the group before it is summed between groups. */
static void split_weights(const StageProblem *problem, AxisPlan *axis_plan) {
    const int32_t axis = 1;
    int32_t best = -1;
    for (int32_t k = 0; k < problem->class_set_count; k++) {
        const ClassSet *set = &problem->class_sets[k];
        if (!set->splits_weights || set->splits_data || !problem_can_split(problem, k, axis)) continue;
        if (best < 0 || set->weight_share > problem->class_sets[best].weight_share) best = k;
    }
    if (best >= 0) axis_plan_insert(axis_plan, axis, axis_plan->count[axis], best);
}

/* Sets the list of the last axis of a baseline with a model axis: Megatron-LM's classes followed by
 * the sequence; or the sequence alone, and then storage also uses this axis. */
static AmStatus split_last_axis(const StageProblem *problem, const BaselineForm *form, AxisPlan *axis_plan,
                                const char **reason, AmError *error) {
    int32_t last = problem->mesh.axis_count - 1;
    bool found = true, has_batch = last > 0 && axis_plan->count[0] > 0;
    if (form->splits_model) TRY(baseline_megatron(problem, last, axis_plan, &found, error));
    if (!found)
        *reason = problem->pins.count > 0
                      ? "the pins leave no dimension to split"
                      : "no weight dimension can be split by the strict rules on the model axis";
    else if (form->splits_sequence && !baseline_sequence(problem, last, axis_plan))
        *reason = "no data input has a sequence that the model axis divides";
    else if (!form->splits_model) *reason = *reason ? *reason : store_over(problem, form, last, axis_plan);
    else if (axis_plan->storage[0] < form->storage)
        *reason = has_batch && problem->mesh.axes[0].size > 1 ? why_no_storage(problem)
                                                              : "no axis is left that splits the batch";
    return AM_OK;
}

/* Returns why the devices cannot split the batch. */
static const char *why_not_split(const StageProblem *problem) {
    const PlanContext *primary = plan_context_primary(problem->context);
    if (problem->pins.count > 0) return "the pins leave no dimension to split";
    for (int32_t p = 0; p < primary->roles->parameter_count; p++)
        if (micro_batches_dimension(primary, p) > 0)
            return "the examples are no first dimension, and rows such as [sequence * example] have no equal "
                   "shards of them; put the examples first in the data and in merged dimensions";
    return "no data input has a batch dimension that the devices divide";
}

AmStatus baseline_axis_plan(const StageProblem *problem, Baseline baseline, AxisPlan *axis_plan,
                            const char **reason, AmError *error) {
    *axis_plan = (AxisPlan){0};
    *reason = NULL;
    const Mesh *mesh = &problem->mesh;
    if (baseline_has_stages(baseline) || baseline_recompute(baseline) != BASELINE_RECOMPUTES_NOTHING) {
        *reason = baseline_has_stages(baseline) ? "it has several stages: --baseline prices it"
                                                : "it recomputes layers: --baseline prices it";
        return AM_OK;
    }
    const BaselineForm *form = &baseline_forms[baseline];
    bool is_split = false, splits_all = true, has_last = form->splits_model || form->splits_sequence;
    if (has_last && mesh->device_count == 1) {
        *reason = "there is one device";
        return AM_OK;
    }
    bool has_groups = mesh->axis_count == 2 && mesh->axes[0].size > 1 && mesh->axes[1].size > 1;
    if (form->is_in_groups && !has_groups) {
        *reason = no_groups;
        return AM_OK;
    }
    for (int32_t axis = 0; axis < mesh->axis_count - has_last; axis++) {
        bool is_here = baseline_batch(problem, axis, axis_plan);
        is_split = is_split || is_here;
        splits_all = splits_all && is_here;
        const char *lack = is_here ? store_over(problem, form, axis, axis_plan) : NULL;
        if (lack) *reason = lack;
    }
    if (has_last) return split_last_axis(problem, form, axis_plan, reason, error);
    if (form->is_in_groups) split_weights(problem, axis_plan);
    bool is_missing = form->is_in_groups ? !splits_all : !is_split && mesh->device_count > 1;
    if (is_missing) *reason = why_not_split(problem);
    return AM_OK;
}

static const char *why_too_large(Arena *arena, const MemoryFit *fit) {
    Text text = {0};
    text_append_string(&text, "needs ");
    text_append_bytes_size(&text, (double)fit->needed_bytes);
    text_append_string(&text, " a device, the limit is ");
    text_append_bytes_size(&text, (double)fit->limit_bytes);
    const char *reason = text.failed ? "does not fit" : arena_copy_string(arena, text.data);
    text_free(&text);
    return reason;
}

/* Returns whether a baseline may be priced on this mesh: data_parallel with all devices
 * on the first axis, and zero1 to 3; megatron with the model axis inside a server; hsdp with servers as a
 * whole on the last axis. */
static bool is_baseline_mesh(const SingleStageSearch *self, Baseline baseline, const Mesh *mesh) {
    if (self->problem_count == 1) return true;
    const Cluster *cluster = self->cluster;
    int32_t model = mesh->axes[1].size, server_size = 0;
    for (int32_t d = 0; d < cluster->device_count; d++)
        server_size += cluster->server_of[d] == cluster->server_of[0];
    const BaselineForm *form = &baseline_forms[baseline];
    bool has_model = form->splits_model || form->splits_sequence;
    if (form->is_in_groups) return model % server_size == 0 && model < mesh->device_count;
    return has_model ? model > 1 && model <= server_size : model == 1;
}

/* Returns whether weights and optimizer state alone exceed the memory of a device, where the baseline has
 * groups: most of its meshes are refused so without a simulation. */
static bool is_hopeless(const StageProblem *problem, const BaselineForm *form) {
    const PlanContext *context = problem->context;
    const IrRoles *roles = context->roles;
    double weights = 0, optimizer = 0;
    if (!form->is_in_groups) return false;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        double bytes = (double)ir_shape_bytes(&context->canonical->instructions[i].shape) *
                       ir_layers_of(context->canonical, i);
        if (roles->parameters[p].role == IR_ROLE_WEIGHT) weights += bytes;
        if (roles->parameters[p].role == IR_ROLE_OPTIMIZER) optimizer += bytes;
    }
    double group = problem->mesh.axes[1].size;
    if (form->of_between > 0) optimizer /= problem->mesh.axes[0].size;
    if (problem->constraints.offloads_optimizer) optimizer = 0;
    return (weights + optimizer) / group > problem_memory_limit(problem);
}

/* A baseline on one mesh. */
typedef struct MeshPrice {
    Plan *plan;         /* NULL: the baseline has no plan on this mesh */
    const char *reason; /* the reason without a plan; NULL: the mesh is not one of the baseline */
    MemoryFit fit;
    bool is_priced;
} MeshPrice;

/* The price of one baseline, for parallel_for(). */
typedef struct BaselinePrice {
    AmStatus status;
    AmError error;
    MeshPrice meshes[SEARCH_MOST_MESHES]; /* by problem */
    bool is_requested;
} BaselinePrice;

typedef struct BaselinePrices {
    const SingleStageSearch *search;
    BaselinePrice prices[BASELINE_COUNT];
} BaselinePrices;

/* Prepares the baseline's plans on the meshes that are its own. */
static AmStatus begin_price(BaselinePrice *self, SingleStageSearch *search, Baseline baseline,
                            AmError *error) {
    *self = (BaselinePrice){.is_requested = true};
    search->baselines[baseline].is_priced = true;
    for (int32_t k = 0; k < search->problem_count; k++) {
        const StageProblem *problem = search->problems[k];
        MeshPrice *mesh = &self->meshes[k];
        AxisPlan axis_plan;
        if (!is_baseline_mesh(search, baseline, &problem->mesh)) continue;
        TRY(baseline_axis_plan(problem, baseline, &axis_plan, &mesh->reason, error));
        if (!mesh->reason && is_hopeless(problem, &baseline_forms[baseline]))
            mesh->reason = "weights and optimizer state alone exceed the memory of a device";
        axis_plan.gathers_again = true; /* as ZeRO's third stage does */
        if (!mesh->reason) TRY(single_stage_plan(search, problem, &axis_plan, &mesh->plan, error));
        if (mesh->plan && search_check_plan(search->scope, mesh->plan, NULL) != AM_OK) {
            mesh->reason = "it has other degrees, or violates a pin";
            mesh->plan = NULL;
        }
    }
    return AM_OK;
}

/* Prices a baseline on the widest model axis first, and on narrower ones where that does not fit. A baseline
 * with groups begins with the smallest, and takes larger ones while these are faster. */
static void price_task(void *user, int32_t baseline) {
    BaselinePrices *pricing = user;
    BaselinePrice *self = &pricing->prices[baseline];
    const SearchScope *scope = pricing->search->scope;
    bool is_named = scope->searcher == SEARCHER_BASELINE && (int32_t)scope->baseline == baseline;
    bool is_in_groups = baseline_forms[baseline].is_in_groups;
    int32_t count = pricing->search->problem_count;
    MeshPrice *best = NULL;
    for (int32_t j = 0; j < count && self->is_requested; j++) {
        MeshPrice *mesh = &self->meshes[is_in_groups ? j : count - 1 - j];
        /* After an interrupt, or out of time, only a baseline that is requested by name is priced. */
        if (!mesh->plan || (!is_named && single_stage_must_end(pricing->search))) continue;
        self->status = single_stage_simulate(pricing->search, mesh->plan, &mesh->fit, &self->error);
        mesh->is_priced = true;
        if (self->status != AM_OK) return;
        if (!mesh->fit.fits) continue;
        bool is_slower = best && best->plan->predicted_step_seconds <= mesh->plan->predicted_step_seconds;
        MeshPrice *worse = is_slower ? mesh : best;
        if (worse) *worse = (MeshPrice){0};
        if (is_slower || !is_in_groups) return;
        best = mesh;
    }
}

static AmStatus end_price(SingleStageSearch *search, Baseline baseline, const BaselinePrice *self,
                          AmError *error) {
    const SearchRequest *request = search->request;
    BaselineResult *result = &search->result->baselines[baseline];
    *result = (BaselineResult){.seconds = NAN};
    TRY(am_pass_error(self->status, &self->error, error));
    for (int32_t k = search->problem_count - 1; k >= 0; k--) {
        const MeshPrice *mesh = &self->meshes[k];
        const char *reason = mesh->reason;
        if (mesh->plan && !mesh->is_priced) reason = "the search ended before it was priced";
        else if (mesh->plan && !mesh->fit.fits) reason = why_too_large(search->arena, &mesh->fit);
        if (!result->reason && reason)
            *result =
                (BaselineResult){.seconds = NAN, .reason = reason, .needed_bytes = mesh->fit.needed_bytes};
        SingleStageBaseline *priced = &search->baselines[baseline];
        if (!mesh->is_priced) continue;
        if (!priced->plan || mesh->plan->predicted_step_seconds < priced->least_seconds)
            priced->least_seconds = mesh->plan->predicted_step_seconds;
        if (!mesh->fit.fits && priced->plan) continue;
        priced->plan = mesh->plan;
        priced->problem = search->problems[k];
        if (!mesh->fit.fits) continue;
        const PlanRecomputation *again = single_stage_recomputation(search);
        const char *kind = again && again->saved_count > 0 ? "selective" : "full";
        *result = (BaselineResult){.seconds = mesh->plan->predicted_step_seconds,
                                   .micro_batches = plan_context_micro_batches(search->context),
                                   .recompute = again ? kind : NULL};
        if (!request->method.no_seeds) search_watch_count(request->callbacks.watch, 0, result->seconds);
        return AM_OK;
    }
    if (!result->reason)
        result->reason = baseline_has_groups(baseline) ? no_groups : "the devices make no mesh for it";
    return AM_OK;
}

/* Prices the baselines in [first, end) that are not priced yet. */
static AmStatus price_baselines(SingleStageSearch *self, int32_t first, int32_t end, AmError *error) {
    BaselinePrices *pricing = calloc(1, sizeof *pricing);
    if (!pricing) return am_fail_memory(error, (int64_t)sizeof *pricing);
    pricing->search = self;
    AmStatus status = AM_OK;
    for (int32_t e = first; e < end && status == AM_OK; e++)
        if (!self->baselines[e].is_priced)
            status = begin_price(&pricing->prices[e], self, (Baseline)e, error);
    if (status == AM_OK) parallel_for(BASELINE_COUNT, 0, price_task, pricing);
    for (int32_t e = first; e < end && status == AM_OK; e++)
        if (pricing->prices[e].is_requested)
            status = end_price(self, (Baseline)e, &pricing->prices[e], error);
    free(pricing);
    return status;
}

AmStatus baseline_price(SingleStageSearch *self, Baseline baseline, AmError *error) {
    return price_baselines(self, (int32_t)baseline, (int32_t)baseline + 1, error);
}

AmStatus baseline_price_all(SingleStageSearch *self, AmError *error) {
    return price_baselines(self, 0, BASELINE_COUNT, error);
}

AmStatus baseline_price_seeds(StageProblem *problem, AmError *error) {
    for (int32_t e = 0; e < BASELINE_COUNT && !problem_must_stop(problem); e++) {
        AxisPlan axis_plan;
        PlanPrice price;
        const char *reason;
        if (baseline_has_groups((Baseline)e)) continue;
        TRY(baseline_axis_plan(problem, (Baseline)e, &axis_plan, &reason, error));
        if (!reason) TRY(problem_price(problem, &axis_plan, &price, error));
    }
    return AM_OK;
}
