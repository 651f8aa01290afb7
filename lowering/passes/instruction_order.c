/* Kahn's algorithm over groups of instructions, always taking the group whose first member comes
 * first: deterministic, and as close to the given order as the groups allow. The members of a group
 * keep their relative order, which respects operands inside the group since it is the program's
 * order. Values that depend on parameters alone and enlarge or slice them, mainly gathers of stored
 * weights, could run at any time. They come directly before their first user; otherwise all of them
 * would run before the groups that wait for others, and fill the memory. */
#include "lowering/passes/instruction_order.h"

#include <stdlib.h>
#include <string.h>

#include "lowering/passes/gather_ahead.h"
#include "lowering/passes/latency.h"
#include "lowering/passes/ready_set.h"

AmStatus program_graph(ProgramGraph *graph, Arena *arena, const Program *program, AmError *error) {
    int32_t count = program->instruction_count, edges = 0;
    int32_t *first = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *made_by = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    bool *communicates = ARENA_ARRAY(arena, bool, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t v = 0; v < program->value_count; v++) made_by[v] = -1;
    for (int32_t i = 0; i < count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->result_count; k++) made_by[instruction->first_result + k] = i;
        bool may_communicate = instruction->kind != PROGRAM_COMPUTE || program_has_control(instruction);
        communicates[i] =
            may_communicate && program_instruction_communicates(instruction, program->is_uneven);
        edges += instruction->operand_count + communicates[i];
        for (int32_t k = 1; k < program_joined(program, i); k++) edges += instruction[k].operand_count;
    }
    int32_t *producers = ARENA_ARRAY(arena, int32_t, edges);
    int32_t *users = ARENA_ARRAY(arena, int32_t, edges);
    int32_t *next_user = ARENA_ARRAY(arena, int32_t, count + 3);
    if (arena->failed) return am_fail_memory(error, edges);
    edges = 0;
    for (int32_t i = 0, last_communication = -1; i < count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t producer = made_by[instruction->operands[k]];
            if (producer < 0) continue;
            producers[edges++] = producer;
            next_user[producer + 2]++;
        }
        if (communicates[i] && last_communication >= 0) {
            producers[edges++] = last_communication;
            next_user[last_communication + 2]++;
        }
        /* The operands of joined loops must exist when the first of them begins. */
        for (int32_t j = 1; j < program_joined(program, i); j++)
            for (int32_t k = 0; k < instruction[j].operand_count; k++) {
                int32_t producer = made_by[instruction[j].operands[k]];
                if (producer < 0 || producer >= i) continue;
                producers[edges++] = producer;
                next_user[producer + 2]++;
            }
        if (communicates[i]) last_communication = i;
        first[i + 1] = edges;
    }
    /* Filling moves next_user[i + 1] from the start of i's users to their end. */
    for (int32_t i = 0; i < count; i++) next_user[i + 2] += next_user[i + 1];
    for (int32_t i = 0; i < count; i++)
        for (int32_t e = first[i]; e < first[i + 1]; e++) users[next_user[producers[e] + 1]++] = i;
    *graph = (ProgramGraph){.count = count,
                            .first = first,
                            .producers = producers,
                            .first_user = next_user,
                            .users = users,
                            .producer = made_by};
    return AM_OK;
}

/* Returns whether i alone is its group and does no more than to gather, cut, view or cast. */
static bool may_wait(const Program *program, const int32_t *leader, const int32_t *size, int32_t i) {
    const ProgramInstruction *instruction = &program->instructions[i];
    if (leader[i] != i || size[i] != 1 || instruction->operand_count == 0) return false;
    if (instruction->kind == PROGRAM_COLLECTIVE)
        return program_gathers(instruction) && instruction->operand_count == 1;
    return instruction->kind == PROGRAM_VIEW ||
           (instruction->kind == PROGRAM_COMPUTE &&
            (instruction->opcode == IR_SLICE || instruction->opcode == IR_CONVERT));
}

/* Marks the instructions that follow from parameters by such steps alone. Producers come before their
 * users. */
static bool *find_late(Arena *arena, const Program *program, const ProgramGraph *graph,
                       const int32_t *leader) {
    int32_t *size = ARENA_ARRAY(arena, int32_t, graph->count + 1);
    bool *late = ARENA_ARRAY(arena, bool, graph->count + 1);
    if (arena->failed) return NULL;
    for (int32_t i = 0; i < graph->count; i++) size[leader[i]]++;
    for (int32_t i = 0; i < graph->count; i++) {
        late[i] = may_wait(program, leader, size, i);
        for (int32_t e = graph->first[i]; late[i] && e < graph->first[i + 1]; e++)
            late[i] = graph->producers[e] < i && late[graph->producers[e]];
    }
    return late;
}

/* Places what i needs of `late`, in order, and takes it off the list. */
static void place_late(int32_t *order, int32_t *placed, bool *late, const ProgramGraph *graph, int32_t i) {
    for (int32_t e = graph->first[i]; e < graph->first[i + 1]; e++) {
        int32_t producer = graph->producers[e];
        if (!late[producer]) continue;
        place_late(order, placed, late, graph, producer);
        late[producer] = false;
        order[(*placed)++] = producer;
    }
}

static AmStatus order_groups(int32_t *order, Arena *arena, const Program *program, const ProgramGraph *graph,
                             const int32_t *leader, AmError *error) {
    int32_t count = graph->count;
    int32_t *waiting = ARENA_ARRAY(arena, int32_t, count + 1); /* [leader]: operands still to come */
    int32_t *next_member = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *last_member = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *awaited = ARENA_ARRAY(arena, int32_t, count + 1); /* the leader, or -1 for late instructions */
    ReadySet ready;
    executable_make(&ready, arena, count);
    bool *late = find_late(arena, program, graph, leader);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) awaited[i] = late[i] ? -1 : leader[i];
    for (int32_t i = 0; i < count; i++) {
        int32_t own = leader[i], edges = 0;
        next_member[i] = -1;
        if (own != i) next_member[last_member[own]] = i;
        last_member[own] = i;
        for (int32_t e = graph->first[i]; e < graph->first[i + 1]; e++) {
            int32_t producer = awaited[graph->producers[e]];
            edges += producer >= 0 && producer != own;
        }
        waiting[own] += edges;
    }
    for (int32_t i = 0; i < count; i++)
        if (leader[i] == i && waiting[i] == 0 && !late[i]) ready_add(&ready, i);
    int32_t placed = 0;
    for (int32_t group; (group = ready_take(&ready)) >= 0;) {
        for (int32_t member = group; member >= 0; member = next_member[member])
            place_late(order, &placed, late, graph, member);
        for (int32_t member = group; member >= 0; member = next_member[member]) {
            order[placed++] = member;
            for (int32_t u = graph->first_user[member]; u < graph->first_user[member + 1]; u++) {
                int32_t user = leader[graph->users[u]];
                if (user != group && --waiting[user] == 0) ready_add(&ready, user);
            }
        }
    }
    for (int32_t i = 0; i < count; i++) { /* values without users except the caller */
        if (!late[i]) continue;
        place_late(order, &placed, late, graph, i);
        late[i] = false;
        order[placed++] = i;
    }
    if (placed != count)
        return am_fail(error, AM_ERROR_INTERNAL, program->module->source,
                       "ordering the program: groups of instructions depend on one another");
    return AM_OK;
}

AmStatus program_order(const int32_t **order, Arena *arena, const Program *program, const ProgramGraph *graph,
                       const int32_t *leader, AmError *error) {
    int32_t *result = ARENA_ARRAY(arena, int32_t, graph->count + 1);
    if (!result) return am_fail_memory(error, graph->count);
    *order = result;
    bool has_group = false; /* without one, the program's own order remains */
    for (int32_t i = 0; i < graph->count; i++) {
        has_group |= leader[i] != i;
        result[i] = i;
    }
    if (!has_group) return AM_OK;
    ArenaMark mark = arena_mark(arena);
    TRY(order_groups(result, arena, program, graph, leader, error));
    arena_release(arena, mark);
    return AM_OK;
}

AmStatus program_order_steps(const int32_t **order, Arena *arena, const Program *program,
                             const ProgramGraph *graph, const int32_t *leader, AmError *error) {
    int32_t *steps = ARENA_ARRAY_RAW(arena, int32_t, graph->count + 1);
    if (!steps) return am_fail_memory(error, graph->count);
    TRY(program_order(order, arena, program, graph, leader, error));
    memcpy(steps, *order, sizeof *steps * (size_t)graph->count);
    *order = steps;
    ArenaMark mark = arena_mark(arena);
    const bool *late = find_late(arena, program, graph, leader);
    if (!late) return am_fail_memory(error, graph->count);
    TRY(program_gather_ahead(steps, arena, program, graph, leader, late, error));
    arena_release(arena, mark);
    return AM_OK;
}

/* ---- steps that may come later ---- */

/* Returns whether a step has no effect but its results, and no place in the order of other steps. */
static bool may_be_delayed(const Program *program, const ProgramStep *step) {
    if (step->fusion >= 0) return true;
    const ProgramInstruction *instruction = &program->instructions[step->instruction];
    switch (instruction->opcode) {
    case IR_BROADCAST:
    case IR_CONSTANT:
    case IR_GATHER:
    case IR_IOTA:
    case IR_PAD:
    case IR_REDUCE:
    case IR_SCATTER:
    case IR_SLICE:
    case IR_TRANSPOSE: return instruction->kind == PROGRAM_COMPUTE && !instruction->compute.place;
    default: return false;
    }
}

enum { PARAMETER = -1, FIXED = -2, LEAST_DELAYED_BYTES = 64 << 10 };

/* Returns the step whose result a value is or views; PARAMETER: one that keeps its value; FIXED: anything
 * else. */
static int32_t source_step(const Program *program, const ProgramGraph *graph, const int32_t *made_at,
                           int32_t value) {
    while (made_at[value] == PARAMETER && graph->producer[value] >= 0) {
        const ProgramInstruction *producer = &program->instructions[graph->producer[value]];
        if (producer->kind != PROGRAM_VIEW) return FIXED;
        value = producer->operands[0];
    }
    return made_at[value];
}

AmStatus program_delay_steps(Program *program, const ProgramGraph *graph, AmError *error) {
    Arena *arena = program->arena;
    ArenaMark mark = arena_mark(arena);
    int32_t count = program->execution.step_count, placed = 0;
    int32_t *made_at = ARENA_ARRAY(arena, int32_t, program->value_count + 1); /* [value]: step */
    int32_t *needed_at = ARENA_ARRAY(arena, int32_t, count + 1);              /* [step]: the first reader */
    int32_t *next = ARENA_ARRAY(arena, int32_t, count + 1);                   /* [step]: needed there too */
    int32_t *first = ARENA_ARRAY(arena, int32_t, count + 1); /* [reader]: delayed step, or -1 */
    bool *is_delayed = ARENA_ARRAY(arena, bool, count + 1), *is_free = ARENA_ARRAY(arena, bool, count + 1);
    ProgramStep *steps = ARENA_ARRAY(arena, ProgramStep, count + 1);
    if (arena->failed) return am_fail_memory(error, program->value_count * 4);
    for (int32_t v = 0; v < program->value_count; v++) made_at[v] = PARAMETER;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        made_at[program->parameters[program->execution.updates[k].parameter]] = FIXED;
    for (int32_t s = 0; s < count; s++)
        for (int32_t k = 0; k < program_step_results(program, &program->execution.steps[s]); k++)
            made_at[program_step_result(program, &program->execution.steps[s], k)] = s;
    for (int32_t s = 0; s < count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        is_free[s] = may_be_delayed(program, step);
        int64_t bytes = 0;
        for (int32_t n = 0; n < program_step_results(program, step); n++)
            bytes += ir_shape_bytes(&program->values[program_step_result(program, step, n)].shape);
        is_delayed[s] = bytes >= LEAST_DELAYED_BYTES;
        for (int32_t k = 0; k < program_step_operands(program, step) && is_free[s]; k++) {
            int32_t source = source_step(program, graph, made_at, program_step_operand(program, step, k));
            is_free[s] = source == PARAMETER || (source >= 0 && is_free[source]);
            is_delayed[s] |= source >= 0 && is_delayed[source];
        }
        is_delayed[s] &= is_free[s];
        needed_at[s] = is_delayed[s] ? count : program_first_together(program, s);
    }
    for (int32_t s = 0; s <= count; s++) first[s] = -1;
    for (int32_t s = count - 1; s >= 0; s--) {
        const ProgramStep *step = &program->execution.steps[s];
        for (int32_t k = 0; k < program_step_operands(program, step); k++) {
            int32_t source = source_step(program, graph, made_at, program_step_operand(program, step, k));
            if (source >= 0 && is_delayed[source] && needed_at[s] < needed_at[source])
                needed_at[source] = needed_at[s];
        }
        if (!is_delayed[s]) continue;
        next[s] = first[needed_at[s]];
        first[needed_at[s]] = s;
    }
    for (int32_t s = 0; s <= count; s++) {
        for (int32_t delayed = first[s]; delayed >= 0; delayed = next[delayed])
            steps[placed++] = program->execution.steps[delayed];
        if (s < count && !is_delayed[s]) steps[placed++] = program->execution.steps[s];
    }
    memcpy(program->execution.steps, steps, sizeof *steps * (size_t)count);
    arena_release(arena, mark);
    return AM_OK;
}

/* ---- steps at the end ---- */

/* A step and the collective under way that it waits for: its step, or -1. */
typedef struct WaitingStep {
    int32_t collective, place;
    ProgramStep step;
} WaitingStep;

static int compare_waiting(const void *left, const void *right) {
    const WaitingStep *a = left, *b = right;
    if (a->collective != b->collective) return a->collective < b->collective ? -1 : 1;
    return (a->place > b->place) - (a->place < b->place);
}

/* Returns whether other steps may not move past a step: it communicates or has regions. */
static bool is_border(const Program *program, const ProgramStep *step) {
    if (step->fusion >= 0) return false;
    const ProgramInstruction *instruction = &program->instructions[step->instruction];
    bool is_local = instruction->kind == PROGRAM_COMPUTE || instruction->kind == PROGRAM_VIEW;
    return !is_local || instruction->regions.count > 0;
}

AmStatus program_sort_end(Program *program, const ProgramGraph *graph, AmError *error) {
    ProgramStep *steps = program->execution.steps;
    int32_t count = program->execution.step_count, end = count, first = 0, awaited = -1;
    ArenaMark mark = arena_mark(program->arena);
    int32_t *made_at = ARENA_ARRAY(program->arena, int32_t, program->value_count + 1); /* [value]: step */
    WaitingStep *waiting = ARENA_ARRAY(program->arena, WaitingStep, count + 1);
    if (program->arena->failed) return am_fail_memory(error, program->value_count * 4);
    for (int32_t v = 0; v < program->value_count; v++) made_at[v] = PARAMETER;
    for (int32_t s = 0; s < count; s++)
        for (int32_t k = 0; k < program_step_results(program, &steps[s]); k++)
            made_at[program_step_result(program, &steps[s], k)] = s;
    while (end > 0 && (steps[end - 1].fusion >= 0 ||
                       !program_is_work(&program->instructions[steps[end - 1].instruction])))
        end--;
    for (int32_t s = 0; s < count; s++) {
        int32_t collective = -1;
        for (int32_t k = 0; k < program_step_operands(program, &steps[s]); k++) {
            int32_t source =
                source_step(program, graph, made_at, program_step_operand(program, &steps[s], k));
            if (source < 0) continue;
            int32_t needed = is_border(program, &steps[source]) ? source
                             : source >= first                  ? waiting[source].collective
                                                                : -1;
            if (needed > collective) collective = needed;
        }
        waiting[s] = (WaitingStep){collective > awaited ? collective : -1, s, steps[s]};
        if (s >= end && !is_border(program, &steps[s])) continue;
        for (int32_t k = first; k <= s; k++)
            if (waiting[k].collective > awaited) awaited = waiting[k].collective;
        first = s + 1;
    }
    for (int32_t s = end; s < count; s = first + 1) {
        for (first = s; first < count && !is_border(program, &steps[first]);) first++;
        qsort(waiting + s, (size_t)(first - s), sizeof *waiting, compare_waiting);
    }
    for (int32_t s = end; s < count; s++) steps[s] = waiting[s].step;
    arena_release(program->arena, mark);
    return AM_OK;
}
