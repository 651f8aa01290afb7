/* Factor rules: the semantics of each operator in einsum form.
 *
 * A rule lists an instruction's factors. A factor has a size and, in every operand and result, at most one
 * corresponding dimension. Splitting a factor n ways splits all these dimensions n ways. A factor whose size
 * does not divide cannot be split evenly. The dimensions of a permutation have sizes of their own; its size
 * is the result's. In a merged dimension (reshape h*e) the major part is a factor of its own size. The part
 * minor to it is a factor that is split in each block of the major part.
 *
 *     dot ([b,m,k],[b,k,n])->[b,m,n] reduce k(add)
 */
#ifndef PROPAGATION_RULES_RULES_H
#define PROPAGATION_RULES_RULES_H

#include "base/text.h"
#include "ir/module.h"
#include "propagation/sharding/sbp.h"

typedef enum FactorKind {
    FACTOR_PARALLEL,    /* each part is computed on its own */
    FACTOR_REDUCTION,   /* a result without a dimension of it is P(reduction) */
    FACTOR_PERMUTATION, /* each part reads a range of the operands' dimensions: neighbours exchange a halo */
    FACTOR_BLOCKED      /* must be whole */
} FactorKind;

/* The offset between a shard of the result and the range that it reads of an operand. */
typedef enum FactorHalo {
    HALO_NONE,
    HALO_FAR,    /* anywhere, for all that is known: concatenation, reversal, a large shift */
    HALO_NEAR,   /* a slice or a pad that shifts by little */
    HALO_PATCH,  /* windows side by side */
    HALO_OVERLAP /* windows that overlap or begin outside */
} FactorHalo;

typedef struct Factor {
    int64_t size;
    FactorKind kind;
    SbpReduction reduction; /* FACTOR_REDUCTION only */
    bool indexed;           /* gather, scatter: the dimension that indices point into; each part
                               handles the indices that fall into it */
    FactorHalo halo;        /* the operands' parts are brought to the ranges that are read (lower_halo.c): all
                               permutations, and a convolution's reduction over its window */
    const int8_t *dimension; /* [operand_count + result_count]; -1: not in it */
    const int64_t *extent;   /* [operand_count + result_count]: the sizes of these dimensions; 0: not in it */
    const int32_t *blocks;   /* [operand_count + result_count], or NULL for 1 everywhere: the dimension is so
                                many blocks, and the factor is in each of them (of 3*h*e the h, 3) */
} Factor;

/* Blocks of the dimension that the factor is in a slot. */
static inline int32_t factor_blocks(const Factor *factor, int32_t slot) {
    return factor->blocks ? factor->blocks[slot] : 1;
}

/* Returns whether splitting the factor leaves the array in a result's slot partial. */
static inline bool factor_leaves_partial(const Factor *factor, int32_t slot) {
    return factor->kind == FACTOR_REDUCTION && factor->dimension[slot] < 0;
}

static inline bool factor_may_split(const Factor *factor) {
    return factor->kind != FACTOR_BLOCKED;
}

/* Results of a tuple-shaped instruction are its leaves, in order. */
typedef struct FactorRule {
    int32_t factor_count, operand_count, result_count;
    const Factor *factors;
    /* Fusions of products only, else NULL: [instruction of the called computation * IR_MAX_RANK + dimension]:
     * the factor that splits this dimension inside, or -1. */
    const int8_t *inner;
} FactorRule;

/* Loops that run more often than this count as this often. */
#define RULES_MOST_TIMES 1e15

/* One array that a planned loop carries. All values that hold it have one state: the initial value
 * is resharded to it, each iteration ends in it, and the loop's result has it. */
typedef struct LoopLeaf {
    const IrShape *shape;
    int32_t initial, initial_leaf;             /* the caller's value that it starts with */
    int32_t next, next_leaf;                   /* the body's value that it takes next */
    int32_t in_body, in_condition, afterwards; /* instruction that reads it there, or -1 without a reader */
    bool is_invariant;                         /* the next value is equal: it represents the initial value */
} LoopLeaf;

/* Returns the instruction whose state is the array's: one of its readers, or -1 without readers. */
static inline int32_t loop_leaf_reader(const LoopLeaf *leaf) {
    if (leaf->in_body >= 0) return leaf->in_body;
    return leaf->afterwards >= 0 ? leaf->afterwards : leaf->in_condition;
}

/* A while that is planned through its body and condition. */
typedef struct PlannedLoop {
    int32_t instruction, body, condition; /* the last two are computations */
    int32_t leaf_count;
    LoopLeaf *leaves; /* the arrays in its tuple, in order */
} PlannedLoop;

/* One array that goes into a branch of a planned conditional. Its state is that of
 * who reads it there. */
typedef struct BranchLeaf {
    const IrShape *shape;
    int32_t given, given_leaf; /* the caller's value */
    int32_t parameter;         /* of the branch; its leaf is this leaf's number in the branch */
    int32_t reader;            /* instruction that reads it in the branch, or -1 without a reader */
} BranchLeaf;

typedef struct PlannedBranch {
    int32_t computation;
    int32_t leaf_count;
    BranchLeaf *leaves;
    int32_t *made, *made_leaf; /* [result_count]: the results of the branch */
} PlannedBranch;

/* A conditional that is planned through its branches: all give each result in one
 * state, which is that of its reader afterwards. */
typedef struct PlannedConditional {
    int32_t instruction;
    int32_t branch_count, result_count;
    PlannedBranch *branches;
    const IrShape **result_shapes; /* [result_count] */
    int32_t *afterwards; /* [result_count]: the conditional itself if it returns one array, else the reader of
                            that element of its tuple, or -1 without a reader */
} PlannedConditional;

/* Rules of the planned computations of a canonical module, by its instruction numbers; all in the
 * arena. Planned are the entry and, recursively, the body and the condition of every while on a
 * tuple and the branches of every conditional, unless they have other callers too. Instructions of
 * other computations have no rule, and are their own alias. Tuple plumbing (tuple,
 * get-tuple-element, opt-barrier on tuples) has no rule: `alias` resolves it. For the tuple of a
 * planned loop or conditional, in the body or branch or after it, the first get-tuple-element of an
 * array represents it, and has a rule. */
typedef struct Rules {
    const IrModule *module;
    FactorRule *rules; /* per instruction */
    /* The origin of array value (instruction i, leaf 0): itself, or through tuple,
     * get-tuple-element and opt-barrier the producing instruction; `leaf` selects one of its
     * results. Equal small constants are represented by the first. */
    int32_t *alias, *leaf;
    bool *is_free;       /* no parameter among the ancestors: costs nothing in any state */
    bool *on_demand;     /* free, or a broadcast: made per use in the state that the use needs, so it ties
                            nothing together by being shared */
    int32_t count;       /* all instructions of the module */
    int32_t entry_count; /* those of the entry, which are the first */
    bool *is_planned;    /* [computation] */
    double *times;       /* [computation]: runs of a planned one in a step; loops of unknown trip count: 1 */
    PlannedLoop *loops;  /* callers before callees */
    int32_t loop_count;
    int32_t *loop_of;   /* [instruction]: the planned loop that it is, or -1 */
    int32_t *region_of; /* [computation]: the planned loop whose body or condition it is, or -1 */
    PlannedConditional *conditionals; /* callers before callees */
    int32_t conditional_count;
    int32_t *conditional_of; /* [instruction]: the planned conditional that it is, or -1 */
    int32_t *branch_of;      /* [computation]: the planned conditional whose branch it is, or -1 */
    int32_t *source;         /* [instruction]: where a tuple comes from, through tuples and barriers */
    bool *is_flat;           /* [instruction]: it makes a tuple of arrays, whose leaves are its elements */
} Rules;

/* Builds the rules. Operators without a rule are blocked in all dimensions and become warnings of
 * `canonical`. */
AmStatus rules_build(Rules **rules, Arena *arena, IrModule *canonical, AmError *error);

/* Returns the number of arrays in a shape: 1, or the leaves of a tuple. */
int32_t rules_leaf_count(const IrShape *shape);
/* Returns leaf `leaf` of a shape: itself for an array, leaf 0. */
const IrShape *rules_leaf(const IrShape *shape, int32_t leaf);
/* Returns the shapes inside of a fusion whose rule has `inner`, where the slots of the rule have the shapes
 * slots[operand_count + result_count], which are local: [instruction of the called computation], allocated in
 * `arena`; NULL without memory. */
IrShape *rules_shapes_inside(Arena *arena, const Rules *rules, int32_t fusion, const IrShape *const *slots);

/* Returns the shape in a slot of instruction i's rule: operands first, then results. */
const IrShape *rules_slot_shape(const Rules *rules, int32_t i, int32_t slot);
/* Returns the planned loop that instruction i is, or NULL. */
static inline const PlannedLoop *rules_loop(const Rules *rules, int32_t instruction) {
    return rules->loop_of[instruction] < 0 ? NULL : &rules->loops[rules->loop_of[instruction]];
}
/* Returns the planned conditional that instruction i is, or NULL. */
static inline const PlannedConditional *rules_conditional(const Rules *rules, int32_t instruction) {
    return rules->conditional_of[instruction] < 0 ? NULL
                                                  : &rules->conditionals[rules->conditional_of[instruction]];
}
/* Returns the planned loop or conditional that runs a planned computation; -1: none, as it is the entry. */
static inline int32_t rules_caller(const Rules *rules, int32_t computation) {
    if (rules->region_of[computation] >= 0) return rules->loops[rules->region_of[computation]].instruction;
    int32_t branch = rules->branch_of[computation];
    return branch < 0 ? -1 : rules->conditionals[branch].instruction;
}
/* Writes outermost[instruction of the module]: the entry's instruction that runs it, which is itself or the
 * outermost loop or conditional around it; -1 in computations that are not planned. */
void rules_find_outermost(const Rules *rules, int32_t *outermost);
/* Replaces (instruction, leaf), in a planned computation, by the value that it
 * stands for: what made it, or who stands for an array of a loop. */
void rules_find_value(const Rules *rules, int32_t *instruction, int32_t *leaf);
/* Resolves an operand that is made on demand: follows broadcasts from dimension *dimension of
 * *instruction (its alias first) to the dimension of the stored value. Returns false without one;
 * any state is then free. */
bool rules_resolve(const Rules *rules, int32_t *instruction, int32_t *leaf, int32_t *dimension);

/* Appends "([b,m,k],[b,k,n])->[b,m,n] reduce k(add)" */
void rule_print(Text *text, const FactorRule *rule);

#endif
