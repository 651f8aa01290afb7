/* What was measured of a program's steps and collectives, as events of a profile. */
#ifndef COST_MEASURED_EVENTS_H
#define COST_MEASURED_EVENTS_H

#include "cost/profile.h"
#include "propagation/program.h"

/* Step `step` of a program took `seconds` on a device of this type; one that is no event (step_event.h) is
 * left out. AM_ERROR_INTERNAL: no memory. */
AmStatus measured_add_step(Profile *profile, const char *device_type, ProfileSource source,
                           const Program *program, int32_t step, double seconds, AmError *error);
/* A collective of so many bytes (S of collective.h) did, among so many devices of one server. */
AmStatus measured_add_collective(Profile *profile, const char *device_type, ProfileSource source,
                                 ProgramCollectiveKind kind, double bytes, int32_t devices, double seconds,
                                 AmError *error);

/* The event of such a collective; false: there is no memory. Release the key with text_free(). */
bool measured_collective(StepEvent *event, ProgramCollectiveKind kind, double bytes, int32_t devices);

#endif
