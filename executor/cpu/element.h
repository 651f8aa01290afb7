/* Element-wise operators on the CPU: loops, and programs of loops.
 *
 * A loop computes one operator on `count` packed elements. An element program
 * is a list of operators on slots: those of a fusion, or of a to_apply
 * computation. It is compiled to loops over buffers of up to ELEMENT_TILE
 * elements, so that a chain of operators stays in the cache. Inside a program
 * bf16, f16 and f8 values are held as f32, integers of less than a byte as s8 or
 * u8. They are rounded after every operator.
 */
#ifndef EXECUTOR_CPU_ELEMENT_H
#define EXECUTOR_CPU_ELEMENT_H

#include "lowering/program/program.h"

#define ELEMENT_TILE 1024

/* The position of a tile in the index space of a fusion; for iota. */
typedef struct ElementTile {
    int64_t first;
    int32_t rank;
    const int64_t *dimensions;
} ElementTile;

/* Parameters of a loop besides its operands. */
typedef struct ElementParameter {
    Dtype from, to;                       /* convert, bitcast-convert, iota (to) */
    Dtype random;                         /* stochastic-convert: of the random bits */
    int32_t exponent_bits, mantissa_bits; /* reduce-precision */
    int32_t iota_dimension;
    int64_t iota_start;
    const void *constant; /* one element of type `to` */
} ElementParameter;

/* Computes elements: `out` may be one of the operands, else they do not overlap. */
typedef void ElementLoop(void *out, const void *a, const void *b, const void *c, int64_t count,
                         const ElementParameter *parameter, const ElementTile *tile);

/* Returns the loop of an operator on operands of `type` (pred, integers, f32, f64), NULL if unsupported. */
ElementLoop *element_floating_loop(IrOpcode opcode, Dtype type);
ElementLoop *element_integer_loop(IrOpcode opcode, Dtype type);
/* On s2, s4, u2 and u4, held as s8 or u8; `from` is the narrow type. */
ElementLoop element_narrow_leading_zeros, element_narrow_popcnt, element_narrow_shift_right,
    element_narrow_shift_arithmetic, element_narrow_mulhi;
/* Returns the loop for complex operands or results. */
ElementLoop *element_complex_loop(IrOpcode opcode, Dtype from, Dtype to);
ElementLoop *element_complex_compare_loop(const char *direction, Dtype type); /* "EQ", "NE" */
/* Returns the loop of a comparison: `direction` "EQ" ...; `total_order` ranks NaN and signed zeros of
 * floating types. */
ElementLoop *element_compare_loop(const char *direction, bool total_order, Dtype type);
ElementLoop *element_select_loop(Dtype type);
ElementLoop *element_clamp_loop(Dtype type);
ElementLoop element_bitcast_narrow; /* both types are held as wider ones */
ElementLoop element_convert, element_bitcast, element_iota, element_constant;
ElementLoop element_stochastic_convert; /* a number and as many random bits as `random` has */
ElementLoop element_reduce_precision_single, element_reduce_precision_double;
ElementLoop element_round; /* to the narrower type `to` and back to `from` */
/* Returns the fastest loop of a conversion, and of rounding f32 to `type`; a loop of any types where there is
 * no other. */
ElementLoop *element_convert_loop(Dtype from, Dtype to);
ElementLoop *element_round_loop(Dtype type);

typedef struct ElementProgram ElementProgram;

/* Operators on slots, which are numbered after the inputs. The inputs are the parameters of a scalar
 * computation (to_apply), the outputs its result or the elements of its result tuple. */
typedef struct ElementComputation {
    int32_t input_count, op_count, output_count;
    const Dtype *input_types;
    const ProgramFusionOp *ops;
    const int32_t *output_slots;
} ElementComputation;
/* Compiles operators. Everything lives in the arena. On failure *refused is the index of the op that has no
 * loop. */
AmStatus element_program_build(ElementProgram **program, Arena *arena, const ElementComputation *computation,
                               int32_t *refused, AmError *error);
/* Reads computation `computation` of a module (to_apply) as operators on slots. The arena owns the arrays.
 * AM_ERROR_INPUT: there is no such computation, or an operator in it has another form: a call, more than
 * three operands, or a result that is no scalar. */
AmStatus element_computation_read(ElementComputation *result, Arena *arena, const IrModule *module,
                                  int32_t computation, AmError *error);
/* Compiles a scalar computation (to_apply) as a program over lanes. */
AmStatus element_program_from_computation(ElementProgram **program, Arena *arena, const IrModule *module,
                                          int32_t computation, AmError *error);
int32_t element_program_inputs(const ElementProgram *program);
int32_t element_program_outputs(const ElementProgram *program);
/* Returns the type of an input or output as in memory. */
Dtype element_program_input_type(const ElementProgram *program, int32_t k);
Dtype element_program_output_type(const ElementProgram *program, int32_t k);
/* Returns the bytes that begin() and run() work in. */
int64_t element_program_scratch(const ElementProgram *program);
/* Fills constants; once before a series of run() of at most `count` elements on the same scratch. */
void element_program_begin(const ElementProgram *program, int64_t count, void *scratch);
/* Runs on `count` <= ELEMENT_TILE elements; inputs and outputs are packed, in memory types. All inputs are
 * read before any output is written. */
void element_program_run(const ElementProgram *program, const void *const *inputs, void *const *outputs,
                         int64_t count, const ElementTile *tile, void *scratch);

#endif
