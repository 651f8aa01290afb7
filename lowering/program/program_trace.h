/* Trace entries for steps of a program: measured and predicted steps have the same names.
 *
 * A step is named by its opcode, collective or fusion; its notes have the module's instruction and the line
 * of the user's program. The format is that of Chrome traces (base/files/trace.h).
 */
#ifndef LOWERING_PROGRAM_PROGRAM_TRACE_H
#define LOWERING_PROGRAM_PROGRAM_TRACE_H

#include "base/files/trace.h"
#include "lowering/program/program.h"
#include "propagation/plan/plan.h"

/* Returns the stream on which the step appears. */
TraceStream program_trace_stream(const Program *program, int32_t step);
/* Writes the name of a step, as "dot" or "add (fusion of 3)"; returns the instruction of
 * program->module that it represents. */
int32_t program_trace_name(char *name, size_t room, const Program *program, int32_t step);

/* Room for the name and the notes of a slice. */
enum { PROGRAM_TRACE_NOTES = 12 };
typedef struct ProgramTraceRoom {
    char name[96], source[512];
    TraceNote notes[PROGRAM_TRACE_NOTES];
} ProgramTraceRoom;

/* Describes a step. The caller sets device and times, and may give up to four notes. Stream, name and
 * category become those of the step. Further notes are its origin in the user's program, the bytes and ranks
 * of a collective, and the number of executions `times` if it is not 1. `context`: the context from which the
 * program was lowered. */
void program_trace_describe(TraceSlice *slice, ProgramTraceRoom *room, const PlanContext *context,
                            const Program *program, int32_t step, double times);
/* Appends such a slice to the text. */
void program_trace_append(Text *text, const TraceSlice *slice, const PlanContext *context,
                          const Program *program, int32_t step, double times);

#endif
