/* Views share memory with their origin. Values inside future fusions are counted too, equally in
 * every order.
 */
#include "lowering/program/live_bytes.h"

#include "ir/analysis/loops.h"
#include "propagation/rules/rules.h"

int64_t program_even_bytes(const Program *program, const ProgramValue *value) {
    const IrShape *global = rules_leaf(&program->module->instructions[value->origin].shape, value->leaf);
    int64_t ways = 1;
    for (int32_t axis = 0; axis < program->mesh->axis_count; axis++)
        if (sbp_is_split(value->state.axis[axis])) ways *= program->mesh->axes[axis].size;
    return ir_shape_elements(global) * dtype_bytes(value->shape.type) / ways;
}

AmStatus live_bytes_find(LiveBytes *live, const Program *program, AmError *error) {
    int32_t values = program->value_count;
    *live = (LiveBytes){.program = program,
                        .root = ARENA_ARRAY_RAW(program->arena, int32_t, values + 1),
                        .bytes = ARENA_ARRAY(program->arena, int64_t, values + 1)};
    if (program->arena->failed) return am_fail_memory(error, values);
    for (int32_t v = 0; v < values; v++) {
        live->root[v] = v;
        if (program->values[v].kind != PROGRAM_VALUE_INTERNAL)
            live->bytes[v] = program_even_bytes(program, &program->values[v]);
    }
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind == PROGRAM_VIEW)
            live->root[instruction->first_result] = live->root[instruction->operands[0]];
    }
    return AM_OK;
}

int64_t live_bytes_made(const LiveBytes *live, int32_t i) {
    const ProgramInstruction *instruction = &live->program->instructions[i];
    int64_t bytes = 0;
    for (int32_t k = 0; k < instruction->result_count; k++)
        if (instruction->kind != PROGRAM_VIEW) bytes += live->bytes[instruction->first_result + k];
    return bytes;
}

int64_t live_bytes_taken(const LiveBytes *live, int32_t i) {
    const ProgramInstruction *instruction = &live->program->instructions[i];
    int64_t bytes = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t root = live->root[instruction->operands[k]];
        if (live->program->values[root].kind != PROGRAM_VALUE_PARAMETER) bytes += live->bytes[root];
    }
    return bytes;
}

/* Returns how many layers' copies of a value exist at once, about: all if it is made in the forward pass and
 * last read by instruction `reader` of a later one. */
static int32_t copies_of(const Program *program, const ProgramValue *value, int32_t reader) {
    const IrLoops *loops = program->module->loops;
    if (!loops || !loops->phases || reader < 0 || loops->phases[value->origin] != IR_PHASE_FORWARD) return 1;
    IrPhase used = loops->phases[program->instructions[reader].origin];
    return used == IR_PHASE_FORWARD ? 1 : ir_layers_of(program->module, value->origin);
}

AmStatus live_bytes_most(int64_t *most, const LiveBytes *live, const int32_t *time, AmError *error) {
    const Program *program = live->program;
    int32_t count = program->instruction_count;
    int64_t *change = ARENA_ARRAY(program->arena, int64_t, count + 2); /* from one time to the next */
    int32_t *last = ARENA_ARRAY(program->arena, int32_t, program->value_count + 1); /* [root]: time of use */
    int32_t *reader = ARENA_ARRAY_RAW(program->arena, int32_t, program->value_count + 1); /* [root]: then */
    if (program->arena->failed) return am_fail_memory(error, count);
    for (int32_t v = 0; v < program->value_count; v++) reader[v] = -1;
    for (int32_t i = 0; i < count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t root = live->root[instruction->operands[k]];
            if (time[i] <= last[root] && reader[root] >= 0) continue;
            last[root] = time[i];
            reader[root] = i;
        }
        for (int32_t k = 0; k < instruction->result_count; k++)
            if (time[i] > last[instruction->first_result + k]) last[instruction->first_result + k] = time[i];
    }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) last[live->root[program->outputs[k]]] = count;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < program->instructions[i].result_count; k++) {
            int32_t result = program->instructions[i].first_result + k;
            if (live->root[result] != result) continue;
            int64_t bytes =
                live->bytes[result] * copies_of(program, &program->values[result], reader[result]);
            change[time[i]] += bytes;
            change[last[result] + 1] -= bytes;
        }
    int64_t now = *most = 0;
    for (int32_t t = 0; t < count; t++) {
        now += change[t];
        if (now > *most) *most = now;
    }
    return AM_OK;
}
