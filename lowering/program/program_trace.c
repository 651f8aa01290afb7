/* Trace entries for steps of a program.
 *
 * Measured (executor/report) and predicted (cost/simulate) steps get their names and details here, so that
 * both timelines have the same names.
 */
#include "lowering/program/program_trace.h"

#include <stdio.h>

enum { MOST_GIVEN_NOTES = 4 };

static const ProgramInstruction *instruction_of(const Program *program, int32_t step) {
    const ProgramStep *of_program = &program->execution.steps[step];
    return of_program->fusion < 0 ? &program->instructions[of_program->instruction] : NULL;
}

TraceStream program_trace_stream(const Program *program, int32_t step) {
    const ProgramInstruction *instruction = instruction_of(program, step);
    const ProgramTransfer *transfer = instruction ? instruction->transfer : NULL;
    if (!instruction || !(instruction->collective || transfer)) return TRACE_COMPUTE;
    if (!transfer || (transfer->send_count > 0) == (transfer->receive_count > 0)) return TRACE_COLLECTIVES;
    return transfer->send_count > 0 ? TRACE_SEND : TRACE_RECEIVE;
}

/* Returns the bytes that leave the device, or enter it if none leave. */
static double moved_bytes(const Program *program, const ProgramInstruction *instruction) {
    double bytes = 0;
    int32_t count = instruction->operand_count;
    const ProgramCollective *collective = instruction->collective;
    if (collective && collective->kind == PROGRAM_HOST_STORE) count /= 2; /* the others are the places */
    for (int32_t k = 0; k < count; k++)
        bytes += (double)ir_shape_bytes(&program->values[instruction->operands[k]].shape);
    for (int32_t k = 0; k < instruction->result_count && instruction->operand_count == 0; k++)
        bytes += (double)ir_shape_bytes(&program->values[instruction->first_result + k].shape);
    return bytes;
}

/* Adds the origin in the user's program. */
static void add_origin(TraceSlice *slice, TraceNote *notes, const PlanContext *context,
                       const Program *program, int32_t origin, char *source, size_t room) {
    const IrModule *module = program->module;
    if (!module || origin < 0 || origin >= module->instruction_count) return;
    const IrInstruction *instruction = &module->instructions[origin];
    if (module == context->canonical) slice->category = ir_phase_name(context->roles->phases[origin]);
    notes[slice->note_count++] = (TraceNote){"instruction", instruction->name, 0};
    if (instruction->op_name && instruction->op_name[0])
        notes[slice->note_count++] = (TraceNote){"op_name", instruction->op_name, 0};
    if (!instruction->source_file || !instruction->source_file[0]) return;
    snprintf(source, room, "%s:%d", instruction->source_file, instruction->source_line);
    notes[slice->note_count++] = (TraceNote){"source", source, 0};
}

int32_t program_trace_name(char *name, size_t room, const Program *program, int32_t step) {
    const ProgramInstruction *instruction = instruction_of(program, step);
    if (!instruction) {
        const ProgramFusion *fusion = &program->execution.fusions[program->execution.steps[step].fusion];
        const ProgramFusionOp *last = &fusion->ops[fusion->op_count - 1];
        snprintf(name, room, "%s (fusion of %d)", ir_opcode_name(last->opcode), fusion->op_count);
        return last->origin;
    }
    snprintf(name, room, "%s",
             instruction->collective ? program_collective_name(instruction->collective->kind)
             : instruction->transfer ? "transfer"
                                     : ir_opcode_name(instruction->opcode));
    return instruction->origin;
}

void program_trace_describe(TraceSlice *slice, ProgramTraceRoom *room, const PlanContext *context,
                            const Program *program, int32_t step, double times) {
    const ProgramInstruction *instruction = instruction_of(program, step);
    TraceNote *notes = room->notes;
    if (slice->note_count > MOST_GIVEN_NOTES) slice->note_count = MOST_GIVEN_NOTES;
    for (int32_t k = 0; k < slice->note_count; k++) notes[k] = slice->notes[k];
    slice->notes = notes;
    slice->name = room->name;
    slice->stream = program_trace_stream(program, step);
    int32_t origin = program_trace_name(room->name, sizeof room->name, program, step);
    add_origin(slice, notes, context, program, origin, room->source, sizeof room->source);
    if (slice->stream != TRACE_COMPUTE) {
        notes[slice->note_count++] = (TraceNote){"bytes", NULL, moved_bytes(program, instruction)};
        if (instruction->collective)
            notes[slice->note_count++] = (TraceNote){"ranks", NULL, instruction->collective->group_count};
    }
    if (times != 1) notes[slice->note_count++] = (TraceNote){"times", NULL, times};
}

void program_trace_append(Text *text, const TraceSlice *given, const PlanContext *context,
                          const Program *program, int32_t step, double times) {
    ProgramTraceRoom room;
    TraceSlice slice = *given;
    program_trace_describe(&slice, &room, context, program, step, times);
    trace_append_slice(text, &slice);
}
