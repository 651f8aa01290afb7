/* An order of instructions in which groups of them stand side by side.
 *
 * program_graph() lists dependencies, program_order() sorts by them with groups adjacent, as fusions need,
 * and program_order_steps() also moves gathers of stored weights ahead.
 */
#ifndef LOWERING_PASSES_INSTRUCTION_ORDER_H
#define LOWERING_PASSES_INSTRUCTION_ORDER_H

#include "lowering/program/program.h"

/* Dependencies of instructions: instruction i needs producers[first[i]] .. producers[first[i + 1] -
 * 1] (parameters have none), and users[first_user[i]] .. users[first_user[i + 1] - 1] need i.
 * Transfers, and loops and conditionals with transfers inside, keep the common order of all ranks:
 * each needs its predecessor, as its last producer. The first of two joined loops also needs the
 * operands of the second. */
typedef struct ProgramGraph {
    int32_t count;
    const int32_t *first, *producers;  /* [count + 1], instructions */
    const int32_t *first_user, *users; /* the same edges backwards */
    const int32_t *producer;           /* [value]: the instruction that makes it, -1 for parameters */
} ProgramGraph;

/* Creates the graph of the program as it stands, in the arena. */
AmStatus program_graph(ProgramGraph *graph, Arena *arena, const Program *program, AmError *error);

/* Orders the instructions so that operands come first and all instructions of
 * equal leader (the smallest of them) are adjacent; groups whose iteration may come
 * are taken by their leader. The graph of groups must be acyclic. `*order`
 * lives in the arena. */
AmStatus program_order(const int32_t **order, Arena *arena, const Program *program, const ProgramGraph *graph,
                       const int32_t *leader, AmError *error);
/* Orders as program_order() does, for the steps in which the program will run: gathers of stored weights
 * go ahead (gather_ahead.h). */
AmStatus program_order_steps(const int32_t **order, Arena *arena, const Program *program,
                             const ProgramGraph *graph, const int32_t *leader, AmError *error);
/* Moves steps with large results that depend on parameters alone directly before the first step that reads
 * their results, so that these take memory no earlier. Steps may not be in row groups yet. */
AmStatus program_delay_steps(Program *program, const ProgramGraph *graph, AmError *error);
/* Sorts the steps behind the last product, between two collectives each, by the collective under way that
 * they wait for: those that wait for none run meanwhile. Collectives end in their order, so no other order of
 * such steps ends earlier. */
AmStatus program_sort_end(Program *program, const ProgramGraph *graph, AmError *error);

#endif
