/* Estimates of axis plans by the additive model of a sample of the module, in a hundredth of the time of a
 * price. */
#include "planners/single_stage/estimate.h"

#include "base/hash.h"
#include "cost/relaxation/additive.h"

struct Estimator {
    Arena arena;
    const Problem *problem;
    AdditiveSample *sample;
    double limit;   /* bytes of a device */
    PriceMemo memo; /* by axis plan */
};

static AmStatus open_sample(Estimator *self, AmError *error) {
    const Problem *problem = self->problem;
    AdditiveModel *model;
    ReshardCosts *reshards;
    TRY(additive_create(&model, &self->arena, problem->context, &problem->mesh, problem->cluster,
                        problem->devices, error));
    if (!model) return AM_OK;
    TRY(reshard_costs_create(&reshards, &self->arena, &problem->mesh, problem->cluster, problem->devices,
                             RESHARD_AXIS_ORDER, error));
    model->reshards = reshards;
    return additive_sample(&self->sample, &self->arena, model, error);
}

AmStatus estimator_open(Estimator **estimator, const Problem *problem, AmError *error) {
    Arena arena = {0};
    Estimator *self = *estimator = ARENA_ARRAY(&arena, Estimator, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    int64_t least = cluster_least_memory(problem->cluster, problem->devices, problem->mesh.device_count);
    *self =
        (Estimator){.arena = arena, .problem = problem, .limit = (double)least * problem->memory_fraction};
    self->memo.arena = &self->arena;
    AmStatus status = open_sample(self, error);
    if (status == AM_OK && self->sample) return AM_OK;
    estimator_close(self);
    *estimator = NULL;
    return status;
}

void estimator_close(Estimator *estimator) {
    if (!estimator) return;
    Arena arena = estimator->arena;
    arena_free(&arena);
}

static AmStatus estimate_in(PlanPrice *price, const Estimator *self, Arena *scratch,
                            const AxisPlan *axis_plan, AmError *error) {
    PlanStage *stage = ARENA_ARRAY(scratch, PlanStage, 1);
    Assignment *assignment;
    if (!stage) return am_fail_memory(error, (int64_t)sizeof *stage);
    problem_stage(self->problem, axis_plan, scratch, stage);
    if (scratch->failed) return am_fail_memory(error, 0);
    TRY(plan_assign(&assignment, scratch, additive_sample_context(self->sample), stage, error));
    const AdditiveCost cost = additive_sample_cost(self->sample, assignment);
    *price = (PlanPrice){.compute_seconds = cost.compute_seconds,
                         .communication_seconds = cost.communication_seconds,
                         .seconds = cost.compute_seconds + cost.communication_seconds,
                         .excess = cost.kept_bytes > self->limit ? cost.kept_bytes / self->limit - 1 : 0};
    return AM_OK;
}

AmStatus estimate_axis_plan(PlanPrice *price, Estimator *estimator, const AxisPlan *axis_plan,
                            AmError *error) {
    uint64_t key = hash_bytes(axis_plan, sizeof *axis_plan, 0);
    const PlanPrice *known = price_memo_find(&estimator->memo, key);
    if (known) {
        *price = *known;
        return AM_OK;
    }
    Arena *scratch = scratch_take(estimator->problem->scratch);
    AmStatus status = estimate_in(price, estimator, scratch, axis_plan, error);
    scratch_give(estimator->problem->scratch, scratch);
    TRY(status);
    return price_memo_add(&estimator->memo, key, price) ? AM_OK : am_fail_memory(error, 0);
}
