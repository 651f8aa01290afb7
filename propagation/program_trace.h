/* What a trace says of a step of a program: the same words for a step that was
 * measured and for one that was predicted. */
#ifndef PROPAGATION_PROGRAM_TRACE_H
#define PROPAGATION_PROGRAM_TRACE_H

#include "base/trace.h"
#include "propagation/plan.h"
#include "propagation/program.h"

/* The stream on which the step appears. */
TraceStream program_trace_stream(const Program *program, int32_t step);
/* Writes what a step is, as "dot" or "add (fusion of 3)"; returns the instruction of program->module that it
 * stands for. */
int32_t program_trace_name(char *name, size_t room, const Program *program, int32_t step);

/* Adds the slice to the text: its device and times are set, stream, name and category become
 * those of the step, with notes of where it comes from in the user's program, of a collective its
 * bytes and ranks, and of `times` that it runs where that is not 1. `context`: what the program was lowered
 * from. */
void program_trace_append(Text *text, const TraceSlice *slice, const PlanContext *context,
                          const Program *program, int32_t step, double times);

#endif
