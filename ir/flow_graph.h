/* Data flow of the whole canonical module, through the bodies of loops and the
 * branches of conditionals.
 *
 * Nodes are instructions, by their number. Element k that is taken from a loop
 * depends on element k of what the loop starts with, of what its body returns,
 * and on the condition; inside the body, the carried element k depends on the
 * first two. So what is merely carried side by side does not depend on each
 * other. Bodies of reductions, sorts and fusions are not looked into.
 */
#ifndef IR_FLOW_GRAPH_H
#define IR_FLOW_GRAPH_H

#include "ir/dataflow.h"

/* A place that mentions a computation: as body (0) or condition (1) of a loop, or as a branch. */
typedef struct IrCaller {
    int32_t region, place;
} IrCaller;

typedef struct IrFlowGraph {
    const IrDataflow *flow;
    const IrModule *module;
    int32_t count;          /* instructions of the module */
    int32_t *owners;        /* [count]: the computation of each */
    int64_t *first_operand; /* [count + 1]: edges in `operands` */
    int32_t *operands;
    int64_t *first_user; /* [count + 1]: edges in `users` */
    int32_t *users;
    int64_t *first_caller; /* [computations + 1]: in `callers` */
    IrCaller *callers;
    bool *is_cut;   /* [count]: carried elements whose new value is not followed back; all false at first */
    int32_t *stack; /* [count]: for the marking */
} IrFlowGraph;

/* Everything lives in `arena`; linear in the module. AM_ERROR_INTERNAL if memory ran out. */
AmStatus ir_flow_graph_make(IrFlowGraph *graph, Arena *arena, const IrDataflow *flow, AmError *error);

/* Extends marks[count] to all ancestors (or all dependents) of what is marked. */
void ir_flow_mark_ancestors(const IrFlowGraph *graph, bool *marks);
void ir_flow_mark_dependents(const IrFlowGraph *graph, bool *marks);
/* Ancestors through floating and complex values (and tuples) alone: what derivatives go through. */
void ir_flow_mark_floating_ancestors(const IrFlowGraph *graph, bool *marks);

/* The loop or conditional (or the parameter of its body) that `value` is an element of, or -1. */
int32_t ir_flow_maker(const IrFlowGraph *graph, int32_t value);

/* An element taken from a loop, outside of it: the value in its body that it comes from. -1 for
 * anything else, also for what the body has been given. */
int32_t ir_flow_value_in_body(const IrFlowGraph *graph, int32_t value);

/* A carried element, as the parameter of the body of one loop has it: what it is in the next round,
 * and what it starts with outside. -1 for anything else. */
int32_t ir_flow_next_value(const IrFlowGraph *graph, int32_t value);
int32_t ir_flow_start_value(const IrFlowGraph *graph, int32_t value);

#endif
