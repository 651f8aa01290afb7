/* Row groups: reductions fused with the element-wise steps before and after them.
 *
 * A reduction over the innermost dimensions of an array gives one number for each of its rows. Steps side by
 * side that make such rows, reduce them or read the results row by row run together, one block of rows after
 * the other:
 *
 *   m = reduce(x)  d = (x - m)^2  v = reduce(d)  y = (x - m) / sqrt(v)
 *
 * reads x and writes y once. The steps do not change, so that every result has the same bits as without
 * groups. A value that no step outside the group reads is internal: a block of it is in a cache, and it has
 * no memory. Operands from outside may have any strides. A value of the group may only be read in the row
 * where it is made.
 */
#include "lowering/passes/passes.h"
#include "lowering/program/program_edit.h"
#include "propagation/sharding/sbp.h"

enum { MOST_STEPS = 48, BLOCK_BYTES = 256 << 10, LEAST_BLOCK_BYTES = 16 << 10, LEAST_BLOCKS = 16 };
enum { ROWS_AT_ONCE = 1024 }; /* elements that an element-wise kernel takes at once, in whole rows */

typedef struct RowGroupFinder {
    Program *program;
    int32_t *made_at; /* [value]: step that makes it, or -1 */
    int32_t *seen;    /* [value]: the last candidate group that reads it, counted from 1 */
    int32_t candidate;
    int64_t rows;       /* of the candidate */
    int32_t first, end; /* its steps */
} RowGroupFinder;

static int64_t elements_of(const RowGroupFinder *self, int32_t value) {
    return ir_shape_elements(&self->program->values[value].shape);
}

/* Rows that a reduction makes one number of each: it folds all of the innermost dimensions; else 0. */
static int64_t reduced_rows(const Program *program, const ProgramStep *step) {
    if (step->fusion >= 0) return 0;
    const ProgramInstruction *instruction = &program->instructions[step->instruction];
    if (instruction->kind != PROGRAM_COMPUTE || instruction->opcode != IR_REDUCE ||
        instruction->operand_count != 2 || instruction->result_count != 1)
        return 0;
    if (sbp_reduction_of(ir_computation_operator(program->module, instruction->compute.called)) ==
        SBP_REDUCTION_COUNT)
        return 0;
    const IrShape *operand = &program->values[instruction->operands[0]].shape;
    const IrAttributes *attributes = instruction->attributes;
    int64_t rows = 1, row = 1;
    bool is_inner = true;
    for (int32_t d = operand->rank - 1; d >= 0; d--) {
        bool is_reduced = false;
        for (int32_t k = 0; k < attributes->dimension_count; k++)
            is_reduced |= attributes->dimensions[k] == d;
        if (operand->dimensions[d] == 1) continue;
        if (is_reduced && !is_inner) return 0;
        if (!is_reduced) is_inner = false;
        if (is_reduced) row *= operand->dimensions[d];
        else rows *= operand->dimensions[d];
    }
    return row > 1 && rows > 1 ? rows : 0;
}

/* Returns the number of outer dimensions of a fusion that step through `rows` rows; -1: none do. */
static int32_t row_dimensions(const ProgramFusion *fusion, int64_t rows) {
    int64_t product = 1;
    int32_t d = 0;
    while (d < fusion->rank && product < rows) product *= fusion->dimensions[d++];
    return product == rows && fusion->elements > 0 ? d : -1;
}

/* Returns whether the step goes through the rows of the candidate group, if its values are outside. */
static bool has_rows(const RowGroupFinder *self, int32_t s) {
    const Program *program = self->program;
    const ProgramStep *step = &program->execution.steps[s];
    if (step->row_group > 0) return false;
    if (step->fusion < 0) return reduced_rows(program, step) == self->rows;
    return row_dimensions(&program->execution.fusions[step->fusion], self->rows) >= 0;
}

bool program_reads_by_rows(const Program *program, const ProgramStep *step, int32_t operand, int64_t rows) {
    int64_t elements =
        ir_shape_elements(&program->values[program_step_operand(program, step, operand)].shape);
    if (elements % rows != 0) return false;
    if (step->fusion < 0) return operand == 0; /* not the initial value */
    const ProgramFusion *fusion = &program->execution.fusions[step->fusion];
    int32_t outer = row_dimensions(fusion, rows);
    int64_t row = elements / rows;
    /* The input's elements of a row lie in the same row of the array. */
    int64_t expected = row, reach = 1;
    for (int32_t d = outer - 1; d >= 0; d--) {
        if (fusion->dimensions[d] > 1 && fusion->inputs[operand].strides[d] != expected) return false;
        expected *= fusion->dimensions[d];
    }
    for (int32_t d = outer; d < fusion->rank; d++)
        reach += (fusion->dimensions[d] - 1) * fusion->inputs[operand].strides[d];
    return reach <= row;
}

static bool is_made_in(const RowGroupFinder *self, int32_t root, int32_t first, int32_t end) {
    return self->made_at[root] >= first && self->made_at[root] < end;
}

/* Returns whether step s reads what steps [first, end) make only in the row where it is made. */
static bool reads_rows(const RowGroupFinder *self, int32_t s, int32_t first, int32_t end) {
    const Program *program = self->program;
    const ProgramStep *step = &program->execution.steps[s];
    for (int32_t k = 0; k < program_step_operands(program, step); k++)
        if (is_made_in(self, program_viewed(self->program, program_step_operand(program, step, k)), first,
                       end) &&
            !program_reads_by_rows(program, step, k, self->rows))
            return false;
    return true;
}

/* Returns whether a value has rows of several elements. */
static bool has_long_rows(const RowGroupFinder *self, int32_t root) {
    int64_t elements = elements_of(self, root);
    return elements > self->rows && elements % self->rows == 0;
}

static void see(RowGroupFinder *self, int32_t s) {
    const ProgramStep *step = &self->program->execution.steps[s];
    for (int32_t k = 0; k < program_step_operands(self->program, step); k++)
        self->seen[program_viewed(self->program, program_step_operand(self->program, step, k))] =
            self->candidate;
}

/* Returns whether the step reads a value of the group, or one with long rows that the group reads too. */
static bool shares_operand(const RowGroupFinder *self, int32_t s) {
    const ProgramStep *step = &self->program->execution.steps[s];
    for (int32_t k = 0; k < program_step_operands(self->program, step); k++) {
        int32_t root = program_viewed(self->program, program_step_operand(self->program, step, k));
        if (is_made_in(self, root, self->first, self->end)) return true;
        if (self->seen[root] == self->candidate && has_long_rows(self, root)) return true;
    }
    return false;
}

/* Returns whether the group reads a result of the step, or a value with long rows that the step reads. */
static bool is_shared_by_group(const RowGroupFinder *self, int32_t s) {
    const ProgramStep *step = &self->program->execution.steps[s];
    for (int32_t k = 0; k < program_step_results(self->program, step); k++)
        if (self->seen[program_step_result(self->program, step, k)] == self->candidate) return true;
    return shares_operand(self, s);
}

/* Grows the group of one reduction by steps before and after it. */
static void grow_group(RowGroupFinder *self, int32_t least) {
    const Program *program = self->program;
    see(self, self->first);
    for (int32_t s = self->first - 1; s >= least && self->end - s <= MOST_STEPS; s--) {
        bool fits = has_rows(self, s) && is_shared_by_group(self, s);
        for (int32_t user = self->first; fits && user < self->end; user++)
            fits = reads_rows(self, user, s, s + 1);
        if (!fits) break;
        self->first = s;
        see(self, s);
    }
    for (int32_t s = self->end; s < program->execution.step_count && s - self->first < MOST_STEPS; s++) {
        if (!has_rows(self, s) || !shares_operand(self, s) || !reads_rows(self, s, self->first, s)) break;
        self->end = s + 1;
        see(self, s);
    }
}

/* Returns whether the group reads a value with long rows again that it has made or read. */
static bool saves_bytes(RowGroupFinder *self) {
    const Program *program = self->program;
    int32_t reads = ++self->candidate;
    for (int32_t s = self->first; s < self->end; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        for (int32_t k = 0; k < program_step_operands(program, step); k++) {
            int32_t root = program_viewed(self->program, program_step_operand(program, step, k));
            if (has_long_rows(self, root) &&
                (self->seen[root] == reads || is_made_in(self, root, self->first, self->end)))
                return true;
        }
        see(self, s);
    }
    return false;
}

/* Rows whose values together fill a cache; whole tiles of element-wise kernels where rows are short. */
static int64_t choose_block(const RowGroupFinder *self) {
    const Program *program = self->program;
    int64_t bytes = 0, row = 1;
    for (int32_t s = self->first; s < self->end; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        int32_t operands = program_step_operands(program, step);
        for (int32_t k = 0; k < operands + program_step_results(program, step); k++) {
            int32_t value = k < operands ? program_step_operand(program, step, k)
                                         : program_step_result(program, step, k - operands);
            if (!has_long_rows(self, value)) continue;
            int64_t elements = elements_of(self, value) / self->rows;
            if (k >= operands) bytes += elements * dtype_bytes(program->values[value].shape.type);
            if (elements > row) row = elements;
        }
    }
    bytes += row * 8; /* one operand at least */
    int64_t most = BLOCK_BYTES / bytes, least = LEAST_BLOCK_BYTES / bytes, whole = ROWS_AT_ONCE / row;
    int64_t block = (self->rows + LEAST_BLOCKS - 1) / LEAST_BLOCKS;
    if (block < least) block = least;
    if (block > most) block = most;
    if (whole > 1) block = (block + whole - 1) / whole * whole;
    if (block < 1) block = 1;
    return block < self->rows ? block : self->rows;
}

/* Marks the values that only steps of their own group read as internal. `shared` [value] is work space. */
static void find_internal(const RowGroupFinder *self, bool *shared) {
    Program *program = self->program;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        for (int32_t k = 0; k < program_step_operands(program, step); k++) {
            int32_t root = program_viewed(self->program, program_step_operand(program, step, k));
            int32_t made_at = self->made_at[root];
            shared[root] |= made_at < 0 || program->execution.steps[made_at].row_group != step->row_group;
        }
    }
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0;
             program->instructions[i].compute.place && k < program->instructions[i].operand_count; k++)
            shared[program_viewed(self->program, program->instructions[i].operands[k])] = true;
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) shared[program_viewed(self->program, program->outputs[k])] = true;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        shared[program_viewed(self->program, program->execution.updates[k].value)] = true;
    for (int32_t v = 0; v < program->value_count; v++) {
        bool is_of_group = self->made_at[v] >= 0 && program->execution.steps[self->made_at[v]].row_group > 0;
        if (is_of_group && !shared[v] && program->values[v].kind == PROGRAM_VALUE_TEMPORARY)
            program->values[v].kind = PROGRAM_VALUE_INTERNAL;
    }
}

AmStatus program_find_row_groups(Program *program, AmError *error) {
    Arena *arena = program->arena;
    RowGroupFinder self = {.program = program,
                           .made_at = ARENA_ARRAY(arena, int32_t, program->value_count + 1),
                           .seen = ARENA_ARRAY(arena, int32_t, program->value_count + 1)};
    bool *shared = ARENA_ARRAY(arena, bool, program->value_count + 1);
    int32_t least = 0, reductions = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++)
        reductions += reduced_rows(program, &program->execution.steps[s]) > 0;
    program->execution.row_groups = ARENA_ARRAY(arena, ProgramRowGroup, reductions + 1);
    if (arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) self.made_at[v] = -1;
    for (int32_t s = 0; s < program->execution.step_count; s++)
        for (int32_t k = 0; k < program_step_results(program, &program->execution.steps[s]); k++)
            self.made_at[program_step_result(program, &program->execution.steps[s], k)] = s;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        self.rows = reduced_rows(program, &program->execution.steps[s]);
        if (self.rows == 0) continue;
        self.first = s;
        self.end = s + 1;
        self.candidate++;
        grow_group(&self, least);
        if (self.end - self.first < 2 || !saves_bytes(&self)) continue;
        program->execution.row_groups[program->execution.row_group_count++] =
            (ProgramRowGroup){.first = self.first,
                              .count = self.end - self.first,
                              .rows = self.rows,
                              .block = choose_block(&self)};
        for (int32_t member = self.first; member < self.end; member++)
            program->execution.steps[member].row_group = program->execution.row_group_count;
        least = self.end;
        s = self.end - 1;
    }
    if (program->execution.row_group_count > 0) find_internal(&self, shared);
    return AM_OK;
}
