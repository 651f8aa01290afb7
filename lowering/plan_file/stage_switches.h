/* Switches of a stage in a plan file: keys that are omitted where they are false, or 0. */
#ifndef LOWERING_PLAN_FILE_STAGE_SWITCHES_H
#define LOWERING_PLAN_FILE_STAGE_SWITCHES_H

#include "propagation/plan/plan.h"

/* Sets the switches that `object`, the stage at `where` in the file `source`, has. */
AmStatus stage_switches_read(PlanStage *stage, json_t *object, const char *source, const char *where,
                             AmError *error);
void stage_switches_write(json_t *object, const PlanStage *stage);

#endif
