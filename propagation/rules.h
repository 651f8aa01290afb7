/* Factor rules: what each operator does, einsum-like (architecture, decision 2).
 *
 * A rule lists an instruction's factors. A factor has a size and, in every
 * operand and result, the dimension that it is (or none). Splitting a factor
 * n ways means splitting all these dimensions alike. A factor whose size does
 * not divide cannot be split evenly. In a merged dimension (reshape h*e) only
 * the major part is a factor that can be split; its size is the major part's.
 *
 *     dot ([b,m,k],[b,k,n])->[b,m,n] reduce k(add)
 */
#ifndef PROPAGATION_RULES_H
#define PROPAGATION_RULES_H

#include "base/text.h"
#include "ir/module.h"
#include "propagation/sbp.h"

typedef enum FactorKind {
    FACTOR_PARALLEL,    /* each part is computed on its own */
    FACTOR_REDUCTION,   /* in operands only: the result is P(reduction) */
    FACTOR_PERMUTATION, /* neighbours exchange a halo; whole for now */
    FACTOR_BLOCKED      /* must be whole */
} FactorKind;

typedef struct Factor {
    int64_t size;
    FactorKind kind;
    SbpReduction reduction;  /* FACTOR_REDUCTION only */
    bool indexed;            /* gather, scatter: the dimension that indices point into; each part
                                handles the indices that fall into it */
    const int8_t *dimension; /* [operand_count + result_count]; -1: not in it */
} Factor;

/* Results of a tuple-shaped instruction are its leaves, in order. */
typedef struct FactorRule {
    int32_t factor_count, operand_count, result_count;
    const Factor *factors;
} FactorRule;

/* Rules of the entry computation of a canonical module; all in the arena.
 * Tuple plumbing (tuple, get-tuple-element, opt-barrier on tuples) has no rule:
 * `alias` resolves it. */
typedef struct Rules {
    const IrModule *module;
    FactorRule *rules; /* per entry instruction */
    /* Where array value (instruction i, leaf 0) really comes from: itself, or
     * through tuple, get-tuple-element and opt-barrier the producing
     * instruction; `leaf` is which result of that. */
    int32_t *alias, *leaf;
    bool *is_free;   /* no parameter among the ancestors: costs nothing in any state */
    bool *on_demand; /* free, or a broadcast: made per use in the state that the use needs, so it ties
                        nothing together by being shared */
    int32_t count;
} Rules;

/* Operators without a rule are blocked in all dimensions and become warnings of `canonical`. */
AmStatus rules_build(Rules **rules, Arena *arena, IrModule *canonical, AmError *error);

/* Greatest common divisor; that of 0 and b is b. */
int64_t rules_common_divisor(int64_t a, int64_t b);

/* Arrays in a shape: 1, or the leaves of a tuple. */
int32_t rules_leaf_count(const IrShape *shape);
/* Leaf `leaf` of a shape: itself for an array, leaf 0. */
const IrShape *rules_leaf(const IrShape *shape, int32_t leaf);
/* How far operand value `instruction` is made on demand: follows broadcasts from
 * dimension *dimension of *instruction (its alias first) to the dimension of the
 * value that is stored. False: there is none, any state costs nothing. */
bool rules_resolve(const Rules *rules, int32_t *instruction, int32_t *leaf, int32_t *dimension);

/* "([b,m,k],[b,k,n])->[b,m,n] reduce k(add)" */
void rule_print(Text *text, const FactorRule *rule);

#endif
