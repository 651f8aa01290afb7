/* Profiles: measured seconds of events (propagation/step_event.h, measured_events.h), by device type.
 *
 * `automap run --profile` and `cluster --probe --profile` fill a file, `simulate --profile` uses it where it
 * has an answer (DistSim, section 4: an event is measured once and serves wherever it comes again).
 * "automap-profile-1":
 *
 *   {"format": "automap-profile-1",
 *    "device_types": {"host": [{"event": KEY, "sizes": [...], "work": W, "seconds": S, "probed": true},
 * ...]}}
 *
 * `work` is FLOPs plus bytes of the event; from 1 on it scales what is measured to sizes in between.
 * What a probe measured alone and what a run did in its steps are kept apart, for the latter is nearer.
 */
#ifndef COST_PROFILE_H
#define COST_PROFILE_H

#include "cost/cluster.h"
#include "propagation/step_event.h"

typedef struct Profile Profile;
typedef struct ProfileType ProfileType; /* the events of one device type */

typedef enum ProfileSource { PROFILE_RUN, PROFILE_PROBE } ProfileSource;

/* An empty one; release with profile_close(), NULL is fine there. */
AmStatus profile_open(Profile **profile, AmError *error);
void profile_close(Profile *profile);

/* Fills an empty one from a file. AM_ERROR_INPUT names the JSON path. */
AmStatus profile_read(Profile *profile, const char *path, AmError *error);
AmStatus profile_write(const Profile *profile, const char *path, AmError *error);
/* Adds what was measured in one run, of an event at most 4096 sizes; of equal events the mean counts, as a
 * step has them all. */
AmStatus profile_add(Profile *profile, const char *device_type, ProfileSource source, const StepEvent *event,
                     double work, double seconds, AmError *error);
/* Adds what another run has measured; of equal events the least seconds stay. */
AmStatus profile_merge(Profile *profile, const Profile *other, AmError *error);

/* From now on the cluster's device types of those names have them; the profile outlives the cluster's use.
 * AM_ERROR_INPUT: it has none of them. */
AmStatus profile_attach(const Profile *profile, Cluster *cluster, const char *path, AmError *error);

/* Seconds of an event: as measured, or between the nearest sizes of the same key, scaled by work; false: the
 * key is not there. Any number of threads. */
bool profile_seconds(const ProfileType *type, ProfileSource source, const StepEvent *event, double work,
                     double *seconds);

/* What an event of these sizes would take by what else is known, of which only ratios count; above 0. */
typedef double ProfileScale(const void *user, const double *sizes);
/* The same, scaled by that in the place of work. */
bool profile_seconds_by(const ProfileType *type, ProfileSource source, const StepEvent *event,
                        ProfileScale *scale, const void *user, double *seconds);
/* Of an event of one size that is known: the nearest measured sizes below and above, one twice where it is
 * that or beyond all. */
void profile_around(const ProfileType *type, ProfileSource source, const StepEvent *event, double *below,
                    double *above);

#endif
