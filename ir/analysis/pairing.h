/* For each entry parameter, the output that holds its next value. */
#ifndef IR_ANALYSIS_PAIRING_H
#define IR_ANALYSIS_PAIRING_H

#include "ir/analysis/flow_graph.h"

typedef struct IrPairing {
    int32_t *output_of;      /* per parameter: output index or -1 */
    const char **paired_by;  /* per parameter: "data flow", "order", "alias" or "" */
    int32_t *parameter_of;   /* per output: parameter number or -1 */
    int32_t *rival_of;       /* per output: a free parameter that data flow fits as well, or -1 */
    bool *depends_on_arrays; /* per entry instruction: its floating value follows an array parameter */
} IrPairing;

/* Pairs parameters with outputs by data flow, aliases and order; arrays are in the arena. */
AmStatus ir_pair_parameters(IrPairing *pairing, Arena *arena, const IrFlowGraph *graph, AmError *error);

#endif
