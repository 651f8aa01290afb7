/* The decision problem of the assignment policy: its states, actions and features. */
#include "planners/single_stage/assignment.h"

#include <math.h>
#include <string.h>

/* The exposed fraction of the shorter one of computing and communication. */
#define LEFT_OVER 0.2

static double clamp(double value, double most) {
    return fmax(-most, fmin(most, value));
}

/* The logarithm of a price, with a bounded addend for missing memory. */
static double assignment_log(const PlanPrice *price) {
    double missing = price->excess > 0 ? fmin(1 + 2 * log1p(price->excess), 6) : 0;
    return log(fmax(price->seconds, 1e-12)) + missing;
}

double assignment_gain(const Assignments *self, const PlanPrice *price) {
    return assignment_log(&self->unsplit) - assignment_log(price);
}

double assignment_so_far(const Assignments *self, const PlanPrice *estimate) {
    return assignment_log(&self->estimate) - assignment_log(estimate);
}

static double hidden_log(const PlanPrice *estimate) {
    PlanPrice hidden = *estimate;
    hidden.seconds -= (1 - LEFT_OVER) * fmin(estimate->compute_seconds, estimate->communication_seconds);
    return assignment_log(&hidden);
}

/* Sums the bytes of every instruction to the pairs of candidates that can split it. */
static AmStatus find_overlaps(Assignments *self, AmError *error) {
    Problem *problem = self->problem;
    const PlanContext *context = problem->context;
    const Classes *classes = context->classes;
    int32_t count = problem->candidate_count;
    self->overlap = ARENA_ARRAY(&problem->arena, double, (int64_t)count *count + 1);
    self->bytes_share = ARENA_ARRAY(&problem->arena, double, count + 1);
    int32_t *candidate_of = ARENA_ARRAY(&problem->arena, int32_t, classes->count + 1);
    if (problem->arena.failed) return am_fail_memory(error, (int64_t)count * count * 8);
    for (int32_t c = 0; c < classes->count; c++) candidate_of[c] = -1;
    for (int32_t k = 0; k < count; k++)
        for (int32_t m = 0; m < problem->candidates[k].class_count; m++)
            candidate_of[problem->candidates[k].classes[m]] = k;
    double all = 1;
    for (int32_t d = 0; d < context->choices->decided_count; d++) {
        int32_t i = context->choices->decided[d];
        double bytes = context->choices->array_bytes[i];
        int32_t first = classes->first_factor[i], last = classes->first_factor[i + 1];
        all += bytes;
        for (int32_t a = first; a < last; a++) {
            int32_t class_a = classes->class_of_factor[a], k = class_a < 0 ? -1 : candidate_of[class_a];
            for (int32_t b = first; b < last && k >= 0; b++) {
                int32_t class_b = classes->class_of_factor[b];
                if (class_b >= 0 && candidate_of[class_b] >= 0)
                    self->overlap[k * count + candidate_of[class_b]] += bytes;
            }
        }
    }
    for (int32_t k = 0; k < count; k++) {
        double own = fmax(self->overlap[k * count + k], 1);
        self->bytes_share[k] = fmin(own / all, 1);
        for (int32_t j = 0; j < count; j++)
            self->overlap[k * count + j] = fmin(self->overlap[k * count + j] / own, 1);
    }
    return AM_OK;
}

static double weight_of(const Assignments *self, int32_t k) {
    const Candidate *candidate = &self->problem->candidates[k];
    return candidate->flops_share + candidate->weight_share + self->bytes_share[k];
}

/* The candidates of the largest weights. */
static AmStatus choose_candidates(Assignments *self, AmError *error) {
    Problem *problem = self->problem;
    self->is_chosen = ARENA_ARRAY(&problem->arena, bool, problem->candidate_count + 1);
    if (!self->is_chosen) return am_fail_memory(error, problem->candidate_count);
    for (int32_t k = 0; k < problem->candidate_count; k++) {
        int32_t heavier = 0;
        for (int32_t j = 0; j < problem->candidate_count; j++)
            heavier += weight_of(self, j) > weight_of(self, k) ||
                       (j < k && weight_of(self, j) == weight_of(self, k));
        self->is_chosen[k] = heavier < ASSIGNMENT_MOST_CHOSEN;
    }
    return AM_OK;
}

static AmStatus estimate(PlanPrice *price, const Assignments *self, const AxisPlan *axis_plan,
                         AmError *error) {
    *price = (PlanPrice){.seconds = 1, .compute_seconds = 1};
    if (!self->estimator) return AM_OK;
    TRY(estimate_axis_plan(price, self->estimator, axis_plan, error));
    price->seconds = fmax(price->seconds, 1e-12);
    return AM_OK;
}

AmStatus assignments_open(Assignments *self, Problem *problem, const PlanPrice *unsplit, bool has_estimates,
                          AmError *error) {
    const PlanContext *context = problem->context;
    const AxisPlan nothing = {0};
    int64_t least = cluster_least_memory(problem->cluster, problem->devices, problem->mesh.device_count);
    *self = (Assignments){.problem = problem,
                          .unsplit = *unsplit,
                          .limit_bytes = fmax((double)least * problem->memory_fraction, 1)};
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        double bytes = context->choices->array_bytes[parameter->instruction];
        self->state_bytes += bytes;
        if (parameter->role == IR_ROLE_WEIGHT) self->weight_bytes += bytes;
    }
    self->launches = context->choices->decided_count *
                     cluster_device_type(problem->cluster, problem->devices[0])->kernel_launch_seconds;
    TRY(find_overlaps(self, error));
    TRY(choose_candidates(self, error));
    if (has_estimates) TRY(estimator_open(&self->estimator, problem, error));
    return estimate(&self->estimate, self, &nothing, error);
}

void assignments_close(Assignments *self) {
    estimator_close(self->estimator);
    self->estimator = NULL;
}

static double log2_size(const Problem *problem, int32_t axis) {
    return log2(problem->mesh.axes[axis].size);
}

/* Returns whether groups along an axis span servers; `*rate`: bytes per second of a device in them. */
static bool crosses_servers(const Problem *problem, int32_t axis, double *rate) {
    const Cluster *cluster = problem->cluster;
    int32_t inner = 1, inside = cluster->servers[0].device_count;
    for (int32_t k = axis; k < problem->mesh.axis_count; k++) inner *= problem->mesh.axes[k].size;
    bool crosses = inner > inside;
    int32_t link = crosses ? cluster->between_servers : cluster->servers[0].link;
    *rate = link >= 0 ? cluster->links[link].bytes_per_second : 1e10;
    if (crosses && link >= 0) *rate /= inside;
    return crosses;
}

static double axis_sum(const Problem *problem, const AxisPlan *axis_plan, int32_t axis, bool of_weights) {
    double sum = 0;
    for (int32_t e = 0; e < axis_plan->count[axis]; e++) {
        const Candidate *candidate = &problem->candidates[axis_plan->entries[axis][e]];
        sum += of_weights ? candidate->weight_share : candidate->flops_share;
    }
    return fmin(sum, 1.5);
}

static bool axis_has_data(const Problem *problem, const AxisPlan *axis_plan, int32_t axis) {
    for (int32_t e = 0; e < axis_plan->count[axis]; e++)
        if (problem->candidates[axis_plan->entries[axis][e]].splits_data) return true;
    return false;
}

/* log2 of the devices over which some data dimension is split. */
static double batch_bits(const Problem *problem, const AxisPlan *axis_plan) {
    double bits = 0;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        if (axis_has_data(problem, axis_plan, axis)) bits += log2_size(problem, axis);
    return bits;
}

/* log2 of a device's memory over the limit, as if every tensor shrank by the shares of the listed candidates:
 * optimizer state and gradients besides by storage, weights by storage of all kinds. */
static double needed_log2(const Assignments *self, const AxisPlan *plan) {
    const Problem *problem = self->problem;
    double other = fmax((double)self->unsplit.peak_bytes - self->state_bytes, 0), state = self->state_bytes;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double size = problem->mesh.axes[axis].size, bytes = 0, weights = 0;
        for (int32_t e = 0; e < plan->count[axis]; e++) {
            bytes += self->bytes_share[plan->entries[axis][e]];
            weights += problem->candidates[plan->entries[axis][e]].weight_share;
        }
        double kept = self->weight_bytes / fmax(self->state_bytes, 1);
        double stored = plan->storage[axis] == AXIS_PLAN_STORAGE_KINDS ? 1
                        : plan->storage[axis] > 0                      ? 1 - kept
                                                                       : 0;
        weights = fmin(weights, 1);
        weights += (1 - weights) * stored;
        other *= 1 - fmin(bytes, 1) * (1 - 1 / size);
        state *= 1 - weights * (1 - 1 / size);
    }
    return clamp(log2((state + other + 1) / self->limit_bytes), 8);
}

enum { STATE_FEATURES = 17, KIND_AT = 17, AXIS_AT = 22, CANDIDATE_AT = 31, MARGIN_AT = 45, LAST_AT = 60 };
_Static_assert(LAST_AT == ASSIGNMENT_FEATURES, "features");

static void describe_state(float *row, const Assignments *self, const AxisPlan *plan, const PlanPrice *now) {
    const Problem *problem = self->problem;
    double all = fmax(log2(problem->mesh.device_count), 1), entries = 0, weights = 0, flops = 0;
    double stored[AXIS_PLAN_STORAGE_KINDS] = {0};
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double bits = log2_size(problem, axis) / all;
        entries += plan->count[axis];
        weights += bits * axis_sum(problem, plan, axis, true);
        flops += bits * axis_sum(problem, plan, axis, false);
        for (int32_t k = 0; k < plan->storage[axis]; k++) stored[k] += bits;
    }
    const double values[STATE_FEATURES] = {
        all / 8,
        clamp(assignment_so_far(self, now), 8) / 4,
        now->communication_seconds / now->seconds,
        fmin(log1p(now->excess), 4),
        clamp(log2(fmax((double)self->unsplit.peak_bytes, 1) / self->limit_bytes), 12) / 4,
        clamp(log2(fmax(self->state_bytes, 1) / self->limit_bytes), 12) / 4,
        clamp(log10(fmax(self->unsplit.seconds, 1e-12) / fmax(self->launches, 1e-12)), 5) / 2,
        entries / 8,
        batch_bits(problem, plan) / all,
        weights,
        flops,
        stored[0],
        stored[1],
        stored[2],
        self->estimator != NULL,
        clamp(hidden_log(&self->estimate) - hidden_log(now), 8) / 4,
        needed_log2(self, plan) / 2,
    };
    for (int32_t k = 0; k < STATE_FEATURES; k++) row[k] = (float)values[k];
}

static void describe_axis(float *row, const Assignments *self, const AxisPlan *plan, int32_t axis) {
    const Problem *problem = self->problem;
    double rate, all = fmax(log2(problem->mesh.device_count), 1), bits = log2_size(problem, axis);
    bool crosses = crosses_servers(problem, axis, &rate);
    double computing = fmax(self->unsplit.compute_seconds, 1e-12) / problem->mesh.device_count;
    const double values[CANDIDATE_AT - AXIS_AT] = {
        bits / 4,
        crosses,
        clamp(log10(fmax(self->weight_bytes, 1) / rate / computing), 5) / 2,
        bits / all,
        plan->count[axis] / 4.0,
        axis_sum(problem, plan, axis, true),
        axis_sum(problem, plan, axis, false),
        axis_has_data(problem, plan, axis),
        plan->storage[axis] / 3.0,
    };
    for (int32_t k = 0; k < CANDIDATE_AT - AXIS_AT; k++) row[AXIS_AT + k] = (float)values[k];
}

/* Fraction of the candidate's bytes that candidates listed on the axis share, at most 1. */
static double overlap_with(const Assignments *self, const AxisPlan *plan, int32_t axis, int32_t candidate) {
    double sum = 0;
    for (int32_t e = 0; e < plan->count[axis]; e++)
        if (plan->entries[axis][e] != candidate)
            sum += self->overlap[candidate * self->problem->candidate_count + plan->entries[axis][e]];
    return fmin(sum, 1);
}

static void describe_candidate(float *row, const Assignments *self, const AxisPlan *plan,
                               const AssignmentAction *action) {
    const Problem *problem = self->problem;
    static const Candidate none = {.size = 1};
    bool is_there = action->candidate >= 0;
    const Candidate *candidate = is_there ? &problem->candidates[action->candidate] : &none;
    double elsewhere = 0;
    bool is_elsewhere = false;
    for (int32_t axis = 0; is_there && axis < problem->mesh.axis_count; axis++) {
        if (axis == action->axis) continue;
        elsewhere += overlap_with(self, plan, axis, action->candidate);
        is_elsewhere = is_elsewhere || axis_plan_has(plan, axis, action->candidate);
    }
    int32_t size = problem->mesh.axes[action->axis].size;
    const double values[MARGIN_AT - CANDIDATE_AT] = {
        candidate->splits_data,
        candidate->splits_weights,
        candidate->weight_share,
        candidate->flops_share,
        is_there ? self->bytes_share[action->candidate] : 0,
        log2(candidate->size) / 8,
        log2(1 + candidate->group) / 4,
        is_there && fmod(candidate->size, size) == 0,
        is_there ? overlap_with(self, plan, action->axis, action->candidate) : 0,
        fmin(elsewhere, 1),
        is_elsewhere,
        action->kind == ASSIGNMENT_DROP ? action->value / 4.0 : 0,
        action->kind == ASSIGNMENT_STORE ? action->value / 3.0 : 0,
        action->kind == ASSIGNMENT_STORE ? (action->value - plan->storage[action->axis]) / 3.0 : 0,
    };
    for (int32_t k = 0; k < MARGIN_AT - CANDIDATE_AT; k++) row[CANDIDATE_AT + k] = (float)values[k];
}

/* `rank`: actions that are cheaper by estimates; `best`: the estimate of the cheapest. */
static void describe_margin(float *row, const Assignments *self, const AssignmentState *state,
                            const AssignmentAction *action, int32_t rank, double best) {
    const Problem *problem = self->problem;
    const PlanPrice *now = &state->estimate, *next = &action->estimate;
    double gain = assignment_log(now) - assignment_log(next), devices = problem->mesh.device_count;
    const double values[LAST_AT - MARGIN_AT] = {
        clamp(gain, 3),
        clamp(log(fmax(now->compute_seconds, 1e-12) / fmax(next->compute_seconds, 1e-12)), 3),
        clamp((next->communication_seconds - now->communication_seconds) / now->seconds, 3),
        next->communication_seconds / next->seconds,
        fmin(log1p(next->excess), 4),
        clamp(log1p(next->excess) - log1p(now->excess), 4),
        clamp(hidden_log(now) - hidden_log(next), 3),
        (double)rank / state->action_count,
        clamp(best - assignment_log(next), 3),
        clamp(assignment_so_far(self, next), 8) / 4,
        self->estimator ? clamp(assignment_so_far(self, next) - log(devices), 8) / 4 : 0,
        fabs(gain) < 1e-9,
        needed_log2(self, &action->next) / 2,
        (needed_log2(self, &action->next) - needed_log2(self, &state->axis_plan)) / 2,
        clamp(batch_bits(problem, &action->next) - batch_bits(problem, &state->axis_plan), 8) / 4,
    };
    for (int32_t k = 0; k < LAST_AT - MARGIN_AT; k++) row[MARGIN_AT + k] = (float)values[k];
}

static AmStatus add_action(AssignmentState *state, const Assignments *self, const AssignmentAction *action,
                           AmError *error) {
    if (state->action_count == ASSIGNMENT_MOST_ACTIONS - 1) return AM_OK; /* one is left for the stop */
    AssignmentAction *added = &state->actions[state->action_count++];
    *added = *action;
    return estimate(&added->estimate, self, &action->next, error);
}

static AmStatus list_axis(AssignmentState *state, const Assignments *self, int32_t axis, AmError *error) {
    const Problem *problem = self->problem;
    const AxisPlan *plan = &state->axis_plan;
    const PlanPrice blank = {.seconds = 0};
    int32_t kinds = problem_storage_kinds(problem, axis);
    for (int32_t k = 0; k < problem->candidate_count; k++) {
        if (!self->is_chosen[k] || !problem_usable(problem, k, axis)) continue;
        AssignmentAction action = {ASSIGNMENT_APPEND, axis, k, 0, *plan, blank};
        if (!axis_plan_insert(&action.next, axis, plan->count[axis], k)) continue;
        TRY(add_action(state, self, &action, error));
        if (plan->count[axis] == 0 || overlap_with(self, plan, axis, k) == 0) continue;
        action.kind = ASSIGNMENT_PREPEND;
        action.next = *plan;
        axis_plan_insert(&action.next, axis, 0, k);
        TRY(add_action(state, self, &action, error));
    }
    for (int32_t level = 0; kinds > 0 && level <= kinds; level++) {
        AssignmentAction action = {ASSIGNMENT_STORE, axis, -1, level, *plan, blank};
        if (level == plan->storage[axis]) continue;
        action.next.storage[axis] = (uint8_t)level;
        TRY(add_action(state, self, &action, error));
    }
    for (int32_t place = 0; place < plan->count[axis]; place++) {
        AssignmentAction action = {ASSIGNMENT_DROP, axis, plan->entries[axis][place], place, *plan, blank};
        axis_plan_remove(&action.next, axis, place);
        TRY(add_action(state, self, &action, error));
    }
    return AM_OK;
}

AmStatus assignment_enter(AssignmentState *state, const Assignments *self, const AxisPlan *axis_plan,
                          AmError *error) {
    const Problem *problem = self->problem;
    double logs[ASSIGNMENT_MOST_ACTIONS], best = INFINITY;
    state->axis_plan = *axis_plan;
    state->action_count = 0;
    TRY(estimate(&state->estimate, self, axis_plan, error));
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) TRY(list_axis(state, self, axis, error));
    state->actions[state->action_count++] =
        (AssignmentAction){ASSIGNMENT_STOP, 0, -1, 0, *axis_plan, state->estimate};
    for (int32_t a = 0; a < state->action_count; a++) {
        logs[a] = assignment_log(&state->actions[a].estimate);
        best = fmin(best, logs[a]);
    }
    float common[STATE_FEATURES];
    describe_state(common, self, axis_plan, &state->estimate);
    for (int32_t a = 0; a < state->action_count; a++) {
        const AssignmentAction *action = &state->actions[a];
        float *row = state->features[a];
        int32_t rank = 0;
        for (int32_t b = 0; b < state->action_count; b++) rank += logs[b] < logs[a];
        memset(row, 0, sizeof state->features[a]);
        memcpy(row, common, sizeof common);
        row[KIND_AT + action->kind] = 1;
        if (action->kind == ASSIGNMENT_STOP) continue;
        describe_axis(row, self, axis_plan, action->axis);
        describe_candidate(row, self, axis_plan, action);
        describe_margin(row, self, state, action, rank, best);
    }
    return AM_OK;
}

void assignment_stop_row(float row[ASSIGNMENT_FEATURES], const Assignments *self, const AxisPlan *axis_plan,
                         const PlanPrice *estimated) {
    memset(row, 0, sizeof(float) * ASSIGNMENT_FEATURES);
    describe_state(row, self, axis_plan, estimated);
    row[KIND_AT + ASSIGNMENT_STOP] = 1;
}
