/* Parts of the verifier, private to ir/verify/: the table's row, what rules
 * share, and one function per rule.
 *
 * A rule checks one instruction whose number of operands and whose element
 * types are right already, as its row says. Shapes are compared without
 * layouts; a dynamic dimension (<=n) counts as its bound.
 */
#ifndef IR_VERIFY_VERIFY_PARTS_H
#define IR_VERIFY_VERIFY_PARTS_H

#include "base/int_list.h"
#include "ir/encodings.h"
#include "ir/module.h"

typedef struct Verifier {
    IrModule *module;
    AmError *error;
    bool is_lax; /* accepts what XLA accepts, also where no kernel does */
} Verifier;

typedef AmStatus VerifyFunction(const Verifier *verifier, const IrInstruction *instruction);

/* Sets of element types. */
enum {
    VERIFY_PRED = 1,
    VERIFY_SIGNED = 2, /* integers */
    VERIFY_UNSIGNED = 4,
    VERIFY_FLOATING = 8,
    VERIFY_COMPLEX = 16,
    VERIFY_OTHER = 32, /* tuples, tokens, opaque types */
    VERIFY_INTEGER = VERIFY_SIGNED | VERIFY_UNSIGNED,
    VERIFY_BITS = VERIFY_PRED | VERIFY_INTEGER,
    VERIFY_ANALYTIC = VERIFY_FLOATING | VERIFY_COMPLEX,
    VERIFY_NUMBER = VERIFY_INTEGER | VERIFY_ANALYTIC,
    VERIFY_SIGNED_OR_FLOATING = VERIFY_SIGNED | VERIFY_FLOATING,
    VERIFY_SIGNED_OR_ANALYTIC = VERIFY_SIGNED | VERIFY_ANALYTIC,
    VERIFY_REAL = VERIFY_BITS | VERIFY_FLOATING,
    VERIFY_ARRAY = VERIFY_PRED | VERIFY_NUMBER,
    VERIFY_ANYTHING = VERIFY_ARRAY | VERIFY_OTHER
};

typedef struct VerifyRow {
    VerifyFunction *function;
    uint8_t operands; /* the set of types that every operand must be in */
    uint8_t result;   /* the set of types that the result must be in */
    uint8_t fewest;   /* operands, of opcodes that take any number */
} VerifyRow;

extern const VerifyRow verify_rows[IR_OPCODE_COUNT + 1];

/* Fails: "FILE: instruction NAME (opcode, from SOURCE:LINE): ..." with AM_ERROR_INPUT. */
AmStatus verify_refuse(const Verifier *verifier, const IrInstruction *instruction, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline const IrShape *verify_operand(const Verifier *verifier, const IrInstruction *instruction,
                                            int32_t k) {
    return &verifier->module->instructions[instruction->operands[k]].shape;
}

static inline IrOpcode verify_operand_opcode(const Verifier *verifier, const IrInstruction *instruction,
                                             int32_t k) {
    return verifier->module->instructions[instruction->operands[k]].opcode;
}

/* Returns computation k of those that it calls. */
static inline const IrComputation *verify_called(const Verifier *verifier, const IrInstruction *instruction,
                                                 int32_t k) {
    return &verifier->module->computations[instruction->called[k]];
}

static inline const IrShape *verify_parameter_shape(const Verifier *verifier,
                                                    const IrComputation *computation, int32_t k) {
    return &verifier->module->instructions[computation->parameters[k]].shape;
}

static inline const IrShape *verify_root_shape(const Verifier *verifier, const IrComputation *computation) {
    return &verifier->module->instructions[computation->root].shape;
}

/* Returns the set that holds just this type. */
uint8_t verify_set_of(Dtype type);
/* Checks that `found` (the instruction's own shape, or a part of one) must be `expected`. */
AmStatus verify_shape(const Verifier *verifier, const IrInstruction *instruction, const IrShape *found,
                      const IrShape *expected);
AmStatus verify_type(const Verifier *verifier, const IrInstruction *instruction, Dtype found, Dtype expected);
/* Checks: `found` must have the dimensions of `like` and the element type `type`. */
AmStatus verify_like(const Verifier *verifier, const IrInstruction *instruction, const IrShape *found,
                     const IrShape *like, Dtype type);
/* Checks: the result must be an array of the dimensions of operand k. */
AmStatus verify_same_dimensions(const Verifier *verifier, const IrInstruction *instruction, int32_t k);
/* Checks: the operands from `first` on must have the shape of the result: of it itself if there is one, else
 * of its elements one by one. */
AmStatus verify_each_operand(const Verifier *verifier, const IrInstruction *instruction,
                             const IrShape *result, int32_t first);
/* Checks: dimension numbers must be within [0, rank), each at most once. */
AmStatus verify_dimensions(const Verifier *verifier, const IrInstruction *instruction,
                           const int64_t *dimensions, int32_t count, int32_t rank, const char *what);
/* Checks: `dimensions` must name exactly one dimension of `rank`, which is `*dimension`. */
AmStatus verify_one_dimension(const Verifier *verifier, const IrInstruction *instruction, int32_t rank,
                              int64_t *dimension);
/* Checks: each called computation must take `parameters`, and there must be `calls` of them. */
AmStatus verify_calls(const Verifier *verifier, const IrInstruction *instruction, int32_t calls,
                      int32_t parameters);
/* Checks: parameter k of `computation` must have the shape `expected`, and its root. */
AmStatus verify_parameter(const Verifier *verifier, const IrInstruction *instruction,
                          const IrComputation *computation, int32_t k, const IrShape *expected);
AmStatus verify_root(const Verifier *verifier, const IrInstruction *instruction,
                     const IrComputation *computation, const IrShape *expected);
/* Checks: the computation combines scalars of the types of the first `count` operands: parameters are the
 * values so far, then as many new ones; the root is one scalar, or a tuple of them where there are several.
 * Their number is checked. */
AmStatus verify_combiner(const Verifier *verifier, const IrInstruction *instruction,
                         const IrComputation *computation, int32_t count);
/* Returns whether two array shapes of one rank have the same order of dimensions in memory. */
bool verify_same_layout(const IrShape *a, const IrShape *b);
/* Returns whether `shape`, as a message has it, equals `expected`. Layouts are ignored. */
bool verify_is_shape(const Hlo__ShapeProto *shape, const IrShape *expected);

VerifyFunction verify_nothing;
/* Rules of several instructions together: pairs of starts and dones, threads, asynchronous computations. */
AmStatus verify_module(const Verifier *verifier);
/* Checks: the sharding of each instruction fits its shape; loops and branches agree on theirs. */
AmStatus verify_shardings(const Verifier *verifier);
/* Element-wise. */
VerifyFunction verify_alike, verify_bitcast_convert, verify_clamp, verify_compare, verify_complex,
    verify_convert, verify_is_finite, verify_part, verify_reduce_precision, verify_select,
    verify_stochastic_convert;
/* Movement. */
VerifyFunction verify_bitcast, verify_broadcast, verify_concatenate, verify_constant, verify_dynamic_reshape,
    verify_get_dimension_size, verify_iota, verify_pad, verify_reshape, verify_reverse,
    verify_set_dimension_size, verify_slice, verify_transpose;
/* Contraction and windows. */
VerifyFunction verify_convolution, verify_dot, verify_ragged_dot, verify_reduce, verify_reduce_window,
    verify_scaled_dot, verify_select_and_scatter;
/* Indices. */
VerifyFunction verify_dynamic_slice, verify_dynamic_update_slice, verify_gather, verify_scatter;
/* Computations that are called, and tuples. */
VerifyFunction verify_call, verify_conditional, verify_get_tuple_element, verify_map, verify_scan,
    verify_sort, verify_tuple, verify_while;
/* Instructions in two halves, tokens, calls to the outside. */
VerifyFunction verify_add_dependency, verify_async_done, verify_async_start, verify_async_update,
    verify_copy_done, verify_copy_start, verify_custom_call, verify_infeed, verify_outfeed, verify_recv,
    verify_recv_done, verify_send_done;
/* Collectives. */
VerifyFunction verify_all_gather, verify_all_gather_done, verify_all_gather_start, verify_all_reduce,
    verify_all_reduce_done, verify_all_to_all, verify_collective_broadcast, verify_collective_permute,
    verify_collective_permute_done, verify_collective_permute_start, verify_device_id,
    verify_ragged_all_to_all, verify_reduce_scatter;
/* Linear algebra, normalisation, random numbers. */
VerifyFunction verify_batch_norm_grad, verify_batch_norm_inference, verify_batch_norm_training,
    verify_cholesky, verify_fft, verify_rng, verify_rng_bit_generator, verify_rng_state, verify_topk,
    verify_triangular_solve;

#endif
