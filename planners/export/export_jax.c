/* A plan for JAX; see export_jax.h.
 *
 * Entry d of a spec lists the mesh axes that split dimension d, major first, or is null. An output
 * that updates a parameter has the parameter's sharding, so that a step's result can be passed to
 * the next step unchanged.
 */
#include "planners/export/export_jax.h"

#include "lowering/spmd/lower.h"
#include "planners/targets/target_checks.h"

/* The spec of an instruction's result, even by refusal. */
static AmStatus spec_to_json(json_t **spec, const Mesh *mesh, SbpState state,
                             const IrInstruction *instruction, AmError *error) {
    const IrShape *shape = &instruction->shape;
    TRY(target_check_even(TARGET_JAX, mesh, state, instruction, error));
    *spec = json_array();
    int32_t rank = shape->type == DTYPE_TUPLE ? 0 : shape->rank;
    for (int32_t d = 0; d < rank; d++) {
        json_t *axes = json_array();
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (state.axis[axis] == sbp_split(d))
                json_array_append_new(axes, json_string(mesh->axes[axis].name));
        if (json_array_size(axes) == 0) {
            json_decref(axes);
            axes = json_null();
        }
        json_array_append_new(*spec, axes);
    }
    return AM_OK;
}

static AmStatus add_rows(json_t *parameters, json_t *outputs, const PlanContext *context,
                         const Assignment *assignment, AmError *error) {
    const Mesh *mesh = &assignment->stage->mesh;
    const IrRoles *roles = context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        json_t *spec;
        TRY(spec_to_json(&spec, mesh, assignment->stored[i], &context->canonical->instructions[i], error));
        json_t *path = json_string(roles->parameters[p].path);
        json_array_append_new(parameters, json_pack("{s:i, s:o, s:o}", "number", p, "path",
                                                    path ? path : json_string(""), "spec", spec));
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        int32_t i = target_output_source(context, k);
        json_t *spec;
        TRY(spec_to_json(&spec, mesh, assignment->stored[i], &context->canonical->instructions[i], error));
        json_array_append_new(outputs, json_pack("{s:i, s:o}", "index", k, "spec", spec));
    }
    return AM_OK;
}

AmStatus export_jax(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    TRY(target_check_plan(TARGET_JAX, plan, error));
    const Mesh *mesh = &plan->stages[0].mesh;
    Arena arena = {0};
    Assignment *assignment;
    json_t *parameters = json_array(), *outputs = json_array(), *shape = json_array(), *names = json_array();
    AmStatus status;
    TRY_OR_FAIL(plan_assign(&assignment, &arena, context, &plan->stages[0], error));
    TRY_OR_FAIL(target_check_pools(TARGET_JAX, context, assignment->stored, error));
    TRY_OR_FAIL(add_rows(parameters, outputs, context, assignment, error));
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        json_array_append_new(shape, json_integer(mesh->axes[axis].size));
        json_array_append_new(names, json_string(mesh->axes[axis].name));
    }
    *root = json_pack("{s:s, s:{s:O, s:O}, s:O, s:O}", "format", "automap-jax-1", "mesh", "shape", shape,
                      "axis_names", names, "parameters", parameters, "outputs", outputs);
    if (!*root) status = am_fail_memory(error, 0);
fail:
    json_decref(parameters);
    json_decref(outputs);
    json_decref(shape);
    json_decref(names);
    arena_free(&arena);
    return status;
}
