/* Common interface of the kernel generator's parts: types, operators as statements, and the naming
 * of a kernel. */
#ifndef EXECUTOR_CUDA_CODEGEN_SOURCE_TEXT_H
#define EXECUTOR_CUDA_CODEGEN_SOURCE_TEXT_H

#include "base/text.h"
#include "executor/cpu/element.h"
#include "executor/cuda/codegen/source.h"

#define CUDA_MOST_PARAMETERS 512 /* addresses in the 4,096 bytes that a kernel takes */
#define CUDA_THREADS         256
#define CUDA_MOST_BLOCKS     INT64_C(2147483647) /* of a grid, in its first dimension */

/* Returns the name of the C type of elements in memory ("u16" for bf16) and of values in registers ("f32" for
 * bf16). A type without arithmetic is bits of its width. */
const char *cuda_memory_type(Dtype type);
const char *cuda_value_type(Dtype type);
const char *cuda_word(int64_t bytes); /* C type of 1, 2, 4, 8 or 16 bytes */
bool cuda_has_arithmetic(Dtype type); /* pred, integers, floating types */
bool cuda_has_operators(Dtype type);  /* these and c64 */

/* Appends an f64 literal; a value without digits (infinity, NaN) by its bits. */
void cuda_append_double(Text *out, double value);
/* Appends `text` as a value of `type` in registers: "bf16_load(TEXT)" or the text itself; and back. */
void cuda_append_load(Text *out, Dtype type, const char *text);
void cuda_append_store(Text *out, Dtype type, const char *text);
/* Appends a conversion of the value `text` as HLO's convert does it, rounded to `to`. */
void cuda_append_convert(Text *out, Dtype from, Dtype to, const char *text);

/* Appends "const f32 v7 = ...;" and a new line: operator `op` on values v0, v1, ... Slot k has
 * types[k] and is called `v` k; types[slot] is filled in. `iota` is the expression of iota's value,
 * else NULL. Returns false for an unsupported operator or type; the appended text is then invalid. */
bool cuda_append_operator(Text *out, const ProgramFusionOp *op, int32_t slot, Dtype *types, const char *iota);

/* Returns whether cuda_append_operator() rounds the result to 16 bits and quiets NaN. */
bool cuda_operator_rounds(const ProgramFusionOp *op);

/* Returns the expression of an operator that has to do with c64; false as cuda_append_operator(). */
bool cuda_append_complex(Text *out, const ProgramFusionOp *op, const Dtype *types);

/* Blocks of CUDA_THREADS that have a thread for each of `count` elements. */
static inline int64_t cuda_blocks(int64_t count) {
    return count / CUDA_THREADS + (count % CUDA_THREADS > 0);
}

/* Appends "(const f32 *__restrict__ in0, f32 *out0) {" and a new line; an operand that may share memory with
 * a result has no __restrict__. If the source has them, the scratch memory (an address of `scratch`, such as
 * "f64"; NULL if unused) and the uploaded bytes follow, and "s64 number" if `numbered`. */
void cuda_append_signature(Text *out, const KernelCall *call, const CudaSource *source, const char *scratch,
                           bool numbered);

/* Adds the launch of a kernel whose parameter list and body are in `body`: names it, beginning with
 * `kind`, and copies its definition to the arena. Takes over and frees `body`. No blocks: no launch. */
AmStatus cuda_source_launch(CudaSource *source, const char *kind, Text *body, int64_t blocks, int32_t threads,
                            AmError *error);
/* Adds the launch of a kernel with a long body, as cuda_source_launch(): the compiler may use so many
 * registers that a processor holds one block. Without that it spills some of them to have more blocks. */
AmStatus cuda_source_launch_long(CudaSource *source, const char *kind, Text *body, int64_t blocks,
                                 int32_t threads, AmError *error);
/* Adds a launch of a kernel that is there already, with another number. */
AmStatus cuda_source_add(CudaSource *source, const CudaLaunch *launch, AmError *error);

/* Appends "const u32 i = ...;" the number of this thread, and the return of those past `elements`. */
void cuda_append_guard(Text *out, int64_t elements);
/* Appends "const s64 d3 = i / 7u % 5u;" for the name "d" and n 3: where thread i of `elements` (> 0) stands
 * along a dimension of that size and stride. */
void cuda_append_coordinate(Text *out, const char *name, int32_t n, int64_t elements, int64_t stride,
                            int64_t size);
/* Appends all coordinates, NAME0 and so on, of thread i in a row-major array that is not empty. */
void cuda_append_coordinates(Text *out, const char *name, const int64_t *dimensions, int32_t rank);
/* Appends "d0 * 35ll + d1": the sum of coordinates times strides, or "0". */
void cuda_append_dot(Text *out, const char *name, const int64_t *strides, int32_t rank);
/* Appends the load of an index of an integer type as s64: "(s64)in1[PLACE]"; a u64 is at most the greatest
 * s64. */
void cuda_append_index_load(Text *out, Dtype type, int32_t operand, const char *place);
/* Appends "bf16_load(in0[PLACE])". */
void cuda_append_element(Text *out, Dtype type, const char *array, const char *place);

/* Reads a computation of scalars (to_apply, ...), refused unless its inputs and its one output have these
 * types, which must have arithmetic. */
AmStatus cuda_computation_read(ElementComputation *computation, Arena *arena, const KernelCall *call,
                               int32_t index, const Dtype *inputs, int32_t input_count, Dtype output,
                               AmError *error);
/* Appends "const auto NAME = [](const f32 v0, const f32 v1) -> f32 { ... };" After a failure the appended
 * text is invalid. */
AmStatus cuda_append_computation(Text *out, Arena *arena, const KernelCall *call, const char *name,
                                 const ElementComputation *computation, AmError *error);

/* Adds the launch that copies operand 0 to result 0, which is skipped if both have the same address. */
AmStatus cuda_source_copy_operand(CudaSource *source, const KernelCall *call, AmError *error);

typedef AmStatus CudaSourceWriter(CudaSource *source, const KernelCall *call, AmError *error);

CudaSourceWriter cuda_source_reduce;                                             /* source_reduce.c */
CudaSourceWriter cuda_source_pad, cuda_source_concatenate, cuda_source_constant; /* source_place.c */
CudaSourceWriter cuda_source_bitcast_convert, cuda_source_dynamic_slice, cuda_source_dynamic_update_slice;
CudaSourceWriter cuda_source_gather;                                        /* source_gather.c */
CudaSourceWriter cuda_source_scatter;                                       /* source_scatter.c */
CudaSourceWriter cuda_source_reduce_window, cuda_source_select_and_scatter; /* source_window.c */
CudaSourceWriter cuda_source_sort, cuda_source_topk;                        /* source_sort.c */
CudaSourceWriter cuda_source_random_bits, cuda_source_rng;                  /* source_random.c */
CudaSourceWriter cuda_source_ragged_dot;                                    /* source_ragged_dot.c */
CudaSourceWriter cuda_source_dimension_size, cuda_source_same_elements;     /* source_dynamic.c */
/* source_batch_norm.c */
CudaSourceWriter cuda_source_batch_norm_training, cuda_source_batch_norm_inference,
    cuda_source_batch_norm_gradient;
CudaSourceWriter cuda_source_cholesky, cuda_source_triangular_solve; /* source_matrix.c */
CudaSourceWriter cuda_source_transpose, cuda_source_slice;           /* source_transpose.c */
CudaSourceWriter cuda_source_elements;                               /* source_elements.c */
/* Returns whether an opcode's result is, element by element, a function of operands at given
 * strides. */
bool cuda_source_is_element_wise(IrOpcode opcode);

/* Statements of a row group's kernel for one of its steps: rows "first" to "end" - 1 of a fusion and of a
 * reduction, on the arrays "in0", "out0" and so on. AM_ERROR_INPUT: it has no such form. */
AmStatus cuda_append_fusion_rows(Text *out, Arena *arena, const KernelCall *call, int64_t rows,
                                 AmError *error);
AmStatus cuda_append_reduce_rows(Text *out, const KernelCall *call, AmError *error);

#endif
