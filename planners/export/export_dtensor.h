/* A plan for PyTorch: DTensor placements of every parameter, and for several stages the table for
 * torch.distributed.pipelining. */
#ifndef PLANNERS_EXPORT_EXPORT_DTENSOR_H
#define PLANNERS_EXPORT_EXPORT_DTENSOR_H

#include <jansson.h>

#include "propagation/plan/plan.h"

/* Writes "automap-dtensor-1"; the caller's reference. AM_ERROR_INFEASIBLE, with the reason, where PyTorch
 * could not hold the same plan: uneven shards, unequal shares, a schedule that it does not have. */
AmStatus export_dtensor(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
/* Returns the name of a schedule in torch.distributed.pipelining; NULL: it has none of that kind. */
const char *export_torch_schedule(ScheduleKind kind);

#endif
