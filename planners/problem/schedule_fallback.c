/* 1F1B keeps fewer activations than GPipe at the same bubble, so it is tried first. Some modules allow GPipe
 * only: their passes cannot alternate, or the plan cannot be lowered for 1F1B. */
#include "planners/problem/schedule_fallback.h"

#include "lowering/interleave/interleave.h"

AmStatus schedule_alternates(bool *alternates, Arena *arena, const PlanContext *context, AmError *error) {
    LoopPair *pairs;
    int32_t pair_count;
    TRY(interleave_pairs(&pairs, &pair_count, arena, context->rules, error));
    *alternates = pair_count > 0;
    return AM_OK;
}

ScheduleKind schedule_first(const char *requested, bool alternates) {
    if (requested) return schedule_kind_find(requested);
    return alternates ? SCHEDULE_1F1B : SCHEDULE_GPIPE;
}

AmStatus schedule_fall_back(ScheduleKind *schedule, bool is_fixed, bool alternates, AmError *error) {
    if (alternates || *schedule == SCHEDULE_GPIPE) return AM_OK;
    if (is_fixed)
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "its forward and backward micro-batches cannot alternate");
    *schedule = SCHEDULE_GPIPE;
    return AM_OK;
}

AmStatus schedule_simulate(ScheduleKind *schedule, bool is_fixed, ScheduleSimulate simulate, void *user,
                           AmError *error) {
    AmError refusal = {0};
    AmStatus status = simulate(user, *schedule, &refusal);
    if (status == AM_ERROR_INFEASIBLE && !is_fixed && *schedule != SCHEDULE_GPIPE) {
        *schedule = SCHEDULE_GPIPE;
        return simulate(user, *schedule, error);
    }
    return am_pass_error(status, &refusal, error);
}
