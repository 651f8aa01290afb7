/* --state random: values derived from a parameter's use in the module.
 *
 * Weights of rank 2 or more are normal / sqrt(fan-in), where the fan-in is the product of the
 * dimensions that the first dot or convolution contracts; those of rank 1 are ones if they multiply
 * and zeros if they are added. Other state is zero. Integer data is uniform below the smallest
 * dimension that it indexes (a gather's, or the width of the one-hot with which it is compared),
 * floating data normal. Element i of parameter k is drawn from the counter (seed, k, i).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "executor/array/scalar64.h"
#include "executor/data/feed.h"

/* Properties of a value derived from its users, also through views. */
typedef struct Usage {
    double fan_in;       /* of the first dot or convolution; 0: none */
    int32_t first_scale; /* first multiply or divide, INT32_MAX: none */
    int32_t first_shift; /* first add or subtract */
    int64_t least_index; /* smallest dimension indexed, 0: none */
} Usage;

static bool keeps_values(IrOpcode opcode) {
    switch (opcode) {
    case IR_BITCAST:
    case IR_BROADCAST:
    case IR_CONVERT:
    case IR_COPY:
    case IR_OPT_BARRIER:
    case IR_RESHAPE:
    case IR_SLICE:
    case IR_TRANSPOSE: return true;
    default: return false;
    }
}

/* Operators that an index passes through on its way to a gather: JAX wraps
 * negative indices and appends coordinates. */
static bool keeps_indices(IrOpcode opcode) {
    return keeps_values(opcode) || opcode == IR_ADD || opcode == IR_SELECT || opcode == IR_CLAMP ||
           opcode == IR_CONCATENATE || opcode == IR_MAXIMUM || opcode == IR_MINIMUM;
}

static double product(const int64_t *dimensions, const int64_t *which, int32_t count) {
    double result = 1;
    for (int32_t k = 0; k < count; k++) result *= (double)dimensions[which[k]];
    return result;
}

static double fan_in(const IrModule *module, const IrInstruction *user, bool is_left) {
    const int64_t *dimensions = module->instructions[user->operands[is_left ? 0 : 1]].shape.dimensions;
    if (ir_is_matrix_product(user->opcode)) {
        const IrDot *dot = user->attributes->dot;
        return product(dimensions, is_left ? dot->lhs_contracting : dot->rhs_contracting,
                       dot->contracting_count);
    }
    const IrConvolution *form = user->attributes->convolution;
    const int64_t *kernel = module->instructions[user->operands[1]].shape.dimensions;
    return (double)kernel[form->kernel_input_feature] *
           product(kernel, form->kernel_spatial, form->spatial_count);
}

/* Returns the width of the one-hot that a compare makes: the other operand counts along a dimension. */
static int64_t one_hot_width(const IrModule *module, const IrInstruction *user, int32_t from) {
    int32_t other = user->operands[0] == from ? user->operands[1] : user->operands[0];
    const IrInstruction *instruction = &module->instructions[other];
    for (int32_t hops = 0; hops < 8 && keeps_values(instruction->opcode); hops++)
        instruction = &module->instructions[instruction->operands[0]];
    if (instruction->opcode != IR_IOTA || instruction->attributes->dimension_count != 1) return 0;
    return instruction->shape.dimensions[instruction->attributes->dimensions[0]];
}

static void note_index(Usage *usage, int64_t size) {
    if (size > 0 && (usage->least_index == 0 || size < usage->least_index)) usage->least_index = size;
}

/* Adds the evidence of one user; returns whether the user forwards the value. */
static bool note_user(Usage *usage, const IrModule *module, int32_t u, int32_t from, bool integer) {
    const IrInstruction *user = &module->instructions[u];
    if (ir_is_product(user->opcode)) {
        if (usage->fan_in == 0) usage->fan_in = fan_in(module, user, user->operands[0] == from);
        return false;
    }
    switch (user->opcode) {
    case IR_MULTIPLY:
    case IR_DIVIDE:
        if (u < usage->first_scale) usage->first_scale = u;
        return false;
    case IR_GATHER:
    case IR_SCATTER: {
        const IrGather *form = user->attributes->gather;
        const int64_t *operand = module->instructions[user->operands[0]].shape.dimensions;
        if (user->operand_count < 2 || user->operands[1] != from) return false;
        for (int32_t k = 0; k < form->index_map_count; k++)
            note_index(usage, operand[form->start_index_map[k]]);
        return false;
    }
    case IR_COMPARE: note_index(usage, one_hot_width(module, user, from)); return false;
    case IR_ADD:
    case IR_SUBTRACT:
        if (u < usage->first_shift) usage->first_shift = u;
        return integer && user->opcode == IR_ADD;
    default: return integer ? keeps_indices(user->opcode) : keeps_values(user->opcode);
    }
}

/* Follows a parameter forward through views (indices: through arithmetic too), in order. */
static AmStatus find_usage(Usage *usage, const IrModule *module, int32_t parameter, AmError *error) {
    const IrComputation *entry = &module->computations[module->entry];
    bool *reached = calloc((size_t)entry->count + 1, 1);
    if (!reached) return am_fail_memory(error, entry->count);
    bool integer = !dtype_is_floating(module->instructions[parameter].shape.type);
    *usage = (Usage){.first_scale = INT32_MAX, .first_shift = INT32_MAX};
    reached[parameter - entry->first] = true;
    for (int32_t u = parameter + 1; u < entry->first + entry->count; u++) {
        const IrInstruction *user = &module->instructions[u];
        for (int32_t k = 0; k < user->operand_count; k++)
            if (reached[user->operands[k] - entry->first] &&
                note_user(usage, module, u, user->operands[k], integer) && user->shape.type != DTYPE_TUPLE)
                reached[u - entry->first] = true;
    }
    free(reached);
    return AM_OK;
}

typedef enum Draw { DRAW_ZERO, DRAW_ONE, DRAW_NORMAL, DRAW_UNIFORM } Draw;

/* Returns the distribution of a parameter: zeros for states, normal numbers for weights, scales of 1, shifts
 * of 0. */
static Draw choose_distribution(const IrParameter *parameter, const IrShape *shape, const Usage *usage) {
    bool floating = dtype_is_floating(shape->type);
    if (parameter->role == IR_ROLE_OPTIMIZER || parameter->role == IR_ROLE_STATE) return DRAW_ZERO;
    if (!floating) return parameter->role == IR_ROLE_DATA ? DRAW_UNIFORM : DRAW_ZERO;
    if (parameter->role == IR_ROLE_DATA || shape->rank >= 2) return DRAW_NORMAL;
    return usage->first_scale < usage->first_shift ? DRAW_ONE : DRAW_ZERO;
}

AmStatus feed_draw(void *data, const PlanContext *context, int32_t number, uint64_t seed, AmError *error) {
    context = plan_context_source(context); /* the same values whatever the micro-batches */
    const IrParameter *parameter = &context->roles->parameters[number];
    const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
    Usage usage = {0};
    if (!scalar64_supports(shape->type))
        return am_fail(error, AM_ERROR_INPUT, context->canonical->source,
                       "cannot draw '%s': %s has no arithmetic", parameter->path, dtype_name(shape->type));
    TRY(find_usage(&usage, context->canonical, parameter->instruction, error));
    Draw draw = choose_distribution(parameter, shape, &usage);
    double scale = parameter->role != IR_ROLE_DATA && usage.fan_in > 0 ? 1 / sqrt(usage.fan_in) : 1;
    uint64_t bound = usage.least_index > 0 ? (uint64_t)usage.least_index : 2;
    Scalar64Kind kind = draw == DRAW_UNIFORM ? SCALAR64_UNSIGNED : SCALAR64_FLOATING;
    int64_t elements = ir_shape_elements(shape), bytes = dtype_bytes(shape->type);
    for (int64_t i = 0; i < elements; i++) {
        Scalar64 value = {.floating = draw == DRAW_ONE ? 1 : 0};
        if (draw == DRAW_NORMAL)
            value.floating = scale * random_normal_at(seed, (uint64_t)number, (uint64_t)i);
        if (draw == DRAW_UNIFORM) value.as_unsigned = random_at(seed, (uint64_t)number, (uint64_t)i) % bound;
        scalar64_store((char *)data + i * bytes, shape->type, &value, kind, 1, 1);
    }
    return AM_OK;
}

AmStatus feed_index_limit(int64_t *limit, const PlanContext *context, int32_t number, AmError *error) {
    const IrModule *module = plan_context_source(context)->canonical;
    const IrComputation *entry = &module->computations[module->entry];
    int32_t parameter = plan_context_source(context)->roles->parameters[number].instruction;
    Usage usage = {0};
    bool *reached = calloc((size_t)entry->count + 1, 1);
    if (!reached) return am_fail_memory(error, entry->count);
    reached[parameter - entry->first] = true;
    for (int32_t u = parameter + 1; u < entry->first + entry->count; u++) {
        const IrInstruction *user = &module->instructions[u];
        for (int32_t k = 0; k < user->operand_count; k++) {
            if (!reached[user->operands[k] - entry->first]) continue;
            int32_t from = user->operands[k];
            if (user->opcode == IR_COMPARE) note_index(&usage, one_hot_width(module, user, from));
            if (user->opcode == IR_GATHER && user->operands[1] == from) {
                const IrGather *form = user->attributes->gather;
                const int64_t *operand = module->instructions[user->operands[0]].shape.dimensions;
                if (form->index_map_count == 1) note_index(&usage, operand[form->start_index_map[0]]);
            }
            if (user->opcode != IR_CONCATENATE && keeps_indices(user->opcode) &&
                user->shape.type != DTYPE_TUPLE)
                reached[u - entry->first] = true;
        }
    }
    free(reached);
    *limit = usage.least_index;
    return AM_OK;
}
