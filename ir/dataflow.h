/* Data flow of the canonical entry, through tuples.
 *
 * A get-tuple-element of a tuple (also through opt-barrier) is identified with the element itself,
 * so that elements of one tuple do not depend on each other.
 */
#ifndef IR_DATAFLOW_H
#define IR_DATAFLOW_H

#include "ir/module.h"

typedef struct IrDataflow {
    const IrModule *module;
    int32_t count;    /* instructions of the entry, 0 .. count - 1 */
    int32_t *sources; /* the instruction whose value this one hands on, or itself */
    int32_t output_count;
    int32_t *outputs;       /* operands of a root tuple as they stand, else the root */
    int32_t *output_values; /* their sources */
} IrDataflow;

/* Makes the data flow. Arrays live in `arena`; AM_ERROR_INTERNAL if it ran out. */
AmStatus ir_dataflow_make(IrDataflow *flow, Arena *arena, const IrModule *canonical, AmError *error);

/* Returns the value that operand k of `instruction` brings. */
int32_t ir_dataflow_operand(const IrDataflow *flow, const IrInstruction *instruction, int32_t k);

/* Returns element k of the tuple that `value` is, if a tuple instruction made it, else -1. */
int32_t ir_dataflow_element(const IrDataflow *flow, int32_t value, int64_t k);

bool ir_same_dimensions(const IrShape *a, const IrShape *b); /* arrays of any types */
bool ir_is_scalar(const IrShape *shape);

#endif
