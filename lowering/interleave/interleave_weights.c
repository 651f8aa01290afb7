/* Finds the part of the backward pass that can wait, by sweeps from users to producers. See
 * interleave_weights.h. Producers precede their users in a body. */
#include "lowering/interleave/interleave_weights.h"

typedef struct WeightWorkFinder {
    const Program *body, *condition;
    WaitingPart *part;
    int32_t count, parameters;
    bool *is_run;  /* [instruction]: by B */
    bool *is_now;  /* [value]: B needs it */
    bool *is_late; /* [value]: W needs it */
    bool *is_free; /* [value]: follows cheaply from what never changes and the number of the iteration */
} WeightWorkFinder;

static bool is_carried(const WeightWorkFinder *self, int32_t p) {
    return self->body->outputs[p] != self->body->parameters[p];
}

static bool any_result(const ProgramInstruction *instruction, const bool *of_value) {
    for (int32_t r = 0; r < instruction->result_count; r++)
        if (of_value[instruction->first_result + r]) return true;
    return false;
}

static void mark_operands(const ProgramInstruction *instruction, bool *of_value) {
    for (int32_t k = 0; k < instruction->operand_count; k++) of_value[instruction->operands[k]] = true;
}

/* ---- kinds of instructions ---- */

/* Moves data, or computes a single number. */
static bool is_cheap(const Program *body, const ProgramInstruction *instruction) {
    static const IrOpcode moves[] = {IR_CONSTANT, IR_IOTA,          IR_BROADCAST,
                                     IR_SLICE,    IR_DYNAMIC_SLICE, IR_CONVERT};
    if (instruction->kind == PROGRAM_VIEW) return true;
    if (instruction->kind != PROGRAM_COMPUTE) return false;
    for (size_t k = 0; k < sizeof moves / sizeof *moves; k++)
        if (instruction->opcode == moves[k]) return true;
    return ir_is_elementwise(instruction->opcode) && body->values[instruction->first_result].shape.rank == 0;
}

/* Returns whether the instruction is worth an iteration of its own. */
static bool is_heavy(const ProgramInstruction *instruction) {
    static const IrOpcode opcodes[] = {IR_RAGGED_DOT, IR_SCATTER, IR_CUSTOM_CALL};
    if (instruction->kind == PROGRAM_COLLECTIVE || instruction->regions.count > 0) return true;
    if (instruction->kind != PROGRAM_COMPUTE) return false;
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; k++)
        if (instruction->opcode == opcodes[k]) return true;
    return ir_is_product(instruction->opcode);
}

/* ---- sweeps ---- */

static void find_free(WeightWorkFinder *self) {
    for (int32_t p = 0; p < self->parameters; p++)
        self->is_free[self->body->parameters[p]] = !is_carried(self, p) || self->part->is_common[p];
    for (int32_t i = 0; i < self->count; i++) {
        const ProgramInstruction *instruction = &self->body->instructions[i];
        bool is_free = is_cheap(self->body, instruction);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            is_free &= self->is_free[instruction->operands[k]];
        for (int32_t r = 0; r < instruction->result_count; r++)
            self->is_free[instruction->first_result + r] = is_free;
    }
}

/* Marks the instructions of B: ancestors of transfers and of effects without a result, and marked
 * instructions. */
static void sweep_now(WeightWorkFinder *self) {
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (int32_t i = self->count - 1; i >= 0; i--) {
            const ProgramInstruction *instruction = &self->body->instructions[i];
            bool is_root =
                program_instruction_communicates(instruction, false) || instruction->result_count == 0;
            if (!is_root && !any_result(instruction, self->is_now)) continue;
            self->is_run[i] = true;
            mark_operands(instruction, self->is_now);
        }
        for (int32_t p = 0; p < self->parameters; p++) {
            int32_t next = self->body->outputs[p];
            bool is_needed = self->is_now[self->body->parameters[p]] || self->part->is_common[p];
            if (!is_needed || self->is_now[next]) continue;
            self->is_now[next] = has_changed = true;
        }
    }
}

/* Marks carried arrays that nothing heavy leads to but what B runs; whether there was one. */
static bool take_light(WeightWorkFinder *self, bool *leads_from_heavy) {
    bool has_changed = false;
    for (int32_t i = 0; i < self->count; i++) {
        const ProgramInstruction *instruction = &self->body->instructions[i];
        bool from_heavy = !self->is_run[i] && is_heavy(instruction);
        for (int32_t k = 0; k < instruction->operand_count && !self->is_run[i]; k++)
            from_heavy |= leads_from_heavy[instruction->operands[k]];
        for (int32_t r = 0; r < instruction->result_count; r++)
            leads_from_heavy[instruction->first_result + r] = from_heavy;
    }
    for (int32_t p = 0; p < self->parameters; p++) {
        int32_t next = self->body->outputs[p];
        if (!is_carried(self, p) || self->is_now[next] || leads_from_heavy[next]) continue;
        self->is_now[next] = has_changed = true;
    }
    return has_changed;
}

/* Marks the instructions that W runs, copies and reads. */
static void sweep_late(WeightWorkFinder *self) {
    WaitingPart *part = self->part;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &self->body->instructions[i];
        if (!any_result(instruction, self->is_late)) continue;
        part->waits[i] = !self->is_run[i];
        part->is_copied[i] = self->is_run[i] &&
                             (instruction->kind == PROGRAM_VIEW || self->is_free[instruction->first_result]);
        for (int32_t r = 0; r < instruction->result_count; r++) {
            int32_t value = instruction->first_result + r;
            part->crosses[value] = self->is_late[value] && !part->waits[i] && !part->is_copied[i];
        }
        if (part->waits[i] || part->is_copied[i]) mark_operands(instruction, self->is_late);
    }
    for (int32_t p = 0; p < self->parameters; p++) {
        int32_t value = self->body->parameters[p];
        part->is_taken[p] = !is_carried(self, p) && self->is_late[value];
        part->crosses[value] =
            is_carried(self, p) && self->is_late[value] && !part->is_later[p] && !part->is_common[p];
    }
}

/* Removes operands of B that it neither carries nor reads. */
static void find_kept(WeightWorkFinder *self) {
    WaitingPart *part = self->part;
    for (int32_t p = 0; p < self->parameters; p++)
        part->is_kept[p] = part->is_common[p] || (is_carried(self, p) && !part->is_later[p]);
    for (int32_t i = 0; i < self->count; i++) {
        const ProgramInstruction *instruction = &self->body->instructions[i];
        if (!part->waits[i]) mark_operands(instruction, self->is_now);
    }
    for (int32_t p = 0; p < self->parameters; p++)
        part->is_kept[p] |= !is_carried(self, p) && self->is_now[self->body->parameters[p]];
}

AmStatus waiting_part_find(WaitingPart *part, Arena *arena, const ProgramInstruction *loop, AmError *error) {
    const Program *body = loop->regions.programs[0];
    int32_t values = body->value_count, count = body->instruction_count, parameters = loop->operand_count;
    *part = (WaitingPart){.waits = ARENA_ARRAY(arena, bool, count + 1),
                          .is_copied = ARENA_ARRAY(arena, bool, count + 1),
                          .crosses = ARENA_ARRAY(arena, bool, values + 1),
                          .is_later = ARENA_ARRAY(arena, bool, parameters + 1),
                          .is_common = ARENA_ARRAY(arena, bool, parameters + 1),
                          .is_taken = ARENA_ARRAY(arena, bool, parameters + 1),
                          .is_kept = ARENA_ARRAY(arena, bool, parameters + 1)};
    WeightWorkFinder self = {.body = body,
                             .condition = loop->regions.programs[1],
                             .part = part,
                             .count = count,
                             .parameters = parameters,
                             .is_run = ARENA_ARRAY(arena, bool, count + 1),
                             .is_now = ARENA_ARRAY(arena, bool, values + 1),
                             .is_late = ARENA_ARRAY(arena, bool, values + 1),
                             .is_free = ARENA_ARRAY(arena, bool, values + 1)};
    bool *leads_from_heavy = ARENA_ARRAY(arena, bool, values + 1);
    if (arena->failed) return am_fail_memory(error, values);
    /* Values that both halves carry: those that the condition reads, and the counter. */
    ProgramUses uses;
    TRY(program_uses(&uses, arena, self.condition, error));
    for (int32_t p = 0; p < self.parameters; p++) {
        int32_t value = self.condition->parameters[p];
        bool is_read = uses.first[value + 1] > uses.first[value] || uses.is_output[value];
        self.part->is_common[p] = p == 0 || is_read;
    }
    find_free(&self);
    do sweep_now(&self);
    while (take_light(&self, leads_from_heavy));
    for (int32_t p = 0; p < self.parameters; p++) {
        int32_t next = self.body->outputs[p];
        bool is_later = is_carried(&self, p) && !self.is_now[next];
        self.part->is_later[p] = is_later;
        self.part->count += is_later;
        self.is_late[next] |= is_later || self.part->is_common[p];
    }
    sweep_late(&self);
    find_kept(&self);
    /* Both loops must be able to count. */
    for (int32_t p = 0; p < parameters; p++)
        if (part->is_common[p] && part->crosses[body->outputs[p]]) part->count = 0;
    return AM_OK;
}
