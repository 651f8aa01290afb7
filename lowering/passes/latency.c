/* Estimates the work between collectives, by which reduce_early.c and gather_ahead.c order a program.
 *
 * The unit is an operation of a product. A byte that is read or written counts as OPERATIONS_PER_BYTE
 * operations, a byte that is sent as OPERATIONS_PER_SENT_BYTE. Sizes are those of equal shards, so that all
 * ranks compute the same estimates and orders. Example: an all-reduce of 1 MiB counts as 2^31 operations. */
#include "lowering/passes/latency.h"

#include <math.h>

#include "ir/analysis/flops.h"
#include "propagation/rules/rules.h"

/* Operations of a device per byte sent, and per byte read or written: about 1,000 to 4,000 and 50
 * to 200 for GPUs of the last ten years and their links inside a server. */
#define OPERATIONS_PER_SENT_BYTE 2048.0
#define OPERATIONS_PER_BYTE      64.0

/* The number of awaited collectives considered: those of one layer, or a few. */
enum { MOST_NEAR = 16 };

/* The most instructions between a stored weight and its gather. */
enum { MOST_STEPS = 8 };

static double result_bytes(const LiveBytes *live, const ProgramInstruction *instruction) {
    double bytes = 0;
    for (int32_t k = 0; k < instruction->result_count; k++)
        bytes += (double)live->bytes[instruction->first_result + k];
    return bytes;
}

static double elements_of(const LiveBytes *live, int32_t value) {
    int64_t bytes = dtype_bytes(live->program->values[value].shape.type);
    return bytes > 0 ? (double)live->bytes[value] / (double)bytes : 0;
}

/* Operations of a product [b, m, k] x [b, k, n]: the square of b m k n is the product of the sizes
 * of both operands and the result, over b. */
static double product_operations(const LiveBytes *live, const ProgramInstruction *instruction) {
    const Program *program = live->program;
    double elements = elements_of(live, instruction->first_result), batch = 1;
    for (int32_t k = 0; k < 2; k++) elements *= elements_of(live, instruction->operands[k]);
    const ProgramValue *left = &program->values[instruction->operands[0]];
    const IrDot *dot = ir_is_matrix_product(instruction->opcode) ? instruction->attributes->dot : NULL;
    const IrShape *global = rules_leaf(&program->module->instructions[left->origin].shape, left->leaf);
    for (int32_t k = 0; dot && k < dot->batch_count && global->rank == left->shape.rank; k++)
        batch *= (double)global->dimensions[dot->lhs_batch[k]] /
                 sbp_ways(program->mesh, left->state, (int32_t)dot->lhs_batch[k]);
    return 2 * sqrt(elements / batch);
}

static double estimate(const LiveBytes *live, const ProgramInstruction *instruction) {
    double made = result_bytes(live, instruction);
    switch (instruction->kind) {
    case PROGRAM_VIEW:
    case PROGRAM_TRANSFER: return 0;
    case PROGRAM_COLLECTIVE: {
        double read = 0;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            read += (double)live->bytes[instruction->operands[k]];
        return OPERATIONS_PER_SENT_BYTE * fmax(made, read);
    }
    case PROGRAM_COMPUTE: break;
    }
    if (program_has_control(instruction)) return 0;
    if (instruction->regions.in_blocks) {
        const IrModule *module = live->program->module;
        double global = (double)ir_shape_bytes(&module->instructions[instruction->origin].shape);
        double operations = module->called_work[instruction->compute.called].work.flops;
        double own = global > 0 ? operations * result_bytes(live, instruction) / global : 0;
        return OPERATIONS_PER_BYTE * made + own;
    }
    bool is_product = program_is_work(instruction) && instruction->operand_count >= 2;
    return OPERATIONS_PER_BYTE * made + (is_product ? product_operations(live, instruction) : 0);
}

/* Returns whether i gathers, cuts, transposes, views or casts stored weights alone, in few steps. */
static bool is_stored(const Program *program, const ProgramGraph *graph, int32_t i) {
    for (int32_t steps = 0; steps < MOST_STEPS; steps++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool may_be = program_gathers(instruction) || instruction->kind == PROGRAM_VIEW ||
                      (instruction->kind == PROGRAM_COMPUTE &&
                       (instruction->opcode == IR_SLICE || instruction->opcode == IR_CONVERT ||
                        instruction->opcode == IR_TRANSPOSE));
        int32_t producers = graph->first[i + 1] - graph->first[i];
        if (!may_be || producers > 1 || producers == 0) return may_be && producers == 0;
        i = graph->producers[graph->first[i]];
    }
    return false;
}

/* Finds the collectives that products wait for (is_awaited), and the instructions on which an awaited
 * collective or a transfer depends (is_chain). Goes backwards, so that users come first. Returns the number
 * of awaited collectives. Gathers of stored weights are not awaited: nothing computes before them. */
static int32_t find_chain(bool *is_awaited, bool *is_chain, bool *leads, const Program *program,
                          const ProgramGraph *graph) {
    int32_t awaited = 0;
    for (int32_t i = graph->count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        is_chain[i] = instruction->kind == PROGRAM_TRANSFER;
        for (int32_t u = graph->first_user[i]; u < graph->first_user[i + 1]; u++) {
            leads[i] |= leads[graph->users[u]];
            is_chain[i] |= is_chain[graph->users[u]];
        }
        is_awaited[i] = instruction->kind == PROGRAM_COLLECTIVE && leads[i] &&
                        !(program_gathers(instruction) && is_stored(program, graph, i));
        is_chain[i] |= is_awaited[i];
        leads[i] |= program_is_work(instruction);
        awaited += is_awaited[i];
    }
    return awaited;
}

/* Finds the products that can run while a collective does: is_filling[i], no awaited collective needs it.
 * filling_before[i]: operations of those whose last producer in the chain stands in front of i. */
static void find_filling(bool *is_filling, double *filling_before, int32_t *after, const bool *is_chain,
                         const double *work, const Program *program, const ProgramGraph *graph) {
    for (int32_t i = 0; i < graph->count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (is_chain[i]) continue;
        for (int32_t e = graph->first[i]; e < graph->first[i + 1]; e++) {
            int32_t producer = graph->producers[e];
            int32_t last = is_chain[producer] ? producer : after[producer];
            if (last > after[i]) after[i] = last;
        }
        is_filling[i] = program_is_work(instruction) && !program_has_control(instruction);
        if (is_filling[i]) filling_before[after[i] + 1] += work[i];
    }
    for (int32_t i = 0; i < graph->count; i++) filling_before[i + 1] += filling_before[i];
}

AmStatus program_latency(ProgramLatency *latency, LiveBytes *live, const Program *program,
                         const ProgramGraph *graph, AmError *error) {
    Arena *arena = program->arena;
    int32_t count = graph->count, collectives = 0;
    *latency = (ProgramLatency){0};
    for (int32_t i = 0; i < count; i++) collectives += program->instructions[i].kind == PROGRAM_COLLECTIVE;
    if (collectives == 0) return AM_OK;
    bool *is_awaited = ARENA_ARRAY(arena, bool, count + 1), *is_chain = ARENA_ARRAY(arena, bool, count + 1);
    bool *leads = ARENA_ARRAY(arena, bool, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    int32_t awaited_count = find_chain(is_awaited, is_chain, leads, program, graph), listed = 0;
    if (awaited_count == 0) return AM_OK;
    TRY(live_bytes_find(live, program, error));
    double *work = ARENA_ARRAY_RAW(arena, double, count + 1), *before = ARENA_ARRAY(arena, double, count + 1);
    double *filling_before = ARENA_ARRAY(arena, double, count + 1);
    bool *is_filling = ARENA_ARRAY(arena, bool, count + 1);
    int32_t *after = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *awaited = ARENA_ARRAY(arena, int32_t, awaited_count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        work[i] = estimate(live, &program->instructions[i]);
        bool computes = is_chain[i] && program->instructions[i].kind != PROGRAM_COLLECTIVE;
        before[i + 1] = before[i] + (computes ? work[i] : 0);
        if (is_awaited[i]) awaited[listed++] = i;
    }
    find_filling(is_filling, filling_before, after, is_chain, work, program, graph);
    *latency = (ProgramLatency){.awaited_count = awaited_count,
                                .awaited = awaited,
                                .work = work,
                                .chain_before = before,
                                .is_awaited = is_awaited,
                                .is_chain = is_chain,
                                .filling_before = filling_before,
                                .is_filling = is_filling};
    return AM_OK;
}

void latency_front_pass(LatencyFront *front, const ProgramLatency *latency, int32_t after) {
    const int32_t *awaited = latency->awaited;
    int32_t count = latency->awaited_count;
    front->after = after;
    while (front->place < count && awaited[front->place] <= after) front->place++;
    double sum = 0, least = latency->chain_before[after + 1], made = latency->filling_before[after + 1];
    front->hold = front->longest = 0;
    for (int32_t place = front->place; place < count && place < front->place + MOST_NEAR; place++) {
        double before = latency->chain_before[awaited[place]];
        sum += latency->work[awaited[place]];
        front->longest = fmax(front->longest, before - least);
        least = before;
        if (before - latency->chain_before[after + 1] > LATENCY_NEAR * sum) continue;
        front->hold = fmax(front->hold, sum - (latency->filling_before[awaited[place]] - made));
    }
}

double latency_front_distance(const LatencyFront *front, const ProgramLatency *latency) {
    if (front->place == latency->awaited_count) return INFINITY;
    return latency->chain_before[latency->awaited[front->place]] - latency->chain_before[front->after + 1];
}
