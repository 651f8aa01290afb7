/* Rewrites a module so that the backward pass recomputes activations. Copies come directly before the first
 * backward operator that uses them; operators run in order, so that they are not computed earlier. Inputs of
 * a range are kept, and are therefore not recomputed by their own range either: the backward pass of a layer
 * needs the layer's input, and would otherwise recompute the whole previous layer for it. */
#include "lowering/micro_batch/recompute.h"

#include <string.h>

#include "ir/canonical/compose.h"
#include "propagation/stages/stages.h"

typedef struct Emitter {
    const PlanContext *primary;
    const IrModule *from;
    IrComposer composer;
    Arena *arena;
    int32_t *range_of;    /* [entry instruction]: the range in which it is recomputed, or -1 */
    int32_t *own, *again; /* [entry instruction]: it, and its copy, in the entry that is made; or -1 */
    int32_t *computation; /* [computation]: the one that is made, or -1 */
    bool *is_copy;        /* [instruction of the entry that is made] */
} Emitter;

bool recompute_covers(const PlanContext *primary, int32_t i) {
    const IrInstruction *instruction = plan_context_instruction(primary, i);
    if (primary->roles->phases[i] != IR_PHASE_FORWARD || instruction->shape.type == DTYPE_TUPLE) return false;
    switch (instruction->opcode) {
    case IR_PARAMETER:
    case IR_WHILE:
    case IR_CONDITIONAL:
    case IR_CUSTOM_CALL:
    case IR_RNG:
    case IR_GET_TUPLE_ELEMENT: return false;
    default: return true;
    }
}

static int32_t copy_computation(Emitter *self, int32_t computation) {
    const IrComputation *body = &self->from->computations[computation];
    if (self->computation[computation] >= 0) return self->computation[computation];
    int32_t made = ir_compose_computation(&self->composer, body->name);
    self->computation[computation] = made;
    for (int32_t i = body->first; i < body->first + body->count && !self->arena->failed; i++) {
        IrInstruction copy = self->from->instructions[i];
        int32_t *operands = ARENA_ARRAY(self->arena, int32_t, copy.operand_count + 1);
        int32_t *called = ARENA_ARRAY(self->arena, int32_t, copy.called_count + 1);
        if (self->arena->failed) return made;
        for (int32_t k = 0; k < copy.operand_count; k++) operands[k] = copy.operands[k] - body->first;
        for (int32_t k = 0; k < copy.called_count; k++) called[k] = copy_computation(self, copy.called[k]);
        copy.operands = operands;
        copy.called = called;
        ir_compose(&self->composer, made, &copy, i);
    }
    if (!self->arena->failed) self->composer.computations[made].root = body->root - body->first;
    return made;
}

/* Appends a copy of an instruction with these operands; `is_copy`: it is the recomputed one. */
static int32_t emit_copy(Emitter *self, int32_t i, const int32_t *operands, bool is_copy) {
    IrInstruction made = self->from->instructions[i];
    int32_t *called = ARENA_ARRAY(self->arena, int32_t, made.called_count + 1);
    if (self->arena->failed) return 0;
    for (int32_t k = 0; k < made.called_count; k++) called[k] = copy_computation(self, made.called[k]);
    made.operands = operands;
    made.called = called;
    int32_t index = ir_compose(&self->composer, 0, &made, i);
    if (!self->arena->failed) self->is_copy[index] = is_copy;
    return index;
}

/* Returns the copy of i, with copies of its operands in the same range. A range's operators are in order, so
 * that missing copies are made first. */
static int32_t make_again(Emitter *self, int32_t i, bool *wanted) {
    if (self->again[i] >= 0) return self->again[i];
    int32_t range = self->range_of[i], first = i;
    wanted[i] = true;
    for (int32_t j = i; j >= first; j--) {
        const IrInstruction *instruction = &self->from->instructions[j];
        if (!wanted[j]) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            if (self->range_of[operand] != range || self->again[operand] >= 0) continue;
            wanted[operand] = true;
            if (operand < first) first = operand;
        }
    }
    for (int32_t j = first; j <= i && !self->arena->failed; j++) {
        const IrInstruction *instruction = &self->from->instructions[j];
        if (!wanted[j]) continue;
        wanted[j] = false;
        int32_t *operands = ARENA_ARRAY(self->arena, int32_t, instruction->operand_count + 1);
        for (int32_t k = 0; operands && k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            operands[k] = self->range_of[operand] == range ? self->again[operand] : self->own[operand];
        }
        if (operands) self->again[j] = emit_copy(self, j, operands, true);
    }
    return self->again[i];
}

AmStatus recompute_ranges(int32_t *range_of, Arena *arena, const PlanContext *primary,
                          const PlanRecomputation *recomputed, AmError *error) {
    int32_t entry = primary->rules->entry_count;
    const IrInstruction *instructions = primary->canonical->instructions;
    bool *is_kept = ARENA_ARRAY(arena, bool, entry + 1);
    if (!is_kept) return am_fail_memory(error, entry);
    memset(range_of, -1, sizeof *range_of * (size_t)entry);
    for (int32_t k = 0; k < recomputed->saved_count; k++) is_kept[recomputed->saved[k]] = true;
    for (int32_t r = 0; r < recomputed->range_count; r++)
        for (int32_t i = recomputed->ranges[r][0]; i < recomputed->ranges[r][1]; i++)
            if (recompute_covers(primary, i)) range_of[i] = r;
    for (int32_t i = 0; i < entry; i++) {
        bool is_forward = primary->roles->phases[i] == IR_PHASE_FORWARD;
        if (!is_forward || !primary->split_options->live[i] || stages_is_transparent(primary, i)) continue;
        for (int32_t k = 0; k < instructions[i].operand_count; k++) {
            int32_t operand = instructions[i].operands[k];
            bool leaves = range_of[operand] >= 0 && range_of[operand] != range_of[i];
            if (leaves && !stages_is_transparent(primary, operand)) is_kept[operand] = true;
        }
    }
    for (int32_t i = 0; i < entry; i++)
        if (is_kept[i]) range_of[i] = -1;
    return AM_OK;
}

AmStatus recompute_emit(IrModule **module, int32_t **origins, bool **is_copy, const PlanContext *primary,
                        const PlanRecomputation *recomputed, AmError *error) {
    IrModule *made = ir_module_new(primary->canonical->source);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    Emitter self = {
        .primary = primary, .from = primary->canonical, .composer = {.module = made}, .arena = &made->arena};
    AmStatus status = AM_OK;
    int32_t count = self.primary->rules->entry_count, computations = self.from->computation_count;
    bool *wanted = ARENA_ARRAY(self.arena, bool, count + 1);
    int32_t **arrays[] = {&self.own, &self.again};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) {
        *arrays[k] = ARENA_ARRAY(self.arena, int32_t, count + 1);
        if (*arrays[k]) memset(*arrays[k], -1, sizeof(int32_t) * (size_t)count);
    }
    self.range_of = ARENA_ARRAY(self.arena, int32_t, count + 1);
    self.computation = ARENA_ARRAY(self.arena, int32_t, computations + 1);
    self.is_copy = ARENA_ARRAY(self.arena, bool, 2 * (int64_t)count + 1);
    if (self.arena->failed) TRY_OR_FAIL(am_fail_memory(error, count));
    memset(self.computation, -1, sizeof(int32_t) * (size_t)computations);
    TRY_OR_FAIL(recompute_ranges(self.range_of, self.arena, self.primary, recomputed, error));
    made->name = self.from->name;
    made->aliases = self.from->aliases;
    made->alias_count = self.from->alias_count;
    ir_compose_computation(&self.composer, self.from->computations[self.from->entry].name);
    self.computation[self.from->entry] = 0;
    const IrComputation *entry = &self.from->computations[self.from->entry];
    for (int32_t i = entry->first; i < entry->first + entry->count && !self.arena->failed; i++) {
        const IrInstruction *instruction = &self.from->instructions[i];
        IrPhase phase = self.primary->roles->phases[i];
        bool takes_copies = phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED;
        int32_t *operands = ARENA_ARRAY(self.arena, int32_t, instruction->operand_count + 1);
        for (int32_t k = 0; operands && k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            bool again = takes_copies && self.range_of[operand] >= 0;
            operands[k] = again ? make_again(&self, operand, wanted) : self.own[operand];
        }
        if (operands) self.own[i] = emit_copy(&self, i, operands, false);
    }
    if (!self.arena->failed) self.composer.computations[0].root = self.own[entry->root];
    if (self.arena->failed) TRY_OR_FAIL(am_fail_memory(error, count));
    status = ir_compose_finish(&self.composer, origins, error);
fail:
    if (status != AM_OK) {
        ir_module_free(made);
        return status;
    }
    *module = made;
    *is_copy = self.is_copy;
    return AM_OK;
}
