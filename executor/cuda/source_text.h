/* What the parts of the kernel generator share: types, operators as statements,
 * and the naming of a kernel. */
#ifndef EXECUTOR_CUDA_SOURCE_TEXT_H
#define EXECUTOR_CUDA_SOURCE_TEXT_H

#include "base/text.h"
#include "executor/cuda/source.h"

#define CUDA_MOST_PARAMETERS 512 /* addresses in the 4,096 bytes that a kernel takes */
#define CUDA_THREADS         256
#define CUDA_MOST_BLOCKS     INT64_C(2147483647) /* of a grid, in its first dimension */

/* Name of the C type of elements in memory ("u16" for bf16) and of values in
 * registers ("f32" for bf16); NULL: a type without arithmetic. */
const char *cuda_memory_type(Dtype type);
const char *cuda_value_type(Dtype type);

/* `text` as a value of `type` in registers: "bf16_load(TEXT)" or the text itself; and back. */
void cuda_append_load(Text *out, Dtype type, const char *text);
void cuda_append_store(Text *out, Dtype type, const char *text);
/* A conversion of the value `text` as HLO's convert does it, rounded to `to`. */
void cuda_append_convert(Text *out, Dtype from, Dtype to, const char *text);

/* Appends "const f32 v7 = ...;" and a new line: operator `op` on values v0, v1,
 * ... Slot k has types[k] and is called `v` k; types[slot] is filled in. `iota`
 * is the expression of iota's value, else NULL. False: no such operator on
 * these types, and what was appended is of no use. */
bool cuda_append_operator(Text *out, const ProgramFusionOp *op, int32_t slot, Dtype *types, const char *iota);

/* Names the kernel whose parameter list and body are in `body`, and copies its
 * definition to the arena. `kind` begins the name. Takes over and frees `body`. */
AmStatus cuda_source_finish(CudaSource *source, Arena *arena, const char *kind, Text *body, AmError *error);

/* kernel_refuse() for a call's instruction. */
AmStatus cuda_source_refuse(const KernelCall *call, const char *reason, AmError *error);

AmStatus cuda_source_reduce(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
AmStatus cuda_source_pad(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
AmStatus cuda_source_concatenate(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
/* Whether an opcode's result is, element by element, a function of operands at given strides. */
bool cuda_source_is_element_wise(IrOpcode opcode);
AmStatus cuda_source_elements(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

#endif
