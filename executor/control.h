/* Control flow for every back end: loops, conditionals, calls and custom calls
 * that are markers. They run other kernels and copy; what they compute
 * themselves is nothing. */
#ifndef EXECUTOR_CONTROL_H
#define EXECUTOR_CONTROL_H

#include "executor/kernels.h"

bool control_covers(IrOpcode opcode);

/* A back end's prepare() for an instruction whose opcode control_covers(). */
AmStatus control_prepare(KernelCall *call, Arena *arena, AmError *error);

#endif
