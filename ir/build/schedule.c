/* Schedules: a sequence of instruction ids for each computation that is not
 * fused. Text has no ids and lists the instructions as they run; the binary lists
 * them in another order and the sequences beside them. Taking the sequence for the
 * order in the file makes both the same module.
 */
#include "ir/build/schedule.h"

bool ir_schedule_index(IrSchedule *schedule, const Hlo__HloModuleProto *module, Arena *arena) {
    *schedule = (IrSchedule){0};
    if (module->schedule == NULL || module->schedule->n_sequences == 0) return true;
    schedule->message = module->schedule;
    size_t count = schedule->message->n_sequences;
    if (!id_map_create(&schedule->sequences, arena, (int64_t)count)) return false;
    for (size_t i = 0; i < count; i++)
        id_map_add(&schedule->sequences, schedule->message->sequences[i]->key, (int32_t)i);
    return true;
}

static bool all_before(const int32_t *places, int32_t place, const int64_t *ids, size_t count,
                       const IdMap *positions) {
    for (size_t i = 0; i < count; i++) {
        int32_t position = id_map_find(positions, ids[i] & 0xFFFFFFFF);
        if (position >= 0 && places[position] >= place) return false;
    }
    return true;
}

/* Returns whether all operands run before their users. places[i]: the place of the instruction at position
 * i. */
static bool operands_come_first(const int32_t *places, const Hlo__HloComputationProto *computation,
                                const IdMap *positions) {
    for (size_t i = 0; i < computation->n_instructions; i++) {
        const Hlo__HloInstructionProto *user = computation->instructions[i];
        if (!all_before(places, places[i], user->operand_ids, user->n_operand_ids, positions) ||
            !all_before(places, places[i], user->control_predecessor_ids, user->n_control_predecessor_ids,
                        positions))
            return false;
    }
    return true;
}

bool ir_schedule_order(int32_t *order, const IrSchedule *schedule,
                       const Hlo__HloComputationProto *computation, const IdMap *positions) {
    if (schedule->message == NULL) return false;
    int32_t found = id_map_find(&schedule->sequences, computation->id);
    if (found < 0) return false;
    const Hlo__HloScheduleProto__InstructionSequence *sequence = schedule->message->sequences[found]->value;
    size_t count = computation->n_instructions;
    if (sequence == NULL || sequence->n_instruction_ids != count) return false;
    for (size_t k = 0; k < count; k++) order[k] = -1;
    for (size_t k = 0; k < count; k++) { /* first the inverse, which shows what occurs twice */
        int32_t position = id_map_find(positions, sequence->instruction_ids[k] & 0xFFFFFFFF);
        if (position < 0 || order[position] >= 0) return false;
        order[position] = (int32_t)k;
    }
    if (!operands_come_first(order, computation, positions)) return false;
    for (size_t k = 0; k < count; k++)
        order[k] = id_map_find(positions, sequence->instruction_ids[k] & 0xFFFFFFFF);
    return true;
}
