/* A plan for PyTorch.
 *
 * A stage has a device mesh of its own, whose ranks are devices of the cluster, and the parameters
 * that it owns, each with one placement per mesh dimension: Shard(d) or Replicate(), major first,
 * as in DTensor. If stages are in chunks the rows are chunks: number c S + s is chunk c of stage s,
 * as the looped schedules of torch.distributed.pipelining count them. A row contains the beginning
 * of its part: the operator and the first weight after the cut.
 */
#include "planners/export/export_dtensor.h"

#include "lowering/micro_batch/micro_batches.h"
#include "lowering/plan_file/plan_parts.h"
#include "lowering/spmd/ranks.h"
#include "planners/baselines/layer_path.h"
#include "planners/targets/target_checks.h"
#include "propagation/assign/storage.h"

/* Names of get_schedule_class() in torch.distributed.pipelining.schedules. */
static const char *const schedules[SCHEDULE_KINDS] = {
    [SCHEDULE_GPIPE] = "GPipe", [SCHEDULE_1F1B] = "1F1B", [SCHEDULE_INTERLEAVED] = "Interleaved1F1B"};

const char *export_torch_schedule(ScheduleKind kind) {
    return schedules[kind];
}

/* Writes one placement for each axis of the mesh. */
static AmStatus placements_to_json(json_t **placements, const Mesh *mesh, SbpState state,
                                   const IrInstruction *instruction, AmError *error) {
    TRY(target_check_even(TARGET_TORCH, mesh, state, instruction, error));
    *placements = json_array();
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        if (sbp_is_split(state.axis[axis]))
            json_array_append_new(*placements, json_sprintf("Shard(%d)", sbp_dimension(state.axis[axis])));
        else json_array_append_new(*placements, json_string("Replicate()"));
    }
    return AM_OK;
}

static json_t *mesh_to_json(const PlanStage *stage) {
    json_t *shape = json_array(), *names = json_array(), *ranks = json_array();
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        json_array_append_new(shape, json_integer(stage->mesh.axes[axis].size));
        json_array_append_new(names, plan_string_to_json(stage->mesh.axes[axis].name));
    }
    for (int32_t d = 0; d < stage->mesh.device_count; d++)
        json_array_append_new(ranks, json_integer(stage->devices[d]));
    return json_pack("{s:o, s:o, s:o}", "ranks", ranks, "shape", shape, "dim_names", names);
}

static AmStatus add_parameters(json_t *parameters, const PlanRanks *ranks, int32_t part, AmError *error) {
    const PlanContext *context = ranks->context;
    const Assignment *assignment = ranks->assignments[part];
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        json_t *placements;
        if (ranks->map && ranks->map->owner[p] != part) continue;
        TRY(placements_to_json(&placements, &assignment->stage->mesh,
                               assignment->stored[parameter->instruction],
                               plan_context_instruction(context, parameter->instruction), error));
        json_t *row =
            json_pack("{s:i, s:o, s:s, s:o}", "number", p, "path", plan_string_to_json(parameter->path),
                      "role", ir_role_name(parameter->role), "placements", placements);
        if (parameter->role == IR_ROLE_DATA) { /* a loss can be traced before it has a batch */
            const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
            json_t *sizes = json_array();
            for (int32_t d = 0; d < shape->rank; d++)
                json_array_append_new(sizes, json_integer(shape->dimensions[d]));
            json_object_set_new(row, "shape", sizes);
            json_object_set_new(row, "dtype", json_string(dtype_name(shape->type)));
            json_object_set_new(row, "batch_dimension",
                                parameter->moved_from < 0 ? json_null()
                                                          : json_integer(parameter->moved_from));
        }
        json_array_append_new(parameters, row);
    }
    return AM_OK;
}

/* Returns the operator and source at an instruction of the module as read. */
static json_t *place_to_json(const PlanContext *primary, int32_t instruction) {
    int32_t named = layer_first_operator(primary, instruction);
    const IrInstruction *at = named >= 0 ? plan_context_instruction(primary, named) : NULL;
    return json_pack("{s:i, s:o, s:o, s:o}", "instruction", instruction, "op_name",
                     plan_string_to_json(at ? at->op_name : ""), "source",
                     at ? plan_source_to_json(at) : json_string(""), "weight",
                     plan_string_to_json(layer_first_weight(primary, instruction)));
}

/* Returns the operators in recomputed ranges whose values are saved nevertheless. */
static json_t *saved_to_json(const PlanContext *primary, const PlanStage *part) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < part->recompute.saved_count; k++)
        json_array_append_new(rows, place_to_json(primary, part->recompute.saved[k]));
    return rows;
}

/* Returns the ranges that the part recomputes in the backward pass: begin and end of each. */
static json_t *recomputed_to_json(const PlanContext *primary, const PlanStage *part) {
    json_t *rows = json_array();
    for (int32_t r = 0; r < part->recompute.range_count; r++)
        json_array_append_new(rows, json_pack("{s:o, s:o}", "begins",
                                              place_to_json(primary, part->recompute.ranges[r][0]), "ends",
                                              place_to_json(primary, part->recompute.ranges[r][1])));
    return rows;
}

/* Adds the pinned values of a stage: the last instruction of each operator of PyTorch has its result. */
static AmStatus add_pinned(json_t *rows, const PlanContext *context, const PlanStage *stage, AmError *error) {
    const PlanContext *primary = plan_context_primary(context);
    for (int32_t k = 0; k < stage->override_count; k++) {
        const PlanOverride *override = &stage->overrides[k];
        int32_t value = override->is_pinned ? plan_number_of(context, override->instruction) : -1;
        if (value < 0 || value >= primary->rules->entry_count) continue;
        const IrInstruction *instruction = plan_context_instruction(primary, value);
        json_t *placements, *last = json_array_get(rows, json_array_size(rows) - 1);
        if (!instruction->op_name[0])
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "the plan pins the value of %s, which has no name in PyTorch; leave out its pin",
                           instruction->name);
        TRY(placements_to_json(&placements, &stage->mesh, override->states, instruction, error));
        if (last && strcmp(json_string_value(json_object_get(last, "op_name")), instruction->op_name) == 0)
            json_array_remove(rows, json_array_size(rows) - 1);
        json_array_append_new(rows, json_pack("{s:o, s:i, s:o}", "op_name",
                                              plan_string_to_json(instruction->op_name), "rank",
                                              instruction->shape.rank, "placements", placements));
    }
    return AM_OK;
}

static AmStatus add_parts(json_t *rows, const PlanRanks *ranks, AmError *error) {
    const PlanContext *primary = plan_context_primary(ranks->context);
    for (int32_t part = 0; part < ranks->parts->stage_count; part++) {
        const PlanStage *stage = &ranks->parts->stages[part];
        json_t *parameters = json_array(), *pinned = json_array();
        json_array_append_new(
            rows, json_pack("{s:i, s:o, s:b, s:o, s:o, s:o, s:O, s:O}", "index", part, "device_mesh",
                            mesh_to_json(stage), "sharded_gradients", storage_zero_level(stage) >= 2,
                            "begins", place_to_json(primary, stage->ranges[0][0]), "recompute",
                            recomputed_to_json(primary, stage), "saved", saved_to_json(primary, stage),
                            "pinned", pinned, "parameters", parameters));
        AmStatus status = add_parameters(parameters, ranks, part, error);
        if (status == AM_OK) status = add_pinned(pinned, ranks->context, stage, error);
        json_decref(parameters);
        json_decref(pinned);
        TRY(status);
    }
    return AM_OK;
}

/* Finds whether examples depend on one another in the parts that ranks and micro-batches have of the
 * batch. */
static AmStatus find_mixing(bool *mixes, const PlanRanks *ranks, const Plan *plan, AmError *error) {
    const PlanContext *context = ranks->context;
    const Mesh *mesh = &plan->stages[0].mesh;
    int64_t parts = plan->micro_batches;
    *mixes = false;
    if (ranks->parts->stage_count > 1) return AM_OK; /* the graph of the loss runs on all examples */
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        bool is_split = false;
        for (int32_t p = 0; p < context->roles->parameter_count; p++) {
            const IrParameter *parameter = &context->roles->parameters[p];
            SbpState stored = ranks->assignments[0]->stored[parameter->instruction];
            is_split |= parameter->role == IR_ROLE_DATA && sbp_is_split(stored.axis[axis]);
        }
        if (is_split) parts *= mesh->axes[axis].size;
    }
    if (parts == 1 || parts > MICRO_BATCHES_MOST) return AM_OK;
    AmError why = {0};
    AmStatus status = micro_batches_check_apart(plan_context_primary(context), (int32_t)parts, &why);
    *mixes = status == AM_ERROR_INFEASIBLE || status == AM_ERROR_INPUT; /* or loops are nested too deeply */
    if (*mixes || status == AM_OK) return AM_OK;
    if (error) *error = why;
    return status;
}

AmStatus export_dtensor(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    Arena arena = {0};
    PlanRanks ranks;
    json_t *rows = json_array();
    bool mixes;
    AmStatus status;
    TRY_OR_FAIL(target_check_module(TARGET_TORCH, context, error));
    TRY_OR_FAIL(target_check_plan(TARGET_TORCH, plan, error));
    if (plan->micro_batches > 1 && plan->stage_count > 1) /* automap_torch computes with one at a time */
        TRY_OR_FAIL(micro_batches_check_apart(plan_context_primary(context), plan->micro_batches, error));
    else if (plan->micro_batches > 1)
        TRY_OR_FAIL(micro_batches_check_data(plan_context_primary(context), plan->micro_batches, error));
    TRY_OR_FAIL(plan_ranks(&ranks, &arena, context, plan, error));
    TRY_OR_FAIL(add_parts(rows, &ranks, error));
    TRY_OR_FAIL(find_mixing(&mixes, &ranks, plan, error));
    bool is_pipeline = plan->stage_count > 1;
    *root = json_pack("{s:s, s:o, s:i, s:b, s:O}", "format", "automap-dtensor-1", "schedule",
                      is_pipeline ? json_string(schedules[plan_schedule(plan)]) : json_null(),
                      "n_microbatches", plan->micro_batches, "mixes_examples", mixes, "stages", rows);
    if (!*root) status = am_fail_memory(error, 0);
fail:
    json_decref(rows);
    arena_free(&arena);
    return status;
}
