/* The actions of an axis plan and the features of each, for the assignment policy.
 *
 * A row of features is the facts of the plan (PlanFacts), one number for the kind of the action, the facts of
 * its axis and the facts of its class set. Facts of a plan come from the estimate of estimate.h; those of
 * tensors from the bytes that class sets share.
 */
#include "planners/single_stage/assignment.h"

#include <math.h>
#include <string.h>

#include "cost/collective/collective.h"
#include "ir/analysis/loops.h"

/* The exposed fraction of the shorter one of computing and communication. */
#define LEFT_OVER 0.2

static double clamp(double value, double most) {
    return fmax(-most, fmin(most, value));
}

double assignment_missing(double memory) {
    return memory > 0 ? fmin(1 + 2 * memory, 6) : 0;
}

static double log_seconds(const PlanPrice *price) {
    return log(fmax(price->seconds, 1e-12));
}

/* Returns the logarithm of a price, with a bounded addend for missing memory. */
static double assignment_log(const PlanPrice *price) {
    return log_seconds(price) + assignment_missing(log1p(price->excess));
}

double assignment_gain(const AssignmentProblem *self, const PlanPrice *price) {
    return assignment_log(&self->unsplit) - assignment_log(price);
}

static double log_memory(const AssignmentProblem *self, const PlanPrice *price) {
    if (price->excess > 0) return log1p(price->excess);
    return fmin(log(fmax((double)price->peak_bytes, 1) / self->limit_bytes), 0);
}

AssignmentValue assignment_value(const AssignmentProblem *self, const PlanPrice *price) {
    return (AssignmentValue){.gain = assignment_gain(self, price),
                             .seconds_gain = log_seconds(&self->unsplit) - log_seconds(price),
                             .memory = log_memory(self, price)};
}

static double estimated_gain(const AssignmentProblem *self, const PlanPrice *estimate) {
    return assignment_log(&self->estimate) - assignment_log(estimate);
}

static double hidden_log(const PlanPrice *estimate) {
    PlanPrice hidden = *estimate;
    hidden.seconds -= (1 - LEFT_OVER) * fmin(estimate->compute_seconds, estimate->communication_seconds);
    return assignment_log(&hidden);
}

/* Sums the bytes of every instruction to the pairs of class sets that can split it. */
static AmStatus find_overlaps(AssignmentProblem *self, AmError *error) {
    StageProblem *problem = self->problem;
    const PlanContext *context = problem->context;
    const Classes *classes = context->classes;
    int32_t count = problem->class_set_count;
    self->overlap = ARENA_ARRAY(&problem->arena, double, (int64_t)count *count + 1);
    self->bytes_share = ARENA_ARRAY(&problem->arena, double, count + 1);
    int32_t *class_set_of = ARENA_ARRAY(&problem->arena, int32_t, classes->count + 1);
    if (problem->arena.failed) return am_fail_memory(error, (int64_t)count * count * 8);
    for (int32_t c = 0; c < classes->count; c++) class_set_of[c] = -1;
    for (int32_t k = 0; k < count; k++)
        for (int32_t m = 0; m < problem->class_sets[k].class_count; m++)
            class_set_of[problem->class_sets[k].classes[m]] = k;
    double all = 1;
    for (int32_t d = 0; d < context->split_options->decided_count; d++) {
        int32_t i = context->split_options->decided[d];
        double bytes = context->split_options->array_bytes[i] * ir_layers_of(context->canonical, i);
        int32_t first = classes->first_factor[i], last = classes->first_factor[i + 1];
        all += bytes;
        for (int32_t a = first; a < last; a++) {
            int32_t class_a = classes->class_of_factor[a], k = class_a < 0 ? -1 : class_set_of[class_a];
            for (int32_t b = first; b < last && k >= 0; b++) {
                int32_t class_b = classes->class_of_factor[b];
                if (class_b >= 0 && class_set_of[class_b] >= 0)
                    self->overlap[k * count + class_set_of[class_b]] += bytes;
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

static double weight_of(const AssignmentProblem *self, int32_t k) {
    const ClassSet *class_set = &self->problem->class_sets[k];
    return class_set->flops_share + class_set->weight_share + self->bytes_share[k];
}

static double log2_size(const StageProblem *problem, int32_t axis) {
    return log2(problem->mesh.axes[axis].size);
}

/* Returns whether groups along an axis span servers; `*rate`: bytes per second of a device in them. */
static bool crosses_servers(const StageProblem *problem, int32_t axis, double *rate) {
    const Cluster *cluster = problem->cluster;
    int32_t inner = 1, inside = cluster->servers[0].device_count;
    for (int32_t k = axis; k < problem->mesh.axis_count; k++) inner *= problem->mesh.axes[k].size;
    bool crosses = inner > inside;
    int32_t link = crosses ? cluster->between_servers : cluster->servers[0].link;
    *rate = link >= 0 ? cluster->links[link].bytes_per_second : 1e10;
    if (crosses && link >= 0) *rate /= inside;
    return crosses;
}

/* Returns the bytes that a device holds at its fullest, by the sharding graph. */
static double held_bytes(const ShardingGraphCost *cost) {
    return cost->kept_bytes + cost->saved_bytes + cost->widest_bytes;
}

/* Returns the seconds of traffic with latencies and the efficiency of messages of its mean size; the
 * sharding graph has the rate of endless messages. */
static double traffic_seconds(const AssignmentProblem *self, const ShardingGraphTraffic *traffic,
                              int32_t axis) {
    const double *sums = self->sums[axis];
    if (traffic->messages <= 0) return traffic->seconds;
    double per_byte = sums[ASSIGNMENT_SIZES - 1] / exp2(2 * (ASSIGNMENT_SIZES - 1));
    double place = log2(fmax(traffic->seconds / traffic->messages / per_byte, 1)) / 2;
    int32_t size = (int32_t)fmin(place, ASSIGNMENT_SIZES - 2);
    double part = place - size;
    return traffic->messages * exp((1 - part) * log(sums[size]) + part * log(sums[size + 1]));
}

/* Estimates a plan by the sharding graph, with latencies. The memory is that of the plan that splits
 * nothing, in proportion to held bytes. */
static AmStatus estimate(PlanPrice *price, ShardingGraphCost *cost, const AssignmentProblem *self,
                         const AxisPlan *axis_plan, AmError *error) {
    *price = (PlanPrice){.seconds = 1, .compute_seconds = 1};
    *cost = (ShardingGraphCost){.compute_seconds = 1};
    if (!self->estimator) return AM_OK;
    TRY(estimate_axis_plan_parts(cost, price, self->estimator, axis_plan, error));
    price->communication_seconds = 0;
    for (int32_t purpose = 0; purpose < SHARDING_GRAPH_PURPOSES; purpose++)
        for (int32_t axis = 0; axis < RESHARD_AXES; axis++) {
            cost->traffic[purpose][axis].seconds = traffic_seconds(self, &cost->traffic[purpose][axis], axis);
            price->communication_seconds += cost->traffic[purpose][axis].seconds;
        }
    price->seconds = fmax(price->compute_seconds + price->communication_seconds, 1e-12);
    double share = self->unsplit_held > 0 ? held_bytes(cost) / self->unsplit_held : 1;
    price->peak_bytes = (int64_t)((double)self->unsplit.peak_bytes * share);
    price->excess = fmax((double)price->peak_bytes / self->limit_bytes - 1, 0);
    return AM_OK;
}

AmStatus assignment_problem_open(AssignmentProblem *self, StageProblem *problem, const PlanPrice *unsplit,
                                 AmError *error) {
    const PlanContext *context = problem->context;
    const AxisPlan nothing = {0};
    *self = (AssignmentProblem){
        .problem = problem, .unsplit = *unsplit, .limit_bytes = fmax(problem_memory_limit(problem), 1)};
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        double bytes = context->split_options->array_bytes[parameter->instruction] *
                       ir_layers_of(context->canonical, parameter->instruction);
        self->state_bytes += bytes;
        if (parameter->role == IR_ROLE_WEIGHT) self->weight_bytes += bytes;
    }
    self->launches = context->split_options->decided_count *
                     cluster_device_type(problem->cluster, problem->devices[0])->kernel_launch_seconds;
    /* The facts of the axes that split. */
    int32_t found = 0;
    for (int32_t axis = 0; axis < problem->mesh.axis_count && found < RESHARD_AXES; axis++) {
        CollectivePartition partition = {0};
        double rate;
        if (problem->mesh.axes[axis].size == 1) continue;
        TRY(collective_partition(&partition, &self->problem->arena, problem->cluster, &problem->mesh,
                                 problem->devices, 1u << axis, error));
        for (int32_t k = 0; k < partition.distinct_count; k++)
            for (int32_t size = 0; size < ASSIGNMENT_SIZES; size++)
                self->sums[found][size] = fmax(self->sums[found][size],
                                               collective_seconds(PROGRAM_ALL_REDUCE, exp2(2 * size),
                                                                  &partition.distinct[k], problem->cluster));
        self->crosses[found] = crosses_servers(problem, axis, &rate);
        self->bits[found++] = log2_size(problem, axis);
    }
    TRY(find_overlaps(self, error));
    /* The class sets of the largest weights. */
    self->is_chosen = ARENA_ARRAY(&problem->arena, bool, problem->class_set_count + 1);
    if (!self->is_chosen) return am_fail_memory(error, problem->class_set_count);
    for (int32_t k = 0; k < problem->class_set_count; k++) {
        int32_t heavier = 0;
        for (int32_t j = 0; j < problem->class_set_count; j++)
            heavier += weight_of(self, j) > weight_of(self, k) ||
                       (j < k && weight_of(self, j) == weight_of(self, k));
        self->is_chosen[k] = heavier < ASSIGNMENT_MOST_CHOSEN;
    }
    TRY(estimator_of(&self->estimator, problem, error));
    TRY(estimate(&self->estimate, &self->unsplit_cost, self, &nothing, error));
    /* The memory of an estimate is relative to these bytes, so the plan that splits nothing is estimated
     * again. */
    self->unsplit_held = held_bytes(&self->unsplit_cost);
    return estimate(&self->estimate, &self->unsplit_cost, self, &nothing, error);
}

AmStatus assignment_problem_anchor(AssignmentProblem *self, const AxisPlan *axis_plan, const PlanPrice *price,
                                   AmError *error) {
    const AxisPlan nothing = {0};
    PlanPrice now;
    ShardingGraphCost cost;
    TRY(estimate(&now, &cost, self, axis_plan, error));
    double held = fmax((double)price->peak_bytes, 1) / fmax((double)now.peak_bytes, 1);
    self->unsplit.seconds = self->estimate.seconds * price->seconds / now.seconds;
    self->unsplit.peak_bytes = (int64_t)fmax((double)self->unsplit.peak_bytes * held, 1);
    self->unsplit.excess = fmax((double)self->unsplit.peak_bytes / self->limit_bytes - 1, 0);
    return estimate(&self->estimate, &self->unsplit_cost, self, &nothing, error);
}

static double axis_sum(const StageProblem *problem, const AxisPlan *axis_plan, int32_t axis,
                       bool of_weights) {
    double sum = 0;
    for (int32_t e = 0; e < axis_plan->count[axis]; e++) {
        const ClassSet *class_set = &problem->class_sets[axis_plan->entries[axis][e]];
        sum += of_weights ? class_set->weight_share : class_set->flops_share;
    }
    return fmin(sum, 1.5);
}

static bool axis_has_data(const StageProblem *problem, const AxisPlan *axis_plan, int32_t axis) {
    for (int32_t e = 0; e < axis_plan->count[axis]; e++)
        if (problem->class_sets[axis_plan->entries[axis][e]].splits_data) return true;
    return false;
}

/* Returns log2 of the devices over which some data dimension is split. */
static double batch_bits(const StageProblem *problem, const AxisPlan *axis_plan) {
    double bits = 0;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        if (axis_has_data(problem, axis_plan, axis)) bits += log2_size(problem, axis);
    return bits;
}

/* Returns log2 of a device's memory over the limit, as if every tensor shrank by the shares of the listed
 * class sets. Storage also shrinks optimizer state and gradients, and of all kinds weights. */
static double needed_log2(const AssignmentProblem *self, const AxisPlan *plan) {
    const StageProblem *problem = self->problem;
    double other = fmax((double)self->unsplit.peak_bytes - self->state_bytes, 0), state = self->state_bytes;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double size = problem->mesh.axes[axis].size, bytes = 0, weights = 0;
        for (int32_t e = 0; e < plan->count[axis]; e++) {
            bytes += self->bytes_share[plan->entries[axis][e]];
            weights += problem->class_sets[plan->entries[axis][e]].weight_share;
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

/* Places in a row of features: the facts of the plan, the kind of the action, its axis, its class set. */
enum {
    KIND_AT = ASSIGNMENT_FACTS,
    AXIS_AT = KIND_AT + ASSIGNMENT_KINDS,
    CLASS_SET_AT = AXIS_AT + 9,
    LAST_AT = CLASS_SET_AT + 14
};
_Static_assert(LAST_AT == ASSIGNMENT_FEATURES, "features");

/* Returns log2 of bytes over those of a device. */
static double bytes_log2(const AssignmentProblem *self, double bytes) {
    return clamp(log2(fmax(bytes, 1) / self->limit_bytes), 12);
}

/* The facts of a plan by which its price can be predicted, in the order of the agent's inputs. Logarithms and
 * counts are scaled to about -1 to 1. */
typedef struct PlanFacts {
    double devices_log2, has_estimator, overlaps_communication;
    struct {
        double seconds_per_launch_log10, bytes_log2, state_bytes_log2, gain_of_estimate_log;
    } unsplit; /* the plan that splits nothing */
    struct {
        double gain_log, gain_per_device_log, compute_fraction, excess_log, launches_log;
    } price; /* the price so far */
    struct {
        double kept_log2, saved_log2, widest_log2, held_log2, needed_log2;
    } bytes; /* of a device */
    struct {
        double longer_part_log; /* compute or communication, over the step */
        double updates_log;     /* the same if sums of gradients run beside the compute */
        double log;
    } overlap;
    struct {
        double entries;
        double batch, weights, flops, stored[AXIS_PLAN_STORAGE_KINDS]; /* fractions of log2 of the devices */
    } split;                                                           /* by the decisions so far */
    struct {
        double bits[RESHARD_AXES], crosses_servers[RESHARD_AXES], latency_log[RESHARD_AXES];
    } axes; /* within servers and between them */
    double weight_fraction_log, compute_efficiency_log;
    double traffic[SHARDING_GRAPH_PURPOSES][RESHARD_AXES][2]; /* seconds and latency, over the estimate */
} PlanFacts;
_Static_assert(sizeof(PlanFacts) == sizeof(double) * ASSIGNMENT_FACTS, "the agent's inputs");

static PlanFacts plan_facts(const AssignmentProblem *self, const AxisPlan *plan, const PlanPrice *now,
                            const ShardingGraphCost *cost) {
    const StageProblem *problem = self->problem;
    const ClusterDeviceType *type = cluster_device_type(problem->cluster, problem->devices[0]);
    double devices = problem->mesh.device_count, all = fmax(log2(devices), 1);
    double peak = fmax((double)self->unsplit.peak_bytes, 1), updates = 0;
    double unsplit_seconds = fmax(self->unsplit.seconds, 1e-12), launches = fmax(self->launches, 1e-12);
    for (int32_t axis = 0; axis < RESHARD_AXES; axis++)
        updates += cost->traffic[SHARDING_GRAPH_UPDATES][axis].seconds;
    double longer = fmax(now->compute_seconds, now->communication_seconds);
    double beside = fmax(now->compute_seconds, updates) + now->communication_seconds - updates;
    PlanFacts facts = {
        .devices_log2 = all / 8,
        .has_estimator = self->estimator != NULL,
        .overlaps_communication = type->overlaps_communication,
        .unsplit.seconds_per_launch_log10 = clamp(log10(unsplit_seconds / launches), 5) / 2,
        .unsplit.bytes_log2 = bytes_log2(self, peak) / 4,
        .unsplit.state_bytes_log2 = bytes_log2(self, self->state_bytes) / 4,
        .unsplit.gain_of_estimate_log = clamp(log(unsplit_seconds / self->estimate.seconds), 4),
        .price.gain_log = clamp(estimated_gain(self, now), 8) / 4,
        .price.compute_fraction = now->compute_seconds / now->seconds,
        .price.excess_log = fmin(log1p(now->excess), 4),
        .price.launches_log = fmin(log1p(self->launches / now->seconds), 4),
        .bytes.kept_log2 = bytes_log2(self, cost->kept_bytes) / 4,
        .bytes.saved_log2 = bytes_log2(self, cost->saved_bytes) / 4,
        .bytes.widest_log2 = bytes_log2(self, cost->widest_bytes) / 4,
        .bytes.held_log2 = bytes_log2(self, peak * held_bytes(cost) / fmax(self->unsplit_held, 1)) / 2,
        .bytes.needed_log2 = needed_log2(self, plan) / 2,
        .overlap.longer_part_log = clamp(log(longer / now->seconds), 2),
        .overlap.updates_log = clamp(log(beside) - log(now->seconds), 2),
        .overlap.log = clamp(hidden_log(&self->estimate) - hidden_log(now), 8) / 4,
        .split.batch = batch_bits(problem, plan) / all,
        .weight_fraction_log = clamp(log(self->weight_bytes / fmax(peak, 1)) / 4, 2),
    };
    if (self->estimator) {
        double compute = fmax(now->compute_seconds, 1e-12) * devices;
        facts.price.gain_per_device_log = clamp(estimated_gain(self, now) - log(devices), 8) / 4;
        facts.compute_efficiency_log = clamp(log(compute / self->estimate.compute_seconds), 4);
    }
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double bits = log2_size(problem, axis) / all;
        facts.split.entries += plan->count[axis] / 8.0;
        facts.split.weights += bits * axis_sum(problem, plan, axis, true);
        facts.split.flops += bits * axis_sum(problem, plan, axis, false);
        for (int32_t k = 0; k < plan->storage[axis]; k++) facts.split.stored[k] += bits;
    }
    for (int32_t axis = 0; axis < RESHARD_AXES; axis++) {
        facts.axes.bits[axis] = self->bits[axis] / all;
        facts.axes.crosses_servers[axis] = self->crosses[axis];
        facts.axes.latency_log[axis] = fmin(log1p(self->sums[axis][0] / now->seconds * 100), 4);
        for (int32_t purpose = 0; purpose < SHARDING_GRAPH_PURPOSES; purpose++) {
            const ShardingGraphTraffic *traffic = &cost->traffic[purpose][axis];
            facts.traffic[purpose][axis][0] = traffic->seconds / now->seconds;
            facts.traffic[purpose][axis][1] = traffic->messages * self->sums[axis][0] / now->seconds;
        }
    }
    return facts;
}

static void describe_axis(float *row, const AssignmentProblem *self, const AxisPlan *plan, int32_t axis) {
    const StageProblem *problem = self->problem;
    double rate, all = fmax(log2(problem->mesh.device_count), 1), bits = log2_size(problem, axis);
    bool crosses = crosses_servers(problem, axis, &rate);
    double computing = fmax(self->unsplit.compute_seconds, 1e-12) / problem->mesh.device_count;
    const double values[CLASS_SET_AT - AXIS_AT] = {
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
    for (int32_t k = 0; k < CLASS_SET_AT - AXIS_AT; k++) row[AXIS_AT + k] = (float)values[k];
}

/* Returns the fraction of the class set's bytes that class sets listed on the axis share, at most 1. */
static double overlap_with(const AssignmentProblem *self, const AxisPlan *plan, int32_t axis,
                           int32_t class_set) {
    double sum = 0;
    for (int32_t e = 0; e < plan->count[axis]; e++)
        if (plan->entries[axis][e] != class_set)
            sum += self->overlap[class_set * self->problem->class_set_count + plan->entries[axis][e]];
    return fmin(sum, 1);
}

static void describe_class_set(float *row, const AssignmentProblem *self, const AxisPlan *plan,
                               const AssignmentAction *action) {
    const StageProblem *problem = self->problem;
    static const ClassSet none = {.size = 1};
    bool is_there = action->class_set >= 0;
    const ClassSet *class_set = is_there ? &problem->class_sets[action->class_set] : &none;
    double elsewhere = 0;
    bool is_elsewhere = false;
    for (int32_t axis = 0; is_there && axis < problem->mesh.axis_count; axis++) {
        if (axis == action->axis) continue;
        elsewhere += overlap_with(self, plan, axis, action->class_set);
        is_elsewhere = is_elsewhere || axis_plan_has(plan, axis, action->class_set);
    }
    int32_t size = problem->mesh.axes[action->axis].size;
    const double values[LAST_AT - CLASS_SET_AT] = {
        class_set->splits_data,
        class_set->splits_weights,
        class_set->weight_share,
        class_set->flops_share,
        is_there ? self->bytes_share[action->class_set] : 0,
        log2(class_set->size) / 8,
        log2(1 + class_set->linkage_size) / 4,
        is_there && fmod(class_set->size, size) == 0,
        is_there ? overlap_with(self, plan, action->axis, action->class_set) : 0,
        fmin(elsewhere, 1),
        is_elsewhere,
        action->kind == ASSIGNMENT_DROP ? action->value / 4.0 : 0,
        action->kind == ASSIGNMENT_STORE ? action->value / 3.0 : 0,
        action->kind == ASSIGNMENT_STORE ? (action->value - plan->storage[action->axis]) / 3.0 : 0,
    };
    for (int32_t k = 0; k < LAST_AT - CLASS_SET_AT; k++) row[CLASS_SET_AT + k] = (float)values[k];
}

static void add_action(AssignmentState *state, const AssignmentAction *action) {
    if (state->action_count < ASSIGNMENT_MOST_ACTIONS) state->actions[state->action_count++] = *action;
}

static void list_axis(AssignmentState *state, const AssignmentProblem *self, int32_t axis) {
    const StageProblem *problem = self->problem;
    const AxisPlan *plan = &state->axis_plan;
    int32_t kinds = problem_storage_kinds(problem, axis);
    for (int32_t k = 0; k < problem->class_set_count; k++) {
        if (!self->is_chosen[k] || !problem_can_split(problem, k, axis)) continue;
        AssignmentAction action = {ASSIGNMENT_APPEND, axis, k, 0, *plan};
        if (!axis_plan_insert(&action.next, axis, plan->count[axis], k)) continue;
        add_action(state, &action);
        if (plan->count[axis] == 0 || overlap_with(self, plan, axis, k) == 0) continue;
        action.kind = ASSIGNMENT_PREPEND;
        action.next = *plan;
        axis_plan_insert(&action.next, axis, 0, k);
        add_action(state, &action);
    }
    for (int32_t level = 0; kinds > 0 && level <= kinds; level++) {
        AssignmentAction action = {ASSIGNMENT_STORE, axis, -1, level, *plan};
        if (level == plan->storage[axis]) continue;
        action.next.storage[axis] = (uint8_t)level;
        add_action(state, &action);
    }
    for (int32_t place = 0; place < plan->count[axis]; place++) {
        AssignmentAction action = {ASSIGNMENT_DROP, axis, plan->entries[axis][place], place, *plan};
        axis_plan_remove(&action.next, axis, place);
        add_action(state, &action);
    }
}

AmStatus assignment_estimate(AssignmentValue *estimated, float facts[ASSIGNMENT_FACTS],
                             const AssignmentProblem *self, const AxisPlan *axis_plan, AmError *error) {
    PlanPrice price;
    ShardingGraphCost cost;
    TRY(estimate(&price, &cost, self, axis_plan, error));
    *estimated = (AssignmentValue){.gain = estimated_gain(self, &price),
                                   .seconds_gain = log_seconds(&self->estimate) - log_seconds(&price),
                                   .memory = log_memory(self, &price)};
    PlanFacts plan = plan_facts(self, axis_plan, &price, &cost);
    double values[ASSIGNMENT_FACTS];
    memcpy(values, &plan, sizeof values);
    for (int32_t k = 0; k < ASSIGNMENT_FACTS; k++) facts[k] = (float)values[k];
    return AM_OK;
}

AmStatus assignment_enter(AssignmentState *state, const AssignmentProblem *self, const AxisPlan *axis_plan,
                          AmError *error) {
    state->axis_plan = *axis_plan;
    state->action_count = 0;
    TRY(assignment_estimate(&state->estimate, state->facts, self, axis_plan, error));
    for (int32_t axis = 0; axis < self->problem->mesh.axis_count; axis++) list_axis(state, self, axis);
    for (int32_t a = 0; a < state->action_count; a++) {
        const AssignmentAction *action = &state->actions[a];
        float *row = state->features[a];
        memset(row, 0, sizeof state->features[a]);
        memcpy(row, state->facts, sizeof state->facts);
        row[KIND_AT + action->kind] = 1;
        describe_axis(row, self, axis_plan, action->axis);
        describe_class_set(row, self, axis_plan, action);
    }
    return AM_OK;
}
