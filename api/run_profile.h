/* run --profile FILE: the steps of a run, measured, as events of a profile (cost/operator/profile.h).
 *
 * run_profile_open() requests medians of operators and collectives from the run; run_profile_end() adds them
 * to the file by type of device. Searches and simulations with this profile use the measured seconds.
 */
#ifndef API_RUN_PROFILE_H
#define API_RUN_PROFILE_H

#include "cost/operator/profile_file.h"
#include "executor/run/run.h"

/* A collective of a group of ranks. */
typedef struct TimedCollective {
    ProgramCollectiveKind kind;
    int32_t stage, first, step, origin; /* the group's first device; its step and instruction in the module */
    int32_t devices, reported;          /* of the group: all, and those that have reported */
    double bytes, seconds;              /* of the one that waited least */
    const char *link;                   /* between them, by name */
} TimedCollective;

typedef struct RunProfile {
    ProfileFile file;        /* its path is NULL without a profile */
    const char **type_of;    /* [rank]: names of the device types; the arena's */
    const int32_t *stage_of; /* [rank] */
    const Plan *plan;        /* or NULL */
    Cluster *cluster;        /* the plan's; or NULL */
    int32_t rank_count;
    TimedCollective *collectives;
    int32_t collective_count, collective_capacity;
    bool has_collectives; /* they are noted */
    Arena *arena;
} RunProfile;

/* Reads the file if it exists, and requests the medians in `options`, whose plan has the type of
 * each rank's device; without a plan the type is the name of the device ("host" for cpu). */
AmStatus run_profile_open(RunProfile *self, Arena *arena, const char *path, RunOptions *options,
                          AmError *error);
/* Writes it. */
AmStatus run_profile_end(RunProfile *self, AmError *error);
void run_profile_close(RunProfile *self);

#endif
