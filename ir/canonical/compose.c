/* Composition: lists of instructions per computation, then one layout.
 *
 * The layout is in breadth-first order of references, as the canonicalizer's, so that a computation
 * with one reference follows its caller.
 */
#include "ir/canonical/compose.h"

#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"
#include "ir/names.h"

/* Returns whether an allocation failed. Callers check the arena of the module alone. */
static bool has_failed(IrModule *module) {
    module->arena.failed |= module->lists.failed;
    return module->arena.failed;
}

int32_t ir_compose_computation(IrComposer *composer, const char *name) {
    ARENA_RESERVE(&composer->module->lists, composer->computations, composer->count, composer->capacity);
    if (has_failed(composer->module)) return 0;
    composer->computations[composer->count] = (IrComposed){.name = name};
    return composer->count++;
}

static int32_t *copy_indices(Arena *arena, const int32_t *indices, int32_t count, int32_t more) {
    int32_t *copy = ARENA_ARRAY(arena, int32_t, count + 1);
    for (int32_t k = 0; copy && k < count; k++) copy[k] = indices[k] + more;
    return copy;
}

IrInstruction ir_serving(const IrInstruction *served, IrOpcode opcode, const IrShape *shape,
                         const int32_t *operands, int32_t operand_count, const IrAttributes *attributes) {
    static const IrAttributes none;
    return (IrInstruction){.opcode = opcode,
                           .opcode_name = ir_opcode_name(opcode),
                           .name = ir_opcode_name(opcode),
                           .shape = *shape,
                           .operand_count = operand_count,
                           .operands = operands,
                           .attributes = attributes ? attributes : &none,
                           .op_name = served->op_name,
                           .source_file = served->source_file,
                           .source_line = served->source_line};
}

int32_t ir_compose(IrComposer *composer, int32_t computation, const IrInstruction *instruction,
                   int32_t origin) {
    Arena *lists = &composer->module->lists;
    if (has_failed(composer->module)) return 0;
    IrComposed *list = &composer->computations[computation];
    ARENA_RESERVE(lists, list->instructions, list->count, list->capacity);
    ARENA_RESERVE(lists, list->origins, list->count, list->origin_capacity);
    if (has_failed(composer->module)) return 0;
    IrInstruction *made = &list->instructions[list->count];
    *made = *instruction;
    made->operands = copy_indices(lists, instruction->operands, instruction->operand_count, 0);
    made->called = copy_indices(lists, instruction->called, instruction->called_count, 0);
    made->control_count = 0;
    made->control = NULL;
    list->origins[list->count] = origin;
    return list->count++;
}

/* Numbers the computations that are mentioned from the entry on, -1 for others. Returns their count. */
static int32_t discover(const IrComposer *composer, int32_t *number, int32_t *order) {
    int32_t found = 0;
    for (int32_t c = 0; c < composer->count; c++) number[c] = -1;
    number[0] = found;
    order[found++] = 0;
    for (int32_t k = 0; k < found; k++) {
        const IrComposed *list = &composer->computations[order[k]];
        for (int32_t i = 0; i < list->count; i++)
            for (int32_t a = 0; a < list->instructions[i].called_count; a++) {
                int32_t called = list->instructions[i].called[a];
                if (number[called] >= 0) continue;
                number[called] = found;
                order[found++] = called;
            }
    }
    return found;
}

/* Appends a composed computation to the module, with final numbers of operands and computations. */
static AmStatus place(IrModule *module, const IrComposed *list, const int32_t *number, IrComputation *made,
                      int32_t *origins, AmError *error) {
    Arena *arena = &module->arena;
    int32_t first = module->instruction_count, parameters = 0;
    for (int32_t i = 0; i < list->count; i++) parameters += list->instructions[i].opcode == IR_PARAMETER;
    int32_t *numbers = ARENA_ARRAY(arena, int32_t, parameters + 1);
    if (!numbers) return am_fail_memory(error, parameters);
    for (int32_t i = 0; i < list->count; i++) {
        IrInstruction *to = &module->instructions[first + i];
        *to = list->instructions[i];
        to->operands = copy_indices(arena, to->operands, to->operand_count, first);
        int32_t *called = to->called_count > 0 ? copy_indices(arena, to->called, to->called_count, 0) : NULL;
        if (arena->failed) return am_fail_memory(error, list->count);
        for (int32_t k = 0; k < to->called_count; k++) called[k] = number[called[k]];
        to->called = called;
        if (to->opcode == IR_PARAMETER) numbers[to->attributes->parameter_number] = first + i;
        origins[first + i] = list->origins[i];
    }
    *made = (IrComputation){list->name, first, list->count, first + list->root, parameters, numbers};
    module->instruction_count += list->count;
    return ir_unique_instruction_names(module->instructions + first, list->count, arena, &module->lists,
                                       error);
}

AmStatus ir_compose_finish(IrComposer *composer, int32_t **origins, AmError *error) {
    IrModule *module = composer->module;
    Arena *arena = &module->arena;
    int64_t total = 0;
    int32_t *number = ARENA_ARRAY(&module->lists, int32_t, composer->count + 1);
    int32_t *order = ARENA_ARRAY(&module->lists, int32_t, composer->count + 1);
    if (has_failed(module)) return am_fail_memory(error, composer->count);
    int32_t found = discover(composer, number, order);
    for (int32_t k = 0; k < found; k++) total += composer->computations[order[k]].count;
    module->instructions = ARENA_ARRAY(arena, IrInstruction, total + 1);
    module->computations = ARENA_ARRAY(arena, IrComputation, found);
    *origins = ARENA_ARRAY(arena, int32_t, total + 1);
    if (arena->failed) return am_fail_memory(error, total);
    module->entry = 0;
    module->computation_count = found;
    for (int32_t k = 0; k < found; k++)
        TRY(place(module, &composer->computations[order[k]], number, &module->computations[k], *origins,
                  error));
    arena_free(&module->lists);
    TRY(ir_find_called_work(module, error));
    return ir_find_loops(module, error);
}
