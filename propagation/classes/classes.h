/* Dimension classes: dimensions that are split together unless data moves (docs/method.md:
 * union-find over the ties of all factor rules).
 *
 * Node (instruction, dimension) belongs to a class if its size is above 1 and the instruction is
 * not made on demand. A dimension of an on-demand value resolves to the dimension of the value that
 * was broadcast, or to none.
 *
 * A tensor has at most one dimension in a class, because an axis can split only one of them. A tie
 * that would join two (attention scores: query and key positions; a square weight of a residual
 * block) is cut and leaves two strands. Dots of activations are cut first, so that the key strand
 * consists of the scores alone, and splitting the sequence gathers keys and values.
 */
#ifndef PROPAGATION_CLASSES_CLASSES_H
#define PROPAGATION_CLASSES_CLASSES_H

#include "ir/analysis/roles.h"
#include "propagation/rules/rules.h"

typedef struct DimensionClass {
    /* Its name: the smallest (parameter number, dimension), or where no
     * parameter has it the smallest (instruction, dimension). */
    bool named_by_parameter;
    int32_t number, dimension;
    int64_t size;         /* greatest common divisor of its factors' sizes; if spatial the smallest of them */
    bool is_spatial;      /* positions that overlapping windows tie: every tensor is cut by itself */
    int32_t weight_count; /* weight dimensions in it */
    int32_t data_count;   /* data dimensions in it */
    int64_t weight_elements; /* elements of the weights it splits */
    int32_t node_count;      /* tensor dimensions in it */
    double flops;            /* of the dots and convolutions it is a factor of, halos apart */
    double merged_flops; /* of those it is a factor of, or in blocks of a dimension of; classes in the same
                            blocks of the same dimensions count as one */
    int32_t tie;         /* classes of equal tie are repeated layers of one another; decided as one */
} DimensionClass;

/* A class that is in each of `blocks` blocks of the dimensions of `size` elements
 * of another one: heads in the three blocks of a projection to q, k, v. */
typedef struct ClassBlocks {
    int32_t class_index, blocks;
    int64_t size;
} ClassBlocks;

/* The most ClassBlocks of a class; those of the fewest blocks are kept. */
#define CLASS_MAX_BLOCKS 8

typedef struct Classes {
    DimensionClass
        *classes; /* those that can be split at all, in the order of their names: parameters first */
    int32_t count;
    int32_t tie_count;
    int32_t *first_node;      /* [instruction + 1]: node of dimension d is first_node[i] + d */
    int32_t *class_of;        /* [node]: class, or -1 */
    int32_t *first_factor;    /* [instruction + 1]: factor f of instruction i is first_factor[i] + f */
    int32_t *class_of_factor; /* [factor]: class, or -1 */
    int32_t *first_blocks;    /* [class + 1] */
    ClassBlocks *blocks;      /* of class c from first_blocks[c] */
} Classes;

/* Joins dimensions to classes by the factors of the rules, in the arena. */
AmStatus classes_build(Classes **classes, Arena *arena, const Rules *rules, const IrRoles *roles,
                       AmError *error);

/* Class of (instruction, dimension); an on-demand value resolves to the value that was broadcast.
 * -1: none. */
int32_t classes_of(const Classes *classes, const Rules *rules, int32_t instruction, int32_t dimension);
/* Returns the class to which splitting factor f of instruction i belongs; -1: none. For a cut tie it is the
 * strand, which has fewer tensor dimensions. */
static inline int32_t classes_of_factor(const Classes *classes, int32_t instruction, int32_t factor) {
    return classes->class_of_factor[classes->first_factor[instruction] + factor];
}
/* Finds the classes with the fewest blocks among those in blocks of dimensions of `size` of a class (or -1);
 * NULL: there are none. */
const ClassBlocks *classes_in_blocks(const Classes *classes, int32_t class_index, int64_t size);
/* Finds a class by name; -1 if missing. */
int32_t classes_find(const Classes *classes, bool by_parameter, int32_t number, int32_t dimension);

#endif
