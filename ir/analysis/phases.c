/* Phases: forward, recomputed, backward, optimizer.
 *
 * The loss depends on forward instructions only. The remaining ancestors of the new weights and
 * optimizer states are backward up to the gradients, and optimizer after them. The boundary is
 * found in the update region of each weight: the element-wise instructions and views of its
 * dimensions that lead to its new value and to those of its optimizer states. Values that enter the
 * region from outside (a dot, a reduction, a transpose, a scatter) carry the gradient. A single
 * such value is the gradient, and the region is optimizer; views that give it the weight's type and
 * shape are part of it. If there are several (a table used twice), the gradient is the first
 * instruction through which all of them pass. Ancestors of a gradient are backward. The norms of
 * clipping and trust ratios depend on gradients and are optimizer.
 *
 * An instruction whose op_name contains jvp, transpose or a rematted computation is backward too. A
 * name without these words is no evidence, since sums of micro-batches have none of them. In a body
 * whose names have none of them, the names of its loop apply.
 *
 * Rates and bias corrections are optimizer if they have no other users. Instructions of other
 * outputs (metrics, running statistics) are forward unless they depend on a gradient. Bodies of
 * loops have phases too, also if a body updates weights; the loop has the first phase of its body.
 * Recomputed instructions are found last, by value (ir/analysis/recomputed.h). The analysis takes linear
 * time.
 */
#include "ir/analysis/phases.h"

#include <string.h>

#include "base/union_find.h"
#include "ir/analysis/recomputed.h"

/* The branches of a conditional that are searched for an update. */
#define MAX_BRANCHES 64

enum { NO_ENTRY = -1, SEVERAL_ENTRIES = -2 };

typedef struct Phases {
    const IrFlowGraph *graph;
    const IrDataflow *flow;
    const IrModule *module;
    const bool *forward;
    IrPhase *phases;
    bool *in_update;       /* ancestors of new weights and optimizer states that are not forward */
    bool *is_output;       /* the new value of a weight or optimizer state */
    bool *is_weight;       /* the new value of a weight */
    bool *follows_state;   /* depends on optimizer state, except for a scale of the loss */
    bool *follows_forward; /* depends on a forward instruction or on data */
    bool *follows_work;    /* depends on more than moved parameters */
    bool *is_independent;  /* depends on no parameter */
    bool *named_bodies;    /* [computation]: its loop is named as part of a derivative */
    bool *before_gradient; /* gradients and their ancestors */
    /* Update regions. */
    bool *in_region;
    int32_t *group;         /* union-find over the region */
    int32_t *last_use;      /* the last region instruction that reads the value; INT32_MAX: an output */
    bool *follows_gradient; /* of the region: depends on a value that enters it with a gradient */
    int32_t *entry;         /* [group]: the value by which a gradient enters, or NO_ENTRY, SEVERAL_ENTRIES */
    int32_t *live_until;    /* [group]: the last use of the gradient values so far */
    int32_t *boundary;      /* [group]: the gradient, if several values enter; -1: none */
    int32_t *new_weight;    /* [group]: the new weight, or -1 */
} Phases;

/* Returns whether an operator keeps the elements and changes their type or shape alone. */
static bool is_view(const IrInstruction *instruction) {
    return instruction->opcode == IR_CONVERT || ir_opcode_has(instruction->opcode, FACT_VIEW);
}

static bool may_be_in_region(const IrInstruction *instruction) {
    return ir_is_elementwise(instruction->opcode) || is_view(instruction);
}

/* Returns operand k of a region instruction, if it has the region's elements, else -1. */
static int32_t region_operand(const Phases *work, int32_t value, int32_t k) {
    const IrInstruction *instruction = &work->module->instructions[value];
    int32_t operand = ir_dataflow_operand(work->flow, instruction, k);
    const IrShape *shape = &work->module->instructions[operand].shape;
    if (shape->type == DTYPE_PRED || shape->type == DTYPE_TUPLE) return -1;
    return is_view(instruction) || ir_same_dimensions(shape, &instruction->shape) ? operand : -1;
}

/* Grows the update regions from the outputs to their operands, and joins the values of a region. */
static void grow_regions(Phases *work) {
    for (int32_t i = work->graph->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &work->module->instructions[i];
        if (work->is_output[i] && work->in_update[i] && may_be_in_region(instruction)) {
            work->in_region[i] = true;
            int32_t group = union_find_root(work->group, i);
            if (work->is_weight[i] && work->new_weight[group] < 0) work->new_weight[group] = i;
        }
        for (int32_t k = 0; work->in_region[i] && k < instruction->operand_count; k++) {
            int32_t operand = region_operand(work, i, k);
            if (operand < 0) continue;
            if (work->last_use[operand] < i) work->last_use[operand] = i;
            if (!work->in_update[operand] || !may_be_in_region(&work->module->instructions[operand]))
                continue;
            work->in_region[operand] = true;
            int32_t from = union_find_root(work->group, operand), to = union_find_root(work->group, i);
            if (from == to) continue;
            if (work->new_weight[to] < 0) work->new_weight[to] = work->new_weight[from];
            work->group[from] = to;
        }
        if (work->is_output[i]) work->last_use[i] = INT32_MAX;
    }
}

/* Finds the instructions of the region that follow a gradient, and the values that enter each group. */
static void follow_gradients(Phases *work) {
    for (int32_t i = 0; i < work->graph->count; i++) {
        if (!work->in_region[i]) continue;
        int32_t group = union_find_root(work->group, i);
        for (int32_t k = 0; k < work->module->instructions[i].operand_count; k++) {
            int32_t operand = region_operand(work, i, k);
            if (operand < 0) continue;
            if (work->in_region[operand]) {
                work->follows_gradient[i] |= work->follows_gradient[operand];
            } else if (work->follows_work[operand] && !work->follows_state[operand] &&
                       work->module->instructions[operand].opcode != IR_BROADCAST) {
                work->follows_gradient[i] = true; /* it comes from outside */
                if (work->entry[group] == NO_ENTRY) work->entry[group] = operand;
                else if (work->entry[group] != operand) work->entry[group] = SEVERAL_ENTRIES;
                if (work->live_until[group] < work->last_use[operand])
                    work->live_until[group] = work->last_use[operand];
            }
        }
    }
}

/* Returns whether the value combines its gradient with a parameter, which begins the optimizer. */
static bool mixes_with_parameter(const Phases *work, int32_t value) {
    for (int32_t k = 0; k < work->module->instructions[value].operand_count; k++) {
        int32_t operand = region_operand(work, value, k);
        if (operand >= 0 && !work->is_independent[operand] && !work->follows_work[operand]) return true;
    }
    return false;
}

/* Returns whether `operand` is a gradient that this view converts towards its weight's type and shape. */
static bool completes_gradient(const Phases *work, int32_t value, int32_t group) {
    const IrInstruction *instruction = &work->module->instructions[value];
    if (!is_view(instruction) || work->new_weight[group] < 0) return false;
    int32_t operand = region_operand(work, value, 0);
    if (operand < 0 || !work->before_gradient[operand]) return false;
    const IrShape *from = &work->module->instructions[operand].shape;
    return !ir_shape_equal(from, &work->module->instructions[work->new_weight[group]].shape);
}

/* Marks the gradients of groups with a new weight, or of those without: the only value that enters a group,
 * else its boundary, else the values that are combined with no parameter; never an excluded one. */
static void mark_gradients(Phases *work, bool of_weights, const bool *excluded) {
    for (int32_t i = 0; i < work->graph->count; i++) {
        if (!work->in_region[i] || !work->follows_gradient[i]) continue;
        int32_t group = union_find_root(work->group, i);
        if ((work->new_weight[group] >= 0) != of_weights) continue;
        bool is_between = !work->is_output[i] && !mixes_with_parameter(work, i);
        int32_t found = work->entry[group] >= 0 ? work->entry[group] : work->boundary[group];
        if (found < 0 && is_between) found = i;
        if (found >= 0 && !excluded[found]) work->before_gradient[found] = true;
        if (completes_gradient(work, i, group)) work->before_gradient[i] = true;
    }
}

/* Returns whether the metadata marks the instruction as part of a derivative. */
static bool is_named_backward(const Phases *work, int32_t value) {
    static const char *const marks[] = {"transpose(", "jvp(", "rematted_computation"};
    const IrFlowGraph *graph = work->graph;
    const char *op_name = work->module->instructions[value].op_name;
    for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
        if (strstr(op_name, marks[k])) return true;
    return graph->owners[value] != work->module->entry && work->named_bodies[graph->owners[value]];
}

/* Marks the forward instructions and the updates, then the results that depend on no update, with
 * their ancestors. */
static void find_first_phases(Phases *work, const bool *live, bool *after_update, bool *of_result) {
    for (int32_t i = 0; i < work->graph->count; i++) {
        IrOpcode opcode = work->module->instructions[i].opcode;
        if (!live[i] || opcode == IR_PARAMETER || opcode == IR_CONSTANT) continue;
        if (work->forward[i]) work->phases[i] = IR_PHASE_FORWARD;
        else if (work->in_update[i]) {
            bool is_state = work->follows_state[i] && !is_named_backward(work, i);
            work->phases[i] = work->before_gradient[i] && !is_state ? IR_PHASE_BACKWARD : IR_PHASE_OPTIMIZER;
        }
        after_update[i] = work->in_update[i] && !work->is_independent[i];
    }
    ir_flow_mark_dependents(work->graph, after_update);
    for (int32_t k = 0; k < work->flow->output_count; k++) {
        int32_t value = work->flow->output_values[k];
        of_result[value] =
            !after_update[value] && (work->follows_forward[value] || work->is_independent[value]);
    }
    ir_flow_mark_ancestors(work->graph, of_result);
    for (int32_t i = 0; i < work->graph->count; i++) {
        IrOpcode opcode = work->module->instructions[i].opcode;
        if (!live[i] || opcode == IR_PARAMETER || opcode == IR_CONSTANT) continue;
        if (work->forward[i]) continue;
        if (of_result[i]) work->phases[i] = IR_PHASE_FORWARD;
        else if (!work->in_update[i])
            work->phases[i] = !after_update[i] && (work->follows_forward[i] || work->is_independent[i])
                                  ? IR_PHASE_FORWARD
                                  : IR_PHASE_OPTIMIZER;
    }
}

/* Rates and broadcasts of constants belong to the optimizer if nothing else uses them. */
static void assign_rates_to_optimizer(Phases *work, bool *used_elsewhere) {
    for (int32_t i = work->graph->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &work->module->instructions[i];
        if (work->in_update[i] && work->phases[i] == IR_PHASE_BACKWARD && !used_elsewhere[i] &&
            !work->follows_forward[i] && !work->before_gradient[i])
            work->phases[i] = IR_PHASE_OPTIMIZER;
        if (work->phases[i] == IR_PHASE_OPTIMIZER) continue;
        if (work->phases[i] == IR_PHASE_OTHER) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            used_elsewhere[ir_dataflow_operand(work->flow, instruction, k)] = true;
    }
}

/* Assigns the earliest phase of their users to instructions that only forward values, such as tuples. */
static void assign_forwarded_values(Phases *work, bool *is_open) {
    for (int32_t i = 0; i < work->graph->count; i++) {
        IrOpcode opcode = work->module->instructions[i].opcode;
        bool forwards = opcode == IR_TUPLE || opcode == IR_GET_TUPLE_ELEMENT || opcode == IR_OPT_BARRIER ||
                        opcode == IR_WHILE || opcode == IR_CONDITIONAL; /* if its body does */
        is_open[i] = forwards && work->phases[i] == IR_PHASE_OTHER;
    }
    for (int32_t i = work->graph->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &work->module->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            if (is_open[operand] && work->phases[i] < work->phases[operand])
                work->phases[operand] = work->phases[i];
        }
    }
}

/* Marks a new value. If a loop or a branch computes it, its update is searched in the body. */
static void mark_output(Phases *work, int32_t value, bool is_weight) {
    const IrFlowGraph *graph = work->graph;
    if (work->is_output[value] && (work->is_weight[value] || !is_weight)) return;
    work->is_output[value] = true;
    work->is_weight[value] |= is_weight;
    const IrInstruction *made = &work->module->instructions[value];
    if (made->opcode == IR_DYNAMIC_UPDATE_SLICE && graph->owners[value] != work->module->entry)
        mark_output(work, ir_dataflow_operand(work->flow, made, 1), is_weight);
    int32_t producer = ir_flow_producer(graph, value);
    if (producer < 0 || work->module->instructions[producer].opcode == IR_PARAMETER) return;
    const IrInstruction *region = &work->module->instructions[producer];
    int32_t bodies = region->opcode == IR_WHILE ? 1 : region->called_count;
    if (bodies > MAX_BRANCHES) bodies = MAX_BRANCHES;
    for (int32_t b = 0; b < bodies; b++) {
        int32_t root = work->flow->sources[work->module->computations[region->called[b]].root];
        int32_t element = ir_dataflow_element(work->flow, root, made->attributes->tuple_index);
        if (element >= 0) mark_output(work, element, is_weight);
    }
}

static void mark_inputs(Phases *work, const IrRoles *roles) {
    const IrFlowGraph *graph = work->graph;
    bool *follows_parameter = work->is_independent; /* its negation, until the loop below */
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        bool updates_weight = parameter->role == IR_ROLE_WEIGHT || parameter->role == IR_ROLE_OPTIMIZER;
        if (updates_weight && parameter->output >= 0)
            mark_output(work, work->flow->output_values[parameter->output],
                        parameter->role == IR_ROLE_WEIGHT);
        const IrShape *shape = &work->module->instructions[parameter->instruction].shape;
        /* A scale of the loss is in all gradients. */
        bool is_scale = ir_is_scalar(shape) && dtype_is_floating(shape->type);
        bool is_state = parameter->role == IR_ROLE_OPTIMIZER || parameter->role == IR_ROLE_STATE;
        work->follows_state[parameter->instruction] =
            is_state && !is_scale && !work->forward[parameter->instruction];
        work->follows_forward[parameter->instruction] = parameter->role == IR_ROLE_DATA;
        follows_parameter[parameter->instruction] = true;
    }
    ir_flow_mark_dependents(graph, work->follows_state);
    ir_flow_mark_dependents(graph, follows_parameter);
    for (int32_t i = 0; i < graph->count; i++) {
        const IrInstruction *instruction = &work->module->instructions[i];
        work->is_independent[i] = !follows_parameter[i];
        bool is_parameter = instruction->opcode == IR_PARAMETER;
        work->follows_forward[i] |= work->forward[i] && !is_parameter && !work->is_independent[i];
        work->follows_work[i] =
            !work->is_independent[i] && !is_parameter && !ir_opcode_has(instruction->opcode, FACT_MOVES);
    }
    ir_flow_mark_dependents(graph, work->follows_forward);
    ir_flow_mark_dependents(graph, work->follows_work);
}

static void mark_updates(Phases *work, bool *live) {
    const IrFlowGraph *graph = work->graph;
    for (int32_t i = 0; i < graph->count; i++) work->in_update[i] = work->is_output[i];
    ir_flow_mark_ancestors(graph, work->in_update);
    for (int32_t i = 0; i < graph->count; i++)
        work->in_update[i] &= !work->forward[i] && work->module->instructions[i].opcode != IR_PARAMETER;
    for (int32_t k = 0; k < work->flow->output_count; k++) live[work->flow->output_values[k]] = true;
    ir_flow_mark_ancestors(graph, live);
}

/* Marks the gradients found by data flow and the instructions marked by metadata, then all their
 * ancestors. */
static void mark_before_gradients(Phases *work, bool *after_gradient) {
    grow_regions(work);
    follow_gradients(work);
    /* The boundary of a group is its first gradient instruction after which no earlier one is used. */
    for (int32_t i = 0; i < work->graph->count; i++) {
        if (!work->in_region[i] || !work->follows_gradient[i]) continue;
        int32_t group = union_find_root(work->group, i);
        if (work->boundary[group] >= 0 || work->entry[group] != SEVERAL_ENTRIES) continue;
        if (work->live_until[group] <= i && !work->is_output[i]) work->boundary[group] = i;
        if (work->live_until[group] < work->last_use[i]) work->live_until[group] = work->last_use[i];
    }
    mark_gradients(work, true, after_gradient);
    /* Inputs of the optimizer's statistics may depend on gradients. */
    memcpy(after_gradient, work->before_gradient, sizeof(bool) * (size_t)work->graph->count);
    ir_flow_mark_dependents(work->graph, after_gradient);
    mark_gradients(work, false, after_gradient);
    /* The one loop of these bodies is named as part of a derivative; outer bodies stand before inner ones. */
    const IrFlowGraph *graph = work->graph;
    for (int32_t c = 0; c < work->module->computation_count; c++) {
        int64_t first = graph->first_caller[c];
        if (graph->first_caller[c + 1] - first != 1) continue;
        work->named_bodies[c] = is_named_backward(work, graph->callers[first].region);
    }
    for (int32_t i = 0; i < work->graph->count; i++)
        work->before_gradient[i] |=
            work->in_update[i] && !work->is_independent[i] && is_named_backward(work, i);
    ir_flow_mark_ancestors(work->graph, work->before_gradient);
}

AmStatus ir_find_phases(IrRoles *roles, Arena *arena, Arena *scratch, const IrFlowGraph *graph,
                        const bool *forward, AmError *error) {
    int32_t count = graph->count;
    roles->phases = ARENA_ARRAY(arena, IrPhase, count);
    roles->repeats = ARENA_ARRAY(arena, int32_t, count);
    Phases work = {.graph = graph,
                   .flow = graph->flow,
                   .module = graph->module,
                   .forward = forward,
                   .phases = roles->phases,
                   .in_update = ARENA_ARRAY(scratch, bool, count),
                   .is_output = ARENA_ARRAY(scratch, bool, count),
                   .is_weight = ARENA_ARRAY(scratch, bool, count),
                   .follows_state = ARENA_ARRAY(scratch, bool, count),
                   .follows_forward = ARENA_ARRAY(scratch, bool, count),
                   .follows_work = ARENA_ARRAY(scratch, bool, count),
                   .is_independent = ARENA_ARRAY(scratch, bool, count),
                   .before_gradient = ARENA_ARRAY(scratch, bool, count),
                   .named_bodies = ARENA_ARRAY(scratch, bool, graph->module->computation_count),
                   .in_region = ARENA_ARRAY(scratch, bool, count),
                   .group = ARENA_ARRAY(scratch, int32_t, count),
                   .last_use = ARENA_ARRAY(scratch, int32_t, count),
                   .follows_gradient = ARENA_ARRAY(scratch, bool, count),
                   .entry = ARENA_ARRAY(scratch, int32_t, count),
                   .live_until = ARENA_ARRAY(scratch, int32_t, count),
                   .boundary = ARENA_ARRAY(scratch, int32_t, count),
                   .new_weight = ARENA_ARRAY(scratch, int32_t, count)};
    bool *live = ARENA_ARRAY(scratch, bool, count), *used_elsewhere = ARENA_ARRAY(scratch, bool, count);
    bool *after_update = ARENA_ARRAY(scratch, bool, count), *of_result = ARENA_ARRAY(scratch, bool, count);
    bool *after_gradient = ARENA_ARRAY(scratch, bool, count);
    if (arena->failed || scratch->failed) return am_fail_memory(error, (int64_t)count * 48);
    for (int32_t i = 0; i < count; i++) {
        work.group[i] = i;
        work.entry[i] = work.live_until[i] = work.boundary[i] = work.last_use[i] = work.new_weight[i] = -1;
        work.phases[i] = IR_PHASE_OTHER;
    }
    mark_inputs(&work, roles);
    mark_updates(&work, live);
    mark_before_gradients(&work, after_gradient);
    find_first_phases(&work, live, after_update, of_result);
    assign_rates_to_optimizer(&work, used_elsewhere);
    TRY(ir_find_recomputed(work.phases, roles->repeats, scratch, graph, work.is_independent, error));
    assign_forwarded_values(&work, after_update);
    return AM_OK;
}
