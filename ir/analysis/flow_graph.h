/* Data flow of the whole canonical module, through the bodies of loops and the branches of
 * conditionals.
 *
 * Nodes are instructions, by their number. Element k of a loop's result depends on element k of the
 * initial value, on element k of the body's result, and on the condition. Inside the body, the
 * carried element k depends on the first two. Elements that a loop merely carries together are
 * therefore independent. Bodies of reductions, sorts and fusions are not part of the graph.
 */
#ifndef IR_ANALYSIS_FLOW_GRAPH_H
#define IR_ANALYSIS_FLOW_GRAPH_H

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

/* Makes the graph. Everything lives in `arena`; linear in the module. AM_ERROR_INTERNAL if memory ran out. */
AmStatus ir_flow_graph_make(IrFlowGraph *graph, Arena *arena, const IrDataflow *flow, AmError *error);

/* Extends marks[count] to all ancestors (or all dependents) of the marked nodes. */
void ir_flow_mark_ancestors(const IrFlowGraph *graph, bool *marks);
void ir_flow_mark_dependents(const IrFlowGraph *graph, bool *marks);
/* Ancestors through floating and complex values (and tuples) alone: what derivatives go through. */
void ir_flow_mark_floating_ancestors(const IrFlowGraph *graph, bool *marks);

/* Returns the loop or conditional (or the parameter of its body) that `value` is an element of, or -1. */
int32_t ir_flow_producer(const IrFlowGraph *graph, int32_t value);

/* Returns, for an element of a loop's result, the corresponding value in the loop's body. Returns -1 for
 * other values, also where the body's value is an input of the body. */
int32_t ir_flow_value_in_body(const IrFlowGraph *graph, int32_t value);

/* Finds, for a carried element, given as a parameter of the body of one loop: its value in the next iteration
 * and its initial value outside. Returns -1 for other values. */
int32_t ir_flow_next_value(const IrFlowGraph *graph, int32_t value);
int32_t ir_flow_start_value(const IrFlowGraph *graph, int32_t value);

#endif
