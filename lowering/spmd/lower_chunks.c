/* Chunks of a stage: the plan of parts, and the programs of the chunks put into one.
 *
 * lower_merge_chunks() renumbers values, then alternates between merge_plain(), which appends the
 * instructions before the next loops with transfers in their global order, and merge_loops(), which puts the
 * loops of all chunks side by side. A transfer between two chunks of one rank becomes a copy.
 */
#include "lowering/spmd/lower_chunks.h"

#include <string.h>

AmStatus plan_of_chunks(const Plan **parts, Arena *arena, const Plan *plan, AmError *error) {
    int32_t stages = plan->stage_count, chunks = plan->stages[0].range_count;
    if (chunks < 1 || chunks > STAGES_MOST / stages)
        return am_fail(error, AM_ERROR_INPUT, "", "%d stages of %d chunks are more than %d parts", stages,
                       chunks, STAGES_MOST);
    Plan *result = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *made = ARENA_ARRAY(arena, PlanStage, stages * chunks);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *made * stages * chunks);
    *result = *plan;
    result->stages = made;
    result->stage_count = stages * chunks;
    for (int32_t p = 0; p < stages * chunks; p++) {
        const PlanStage *stage = &plan->stages[p % stages];
        made[p] = *stage;
        made[p].ranges = stage->ranges + p / stages;
        made[p].range_count = 1;
    }
    *parts = result;
    return AM_OK;
}

/* ---- one program of several ---- */

/* A chunk's program and how far it has been taken over. */
typedef struct Source {
    const Program *program;
    int32_t at;          /* the next instruction */
    int32_t first_value; /* the offset of its values' numbers */
} Source;

typedef struct Merger {
    Program *program;
    Source *sources;
    int32_t count;
    int32_t stage, stage_count;
    bool has_places; /* free ones were added */
} Merger;

/* Instructions until the joined loops that come next. */
static int32_t next_group(const Source *source) {
    int32_t i = source->at;
    while (i < source->program->instruction_count && !source->program->instructions[i].loop.iterations) i++;
    return i;
}

static AmStatus append_next(Merger *self, Source *source, AmError *error) {
    Program *program = self->program;
    Arena *arena = program->arena;
    ProgramInstruction instruction = source->program->instructions[source->at++];
    int32_t *operands = ARENA_ARRAY(arena, int32_t, instruction.operand_count + 1);
    ARENA_RESERVE(arena, program->instructions, program->instruction_count, program->instruction_capacity);
    if (arena->failed) return am_fail_memory(error, instruction.operand_count);
    for (int32_t k = 0; k < instruction.operand_count; k++)
        operands[k] = instruction.operands[k] + source->first_value;
    instruction.operands = operands;
    instruction.first_result += source->first_value;
    program->instructions[program->instruction_count++] = instruction;
    return AM_OK;
}

/* Appends the next instruction of a chunk, outside of joined loops. Other loops with transfers follow one
 * chunk after the other; joined loops do not. */
static AmStatus append_plain(Merger *self, Source *source, AmError *error) {
    const ProgramInstruction *instruction = &source->program->instructions[source->at];
    if (instruction->opcode == IR_WHILE && program_instruction_communicates(instruction, false))
        return am_fail(
            error, AM_ERROR_INFEASIBLE, self->program->module->source,
            "schedule interleaved_1f1b: loop %s, which is neither the forward pass nor the backward "
            "pass, goes over several stages; schedule 1f1b allows it",
            self->program->module->instructions[instruction->origin].name);
    return append_next(self, source, error);
}

/* Returns the number of a source's next transfer before instruction `end`; -1: none. */
static int64_t next_transfer(const Source *source, int32_t end) {
    for (int32_t i = source->at; i < end; i++)
        if (source->program->instructions[i].kind == PROGRAM_TRANSFER)
            return source->program->instructions[i].transfer->number;
    return -1;
}

/* Joins the send and the receive between two chunks of a stage, which are the last instructions, into
 * one. */
static void join_transfer(Program *program) {
    if (program->instruction_count < 2) return;
    ProgramInstruction *before = &program->instructions[program->instruction_count - 2], *last = before + 1;
    if (before->kind != PROGRAM_TRANSFER || last->kind != PROGRAM_TRANSFER) return;
    if (before->transfer->number != last->transfer->number) return;
    const ProgramInstruction *send = before->operand_count > 0 ? before : last;
    const ProgramInstruction *receive = send == before ? last : before;
    ProgramInstruction both = *send;
    both.first_result = receive->first_result;
    both.result_count = receive->result_count;
    *before = both;
    program->instruction_count--;
}

/* Merges the instructions before the next loops, all transfers in the order of their numbers; for a
 * transfer between two chunks the sending end comes first. */
static AmStatus merge_plain(Merger *self, AmError *error) {
    for (;;) {
        int64_t least = -1;
        for (int32_t c = 0; c < self->count; c++) {
            int64_t number = next_transfer(&self->sources[c], next_group(&self->sources[c]));
            if (number >= 0 && (least < 0 || number < least)) least = number;
        }
        if (least < 0) break;
        for (int pass = 0; pass < 2; pass++) {
            for (int32_t c = 0; c < self->count; c++) {
                Source *source = &self->sources[c];
                if (next_transfer(source, next_group(source)) != least) continue;
                while (source->program->instructions[source->at].kind != PROGRAM_TRANSFER)
                    TRY(append_plain(self, source, error));
                if (pass == 0) continue;
                TRY(append_next(self, source, error));
                join_transfer(self->program);
            }
        }
    }
    for (int32_t c = 0; c < self->count; c++)
        for (int32_t end = next_group(&self->sources[c]); self->sources[c].at < end;)
            TRY(append_plain(self, &self->sources[c], error));
    return AM_OK;
}

/* Adds the places of kept values that are free when the stage has most: each chunk has places for the most
 * micro-batches that it keeps itself. */
static AmStatus add_free_places(Merger *self, const InterleavedLoops *loops, AmError *error) {
    const ScheduledStage scheduled = {.kind = SCHEDULE_INTERLEAVED,
                                      .stages = self->stage_count,
                                      .stage = self->stage,
                                      .micro_batches = loops->count,
                                      .chunks = self->count};
    ScheduleIteration *iterations;
    int64_t places = 0, used = 0, most = 0;
    int32_t count;
    if (self->has_places) return AM_OK;
    self->has_places = true;
    TRY(schedule_iterations(&iterations, &count, self->program->arena, &scheduled, error));
    for (int32_t c = 0; c < self->count; c++)
        places += loops->kept_of_chunk[c] * self->sources[c].program->kept_bytes;
    for (int32_t k = 0; k < count; k++) {
        int64_t bytes = self->sources[iterations[k].chunk].program->kept_bytes;
        used += iterations[k].pass == SCHEDULE_FORWARD ? bytes : -bytes;
        if (used > most) most = used;
    }
    self->program->spare_bytes += places - most;
    return AM_OK;
}

/* Puts the next loops of all chunks side by side; `*found`: there were some. */
static AmStatus merge_loops(Merger *self, bool *found, AmError *error) {
    Program *program = self->program;
    int32_t *kept = ARENA_ARRAY(program->arena, int32_t, self->count + 1), first = program->instruction_count;
    InterleavedLoops *iterations = ARENA_ARRAY(program->arena, InterleavedLoops, 1);
    if (program->arena->failed) return am_fail_memory(error, self->count);
    int32_t have = 0, left = 0, origin = -1;
    for (int32_t c = 0; c < self->count; c++) {
        const Source *source = &self->sources[c];
        if (source->at == source->program->instruction_count) continue;
        const ProgramInstruction *loop = &source->program->instructions[source->at];
        left++;
        have += loop->loop.iterations->second >= 0 && (origin < 0 || loop->origin == origin);
        origin = loop->origin;
        kept[c] = loop->loop.iterations->kept;
        *iterations = *loop->loop.iterations;
    }
    *found = left > 0;
    if (left > 0 && have < self->count)
        return am_fail(error, AM_ERROR_INFEASIBLE, program->module->source,
                       "schedule interleaved_1f1b: a chunk of stage %d is empty in one of the passes; "
                       "schedule 1f1b allows it",
                       self->stage);
    if (left == 0) return AM_OK;
    for (int32_t k = 0; k < 2; k++)
        for (int32_t c = 0; c < self->count; c++) TRY(append_next(self, &self->sources[c], error));
    iterations->second = first + self->count;
    iterations->kept = kept[0];
    iterations->kept_of_chunk = kept;
    iterations->chunks = self->count;
    iterations->stage = self->stage;
    iterations->stage_count = self->stage_count;
    for (int32_t i = first; i < program->instruction_count; i++)
        program->instructions[i].loop.iterations = NULL;
    program->instructions[first].loop.iterations = iterations;
    return add_free_places(self, iterations, error);
}

/* Values one after the other; parameters and outputs are one chunk's each. */
static AmStatus begin_program(Merger *self, Program *const *chunks, AmError *error) {
    Program *program = self->program;
    Arena *arena = program->arena;
    const IrRoles *roles = program->roles;
    int32_t values = 0, updates = 0;
    for (int32_t c = 0; c < self->count; c++) {
        self->sources[c] = (Source){.program = chunks[c], .first_value = values};
        values += chunks[c]->value_count;
        updates += chunks[c]->execution.update_count;
    }
    program->values = ARENA_ARRAY(arena, ProgramValue, values + 1);
    program->parameters = ARENA_ARRAY(arena, int32_t, roles->parameter_count + 1);
    program->outputs = ARENA_ARRAY(arena, int32_t, roles->output_count + 1);
    program->execution.updates = ARENA_ARRAY(arena, ProgramUpdate, updates + 1);
    if (arena->failed) return am_fail_memory(error, values);
    for (int32_t k = 0; k < roles->parameter_count; k++) program->parameters[k] = -1;
    for (int32_t k = 0; k < roles->output_count; k++) program->outputs[k] = -1;
    for (int32_t c = 0; c < self->count; c++) {
        const Program *chunk = chunks[c];
        int32_t first = self->sources[c].first_value;
        memcpy(program->values + first, chunk->values, sizeof *chunk->values * (size_t)chunk->value_count);
        for (int32_t v = first; v < first + chunk->value_count; v++) program->values[v].storage = v;
        for (int32_t k = 0; k < roles->parameter_count; k++)
            if (chunk->parameters[k] >= 0) program->parameters[k] = chunk->parameters[k] + first;
        for (int32_t k = 0; k < roles->output_count; k++)
            if (chunk->outputs[k] >= 0) program->outputs[k] = chunk->outputs[k] + first;
        for (int32_t k = 0; k < chunk->execution.update_count; k++) {
            ProgramUpdate *update = &program->execution.updates[program->execution.update_count++];
            *update = chunk->execution.updates[k];
            update->value += first;
        }
        program->is_uneven |= chunk->is_uneven;
        program->spare_bytes += c > 0 ? chunk->spare_bytes : 0;
        program->kept_bytes += c > 0 ? chunk->kept_bytes : 0;
    }
    program->value_count = program->value_capacity = values;
    return AM_OK;
}

AmStatus lower_merge_chunks(Program **result, Program *const *chunks, int32_t chunk_count, int32_t stage,
                            int32_t stage_count, AmError *error) {
    Arena *arena = chunks[0]->arena;
    Program *program = *result = ARENA_ARRAY(arena, Program, 1);
    Merger self = {.program = program,
                   .sources = ARENA_ARRAY(arena, Source, chunk_count),
                   .count = chunk_count,
                   .stage = stage,
                   .stage_count = stage_count};
    if (arena->failed) return am_fail_memory(error, chunk_count);
    *program = *chunks[0];
    program->instructions = NULL;
    program->instruction_count = program->instruction_capacity = program->execution.update_count = 0;
    TRY(begin_program(&self, chunks, error));
    for (bool found = true; found;) {
        TRY(merge_plain(&self, error));
        TRY(merge_loops(&self, &found, error));
    }
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t r = 0; r < program->instructions[i].result_count; r++)
            program->values[program->instructions[i].first_result + r].instruction = i;
    return AM_OK;
}
