/* The verifier's table: for each opcode its check of shapes, the element types that every operand and the
 * result may have, and the fewest operands of opcodes that take any number. All are columns of
 * ir/opcodes.def: a row "dot, ARRAY, ARRAY" there is verify_dot() with VERIFY_ARRAY twice here.
 */
#include "ir/verify/verify_parts.h"

const VerifyRow verify_rows[IR_OPCODE_COUNT + 1] = {
#define OPCODE(name, text, arity, rule, linearity, cost, flops, shape, operand_types, result_types, facts) \
    [IR_##name] = {verify_##shape, VERIFY_##operand_types, VERIFY_##result_types,                          \
                   arity < -1 ? -1 - arity : 0},
#include "ir/opcodes.def"
#undef OPCODE
    [IR_UNKNOWN] = {verify_nothing, VERIFY_ANYTHING, VERIFY_ANYTHING, 0},
};
