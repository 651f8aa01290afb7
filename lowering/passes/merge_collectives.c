/* Buckets: merges many small collectives (one per gradient) into few.
 *
 * All_reduces and reduce_scatters are merged, and all_gathers that end in outputs (new weights) or
 * gather a sum that was reduced and rounded in shards. Other all_gathers are not merged: a gather
 * of a stored weight has no dependencies and would move to the start of the step with all others.
 *
 * Two collectives of one kind over the same axes without a path between them may become one. The
 * level of an instruction over an axis set and kind is the number of such collectives on the
 * longest path to it. Equal levels exclude a path, and levels only grow along paths, so that
 * merging all of equal level keeps the program acyclic. Axis sets are processed one after the
 * other, on the program as merged so far. A bucket holds at most MERGE_BYTES, so that not all
 * gradients live until the last one exists. Instructions are then reordered after their operands,
 * otherwise by their old position.
 */
#include "lowering/passes/passes.h"
#include "lowering/program/live_bytes.h"

#include <string.h>

#include "lowering/passes/instruction_order.h"
#include "lowering/passes/reduce_early.h"

#define MERGE_BYTES ((int64_t)64 << 20)

typedef struct Bucket {
    int32_t leader; /* instruction that the others join */
    int32_t level, count;
    int64_t bytes;
    SbpReduction reduction;
    Dtype type;
} Bucket;

static const ProgramValue *result_of(const Program *program, const ProgramInstruction *instruction) {
    return &program->values[instruction->first_result];
}

enum { MERGE_CLASSES = 4 << MESH_MAX_AXES }; /* kinds that merge, by axes */

/* Returns the sum, rounded in shards, that an all_gather gathers; NULL for other gathers. */
static const ProgramInstruction *gathered_sum(const Program *program, const ProgramGraph *graph,
                                              const ProgramInstruction *gather) {
    int32_t rounding = graph->producer[gather->operands[0]];
    if (gather->collective->kind != PROGRAM_ALL_GATHER || rounding < 0) return NULL;
    if (program->instructions[rounding].opcode != IR_CONVERT) return NULL;
    int32_t sum = graph->producer[program->instructions[rounding].operands[0]];
    return sum >= 0 && program_reduces(&program->instructions[sum]) ? &program->instructions[sum] : NULL;
}

/* Returns the class of collectives that an instruction may be merged with, by kind and axes; 0: none. */
static uint32_t merging_class(const Program *program, const ProgramGraph *graph, int32_t i) {
    const ProgramInstruction *instruction = &program->instructions[i];
    if (instruction->kind != PROGRAM_COLLECTIVE) return 0;
    const ProgramCollective *collective = instruction->collective;
    bool is_last = graph->first_user[i] == graph->first_user[i + 1] && graph->first[i] < graph->first[i + 1];
    switch (collective->kind) {
    case PROGRAM_ALL_REDUCE: return collective->axes;
    case PROGRAM_REDUCE_SCATTER: return 1u << MESH_MAX_AXES | collective->axes;
    case PROGRAM_ALL_GATHER:
        if (is_last) return 2u << MESH_MAX_AXES | collective->axes;
        return gathered_sum(program, graph, instruction) ? 3u << MESH_MAX_AXES | collective->axes : 0;
    default: return 0;
    }
}

/* Returns the bytes that count in a bucket: the larger side of the collective, for a gathered sum that of
 * the sum. */
static int64_t moved_bytes(const Program *program, const ProgramGraph *graph,
                           const ProgramInstruction *instruction) {
    const ProgramInstruction *sum = gathered_sum(program, graph, instruction);
    if (sum) instruction = sum;
    int64_t result = program_even_bytes(program, result_of(program, instruction));
    int64_t operand = program_even_bytes(program, &program->values[instruction->operands[0]]);
    return result > operand ? result : operand;
}

/* Gives `target` the movements of the `count` members at `order` of the list `before`, which it replaces. */
static AmStatus join_movements(ProgramInstruction *target, const Program *program,
                               const ProgramInstruction *before, const int32_t *order, int32_t count,
                               AmError *error) {
    if (!target->collective->movements) return AM_OK;
    ProgramCollective *collective = ARENA_ARRAY(program->arena, ProgramCollective, 1);
    ProgramMovement *movements = ARENA_ARRAY(program->arena, ProgramMovement, count);
    if (program->arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) movements[k] = before[order[k]].collective->movements[0];
    *collective = *target->collective;
    collective->movements = movements;
    target->collective = collective;
    return AM_OK;
}

/* Assigns leader[i], the instruction that i is merged into (itself where it is not). Levels are those of
 * merged instructions, so members of earlier merges share one. `*order` is that of the program as merged so
 * far; it becomes NULL if more is merged. */
static AmStatus assign_buckets(const Program *program, Arena *scratch, const ProgramGraph *graph,
                               const uint8_t *class_of, uint8_t axes, int32_t *leader, const int32_t **order,
                               AmError *error) {
    int32_t count = graph->count, candidates = 0;
    if (!*order) TRY(program_order(order, scratch, program, graph, leader, error));
    for (int32_t i = 0; i < count; i++) candidates += class_of[i] == axes;
    int32_t *level = ARENA_ARRAY(scratch, int32_t, count + 1);
    Bucket *buckets = ARENA_ARRAY(scratch, Bucket, candidates);
    if (scratch->failed) return am_fail_memory(error, count);
    int32_t bucket_count = 0, oldest = 0;
    for (int32_t place = 0; place < count; place++) {
        int32_t i = (*order)[place];
        int32_t *own = &level[leader[i]];
        for (int32_t e = graph->first[i]; e < graph->first[i + 1]; e++) {
            int32_t producer = graph->producers[e];
            int32_t above = level[leader[producer]] + (class_of[producer] == axes ? 1 : 0);
            if (above > *own) *own = above;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (class_of[i] != axes || leader[i] != i) continue;
        const ProgramInstruction *instruction = &program->instructions[i];
        const ProgramValue *value = result_of(program, instruction);
        int64_t bytes = moved_bytes(program, graph, instruction);
        Bucket *found = NULL;
        for (int32_t b = oldest; b < bucket_count && !found; b++)
            if (buckets[b].level == level[i] && buckets[b].reduction == instruction->collective->reduction &&
                buckets[b].type == value->shape.type && buckets[b].bytes + bytes <= MERGE_BYTES)
                found = &buckets[b];
        if (!found) {
            found = &buckets[bucket_count++];
            *found = (Bucket){.leader = i,
                              .level = level[i],
                              .reduction = instruction->collective->reduction,
                              .type = value->shape.type};
            if (bucket_count - oldest > 64) oldest = bucket_count - 64;
        }
        found->bytes += bytes;
        if (found->count++ > 0) *order = NULL;
        leader[i] = found->leader;
    }
    return AM_OK;
}

/* Gives all readers the new names of the first `values` values, and the program `count` instructions. */
static AmStatus rename_values(Program *program, const int32_t *renamed, int32_t values, int32_t count,
                              AmError *error) {
    int32_t operand_count = 0;
    for (int32_t i = 0; i < count; i++) operand_count += program->instructions[i].operand_count;
    int32_t *operands = ARENA_ARRAY(program->arena, int32_t, operand_count);
    if (!operands) return am_fail_memory(error, operand_count);
    for (int32_t i = 0; i < count; i++) {
        ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++)
            operands[k] = renamed[instruction->operands[k]];
        instruction->operands = operands;
        operands += instruction->operand_count;
        for (int32_t k = 0; k < instruction->result_count; k++)
            program->values[instruction->first_result + k].instruction = i;
    }
    for (int32_t v = 0; v < values; v++)
        if (renamed[v] != v) program->values[v].kind = PROGRAM_VALUE_INTERNAL;
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) program->outputs[k] = renamed[program->outputs[k]];
    for (int32_t k = 0; k < program->execution.update_count; k++)
        program->execution.updates[k].value = renamed[program->execution.updates[k].value];
    program->instruction_count = count;
    return AM_OK;
}

/* Rebuilds the instruction list in order, members folded into their leaders. */
static AmStatus apply_merges(Program *program, Arena *scratch, const int32_t *order, const int32_t *leader,
                             AmError *error) {
    Arena *arena = program->arena;
    int32_t count = program->instruction_count;
    int32_t *members = ARENA_ARRAY(scratch, int32_t, count + 1);
    int32_t *renamed = ARENA_ARRAY(scratch, int32_t, program->value_count + 1);
    ProgramInstruction *instructions = program->instructions;
    ProgramInstruction *before = ARENA_ARRAY_RAW(scratch, ProgramInstruction, count + 1);
    int32_t old_values = program->value_count, made = 0;
    if (scratch->failed) return am_fail_memory(error, count);
    memcpy(before, instructions, sizeof *before * (size_t)count);
    for (int32_t v = 0; v < old_values; v++) renamed[v] = v;
    for (int32_t i = 0; i < count; i++) members[leader[i]]++;
    /* program_order() puts the members of one leader side by side. */
    for (int32_t place = 0; place < count;) {
        int32_t first = order[place], together = members[leader[first]];
        ProgramInstruction *target = &instructions[made];
        *target = before[first];
        if (together > 1) {
            int32_t *operands = ARENA_ARRAY(arena, int32_t, together);
            if (!operands) return am_fail_memory(error, together);
            target->first_result = program->value_count;
            target->operand_count = target->result_count = together;
            for (int32_t k = 0; k < together; k++) {
                const ProgramInstruction *member = &before[order[place + k]];
                ARENA_RESERVE(arena, program->values, program->value_count, program->value_capacity);
                if (arena->failed) return am_fail_memory(error, 0);
                operands[k] = member->operands[0];
                renamed[member->first_result] = program->value_count;
                program->values[program->value_count] = program->values[member->first_result];
                program->values[program->value_count].storage = program->value_count;
                program->value_count++;
            }
            target->operands = operands;
            TRY(join_movements(target, program, before, &order[place], together, error));
        }
        place += together;
        made++;
    }
    return rename_values(program, renamed, old_values, made, error);
}

AmStatus program_merge_collectives(Program *program, AmError *error) {
    Arena scratch = {0};
    if (program->mesh->device_count == 1) return AM_OK;
    AmStatus status = AM_OK;
    int32_t count = program->instruction_count;
    int32_t *leader = ARENA_ARRAY(&scratch, int32_t, count + 1);
    uint8_t *class_of = ARENA_ARRAY(&scratch, uint8_t, count + 1);
    ProgramGraph graph;
    if (scratch.failed) TRY_OR_FAIL(am_fail_memory(error, count));
    TRY_OR_FAIL(program_graph(&graph, &scratch, program, error));
    int32_t uses[MERGE_CLASSES] = {0};
    for (int32_t i = 0; i < count; i++) {
        leader[i] = i;
        class_of[i] = (uint8_t)merging_class(program, &graph, i);
        uses[class_of[i]]++;
    }
    const int32_t *order = NULL;
    bool is_merged = false;
    for (int32_t axes = 1; axes < MERGE_CLASSES; axes++) {
        if (uses[axes] < 2) continue;
        TRY_OR_FAIL(
            assign_buckets(program, &scratch, &graph, class_of, (uint8_t)axes, leader, &order, error));
        is_merged |= !order;
    }
    if (!is_merged) goto fail;
    if (!order) TRY_OR_FAIL(program_order(&order, &scratch, program, &graph, leader, error));
    status = apply_merges(program, &scratch, order, leader, error);
fail:
    arena_free(&scratch);
    return status;
}
