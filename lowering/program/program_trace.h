/* Trace entries for steps of a program: measured and predicted steps have the same names. */
#ifndef LOWERING_PROGRAM_PROGRAM_TRACE_H
#define LOWERING_PROGRAM_PROGRAM_TRACE_H

#include "base/files/trace.h"
#include "lowering/program/program.h"
#include "propagation/plan/plan.h"

/* The stream on which the step appears. */
TraceStream program_trace_stream(const Program *program, int32_t step);
/* Writes the name of a step, as "dot" or "add (fusion of 3)"; returns the instruction of
 * program->module that it represents. */
int32_t program_trace_name(char *name, size_t room, const Program *program, int32_t step);

/* Appends the slice to the text. Device and times are set by the caller; stream, name and category
 * become those of the step, with notes on its origin in the user's program, for a collective its
 * bytes and ranks, and the number of executions `times` if it is not 1. `context`: the context from
 * which the program was lowered. */
void program_trace_append(Text *text, const TraceSlice *slice, const PlanContext *context,
                          const Program *program, int32_t step, double times);

#endif
