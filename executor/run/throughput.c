/* The number of examples and tokens of a batch, by role, rank and type of the parameters. */
#include "executor/run/throughput.h"

void throughput_of_batch(const PlanContext *context, int64_t *examples, int64_t *tokens) {
    const IrRoles *roles = context->roles;
    *examples = *tokens = 0;
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrParameter *parameter = &roles->parameters[k];
        const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
        if (parameter->role != IR_ROLE_DATA || shape->rank == 0) continue;
        if (*examples == 0) *examples = shape->dimensions[0];
        int64_t elements = ir_shape_elements(shape);
        if (shape->rank == 2 && dtype_is_integer(shape->type) && elements > *tokens) *tokens = elements;
    }
}
