/* Custom calls that only say something to a partitioner or a scheduler: their
 * results are their operands. For every back end. */
#ifndef EXECUTOR_MARKER_H
#define EXECUTOR_MARKER_H

#include "executor/kernels.h"

/* Implements a back end's prepare() for a custom-call; AM_ERROR_INPUT for other custom calls than markers. */
AmStatus marker_prepare(KernelCall *call, Arena *arena, AmError *error);

#endif
