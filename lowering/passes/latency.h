/* The communication that a program's order can hide: collectives that later products wait for, and
 * the work available meanwhile.
 *
 * Tensor parallelism reduces and gathers activations between products. The chain from one such
 * collective to the next has no work while it runs; gradients of weights, which no later collective
 * needs, do. Times are estimated in operations of a product, equally on every cluster and every
 * rank: only their ratios matter, and an order that suits one machine suits others nearly as well.
 */
#ifndef LOWERING_PASSES_LATENCY_H
#define LOWERING_PASSES_LATENCY_H

#include "lowering/passes/instruction_order.h"
#include "lowering/program/live_bytes.h"

typedef struct ProgramLatency {
    int32_t
        awaited_count; /* collectives that a product, a loop or a transfer waits for; 0: all else is unset */
    const int32_t *awaited;
    const double *work; /* [instruction] estimated operations; for a collective the equivalent of its time */
    const double *chain_before;   /* [instruction]: work of the chain in front of it */
    const bool *is_awaited;       /* [instruction]: in `awaited` */
    const bool *is_chain;         /* [instruction]: in `awaited` or needed by one, or by a transfer */
    const double *filling_before; /* [instruction]: work of `is_filling` that can begin before it */
    const bool *is_filling;       /* [instruction]: a product that no awaited collective needs */
} ProgramLatency;

/* A collective is near if the chain in front of it has no more than this times the work that hides it. */
#define LATENCY_NEAR 8.0

/* Returns whether the instruction takes long: a step may not stand still before it. */
static inline bool program_is_work(const ProgramInstruction *instruction) {
    return instruction->regions.count > 0 || instruction->kind == PROGRAM_TRANSFER ||
           ir_is_product(instruction->opcode);
}

/* Analyses the program in its current order, in its arena. Gathers of stored weights belong to no
 * chain (gather_ahead.h). `live` is initialised if there are awaited collectives. */
AmStatus program_latency(ProgramLatency *latency, LiveBytes *live, const Program *program,
                         const ProgramGraph *graph, AmError *error);

/* The progress of the chain, and its near future. */
typedef struct LatencyFront {
    int32_t after, place; /* the last instruction that has been passed; the next in `awaited` */
    double hold;    /* operations to hold back so that these and the work that becomes ready cover the time of
                       the next awaited collectives */
    double longest; /* operations of the chain between two of them, at most */
} LatencyFront;

/* Passes all up to instruction `after`. */
void latency_front_pass(LatencyFront *front, const ProgramLatency *latency, int32_t after);
/* Operations of the chain until the next awaited collective; infinite without one. */
double latency_front_distance(const LatencyFront *front, const ProgramLatency *latency);

#endif
