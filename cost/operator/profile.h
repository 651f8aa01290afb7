/* Profiles: measured seconds of events (lowering/program/step_event.h, measured_events.h), by device
 * type.
 *
 * `automap run --profile` and `cluster --probe --profile` write a file; `simulate --profile` uses
 * its values if it covers an event (DistSim, section 4: an event is measured once and reused).
 * "automap-profile-1":
 *
 *   {"format": "automap-profile-1",
 *    "device_types": {"host": [{"event": KEY, "sizes": [...], "work": W, "seconds": S, "probed": true},
 *    ...]}}
 *
 * `work` is FLOPs plus bytes of the event; values of at least 1 scale measurements to sizes in
 * between. Measurements of a probe and of a run are kept apart, since those of a run are more
 * accurate.
 */
#ifndef COST_OPERATOR_PROFILE_H
#define COST_OPERATOR_PROFILE_H

#include "cost/cluster/cluster.h"
#include "lowering/program/step_event.h"

typedef struct Profile Profile;
typedef struct ProfileType ProfileType; /* the events of one device type */

typedef enum ProfileSource { PROFILE_RUN, PROFILE_PROBE } ProfileSource;

/* Creates an empty profile; release with profile_close(), NULL is fine there. */
AmStatus profile_open(Profile **profile, AmError *error);
void profile_close(Profile *profile);

/* Fills an empty one from a file. AM_ERROR_INPUT names the JSON path. */
AmStatus profile_read(Profile *profile, const char *path, AmError *error);
AmStatus profile_write(const Profile *profile, const char *path, AmError *error);
/* Adds a measurement of one run, for an event at most 4096 sizes; equal events are averaged, since
 * a step contains all of them. */
AmStatus profile_add(Profile *profile, const char *device_type, ProfileSource source, const StepEvent *event,
                     double work, double seconds, AmError *error);
/* Adds what another run has measured; of equal events the least seconds stay. */
AmStatus profile_merge(Profile *profile, const Profile *other, AmError *error);

/* Attaches the profile to the cluster's device types of the same names; the profile must outlive
 * the use of the cluster. AM_ERROR_INPUT: it has none of these types. */
AmStatus profile_attach(const Profile *profile, Cluster *cluster, const char *path, AmError *error);

/* Returns the seconds of an event: as measured, or between the nearest sizes of the same key, scaled by work;
 * false: the key is not there. Any number of threads. */
bool profile_seconds(const ProfileType *type, ProfileSource source, const StepEvent *event, double work,
                     double *seconds);

/* Returns the estimated time of an event of these sizes by other sources, above 0. Only ratios of these times
 * count. */
typedef double ProfileScale(const void *user, const double *sizes);
/* Sets *seconds as profile_seconds() does, scaled by `scale` in the place of work. */
bool profile_seconds_by(const ProfileType *type, ProfileSource source, const StepEvent *event,
                        ProfileScale *scale, const void *user, double *seconds);
/* Finds the nearest measured sizes below and above a known event of one size; one of them twice if it is
 * equal or beyond all. */
void profile_around(const ProfileType *type, ProfileSource source, const StepEvent *event, double *below,
                    double *above);

#endif
