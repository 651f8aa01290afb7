/* Interleaving: which loops, what keeps them apart, and the new order. See interleave.h.
 *
 * What stands between two loops of a pair and takes nothing from the first moves before it; what does
 * comes after both. All stages do so alike: whether a transfer goes before or after follows from the
 * canonical module, not from what this stage holds.
 */
#include "lowering/interleave/interleave.h"

#include <stdio.h>
#include <stdlib.h>

#include "ir/analysis/loops.h"
#include "lowering/interleave/interleave_weights.h"

static int32_t loop_iterations(const Rules *rules, const PlannedLoop *loop) {
    int64_t trips = ir_loop_trips(rules->module, loop->instruction);
    bool in_entry = loop->instruction < rules->entry_count;
    return in_entry && trips > 1 && trips <= INT32_MAX ? (int32_t)trips : 0;
}

/* Returns the loop that made (instruction, leaf), as reshapes show it; -1: none. */
static int32_t loop_that_made(const Rules *rules, const int32_t *producers, int32_t instruction) {
    const IrInstruction *at = &rules->module->instructions[instruction];
    while (at->opcode == IR_RESHAPE) {
        instruction = rules->alias[at->operands[0]];
        at = &rules->module->instructions[instruction];
    }
    return producers[instruction];
}

/* Returns the last loop before `loop`, of as many iterations, that makes something it reads and does not
 * change. */
static int32_t find_first(const Rules *rules, const int32_t *producers, const PlannedLoop *loop,
                          const bool *paired) {
    int32_t iterations = loop_iterations(rules, loop), found = -1;
    for (int32_t k = 0; k < loop->leaf_count && iterations > 0; k++) {
        const LoopLeaf *leaf = &loop->leaves[k];
        bool is_read = leaf->is_invariant && leaf->initial >= 0;
        int32_t producer = is_read ? loop_that_made(rules, producers, leaf->initial) : -1;
        if (producer < 0 || paired[producer] || loop_iterations(rules, &rules->loops[producer]) != iterations)
            continue;
        if (found < 0 || rules->loops[producer].instruction > rules->loops[found].instruction)
            found = producer;
    }
    return found;
}

AmStatus interleave_pairs(LoopPair **pairs, int32_t *count, Arena *arena, const Rules *rules,
                          AmError *error) {
    bool *paired = ARENA_ARRAY(arena, bool, rules->loop_count + 1);
    /* For each instruction of the module the number of the loop whose array it is; -1: none. */
    int32_t *producers = ARENA_ARRAY(arena, int32_t, rules->module->instruction_count + 1);
    for (int32_t i = 0; producers && i < rules->module->instruction_count; i++) producers[i] = -1;
    for (int32_t l = rules->loop_count - 1; producers && l >= 0; l--)
        for (int32_t k = 0; k < rules->loops[l].leaf_count; k++)
            if (rules->loops[l].leaves[k].afterwards >= 0)
                producers[rules->loops[l].leaves[k].afterwards] = l;
    *pairs = ARENA_ARRAY(arena, LoopPair, rules->loop_count + 1);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, rules->module->instruction_count);
    for (int32_t l = 0; l < rules->loop_count; l++) {
        const PlannedLoop *loop = &rules->loops[l];
        int32_t first = paired[l] ? -1 : find_first(rules, producers, loop, paired);
        if (first < 0) continue;
        paired[l] = paired[first] = true;
        (*pairs)[(*count)++] = (LoopPair){.first = rules->loops[first].instruction,
                                          .second = loop->instruction,
                                          .iterations = loop_iterations(rules, loop)};
    }
    return AM_OK;
}

/* ---- one pair in one program ---- */

/* The terms on which a pair is joined: one stage under one schedule. */
typedef struct JoinTerms {
    const Rules *rules;
    const LoopPair *pair;
    ScheduleKind schedule;
    int32_t kept, kept_until_third, kept_from_second; /* iterations, as in InterleavedLoops */
} JoinTerms;

/* Names the operator between `before` and `after`. */
static AmStatus refuse_operator(const Program *program, ScheduleKind schedule, int32_t instruction,
                                const char *before, const char *after, AmError *error) {
    const IrModule *module = program->module;
    const IrInstruction *at = &module->instructions[program->instructions[instruction].origin];
    const char *name = *at->op_name ? at->op_name : at->name;
    char place[256] = "";
    if (*at->source_file)
        snprintf(place, sizeof place, " (%.200s:%d)", at->source_file, (int)at->source_line);
    return am_fail(error, AM_ERROR_INFEASIBLE, module->source, "schedule %s: %s \"%.200s\"%s%s; %s",
                   schedule_kind_name(schedule), before, name, place, after,
                   schedule == SCHEDULE_INTERLEAVED ? "fewer stages or chunks, or schedule 1f1b, may allow it"
                                                    : "schedule gpipe allows it");
}

/* Marks the instructions of the program that depend on instruction `first`, the canonical `loop`; in the
 * arena. */
static AmStatus mark_after(bool **result, const JoinedLoops *loops, const Rules *rules, int32_t loop,
                           AmError *error) {
    const Program *program = loops->program;
    /* The entry instructions of the canonical module that depend on `loop`. */
    bool *depends = ARENA_ARRAY(program->arena, bool, rules->entry_count + 1);
    for (int32_t i = loop; depends && i < rules->entry_count; i++) {
        const IrInstruction *instruction = &rules->module->instructions[i];
        depends[i] = i == loop;
        for (int32_t k = 0; k < instruction->operand_count && !depends[i]; k++)
            depends[i] = depends[instruction->operands[k]];
    }
    bool *is_after = ARENA_ARRAY(program->arena, bool, program->instruction_count + 1);
    if (program->arena->failed) return am_fail_memory(error, program->instruction_count);
    for (int32_t i = loops->first; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool after = i == loops->first;
        if (instruction->kind == PROGRAM_TRANSFER && instruction->origin < rules->entry_count)
            after |= depends[instruction->origin];
        for (int32_t k = 0; k < instruction->operand_count && !after; k++) {
            int32_t producer = loops->uses.producer[instruction->operands[k]];
            after = producer >= 0 && is_after[producer];
        }
        is_after[i] = after;
    }
    *result = is_after;
    return AM_OK;
}

static AmStatus find_stacks(LoopStack *stacks, int32_t *count, const JoinedLoops *loops,
                            const JoinTerms *terms, const bool *is_after, const WaitingPart *part,
                            AmError *error) {
    const ProgramInstruction *second = &loops->program->instructions[loops->second];
    *count = 0;
    for (int32_t k = 0; k < second->operand_count; k++) {
        int32_t producer = loops->uses.producer[second->operands[k]];
        if (producer < 0 || !is_after[producer]) continue;
        LoopStack *stack = &stacks[*count];
        if (!stack_find(stack, loops, k))
            return refuse_operator(loops->program, terms->schedule, producer, "the backward pass needs",
                                   ", which needs all micro-batches of the forward pass", error);
        stack->kept = part->count > 0 && part->is_taken[k] ? terms->kept_until_third : terms->kept;
        ++*count;
    }
    /* A stack that several operands are, or views of, is kept as long as the last of them needs it. */
    int32_t results = loops->program->instructions[loops->first].result_count;
    int32_t *most = ARENA_ARRAY(loops->program->arena, int32_t, results + 1);
    if (!most) return am_fail_memory(error, results);
    for (int32_t k = 0; k < *count; k++)
        if (stacks[k].kept > most[stacks[k].result]) most[stacks[k].result] = stacks[k].kept;
    for (int32_t k = 0; k < *count; k++) stacks[k].kept = most[stacks[k].result];
    return AM_OK;
}

/* Puts the first and the second loop side by side. */
static AmStatus arrange(JoinedLoops *loops, const bool *is_after, AmError *error) {
    Program *program = loops->program;
    int32_t count = program->instruction_count, placed = 0, first = loops->first, second = loops->second;
    int32_t *list = ARENA_ARRAY(program->arena, int32_t, count + 1);
    if (!list) return am_fail_memory(error, count);
    for (int32_t i = 0; i < first; i++) list[placed++] = i;
    for (int32_t i = first + 1; i < second; i++)
        if (!is_after[i]) list[placed++] = i;
    loops->first = placed;
    list[placed++] = first;
    loops->second = placed;
    list[placed++] = second;
    for (int32_t i = first + 1; i < count; i++)
        if (i > second || (i < second && is_after[i])) list[placed++] = i;
    return program_relist(program, list, placed, error);
}

static int32_t find_loop(const Program *program, int32_t origin) {
    for (int32_t i = 0; i < program->instruction_count; i++)
        if (program->instructions[i].opcode == IR_WHILE && program->instructions[i].origin == origin)
            return i;
    return -1;
}

/* Finds the part of the second loop's body that can wait; empty unless the schedule splits it. */
static AmStatus find_waiting(WaitingPart *part, const JoinedLoops *loops, const JoinTerms *terms,
                             AmError *error) {
    *part = (WaitingPart){.count = 0};
    if (!schedule_splits_backward(terms->schedule)) return AM_OK;
    return waiting_part_find(part, loops->program->arena, &loops->program->instructions[loops->second],
                             error);
}

/* Joins the loops of the two passes: the values between them get places for the iterations that are kept. */
static AmStatus join_loops(Program *program, const JoinTerms *terms, int32_t first, int32_t second,
                           AmError *error) {
    Arena *arena = program->arena;
    const LoopPair *pair = terms->pair;
    int32_t operands = program->instructions[second].operand_count, stack_count, third = -1;
    LoopStack *stacks = ARENA_ARRAY(arena, LoopStack, operands + 1);
    InterleavedLoops *iterations = ARENA_ARRAY(arena, InterleavedLoops, 1);
    JoinedLoops loops;
    WaitingPart part;
    bool *is_after;
    if (arena->failed) return am_fail_memory(error, operands);
    TRY(joined_loops_open(&loops, arena, program, first, second, pair->iterations, error));
    TRY(mark_after(&is_after, &loops, terms->rules, pair->first, error));
    TRY(find_waiting(&part, &loops, terms, error));
    TRY(find_stacks(stacks, &stack_count, &loops, terms, is_after, &part, error));
    TRY(stacks_count_spare(&loops, stacks, stack_count, error));
    TRY(stacks_shrink(&loops, stacks, stack_count, error));
    first = find_loop(program, pair->first);
    second = find_loop(program, pair->second);
    TRY(joined_loops_open(&loops, arena, program, first, second, pair->iterations, error));
    TRY(mark_after(&is_after, &loops, terms->rules, pair->first, error));
    TRY(arrange(&loops, is_after, error));
    first = loops.first;
    second = loops.second;
    TRY(find_waiting(&part, &loops, terms, error));
    if (part.count > 0)
        TRY(waiting_part_split(program, &first, &second, &third, &part, terms->kept_from_second,
                               pair->iterations, error));
    *iterations = (InterleavedLoops){.second = second,
                                     .third = third,
                                     .chunks = 1,
                                     .count = pair->iterations,
                                     .kept = terms->kept,
                                     .kept_until_third = terms->kept_until_third,
                                     .kept_from_second = terms->kept_from_second};
    program->instructions[first].loop.iterations = iterations;
    return AM_OK;
}

/* Returns why parts of a model in chunks cannot have a transfer in the loop of a pass, or NULL. In their
 * order the forward pass goes up the parts and the backward pass down, and never to the same stage. */
static const char *find_obstacle(const StageMap *map, const ProgramTransfer *transfer, bool is_backward) {
    int32_t stages = map->stage_count / map->chunks;
    if (map->chunks == 1) return NULL;
    if (transfer->sender % stages == transfer->receiver % stages)
        return ", which another chunk of its stage makes";
    bool goes_down = transfer->receiver < transfer->sender;
    if (goes_down == is_backward) return NULL;
    return is_backward ? ", which an earlier one makes in the backward pass"
                       : ", which a later one makes in the forward pass";
}

/* Transfers in the body of loop `number` of all pairs get slots; they are this program's own. */
static AmStatus set_slots(Program *body, const StageMap *map, int32_t iterations, int32_t number,
                          ScheduleKind schedule, AmError *error) {
    for (int32_t i = 0; i < body->instruction_count; i++) {
        ProgramInstruction *instruction = &body->instructions[i];
        if (instruction->kind != PROGRAM_TRANSFER) continue;
        ProgramTransfer *transfer = ARENA_ARRAY(body->arena, ProgramTransfer, 1);
        if (!transfer) return am_fail_memory(error, (int64_t)sizeof *transfer);
        const char *obstacle = find_obstacle(map, instruction->transfer, number % 2 == 1);
        if (obstacle) return refuse_operator(body, schedule, i, "a chunk needs", obstacle, error);
        *transfer = *instruction->transfer;
        /* One value for each stage of the distance may be under way, and one more. Chunks compute their
         * iterations in one order, in which the receiving chunk may be a round of all stages later. Under
         * zb_2p each stage is two iterations of F further ahead than the next one. */
        int32_t stages = map->stage_count / map->chunks;
        int32_t parts = abs(transfer->sender - transfer->receiver);
        int32_t apart = abs(transfer->sender % stages - transfer->receiver % stages);
        int32_t slots = map->chunks > 1 && parts > 1 ? stages + parts : apart + 1;
        if (schedule == SCHEDULE_ZB_2P) slots += apart;
        transfer->slots = slots < iterations ? slots : iterations;
        transfer->number += (int64_t)(number + 1) << 32;
        instruction->transfer = transfer;
    }
    return AM_OK;
}

/* Prepares a loop whose partner is not on this stage. */
static AmStatus stand_alone(Program *program, int32_t loop, bool is_backward, const LoopPair *pair,
                            AmError *error) {
    InterleavedLoops *iterations = ARENA_ARRAY(program->arena, InterleavedLoops, 1);
    if (!iterations) return am_fail_memory(error, (int64_t)sizeof *iterations);
    *iterations = (InterleavedLoops){.second = -1,
                                     .third = -1,
                                     .chunks = 1,
                                     .is_backward = is_backward,
                                     .count = pair->iterations,
                                     .kept = pair->iterations};
    program->instructions[loop].loop.iterations = iterations;
    return AM_OK;
}

/* Numbers the loops of an earlier pair anew, as they may have moved together. */
static void number_joined(Program *program) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const InterleavedLoops *iterations = program->instructions[i].loop.iterations;
        if (!iterations || iterations->second < 0 || iterations->second == i + 1) continue;
        InterleavedLoops *moved = ARENA_ARRAY(program->arena, InterleavedLoops, 1);
        if (!moved) return;
        *moved = *iterations;
        moved->second = i + 1;
        moved->third = iterations->third >= 0 ? i + 2 : -1;
        program->instructions[i].loop.iterations = moved;
    }
}

static AmStatus finish_regions(Program *program, AmError *error) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        if (!program->instructions[i].loop.iterations) continue;
        for (int32_t k = i; k < i + program_joined(program, i); k++)
            for (int32_t r = 0; r < program->instructions[k].regions.count; r++) {
                program->instructions[k].regions.programs[r]->counter.in_iterations = true;
                TRY(program_finish_again(program->instructions[k].regions.programs[r], error));
            }
    }
    return AM_OK;
}

AmStatus program_interleave(Program *program, const Rules *rules, const StageMap *map, int32_t stage,
                            ScheduleKind schedule, AmError *error) {
    LoopPair *pairs;
    int32_t count;
    TRY(interleave_pairs(&pairs, &count, program->arena, rules, error));
    for (int32_t p = 0; p < count; p++) {
        const LoopPair *pair = &pairs[p];
        const int32_t origins[] = {pair->first, pair->second};
        JoinTerms terms = {.rules = rules, .pair = pair, .schedule = schedule};
        int32_t loops[2];
        /* The numbers of iterations by which the stage, or its chunk, may be ahead. */
        int32_t stages = map->stage_count / map->chunks, iterations = pair->iterations;
        terms.kept_until_third = schedule_kept_for_weights(schedule, stages, iterations);
        terms.kept_from_second = schedule_kept_from_backward(schedule, stage, iterations);
        const ScheduledStage scheduled = {.kind = schedule,
                                          .stages = stages,
                                          .stage = stage % stages,
                                          .micro_batches = iterations,
                                          .chunks = map->chunks};
        TRY(schedule_kept_of_chunk(&terms.kept, program->arena, &scheduled, stage / stages, error));
        for (int k = 0; k < 2; k++) {
            loops[k] = find_loop(program, origins[k]);
            if (loops[k] < 0) continue;
            Program *body = program->instructions[loops[k]].regions.programs[0];
            TRY(set_slots(body, map, pair->iterations, 2 * p + k, schedule, error));
        }
        if (loops[0] >= 0 && loops[1] >= 0) TRY(join_loops(program, &terms, loops[0], loops[1], error));
        for (int k = 0; k < 2; k++)
            if (loops[k] >= 0 && loops[1 - k] < 0) TRY(stand_alone(program, loops[k], k == 1, pair, error));
    }
    number_joined(program);
    return program->arena->failed ? am_fail_memory(error, count) : finish_regions(program, error);
}

AmStatus program_gather_stacks(Program *program, const Rules *rules, AmError *error) {
    LoopPair *pairs;
    int32_t count = 0;
    if (rules->loop_count > 1) TRY(interleave_pairs(&pairs, &count, program->arena, rules, error));
    for (int32_t p = 0; p < count; p++) {
        int32_t first = find_loop(program, pairs[p].first), second = find_loop(program, pairs[p].second);
        if (first < 0 || second < 0) continue;
        int32_t operands = program->instructions[second].operand_count, stack_count = 0;
        LoopStack *stacks = ARENA_ARRAY(program->arena, LoopStack, operands + 1);
        JoinedLoops loops;
        if (!stacks) return am_fail_memory(error, operands);
        TRY(joined_loops_open(&loops, program->arena, program, first, second, pairs[p].iterations, error));
        for (int32_t k = 0; k < operands; k++) {
            if (!stack_find(&stacks[stack_count], &loops, k)) continue;
            stacks[stack_count++].kept = loops.iterations;
        }
        TRY(stacks_count_spare(&loops, stacks, stack_count, error));
        int32_t found = stack_count;
        stack_count = 0;
        for (int32_t k = 0; k < found; k++)
            if (stacks[k].dimension > 0 && stacks[k].may_shrink) stacks[stack_count++] = stacks[k];
        if (stack_count == 0) continue;
        TRY(stacks_shrink(&loops, stacks, stack_count, error));
        first = find_loop(program, pairs[p].first);
        second = find_loop(program, pairs[p].second);
        for (int32_t r = 0; r < 2; r++) {
            TRY(program_finish_again(program->instructions[first].regions.programs[r], error));
            TRY(program_finish_again(program->instructions[second].regions.programs[r], error));
        }
    }
    return AM_OK;
}
