/* The canonical module: what analyses, plan indices and the hash refer to.
 *
 * `call` is inlined (op_name prefixes joined, the source line kept), what does
 * nothing is dropped (ir/canonical/simplify.h), the entry is computation 0 and its
 * instructions come first, numbered topologically, ties by file order. Other
 * computations (to_apply, loop bodies) follow. Instruction i of a plan is instructions[i].
 * Its loops have their trip counts (ir/analysis/loops.h).
 */
#ifndef IR_CANONICAL_CANONICAL_H
#define IR_CANONICAL_CANONICAL_H

#include "ir/module.h"

/* Canonicalises a module: `*canonical` is a new module with its own arena; `module` must outlive it. */
AmStatus ir_canonicalize(IrModule **canonical, const IrModule *module, AmError *error);

/* Computes SHA-256 over operators, shapes, attributes, literals, aliasing, order of parameters and outputs of
 * a canonical module; not names, ids, layouts or metadata. */
void ir_hash(const IrModule *canonical, char hex[65]);

/* Finds value numbers of the entry: numbers[i] is the first instruction that has the operator, attributes,
 * literal and called computations of i, on operands of the same numbers. An instruction that draws from
 * a hidden state or has an effect has its own number. `sources` [instruction]: the instruction whose value i
 * hands on (ir/dataflow.h), which has its number. */
AmStatus ir_number_values(int32_t *numbers, const IrModule *canonical, const int32_t *sources,
                          AmError *error);

/* Computes hashes[i]: operator, shape, attributes and called computations of instruction i of the entry; not
 * its operands, its literal or its number as a parameter. */
AmStatus ir_hash_operators(uint64_t *hashes, const IrModule *canonical, AmError *error);

/* The parameters of the entry that nothing reads, by instruction. */
typedef struct IrUnused {
    int32_t (*rows)[2]; /* [count]: parameter number, instruction */
    int32_t count;
} IrUnused;

/* Computes the hash of the module without donations and unused parameters; the remaining parameters
 * and the entry's instructions are renumbered. JAX's keep_unused and donate_argnums therefore do
 * not change it. hex[0] is '\0' if memory is exhausted. The rows are allocated in `arena`. */
void ir_hash_structure(const IrModule *canonical, char hex[65], Arena *arena, IrUnused *unused);

#endif
