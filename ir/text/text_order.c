/* The order in which text lists computations and instructions.
 *
 * A reader of text accepts only references to earlier definitions, so that operands precede their
 * users and computations their callers. Most files have that order and keep it. A scheduled
 * computation takes the order of its schedule. Other computations are sorted; the file's order
 * breaks ties.
 */

#include "ir/build/schedule.h"
#include "ir/text/hlo_text.h"
#include "ir/topological_order.h"

/* Returns whether the operands and predecessors of each node precede it in `order`. */
static bool is_ordered(const int32_t *order, const IrInstruction *nodes, int32_t count, int32_t *places) {
    for (int32_t k = 0; k < count; k++) places[order[k]] = k;
    for (int32_t i = 0; i < count; i++) {
        for (int32_t k = 0; k < nodes[i].operand_count; k++)
            if (places[nodes[i].operands[k]] >= places[i]) return false;
        for (int32_t k = 0; k < nodes[i].control_count; k++)
            if (places[nodes[i].control[k]] >= places[i]) return false;
    }
    return true;
}

/* Keeps `order` if it is valid; otherwise computes an order with operands first. */
static AmStatus put_in_order(IrTextWriter *writer, int32_t *order, const IrInstruction *nodes,
                             int32_t count) {
    int32_t *places = ARENA_ARRAY(&writer->arena, int32_t, count + 1);
    if (!places) return am_fail_memory(writer->error, 0);
    if (is_ordered(order, nodes, count, places)) return AM_OK;
    int32_t ordered = ir_topological_order(order, nodes, count, 0, NULL, &writer->arena);
    if (ordered < 0) return am_fail_memory(writer->error, 0);
    if (ordered == count) return AM_OK;
    return am_fail(writer->error, AM_ERROR_INPUT, "", "computations or instructions depend on themselves");
}

/* Finds the positions that ids stand for; ids without a position are left out. */
static AmStatus find_all(IrTextWriter *writer, const int64_t *ids, size_t count,
                         int32_t (*find)(const IrTextWriter *writer, int64_t id), const int32_t **positions,
                         int32_t *found) {
    int32_t *all = ARENA_ARRAY(&writer->arena, int32_t, count + 1);
    if (!all) return am_fail_memory(writer->error, 0);
    for (size_t i = 0; i < count; i++) {
        int32_t position = find(writer, ids[i]);
        if (position >= 0) all[(*found)++] = position;
    }
    *positions = all;
    return AM_OK;
}

/* Finds the sequence of the computation as positions; false if it has none. */
static AmStatus take_schedule(IrTextWriter *writer, int32_t *order, bool *has_one) {
    const Hlo__HloComputationProto *computation = writer->computation;
    int32_t count = (int32_t)computation->n_instructions;
    IdMap positions;
    *has_one = false;
    if (!writer->is_scheduled) return AM_OK;
    if (!id_map_create(&positions, &writer->arena, count)) return am_fail_memory(writer->error, 0);
    for (int32_t i = 0; i < count; i++)
        id_map_add(&positions, computation->instructions[i]->id & 0xFFFFFFFF, i);
    *has_one = ir_schedule_order(order, writer->schedule, computation, &positions);
    return AM_OK;
}

AmStatus ir_order_instructions(IrTextWriter *writer, const int32_t **result) {
    const Hlo__HloComputationProto *computation = writer->computation;
    int32_t count = (int32_t)computation->n_instructions;
    int32_t *order = ARENA_ARRAY(&writer->arena, int32_t, count + 1);
    IrInstruction *nodes = ARENA_ARRAY(&writer->arena, IrInstruction, count + 1);
    if (!order || !nodes) return am_fail_memory(writer->error, 0);
    *result = order;
    bool is_scheduled;
    for (int32_t i = 0; i < count; i++) {
        const Hlo__HloInstructionProto *from = computation->instructions[i];
        TRY(find_all(writer, from->operand_ids, from->n_operand_ids, ir_writer_instruction,
                     &nodes[i].operands, &nodes[i].operand_count));
        TRY(find_all(writer, from->control_predecessor_ids, from->n_control_predecessor_ids,
                     ir_writer_instruction, &nodes[i].control, &nodes[i].control_count));
    }
    TRY(take_schedule(writer, order, &is_scheduled));
    for (int32_t i = 0; i < count && !is_scheduled; i++) order[i] = i;
    return put_in_order(writer, order, nodes, count);
}

AmStatus ir_order_computations(IrTextWriter *writer, const int32_t **result) {
    const Hlo__HloModuleProto *module = writer->module;
    int32_t count = (int32_t)module->n_computations;
    int32_t *order = ARENA_ARRAY(&writer->arena, int32_t, count + 1);
    IrInstruction *nodes = ARENA_ARRAY(&writer->arena, IrInstruction, count + 1);
    if (!order || !nodes) return am_fail_memory(writer->error, 0);
    *result = order;
    for (int32_t c = 0; c < count; c++) {
        const Hlo__HloComputationProto *computation = module->computations[c];
        size_t calls = 0, at = 0;
        for (size_t i = 0; i < computation->n_instructions; i++)
            calls += computation->instructions[i]->n_called_computation_ids;
        int64_t *ids = ARENA_ARRAY(&writer->arena, int64_t, calls + 1);
        if (!ids) return am_fail_memory(writer->error, 0);
        for (size_t i = 0; i < computation->n_instructions; i++) {
            const Hlo__HloInstructionProto *from = computation->instructions[i];
            for (size_t k = 0; k < from->n_called_computation_ids; k++)
                ids[at++] = from->called_computation_ids[k];
        }
        TRY(find_all(writer, ids, calls, ir_writer_computation, &nodes[c].operands, &nodes[c].operand_count));
        order[c] = c;
    }
    return put_in_order(writer, order, nodes, count);
}
