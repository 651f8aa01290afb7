/* Phases: forward, backward, optimizer.
 *
 * Forward is what the loss depends on. What remains of the ancestors of the new
 * weights and optimizer states is backward up to the gradients and optimizer
 * after them. The boundary is found in the update region of each weight: the
 * element-wise instructions and views of its dimensions that lead to its new
 * value and to those of its optimizer states. Values that enter the region from
 * elsewhere (a dot, a reduction, a transpose, a scatter) carry the gradient. If
 * they are one value, that is the gradient and the region is optimizer. If they
 * are several (a table used twice), the gradient is the first instruction that
 * all of them pass through; the sum before it is backward.
 *
 * Also optimizer: what depends on optimizer state or on an optimizer
 * instruction (trust ratios), and what only optimizer instructions use and no
 * forward value enters (rates, bias corrections, counters). The norm of global
 * clipping is backward, scaling by it is optimizer.
 *
 * Instructions of other outputs are forward (metrics, running statistics)
 * unless they follow a gradient. All passes are linear.
 */
#include "ir/phases.h"

typedef struct Phases {
    const IrDataflow *flow;
    const IrModule *module;
    const bool *forward;
    IrPhase *phases;
    bool *updates;         /* ancestors of new weights and optimizer states that are not forward */
    bool *is_output;       /* the new value of a weight or optimizer state */
    bool *follows_state;   /* depends on optimizer state */
    bool *follows_forward; /* depends on a forward instruction or on data */
    bool *free;            /* depends on no parameter */
    /* update regions */
    bool *region;
    int32_t *groups;     /* union-find over the region */
    int32_t *last_use;   /* last region instruction that takes the value; INT32_MAX: an output */
    bool *gradient;      /* of the region: follows a value that enters it */
    int32_t *entering;   /* per group: the value that enters; -1 none, -2 several */
    int32_t *open_until; /* per group: last use of the gradient values so far */
    int32_t *cuts;       /* per group: the gradient, if several values enter; -1 none */
} Phases;

/* Phase of an instruction that only hands on values, from its users: the earliest. */
static bool is_plumbing(const IrInstruction *instruction) {
    return instruction->opcode == IR_TUPLE || instruction->opcode == IR_GET_TUPLE_ELEMENT ||
           instruction->opcode == IR_OPT_BARRIER;
}

static bool is_region_operator(const IrInstruction *instruction) {
    return ir_is_elementwise(instruction->opcode) || instruction->opcode == IR_RESHAPE ||
           instruction->opcode == IR_BITCAST;
}

static int32_t find_group(const Phases *work, int32_t value) {
    while (work->groups[value] != value) {
        work->groups[value] = work->groups[work->groups[value]];
        value = work->groups[value];
    }
    return value;
}

/* Operand k of a region instruction, if it has the region's dimensions, else -1. */
static int32_t region_operand(const Phases *work, int32_t value, int32_t k) {
    const IrInstruction *instruction = &work->module->instructions[value];
    int32_t operand = ir_dataflow_operand(work->flow, instruction, k);
    const IrShape *shape = &work->module->instructions[operand].shape;
    return shape->type != DTYPE_PRED && ir_same_dimensions(shape, &instruction->shape) ? operand : -1;
}

/* A value from outside that carries a gradient into a region. */
static bool carries_gradient(const Phases *work, int32_t value) {
    const IrInstruction *instruction = &work->module->instructions[value];
    return !work->free[value] && !work->follows_state[value] && instruction->opcode != IR_PARAMETER &&
           instruction->opcode != IR_BROADCAST;
}

static void grow_regions(Phases *work) {
    for (int32_t i = work->flow->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &work->module->instructions[i];
        if (work->is_output[i] && work->updates[i] && is_region_operator(instruction)) work->region[i] = true;
        for (int32_t k = 0; work->region[i] && k < instruction->operand_count; k++) {
            int32_t operand = region_operand(work, i, k);
            if (operand < 0) continue;
            if (work->last_use[operand] < i) work->last_use[operand] = i;
            if (!work->updates[operand] || !is_region_operator(&work->module->instructions[operand]))
                continue;
            work->region[operand] = true;
            work->groups[find_group(work, operand)] = find_group(work, i);
        }
        if (work->is_output[i]) work->last_use[i] = INT32_MAX;
    }
}

/* Which region instructions follow a gradient, and what enters each group. */
static void follow_gradients(Phases *work) {
    for (int32_t i = 0; i < work->flow->count; i++) {
        if (!work->region[i]) continue;
        int32_t group = find_group(work, i);
        for (int32_t k = 0; k < work->module->instructions[i].operand_count; k++) {
            int32_t operand = region_operand(work, i, k);
            if (operand < 0) continue;
            if (work->region[operand]) {
                work->gradient[i] |= work->gradient[operand];
            } else if (carries_gradient(work, operand)) {
                work->gradient[i] = true;
                if (work->entering[group] == -1) work->entering[group] = operand;
                else if (work->entering[group] != operand) work->entering[group] = -2;
                if (work->open_until[group] < work->last_use[operand])
                    work->open_until[group] = work->last_use[operand];
            }
        }
    }
}

/* The first gradient instruction of a group after which no earlier one is used. */
static void find_cuts(Phases *work) {
    for (int32_t i = 0; i < work->flow->count; i++) {
        if (!work->region[i] || !work->gradient[i]) continue;
        int32_t group = find_group(work, i);
        if (work->cuts[group] >= 0 || work->entering[group] != -2) continue;
        if (work->open_until[group] <= i && !work->is_output[i]) work->cuts[group] = i;
        if (work->open_until[group] < work->last_use[i]) work->open_until[group] = work->last_use[i];
    }
}

static bool has_optimizer_operand(const Phases *work, const IrInstruction *instruction) {
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = ir_dataflow_operand(work->flow, instruction, k);
        if (work->updates[operand] && work->phases[operand] == IR_PHASE_OPTIMIZER) return true;
    }
    return false;
}

/* Without a single gradient in the group: mixing with a parameter starts the optimizer. */
static bool mixes_with_parameter(const Phases *work, int32_t value) {
    for (int32_t k = 0; k < work->module->instructions[value].operand_count; k++) {
        int32_t operand = region_operand(work, value, k);
        if (operand >= 0 && work->module->instructions[operand].opcode == IR_PARAMETER) return true;
    }
    return false;
}

static IrPhase phase_of_update(const Phases *work, int32_t value) {
    if (work->follows_state[value] || has_optimizer_operand(work, &work->module->instructions[value]))
        return IR_PHASE_OPTIMIZER;
    if (!work->region[value]) return IR_PHASE_BACKWARD;
    int32_t group = find_group(work, value);
    if (!work->gradient[value] || work->entering[group] != -2) return IR_PHASE_OPTIMIZER;
    if (work->cuts[group] >= 0) return value > work->cuts[group] ? IR_PHASE_OPTIMIZER : IR_PHASE_BACKWARD;
    return mixes_with_parameter(work, value) ? IR_PHASE_OPTIMIZER : IR_PHASE_BACKWARD;
}

/* What is neither forward nor an update, for an output of its own. */
static IrPhase phase_of_other_output(const Phases *work, int32_t value) {
    const IrInstruction *instruction = &work->module->instructions[value];
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        IrPhase phase = work->phases[ir_dataflow_operand(work->flow, instruction, k)];
        if (phase == IR_PHASE_BACKWARD || phase == IR_PHASE_OPTIMIZER) return IR_PHASE_OPTIMIZER;
    }
    return work->follows_forward[value] || work->free[value] ? IR_PHASE_FORWARD : IR_PHASE_OPTIMIZER;
}

/* Rates and broadcasts of constants belong to the optimizer if nothing else uses them. */
static void hand_back_rates(Phases *work, bool *used_elsewhere) {
    for (int32_t i = work->flow->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &work->module->instructions[i];
        if (work->updates[i] && work->phases[i] == IR_PHASE_BACKWARD && !used_elsewhere[i] &&
            !work->follows_forward[i])
            work->phases[i] = IR_PHASE_OPTIMIZER;
        if (work->phases[i] == IR_PHASE_OPTIMIZER) continue;
        if (work->phases[i] == IR_PHASE_OTHER) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            used_elsewhere[ir_dataflow_operand(work->flow, instruction, k)] = true;
    }
}

/* Tuples and their elements take the earliest phase among their users. */
static void settle_plumbing(Phases *work) {
    for (int32_t i = work->flow->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &work->module->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            if (!is_plumbing(&work->module->instructions[operand])) continue;
            if (work->phases[i] < work->phases[operand]) work->phases[operand] = work->phases[i];
        }
    }
}

static void mark_inputs(Phases *work, const IrRoles *roles) {
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        bool updates_weight = parameter->role == IR_ROLE_WEIGHT || parameter->role == IR_ROLE_OPTIMIZER;
        if (updates_weight && parameter->output >= 0)
            work->is_output[work->flow->output_values[parameter->output]] = true;
        bool is_state = parameter->role == IR_ROLE_OPTIMIZER || parameter->role == IR_ROLE_STATE;
        work->follows_state[parameter->instruction] = is_state && !work->forward[parameter->instruction];
        work->follows_forward[parameter->instruction] = parameter->role == IR_ROLE_DATA;
    }
    for (int32_t i = 0; i < work->flow->count; i++) {
        const IrInstruction *instruction = &work->module->instructions[i];
        bool is_parameter = instruction->opcode == IR_PARAMETER;
        work->free[i] = !is_parameter;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(work->flow, instruction, k);
            work->free[i] &= work->free[operand];
            work->follows_state[i] |= work->follows_state[operand];
            work->follows_forward[i] |= work->follows_forward[operand];
        }
        work->follows_forward[i] |= work->forward[i] && !is_parameter && !work->free[i];
    }
}

AmStatus ir_find_phases(IrRoles *roles, Arena *arena, const IrDataflow *flow, const bool *forward,
                        AmError *error) {
    int32_t count = flow->count;
    roles->phases = ARENA_ARRAY(arena, IrPhase, count);
    Phases work = {.flow = flow,
                   .module = flow->module,
                   .forward = forward,
                   .phases = roles->phases,
                   .updates = ARENA_ARRAY(arena, bool, count),
                   .is_output = ARENA_ARRAY(arena, bool, count),
                   .follows_state = ARENA_ARRAY(arena, bool, count),
                   .follows_forward = ARENA_ARRAY(arena, bool, count),
                   .free = ARENA_ARRAY(arena, bool, count),
                   .region = ARENA_ARRAY(arena, bool, count),
                   .groups = ARENA_ARRAY(arena, int32_t, count),
                   .last_use = ARENA_ARRAY(arena, int32_t, count),
                   .gradient = ARENA_ARRAY(arena, bool, count),
                   .entering = ARENA_ARRAY(arena, int32_t, count),
                   .open_until = ARENA_ARRAY(arena, int32_t, count),
                   .cuts = ARENA_ARRAY(arena, int32_t, count)};
    bool *live = ARENA_ARRAY(arena, bool, count), *used_elsewhere = ARENA_ARRAY(arena, bool, count);
    if (arena->failed) return am_fail_memory(error, (int64_t)count * 48);
    for (int32_t i = 0; i < count; i++) {
        work.groups[i] = i;
        work.entering[i] = work.open_until[i] = work.cuts[i] = work.last_use[i] = -1;
        work.phases[i] = IR_PHASE_OTHER;
    }
    mark_inputs(&work, roles);
    for (int32_t i = 0; i < count; i++) work.updates[i] = work.is_output[i];
    ir_dataflow_mark_ancestors(flow, work.updates);
    for (int32_t i = 0; i < count; i++)
        work.updates[i] &= !forward[i] && flow->module->instructions[i].opcode != IR_PARAMETER;
    for (int32_t k = 0; k < flow->output_count; k++) live[flow->output_values[k]] = true;
    ir_dataflow_mark_ancestors(flow, live);
    grow_regions(&work);
    follow_gradients(&work);
    find_cuts(&work);
    for (int32_t i = 0; i < count; i++) {
        IrOpcode opcode = flow->module->instructions[i].opcode;
        if (!live[i] || opcode == IR_PARAMETER || opcode == IR_CONSTANT) continue;
        if (forward[i]) work.phases[i] = IR_PHASE_FORWARD;
        else if (work.updates[i]) work.phases[i] = phase_of_update(&work, i);
        else work.phases[i] = phase_of_other_output(&work, i);
    }
    hand_back_rates(&work, used_elsewhere);
    settle_plumbing(&work);
    return AM_OK;
}
