/* The schedule of a pipeline where none is requested: 1F1B, else GPipe. */
#ifndef PLANNERS_PROBLEM_SCHEDULE_FALLBACK_H
#define PLANNERS_PROBLEM_SCHEDULE_FALLBACK_H

#include "propagation/plan/plan.h"

/* Returns whether micro-batches of the backward pass may alternate with those of the forward pass, which
 * every schedule but GPipe needs. Allocates in the arena. */
AmStatus schedule_alternates(bool *alternates, Arena *arena, const PlanContext *context, AmError *error);

/* Returns the requested schedule (SCHEDULE_KINDS for an unknown name); by default 1F1B if passes alternate,
 * else GPipe. */
ScheduleKind schedule_first(const char *requested, bool alternates);

/* Sets `*schedule` to GPipe unless passes alternate. AM_ERROR_INFEASIBLE: another schedule `is_fixed`. */
AmStatus schedule_fall_back(ScheduleKind *schedule, bool is_fixed, bool alternates, AmError *error);

/* Simulates a plan under a schedule. AM_ERROR_INFEASIBLE: the plan cannot run by it. */
typedef AmStatus (*ScheduleSimulate)(void *user, ScheduleKind schedule, AmError *error);

/* Simulates under `*schedule`; if that is infeasible and not `is_fixed`, under GPipe, which `*schedule` then
 * is. */
AmStatus schedule_simulate(ScheduleKind *schedule, bool is_fixed, ScheduleSimulate simulate, void *user,
                           AmError *error);

#endif
