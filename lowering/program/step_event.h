/* Events: the identity of a step, independent of its position (DistSim, section 3.2).
 *
 * Two steps with the same key and the same sizes take the same time on a device, so that one
 * measurement serves all of them. The key consists of the operator and all properties that
 * determine its kernel except sizes: attributes, element types, for a fusion its operators and the
 * strides of its inputs. The sizes are the dimensions of operands and results, in order; steps with
 * equal keys have equally many, and may be interpolated.
 */
#ifndef LOWERING_PROGRAM_STEP_EVENT_H
#define LOWERING_PROGRAM_STEP_EVENT_H

#include "lowering/program/program.h"

enum { STEP_EVENT_MOST_SIZES = 64 };

typedef struct StepEvent {
    Text key; /* release with text_free() */
    int32_t size_count;
    double sizes[STEP_EVENT_MOST_SIZES];
} StepEvent;

/* Returns false if the step is no event of its own (a collective, a transfer, control flow, a
 * view), has too many dimensions, or memory is exhausted. The key's memory is reused from call to
 * call. */
bool step_event(StepEvent *event, const Program *program, const ProgramStep *step);

#endif
