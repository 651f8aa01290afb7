/* Annotation calls: custom calls for a partitioner or a scheduler, whose results are their operands. For
 * every back end. */
#ifndef EXECUTOR_ANNOTATION_CALLS_H
#define EXECUTOR_ANNOTATION_CALLS_H

#include "executor/kernels.h"

/* Implements a back end's prepare() for a custom-call; AM_ERROR_INPUT for other custom calls. */
AmStatus annotation_call_prepare(KernelCall *call, Arena *arena, AmError *error);

#endif
