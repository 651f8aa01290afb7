/* The table of the targets, and the checks of plans and modules by its columns: stages, schedules, meshes,
 * shares of devices, and forms of the module.
 */
#include "planners/targets/target.h"

#include "ir/module.h"
#include "lowering/micro_batch/micro_batches.h"

#define SCHEDULE(kind) (1U << SCHEDULE_##kind)
#define ALL_SCHEDULES  ((1U << SCHEDULE_KINDS) - 1)

static const TargetRow rows[TARGET_COUNT] = {
    [TARGET_AUTOMAP] = {.name = "automap",
                        .form = "plans",
                        .stages = TARGET_ANY_STAGES,
                        .has_micro_batches = true,
                        .offload = TARGET_OFFLOADS,
                        .splits_layers = true,
                        .schedules = ALL_SCHEDULES},
    [TARGET_JAX] = {.name = "jax",
                    .form = "shardings for JAX",
                    .stages = TARGET_ANY_STAGES,
                    .has_micro_batches = true,
                    .has_equal_shards = true,
                    .offload = TARGET_OFFLOADS_ONE_PROGRAM,
                    .has_own_examples = true,
                    .has_plain_pools = true,
                    .splits_layers = true,
                    .schedules = ALL_SCHEDULES},
    [TARGET_HLO] = {.name = "hlo",
                    .form = "shardings of HLO",
                    .stages = TARGET_ONE_STAGE,
                    .has_equal_shards = true,
                    .has_plain_pools = true},
    [TARGET_SHARDY] = {.name = "shardy",
                       .form = "shardings of HLO",
                       .stages = TARGET_ONE_STAGE,
                       .has_equal_shards = true,
                       .has_plain_pools = true},
    [TARGET_TORCH] = {.name = "torch",
                      .alias = "dtensor",
                      .form = "DTensor placements",
                      .stages = TARGET_ALIKE_STAGES,
                      .has_micro_batches = true,
                      .has_equal_shards = true,
                      .has_leading_batch = true,
                      .schedules = SCHEDULE(GPIPE) | SCHEDULE(1F1B) | SCHEDULE(INTERLEAVED)},
    [TARGET_MEGATRON] = {.name = "megatron",
                         .form = "arguments of Megatron-LM",
                         .stages = TARGET_ALIKE_STAGES,
                         .has_micro_batches = true,
                         .has_equal_shards = true,
                         .offload = TARGET_OFFLOADS,
                         .schedules = SCHEDULE(1F1B) | SCHEDULE(INTERLEAVED),
                         .splits_layers = true,
                         .trainer = "Megatron-LM",
                         .zero_levels = 1U << 0 | 1U << 1,
                         .recomputes_some = true,
                         .selective = {LAYER_CORE_ATTENTION, LAYER_NORMS, LAYER_CORE_ATTENTION | LAYER_NORMS,
                                       LAYER_MLP, LAYER_NORMS | LAYER_MLP,
                                       LAYER_CORE_ATTENTION | LAYER_NORMS | LAYER_MLP}},
    [TARGET_TORCHTITAN] = {.name = "torchtitan",
                           .form = "configurations of torchtitan",
                           .stages = TARGET_ALIKE_STAGES,
                           .has_micro_batches = true,
                           .has_equal_shards = true,
                           .schedules = SCHEDULE(GPIPE) | SCHEDULE(1F1B) | SCHEDULE(INTERLEAVED),
                           .splits_layers = true,
                           .trainer = "torchtitan",
                           .zero_levels = 1U << 0 | 1U << 2 | 1U << 3,
                           .selective = {LAYER_LIGHT_OPERATORS}},
};

const TargetRow *target_row(Target target) {
    return &rows[target];
}

Target target_of_name(int32_t k) {
    if (k < TARGET_COUNT) return (Target)k;
    for (int32_t target = 0; target < TARGET_COUNT; target++)
        if (rows[target].alias && k-- == TARGET_COUNT) return (Target)target;
    return TARGET_COUNT;
}

const char *target_name(int32_t k) {
    Target target = target_of_name(k);
    if (target == TARGET_COUNT) return NULL;
    return k < TARGET_COUNT ? rows[target].name : rows[target].alias;
}

/* ---- plans ---- */

/* Returns whether two meshes have the same axes; their devices may differ. */
static bool is_alike(const Mesh *a, const Mesh *b) {
    if (a->axis_count != b->axis_count) return false;
    for (int32_t axis = 0; axis < a->axis_count; axis++)
        if (a->axes[axis].size != b->axes[axis].size || strcmp(a->axes[axis].name, b->axes[axis].name) != 0)
            return false;
    return true;
}

/* Checks the meshes of several stages. */
static AmStatus check_stages(const TargetRow *row, const Plan *plan, AmError *error) {
    if (row->stages == TARGET_ONE_STAGE)
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "%s cannot hold pipeline stages, and the plan has %d; search --for %s finds plans "
                       "that can be exported",
                       row->form, plan->stage_count, row->name);
    for (int32_t s = 1; s < plan->stage_count && row->stages == TARGET_ALIKE_STAGES; s++)
        if (!is_alike(&plan->stages[s].mesh, &plan->stages[0].mesh))
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s give all stages one mesh, and that of stage %d is another than that of stage "
                           "0; search --for %s finds plans that can be exported",
                           row->form, s, row->name);
    if (row->schedules >> plan_schedule(plan) & 1) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                   "%s have no schedule %s; search --for %s finds plans that can be exported", row->form,
                   plan->schedule, row->name);
}

/* Checks the number of micro-batches, and the devices of one mesh. */
static AmStatus check_one_stage(const TargetRow *row, const Plan *plan, AmError *error) {
    if (plan->micro_batches != 1 && !row->has_micro_batches)
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "%s cannot hold micro-batches, and the plan has %d; search --for %s finds plans that "
                       "can be exported",
                       row->form, plan->micro_batches, row->name);
    if (row->stages != TARGET_ONE_STAGE || plan->stage_count != 1) return AM_OK;
    const PlanStage *stage = &plan->stages[0];
    for (int32_t d = 0; d < stage->mesh.device_count; d++)
        if (stage->devices[d] != d)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s number devices in mesh order, and the plan has device %d at %d", row->form,
                           stage->devices[d], d);
    return AM_OK;
}

/* Checks the stages that keep optimizer state in the host's memory. */
static AmStatus check_offload(const TargetRow *row, const Plan *plan, AmError *error) {
    bool is_one = row->offload == TARGET_OFFLOADS_ONE_PROGRAM && plan->stage_count == 1 &&
                  plan->micro_batches == 1 && plan->stages[0].recompute.range_count == 0;
    for (int32_t s = 0; s < plan->stage_count && row->offload != TARGET_OFFLOADS && !is_one; s++)
        if (plan->stages[s].offloads_optimizer)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s cannot stream optimizer state from the host%s, and stage %d of the plan has "
                           "it there; search --for %s finds plans that can be exported",
                           row->form,
                           row->offload == TARGET_NO_OFFLOAD
                               ? ""
                               : " but for one stage and micro-batch without recomputation",
                           s, row->name);
    return AM_OK;
}

AmStatus target_check_plan(Target target, const Plan *plan, AmError *error) {
    const TargetRow *row = &rows[target];
    if (target != TARGET_AUTOMAP && plan->replicas.count > 0)
        return am_fail(
            error, AM_ERROR_INFEASIBLE, "",
            "%s cannot hold replicas with meshes of their own, and the plan has %d; search --for %s "
            "finds plans that can be exported",
            row->form, plan->replicas.count, row->name);
    TRY(check_offload(row, plan, error));
    if (plan->stage_count > 1) TRY(check_stages(row, plan, error));
    TRY(check_one_stage(row, plan, error));
    for (int32_t s = 0; s < plan->stage_count && row->has_equal_shards; s++) {
        const Mesh *mesh = &plan->stages[s].mesh;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (mesh->axes[axis].shares)
                return am_fail(error, AM_ERROR_INFEASIBLE, "",
                               "%s are even, and the plan has unequal shares on axis %s", row->form,
                               mesh->axes[axis].name);
    }
    return AM_OK;
}

/* ---- modules ---- */

/* Checks that the batch is the first dimension of each data input. */
static AmStatus check_batch(const PlanContext *primary, AmError *error) {
    for (int32_t p = 0; p < primary->roles->parameter_count; p++)
        if (micro_batches_dimension(primary, p) > 0)
            return am_fail(
                error, AM_ERROR_INFEASIBLE, primary->canonical->source,
                "automap_torch cuts batches along dimension 0, and the examples of %s are along "
                "dimension %d; export the model without batch_dim or with batch_dim=%d, or transpose "
                "the tensor in the loss",
                primary->roles->parameters[p].path, micro_batches_dimension(primary, p),
                micro_batches_dimension(primary, p));
    return AM_OK;
}

AmStatus target_check_module(Target target, const PlanContext *context, AmError *error) {
    const IrModule *module = plan_context_primary(context)->canonical;
    if (rows[target].has_leading_batch) TRY(check_batch(plan_context_primary(context), error));
    bool has_attention = false; /* a product of each head */
    const char *trainer = rows[target].trainer;
    if (!trainer) return AM_OK;
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        const IrDot *dot = instruction->attributes->dot;
        has_attention |= dot && dot->batch_count > 0;
        if (!instruction->attributes->convolution) continue;
        return am_fail(error, AM_ERROR_INFEASIBLE, module->source,
                       "%s trains transformers, and the module has the convolution %s", trainer,
                       instruction->op_name[0] ? instruction->op_name : instruction->name);
    }
    if (has_attention) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, module->source,
                   "%s trains transformers, and the module has no attention", trainer);
}
