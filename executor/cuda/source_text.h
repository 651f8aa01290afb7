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
 * registers ("f32" for bf16). A type without arithmetic is bits of its width. */
const char *cuda_memory_type(Dtype type);
const char *cuda_value_type(Dtype type);
bool cuda_has_arithmetic(Dtype type);

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

/* Blocks of CUDA_THREADS that have a thread for each of `count` elements. */
static inline int64_t cuda_blocks(int64_t count) {
    return count / CUDA_THREADS + (count % CUDA_THREADS > 0);
}

/* "(const f32 *in0, f32 *out0) {" and a new line. Where the source has them, the scratch memory (an
 * address of `scratch`, say "f64") and the uploaded bytes follow, and "s64 number" if `numbered`. */
void cuda_append_signature(Text *out, const KernelCall *call, const CudaSource *source, const char *scratch,
                           bool numbered);

/* Adds the launch of a kernel whose parameter list and body are in `body`: names it, beginning with
 * `kind`, and copies its definition to the arena. Takes over and frees `body`. No blocks: no launch. */
AmStatus cuda_source_launch(CudaSource *source, Arena *arena, const char *kind, Text *body, int64_t blocks,
                            int32_t threads, AmError *error);
/* Adds a launch of a kernel that is there already, with another number. */
AmStatus cuda_source_add(CudaSource *source, Arena *arena, const CudaLaunch *launch, AmError *error);

/* kernel_refuse() for a call's instruction. */
AmStatus cuda_source_refuse(const KernelCall *call, const char *reason, AmError *error);

AmStatus cuda_source_reduce(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
AmStatus cuda_source_pad(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
AmStatus cuda_source_concatenate(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
/* Whether an opcode's result is, element by element, a function of operands at given strides. */
bool cuda_source_is_element_wise(IrOpcode opcode);
AmStatus cuda_source_elements(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

#endif
