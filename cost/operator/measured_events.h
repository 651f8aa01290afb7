/* Measurements of a program's steps and collectives, as events of a profile.
 *
 * The key of an operator's event describes its shapes (lowering/program/step_event.h), that of a collective
 * its kind and its group. Runs and probes add events, and prices look them up by the same keys.
 */
#ifndef COST_OPERATOR_MEASURED_EVENTS_H
#define COST_OPERATOR_MEASURED_EVENTS_H

#include "cost/operator/profile.h"
#include "lowering/program/program.h"

/* Notes that step `step` of a program took `seconds` on a device of this type; one that is no event
 * (step_event.h) is left out. AM_ERROR_INTERNAL: no memory. */
AmStatus measured_add_step(Profile *profile, const char *device_type, ProfileSource source,
                           const Program *program, int32_t step, double seconds, AmError *error);
/* The identity of a measured collective. */
typedef struct MeasuredCollective {
    ProgramCollectiveKind kind;
    int32_t devices;
    double bytes;     /* S of collective.h */
    const char *link; /* by name, between the devices; NULL: that of one server, whatever it is */
    int32_t servers;  /* that the devices are in; with a link */
} MeasuredCollective;

/* Notes that a collective took so many seconds on devices of this type. */
AmStatus measured_add_collective(Profile *profile, const char *device_type, ProfileSource source,
                                 const MeasuredCollective *of, double seconds, AmError *error);

/* Makes the event of such a collective: its key is "all_reduce of 4 over nvlink in 1 server", or
 * "all_reduce of 4" without a link. Returns false if memory is exhausted. Release the key with
 * text_free(). */
bool measured_collective(StepEvent *event, const MeasuredCollective *of);
/* Returns the error in an event whose key begins like a collective's ("a number of devices from 2 on"); NULL
 * for valid and for other events. */
const char *measured_collective_fault(const char *key, int32_t size_count);

#endif
