/* A sample of repeated layers: a module with fewer layers that stands for one with many.
 *
 * An unrolled model repeats the instructions of a layer. Of a run of layers that are equal, the sample has a
 * few, each of which stands for several:
 *
 *     layers     0 | 1  2  3  4 | 5  6  7  8 | 9        of the module
 *     sample     0 |     1      |     8      | 9        instructions
 *     count      1 |     4      |     4      | 1        layers that they stand for
 *
 * Layers are found from the weights: those with the most elements of one shape, in the order of their use,
 * divide the forward pass. They begin where the fewest bytes cross, so that a stage of the sample has layers
 * as a whole. Other instructions follow from their operands. Two layers are equal if their
 * instructions, in order, have the same operators, shapes and operands, up to the shift. The sample computes
 * something else than the module. Its prices with these counts (ir_layers_of()) are near those of the module.
 */
#ifndef IR_LAYERS_SAMPLE_LAYERS_H
#define IR_LAYERS_SAMPLE_LAYERS_H

#include "ir/analysis/roles.h"

typedef struct IrLayerSample {
    int32_t *origins; /* [instruction of the sample]: that of the module */
    int32_t
        *standing;  /* [instruction of the module's entry]: the one of the sample that stands for it, or -1 */
    int32_t *layer; /* likewise: its layer, or -1 */
    int32_t *parameters, *outputs; /* [number in the sample]: number in the module */
    int32_t *updates; /* [parameter of the sample]: its output in the sample that updates it, or -1 */
    int32_t parameter_count, output_count;
    int32_t from_count; /* instructions of the module */
} IrLayerSample;

/* Makes the sample, whose arena has the record and which canonical must outlive. `*sample` is NULL where the
 * module has no run of equal layers that is long enough. ir_module_free() releases it. */
AmStatus ir_sample_layers(IrModule **sample, IrLayerSample **record, const IrModule *canonical,
                          const IrRoles *roles, AmError *error);

/* Finds the roles of the sample: those of the module by the record. */
AmStatus ir_sample_roles(IrRoles **sample_roles, Arena *arena, const IrModule *sample,
                         const IrLayerSample *record, const IrRoles *roles, AmError *error);

#endif
