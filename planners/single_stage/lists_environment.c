/* The environment of ordered lists (docs/method.md): candidate after candidate, axis after axis,
 * take or leave. Every prefix is a plan, so that the reward of a decision is its immediate saving.
 * The observation describes the candidate (size, weights, FLOPs) and the plan so far without
 * identities, so that one network serves every module and mesh. */
#include <math.h>

#include "planners/rl/environment.h"

typedef struct ListsEnvironment {
    Environment base;
    Problem *problem;
    double reference; /* seconds of data parallelism: the unit of rewards */
    AxisPlan axis_plan;
    PlanPrice price;
    int32_t axis, position; /* the decision to be taken: candidate `position` on `axis` */
} ListsEnvironment;

/* Moves on to the next candidate that is usable on its axis. */
static bool find_decision(ListsEnvironment *self) {
    for (; self->axis < self->problem->mesh.axis_count; self->axis++, self->position = 0)
        for (; self->position < self->problem->candidate_count; self->position++)
            if (problem_usable(self->problem, self->position, self->axis)) return true;
    return false;
}

static AmStatus reset(Environment *environment, AmError *error) {
    ListsEnvironment *self = (ListsEnvironment *)environment;
    self->axis_plan = (AxisPlan){0};
    self->axis = self->position = 0;
    find_decision(self);
    return problem_price(self->problem, &self->axis_plan, &self->price, error);
}

static void observe(const Environment *environment, float *observation) {
    const ListsEnvironment *self = (const ListsEnvironment *)environment;
    const Problem *problem = self->problem;
    const Mesh *mesh = &problem->mesh;
    int32_t axis = self->axis < mesh->axis_count ? self->axis : mesh->axis_count - 1;
    int32_t position = self->position < problem->candidate_count ? self->position : 0;
    static const Candidate none = {.size = 1};
    const Candidate *candidate = problem->candidate_count > 0 ? &problem->candidates[position] : &none;
    double listed_weights = 0, listed_flops = 0;
    bool listed_data = false, elsewhere = false;
    for (int32_t k = 0; k < self->axis_plan.count[axis]; k++) {
        const Candidate *listed = &problem->candidates[self->axis_plan.entries[axis][k]];
        listed_weights += listed->weight_share;
        listed_flops += listed->flops_share;
        listed_data = listed_data || listed->splits_data;
    }
    for (int32_t other = 0; other < axis; other++)
        elsewhere = elsewhere || axis_plan_has(&self->axis_plan, other, position);
    double seconds = self->price.seconds > 0 ? self->price.seconds : 1;
    const double features[LISTS_OBSERVATION_SIZE] = {
        (double)axis,
        log2(mesh->axes[axis].size) / 8,
        log2(mesh->device_count) / 8,
        problem->candidate_count > 0 ? (double)position / problem->candidate_count : 0,
        candidate->splits_data,
        candidate->splits_weights,
        candidate->weight_share,
        candidate->flops_share,
        log2(candidate->size) / 16,
        log2(1 + candidate->group) / 8,
        elsewhere,
        self->axis_plan.count[axis] / 4.0,
        fmin(self->price.seconds / self->reference, 8) / 4,
        self->price.communication_seconds / seconds,
        fmin(self->price.excess, 4),
        listed_weights,
        listed_flops,
        listed_data,
    };
    for (int32_t k = 0; k < LISTS_OBSERVATION_SIZE; k++) observation[k] = (float)features[k];
}

static void mask(const Environment *environment, uint8_t *legal) {
    const ListsEnvironment *self = (const ListsEnvironment *)environment;
    bool is_open = self->axis < self->problem->mesh.axis_count &&
                   self->axis_plan.count[self->axis] < AXIS_PLAN_MAX_ENTRIES;
    legal[0] = 1;
    legal[1] = is_open && !problem_must_stop(self->problem); /* the episode then ends with its current plan */
}

static AmStatus step(Environment *environment, int32_t action, double *reward, bool *done, AmError *error) {
    ListsEnvironment *self = (ListsEnvironment *)environment;
    double before = plan_price_score(&self->price);
    if (action == 1 &&
        axis_plan_insert(&self->axis_plan, self->axis, self->axis_plan.count[self->axis], self->position))
        TRY(problem_price(self->problem, &self->axis_plan, &self->price, error));
    *reward = (before - plan_price_score(&self->price)) / self->reference;
    self->position++;
    *done = !find_decision(self);
    return AM_OK;
}

AmStatus lists_environment_create(Environment **environment, Problem *problem, double reference_seconds,
                                  AmError *error) {
    static const EnvironmentMethods methods = {reset, observe, mask, step};
    ListsEnvironment *self = ARENA_ARRAY(&problem->arena, ListsEnvironment, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (ListsEnvironment){.base = {.methods = &methods,
                                        .observation_size = LISTS_OBSERVATION_SIZE,
                                        .action_count = LISTS_ACTION_COUNT},
                               .problem = problem,
                               .reference = reference_seconds > 0 ? reference_seconds : 1};
    *environment = &self->base;
    return AM_OK;
}
