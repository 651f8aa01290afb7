/* The error of a simulated timeline beside a measured one, for each device, stage and pass.
 *
 * divide() sorts the events by device. For each measured step of a device, take_step() selects the operators
 * that begin in it, and compare_step() pairs them with the predicted ones by operator, micro-batch and
 * order. Errors are summed by device and by pass; sum_up() forms the means of stages. A trace that shares
 * fewer than half of its operators with the plan is refused.
 */
#include "cost/simulate/trace_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_STEPS = 1024 }; /* of a device, its last ones */

/* Events of one device: its steps, then its operators by their beginning. */
typedef struct DeviceEvents {
    TraceEvent *steps, *operators;
    int32_t step_count, operator_count;
} DeviceEvents;

/* The operators of one step of a device, by number, micro-batch and time. */
typedef struct StepEvents {
    TraceEvent *list;
    int32_t count;
    double begin, seconds;
} StepEvents;

/* Sums of one step of a device. */
typedef struct StepSums {
    double error, clock_error, predicted, measured;
    int64_t operators, unmatched;
    int64_t listed[2]; /* operators of the predicted and of the measured timeline */
    int64_t shared[2]; /* those that are in the other one too */
} StepSums;

/* The sum of a pass's errors in one step. */
typedef struct PassSum {
    double error;
    int64_t count;
} PassSum;

typedef struct Comparison {
    Arena *arena;
    DeviceEvents *predicted, *measured; /* [device_count] */
    int32_t device_count, most_steps;
    int32_t micro_batches; /* largest number plus 1 */
    PassSum *passes;       /* [pass_count * most_steps] of one device */
    int32_t pass_count;    /* of a device: micro-batches and those outside, in two phases */
    TraceError *result;
    const char *source;
    AmError *error;
} Comparison;

static int order(double a, double b) {
    return (a > b) - (a < b);
}

static int by_device(const void *left, const void *right) {
    const TraceEvent *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if ((a->name_hash == 0) != (b->name_hash == 0)) return a->name_hash == 0 ? -1 : 1;
    return order(a->start, b->start);
}

static int by_operator(const void *left, const void *right) {
    const TraceEvent *a = left, *b = right;
    if (a->name_hash != b->name_hash) return a->name_hash < b->name_hash ? -1 : 1;
    if (a->micro_batch != b->micro_batch) return a->micro_batch < b->micro_batch ? -1 : 1;
    return order(a->start, b->start);
}

static int by_value(const void *left, const void *right) {
    const double *a = left, *b = right;
    return order(*a, *b);
}

static bool is_same_operator(const TraceEvent *a, const TraceEvent *b) {
    return a->name_hash == b->name_hash && a->micro_batch == b->micro_batch;
}

/* Sorts the events and divides them by device; devices from `count` on have none. */
static AmStatus divide(DeviceEvents **result, Arena *arena, const TraceEvents *events, int32_t count,
                       AmError *error) {
    DeviceEvents *devices = ARENA_ARRAY(arena, DeviceEvents, count + 1);
    if (!devices) return am_fail_memory(error, (int64_t)sizeof *devices * count);
    if (events->count > 0) qsort(events->list, (size_t)events->count, sizeof *events->list, by_device);
    for (int32_t k = 0; k < events->count && events->list[k].device < count; k++) {
        DeviceEvents *device = &devices[events->list[k].device];
        bool is_step = events->list[k].name_hash == 0;
        TraceEvent **first = is_step ? &device->steps : &device->operators;
        if (!*first) *first = &events->list[k];
        if (is_step) device->step_count++;
        else device->operator_count++;
    }
    for (int32_t d = 0; d < count; d++) {
        if (devices[d].step_count <= MOST_STEPS) continue;
        devices[d].steps += devices[d].step_count - MOST_STEPS;
        devices[d].step_count = MOST_STEPS;
    }
    *result = devices;
    return AM_OK;
}

/* Copies the operators that begin in a step, from `*next` on, which moves past them: an operator is in one
 * step. */
static AmStatus take_step(StepEvents *step, Arena *arena, const DeviceEvents *device, const TraceEvent *of,
                          int32_t *next, AmError *error) {
    int32_t first = *next, end;
    while (first < device->operator_count && device->operators[first].start < of->start) first++;
    for (end = first; end < device->operator_count && device->operators[end].start < of->end; end++) {}
    *next = end;
    *step = (StepEvents){.list = ARENA_ARRAY(arena, TraceEvent, end - first + 1),
                         .count = end - first,
                         .begin = of->start,
                         .seconds = of->end - of->start};
    if (!step->list) return am_fail_memory(error, (int64_t)sizeof(TraceEvent) * step->count);
    for (int32_t k = 0; k < step->count; k++) step->list[k] = device->operators[first + k];
    qsort(step->list, (size_t)step->count, sizeof *step->list, by_operator);
    return AM_OK;
}

/* A step in both timelines. */
typedef struct StepPair {
    int32_t step;
    const StepEvents *predicted, *measured;
    StepSums *sums;
} StepPair;

/* Adds the error of an operator that is from `a` to `a_end` in one timeline and from `b` to `b_end` in the
 * other. */
static void add_pair(Comparison *self, const StepPair *pair, const TraceEvent *a, double a_end,
                     const TraceEvent *b, double b_end) {
    const StepEvents *predicted = pair->predicted, *measured = pair->measured;
    StepSums *sums = pair->sums;
    double begins[2] = {a->start - predicted->begin, b->start - measured->begin};
    double ends[2] = {a_end - predicted->begin, b_end - measured->begin};
    double error = (fabs(begins[0] / predicted->seconds - begins[1] / measured->seconds) +
                    fabs(ends[0] / predicted->seconds - ends[1] / measured->seconds)) /
                   2;
    sums->error += error;
    sums->clock_error += (fabs(begins[0] - begins[1]) + fabs(ends[0] - ends[1])) / 2 / measured->seconds;
    sums->operators++;
    if (a->phase > IR_PHASE_BACKWARD) return;
    int64_t number =
        (a->micro_batch + 1) * 2 + (a->phase != IR_PHASE_FORWARD); /* recomputed ones are backward */
    PassSum *pass = &self->passes[number * self->most_steps + pair->step];
    pass->error += error;
    pass->count++;
}

static double seconds_of(const TraceEvent *events, int32_t count) {
    double seconds = 0;
    for (int32_t k = 0; k < count; k++) seconds += events[k].end - events[k].start;
    return seconds;
}

/* Returns the number of events from k on that are of one operator. */
static int32_t count_alike(const StepEvents *step, int32_t k) {
    int32_t end = k;
    while (end < step->count && is_same_operator(&step->list[k], &step->list[end])) end++;
    return end - k;
}

static StepSums compare_step(Comparison *self, int32_t step, const StepEvents *predicted,
                             const StepEvents *measured) {
    StepSums sums = {.listed = {predicted->count, measured->count}};
    const StepPair pair = {.step = step, .predicted = predicted, .measured = measured, .sums = &sums};
    for (int32_t a = 0, b = 0; a < predicted->count || b < measured->count;) {
        int32_t a_count = count_alike(predicted, a), b_count = count_alike(measured, b);
        bool both = a_count > 0 && b_count > 0 && is_same_operator(&predicted->list[a], &measured->list[b]);
        bool a_first =
            b_count == 0 || (a_count > 0 && by_operator(&predicted->list[a], &measured->list[b]) < 0);
        sums.shared[0] += both ? a_count : 0;
        sums.shared[1] += both ? b_count : 0;
        if (both) {
            /* one by one where both show the operator as often, else as a whole */
            const TraceEvent *first = &predicted->list[a], *second = &measured->list[b];
            sums.predicted += seconds_of(first, a_count);
            sums.measured += seconds_of(second, b_count);
            if (a_count != b_count)
                add_pair(self, &pair, first, first[a_count - 1].end, second, second[b_count - 1].end);
            for (int32_t k = 0; k < a_count && a_count == b_count; k++)
                add_pair(self, &pair, &first[k], first[k].end, &second[k], second[k].end);
        } else {
            sums.unmatched += a_first ? a_count : b_count;
        }
        if (both || a_first) a += a_count;
        if (both || !a_first) b += b_count;
    }
    return sums;
}

/* Returns the median over the steps of a pass's mean error; NAN for a pass that the device does not have. */
static double median_of(Comparison *self, int32_t pass, double *values) {
    int32_t count = 0;
    for (int32_t s = 0; s < self->most_steps; s++) {
        const PassSum *sum = &self->passes[(int64_t)pass * self->most_steps + s];
        if (sum->count > 0) values[count++] = sum->error / (double)sum->count;
    }
    if (count == 0) return NAN;
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* Adds a device's share of its stage's passes; `devices` of the stage. */
static void add_passes(Comparison *self, const DeviceError *device, int32_t devices, double *values) {
    for (int32_t p = 0; p < self->pass_count; p++) {
        double median = median_of(self, p, values);
        if (isnan(median)) continue;
        TraceError *result = self->result;
        PassError *pass = &result->passes[device->stage * self->pass_count + p];
        pass->stage = device->stage;
        pass->micro_batch = p / 2 - 1;
        pass->phase = p % 2 ? IR_PHASE_BACKWARD : IR_PHASE_FORWARD;
        pass->error = fmax(pass->error, 0) + median / devices;
    }
}

static AmStatus fail_other_plan(const Comparison *self, int32_t device, const char *problem) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source,
                   "rank %d %s (expected a trace of automap run with this plan, of %d ranks)", device,
                   problem, self->device_count);
}

/* Fails if fewer than half of the operators of either timeline are in the other. */
static AmStatus check_shared(const Comparison *self, int32_t device, const StepSums *all, int32_t steps) {
    for (int32_t k = 0; k < 2; k++) {
        char problem[96];
        if (2 * all->shared[k] >= all->listed[k]) continue;
        snprintf(problem, sizeof problem,
                 k == 0 ? "has %lld of the plan's %lld operators"
                        : "has %lld of the plan among %lld operators",
                 (long long)(all->shared[k] / steps), (long long)(all->listed[k] / steps));
        return fail_other_plan(self, device, problem);
    }
    return AM_OK;
}

/* Sets the error of one device, from all of its steps. */
static AmStatus compare_device(Comparison *self, int32_t d) {
    Arena scratch = {0};
    const DeviceEvents *predicted = &self->predicted[d], *measured = &self->measured[d];
    DeviceError *result = &self->result->devices[d];
    StepEvents own = {0}, other;
    StepSums all = {0};
    int32_t own_next = 0, next = 0;
    AmStatus status = take_step(&own, &scratch, predicted, &predicted->steps[0], &own_next, self->error);
    for (int32_t k = 0; k < self->pass_count * self->most_steps; k++) self->passes[k] = (PassSum){0};
    for (int32_t s = 0; s < measured->step_count && status == AM_OK; s++) {
        ArenaMark mark = arena_mark(&scratch);
        status = take_step(&other, &scratch, measured, &measured->steps[s], &next, self->error);
        if (status != AM_OK) break;
        StepSums sums = compare_step(self, s, &own, &other);
        all.error += sums.error;
        all.clock_error += sums.clock_error;
        all.operators += sums.operators;
        all.unmatched += sums.unmatched;
        for (int32_t k = 0; k < 2; k++) {
            all.shared[k] += sums.shared[k];
            all.listed[k] += sums.listed[k];
        }
        all.predicted += sums.predicted;
        all.measured += sums.measured;
        arena_release(&scratch, mark);
    }
    arena_free(&scratch);
    if (status != AM_OK) return status;
    if (own.count > 0 && all.operators == 0) return fail_other_plan(self, d, "has no operator of the plan");
    TRY(check_shared(self, d, &all, measured->step_count));
    double pairs = fmax((double)all.operators, 1), steps = measured->step_count;
    *result = (DeviceError){.stage = predicted->steps[0].stage,
                            .operators = all.operators / measured->step_count,
                            .unmatched = all.unmatched / measured->step_count,
                            .error = all.error / pairs,
                            .clock_error = all.clock_error / pairs,
                            .compute_predicted = all.predicted / steps,
                            .compute_measured = all.measured / steps};
    return AM_OK;
}

/* Checks the devices and steps of the measured timeline; sets the step times. */
static AmStatus check_devices(Comparison *self, const TraceEvents *measured) {
    TraceError *result = self->result;
    int64_t count = 0;
    for (int32_t d = 0; d < self->device_count; d++) {
        const DeviceEvents *device = &self->measured[d];
        const TraceEvent *step = &self->predicted[d].steps[0];
        result->predicted_seconds = fmax(result->predicted_seconds, step->end - step->start);
        if (device->step_count == 0) return fail_other_plan(self, d, "has no step");
        if (device->steps[0].stage != step->stage) return fail_other_plan(self, d, "is of another stage");
        for (int32_t s = 0; s < device->step_count; s++, count++) {
            if (device->steps[s].end <= device->steps[s].start)
                return fail_other_plan(self, d, "has a step without a length");
            result->measured_seconds += device->steps[s].end - device->steps[s].start;
        }
        if (device->step_count > self->most_steps) self->most_steps = device->step_count;
    }
    const TraceEvent *last = measured->count > 0 ? &measured->list[measured->count - 1] : NULL;
    if (last && last->device >= self->device_count)
        return fail_other_plan(self, last->device, "is not of the plan");
    result->measured_seconds /= (double)count;
    result->steps = self->most_steps;
    return AM_OK;
}

AmStatus trace_error_find(TraceError **found, Arena *arena, const TraceEvents *predicted,
                          const TraceEvents *measured, const char *source, AmError *error) {
    Comparison self = {.arena = arena, .source = source, .error = error};
    for (int32_t k = 0; k < predicted->count; k++) {
        const TraceEvent *event = &predicted->list[k];
        if (event->device >= self.device_count) self.device_count = event->device + 1;
        if (event->micro_batch >= self.micro_batches) self.micro_batches = event->micro_batch + 1;
    }
    TRY(divide(&self.predicted, arena, predicted, self.device_count, error));
    TRY(divide(&self.measured, arena, measured, self.device_count, error));
    TraceError *result = self.result = *found = ARENA_ARRAY(arena, TraceError, 1);
    if (!result) return am_fail_memory(error, (int64_t)sizeof *result);
    *result = (TraceError){.source = source,
                           .device_count = self.device_count,
                           .devices = ARENA_ARRAY(arena, DeviceError, self.device_count)};
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(DeviceError) * self.device_count);
    TRY(check_devices(&self, measured));
    double *values = ARENA_ARRAY(arena, double, self.most_steps);
    self.pass_count = (self.micro_batches + 1) * 2;
    self.passes = ARENA_ARRAY(arena, PassSum, (int64_t)self.pass_count * self.most_steps);
    for (int32_t d = 0; d < self.device_count; d++) {
        int32_t stage = self.predicted[d].steps[0].stage;
        if (stage >= result->stage_count) result->stage_count = stage + 1;
    }
    result->stages = ARENA_ARRAY(arena, StageError, result->stage_count);
    result->passes = ARENA_ARRAY(arena, PassError, (int64_t)result->stage_count * self.pass_count);
    if (arena->failed) return am_fail_memory(error, 0);
    for (int32_t d = 0; d < self.device_count; d++)
        result->stages[self.predicted[d].steps[0].stage].devices++;
    for (int32_t p = 0; p < result->stage_count * self.pass_count; p++) result->passes[p].error = -1;
    for (int32_t d = 0; d < self.device_count; d++) {
        TRY(compare_device(&self, d));
        add_passes(&self, &result->devices[d], result->stages[result->devices[d].stage].devices, values);
    }
    /* Keeps the passes that there are, and sums up the stages. */
    for (int32_t d = 0; d < result->device_count; d++) {
        const DeviceError *device = &result->devices[d];
        StageError *stage = &result->stages[device->stage];
        stage->error += device->error / stage->devices;
        stage->clock_error += device->clock_error / stage->devices;
        result->error += device->error / result->device_count;
        result->clock_error += device->clock_error / result->device_count;
    }
    int32_t kept = 0;
    for (int32_t p = 0; p < result->stage_count * self.pass_count; p++) {
        PassError pass = result->passes[p];
        if (pass.error < 0) continue;
        StageError *stage = &result->stages[pass.stage];
        stage->largest_pass = fmax(stage->largest_pass, pass.error);
        result->passes[kept++] = pass;
    }
    result->pass_count = kept;
    return AM_OK;
}
