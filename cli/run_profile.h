/* run --profile FILE: the steps of a run, measured, as events of a profile (cost/profile.h). */
#ifndef CLI_RUN_PROFILE_H
#define CLI_RUN_PROFILE_H

#include "cli/common.h"
#include "cost/profile.h"
#include "executor/run.h"

typedef struct RunProfile {
    const char *path;     /* NULL: nothing is asked for */
    Profile *profile;     /* of this run */
    Profile *known;       /* of those before */
    const char **type_of; /* [rank]: names of the device types; the arena's */
    int32_t rank_count;
} RunProfile;

/* Reads the file where there is one, and asks for the medians in `options`, whose plan says what type each
 * rank's device is; without a plan it is called as the device ("host" for cpu). */
AmStatus run_profile_open(RunProfile *self, Arena *arena, const char *path, AmRunOptions *options,
                          AmError *error);
/* Writes it. */
AmStatus run_profile_end(RunProfile *self, AmError *error);
void run_profile_close(RunProfile *self);

#endif
