/* The loop of `search --measure N`: it chooses a candidate, runs it in a process of its own, and corrects
 * the predictions of the others. */
#include "api/measure.h"

#include <math.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/stop.h"
#include "cost/cluster/host_cluster.h"
#include "executor/run/separate_run.h"
#include "propagation/assign/storage.h"

/* A run warms up for a step and then takes steps until it has this many, or the least within this time. */
enum { LEAST_STEPS = 3, MOST_STEPS = 100 };
static const double enough_seconds = 1;
/* A run is ended after this time, and as many predicted steps. */
static const double patience_seconds = 20;
enum { PATIENCE_STEPS = 50 };

AmStatus measure_check_cluster(const Cluster *cluster, AmError *error) {
    int32_t ranks = 0;
    if (host_cluster_ranks(&ranks, cluster->name, NULL) == AM_OK && ranks > 0) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "",
                   "cluster %s: --measure runs plans on this machine (expected host:N)", cluster->name);
}

/* ---- runs ---- */

/* Runs a plan; a failure of the run itself is its result. */
static AmStatus run_plan(MeasuredRun *row, const MeasureCall *call, AmError *error) {
    double *seconds = ARENA_ARRAY(call->arena, double, MOST_STEPS);
    double patience = patience_seconds + PATIENCE_STEPS * row->candidate.seconds;
    AmError own = {0};
    if (!seconds) return am_fail_memory(error, MOST_STEPS);
    if (call->deadline > 0) patience = fmin(patience, fmax(call->deadline - clock_seconds(), 1e-3));
    const SeparateRun settings = {.least_steps = LEAST_STEPS,
                                  .most_steps = MOST_STEPS,
                                  .enough_seconds = enough_seconds,
                                  .patience_seconds = patience,
                                  .seed = call->seed,
                                  .interrupted = call->interrupted};
    AmStatus status = separate_run(seconds, &row->steps, &settings, call->module, row->candidate.plan, &own);
    if (status == AM_INTERRUPTED) return status;
    if (status != AM_OK) {
        row->failure = arena_copy_string(call->arena, own.text);
        return row->failure ? AM_OK : am_fail_memory(error, 0);
    }
    row->step_seconds = seconds;
    row->measured_seconds = seconds[0];
    for (int32_t k = 1; k < row->steps; k++) row->measured_seconds = fmin(row->measured_seconds, seconds[k]);
    search_watch_count(call->watch, 1, row->measured_seconds);
    return AM_OK;
}

AmStatus measure_plans(PlanMeasurements **measurements, const MeasureCall *call, AmError *error) {
    PlanMeasurements *self = ARENA_ARRAY(call->arena, PlanMeasurements, 1);
    Correction correction = correction_begin();
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (PlanMeasurements){.module = call->module, .chosen = -1};
    /* The best candidate and the fastest of each structure, by increasing predicted seconds. */
    const PlanCandidate *best = &call->pool->best;
    MeasuredRun *all = ARENA_ARRAY(call->arena, MeasuredRun, POOL_STRUCTURES + 1);
    if (!all) return am_fail_memory(error, POOL_STRUCTURES + 1);
    self->candidates = 0;
    all[self->candidates++].candidate = *best;
    for (int32_t k = 0; k < POOL_STRUCTURES && call->pool->structures[k].plan; k++) {
        const PlanCandidate *candidate = &call->pool->structures[k];
        if (candidate->plan != best->plan && call->allows(call->user, candidate))
            all[self->candidates++].candidate = *candidate;
    }
    for (int32_t k = 0; k < self->candidates; k++) {
        all[k].features = plan_features_of(all[k].candidate.plan);
        all[k].measured_seconds = NAN;
    }
    self->runs = all;
    int32_t most = call->runs < self->candidates ? call->runs : self->candidates;
    const StopSignal stop = {call->interrupted, call->deadline};
    search_watch_phase(call->watch, SEARCH_PHASE_MEASURING);
    while (self->count < most && !stop_wanted(&stop)) {
        double weights[CORRECTION_TERMS];
        /* The fastest candidate by prediction. */
        int32_t next = self->count;
        for (int32_t k = self->count + 1; k < self->candidates; k++)
            if (self->runs[k].candidate.seconds < self->runs[next].candidate.seconds) next = k;
        MeasuredRun row = self->runs[next];
        memmove(&self->runs[self->count + 1], &self->runs[self->count],
                sizeof row * (size_t)(next - self->count));
        correction_weights(weights, &correction, NULL);
        row.corrected_seconds = row.candidate.seconds * exp(correction_of(weights, &row.features));
        AmStatus status = run_plan(&row, call, error);
        self->runs[self->count] = row;
        if (status == AM_INTERRUPTED) break;
        TRY(status);
        int32_t done = self->count++;
        if (row.failure) continue;
        correction_add(&correction, &row.features, row.candidate.seconds, row.measured_seconds);
        if (self->chosen < 0 || row.measured_seconds < self->runs[self->chosen].measured_seconds)
            self->chosen = done;
    }
    self->interrupted = stop_flag_is_set(call->interrupted);
    *measurements = self;
    return AM_OK;
}

/* ---- reports ---- */

/* Returns the highest ZeRO level of a stage. */
static int32_t zero_level(const Plan *plan) {
    int32_t most = 0;
    for (int32_t s = 0; s < plan->stage_count; s++) {
        int32_t level = storage_zero_level(&plan->stages[s]);
        if (level > most) most = level;
    }
    return most;
}

/* Appends "data=4,model=1, ZeRO 3, 2 micro-batches" or "3 stages, 4 micro-batches, 1f1b". */
static void append_form(Text *text, const MeasuredRun *run) {
    const Plan *plan = run->candidate.plan;
    if (plan->stage_count == 1) mesh_append(text, &plan->stages[0].mesh, ",");
    else text_append(text, "%d stages", plan->stage_count);
    if (zero_level(plan) > 0) text_append(text, ", ZeRO %d", zero_level(plan));
    if (plan->micro_batches > 1) text_append(text, ", %d micro-batches", plan->micro_batches);
    if (plan->stage_count > 1) text_append(text, ", %s", plan->schedule);
}

static bool has_same_cuts(const Plan *a, const Plan *b) {
    for (int32_t s = 0; s < a->stage_count; s++) {
        const PlanStage *one = &a->stages[s], *other = &b->stages[s];
        if (one->range_count != other->range_count || one->mesh.device_count != other->mesh.device_count)
            return false;
        for (int32_t r = 0; r < one->range_count; r++)
            if (one->ranges[r][0] != other->ranges[r][0]) return false;
    }
    return true;
}

/* Returns the class of an entry; NULL: any. */
static const DimensionClass *class_of(const PlanContext *context, const PlanEntry *entry) {
    return entry->class_index == PLAN_ANY_CLASS ? NULL : &context->classes->classes[entry->class_index];
}

static bool has_class(const PlanContext *context, const PlanAxisPriority *priority,
                      const DimensionClass *class) {
    for (int32_t k = 0; k < priority->count; k++) {
        const DimensionClass *own = class_of(context, &priority->entries[k]);
        if (own && own->named_by_parameter == class->named_by_parameter && own->number == class->number &&
            own->dimension == class->dimension)
            return true;
    }
    return false;
}

/* Appends ", data splits params['w1'] at 0": the first class that one plan splits and the other does not.
 * Returns false where there is none. */
static bool append_split(Text *text, const PlanContext *module, const Plan *plan, const Plan *other,
                         const char *verb) {
    const PlanContext *own = plan_context_used(plan, module), *others = plan_context_used(other, module);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanStage *a = &plan->stages[s], *b = &other->stages[s];
        for (int32_t axis = 0; axis < a->mesh.axis_count && axis < b->mesh.axis_count; axis++)
            for (int32_t k = 0; k < a->axis_priorities[axis].count; k++) {
                const DimensionClass *class = class_of(own, &a->axis_priorities[axis].entries[k]);
                if (!class || has_class(others, &b->axis_priorities[axis], class)) continue;
                text_append(text, ", %s %s ", a->mesh.axes[axis].name, verb);
                if (class->named_by_parameter)
                    text_append_string(text, own->roles->parameters[class->number].path);
                else text_append(text, "operator %d", class->number);
                text_append(text, " at %d", class->dimension);
                return true;
            }
    }
    return false;
}

/* Appends what distinguishes a plan from an earlier one of the same form: ", 3 overrides (row 1: 0)". */
static void append_difference(Text *text, const PlanContext *module, const Plan *plan, const Plan *earlier,
                              int32_t row) {
    int32_t overrides[2] = {0}, recomputed[2] = {0};
    for (int32_t k = 0; k < 2; k++)
        for (int32_t s = 0; s < plan->stage_count; s++) {
            const PlanStage *stage = k == 0 ? &plan->stages[s] : &earlier->stages[s];
            overrides[k] += stage->override_count + stage->reshard_count;
            recomputed[k] += stage->recompute.range_count;
        }
    if (plan->stage_count > 1 && !has_same_cuts(plan, earlier))
        text_append(text, ", other cuts than row %d", row);
    else if (recomputed[0] != recomputed[1])
        text_append(text, ", %d recomputed ranges (row %d: %d)", recomputed[0], row, recomputed[1]);
    else if (append_split(text, module, plan, earlier, "splits")) return;
    else if (append_split(text, module, earlier, plan, "leaves")) return;
    else if (overrides[0] != overrides[1])
        text_append(text, ", %d overrides (row %d: %d)", overrides[0], row, overrides[1]);
    else text_append(text, ", other priorities than row %d", row);
}

/* Appends the form of run k, with the difference from the last run of the same form before it. */
static void append_plan(Text *text, const PlanMeasurements *self, int32_t k) {
    Text own = {0};
    bool is_apart = true;
    append_form(&own, &self->runs[k]);
    text_append_string(text, own.failed ? "" : own.data);
    for (int32_t j = k - 1; j >= 0 && is_apart && !own.failed; j--) {
        Text earlier = {0};
        append_form(&earlier, &self->runs[j]);
        is_apart = earlier.failed || strcmp(own.data, earlier.data) != 0;
        if (!is_apart)
            append_difference(text, self->module, self->runs[k].candidate.plan, self->runs[j].candidate.plan,
                              j + 1);
        text_free(&earlier);
    }
    text_free(&own);
}

static const char *part_of(const PlanCandidate *candidate) {
    return candidate->note ? candidate->note : plan_origin_name(candidate->origin);
}

void measurements_print(Text *text, const PlanMeasurements *self) {
    Text rows = {.is_styled = text->is_styled};
    text_append_string(&rows, "measured plan\tfound by\tpredicted\tcorrected\tmeasured\tremark\n");
    for (int32_t k = 0; k < self->count; k++) {
        const MeasuredRun *run = &self->runs[k];
        append_plan(&rows, self, k);
        text_append(&rows, "\t%s\t", part_of(&run->candidate));
        text_append_seconds(&rows, run->candidate.seconds);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, run->corrected_seconds);
        text_append_string(&rows, "\t");
        if (run->failure) text_append_string(&rows, "-");
        else text_append_seconds(&rows, run->measured_seconds);
        text_append(&rows, "\t%s\n", run->failure ? run->failure : k == self->chosen ? "this one" : "");
    }
    text_append_table(text, rows.data);
    text_free(&rows);
    if (self->chosen < 0) text_append_string(text, "no plan was measured: the best plan by prediction\n");
}

static json_t *numbers_to_json(const double *numbers, int32_t count) {
    json_t *list = json_array();
    for (int32_t k = 0; k < count; k++) json_array_append_new(list, json_real(numbers[k]));
    return list;
}

json_t *measurements_to_json(const PlanMeasurements *self, bool has_steps) {
    json_t *list = json_array();
    for (int32_t k = 0; k < self->count; k++) {
        const MeasuredRun *run = &self->runs[k];
        Text form = {0};
        append_plan(&form, self, k);
        json_t *row = json_pack(
            "{s:s, s:s, s:f, s:f, s:o, s:i, s:b, s:o}", "plan", form.failed ? "" : form.data, "found_by",
            part_of(&run->candidate), "predicted_seconds", run->candidate.seconds, "corrected_seconds",
            run->corrected_seconds, "measured_seconds",
            run->failure ? json_null() : json_real(run->measured_seconds), "steps", run->steps, "chosen",
            k == self->chosen, "strategy", numbers_to_json(run->features.numbers, PLAN_FEATURES));
        if (row && run->failure) json_object_set_new(row, "reason", json_string(run->failure));
        if (row && has_steps)
            json_object_set_new(row, "step_seconds", numbers_to_json(run->step_seconds, run->steps));
        json_array_append_new(list, row);
        text_free(&form);
    }
    return list;
}
