/* How often instructions of a canonical module run: trips of loops, and repeated layers of a sample.
 *
 * XLA's cost analysis counts a loop's body once (ir/analysis/flops.h); a planner must not.
 */
#ifndef IR_ANALYSIS_LOOPS_H
#define IR_ANALYSIS_LOOPS_H

#include "ir/analysis/roles.h"

#define IR_TRIPS_UNKNOWN (-1)
#define IR_NO_COUNTER    (-2)

typedef struct IrLoop {
    int32_t instruction; /* the while */
    int64_t trips;       /* or IR_TRIPS_UNKNOWN: counted as one */
    /* If the trips follow from a counter: the element of the carried tuple (-1: the carried value
     * is an array) that equals start + step * k in iteration k = 0, 1, ...; else IR_NO_COUNTER. */
    int32_t counter;
    int64_t start, step;
} IrLoop;

typedef struct IrLoops {
    IrLoop *loops; /* every while, by instruction */
    int32_t loop_count;
    /* [instruction] of a sample (ir/layers/sample_layers.h): the layers that it stands for; NULL: no
     * sample */
    const int32_t *layers;
    const int32_t *layer; /* [instruction] of a sample: which of its layers it is in, or -1 */
    int32_t layer_count;  /* of the sample */
    const int32_t *place; /* [instruction] of a sample: its place in its layer, if that represents several; -1
                           */
    int32_t place_count;  /* of the sample */
    const IrPhase *phases; /* [instruction] of a sample, loop bodies included */
    const bool
        *is_beside;      /* likewise: a weight's value or gradient, whose collectives run beside operators */
    const bool *may_cut; /* [entry instruction] likewise: a stage may begin there, between layers of which
                            one stands for several; NULL of modules with micro-batches */
} IrLoops;

/* Sets module->loops, for ir_canonicalize(), in the module's arena, and warns of every loop whose trip count
 * is unknown, with its place in the source. */
AmStatus ir_find_loops(IrModule *module, AmError *error);

/* Returns the analysis of a while loop; NULL if the module was not canonicalized. */
const IrLoop *ir_loop(const IrModule *module, int32_t instruction);
/* Trips of a while; IR_TRIPS_UNKNOWN also where the module was not canonicalized. */
int64_t ir_loop_trips(const IrModule *module, int32_t instruction);

/* Returns the layers that an instruction stands for: 1 outside of samples, and for instruction -1. */
static inline int32_t ir_layers_of(const IrModule *module, int32_t instruction) {
    const int32_t *layers = module->loops ? module->loops->layers : NULL;
    return layers && instruction >= 0 ? layers[instruction] : 1;
}
/* Returns whether the module is a sample of the layers of another one. */
static inline bool ir_is_sample(const IrModule *module) {
    return module->loops && module->loops->layers;
}
/* Returns whether a stage may begin with an instruction of the entry. */
static inline bool ir_may_cut(const IrModule *module, int32_t instruction) {
    const bool *may_cut = module->loops ? module->loops->may_cut : NULL;
    return !may_cut || may_cut[instruction];
}
/* Sets them for a module made from a sample: those of instruction origins[i] of `from`; of any other module
 * does nothing. `phases` [instruction] must outlive the module. */
AmStatus ir_copy_layers(IrModule *module, const IrModule *from, const int32_t *origins, const IrPhase *phases,
                        AmError *error);
/* Returns the number of instructions of the module, or of that from which a sample was taken. */
int32_t ir_represented(const IrModule *module);

#endif
