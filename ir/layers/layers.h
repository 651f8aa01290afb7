/* Layers as separate values: an exact rewriting of a canonical module.
 *
 * A model may keep the weights of its layers in stacked arrays, [layers, ...], and slice them in a loop
 * (`lax.scan`) or in an unrolled one. ir_split_layers() makes the module that has one array for each layer:
 *
 *     w: f32[4,8,8], while (i < 4) x = x @ w[i]    ->    w0 .. w3: f32[8,8], x @ w0 @ w1 @ w2 @ w3
 *
 * Loops over layers are unrolled. Stacked parameters that such loops or slices read layer by layer become one
 * parameter per layer. Their gradients, optimizer states and new values are divided alike. Loops that use the
 * same weights in every trip, such as loops over time, stay loops. A sum over all layers becomes a chain of
 * sums of single layers. Other results are the same, except for the sign of zeros.
 */
#ifndef IR_LAYERS_LAYERS_H
#define IR_LAYERS_LAYERS_H

#include "ir/analysis/roles.h"

/* A module with more instructions is not made. */
#define IR_LAYERS_MOST_INSTRUCTIONS 150000

/* A parameter or output of the rewritten module: consecutive elements, row-major, of one of the
 * original's. */
typedef struct IrLayerPart {
    int32_t original;
    int64_t first; /* its first element there */
    int32_t layer; /* its number among the parts of the original, in order; -1: it is the original whole */
} IrLayerPart;

typedef struct IrLayerMap {
    IrLayerPart *parameters; /* [parameter_count], by number */
    IrLayerPart *outputs;    /* [output_count] */
    int32_t parameter_count, output_count;
    int32_t *origins; /* [instruction]: the instruction of the original from which it was made */
} IrLayerMap;

/* Makes the rewritten module, whose arena owns the map. `roles` are the original's. `*split` is NULL where
 * nothing can be rewritten: then `*reason` says why, as a clause that `arena` owns, or is NULL where the
 * module has no layers in this sense. */
AmStatus ir_split_layers(IrModule **split, IrLayerMap **map, const char **reason, Arena *arena,
                         const IrModule *canonical, const IrRoles *roles, AmError *error);

/* Creates the roles of the rewritten module: those of the original by the map, and phases by its own data
 * flow. */
AmStatus ir_split_roles(IrRoles **split_roles, Arena *arena, IrModule *split, const IrLayerMap *map,
                        const IrRoles *roles, AmError *error);

#endif
