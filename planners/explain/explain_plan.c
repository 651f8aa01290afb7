/* Explains a plan: the cost of each decision, cut and number.
 *
 * The plan is lowered, priced and simulated once; what that says of stages, cuts and collectives is put into
 * words. Then come the changes: plans that differ in one thing, each simulated in full. They are put into an
 * order first, in which as many are simulated as there is time for, whatever the number of threads.
 */
#include "planners/explain/explain_plan.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "planners/explain/explain_parts.h"

/* So many instructions times changes are simulated, but no fewer than LEAST and no more than MOST changes. */
enum { INSTRUCTIONS_TIMES_CHANGES = 1000000, LEAST_CHANGES = 24, MOST_CHANGES = 400 };

const char *explain_source(Arena *arena, const IrInstruction *instruction) {
    if (!instruction->source_file[0]) return "";
    const char *text = arena_format(arena, "%s:%d", instruction->source_file, instruction->source_line);
    return text ? text : "";
}

const char *explain_name(const IrInstruction *instruction) {
    return instruction->op_name[0] ? instruction->op_name : instruction->name;
}

bool explain_is_same_name(const char *a, const char *b) {
    while (*a || *b) {
        bool digit_a = *a >= '0' && *a <= '9', digit_b = *b >= '0' && *b <= '9';
        if (digit_a && digit_b) {
            while (*a >= '0' && *a <= '9') a++;
            while (*b >= '0' && *b <= '9') b++;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return true;
}

/* ---- changes ---- */

static AmStatus add_change(Explainer *self, PlannedChange change) {
    ARENA_RESERVE(self->arena, self->changes.of, self->changes.count, self->changes.capacity);
    if (self->arena->failed) return am_fail_memory(self->error, self->changes.count);
    self->changes.of[self->changes.count++] = change;
    change.result->reason = "";
    return AM_OK;
}

AmStatus explain_add_change(Explainer *self, const Plan *plan, ExplainedChange *result) {
    return add_change(self, (PlannedChange){.plan = plan, .result = result});
}

AmStatus explain_add_made(Explainer *self, ChangedPlan *make, const void *data, int32_t number,
                          ExplainedChange *result) {
    return add_change(self, (PlannedChange){.make = make, .data = data, .number = number, .result = result});
}

AmStatus explain_make_change(const Plan **plan, const PlannedChange *change, Arena *arena, AmError *error) {
    *plan = change->plan;
    return *plan ? AM_OK : change->make(plan, arena, change->data, change->number, error);
}

static void simulate_change(void *user, int32_t k) {
    const Explainer *self = user;
    PlannedChange *change = &self->changes.of[k];
    const SimulationOptions options = {
        .memory_fraction = self->memory_fraction, .stop = self->stop, .known = &self->ranks};
    Arena arena = {0};
    Simulation *simulation;
    const Plan *plan;
    change->status = explain_make_change(&plan, change, &arena, &change->error);
    if (change->status == AM_OK)
        change->status =
            simulate_plan(&simulation, &arena, self->context, plan, self->cluster, &options, &change->error);
    if (change->status == AM_OK)
        *change->result = (ExplainedChange){.seconds = simulation->step_seconds,
                                            .peak_bytes = simulation->fit.needed_bytes,
                                            .is_known = true,
                                            .fits = simulation->fit.fits,
                                            .reason = ""};
    arena_free(&arena);
    search_watch_count(self->options->watch, 1, NAN);
}

int32_t explain_most_changes(const Explainer *self) {
    int64_t most = INSTRUCTIONS_TIMES_CHANGES / plan_context_count(self->context);
    if (most < LEAST_CHANGES) most = LEAST_CHANGES;
    if (most > MOST_CHANGES) most = MOST_CHANGES;
    return self->changes.count < most ? self->changes.count : (int32_t)most;
}

static AmStatus simulate_changes(Explainer *self) {
    int64_t most = self->options->simulations;
    int32_t count = most > 0 && most < self->changes.count ? (int32_t)most : self->changes.count;
    if (most == 0) count = explain_most_changes(self);
    self->result->changes.simulated = count;
    self->result->changes.left_out = self->changes.count - count;
    search_watch_expect(self->options->watch, count);
    parallel_for(count, 0, simulate_change, self);
    for (int32_t k = 0; k < count; k++) {
        PlannedChange *change = &self->changes.of[k];
        if (change->status == AM_OK) continue;
        if (change->status == AM_ERROR_INTERNAL) {
            *self->error = change->error;
            return change->status;
        }
        change->result->reason = arena_copy_string(self->arena, change->error.text);
        if (!change->result->reason) return am_fail_memory(self->error, 0);
    }
    return AM_OK;
}

/* ---- the plan ---- */

/* Describes the step, stages and cuts, without changes. */
static AmStatus describe_plan(Explainer *self) {
    const SimulationOptions options = {.memory_fraction = self->memory_fraction};
    TRY(plan_ranks_beside(&self->ranks, self->arena, self->context, self->plan, NULL, self->stop,
                          self->error));
    TRY(plan_costs_lower(&self->costs, self->arena, &self->ranks, self->cluster, self->error));
    TRY(plan_costs_price(self->costs, self->error));
    if (self->is_report)
        TRY(simulate_costs_by_rank(&self->simulation, self->arena, self->costs, &options, self->error));
    else TRY(simulate_costs(&self->simulation, self->arena, self->costs, &options, self->error));
    *self->result = (Explanation){.plan.step_seconds = self->simulation->step_seconds,
                                  .plan.peak_bytes = self->simulation->fit.needed_bytes,
                                  .plan.fits_host = self->simulation->host.fits,
                                  .plan.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                  .plan.bubble_fraction = self->simulation->bubble_fraction,
                                  .plan.device_count = self->simulation->device_count,
                                  .plan.micro_batches = self->plan->micro_batches,
                                  .plan.schedule = self->plan->schedule,
                                  .plan.replicas = self->plan->replicas};
    TRY(explain_stages(self));
    return explain_cuts(self);
}

AmStatus explain_list_changes(Explainer *self) {
    TRY(describe_plan(self));
    TRY(explain_alternatives(self));
    if (self->result->cuts.count > 0) TRY(explain_units(self));
    TRY(explain_overrides(self));
    return explain_decisions(self);
}

void explain_close(Explainer *self) {
    for (int32_t k = 0; k < self->documents.count; k++) json_decref(self->documents.of[k]);
    self->documents.count = 0;
}

static AmStatus explain_sections(Explainer *self) {
    TRY(self->options->without_changes ? describe_plan(self) : explain_list_changes(self));
    if (self->options->with_timeline) TRY(explain_timeline(self));
    TRY(explain_loops(self));
    TRY(explain_collectives(self));
    return simulate_changes(self);
}

AmStatus explain_plan(Explanation **explanation, Arena *arena, PlanContext *context, const Plan *plan,
                      const json_t *root, const Cluster *cluster, const ExplainOptions *options,
                      AmError *error) {
    AmError failure = {0};
    Explainer self = {.arena = arena,
                      .schedules = (1U << SCHEDULE_KINDS) - 1,
                      .primary = context,
                      .context = plan_context_used(plan, context),
                      .plan = plan,
                      .root = root,
                      .cluster = cluster,
                      .options = options,
                      .stop = options->stop,
                      .memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                      .is_report = true,
                      .result = ARENA_ARRAY(arena, Explanation, 1),
                      .error = error ? error : &failure};
    if (!self.result) return am_fail_memory(error, (int64_t)sizeof *self.result);
    AmStatus status = explain_sections(&self);
    if (status == AM_OK && arena->failed) status = am_fail_memory(error, 0);
    if (status == AM_OK && self.stop && stop_wanted(self.stop))
        status = am_fail(error, AM_INTERRUPTED, "", "interrupted");
    explain_close(&self);
    *explanation = self.result;
    return status;
}
