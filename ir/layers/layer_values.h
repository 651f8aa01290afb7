/* Values of the module that ir_split_layers() makes. Private to this folder.
 *
 * The original's entry is interpreted: each value becomes one instruction, a stack of one value per layer, a
 * tuple of values, or a known integer. Instructions are made when a user needs them. A stack of which
 * a user needs the array is put together by a concatenation, so that every form is exact.
 */
#ifndef IR_LAYERS_LAYER_VALUES_H
#define IR_LAYERS_LAYER_VALUES_H

#include "base/open_table.h"
#include "ir/canonical/compose.h"
#include "ir/layers/layers.h"

#define LAYERS_NONE (-1)

/* Layer k of a stack. */
typedef struct LayerValue {
    int32_t value; /* instruction made for it, or LAYERS_NONE */
    int32_t fill;  /* the scalar that all its elements are, or LAYERS_NONE */
} LayerValue;

typedef struct SplitValue {
    const IrShape *shape;
    int32_t array;     /* instruction made for it, or LAYERS_NONE */
    int32_t fill;      /* as in LayerValue, of an array */
    int32_t parameter; /* number of the entry's parameter that it is, or LAYERS_NONE */
    int32_t follows;   /* a parameter of its shape from which it follows element by element, or LAYERS_NONE */
    LayerValue *layers; /* [shape->dimensions[0]] of a stack, else NULL */
    int32_t base;  /* of a stack: the array whose slices are the layers without a value; of an array with a
                      fill: a layer */
    int32_t group; /* of a stack: a parameter that it depends on, or LAYERS_NONE */
    struct SplitValue **elements; /* [shape->rank] of a tuple, or NULL */
    bool is_known;                /* an integer or truth value, `number` */
    int64_t number;
    int32_t origin;
} SplitValue;

typedef struct Splitter {
    const IrModule *from;
    const IrRoles *roles;
    Arena *arena; /* until the end of one attempt */
    IrComposer composer;
    int32_t origin;       /* instruction of `from` that is interpreted */
    int32_t *group;       /* [parameter]: union-find of parameters whose stacks meet */
    bool *is_split;       /* [parameter]: becomes one for each layer */
    bool *is_denied;      /* [parameter]: some user needs its stack as one array */
    bool *is_wanted;      /* [parameter]: meets a stack of its shape, so that it should be split too */
    int32_t *number;      /* [parameter]: number of its first part */
    int32_t *stride;      /* [parameter]: between the numbers of its parts */
    bool *has_depth;      /* [LAYERS_MOST + 1]: some parameter has so many layers */
    int32_t *computation; /* [computation]: its copy, or LAYERS_NONE; shared by reductions and the like */
    int32_t
        *constant; /* [instruction of `from`]: the constant made of it, shared by all trips, or LAYERS_NONE */
    OpenTable repeated; /* broadcasts of constants, shared by all layers, as XLA writes unrolled ones */
    int32_t needed_by;  /* the instruction of `from` that needed a stack as one array, or LAYERS_NONE */
    int32_t unrolled;   /* loops */
    int64_t room;       /* what may still be made: instructions and entries of stacks */
    bool is_too_large;
} Splitter;

#define LAYERS_MOST 1024

/* Returns an instruction of the new module. */
const IrInstruction *split_instruction(const Splitter *self, int32_t made);
/* Appends an instruction to the new entry, named after the one that is interpreted. */
int32_t split_add(Splitter *self, IrOpcode opcode, const IrShape *shape, const int32_t *operands,
                  int32_t operand_count, const IrAttributes *attributes);
/* Appends an instruction with the opcode and the computations of the one that is interpreted, and with other
 * operands and attributes. */
int32_t split_add_like(Splitter *self, const IrShape *shape, const int32_t *operands, int32_t operand_count,
                       const IrAttributes *attributes);
/* Returns the copy of a computation; a new one unless it is shared. */
int32_t split_computation(Splitter *self, int32_t computation, bool is_shared);

/* Makes a value: without an instruction so far, as the result of instruction `array`, or as a known
 * integer. Without memory the arena is marked failed. */
SplitValue *split_value(Splitter *self, const IrShape *shape);
SplitValue *split_made(Splitter *self, const IrShape *shape, int32_t array);
SplitValue *split_number(Splitter *self, const IrShape *shape, int64_t number);
/* Returns a stack without values; NULL where it would be too large. */
SplitValue *split_stack(Splitter *self, const IrShape *shape);
/* Returns whether the value is a stack of at least two layers. */
bool split_is_stack(const SplitValue *value);
/* Returns the value as a stack: itself, or one whose layers are slices of it. */
SplitValue *split_as_stack(Splitter *self, SplitValue *value);
/* Returns the instruction of the value as one array or tuple. */
int32_t split_array(Splitter *self, SplitValue *value);
/* Returns the instruction of layer k of an array or stack, without the first dimension. */
int32_t split_layer(Splitter *self, SplitValue *value, int32_t k);
/* Returns the shape without its first dimension. */
IrShape split_layer_shape(const IrShape *shape);
bool split_is_zero(const Splitter *self, int32_t made);
/* Notes that both belong together; the group of the two. */
int32_t split_join(Splitter *self, int32_t a, int32_t b);

/* Returns an operator with known integers, with stacks, or with slices by known indices; NULL: none of
 * these. */
SplitValue *split_operator(Splitter *self, const IrInstruction *instruction, SplitValue *const *operands);

/* Returns the entry's parameter that a value is, through operators on single elements and loops that keep it;
 * or -1. */
int32_t split_parameter_of(const IrModule *module, int32_t value);
/* Marks the elements of the carried tuple of which the body takes a row by a dynamic slice. */
void split_mark_sliced(const IrModule *module, const IrInstruction *loop, bool *is_sliced);

#endif
