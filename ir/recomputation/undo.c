/* Undone recomputation: value numbers identify the recomputed instructions with a forward twin.
 *
 * Barriers are passed on: their only purpose here is to keep a compiler from doing the same. An instruction
 * is replaced only if the twin has the same operator, attributes and operands, by the digests of
 * ir_number_values(). Equal values that follow from positions alone are computed once. Values without a
 * reader are then dropped. A module with side effects or control dependencies does not change.
 */
#include "ir/recomputation/undo.h"

#include <string.h>

#include "ir/canonical/canonical.h"
#include "ir/canonical/compose.h"
#include "ir/canonical/simplify.h"
#include "ir/dataflow.h"

typedef struct UndoBuilder {
    const IrModule *from;
    IrComposer composer;
    int32_t *value;       /* [entry instruction]: the instruction whose value is read in its place */
    bool *needed;         /* [entry instruction] */
    int32_t *computation; /* [computation]: the one that is made, or -1 */
    int32_t *made;        /* [instruction]: its index in the computation that is made */
} UndoBuilder;

/* Fills is_position[i]: whether value i follows from iotas and constants alone, and from one iota at
 * least. */
static void find_positions(bool *is_position, bool *is_fixed, const IrDataflow *flow) {
    for (int32_t i = 0; i < flow->count; i++) {
        const IrInstruction *instruction = &flow->module->instructions[flow->sources[i]];
        bool has_iota = instruction->opcode == IR_IOTA;
        is_fixed[i] = has_iota || instruction->opcode == IR_CONSTANT || instruction->operand_count > 0;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(flow, instruction, k);
            is_fixed[i] = is_fixed[i] && is_fixed[operand];
            has_iota = has_iota || is_position[operand];
        }
        is_position[i] = is_fixed[i] && has_iota;
    }
}

/* Fills value[]; returns how many instructions are replaced by forward ones. Equal masks of layers, which
 * follow from positions, become one, as in the body of a loop over the layers. Their broadcasts stay: they
 * are as large as what they mask, and are fused with it. */
static int32_t find_twins(UndoBuilder *self, const IrDataflow *flow, const int32_t *numbers,
                          const IrPhase *phases, const bool *is_position) {
    int32_t count = 0;
    for (int32_t i = 0; i < flow->count; i++) {
        int32_t source = flow->sources[i], twin = numbers[i];
        self->value[i] = source == i ? i : self->value[source];
        if (source != i || twin == i) continue;
        bool is_mask = is_position[i] && flow->module->instructions[i].opcode != IR_BROADCAST;
        bool is_repeated = phases[i] == IR_PHASE_RECOMPUTED && ir_phase_is_with_forward(phases[twin]);
        if (is_mask || is_repeated) self->value[i] = self->value[twin];
        count += is_repeated && phases[twin] == IR_PHASE_FORWARD;
    }
    return count;
}

static void mark_needed(UndoBuilder *self) {
    const IrComputation *entry = &self->from->computations[self->from->entry];
    for (int32_t i = entry->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &self->from->instructions[i];
        self->needed[i] |= i == entry->root || instruction->opcode == IR_PARAMETER;
        for (int32_t k = 0; self->needed[i] && k < instruction->operand_count; k++)
            self->needed[self->value[instruction->operands[k]]] = true;
    }
}

/* Makes a place for each computation that instruction i calls, and returns their numbers. */
static const int32_t *copy_calls(UndoBuilder *self, const IrInstruction *instruction) {
    int32_t *called = ARENA_ARRAY(&self->composer.module->arena, int32_t, instruction->called_count + 1);
    for (int32_t k = 0; called && k < instruction->called_count; k++) {
        int32_t computation = instruction->called[k];
        if (self->computation[computation] < 0)
            self->computation[computation] =
                ir_compose_computation(&self->composer, self->from->computations[computation].name);
        called[k] = self->computation[computation];
    }
    return called;
}

static void copy_instruction(UndoBuilder *self, int32_t made_in, int32_t i) {
    const IrInstruction *from = &self->from->instructions[i];
    IrInstruction instruction = *from;
    bool is_entry = made_in == 0;
    Arena *arena = &self->composer.module->arena;
    int32_t *operands = ARENA_ARRAY(arena, int32_t, from->operand_count + 1);
    const int32_t *called = copy_calls(self, from);
    if (arena->failed) return;
    for (int32_t k = 0; k < from->operand_count; k++)
        operands[k] = self->made[is_entry ? self->value[from->operands[k]] : from->operands[k]];
    instruction.operands = operands;
    instruction.called = called;
    self->made[i] = ir_compose(&self->composer, made_in, &instruction, i);
}

/* Copies the computations that are called, callers before callees. */
static void copy_computations(UndoBuilder *self) {
    const IrModule *from = self->from;
    bool goes_on = true;
    while (goes_on) {
        goes_on = false;
        for (int32_t c = 0; c < from->computation_count && !self->composer.module->arena.failed; c++) {
            int32_t made_in = self->computation[c];
            if (made_in < 0 || self->composer.computations[made_in].count > 0) continue;
            const IrComputation *body = &from->computations[c];
            for (int32_t i = body->first; i < body->first + body->count; i++)
                if (c != from->entry || self->needed[i]) copy_instruction(self, made_in, i);
            if (self->composer.module->arena.failed) return;
            self->composer.computations[made_in].root = self->made[body->root];
            goes_on = true;
        }
    }
}

/* Makes the module without the recomputed instructions, whose users read the forward values. */
static AmStatus compose(UndoBuilder *self, IrModule **module, int32_t **origins, AmError *error) {
    IrModule *made = ir_module_new(self->from->source);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    made->name = self->from->name;
    made->aliases = self->from->aliases;
    made->alias_count = self->from->alias_count;
    made->is_optimized = self->from->is_optimized;
    self->composer.module = made;
    self->computation[self->from->entry] =
        ir_compose_computation(&self->composer, self->from->computations[self->from->entry].name);
    copy_computations(self);
    AmStatus status = made->arena.failed ? am_fail_memory(error, self->from->instruction_count)
                                         : ir_compose_finish(&self->composer, origins, error);
    if (status == AM_OK) *module = made;
    else ir_module_free(made);
    return status;
}

AmStatus ir_undo_recomputation(IrModule **module, int32_t **origins, const IrModule *canonical,
                               const IrPhase *phases, AmError *error) {
    Arena scratch = {0};
    *module = NULL;
    AmStatus status = AM_OK;
    int32_t count = canonical->instruction_count;
    IrDataflow flow;
    UndoBuilder self = {.from = canonical,
                        .value = ARENA_ARRAY(&scratch, int32_t, count + 1),
                        .needed = ARENA_ARRAY(&scratch, bool, count + 1),
                        .computation = ARENA_ARRAY(&scratch, int32_t, canonical->computation_count + 1),
                        .made = ARENA_ARRAY(&scratch, int32_t, count + 1)};
    int32_t *numbers = ARENA_ARRAY(&scratch, int32_t, count + 1);
    bool *is_position = ARENA_ARRAY(&scratch, bool, count + 1);
    bool *is_fixed = ARENA_ARRAY(&scratch, bool, count + 1);
    if (scratch.failed) TRY_OR_FAIL(am_fail_memory(error, count));
    for (int32_t i = 0; i < count; i++)
        if (canonical->instructions[i].control_count > 0 || ir_has_effect(&canonical->instructions[i]))
            goto fail;
    memset(self.computation, -1, sizeof(int32_t) * (size_t)canonical->computation_count);
    TRY_OR_FAIL(ir_dataflow_make(&flow, &scratch, canonical, error));
    TRY_OR_FAIL(ir_number_values(numbers, canonical, flow.sources, error));
    find_positions(is_position, is_fixed, &flow);
    if (find_twins(&self, &flow, numbers, phases, is_position) == 0) goto fail;
    mark_needed(&self);
    status = compose(&self, module, origins, error);
fail:
    arena_free(&scratch);
    return status;
}
