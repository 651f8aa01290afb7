/* The order in which XLA's back end for CPUs runs the nodes of a program, if it schedules for memory.
 *
 * It is a depth-first order from the results: all operands of a node come before it. Operands with most
 * further readers below them come first, then those with most bytes below them (XLA's DFSMemoryScheduler).
 */
#ifndef COST_STEP_XLA_SCHEDULE_H
#define COST_STEP_XLA_SCHEDULE_H

#include "cost/step/xla_graph.h"

/* Finds the nodes in their order, [node_count]; in the program's arena. */
AmStatus xla_schedule(int32_t **order, const XlaGraph *graph, AmError *error);

#endif
