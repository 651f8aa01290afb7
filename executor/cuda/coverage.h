/* Coverage: how the CUDA back end runs each opcode, and the list of those that it lacks.
 *
 * One table says which function prepares an opcode that is no generated kernel,
 * one says what is missing and why. The column "CUDA" of docs/operators.md is
 * cuda_coverage_way() of every opcode; a test compares the two.
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

/* Returns the function that prepares an instruction; generated kernels where no row names another. */
CudaPrepare *cuda_coverage_prepare(IrOpcode opcode);

#endif
