/* Finds the stacks that pass values between two loops, by their form, and reduces their places.
 *
 * The first loop's body writes place m of an array in iteration m by a dynamic-update-slice and
 * does nothing else with the array. The second one's reads place m in iteration m by
 * dynamic-slices, through reshapes that may also be outside the loop. Iteration m may therefore use
 * place m mod kept, once iteration m - kept has been read.
 */
#include <string.h>

#include "lowering/interleave/interleave.h"
#include "lowering/passes/passes.h"

static bool is_reshape(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_VIEW;
}

/* Returns the dimension whose index is the loop's counter, its parameter 0; -1 unless there is exactly one
 * and all other dimensions of `window` are as large as the array. */
static int32_t iteration_dimension(const Program *body, const ProgramInstruction *slice, int32_t first_index,
                                   const int64_t *window, int32_t iterations) {
    const IrShape *array = &body->values[slice->operands[0]].shape;
    int32_t found = -1;
    if (slice->operand_count != first_index + array->rank || slice->compute.shard) return -1;
    for (int32_t d = 0; d < array->rank; d++) {
        bool is_iteration = slice->operands[first_index + d] == body->parameters[0];
        if (is_iteration && (found >= 0 || window[d] != 1 || array->dimensions[d] != iterations)) return -1;
        if (!is_iteration && window[d] != array->dimensions[d]) return -1;
        if (is_iteration) found = d;
    }
    return found;
}

static int32_t users_of(const ProgramUses *uses, int32_t value) {
    return uses->first[value + 1] - uses->first[value];
}

/* Returns the instruction by which the body writes parameter p, or -1. */
static int32_t find_writer(const Program *body, const ProgramUses *uses, int32_t p) {
    int32_t before = body->parameters[p], after = body->outputs[p], writer = uses->producer[after];
    if (writer < 0 || users_of(uses, before) != 1 || users_of(uses, after) != 0) return -1;
    const ProgramInstruction *instruction = &body->instructions[writer];
    bool writes = instruction->opcode == IR_DYNAMIC_UPDATE_SLICE && instruction->operands[0] == before;
    return writes && !uses->is_output[before] ? writer : -1;
}

/* Returns whether the body only reads place m in iteration m of `value`, which is a view of a stack
 * of that shape. */
static bool is_read_by_iteration(const Program *body, const ProgramUses *uses, int32_t value,
                                 const IrShape *stack, int32_t dimension) {
    for (int32_t u = uses->first[value]; u < uses->first[value + 1]; u++) {
        const ProgramInstruction *user = &body->instructions[uses->users[u]];
        if (is_reshape(user)) {
            if (uses->is_output[user->first_result] ||
                !is_read_by_iteration(body, uses, user->first_result, stack, dimension))
                return false;
            continue;
        }
        if (user->opcode != IR_DYNAMIC_SLICE || user->kind != PROGRAM_COMPUTE || user->operands[0] != value ||
            !ir_shape_equal(&body->values[value].shape, stack))
            return false;
        if (iteration_dimension(body, user, 1, user->attributes->slice_sizes,
                                (int32_t)stack->dimensions[dimension]) != dimension)
            return false;
    }
    return true;
}

/* Returns whether only the second loop reads the result, and the first one's array begins as a repeated
 * scalar. */
static bool is_private(const Program *program, const ProgramUses *uses, int32_t result, int32_t second,
                       int32_t initial) {
    int32_t producer = uses->producer[initial];
    if (uses->is_output[result]) return false;
    for (int32_t u = uses->first[result]; u < uses->first[result + 1]; u++) {
        int32_t user = uses->users[u];
        const ProgramInstruction *instruction = &program->instructions[user];
        if (user == second) continue;
        if (!is_reshape(instruction) ||
            !is_private(program, uses, instruction->first_result, second, initial))
            return false;
    }
    return producer >= 0 && program->instructions[producer].opcode == IR_BROADCAST &&
           program->values[program->instructions[producer].operands[0]].shape.rank == 0;
}

AmStatus joined_loops_open(JoinedLoops *loops, Arena *arena, Program *program, int32_t first, int32_t second,
                           int32_t iterations, AmError *error) {
    *loops = (JoinedLoops){.program = program, .first = first, .second = second, .iterations = iterations};
    TRY(program_uses(&loops->uses, arena, program, error));
    TRY(program_uses(&loops->in_first, arena, program->instructions[first].regions.programs[0], error));
    return program_uses(&loops->in_second, arena, program->instructions[second].regions.programs[0], error);
}

bool stack_find(LoopStack *stack, const JoinedLoops *loops, int32_t operand) {
    const Program *program = loops->program;
    const ProgramInstruction *first_loop = &program->instructions[loops->first];
    const ProgramInstruction *second_loop = &program->instructions[loops->second];
    const Program *writes = first_loop->regions.programs[0], *reads = second_loop->regions.programs[0];
    int32_t value = program_viewed(program, second_loop->operands[operand]);
    bool is_kept = reads->outputs[operand] == reads->parameters[operand];
    if (loops->uses.producer[value] != loops->first || !is_kept) return false;
    int32_t result = value - first_loop->first_result, p = first_loop->loop.carried[result];
    int32_t writer = find_writer(writes, &loops->in_first, p);
    if (writer < 0) return false;
    const ProgramInstruction *write = &writes->instructions[writer];
    const int64_t *window = writes->values[write->operands[1]].shape.dimensions;
    const IrShape *shape = &program->values[value].shape;
    int32_t dimension = iteration_dimension(writes, write, 2, window, loops->iterations);
    if (dimension < 0) return false;
    *stack = (LoopStack){.operand = operand, .result = result, .dimension = dimension};
    stack->may_shrink = is_private(program, &loops->uses, value, loops->second, first_loop->operands[p]);
    return is_read_by_iteration(reads, &loops->in_second, reads->parameters[operand], shape, dimension);
}

/* ---- fewer places, together ---- */

/* Returns the shape with dimension `dimension` as the first one, of size `places`. */
static IrShape with_places(Arena *arena, const IrShape *shape, int32_t dimension, int64_t places) {
    IrShape result = *shape;
    int64_t *dimensions = ARENA_ARRAY(arena, int64_t, shape->rank + 1);
    if (!dimensions) return result;
    int32_t rank = 0;
    dimensions[rank++] = places;
    for (int32_t d = 0; d < shape->rank; d++)
        if (d != dimension) dimensions[rank++] = shape->dimensions[d];
    result.dimensions = dimensions;
    result.minor_to_major = NULL;
    return result;
}

/* Returns the state of such an array: dimensions before `dimension` become one higher. */
static SbpState with_places_state(SbpState state, int32_t dimension) {
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_split(state.axis[axis]) && sbp_dimension(state.axis[axis]) < dimension)
            state.axis[axis] = sbp_split(sbp_dimension(state.axis[axis]) + 1);
    return state;
}

/* Adds "iteration mod kept" as the first instruction of a body. */
static AmStatus add_place(Program *body, int32_t kept, int32_t *place, AmError *error) {
    static const IrAttributes none;
    Arena *arena = body->arena;
    int32_t iteration = body->parameters[0];
    IrLiteral *literal = ARENA_ARRAY(arena, IrLiteral, 1);
    int64_t *number = ARENA_ARRAY(arena, int64_t, 1);
    int32_t *operands = ARENA_ARRAY(arena, int32_t, 2);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *literal);
    ProgramValue scalar = body->values[iteration];
    scalar.kind = PROGRAM_VALUE_TEMPORARY;
    scalar.offset = -1;
    *number = kept; /* little-endian: the same bytes at the start, whatever the counter's width */
    *literal = (IrLiteral){.data = number, .bytes = dtype_bytes(scalar.shape.type)};
    operands[0] = iteration;
    operands[1] = program_add_value(body, &scalar);
    *place = program_add_value(body, &scalar);
    if (arena->failed) return am_fail_memory(error, body->value_count);
    TRY(program_insert(body, 0, 2, error));
    ProgramInstruction *instructions = body->instructions;
    ProgramInstruction made = {.kind = PROGRAM_COMPUTE,
                               .origin = scalar.origin,
                               .result_count = 1,
                               .attributes = &none,
                               .compute.called = -1,
                               .compute.called_second = -1};
    instructions[0] = instructions[1] = made;
    instructions[0].opcode = IR_CONSTANT;
    instructions[0].compute.literal = literal;
    instructions[0].first_result = operands[1];
    instructions[1].opcode = IR_REMAINDER;
    instructions[1].operand_count = 2;
    instructions[1].operands = operands;
    instructions[1].first_result = *place;
    program_number_producers(body, 0);
    return AM_OK;
}

/* A place of an array whose first dimension is that of the iterations. */
typedef struct StackPlace {
    int32_t array, place; /* values: the array, and the index in its first dimension */
    int32_t dimension;    /* of the iterations, before it became the first one */
} StackPlace;

/* Replaces a slice's operands by `leading`, [first], and then its indices; the index of the iterations
 * becomes that of the place and comes first. */
static AmStatus redirect(Program *body, ProgramInstruction *slice, const int32_t *leading, int32_t first,
                         const StackPlace *to, AmError *error) {
    int32_t *operands = ARENA_ARRAY(body->arena, int32_t, slice->operand_count + 1), count = 0;
    if (!operands) return am_fail_memory(error, slice->operand_count);
    while (count < first) operands[count] = leading[count], count++;
    operands[count++] = to->place;
    for (int32_t k = first; k < slice->operand_count; k++)
        if (k - first != to->dimension) operands[count++] = slice->operands[k];
    slice->operands = operands;
    return AM_OK;
}

/* Adds a value like another, with dimension `dimension`, of size 1, as the first one. */
static int32_t add_shaped(Program *body, int32_t like, int32_t dimension) {
    ProgramValue made = body->values[like];
    made.shape = with_places(body->arena, &made.shape, dimension, 1);
    made.state = with_places_state(made.state, dimension);
    made.kind = PROGRAM_VALUE_TEMPORARY;
    made.offset = -1;
    return program_add_value(body, &made);
}

/* Adds `result` as a view of `value`, at the end of the list. */
static void add_view(Program *body, int32_t value, int32_t result) {
    static const IrAttributes none;
    int32_t *operands = ARENA_ARRAY(body->arena, int32_t, 1);
    ARENA_RESERVE(body->arena, body->instructions, body->instruction_count, body->instruction_capacity);
    if (body->arena->failed) return;
    operands[0] = value;
    body->instructions[body->instruction_count++] =
        (ProgramInstruction){.kind = PROGRAM_VIEW,
                             .opcode = IR_RESHAPE,
                             .origin = body->values[result].origin,
                             .operand_count = 1,
                             .operands = operands,
                             .result_count = 1,
                             .first_result = result,
                             .attributes = &none,
                             .compute.called = -1,
                             .compute.called_second = -1};
}

/* The positions of views at the end of a body's list: next to the slices for which they were added. */
typedef struct Insertions {
    Program *body;
    int32_t count;   /* instructions that were there before */
    int32_t *before; /* [instruction]: a view that goes before it, or -1 */
    int32_t *after;  /* [instruction]: the one to insert after it, or -1 */
} Insertions;

static AmStatus begin_insertions(Insertions *insertions, Program *body, AmError *error) {
    int32_t count = body->instruction_count;
    *insertions = (Insertions){.body = body,
                               .count = count,
                               .before = ARENA_ARRAY(body->arena, int32_t, count + 1),
                               .after = ARENA_ARRAY(body->arena, int32_t, count + 1)};
    if (body->arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) insertions->before[i] = insertions->after[i] = -1;
    return AM_OK;
}

static AmStatus end_insertions(const Insertions *insertions, AmError *error) {
    Program *body = insertions->body;
    int32_t *list = ARENA_ARRAY(body->arena, int32_t, body->instruction_count + 1), count = 0;
    if (!list) return am_fail_memory(error, body->instruction_count);
    for (int32_t i = 0; i < insertions->count; i++) {
        if (insertions->before[i] >= 0) list[count++] = insertions->before[i];
        list[count++] = i;
        if (insertions->after[i] >= 0) list[count++] = insertions->after[i];
    }
    return program_relist(body, list, count, error);
}

/* Redirects the write of instruction i to a place. */
static AmStatus redirect_writer(Insertions *insertions, int32_t i, const StackPlace *to, AmError *error) {
    Program *body = insertions->body;
    int32_t value = body->instructions[i].operands[1];
    int32_t view = add_shaped(body, value, to->dimension);
    insertions->before[i] = body->instruction_count;
    if (!body->arena->failed) add_view(body, value, view);
    if (body->arena->failed) return am_fail_memory(error, 0);
    const int32_t leading[] = {to->array, view};
    return redirect(body, &body->instructions[i], leading, 2, to, error);
}

/* Redirects the read of instruction i to a place: the former value becomes a view of the new one. */
static AmStatus redirect_reader(Insertions *insertions, int32_t i, const StackPlace *to, AmError *error) {
    Program *body = insertions->body;
    int32_t result = body->instructions[i].first_result;
    IrAttributes *attributes = ARENA_ARRAY(body->arena, IrAttributes, 1);
    int32_t read = add_shaped(body, result, to->dimension);
    insertions->after[i] = body->instruction_count;
    if (!body->arena->failed) add_view(body, read, result);
    if (body->arena->failed) return am_fail_memory(error, 0);
    ProgramInstruction *slice = &body->instructions[i];
    *attributes = *slice->attributes;
    attributes->slice_sizes = body->values[read].shape.dimensions;
    slice->attributes = attributes;
    slice->first_result = read;
    return redirect(body, slice, &to->array, 1, to, error);
}

/* Redirects all slices that read `value`, through any views, to a place. `uses` are those before `added`
 * instructions were inserted at the beginning of the body. */
static AmStatus redirect_readers(Insertions *insertions, const ProgramUses *uses, int32_t added,
                                 int32_t value, const StackPlace *to, AmError *error) {
    const Program *body = insertions->body;
    for (int32_t u = uses->first[value]; u < uses->first[value + 1]; u++) {
        int32_t user = uses->users[u] + added;
        if (is_reshape(&body->instructions[user]))
            TRY(redirect_readers(insertions, uses, added, body->instructions[user].first_result, to, error));
        else TRY(redirect_reader(insertions, user, to, error));
    }
    return AM_OK;
}

/* Removes views and repeated scalars without readers, from the last to the first. */
static AmStatus drop_unused(Program *program, AmError *error) {
    int32_t count = program->instruction_count, kept = 0;
    int32_t *list = ARENA_ARRAY(program->arena, int32_t, count + 1);
    int32_t *uses = ARENA_ARRAY(program->arena, int32_t, program->value_count + 1);
    bool *drop = ARENA_ARRAY(program->arena, bool, count + 1);
    if (program->arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) uses[program->outputs[k]]++;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < program->instructions[i].operand_count; k++)
            uses[program->instructions[i].operands[k]]++;
    for (int32_t i = count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool is_plain = is_reshape(instruction) || instruction->opcode == IR_BROADCAST;
        drop[i] = is_plain && instruction->result_count == 1 && uses[instruction->first_result] == 0;
        for (int32_t k = 0; drop[i] && k < instruction->operand_count; k++) uses[instruction->operands[k]]--;
    }
    for (int32_t i = 0; i < count; i++)
        if (!drop[i]) list[kept++] = i;
    for (int32_t i = 0; i < count; i++)
        if (drop[i]) program->values[program->instructions[i].first_result].instruction = -1;
    return program_relist(program, list, kept, error);
}

/* The operands of both loops and the instructions before the first one, as they become. */
typedef struct NewOperands {
    int32_t *first, *second; /* operands of the loops */
    ProgramInstruction
        *repeats; /* [count] scalars repeated into smaller arrays, right before the first loop */
    int32_t count;
} NewOperands;

static AmStatus begin_operands(NewOperands *operands, const JoinedLoops *loops, int32_t stacks,
                               AmError *error) {
    Program *program = loops->program;
    ProgramInstruction *first = &program->instructions[loops->first];
    ProgramInstruction *second = &program->instructions[loops->second];
    *operands = (NewOperands){.first = ARENA_ARRAY(program->arena, int32_t, first->operand_count + 1),
                              .second = ARENA_ARRAY(program->arena, int32_t, second->operand_count + 1),
                              .repeats = ARENA_ARRAY(program->arena, ProgramInstruction, stacks + 1)};
    if (program->arena->failed) return am_fail_memory(error, first->operand_count + second->operand_count);
    memcpy(operands->first, first->operands, sizeof *first->operands * (size_t)first->operand_count);
    memcpy(operands->second, second->operands, sizeof *second->operands * (size_t)second->operand_count);
    first->operands = operands->first;
    second->operands = operands->second;
    return AM_OK;
}

/* Replaces the first loop's initial array, operand p, by a scalar repeated into the smaller shape. */
static AmStatus shrink_initial(NewOperands *operands, Program *program, int32_t p, const LoopStack *stack,
                               AmError *error) {
    ProgramValue value = program->values[operands->first[p]];
    ProgramInstruction *repeat = &operands->repeats[operands->count];
    *repeat = program->instructions[value.instruction];
    value.shape = with_places(program->arena, &value.shape, stack->dimension, stack->kept);
    value.state = with_places_state(value.state, stack->dimension);
    operands->first[p] = repeat->first_result = program_add_value(program, &value);
    if (program->arena->failed) return am_fail_memory(error, program->value_count);
    operands->count++;
    return AM_OK;
}

/* Sets shape and state of the carried value that is parameter p of the loop's regions. */
static void set_shape(const ProgramInstruction *loop, int32_t p, const ProgramValue *like) {
    Program *body = loop->regions.programs[0], *condition = loop->regions.programs[1];
    ProgramValue *values[] = {&body->values[body->parameters[p]], &body->values[body->outputs[p]],
                              &condition->values[condition->parameters[p]]};
    for (int k = 0; k < 3; k++) {
        values[k]->shape = like->shape;
        values[k]->state = like->state;
    }
}

/* Returns whether the array changes: fewer places, or contiguous places. */
static bool changes(const LoopStack *stack, int32_t iterations) {
    return stack->may_shrink && (stack->kept < iterations || stack->dimension > 0);
}

/* Iteration mod kept in both bodies, for the numbers of places that stacks have. */
typedef struct Places {
    int32_t kept[3], in_first[3], in_second[3]; /* the first is that of all iterations */
    int32_t count;
} Places;

static AmStatus find_place(Places *places, int32_t *found, Program *writes, Program *reads, int32_t kept,
                           AmError *error) {
    int32_t k = 0;
    while (k < places->count && places->kept[k] != kept) k++;
    *found = k;
    if (k < places->count) return AM_OK;
    places->kept[places->count++] = kept;
    TRY(add_place(writes, kept, &places->in_first[k], error));
    return add_place(reads, kept, &places->in_second[k], error);
}

AmStatus stacks_shrink(JoinedLoops *loops, const LoopStack *stacks, int32_t count, AmError *error) {
    Program *program = loops->program;
    Program *writes = program->instructions[loops->first].regions.programs[0];
    Program *reads = program->instructions[loops->second].regions.programs[0];
    Insertions in_writes, in_reads;
    Places places = {.kept = {loops->iterations}, .count = 1};
    NewOperands operands;
    int32_t place;
    places.in_first[0] = writes->parameters[0];
    places.in_second[0] = reads->parameters[0];
    for (int32_t k = 0; k < count; k++)
        if (changes(&stacks[k], loops->iterations))
            TRY(find_place(&places, &place, writes, reads, stacks[k].kept, error));
    int32_t added = 2 * (places.count - 1);
    TRY(begin_insertions(&in_writes, writes, error));
    TRY(begin_insertions(&in_reads, reads, error));
    TRY(begin_operands(&operands, loops, count, error));
    for (int32_t k = 0; k < count; k++) {
        const LoopStack *stack = &stacks[k];
        if (!changes(stack, loops->iterations)) continue;
        const ProgramInstruction *first_loop = &program->instructions[loops->first];
        int32_t p = first_loop->loop.carried[stack->result],
                result = first_loop->first_result + stack->result;
        int32_t writer = loops->in_first.producer[writes->outputs[p]] + added;
        TRY(find_place(&places, &place, writes, reads, stack->kept, error));
        if (in_writes.before[writer] < 0) { /* else it is another operand of the second loop as well */
            ProgramValue *array = &program->values[result];
            const StackPlace written = {writes->parameters[p], places.in_first[place], stack->dimension};
            TRY(redirect_writer(&in_writes, writer, &written, error));
            array->shape = with_places(program->arena, &array->shape, stack->dimension, stack->kept);
            array->state = with_places_state(array->state, stack->dimension);
            set_shape(first_loop, p, array);
            TRY(shrink_initial(&operands, program, p, stack, error));
        }
        int32_t in_second = reads->parameters[stack->operand];
        const StackPlace read = {in_second, places.in_second[place], stack->dimension};
        TRY(redirect_readers(&in_reads, &loops->in_second, added, in_second, &read, error));
        set_shape(&program->instructions[loops->second], stack->operand, &program->values[result]);
        operands.second[stack->operand] = result;
        if (program->arena->failed) return am_fail_memory(error, 0);
    }
    /* The repeated scalars go before the first loop. */
    TRY(program_insert(program, loops->first, operands.count, error));
    memcpy(program->instructions + loops->first, operands.repeats,
           sizeof *operands.repeats * (size_t)operands.count);
    program_number_producers(program, loops->first);
    loops->first += operands.count;
    loops->second += operands.count;
    TRY(end_insertions(&in_writes, error));
    TRY(end_insertions(&in_reads, error));
    TRY(drop_unused(writes, error));
    TRY(drop_unused(reads, error));
    TRY(drop_unused(program, error));
    return AM_OK;
}

AmStatus program_finish_again(Program *region, AmError *error) {
    for (int32_t v = 0; v < region->value_count; v++) {
        ProgramValue *value = &region->values[v];
        if (value->kind == PROGRAM_VALUE_INTERNAL) value->kind = PROGRAM_VALUE_TEMPORARY;
        value->storage = v;
        value->offset = -1;
        value->bytes = 0;
    }
    for (int32_t k = 0; k < region->execution.update_count; k++) {
        region->execution.updates[k].in_place = false;
        region->execution.updates[k].staging = -1;
    }
    region->execution.fusion_count = region->execution.step_count = 0;
    TRY(program_fuse(region, error));
    return program_plan_buffers(region, error);
}
