/* Events: what a step is, wherever it stands (DistSim, section 3.2).
 *
 * Two steps with the same key and the same sizes take the same time on a device, so one measurement serves
 * all of them. The key is the operator with all that decides how it is computed but the sizes: attributes,
 * element types, for a fusion its operators and how its inputs are strided. The sizes are the dimensions of
 * operands and results, in order; steps with equal keys have equally many, and may be interpolated.
 */
#ifndef PROPAGATION_STEP_EVENT_H
#define PROPAGATION_STEP_EVENT_H

#include "propagation/program.h"

enum { STEP_EVENT_MOST_SIZES = 64 };

typedef struct StepEvent {
    Text key; /* release with text_free() */
    int32_t size_count;
    double sizes[STEP_EVENT_MOST_SIZES];
} StepEvent;

/* False: the step is no event of its own (a collective, a transfer, control flow, a view), has too many
 * dimensions, or there is no memory. The key's memory is used again from call to call. */
bool step_event(StepEvent *event, const Program *program, const ProgramStep *step);

#endif
