/* Slices of arrays that a loop's iteration selects: index values per iteration, and the slices that become
 * views. */
#include "lowering/passes/places.h"

#include <string.h>

#include "ir/analysis/fold_integer.h"
#include "ir/analysis/loops.h"
#include "lowering/program/program_edit.h"
#include "propagation/rules/rules.h"

enum {
    MOST_ITERATIONS = 1 << 14, /* of a loop whose indices are worked out */
    MOST_DEPTH = 64,           /* of the instructions that make an index */
    PLACE_ALIGNMENT = 64,      /* as the buffer plan has it */
};

typedef struct PlaceFinder {
    Program *program;
    Arena *arena;
    ProgramUses uses;
    int32_t *parameter; /* [value]: its number, or -1 */
    int64_t **numbers;  /* [value] its value in every iteration; NULL: unknown */
    bool *is_tried;     /* [value] */
} PlaceFinder;

void program_set_counter(Program *body, int32_t loop, const int32_t *leaves) {
    const IrLoop *found = ir_loop(body->module, loop);
    if (!found || found->counter == IR_NO_COUNTER || found->trips < 1 || found->trips > MOST_ITERATIONS)
        return;
    const IrShape *shape = &body->module->instructions[loop].shape;
    int32_t leaf = 0;
    for (int32_t k = 0; k < found->counter; k++) leaf += rules_leaf_count(&shape->elements[k]);
    for (int32_t p = 0; p < body->roles->parameter_count; p++)
        if ((leaves ? leaves[p] : p) == leaf)
            body->counter = (ProgramCounter){.value = body->parameters[p],
                                             .iterations = found->trips,
                                             .start = found->start,
                                             .step = found->step};
}

/* ---- values of scalars per iteration ---- */

static bool read_number(const IrLiteral *literal, Dtype type, int64_t *number) {
    int64_t width = dtype_bytes(type);
    if (!literal || !literal->data || literal->bytes < width || width > 8) return false;
    uint64_t bits = 0;
    memcpy(&bits, literal->data, (size_t)width); /* little-endian */
    bool is_negative = dtype_is_signed(type) && bits >> (8 * width - 1) & 1;
    if (is_negative && width < 8) bits |= ~UINT64_C(0) << (8 * width);
    *number = (int64_t)bits;
    return is_negative || *number >= 0;
}

static bool is_number(const IrShape *shape) {
    return (dtype_is_integer(shape->type) || shape->type == DTYPE_PRED) && shape->rank == 0;
}

static const int64_t *numbers_of(PlaceFinder *self, int32_t value, int32_t depth);

/* Returns whether numbers[iterations] were found. */
static bool find_numbers(PlaceFinder *self, int32_t value, int32_t depth, int64_t *numbers) {
    const Program *program = self->program;
    const ProgramCounter *counter = &program->counter;
    Dtype type = program->values[value].shape.type;
    int32_t producer = self->uses.producer[value];
    const ProgramInstruction *instruction = producer >= 0 ? &program->instructions[producer] : NULL;
    const int64_t *operands[3] = {0};
    int64_t number = 0;
    const char *comparison =
        instruction && instruction->attributes ? instruction->attributes->comparison : NULL;
    bool is_constant = instruction && instruction->opcode == IR_CONSTANT;
    if (is_constant && !read_number(instruction->compute.literal, type, &number)) return false;
    if (value != counter->value && !is_constant &&
        (!instruction || instruction->operand_count < 1 || instruction->operand_count > 3 || depth == 0))
        return false;
    for (int32_t k = 0; value != counter->value && !is_constant && k < instruction->operand_count; k++)
        if (!(operands[k] = numbers_of(self, instruction->operands[k], depth - 1))) return false;
    for (int64_t iteration = 0; iteration < counter->iterations; iteration++) {
        int64_t given[3] = {0};
        for (int32_t k = 0; k < 3; k++) given[k] = operands[k] ? operands[k][iteration] : 0;
        if (value == counter->value) number = counter->start + counter->step * iteration;
        else if (instruction->kind == PROGRAM_VIEW) number = given[0];
        else if (!is_constant && !ir_fold_integer(&number, instruction->opcode, comparison, type, given))
            return false;
        if (!ir_integer_fits(type, number)) return false;
        numbers[iteration] = number;
    }
    return true;
}

/* Returns the value of a scalar in every iteration, [iterations]; NULL: unknown. */
static const int64_t *numbers_of(PlaceFinder *self, int32_t value, int32_t depth) {
    if (self->is_tried[value] || !is_number(&self->program->values[value].shape)) return self->numbers[value];
    self->is_tried[value] = true;
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, self->program->counter.iterations);
    if (numbers && find_numbers(self, value, depth, numbers)) self->numbers[value] = numbers;
    return self->numbers[value];
}

/* ---- where a window lies ---- */

/* Returns whether devices may have different sizes of a dimension. The analysis must hold on all
 * devices, since all run the same steps. */
static bool may_differ(const Program *program, const ProgramValue *array, int32_t dimension) {
    return program->is_uneven && sbp_ways(program->mesh, array->state, dimension) > 1;
}

/* Returns whether the window's elements are contiguous in the array. */
static bool lies_together(const Program *program, const ProgramValue *array, const int64_t *window) {
    int32_t d = 0, rank = array->shape.rank;
    while (d < rank && window[d] == 1 && !may_differ(program, array, d)) d++;
    if (d < rank && may_differ(program, array, d) && window[d] != array->shape.dimensions[d]) return false;
    for (d++; d < rank; d++)
        if (window[d] != array->shape.dimensions[d]) return false;
    return true;
}

/* Elements of an array, or of a window of it, along the dimensions that are the same on all devices. */
static int64_t same_elements(const Program *program, const ProgramValue *array, const int64_t *sizes) {
    int64_t elements = 1;
    for (int32_t d = 0; d < array->shape.rank; d++)
        if (!may_differ(program, array, d)) elements *= sizes[d];
    return elements;
}

/* Returns whether parts that begin at these elements, one for each iteration, are the global array. */
static bool covers(Arena *arena, const int64_t *first, int64_t iterations, int64_t part, int64_t whole) {
    int64_t count = whole / part, found = 0;
    if (whole % part != 0 || count > iterations) return false;
    bool *seen = ARENA_ARRAY(arena, bool, count);
    for (int64_t iteration = 0; seen && iteration < iterations; iteration++) {
        found += !seen[first[iteration] / part];
        seen[first[iteration] / part] = true;
    }
    return found == count;
}

/* Returns the place of a window whose indices are the slice's operands from `first` on, or NULL. */
static const ProgramPlace *find_place(PlaceFinder *self, const ProgramInstruction *slice, int32_t first,
                                      const int64_t *window) {
    const Program *program = self->program;
    const ProgramValue *value = &program->values[slice->operands[0]];
    const IrShape *array = &value->shape;
    int64_t stride = dtype_bytes(array->type), iterations = program->counter.iterations, same_stride = 1;
    int64_t part = same_elements(program, value, window), whole;
    if (slice->compute.shard || slice->operand_count != first + array->rank || part == 0 ||
        stride * part % PLACE_ALIGNMENT != 0 || !lies_together(program, value, window))
        return NULL;
    whole = same_elements(program, value, array->dimensions);
    ProgramPlace *place = ARENA_ARRAY(self->arena, ProgramPlace, 1);
    int64_t *offset = ARENA_ARRAY(self->arena, int64_t, iterations);
    int64_t *element = ARENA_ARRAY(self->arena, int64_t, iterations);
    if (self->arena->failed) return NULL;
    for (int32_t d = array->rank - 1; d >= 0; d--) {
        int64_t most = array->dimensions[d] - window[d];
        const int64_t *start = most > 0 ? numbers_of(self, slice->operands[first + d], MOST_DEPTH) : NULL;
        if (most > 0 && !start) return NULL;
        for (int64_t iteration = 0; start && iteration < iterations; iteration++) {
            int64_t at = start[iteration] < 0 ? 0 : start[iteration] > most ? most : start[iteration];
            offset[iteration] += stride * at;
            element[iteration] += same_stride * at;
        }
        stride *= array->dimensions[d];
        if (!may_differ(program, value, d)) same_stride *= array->dimensions[d];
    }
    *place = (ProgramPlace){.iterations = iterations,
                            .offset = offset,
                            .covers = covers(self->arena, element, iterations, part, whole)};
    return place;
}

/* ---- who may be given another address every iteration ---- */

static bool is_plain_view(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_VIEW;
}

static bool takes_addresses(const Program *program, const ProgramInstruction *instruction) {
    if (instruction->kind == PROGRAM_TRANSFER) return instruction->transfer->slots > 0;
    if (instruction->kind == PROGRAM_COLLECTIVE) return program->counter.in_iterations;
    return instruction->kind == PROGRAM_COMPUTE && instruction->regions.count == 0;
}

/* Returns whether all users of a value, or of a view of it, are of this kind, and it is no output. */
static bool has_such_users(const PlaceFinder *self, int32_t value) {
    const ProgramUses *uses = &self->uses;
    if (uses->is_output[value]) return false;
    for (int32_t u = uses->first[value]; u < uses->first[value + 1]; u++) {
        const ProgramInstruction *user = &self->program->instructions[uses->users[u]];
        if (is_plain_view(user) ? !has_such_users(self, user->first_result)
                                : !takes_addresses(self->program, user))
            return false;
    }
    return true;
}

/* Gives a value and all views of it their place. */
static void set_place(PlaceFinder *self, int32_t value, const ProgramPlace *place) {
    const ProgramUses *uses = &self->uses;
    self->program->values[value].place = place;
    for (int32_t u = uses->first[value]; u < uses->first[value + 1]; u++) {
        const ProgramInstruction *user = &self->program->instructions[uses->users[u]];
        if (is_plain_view(user)) set_place(self, user->first_result, place);
    }
}

/* Returns the value that this one views. */
static int32_t viewed(const PlaceFinder *self, int32_t value) {
    const ProgramInstruction *instructions = self->program->instructions;
    for (int32_t producer;
         (producer = self->uses.producer[value]) >= 0 && is_plain_view(&instructions[producer]);)
        value = instructions[producer].operands[0];
    return value;
}

static int32_t users_of(const PlaceFinder *self, int32_t value) {
    return self->uses.first[value + 1] - self->uses.first[value];
}

/* ---- reading ---- */

static void find_read(PlaceFinder *self, ProgramInstruction *slice) {
    const Program *program = self->program;
    int32_t p = self->parameter[viewed(self, slice->operands[0])];
    if (p < 0 || program->outputs[p] != program->parameters[p] || !has_such_users(self, slice->first_result))
        return;
    slice->compute.place = find_place(self, slice, 1, slice->attributes->slice_sizes);
    if (slice->compute.place) set_place(self, slice->first_result, slice->compute.place);
}

/* ---- writing ---- */

/* Returns whether a value has one use alone, as have all that it is a view of, down to `root`. */
static bool is_used_once(const PlaceFinder *self, int32_t value, int32_t root) {
    for (;;) {
        if (users_of(self, value) != 1 || self->uses.is_output[value]) return false;
        if (value == root) return true;
        value = self->program->instructions[self->uses.producer[value]].operands[0];
    }
}

/* Returns whether output p is `result`, perhaps as a view, and nothing else is made of it. */
static bool is_next_value(const PlaceFinder *self, int32_t p, int32_t result) {
    const Program *program = self->program;
    int32_t value = program->outputs[p];
    if (users_of(self, value) != 0) return false;
    if (value == result) return true;
    int32_t producer = self->uses.producer[value];
    if (producer < 0 || !is_plain_view(&program->instructions[producer]) || viewed(self, value) != result)
        return false;
    return is_used_once(self, program->instructions[producer].operands[0], result);
}

static void find_write(PlaceFinder *self, ProgramInstruction *update) {
    const Program *program = self->program;
    int32_t stack = viewed(self, update->operands[0]), p = self->parameter[stack];
    int32_t value = viewed(self, update->operands[1]), producer = self->uses.producer[value];
    if (p < 0 || producer < 0 || program->values[value].place ||
        !is_used_once(self, update->operands[0], stack) || !is_next_value(self, p, update->first_result))
        return;
    const ProgramInstruction *made_by = &program->instructions[producer];
    if (!takes_addresses(program, made_by) || !has_such_users(self, value)) return;
    update->compute.place =
        find_place(self, update, 2, program->values[update->operands[1]].shape.dimensions);
    if (update->compute.place) set_place(self, value, update->compute.place);
}

AmStatus program_find_places(Program *program, AmError *error) {
    PlaceFinder self = {.program = program};
    for (int32_t v = 0; v < program->value_count; v++) program->values[v].place = NULL;
    for (int32_t i = 0; i < program->instruction_count; i++) program->instructions[i].compute.place = NULL;
    if (program->counter.iterations == 0) return AM_OK;
    /* Uses and parameters of the program. */
    Arena *arena = self.arena = program->arena;
    TRY(program_uses(&self.uses, arena, program, error));
    self.parameter = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    self.numbers = ARENA_ARRAY(arena, int64_t *, program->value_count + 1);
    self.is_tried = ARENA_ARRAY(arena, bool, program->value_count + 1);
    if (arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) self.parameter[v] = -1;
    for (int32_t p = 0; p < program->roles->parameter_count; p++)
        if (program->parameters[p] >= 0) self.parameter[program->parameters[p]] = p;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind != PROGRAM_COMPUTE) continue;
        if (instruction->opcode == IR_DYNAMIC_UPDATE_SLICE) find_write(&self, instruction);
        else if (instruction->opcode == IR_DYNAMIC_SLICE) find_read(&self, instruction);
    }
    return program->arena->failed ? am_fail_memory(error, program->instruction_count) : AM_OK;
}

/* ---- arrays that are filled ---- */

static bool is_read(const Program *region, int32_t parameter) {
    int32_t value = region->parameters[parameter];
    for (int32_t i = 0; i < region->instruction_count; i++)
        for (int32_t k = 0; k < region->instructions[i].operand_count; k++)
            if (region->instructions[i].operands[k] == value) return true;
    return region->outputs[0] == value;
}

static AmStatus find_unset(ProgramInstruction *loop, Arena *arena, AmError *error) {
    const Program *body = loop->regions.programs[0], *condition = loop->regions.programs[1];
    bool *unset = ARENA_ARRAY(arena, bool, loop->operand_count + 1);
    int32_t *parameter = ARENA_ARRAY(arena, int32_t, body->value_count + 1);
    if (arena->failed) return am_fail_memory(error, body->value_count);
    for (int32_t v = 0; v < body->value_count; v++) parameter[v] = -1;
    for (int32_t p = 0; p < loop->operand_count; p++) parameter[body->parameters[p]] = p;
    for (int32_t i = 0; i < body->instruction_count; i++) {
        const ProgramInstruction *write = &body->instructions[i];
        if (!write->compute.place || write->opcode != IR_DYNAMIC_UPDATE_SLICE) continue;
        int32_t p = parameter[body->values[write->first_result].storage];
        if (p < 0 || is_read(condition, p)) continue;
        unset[p] = write->compute.place->covers;
        loop->loop.unset = unset;
    }
    return arena->failed ? am_fail_memory(error, loop->operand_count) : AM_OK;
}

AmStatus program_find_unset(Program *program, AmError *error) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        ProgramInstruction *instruction = &program->instructions[i];
        instruction->loop.unset = NULL;
        if (instruction->opcode == IR_WHILE && instruction->regions.count == 2)
            TRY(find_unset(instruction, program->arena, error));
    }
    return AM_OK;
}

/* ---- indices without remaining readers ---- */

AmStatus program_unused_indices(bool **unused, const Program *program, AmError *error) {
    bool has_places = false;
    *unused = NULL;
    for (int32_t i = 0; i < program->instruction_count; i++)
        has_places |= program->instructions[i].compute.place != NULL;
    if (!has_places) return AM_OK;
    int32_t *reads = ARENA_ARRAY(program->arena, int32_t, program->value_count + 1);
    *unused = ARENA_ARRAY(program->arena, bool, program->instruction_count + 1);
    if (program->arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) reads[program->outputs[k]]++;
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; k < program_operands_read(&program->instructions[i]); k++)
            reads[program->instructions[i].operands[k]]++;
    for (int32_t i = program->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool is_index = instruction->kind == PROGRAM_COMPUTE && instruction->result_count == 1 &&
                        is_number(&program->values[instruction->first_result].shape) &&
                        (instruction->opcode == IR_CONSTANT || ir_is_elementwise(instruction->opcode));
        (*unused)[i] = is_index && reads[instruction->first_result] == 0;
        for (int32_t k = 0; (*unused)[i] && k < instruction->operand_count; k++)
            reads[instruction->operands[k]]--;
    }
    return AM_OK;
}
