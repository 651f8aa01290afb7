/* Parts of the verifier, private to ir/verify*.c. */
#ifndef IR_VERIFY_PARTS_H
#define IR_VERIFY_PARTS_H

#include "ir/module.h"

typedef struct Verifier {
    IrModule *module;
    AmError *error;
} Verifier;

/* Checks one instruction whose number of operands is right already. */
typedef AmStatus VerifyFunction(const Verifier *verifier, const IrInstruction *instruction);

/* "FILE: instruction NAME (opcode) at SOURCE:LINE: ..." with AM_ERROR_INPUT. */
AmStatus verify_refuse(const Verifier *verifier, const IrInstruction *instruction, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline const IrShape *verify_operand(const Verifier *verifier, const IrInstruction *instruction,
                                            int32_t k) {
    return &verifier->module->instructions[instruction->operands[k]].shape;
}

/* The instruction's own shape (or `found`, a part of it) must be `expected`. */
AmStatus verify_shape(const Verifier *verifier, const IrInstruction *instruction, const IrShape *found,
                      const IrShape *expected);
/* Dimension numbers must be within [0, rank), each at most once. */
AmStatus verify_dimensions(const Verifier *verifier, const IrInstruction *instruction,
                           const int64_t *dimensions, int32_t count, int32_t rank, const char *what);
/* Operands must be arrays, not tuples or tokens. */
AmStatus verify_arrays(const Verifier *verifier, const IrInstruction *instruction);
/* Each called computation must take `parameters`, and there must be `calls` of them. */
AmStatus verify_calls(const Verifier *verifier, const IrInstruction *instruction, int32_t calls,
                      int32_t parameters);

VerifyFunction verify_dot, verify_convolution, verify_reduce, verify_reduce_window, verify_select_and_scatter,
    verify_gather, verify_scatter;

#endif
