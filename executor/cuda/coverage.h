/* Coverage: how the CUDA back end runs each opcode, and the opcodes and element types that it lacks.
 *
 * One table has the functions that prepare opcodes without a generated kernel;
 * others have the opcodes and types that are missing. The column "CUDA" of docs/running.md is
 * cuda_coverage_way() and cuda_lacking_types() of every opcode. Tests compare the column with the tables,
 * and the tables with the types that the back end takes.
 */
#ifndef EXECUTOR_CUDA_COVERAGE_H
#define EXECUTOR_CUDA_COVERAGE_H

#include "executor/cuda/cuda.h"

/* Returns how an opcode is run: "generated", "cuBLASLt", "cuDNN", "markers, TopK", "control" (loops,
 * branches, calls), "order" (no work), "lowered" (no step of a program), "no" (cuda_lacks() has the reason)
 * or "-" (refused on every device); NULL: none of these. */
const char *cuda_coverage_way(IrOpcode opcode);

/* Returns why CUDA has no kernel for an opcode that the CPU runs, or NULL. */
const char *cuda_lacks(IrOpcode opcode);

/* Sets of element types. */
enum {
    CUDA_NARROW = 1, /* f8, f4, integers of less than a byte */
    CUDA_COMPLEX = 2,
    CUDA_PRED = 4
};

/* Returns the set that has a type, or 0. */
unsigned cuda_type_set(Dtype type);

/* Returns the sets of types on which CUDA has no kernel for an opcode, while the CPU has one. 0: none, or all
 * types, for the reason that cuda_lacks() gives. */
unsigned cuda_lacking_types(IrOpcode opcode);

/* Returns the function that prepares an instruction; generated kernels where no row names another. */
CudaPrepare *cuda_coverage_prepare(IrOpcode opcode);

#endif
