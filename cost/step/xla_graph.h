/* The operators that XLA runs for a program, after its fusion, and the buffers that they read and write.
 *
 * A buffer has the number of a value of the program: the first of those that share memory. Buffers from
 * Program.value_count on are copies of parameters. Further ones are results of collectives
 * that run again. A node has the number of its first result. */
#ifndef COST_STEP_XLA_GRAPH_H
#define COST_STEP_XLA_GRAPH_H

#include "lowering/program/program.h"

typedef struct XlaNode {
    int32_t value; /* number of the node, and its first result */
    int32_t result_count;
    const int32_t *inputs;   /* [input_count] buffers */
    const bool *is_in_place; /* [input_count]: a result may overwrite the input where that ends here */
    int32_t input_count;
    int64_t workspace; /* bytes of the loops and branches inside */
} XlaNode;

/* A buffer of the caller that a new value overwrites at the end: a parameter and its update. */
typedef struct XlaPair {
    int32_t parameter, value; /* values of the program */
} XlaPair;

typedef struct XlaGraph {
    const Program *program;
    XlaNode *nodes; /* in no order */
    int32_t node_count, buffer_count;
    int32_t *node_of;  /* [buffer]: the node that makes it, -1: a parameter, or never in memory */
    int32_t *value_of; /* [buffer]: a value of the program of its shape */
    int64_t *bytes;    /* [buffer]; 0: constants, values inside of fusions, and updates in their parameters */
    bool *is_output;   /* [buffer]: alive at the end */
    int32_t *updated_by; /* [buffer] of a parameter: the buffer that overwrites it, or -1 */
    bool *is_update;     /* [buffer]: it overwrites a parameter */
    int32_t *copy_of;    /* [buffer] of a parameter: its copy, or -1 */
} XlaGraph;

/* Returns the instruction that makes a value of a program; NULL for parameters and values that other stages
 * send. */
const ProgramInstruction *xla_producer(const Program *program, int32_t value);
/* Returns the number of the node that makes a value: its own, or the first result of several. */
int32_t xla_node_number(const Program *program, int32_t value);
/* Returns the number of operands of a node; a merged collective has a node with one operand for each
 * result. */
int32_t xla_operand_count(const ProgramInstruction *instruction);
/* Returns the value that operand k of a node is, or that it views. */
int32_t xla_operand(const Program *program, const ProgramInstruction *instruction, int32_t node, int32_t k);
/* Returns the most buffers, and nodes, that a graph of the program has. */
int32_t xla_most_buffers(const Program *program);
/* Finds the nodes of a program, in its arena. `pairs`: the updates. */
AmStatus xla_graph(XlaGraph *graph, const Program *program, const XlaPair *pairs, int32_t pair_count,
                   AmError *error);

#endif
