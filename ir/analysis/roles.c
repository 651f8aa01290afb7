/* Roles of parameters, the loss, and phases: ir/analysis/roles.h.
 *
 * Pairs of a parameter and an output come from the roles file or from data flow (ir/analysis/pairing.h). The
 * loss comes from the file, or is a scalar that updates nothing (ir/analysis/find_loss.h). Without a file the
 * role follows from these, for a floating parameter that is paired:
 *
 *   weight      the loss depends on it
 *   optimizer   the loss does not depend on it, but a new weight does
 *
 * Two kinds are no weights although the loss depends on them: a scalar whose new value follows no array (a
 * loss scale), and a parameter on whose new value the loss depends too (a carried activation). Unpaired
 * parameters are data if they have a dimension in the batch (ir/analysis/batch.h).
 *
 * In a module without a loss, such as inference, all is forward.
 */
#include "ir/analysis/roles.h"

#include <string.h>

#include "ir/analysis/batch.h"
#include "ir/analysis/find_loss.h"
#include "ir/analysis/flow_graph.h"
#include "ir/analysis/pairing.h"
#include "ir/analysis/phases.h"
#include "ir/analysis/roles_file.h"
#include "ir/names.h"

const char *ir_role_name(IrRole role) {
    static const char *const names[] = {"weight", "optimizer", "state", "data", "constant"};
    return names[role];
}

const char *ir_phase_name(IrPhase phase) {
    static const char *const names[] = {"forward", "recomputed", "backward", "optimizer", "other"};
    return names[phase];
}

/* Marks the ancestors of the loss; without a loss, of every output. */
static void mark_forward(const IrRoles *roles, const IrFlowGraph *graph, bool *forward) {
    for (int32_t o = 0; o < graph->flow->output_count; o++)
        if (roles->loss < 0 || roles->loss == o) forward[graph->flow->output_values[o]] = true;
    ir_flow_mark_ancestors(graph, forward);
}

/* Cuts the carried elements of a loop that repeats whole steps: a value carried from one step to
 * the next is not part of the next step's forward pass. Nested loops carry the same element. */
static AmStatus cut_repeated_steps(const IrRoles *roles, IrFlowGraph *graph, Arena *scratch, AmError *error) {
    const IrModule *module = graph->module;
    int64_t *first = ARENA_ARRAY(scratch, int64_t, (int64_t)module->computation_count + 1), slots = 0;
    if (!first) return am_fail_memory(error, (int64_t)module->computation_count * 8);
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrInstruction *root = &module->instructions[graph->flow->sources[module->computations[c].root]];
        first[c] = slots;
        slots += root->opcode == IR_TUPLE ? root->operand_count : 0;
    }
    bool *is_repeated = ARENA_ARRAY(scratch, bool, slots + 1); /* per element that a computation returns */
    if (!is_repeated) return am_fail_memory(error, slots);
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].output < 0) continue;
        int32_t value = graph->flow->output_values[roles->parameters[p].output], next;
        while ((next = ir_flow_value_in_body(graph, value)) >= 0) {
            is_repeated[first[graph->owners[next]] + module->instructions[value].attributes->tuple_index] =
                true;
            value = next;
        }
    }
    for (int32_t i = 0; i < graph->count; i++) {
        int32_t next = ir_flow_next_value(graph, i);
        if (next < 0) continue;
        graph->is_cut[i] =
            is_repeated[first[graph->owners[next]] + module->instructions[i].attributes->tuple_index];
    }
    return AM_OK;
}

static void find_paired_roles(IrRoles *roles, const IrFlowGraph *graph, const IrPairing *pairing,
                              const bool *forward, bool *feeds_weight) {
    const IrDataflow *flow = graph->flow;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        IrParameter *parameter = &roles->parameters[p];
        const IrShape *shape = &flow->module->instructions[parameter->instruction].shape;
        if (parameter->output < 0) continue;
        int32_t update = flow->output_values[parameter->output];
        bool is_constant_update = ir_is_scalar(shape) && !pairing->depends_on_arrays[update];
        bool is_carried = roles->loss >= 0 && forward[update] && update != parameter->instruction;
        parameter->role = IR_ROLE_STATE;
        if (!dtype_is_floating(shape->type) || !forward[parameter->instruction]) continue;
        if (is_constant_update || is_carried) continue;
        parameter->role = IR_ROLE_WEIGHT;
        feeds_weight[update] = true;
    }
    ir_flow_mark_ancestors(graph, feeds_weight);
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        IrParameter *parameter = &roles->parameters[p];
        const IrShape *shape = &flow->module->instructions[parameter->instruction].shape;
        if (parameter->output >= 0 && dtype_is_floating(shape->type) && !forward[parameter->instruction] &&
            feeds_weight[parameter->instruction])
            parameter->role = IR_ROLE_OPTIMIZER;
    }
}

/* Returns whether only a donation indicates a new value of the parameter. JAX assigns donations by shape: a
 * donated parameter with the batch of the data is data, and the result in its buffer resembles a
 * prediction. */
static bool is_donated_alone(const IrParameter *parameter) {
    return parameter->output >= 0 && strcmp(parameter->paired_by, "alias") == 0;
}

/* Gives parameters without a pair the role data or constant. */
static AmStatus find_unpaired_roles(IrRoles *roles, Arena *arena, const IrFlowGraph *graph,
                                    const IrPairing *pairing, AmError *error) {
    const IrDataflow *flow = graph->flow;
    int32_t count = roles->parameter_count;
    bool *looked_at = ARENA_ARRAY(arena, bool, graph->count);
    bool *is_weight = ARENA_ARRAY(arena, bool, count);
    bool *is_candidate = ARENA_ARRAY(arena, bool, count);
    bool *is_data = ARENA_ARRAY(arena, bool, count);
    if (arena->failed) return am_fail_memory(error, graph->count);
    /* The loss, and results such as a count of right answers. */
    for (int32_t o = 0; o < flow->output_count; o++)
        if (pairing->parameter_of[o] < 0) looked_at[flow->output_values[o]] = true;
    ir_flow_mark_ancestors(graph, looked_at);
    for (int32_t p = 0; p < count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        is_candidate[p] = parameter->output < 0 || is_donated_alone(parameter);
        is_weight[p] = parameter->role == IR_ROLE_WEIGHT && !is_candidate[p];
    }
    TRY(ir_find_batch(is_data, arena, graph, looked_at, is_weight, is_candidate, error));
    bool has_data = false;
    for (int32_t p = 0; p < count; p++) has_data |= is_data[p] && roles->parameters[p].output < 0;
    for (int32_t p = 0; p < count; p++) {
        IrParameter *parameter = &roles->parameters[p];
        if (is_donated_alone(parameter) && is_data[p] && has_data) parameter->output = -1;
        if (parameter->output >= 0) continue;
        parameter->role = is_data[p] ? IR_ROLE_DATA : IR_ROLE_CONSTANT;
        parameter->paired_by = "";
    }
    return AM_OK;
}

/* Adds one warning for all donated buffers that go to another parameter's update. JAX and XLA assign buffers
 * by shape, so that a roles file is not in doubt. */
static void warn_of_aliases(const IrRoles *roles, IrModule *canonical) {
    int32_t count = 0;
    const IrParameter *example = NULL;
    int32_t example_output = -1;
    for (int32_t a = 0; a < canonical->alias_count; a++) {
        IrAlias alias = canonical->aliases[a];
        int32_t output = alias.output < 0 ? 0 : alias.output;
        if (alias.parameter < 0 || alias.parameter >= roles->parameter_count) continue;
        const IrParameter *parameter = &roles->parameters[alias.parameter];
        if (parameter->output == output || parameter->output < 0) continue;
        if (strcmp(parameter->paired_by, "roles file") == 0) continue;
        if (count++ == 0) {
            example = parameter;
            example_output = output;
        }
    }
    if (count > 0)
        am_warn(
            &canonical->warnings,
            "%d donated parameters are aliased to outputs that update others; their pairs come from the %s "
            "(parameter %d, %s: aliased to output %d, updated by output %d)",
            count, example->paired_by, example->number, example->path, example_output, example->output);
}

/* Adds one warning for all parameters where the roles file and data flow differ. A donation alone is no data
 * flow, nor is a choice between parameters that it fits equally. */
static void warn_of_data_flow(const IrRoles *roles, const IrPairing *pairing, IrModule *canonical) {
    int32_t count = 0;
    const IrParameter *example = NULL;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (pairing->output_of[p] < 0 || pairing->output_of[p] == roles->parameters[p].output) continue;
        if (strcmp(pairing->paired_by[p], "alias") == 0) continue;
        if (pairing->rival_of[pairing->output_of[p]] >= 0) continue;
        if (count++ == 0) example = &roles->parameters[p];
    }
    if (count > 0)
        am_warn(&canonical->warnings,
                "the roles file pairs %d parameters otherwise than data flow does (parameter %d, %s: output "
                "%d in the file, output %d by %s)",
                count, example->number, example->path, example->output, pairing->output_of[example->number],
                pairing->paired_by[example->number]);
}

/* Adds one warning for all outputs that another parameter, which nothing updates, fits as well. */
static void warn_of_rivals(const IrRoles *roles, const IrPairing *pairing, IrModule *canonical) {
    int32_t count = 0, example = -1;
    for (int32_t o = 0; o < roles->output_count; o++) {
        if (pairing->rival_of[o] < 0 || pairing->parameter_of[o] < 0) continue;
        if (pairing->output_of[pairing->rival_of[o]] >= 0) continue;
        if (count++ == 0) example = o;
    }
    if (count == 0) return;
    const IrParameter *chosen = &roles->parameters[pairing->parameter_of[example]];
    const IrParameter *rival = &roles->parameters[pairing->rival_of[example]];
    am_warn(
        &canonical->warnings,
        "data flow leaves open what %d of %d outputs update, and their order decides (output %d: parameter "
        "%d, %s, not parameter %d, %s); a roles file, which the exporter writes, names it",
        count, roles->output_count, example, chosen->number, chosen->path, rival->number, rival->path);
}

/* Warns of the first floating pair found only by its position: it may be data and a result of the
 * same shape. */
static void warn_of_order(const IrRoles *roles, IrModule *canonical) {
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        if (parameter->output < 0 || strcmp(parameter->paired_by, "order") != 0) continue;
        if (!dtype_is_floating(canonical->instructions[parameter->instruction].shape.type)) continue;
        bool is_donated = false;
        for (int32_t a = 0; a < canonical->alias_count; a++) {
            int32_t output = canonical->aliases[a].output < 0 ? 0 : canonical->aliases[a].output;
            is_donated |= canonical->aliases[a].parameter == parameter->number && output == parameter->output;
        }
        if (is_donated) continue;
        am_warn(&canonical->warnings,
                "parameter %d, %s, is taken for state that output %d updates, by their places alone; a "
                "roles file decides",
                parameter->number, parameter->path, parameter->output);
        return;
    }
}

/* Warns of a loss that trains nothing although there is state, and, where it was chosen here, of a choice. */
static void warn_of_loss(const IrRoles *roles, const bool *forward, int32_t possible, IrModule *canonical) {
    bool has_state = false, has_weight = false;
    if (roles->loss < 0) return;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        if (parameter->output < 0) continue;
        if (!dtype_is_floating(canonical->instructions[parameter->instruction].shape.type)) continue;
        has_state = true;
        has_weight = has_weight || forward[parameter->instruction];
    }
    if (has_state && !has_weight)
        am_warn(&canonical->warnings, "the loss, output %d, depends on no weight; a roles file names another",
                roles->loss);
    else if (possible > 1)
        am_warn(&canonical->warnings,
                "%d outputs could be the loss; output %d, the first, is taken: a roles file names another",
                possible, roles->loss);
}

/* Numbers, paths and instructions of the parameters; no roles yet. */
static AmStatus list_parameters(IrRoles *roles, Arena *arena, const IrDataflow *flow, AmError *error) {
    const IrComputation *entry = &flow->module->computations[flow->module->entry];
    int32_t count = entry->parameter_count;
    roles->parameters = ARENA_ARRAY(arena, IrParameter, count);
    roles->parameter_count = count;
    roles->outputs = ARENA_ARRAY(arena, int32_t, flow->output_count);
    roles->output_count = flow->output_count;
    for (int32_t k = 0; roles->outputs && k < flow->output_count; k++) roles->outputs[k] = flow->outputs[k];
    const char **paths = ARENA_ARRAY(arena, const char *, count);
    if (!roles->parameters || !roles->outputs || !paths)
        return am_fail_memory(error, (int64_t)count * (int64_t)sizeof(IrParameter));
    for (int32_t p = 0; p < count; p++) {
        const IrInstruction *instruction = &flow->module->instructions[entry->parameters[p]];
        paths[p] = *instruction->op_name ? instruction->op_name : instruction->name;
    }
    TRY(ir_unique_names(paths, count, '#', arena, error));
    for (int32_t p = 0; p < count; p++)
        roles->parameters[p] = (IrParameter){p, entry->parameters[p], paths[p], IR_ROLE_CONSTANT, -1, "", 0};
    return AM_OK;
}

AmStatus ir_find_roles(IrRoles **result, Arena *arena, IrModule *canonical, const char *roles_path,
                       AmError *error) {
    Arena scratch = {0};
    IrRoles *roles = ARENA_ARRAY(arena, IrRoles, 1);
    if (!roles) return am_fail_memory(error, sizeof *roles);
    AmStatus status = AM_OK;
    IrDataflow flow;
    IrFlowGraph graph;
    IrPairing pairing;
    TRY_OR_FAIL(ir_dataflow_make(&flow, &scratch, canonical, error));
    TRY_OR_FAIL(ir_flow_graph_make(&graph, &scratch, &flow, error));
    TRY_OR_FAIL(list_parameters(roles, arena, &flow, error));
    TRY_OR_FAIL(ir_pair_parameters(&pairing, &scratch, &graph, error));
    bool *forward = ARENA_ARRAY(&scratch, bool, graph.count);
    bool *feeds_weight = ARENA_ARRAY(&scratch, bool, graph.count);
    if (!forward || !feeds_weight) TRY_OR_FAIL(am_fail_memory(error, graph.count));
    int32_t possible = 0; /* losses between which nothing decides */
    roles->loss = -1;
    if (roles_path) {
        TRY_OR_FAIL(ir_read_roles_file(roles, arena, &flow, roles_path, error));
        TRY_OR_FAIL(cut_repeated_steps(roles, &graph, &scratch, error));
        mark_forward(roles, &graph, forward);
        warn_of_data_flow(roles, &pairing, canonical);
    } else {
        for (int32_t p = 0; p < roles->parameter_count; p++) {
            roles->parameters[p].output = pairing.output_of[p];
            roles->parameters[p].paired_by = pairing.paired_by[p];
        }
        TRY_OR_FAIL(cut_repeated_steps(roles, &graph, &scratch, error));
        TRY_OR_FAIL(ir_find_loss(&roles->loss, &possible, &scratch, &graph, &pairing, error));
        mark_forward(roles, &graph, forward);
        find_paired_roles(roles, &graph, &pairing, forward, feeds_weight);
        TRY_OR_FAIL(find_unpaired_roles(roles, &scratch, &graph, &pairing, error));
        warn_of_rivals(roles, &pairing, canonical);
    }
    warn_of_aliases(roles, canonical);
    warn_of_order(roles, canonical);
    warn_of_loss(roles, forward, possible, canonical);
    status = ir_find_phases(roles, arena, &scratch, &graph, forward, error);
fail:
    arena_free(&scratch);
    if (status == AM_OK) *result = roles;
    return status;
}

AmStatus ir_complete_roles(IrRoles *roles, Arena *arena, const IrModule *canonical, AmError *error) {
    Arena scratch = {0};
    AmStatus status = AM_OK;
    IrDataflow flow;
    IrFlowGraph graph;
    TRY_OR_FAIL(ir_dataflow_make(&flow, &scratch, canonical, error));
    TRY_OR_FAIL(ir_flow_graph_make(&graph, &scratch, &flow, error));
    bool *forward = ARENA_ARRAY(&scratch, bool, graph.count);
    roles->outputs = ARENA_ARRAY(arena, int32_t, flow.output_count + 1);
    if (!forward || !roles->outputs) TRY_OR_FAIL(am_fail_memory(error, graph.count));
    roles->output_count = flow.output_count;
    for (int32_t k = 0; k < flow.output_count; k++) roles->outputs[k] = flow.outputs[k];
    TRY_OR_FAIL(cut_repeated_steps(roles, &graph, &scratch, error));
    mark_forward(roles, &graph, forward);
    status = ir_find_phases(roles, arena, &scratch, &graph, forward, error);
fail:
    arena_free(&scratch);
    return status;
}

bool ir_source_recomputes(const IrRoles *roles, const IrModule *canonical) {
    for (int32_t i = 0; i < canonical->instruction_count; i++)
        if (roles->phases[i] == IR_PHASE_RECOMPUTED) return true;
    return false;
}

const char *ir_no_training(Arena *arena, const IrRoles *roles) {
    int32_t weights = 0, updated = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        bool is_new = parameter->output >= 0 && roles->outputs[parameter->output] != parameter->instruction;
        if (is_new && parameter->role == IR_ROLE_WEIGHT) return NULL;
        weights += parameter->role == IR_ROLE_WEIGHT;
        updated += is_new;
    }
    Text text = {0};
    if (weights > 0)
        text_append(&text, "its %d weight%s returned unchanged", weights, weights == 1 ? " is" : "s are");
    else if (updated > 0 && roles->loss < 0) text_append_string(&text, "it returns no loss");
    else if (updated > 0)
        text_append(&text, "the loss depends on none of its %d updated parameter%s", updated,
                    updated == 1 ? "" : "s");
    else
        text_append(&text, "no output updates any of its %d parameter%s", roles->parameter_count,
                    roles->parameter_count == 1 ? "" : "s");
    const char *reason = text.data ? arena_copy_string(arena, text.data) : NULL;
    text_free(&text);
    return reason ? reason : "no weight is updated";
}
