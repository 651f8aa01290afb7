/* Computes the memory of the functions that XLA compiles for one device (jax_memory.h).
 *
 * jax_memory() cuts these functions from the device's program, finds the bytes of each (xla_memory.h), and
 * takes the peak over the order of the schedule. The program has a loop over micro-batches for each pass and
 * chunk, or one loop for both passes, or with one micro-batch no loop:
 *
 *     part of the program       function
 *     loop of one pass          its body; arguments and results are those that an iteration reads and writes
 *     loop of both, or none     forward: the producers of the loss and of sent values; backward: the rest
 *     after the loops           updates; without a loop, the optimizer's phase
 *
 * XLA sums gradients over devices in each backward pass, for it has no partial arrays between functions.
 */
#include "cost/memory/jax_memory.h"

#include <string.h>

#include "ir/analysis/loops.h"
#include "lowering/interleave/interleave.h"
#include "lowering/program/program_edit.h"

/* The passes that are functions of a chunk. */
enum { FORWARD = SCHEDULE_FORWARD, BACKWARD = SCHEDULE_BACKWARD, WEIGHTS = SCHEDULE_WEIGHTS };

enum { NONE = -1 /* no pass, or no parameter */ };

/* A function that XLA compiles by itself: some instructions of the device's program, or of the body of a
 * loop. */
typedef struct CompiledFunction {
    const Program *program;
    bool *is_inside;                   /* [instruction] */
    bool *is_wanted;                   /* [value]: a result */
    bool *is_remade;                   /* [value]: the function computes it again from other arguments */
    const ProgramInstruction **gather; /* [value]: of an argument that is gathered inside, or NULL */
    XlaPair *pairs;                    /* arguments that results overwrite */
    int32_t pair_count;
    int64_t argument_bytes; /* of arrays that are in memory for this call alone */
    int64_t sum_bytes;      /* of results that are added up over micro-batches */
    int64_t first, later;   /* bytes of results and temporary buffers: of the first call, of others */
} CompiledFunction;

/* An array of each micro-batch, by a value of the device's program. */
typedef struct KeptArray {
    int64_t bytes;
    int8_t from, until; /* passes that make and read it first, and read it last; NONE */
    int32_t chunk;
    int32_t value; /* of the body of `from`, of which the loop keeps one for each micro-batch; NONE */
    bool is_remade;
    bool is_cut_before; /* a part of an array that is computed before the passes: in memory from then on */
} KeptArray;

/* The functions of a chunk of the stage, by pass. */
typedef struct ChunkFunctions {
    CompiledFunction passes[SCHEDULE_PASSES];
    int64_t kept[SCHEDULE_PASSES][SCHEDULE_PASSES];   /* [from][until] bytes of a micro-batch */
    const ProgramInstruction *loops[SCHEDULE_PASSES]; /* the loops that the functions are cut from, or NULL */
} ChunkFunctions;

/* All functions of a device of one stage, and the arrays between them. */
typedef struct StageFunctions {
    const Program *program; /* of the device */
    const Plan *plan;
    Arena *arena;
    int32_t stage;          /* of the device */
    ChunkFunctions *chunks; /* [chunk_count] */
    int32_t chunk_count;
    KeptArray *kept; /* [value] */
    int32_t *alive;  /* [alive_count] values of the program: sums and kept arrays */
    int32_t alive_count;
    CompiledFunction update;
    int64_t before_bytes;    /* of arrays that are computed before the passes */
    int64_t before_of_batch; /* parts of them, of one micro-batch */
} StageFunctions;

static int64_t bytes_of(const Program *program, int32_t value) {
    return ir_shape_bytes(&program->values[value].shape);
}

static AmStatus open_function(CompiledFunction *self, Arena *arena, const Program *program, AmError *error) {
    *self = (CompiledFunction){
        .program = program,
        .is_inside = ARENA_ARRAY(arena, bool, program->instruction_count + 1),
        .is_wanted = ARENA_ARRAY(arena, bool, program->value_count + 1),
        .is_remade = ARENA_ARRAY(arena, bool, program->value_count + 1),
        .gather = ARENA_ARRAY(arena, const ProgramInstruction *, program->value_count + 1),
        .pairs =
            ARENA_ARRAY(arena, XlaPair, program->roles->output_count + program->execution.update_count + 1)};
    return arena->failed ? am_fail_memory(error, program->value_count) : AM_OK;
}

/* ---- the bytes of a function ---- */

/* Removes the addend of a product where that is a sum so far: the first call has none. XLA still has the
 * product beside its sum over devices. */
static void drop_addend(const CompiledFunction *self, Program *view, ProgramInstruction *instruction) {
    int32_t addend = program_viewed(view, instruction->operands[2]);
    for (int32_t k = 0; k < self->pair_count; k++) {
        if (self->pairs[k].parameter != addend) continue;
        SbpState *state = &view->values[instruction->first_result].state;
        if (sbp_has_partial(*state)) *state = (SbpState){0};
        else instruction->operand_count = 2;
        return;
    }
}

/* Makes a program of the function alone, in the arena. Arguments are values without an instruction. A value
 * that is computed again has a placeholder; a gathered one has the gather from a new argument. */
static AmStatus view_function(Program **made, const CompiledFunction *self, Arena *arena, bool is_first,
                              AmError *error) {
    const Program *program = self->program;
    int32_t added = 0, wanted = 0;
    for (int32_t v = 0; v < program->value_count; v++) {
        added += self->is_remade[v] || self->gather[v];
        wanted += self->is_wanted[v];
    }
    Program *view = ARENA_ARRAY(arena, Program, 1);
    IrRoles *roles = ARENA_ARRAY(arena, IrRoles, 1);
    int32_t count = program->instruction_count, values = program->value_count;
    ProgramInstruction *instructions = ARENA_ARRAY(arena, ProgramInstruction, count + added + 1);
    ProgramValue *value = ARENA_ARRAY(arena, ProgramValue, values + added + 1);
    int32_t *outputs = ARENA_ARRAY(arena, int32_t, wanted + 1);
    int32_t *operands = ARENA_ARRAY(arena, int32_t, added + 1);
    if (arena->failed) return am_fail_memory(error, values);
    if (count > 0) memcpy(instructions, program->instructions, sizeof *instructions * (size_t)count);
    if (values > 0) memcpy(value, program->values, sizeof *value * (size_t)values);
    *view = *program;
    *roles = *program->roles;
    roles->output_count = 0;
    view->roles = roles;
    view->outputs = outputs;
    view->instructions = instructions;
    view->values = value;
    for (int32_t v = 0; v < values; v++) {
        int32_t i = value[v].instruction;
        bool is_argument = i >= 0 && !self->is_inside[i] && instructions[i].kind != PROGRAM_VIEW;
        if (is_argument) value[v].instruction = -1;
        if (self->is_wanted[v]) outputs[roles->output_count++] = v;
        if (value[v].instruction >= 0 || !(self->is_remade[v] || self->gather[v])) continue;
        /* An iota stands for what is computed again: XLA fuses it into its readers. */
        ProgramInstruction *own = &instructions[view->instruction_count];
        *own = (ProgramInstruction){.opcode = IR_IOTA, .first_result = v, .result_count = 1};
        if (self->gather[v]) {
            const ProgramInstruction *gather = self->gather[v];
            operands[view->value_count - values] = view->value_count;
            own->kind = PROGRAM_COLLECTIVE;
            own->collective = gather->collective;
            own->operands = &operands[view->value_count - values];
            own->operand_count = 1;
            value[view->value_count] = value[v];
            value[view->value_count++].instruction = -1;
        }
        value[v].instruction = view->instruction_count++;
    }
    for (int32_t i = 0; i < count && is_first; i++)
        if (ir_is_matrix_product(instructions[i].opcode) && instructions[i].operand_count > 2)
            drop_addend(self, view, &instructions[i]);
    *made = view;
    return AM_OK;
}

/* Finds the bytes of a function's results and temporary buffers in its first call, or in a later one. */
static AmStatus call_bytes(int64_t *bytes, const CompiledFunction *self, bool is_first, AmError *error) {
    Arena *arena = self->program->arena;
    ArenaMark mark = arena_mark(arena);
    Program *view = NULL;
    AmStatus status = view_function(&view, self, arena, is_first, error);
    int32_t pairs = is_first ? 0 : self->pair_count;
    if (status == AM_OK) status = xla_function_bytes(bytes, view, self->pairs, pairs, error);
    arena_release(arena, mark);
    return status;
}

static AmStatus find_bytes(CompiledFunction *self, AmError *error) {
    if (!self->program) return AM_OK;
    TRY(call_bytes(&self->first, self, true, error));
    self->later = self->first;
    return self->pair_count > 0 ? call_bytes(&self->later, self, false, error) : AM_OK;
}

/* ---- values that run again ---- */

/* Returns whether an instruction brings a parameter's shards to other devices: each function does so
 * itself. */
static bool gathers_parameter(const Program *program, const ProgramInstruction *instruction, int32_t r) {
    if (instruction->kind != PROGRAM_COLLECTIVE || instruction->operand_count != instruction->result_count)
        return false;
    ProgramCollectiveKind kind = instruction->collective->kind;
    int32_t operand = program_viewed(program, instruction->operands[r]);
    return kind != PROGRAM_ALL_REDUCE && kind != PROGRAM_REDUCE_SCATTER &&
           kind < PROGRAM_DEVICE_COLLECTIVES && program->values[operand].instruction < 0;
}

/* ---- bodies of loops ---- */

/* Returns the number of the body's parameter that a value views; NONE. */
static int32_t parameter_of(const Program *body, int32_t value) {
    value = program_viewed(body, value);
    for (int32_t p = 0; p < body->roles->output_count; p++)
        if (body->parameters[p] == value) return p;
    return NONE;
}

/* Returns whether a value is the number of the iteration, or its remainder: the place in an array for fewer
 * micro-batches. */
static bool counts_iterations(const Program *body, int32_t value) {
    value = program_viewed(body, value);
    int32_t i = body->values[value].instruction;
    if (i >= 0 && body->instructions[i].opcode == IR_REMAINDER)
        value = program_viewed(body, body->instructions[i].operands[0]);
    return value == body->counter.value;
}

/* Returns the body's parameter whose part for this iteration an instruction takes; NONE. */
static int32_t sliced_parameter(const Program *body, const ProgramInstruction *instruction) {
    if (instruction->opcode != IR_DYNAMIC_SLICE || instruction->kind != PROGRAM_COMPUTE) return NONE;
    bool by_iteration = instruction->compute.place != NULL;
    for (int32_t k = 1; k < instruction->operand_count; k++)
        by_iteration |= counts_iterations(body, instruction->operands[k]);
    return by_iteration ? parameter_of(body, instruction->operands[0]) : NONE;
}

/* Keeps the arrays until a pass from which it computes a value of the forward pass again. */
static AmStatus keep_sources(StageFunctions *self, int32_t chunk, int pass, int32_t value, AmError *error) {
    const ProgramInstruction *loop = self->chunks[chunk].loops[FORWARD];
    const Program *body = loop->regions.programs[0];
    ArenaMark mark = arena_mark(self->arena);
    bool *is_needed = ARENA_ARRAY(self->arena, bool, body->value_count + 1);
    int32_t *open_values = ARENA_ARRAY(self->arena, int32_t, body->value_count + 1);
    int32_t *kept_as = ARENA_ARRAY(self->arena, int32_t, body->value_count + 1); /* number + 1 */
    if (self->arena->failed) return am_fail_memory(error, body->value_count);
    for (int32_t v = 0; v < self->program->value_count; v++) {
        const KeptArray *kept = &self->kept[v];
        if (kept->from == FORWARD && kept->chunk == chunk && kept->value != NONE && !kept->is_remade)
            kept_as[kept->value] = v + 1;
    }
    int32_t open_count = 0;
    open_values[open_count++] = value;
    is_needed[value] = true;
    while (open_count > 0) {
        int32_t v = open_values[--open_count], i = body->values[v].instruction;
        KeptArray *kept = kept_as[v] > 0 ? &self->kept[kept_as[v] - 1] : NULL;
        if (kept && kept->until < pass) kept->until = (int8_t)pass;
        for (int32_t k = 0; !kept && i >= 0 && k < body->instructions[i].operand_count; k++) {
            int32_t operand = body->instructions[i].operands[k];
            if (!is_needed[operand]) open_values[open_count++] = operand;
            is_needed[operand] = true;
        }
    }
    arena_release(self->arena, mark);
    return AM_OK;
}

/* Notes the value whose part the pass reads, an array of each micro-batch. */
static AmStatus read_part(StageFunctions *self, CompiledFunction *function, int32_t chunk, int pass,
                          int32_t of, int32_t part, AmError *error) {
    const Program *program = self->program;
    KeptArray *kept = &self->kept[of];
    if (kept->from == NONE) {
        *kept = (KeptArray){.bytes = bytes_of(function->program, part),
                            .from = (int8_t)pass,
                            .chunk = chunk,
                            .value = NONE,
                            .is_cut_before = program->values[of].instruction >= 0};
        if (kept->is_cut_before) self->before_of_batch += kept->bytes;
    }
    kept->until = (int8_t)pass;
    function->is_remade[part] = kept->is_remade;
    return kept->is_remade ? keep_sources(self, chunk, pass, kept->value, error) : AM_OK;
}

/* Returns the instruction that writes the values of an iteration that the loop keeps for output p, or NULL.
 */
static const ProgramInstruction *writer_of(const Program *body, int32_t p) {
    int32_t i = body->values[program_viewed(body, body->outputs[p])].instruction;
    const ProgramInstruction *writer = i < 0 ? NULL : &body->instructions[i];
    bool writes = writer && writer->opcode == IR_DYNAMIC_UPDATE_SLICE && writer->kind == PROGRAM_COMPUTE;
    return writes && parameter_of(body, writer->operands[0]) == p ? writer : NULL;
}

/* Notes the arrays that a pass keeps for later ones, and those that the later ones compute again. */
static AmStatus keep_arrays(StageFunctions *self, CompiledFunction *function, int32_t chunk, int pass,
                            const ProgramInstruction *loop, AmError *error) {
    const Program *body = function->program, *program = self->program;
    bool *is_kept = ARENA_ARRAY(self->arena, bool, body->value_count + 1);
    bool *is_counted = ARENA_ARRAY(self->arena, bool, body->value_count + 1);
    bool *is_had = ARENA_ARRAY(self->arena, bool, body->value_count + 1);
    if (self->arena->failed) return am_fail_memory(error, body->value_count);
    for (int32_t r = 0; r < loop->result_count; r++) {
        const ProgramInstruction *writer = writer_of(body, loop->loop.carried[r]);
        if (writer) is_kept[program_viewed(body, writer->operands[1])] = true;
    }
    for (int32_t p = 0; p < loop->operand_count; p++)
        is_had[body->parameters[p]] = p == 0 || body->outputs[p] == body->parameters[p];
    if (pass == FORWARD) stacks_find_repeated(body, is_kept, is_had, gathers_parameter);
    for (int32_t r = 0; r < loop->result_count; r++) {
        const ProgramInstruction *writer = writer_of(body, loop->loop.carried[r]);
        if (!writer) continue;
        int32_t value = program_viewed(body, writer->operands[1]);
        KeptArray *kept = &self->kept[program_viewed(program, loop->first_result + r)];
        bool counts = is_kept[value] && !is_counted[value];
        *kept = (KeptArray){.from = (int8_t)pass, .until = NONE, .chunk = chunk, .value = value};
        kept->bytes = counts ? bytes_of(body, value) : 0;
        kept->is_remade = !is_kept[value];
        if (counts) self->alive[self->alive_count++] = loop->first_result + r;
        is_counted[value] = true;
        function->is_wanted[value] |= is_kept[value];
    }
    return AM_OK;
}

/* Makes the body of a loop a function: its reads of each micro-batch, sums, sends and receives. */
static AmStatus take_body(StageFunctions *self, CompiledFunction *function, int32_t chunk, int pass,
                          const ProgramInstruction *loop, AmError *error) {
    const Program *body = loop->regions.programs[0], *program = self->program;
    TRY(open_function(function, self->arena, body, error));
    for (int32_t i = 0; i < body->instruction_count; i++) {
        const ProgramInstruction *instruction = &body->instructions[i];
        int32_t sliced = sliced_parameter(body, instruction);
        function->is_inside[i] = instruction->kind != PROGRAM_TRANSFER && sliced < 0;
        if (sliced >= 0)
            TRY(read_part(self, function, chunk, pass, program_viewed(program, loop->operands[sliced]),
                          instruction->first_result, error));
        if (instruction->kind != PROGRAM_TRANSFER) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            function->is_wanted[program_viewed(body, instruction->operands[k])] = true;
        for (int32_t r = 0; r < instruction->result_count; r++)
            function->argument_bytes += bytes_of(body, instruction->first_result + r);
    }
    for (int32_t p = 0; p < loop->operand_count; p++) {
        int32_t of = program_viewed(program, loop->operands[p]), i = program->values[of].instruction;
        const ProgramInstruction *producer = i < 0 ? NULL : &program->instructions[i];
        if (producer && gathers_parameter(program, producer, of - producer->first_result))
            function->gather[body->parameters[p]] = producer;
    }
    for (int32_t r = 0; r < loop->result_count; r++) {
        int32_t p = loop->loop.carried[r], output = program_viewed(body, body->outputs[p]);
        const ProgramInstruction *writer = writer_of(body, p);
        if (writer) function->is_inside[writer - body->instructions] = false;
        if (writer || body->parameters[p] == body->counter.value || output == body->parameters[p]) continue;
        function->is_wanted[output] = true;
        function->pairs[function->pair_count++] = (XlaPair){body->parameters[p], output};
        function->sum_bytes += bytes_of(body, output);
        self->alive[self->alive_count++] = loop->first_result + r;
    }
    self->chunks[chunk].loops[pass] = loop;
    return keep_arrays(self, function, chunk, pass, loop, error);
}

/* ---- programs of both passes ---- */

/* Marks the instructions whose results the marked values need, [instruction]. */
static void mark_needed(const Program *program, bool *is_needed, const bool *is_target) {
    bool is_changed = true;
    while (is_changed) {
        is_changed = false;
        for (int32_t i = program->instruction_count - 1; i >= 0; i--) {
            const ProgramInstruction *instruction = &program->instructions[i];
            for (int32_t r = 0; r < instruction->result_count && !is_needed[i]; r++)
                if (is_target[instruction->first_result + r]) is_needed[i] = is_changed = true;
            for (int32_t k = 0; is_needed[i] && k < instruction->operand_count; k++) {
                int32_t producer = program->values[instruction->operands[k]].instruction;
                if (producer < 0 || is_needed[producer]) continue;
                is_needed[producer] = is_changed = true;
            }
        }
    }
}

/* Marks roots of operands of the function's instructions, [value]. */
static void mark_used(const CompiledFunction *function, bool *is_used) {
    const Program *program = function->program;
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; function->is_inside[i] && k < program->instructions[i].operand_count; k++)
            is_used[program_viewed(program, program->instructions[i].operands[k])] = true;
}

/* Divides a function into its forward and its backward pass. `is_target` [value]: what the forward pass is
 * for; `is_later` [instruction]: in neither; `is_used_later` [value]: results of the passes that those need.
 */
static AmStatus split_passes(StageFunctions *self, const CompiledFunction *all, const bool *is_target,
                             const bool *is_later, const bool *is_used_later, AmError *error) {
    const Program *program = all->program;
    ChunkFunctions *chunk = &self->chunks[0];
    CompiledFunction *forward = &chunk->passes[FORWARD], *backward = &chunk->passes[BACKWARD];
    int32_t instructions = program->instruction_count + 1, values = program->value_count + 1;
    TRY(open_function(forward, self->arena, program, error));
    TRY(open_function(backward, self->arena, program, error));
    bool *is_forward = ARENA_ARRAY(self->arena, bool, instructions);
    bool *in_forward = ARENA_ARRAY(self->arena, bool, values),
         *is_kept = ARENA_ARRAY(self->arena, bool, values);
    bool *in_backward = ARENA_ARRAY(self->arena, bool, values),
         *is_had = ARENA_ARRAY(self->arena, bool, values);
    if (self->arena->failed) return am_fail_memory(error, values);
    mark_needed(program, is_forward, is_target);
    for (int32_t i = 0; i < program->instruction_count; i++) {
        forward->is_inside[i] = all->is_inside[i] && is_forward[i];
        backward->is_inside[i] = all->is_inside[i] && !is_forward[i] && !is_later[i];
    }
    mark_used(forward, in_forward);
    mark_used(backward, in_backward);
    for (int32_t v = 0; v < program->value_count; v++) {
        int32_t i = program->values[v].instruction;
        bool is_argument = i < 0 || !all->is_inside[i];
        is_kept[v] = in_backward[v] && i >= 0 && forward->is_inside[i] && program_viewed(program, v) == v;
        is_had[v] = is_argument;
        CompiledFunction *function = i >= 0 && backward->is_inside[i] ? backward : forward;
        function->is_wanted[v] = !is_argument && (all->is_wanted[v] || is_used_later[v]);
        forward->gather[v] = backward->gather[v] = all->gather[v];
    }
    stacks_find_repeated(program, is_kept, is_had, gathers_parameter);
    for (int32_t v = 0; v < program->value_count; v++) {
        int32_t i = program->values[v].instruction;
        int64_t bytes = bytes_of(program, v);
        bool is_view = program_viewed(program, v) != v;
        if (i >= 0 && forward->is_inside[i]) {
            forward->is_wanted[v] |= is_kept[v];
            if (is_kept[v]) chunk->kept[FORWARD][BACKWARD] += bytes;
            else if (is_had[v]) backward->is_inside[i] = true;
        } else if (i >= 0 && !all->is_inside[i] && !is_view) { /* an argument of the micro-batch */
            if (in_forward[v] && in_backward[v]) chunk->kept[FORWARD][BACKWARD] += bytes;
            if (in_forward[v]) forward->argument_bytes += bytes;
            else if (in_backward[v]) backward->argument_bytes += bytes;
        }
        bool is_sum = i >= 0 && backward->is_inside[i] && !forward->is_inside[i];
        if (is_used_later[v] && is_sum && !is_view) backward->sum_bytes += bytes;
        bool is_alive = !is_view && i >= 0 && (is_kept[v] || (is_used_later[v] && is_sum));
        if (program == self->program && is_alive) self->alive[self->alive_count++] = v;
    }
    for (int32_t k = 0; k < all->pair_count; k++) {
        int32_t i = program->values[all->pairs[k].value].instruction;
        CompiledFunction *function =
            i >= 0 && backward->is_inside[i] && !forward->is_inside[i] ? backward : forward;
        function->pairs[function->pair_count++] = all->pairs[k];
        if (function == backward) backward->sum_bytes += bytes_of(program, all->pairs[k].value);
    }
    return AM_OK;
}

/* Marks the values that the forward pass sends, in a program of several passes. */
static void mark_sent(const Program *program, bool *is_target) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool sends = instruction->kind == PROGRAM_TRANSFER &&
                     instruction->transfer->sender < instruction->transfer->receiver;
        for (int32_t k = 0; sends && k < instruction->operand_count; k++)
            is_target[program_viewed(program, instruction->operands[k])] = true;
    }
}

/* Marks the values of the new parameters with all values that they need, [value] and [instruction]. */
static void mark_updates(const Program *program, bool *is_update, bool *is_needed) {
    for (int32_t k = 0; k < program->execution.update_count; k++)
        is_update[program_viewed(program, program->execution.updates[k].value)] = true;
    mark_needed(program, is_needed, is_update);
}

/* Divides the body of the only loop. Sums that no update needs, such as the loss, are of the forward pass. */
static AmStatus split_body(StageFunctions *self, const ProgramInstruction *loop, AmError *error) {
    const Program *body = loop->regions.programs[0], *program = self->program;
    CompiledFunction all;
    TRY(take_body(self, &all, 0, FORWARD, loop, error));
    bool *is_target = ARENA_ARRAY(self->arena, bool, body->value_count + 1);
    bool *is_update = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool *is_needed = ARENA_ARRAY(self->arena, bool, program->instruction_count + 1);
    bool *is_used = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool *none = ARENA_ARRAY(self->arena, bool, body->value_count + body->instruction_count + 1);
    if (self->arena->failed) return am_fail_memory(error, body->value_count);
    mark_updates(program, is_update, is_needed);
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; is_needed[i] && k < program->instructions[i].operand_count; k++)
            is_used[program_viewed(program, program->instructions[i].operands[k])] = true;
    for (int32_t r = 0; r < loop->result_count; r++) {
        int32_t p = loop->loop.carried[r], value = loop->first_result + r;
        if (body->parameters[p] != body->counter.value && !is_used[value] && !is_update[value])
            is_target[program_viewed(body, body->outputs[p])] = true;
    }
    mark_sent(body, is_target);
    TRY(split_passes(self, &all, is_target, none, none, error));
    for (int32_t v = 0; v < program->value_count; v++) /* the split has counted what parts it reads */
        self->kept[v].bytes = 0;
    return AM_OK;
}

/* Divides a program without a loop over micro-batches. */
static AmStatus split_program(StageFunctions *self, AmError *error) {
    const Program *program = self->program;
    CompiledFunction all;
    TRY(open_function(&all, self->arena, program, error));
    bool *is_target = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool *is_update = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool *is_used = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool *is_needed = ARENA_ARRAY(self->arena, bool, program->instruction_count + 1);
    if (self->arena->failed) return am_fail_memory(error, program->value_count);
    mark_updates(program, is_update, is_needed);
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool is_later = program->roles->phases[instruction->origin] == IR_PHASE_OPTIMIZER;
        all.is_inside[i] = instruction->kind != PROGRAM_TRANSFER;
        self->update.is_inside[i] = is_needed[i] = is_later && all.is_inside[i];
        for (int32_t k = 0; instruction->kind == PROGRAM_TRANSFER && k < instruction->operand_count; k++)
            all.is_wanted[program_viewed(program, instruction->operands[k])] = true;
    }
    for (int32_t k = 0; k < program->roles->output_count; k++) {
        int32_t value = program->outputs[k] < 0 ? -1 : program_viewed(program, program->outputs[k]);
        if (value >= 0 && !is_update[value]) is_target[value] = all.is_wanted[value] = true;
    }
    mark_sent(program, is_target);
    mark_used(&self->update, is_used);
    for (int32_t v = 0; v < program->value_count; v++) is_used[v] |= is_update[v];
    return split_passes(self, &all, is_target, is_needed, is_used, error);
}

/* ---- a device's functions ---- */

/* Returns the loop over micro-batches that an instruction is; NULL: it is none. */
static const ProgramInstruction *loop_over_batches(const StageFunctions *self, int32_t i) {
    const ProgramInstruction *instruction = &self->program->instructions[i];
    bool is_loop = self->plan->micro_batches > 1 && instruction->kind == PROGRAM_COMPUTE &&
                   instruction->opcode == IR_WHILE && instruction->loop.carried;
    if (!is_loop || instruction->regions.programs[0]->counter.iterations != self->plan->micro_batches)
        return NULL;
    return instruction;
}

/* Takes the loops in their order: those of the forward pass of all chunks, then those of the others. */
static AmStatus take_loops(StageFunctions *self, int32_t loop_count, AmError *error) {
    const Program *program = self->program;
    int32_t number = 0;
    if (loop_count == 1) {
        for (int32_t i = 0; i < program->instruction_count; i++)
            if (loop_over_batches(self, i)) return split_body(self, loop_over_batches(self, i), error);
    }
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *loop = loop_over_batches(self, i);
        if (!loop) continue;
        int pass = number / self->chunk_count;
        int32_t chunk = number++ % self->chunk_count;
        if (pass >= SCHEDULE_PASSES) return AM_OK;
        TRY(take_body(self, &self->chunks[chunk].passes[pass], chunk, pass, loop, error));
    }
    return AM_OK;
}

/* Finds the functions before and after the loops: values that the passes read, and updates. */
static AmStatus take_others(StageFunctions *self, AmError *error) {
    const Program *program = self->program;
    bool *depends = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool *is_read = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    bool is_before = true;
    if (self->arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) depends[v] = program->values[v].instruction < 0;
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; loop_over_batches(self, i) && k < program->instructions[i].operand_count; k++)
            is_read[program_viewed(program, program->instructions[i].operands[k])] = true;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        is_before &= !loop_over_batches(self, i);
        bool sums = instruction->kind == PROGRAM_COLLECTIVE && !program_gathers(instruction);
        self->update.is_inside[i] =
            !is_before && !loop_over_batches(self, i) && instruction->kind != PROGRAM_TRANSFER && !sums;
        for (int32_t r = 0; r < instruction->result_count; r++) {
            int32_t value = instruction->first_result + r;
            depends[value] = instruction->kind == PROGRAM_TRANSFER;
            for (int32_t k = 0; k < instruction->operand_count; k++)
                depends[value] |= depends[instruction->operands[k]];
            bool counts =
                is_before && depends[value] && is_read[value] && !gathers_parameter(program, instruction, r);
            if (counts) self->before_bytes += bytes_of(program, value);
        }
    }
    return AM_OK;
}

/* ---- the schedule ---- */

/* Arrays in memory between functions, beside parameters. */
typedef struct HeldBytes {
    int64_t others, gradients, kept;
} HeldBytes;

/* Finds the arrays in memory. `done` [chunk][pass]: iterations that have ended. `last`: the pass that ends a
 * micro-batch. */
static HeldBytes held_bytes(const StageFunctions *self, int32_t (*done)[SCHEDULE_PASSES], int last) {
    HeldBytes held = {0};
    int32_t ended = self->plan->micro_batches;
    for (int32_t c = 0; c < self->chunk_count; c++) {
        const ChunkFunctions *chunk = &self->chunks[c];
        ended = done[c][last] < ended ? done[c][last] : ended;
        for (int from = 0; from <= last; from++) {
            int64_t sums = done[c][from] > 0 ? chunk->passes[from].sum_bytes : 0;
            *(from == FORWARD ? &held.others : &held.gradients) += sums;
            for (int until = from + 1; until <= last; until++)
                held.kept += (done[c][from] - done[c][until]) * chunk->kept[from][until];
        }
    }
    held.others += self->before_bytes + (self->plan->micro_batches - ended) * self->before_of_batch;
    return held;
}

/* Returns the step that runs a loop; that of the peak of automap's own allocation without one. */
static int32_t step_of(const Program *program, const ProgramInstruction *loop) {
    for (int32_t s = 0; loop && s < program->execution.step_count; s++)
        if (program->execution.steps[s].instruction == loop - program->instructions) return s;
    return program->allocation.peak_step;
}

static void note_peak(XlaMemory *memory, HeldBytes held, int64_t own, int32_t step) {
    int64_t bytes = held.others + held.gradients + held.kept + own;
    if (bytes <= memory->peak_bytes) return;
    memory->peak_bytes = bytes;
    memory->gradients_bytes = held.gradients;
    memory->kept_bytes = held.kept;
    memory->step = step;
}

/* Finds the peak over the passes, without parameters. */
static AmStatus find_peak(StageFunctions *self, XlaMemory *memory, AmError *error) {
    const Plan *plan = self->plan;
    const ScheduledStage scheduled = {.kind = plan->stage_count == 1 ? SCHEDULE_1F1B : plan_schedule(plan),
                                      .stages = plan->stage_count,
                                      .stage = self->stage,
                                      .micro_batches = plan->micro_batches,
                                      .chunks = self->chunk_count};
    ScheduleIteration *iterations;
    int32_t count;
    int last = schedule_splits_backward(scheduled.kind) ? WEIGHTS : BACKWARD;
    int32_t(*done)[SCHEDULE_PASSES] = arena_alloc(self->arena, sizeof *done * (size_t)self->chunk_count);
    if (!done) return am_fail_memory(error, self->chunk_count);
    TRY(schedule_iterations(&iterations, &count, self->arena, &scheduled, error));
    for (int32_t k = 0; k < count; k++) {
        int32_t chunk = iterations[k].chunk, pass = iterations[k].pass;
        const CompiledFunction *function = &self->chunks[chunk].passes[pass];
        HeldBytes held = held_bytes(self, done, last);
        int64_t own = function->argument_bytes + function->later;
        if (done[chunk][pass] == 0) { /* its results are the sums so far */
            own = function->argument_bytes + function->first;
            if (pass != FORWARD) own -= function->sum_bytes, held.gradients += function->sum_bytes;
        }
        note_peak(memory, held, own, step_of(self->program, self->chunks[chunk].loops[pass]));
        done[chunk][pass]++;
    }
    int32_t steps = self->program->execution.step_count;
    HeldBytes held = held_bytes(self, done, last);
    held.others -= self->before_bytes; /* no update reads them */
    note_peak(memory, held, self->update.later, steps > 0 ? steps - 1 : 0);
    return AM_OK;
}

static AmStatus find_functions(StageFunctions *self, AmError *error) {
    const Program *program = self->program;
    int32_t loop_count = 0;
    self->chunks = ARENA_ARRAY(self->arena, ChunkFunctions, self->chunk_count);
    self->kept = ARENA_ARRAY(self->arena, KeptArray, program->value_count + 1);
    if (self->arena->failed) return am_fail_memory(error, program->value_count);
    TRY(open_function(&self->update, self->arena, program, error));
    for (int32_t v = 0; v < program->value_count; v++) self->kept[v].from = self->kept[v].until = NONE;
    for (int32_t i = 0; i < program->instruction_count; i++) loop_count += loop_over_batches(self, i) != NULL;
    if (loop_count == 0) TRY(split_program(self, error));
    else TRY(take_loops(self, loop_count, error));
    if (loop_count > 0) TRY(take_others(self, error));
    /* The arrays of micro-batches, by the passes between which they are in memory. */
    for (int32_t v = 0; v < self->program->value_count; v++) {
        const KeptArray *kept = &self->kept[v];
        if (kept->from == NONE || kept->until == NONE || kept->is_cut_before) continue;
        ChunkFunctions *chunk = &self->chunks[kept->chunk];
        if (kept->from != kept->until) chunk->kept[kept->from][kept->until] += kept->bytes;
        bool is_made = self->program->values[v].instruction >= 0;
        if (!is_made) chunk->passes[kept->from].argument_bytes += kept->bytes;
    }
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        const ProgramUpdate *update = &program->execution.updates[k];
        self->update.is_wanted[program_viewed(program, update->value)] = true;
        self->update.pairs[self->update.pair_count++] =
            (XlaPair){program->parameters[update->parameter], update->value};
    }
    for (int32_t c = 0; c < self->chunk_count; c++)
        for (int pass = 0; pass < SCHEDULE_PASSES; pass++)
            TRY(find_bytes(&self->chunks[c].passes[pass], error));
    return find_bytes(&self->update, error);
}

AmStatus jax_memory(Program *program, const Plan *plan, const ClusterDeviceType *type, AmError *error) {
    Arena *arena = program->arena;
    TRY(xla_memory(program, plan, type, error));
    bool is_sample = program->module->loops && program->module->loops->phases;
    if (program->allocation.xla || !plan->is_for_jax || strcmp(type->name, "host") != 0 ||
        program->allocation.host_bytes > 0 || is_sample)
        return AM_OK;
    XlaMemory *memory = ARENA_ARRAY(arena, XlaMemory, 1);
    int32_t *alive = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    if (arena->failed) return am_fail_memory(error, program->value_count);
    ArenaMark mark = arena_mark(arena);
    AmStatus status = AM_OK;
    StageFunctions self = {.program = program, .plan = plan, .arena = arena, .alive = alive};
    int32_t rank = 0;
    while (self.stage + 1 < plan->stage_count &&
           rank + plan->stages[self.stage].mesh.device_count <= program->first_rank)
        rank += plan->stages[self.stage++].mesh.device_count;
    self.chunk_count = plan->stages[self.stage].range_count > 0 ? plan->stages[self.stage].range_count : 1;
    TRY_OR_FAIL(find_functions(&self, error));
    *memory = (XlaMemory){.has_functions = true, .alive = self.alive, .alive_count = self.alive_count};
    TRY_OR_FAIL(find_peak(&self, memory, error));
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        if (program->parameters[k] < 0) continue;
        bool is_cut = plan->micro_batches > 1 && program->roles->parameters[k].role == IR_ROLE_DATA &&
                      self.kept[program->parameters[k]].from != NONE;
        if (!is_cut) memory->peak_bytes += bytes_of(program, program->parameters[k]);
    }
    program->allocation.xla = memory;
fail:
    arena_release(arena, mark);
    return status;
}
