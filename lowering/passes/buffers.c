/* Buffers: one allocation per device, with an offset for every value.
 *
 * Parameters come first and keep their offset from step to step. A temporary lives from the step
 * that computes it to the last step that reads it or a view of it. Offsets are assigned step by
 * step: results are placed best-fit into the free gaps, then operands that died are freed and their
 * gaps joined. Three cases work in place. A slice of an array that an iteration selects, read or
 * written, has no memory of its own (places.h). A result overwrites an operand that dies there and
 * is read at the same position as the result is written: element by element in a fusion, the array
 * of a dynamic-update-slice or a scatter, the addend of a product, a loop-carried value. The new value of a
 * parameter is written over the old one if no later step reads that. Values inside a loop,
 * conditional or call keep their offset as long as that step runs. Two joined loops count as one
 * moment: the values of both live at the same time. So do the steps of a row group (row_groups.c),
 * whose internal values have no memory.
 *
 * With AUTOMAP_RED_ZONES=BYTES in the environment every place has so many unused bytes after it,
 * and no place is used twice (executor/program/red_zones.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/lower_bound.h"
#include "ir/analysis/loops.h"
#include "lowering/passes/passes.h"
#include "lowering/passes/reduce_early.h"
#include "lowering/program/layer_copies.h"

#define BUFFER_ALIGNMENT 64

/* Steps of a value that no step reads or defines, and of one whose memory is free or has passed on. */
enum { NEVER = -1, RELEASED = -2 };

typedef struct Gap {
    int64_t offset, bytes;
} Gap;

/* The memory of the copies of a value that exist beside it (lowering/program/layer_copies.h). */
typedef struct OtherCopies {
    int64_t offset, bytes;
    int32_t next_created, next_released; /* values after the same step; -1 */
} OtherCopies;

typedef struct Planner {
    Program *program;
    Arena *arena;
    int32_t *storage;       /* [value]: the value whose memory it uses; copied to the values at the end */
    int32_t *last_use;      /* [value]: the last step that reads its storage, the first of steps that run
                               together; step_count for outputs; or NEVER, RELEASED */
    int32_t *update_of;     /* [value]: index in updates, or -1 */
    int32_t *defined_at;    /* [value]: the step that defines it, counted alike; or NEVER */
    bool *in_caller_memory; /* [value]: an output in an array of the caller */
    bool has_loop;          /* the program has one */
    /* Operands that a running collective still reads: lists of values by the step after which they are
     * free. */
    int32_t *held_first, *held_next; /* [step], [value]; -1: the end of a list */
    LayerCopies copies;              /* of a sample */
    OtherCopies *others;             /* [value] of a sample; NULL: no sample */
    /* [step] of a sample: values whose other copies are created, and released, after it; -1 */
    int32_t *created_first, *released_first;
    Gap *gaps; /* by offset, disjoint, not adjacent */
    int32_t gap_count, gap_capacity;
    int64_t end; /* high-water mark */
    int32_t peak_step;
    int64_t used, most_used;
} Planner;

static int64_t aligned_bytes(const IrShape *shape) {
    int64_t bytes = ir_shape_bytes(shape);
    if (bytes < 1) bytes = 1;
    return (bytes + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
}

/* Allocates bytes in the smallest gap that fits, else at the end. Returns the offset. */
static int64_t allocate_bytes(Planner *self, int64_t bytes) {
    int32_t best = -1;
    self->used += bytes;
    for (int32_t g = 0; g < self->gap_count; g++)
        if (self->gaps[g].bytes >= bytes && (best < 0 || self->gaps[g].bytes < self->gaps[best].bytes))
            best = g;
    if (best < 0) {
        /* A gap at the very end grows. */
        Gap *last = self->gap_count > 0 ? &self->gaps[self->gap_count - 1] : NULL;
        int64_t offset = self->end;
        if (last && last->offset + last->bytes == self->end) {
            offset = last->offset;
            self->gap_count--;
        }
        self->end = offset + bytes + self->program->allocation.red_zone;
        return offset;
    }
    int64_t offset = self->gaps[best].offset;
    self->gaps[best].offset += bytes;
    self->gaps[best].bytes -= bytes;
    if (self->gaps[best].bytes == 0) {
        memmove(&self->gaps[best], &self->gaps[best + 1], sizeof(Gap) * (size_t)(self->gap_count - best - 1));
        self->gap_count--;
    }
    return offset;
}

/* Orders gaps by their offset, which `key` is. */
static int compare_gap(const void *key, const void *gap) {
    int64_t wanted = *(const int64_t *)key, found = ((const Gap *)gap)->offset;
    return (wanted > found) - (wanted < found);
}

/* Makes bytes a gap again, joined with its neighbours. */
static void release_bytes(Planner *self, int64_t offset, int64_t bytes) {
    if (bytes == 0) return;
    self->used -= bytes;
    if (self->program->allocation.red_zone > 0) return;
    int32_t low = lower_bound(&offset, self->gaps, self->gap_count, sizeof(Gap), compare_gap);
    bool joins_before = low > 0 && self->gaps[low - 1].offset + self->gaps[low - 1].bytes == offset;
    bool joins_after = low < self->gap_count && offset + bytes == self->gaps[low].offset;
    if (joins_before && joins_after) {
        self->gaps[low - 1].bytes += bytes + self->gaps[low].bytes;
        memmove(&self->gaps[low], &self->gaps[low + 1], sizeof(Gap) * (size_t)(self->gap_count - low - 1));
        self->gap_count--;
    } else if (joins_before) {
        self->gaps[low - 1].bytes += bytes;
    } else if (joins_after) {
        self->gaps[low].offset = offset;
        self->gaps[low].bytes += bytes;
    } else {
        ARENA_RESERVE(self->arena, self->gaps, self->gap_count, self->gap_capacity);
        if (self->arena->failed) return;
        memmove(&self->gaps[low + 1], &self->gaps[low], sizeof(Gap) * (size_t)(self->gap_count - low));
        self->gaps[low] = (Gap){.offset = offset, .bytes = bytes};
        self->gap_count++;
    }
}

static int32_t root_of(const Planner *self, int32_t value) {
    while (self->storage[value] != value) value = self->storage[value];
    return value;
}

static void find_storage_and_lifetimes(Planner *self) {
    Program *program = self->program;
    for (int32_t v = 0; v < program->value_count; v++) self->storage[v] = v;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        self->has_loop |= instruction->opcode == IR_WHILE;
        if (!program_is_view(instruction)) continue;
        /* A view may stand before its operand's producer only if both are out of order; steps are not. */
        self->storage[instruction->first_result] = instruction->operands[0];
    }
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (!instruction->compute.place || instruction->opcode != IR_DYNAMIC_UPDATE_SLICE) continue;
        self->storage[root_of(self, instruction->operands[1])] = instruction->operands[0];
    }
    for (int32_t v = 0; v < program->value_count; v++) self->storage[v] = root_of(self, v);
    for (int32_t v = 0; v < program->value_count; v++) self->last_use[v] = self->defined_at[v] = NEVER;
    for (int32_t s = 0, together; s < program->execution.step_count; s += together) {
        together = program_steps_together(program, s);
        for (int32_t own = s; own < s + together; own++) {
            const ProgramStep *step = &program->execution.steps[own];
            for (int32_t k = 0; k < program_step_operands(program, step); k++)
                self->last_use[self->storage[program_step_operand(program, step, k)]] = s;
            for (int32_t k = 0; k < program_step_results(program, step); k++)
                self->defined_at[program_step_result(program, step, k)] = s;
        }
    }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0)
            self->last_use[self->storage[program->outputs[k]]] = program->execution.step_count;
}

/* Holds the operands of a sum over devices or a gather while it may be running: up to the first step that
 * reads its result; for a sum, until as many more have started as run concurrently (reduce_early.h). A sum of
 * a sum reads its operands without a wait: those of both are held for as long. */
static AmStatus hold_operands_of_collectives(Planner *self, AmError *error) {
    const Program *program = self->program;
    int32_t *first_use = ARENA_ARRAY(self->arena, int32_t, program->value_count + 1);
    int32_t started[REDUCE_EARLY_UNDER_WAY]; /* the next sums after step s */
    self->held_first = ARENA_ARRAY(self->arena, int32_t, program->execution.step_count + 1);
    self->held_next = ARENA_ARRAY(self->arena, int32_t, program->value_count + 1);
    if (self->arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) first_use[v] = program->execution.step_count;
    for (int32_t s = 0; s <= program->execution.step_count; s++) self->held_first[s] = -1;
    for (int32_t k = 0; k < REDUCE_EARLY_UNDER_WAY; k++) started[k] = program->execution.step_count;
    for (int32_t s = program->execution.step_count - 1; s >= 0; s--) {
        const ProgramStep *step = &program->execution.steps[s];
        for (int32_t k = 0; k < program_step_operands(program, step); k++)
            first_use[self->storage[program_step_operand(program, step, k)]] = s;
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        bool is_sum = instruction && program_reduces_beside(program, instruction);
        if (!is_sum && (!instruction || !program_gathers(instruction))) continue;
        int32_t until = is_sum ? started[REDUCE_EARLY_UNDER_WAY - 1] : program->execution.step_count;
        for (int32_t k = 0; k < program_step_results(program, step); k++)
            if (first_use[program_step_result(program, step, k)] < until)
                until = first_use[program_step_result(program, step, k)];
        int32_t last = program_first_together(program, until - 1);
        for (int32_t k = 0; k < program_step_operands(program, step); k++) {
            int32_t storage = self->storage[program_step_operand(program, step, k)];
            if (is_sum) first_use[storage] = until;
            if (self->last_use[storage] >= last || program->values[storage].kind == PROGRAM_VALUE_PARAMETER)
                continue;
            self->last_use[storage] = last;
            self->held_next[storage] = self->held_first[last];
            self->held_first[last] = storage;
        }
        if (!is_sum || !program_reduces(instruction)) continue;
        for (int32_t k = REDUCE_EARLY_UNDER_WAY - 1; k > 0; k--) started[k] = started[k - 1];
        started[0] = s;
    }
    return AM_OK;
}

/* Returns whether a loop that is joined with this one reads `storage`. */
static bool is_read_by_joined(const Planner *self, const ProgramInstruction *instruction, int32_t storage) {
    const ProgramInstruction *instructions = self->program->instructions;
    int32_t i = (int32_t)(instruction - instructions), first = i; /* of the joined loops */
    for (int32_t k = i - 1; k >= 0 && first == i && instructions[i].opcode == IR_WHILE; k--) {
        if (instructions[k].opcode != IR_WHILE) break;
        if (program_joined(self->program, k) > i - k) first = k;
    }
    for (int32_t joined = first; joined < first + program_joined(self->program, first); joined++)
        for (int32_t k = 0; joined != i && k < instructions[joined].operand_count; k++)
            if (self->storage[instructions[joined].operands[k]] == storage) return true;
    return false;
}

/* Returns whether the row group of `step` needs `storage` when the step has run for some rows: another step
 * reads it later, or in other rows. */
static bool is_needed_by_group(const Planner *self, const ProgramStep *step, int32_t storage) {
    const Program *program = self->program;
    const ProgramRowGroup *rows = program_row_group(program, step);
    for (int32_t s = 0; rows && s < rows->count; s++) {
        const ProgramStep *other = &program->execution.steps[rows->first + s];
        for (int32_t k = 0; other != step && k < program_step_operands(program, other); k++)
            if (self->storage[program_step_operand(program, other, k)] == storage &&
                (other > step || !program_reads_by_rows(program, other, k, rows->rows)))
                return true;
    }
    return false;
}

/* Returns whether step s reads `storage` only in the place where it writes: a fusion element by element, at
 * the same index and of the same width; or an operand that the instruction changes. */
static bool reads_in_place(const Planner *self, const ProgramStep *step, int32_t storage, int32_t result) {
    const Program *program = self->program;
    if (is_needed_by_group(self, step, storage)) return false;
    if (step->fusion < 0) {
        const ProgramInstruction *instruction = &program->instructions[step->instruction];
        /* It is the changed operand of the instruction, and no other one. */
        int32_t place = program_changed_operand(instruction, result);
        if (place < 0) return false;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            if ((self->storage[instruction->operands[k]] == storage) != (k == place)) return false;
        return !is_read_by_joined(self, instruction, storage);
    }
    const ProgramFusion *fusion = &program->execution.fusions[step->fusion];
    int64_t width = dtype_bytes(program->values[result].shape.type);
    for (int32_t k = 0; k < fusion->input_count; k++) {
        const ProgramFusionInput *input = &fusion->inputs[k];
        if (self->storage[input->value] != storage) continue;
        if (dtype_bytes(program->values[input->value].shape.type) != width) return false;
        int64_t stride = 1;
        for (int32_t d = fusion->rank - 1; d >= 0; d--) {
            if (fusion->dimensions[d] > 1 && input->strides[d] != stride) return false;
            stride *= fusion->dimensions[d];
        }
    }
    return true;
}

/* Returns whether a step computes a value. */
static bool computes(const Program *program, const ProgramStep *step, int32_t value) {
    if (step->fusion < 0) return step->instruction == program->values[value].instruction;
    for (int32_t k = 0; k < program_step_results(program, step); k++)
        if (program_step_result(program, step, k) == value) return true;
    return false;
}

/* Places new values directly over the parameters that they replace, if no later step reads the old
 * value and the step itself reads it in place. */
static void place_updates(Planner *self) {
    Program *program = self->program;
    for (int32_t v = 0; v < program->value_count; v++) self->update_of[v] = -1;
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        ProgramUpdate *update = &program->execution.updates[k];
        int32_t value = update->value, parameter = program->parameters[update->parameter];
        int32_t s = self->defined_at[value];
        update->in_place = value != parameter && self->storage[value] == parameter;
        if (s < 0 || self->storage[value] != value || self->update_of[value] >= 0) continue;
        if (self->last_use[parameter] > s) continue;
        const ProgramStep *step = &program->execution.steps[s];
        while (!computes(program, step, value)) step++; /* of those that run together */
        if (self->last_use[parameter] == s && !reads_in_place(self, step, parameter, value)) continue;
        if (ir_shape_bytes(&program->values[value].shape) !=
            ir_shape_bytes(&program->values[parameter].shape))
            continue;
        self->update_of[value] = k;
        update->in_place = true;
        self->storage[value] = parameter;
    }
    /* Views of a value that moved move with it. */
    for (int32_t v = 0; v < program->value_count; v++) {
        int32_t root = self->storage[v];
        if (self->storage[root] != root) self->storage[v] = self->storage[root];
    }
}

/* Places a result over an operand of `reader` that dies in step s. Returns whether there is one. */
static bool place_over_operand(Planner *self, const ProgramStep *step, const ProgramStep *reader, int32_t s,
                               int32_t value) {
    const Program *program = self->program;
    ProgramValue *result = &self->program->values[value];
    bool fused = step->fusion >= 0;
    int32_t changed = fused ? -1 : program_changed_operand(&program->instructions[step->instruction], value);
    for (int32_t k = 0; k < program_step_operands(program, reader) && !result->lies_apart; k++) {
        if (!fused && k != changed) continue;
        int32_t storage = self->storage[program_step_operand(program, reader, k)];
        if (self->last_use[storage] != s || (step->row_group > 0 && self->defined_at[storage] == s)) continue;
        const ProgramValue *owner = &program->values[storage];
        if (owner->kind == PROGRAM_VALUE_PARAMETER || owner->offset < 0) continue;
        if (owner->bytes != result->bytes || !reads_in_place(self, step, storage, value)) continue;
        /* In a row group rows of equal length replace one another. */
        if (reader != step && ir_shape_bytes(&owner->shape) != ir_shape_bytes(&result->shape)) continue;
        /* The operand's memory passes to the result: not freed at the end of this step. */
        result->offset = owner->offset;
        self->last_use[storage] = RELEASED;
        return true;
    }
    return false;
}

/* Notes the other layers' copies of a result. */
static void add_copies(Planner *self, const ProgramStep *step, int32_t s, int32_t value) {
    ProgramValue *result = &self->program->values[value];
    const ValueCopies copies = layer_copies_of(&self->copies, step, s, value);
    OtherCopies *others = &self->others[value];
    int64_t bytes = copies.others * result->bytes;
    result->bytes *= copies.own;
    if (bytes == 0) return;
    *others = (OtherCopies){.bytes = bytes,
                            .next_created = self->created_first[copies.from],
                            .next_released = self->released_first[copies.until]};
    self->created_first[copies.from] = self->released_first[copies.until] = value;
}

/* Places a result of `step`, which is step s or runs together with it. */
static void place_result(Planner *self, const ProgramStep *step, int32_t s, int32_t value) {
    Program *program = self->program;
    ProgramValue *result = &program->values[value];
    if (self->storage[value] != value) return; /* in place of a parameter */
    if (result->kind == PROGRAM_VALUE_INTERNAL) {
        result->offset = -1;
        result->bytes = 0;
        return;
    }
    result->bytes = result->in_registers ? 0 : aligned_bytes(&result->shape);
    if (self->others) add_copies(self, step, s, value);
    result->offset = -1;
    if (self->in_caller_memory[value]) return;
    const ProgramRowGroup *rows = program_row_group(program, step);
    for (const ProgramStep *reader = step; reader >= (rows ? &program->execution.steps[rows->first] : step);
         reader--)
        if (place_over_operand(self, step, reader, s, value)) return;
    result->offset = result->bytes > 0 ? allocate_bytes(self, result->bytes) : 0;
}

/* Returns the memory of the values in the regions of an instruction: one region runs at a time. */
static int64_t workspace_bytes(const ProgramInstruction *instruction) {
    int64_t most = 0;
    for (int32_t k = 0; k < instruction->regions.count && !instruction->regions.in_blocks; k++) {
        const Program *region = instruction->regions.programs[k];
        int64_t bytes = region->allocation.bytes - region->allocation.parameter_bytes;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Returns the bytes in use, and the end of the last one, without a gap at the end of the allocation. */
static ProgramExtent current_extent(const Planner *self) {
    ProgramExtent extent = {self->used, self->end};
    const Gap *last = self->gap_count > 0 ? &self->gaps[self->gap_count - 1] : NULL;
    if (last && last->offset + last->bytes == self->end) extent.end = last->offset;
    return extent;
}

/* Places staging memory for new values that are stored in a parameter which another update
 * overwrites; it is used after the last step. */
static AmStatus place_staging(Planner *self, AmError *error) {
    Program *program = self->program;
    bool *updated = ARENA_ARRAY(self->arena, bool, program->value_count + 1);
    if (!updated) return am_fail_memory(error, program->value_count);
    for (int32_t k = 0; k < program->execution.update_count; k++)
        updated[program->parameters[program->execution.updates[k].parameter]] = true;
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        ProgramUpdate *update = &program->execution.updates[k];
        int32_t storage = self->storage[update->value];
        update->staging = -1;
        if (update->in_place || storage == program->parameters[update->parameter] || !updated[storage])
            continue;
        update->staging = allocate_bytes(self, aligned_bytes(&program->values[update->value].shape));
    }
    if (self->used > self->most_used) {
        self->most_used = self->used;
        self->peak_step = program->execution.step_count > 0 ? program->execution.step_count - 1 : 0;
    }
    program->allocation.memory[program->execution.step_count] =
        (ProgramMemory){current_extent(self), current_extent(self)};
    return AM_OK;
}

/* Places results and workspaces of the steps that run together from step s on. */
static void place_steps(Planner *self, int32_t s, int32_t together) {
    const Program *program = self->program;
    int32_t placed = s, placed_end = s + together; /* of workspaces */
    if (program->allocation.shares_workspaces) {   /* the largest of the steps that run together */
        int64_t most = -1;
        for (int32_t own = s; own < s + together; own++) {
            const ProgramStep *step = &program->execution.steps[own];
            int64_t bytes = step->fusion < 0 ? workspace_bytes(&program->instructions[step->instruction]) : 0;
            if (bytes > most) most = bytes, placed = own;
        }
        placed_end = placed + 1;
    }
    for (int32_t own = s; own < s + together; own++) {
        const ProgramStep *step = &program->execution.steps[own];
        for (int32_t k = 0; k < program_step_results(program, step); k++)
            place_result(self, step, s, program_step_result(program, step, k));
        if (own < placed || own >= placed_end || step->fusion >= 0) continue;
        ProgramInstruction *instruction = &program->instructions[step->instruction];
        int64_t bytes = workspace_bytes(instruction);
        instruction->regions.workspace = bytes > 0 ? allocate_bytes(self, bytes) : 0;
        instruction->regions.workspace_bytes = bytes;
    }
    if (self->used > self->most_used) self->most_used = self->used, self->peak_step = s;
    ProgramMemory memory = {.inside = current_extent(self)};
    for (int32_t own = placed; own < placed_end; own++) {
        const ProgramStep *placed_step = &program->execution.steps[own];
        if (placed_step->fusion >= 0) continue;
        const ProgramRegions *regions = &program->instructions[placed_step->instruction].regions;
        if (regions->workspace_bytes > 0) release_bytes(self, regions->workspace, regions->workspace_bytes);
    }
    memory.around = current_extent(self);
    for (int32_t own = s; own < s + together; own++) program->allocation.memory[own] = memory;
}

/* Releases the values that later steps do not read. */
static void release_operands(Planner *self, int32_t s, int32_t together) {
    const Program *program = self->program;
    for (const ProgramStep *step = &program->execution.steps[s];
         step < &program->execution.steps[s + together]; step++) {
        for (int32_t k = 0; k < program_step_operands(program, step); k++) {
            int32_t storage = self->storage[program_step_operand(program, step, k)];
            if (self->last_use[storage] != s) continue;
            const ProgramValue *owner = &program->values[storage];
            if (owner->kind != PROGRAM_VALUE_TEMPORARY) continue;
            release_bytes(self, owner->offset, owner->bytes);
            self->last_use[storage] = RELEASED;
        }
        for (int32_t k = 0; k < program_step_results(program, step); k++) {
            /* A result without readers (one leaf of several) is freed at once. */
            int32_t result = program_step_result(program, step, k);
            if (self->storage[result] == result && self->last_use[result] == NEVER)
                release_bytes(self, program->values[result].offset, program->values[result].bytes);
        }
    }
    for (int32_t own = s; own < s + together; own++)
        for (int32_t storage = self->held_first[own]; storage >= 0; storage = self->held_next[storage]) {
            if (self->last_use[storage] != own) continue;
            release_bytes(self, program->values[storage].offset, program->values[storage].bytes);
            self->last_use[storage] = RELEASED;
        }
    OtherCopies *others = self->others;
    for (int32_t own = s; own < s + together && others; own++) {
        for (int32_t v = self->released_first[own]; v >= 0; v = others[v].next_released)
            release_bytes(self, others[v].offset, others[v].bytes);
        for (int32_t v = self->created_first[own]; v >= 0; v = others[v].next_created)
            others[v].offset = allocate_bytes(self, others[v].bytes);
    }
}

/* Returns the bytes of a red zone, a multiple of the alignment; 0 unless the environment has a number from 1
 * to 1 MiB. */
static int64_t red_zone_bytes(void) {
    const char *text = getenv("AUTOMAP_RED_ZONES");
    long bytes = text ? strtol(text, NULL, 10) : 0;
    if (bytes < 1 || bytes > 1 << 20) return 0;
    return (bytes + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
}

/* Compares the layers of a sample. */
static AmStatus find_copies(Planner *self, AmError *error) {
    Program *program = self->program;
    self->copies = (LayerCopies){.program = program,
                                 .storage = self->storage,
                                 .made_at = self->defined_at,
                                 .last_use = self->last_use,
                                 .has_loop = self->has_loop};
    TRY(layer_copies_find(&self->copies, self->arena, error));
    if (!self->copies.steps_of) return AM_OK;
    self->others = ARENA_ARRAY(self->arena, OtherCopies, program->value_count + 1);
    self->created_first = ARENA_ARRAY(self->arena, int32_t, program->execution.step_count + 1);
    self->released_first = ARENA_ARRAY(self->arena, int32_t, program->execution.step_count + 1);
    if (self->arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t s = 0; s <= program->execution.step_count; s++)
        self->created_first[s] = self->released_first[s] = -1;
    return AM_OK;
}

AmStatus program_plan_buffers(Program *program, AmError *error) {
    Arena *arena = program->arena;
    program->allocation.red_zone = red_zone_bytes();
    program->allocation.memory = ARENA_ARRAY(arena, ProgramMemory, program->execution.step_count + 1);
    ArenaMark mark = arena_mark(arena);
    Planner self = {.program = program,
                    .arena = arena,
                    .storage = ARENA_ARRAY(arena, int32_t, program->value_count + 1),
                    .last_use = ARENA_ARRAY(arena, int32_t, program->value_count + 1),
                    .update_of = ARENA_ARRAY(arena, int32_t, program->value_count + 1),
                    .defined_at = ARENA_ARRAY(arena, int32_t, program->value_count + 1),
                    .in_caller_memory = ARENA_ARRAY(arena, bool, program->value_count + 1)};
    if (arena->failed) return am_fail_memory(error, program->value_count);
    self.end = program->allocation.red_zone;
    program->allocation.host_bytes = 0;
    find_storage_and_lifetimes(&self);
    TRY(hold_operands_of_collectives(&self, error));
    for (int32_t k = 0; k < program->roles->output_count && program->allocation.outputs_outside; k++) {
        if (program->outputs[k] < 0) continue;
        int32_t storage = self.storage[program->outputs[k]]; /* in an array of the caller */
        self.in_caller_memory[storage] = self.defined_at[storage] != NEVER;
    }
    place_updates(&self);
    TRY(find_copies(&self, error));
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        if (program->parameters[k] < 0) continue;
        ProgramValue *value = &program->values[program->parameters[k]];
        value->bytes = aligned_bytes(&value->shape) * ir_layers_of(program->module, value->origin);
        value->offset = -1;
        if (value->is_on_host) {
            value->host_offset = program->allocation.host_bytes;
            program->allocation.host_bytes += value->bytes;
            continue;
        }
        value->offset = allocate_bytes(&self, value->bytes);
    }
    program->allocation.parameter_bytes = self.most_used = self.end;
    for (int32_t s = 0, together; s < program->execution.step_count; s += together) {
        together = program_steps_together(program, s);
        place_steps(&self, s, together);
        release_operands(&self, s, together);
    }
    TRY(place_staging(&self, error));
    for (int32_t v = 0; v < program->value_count; v++) {
        if (self.storage[v] == v) continue;
        ProgramValue *value = &program->values[v];
        const ProgramValue *owner = &program->values[self.storage[v]];
        value->storage = self.storage[v];
        value->offset = owner->offset;
        value->bytes = owner->bytes;
    }
    program->allocation.bytes = self.end;
    program->allocation.peak_step = self.peak_step;
    arena_release(arena, mark);
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}
