/* `simulate --trace`: the predicted timeline as a Chrome trace, whose slices are written as the simulation
 * proceeds. */
#include "cli/commands/simulate_trace.h"

#include <stdio.h>

#include "cost/step/executed.h"
#include "lowering/program/program_trace.h"

/* The state of a rank's lanes. */
typedef struct SimulateLanes {
    uint32_t streams; /* trace_bit() */
    double busy_until[TRACE_STREAMS][TRACE_LANES];
} SimulateLanes;

AmStatus simulate_trace_open(SimulateTrace *trace, Arena *arena, const char *path, const PlanContext *context,
                             const Plan *plan, AmError *error) {
    *trace = (SimulateTrace){.context = context, .error = error};
    for (int32_t s = 0; s < plan->stage_count; s++) trace->rank_count += plan->stages[s].mesh.device_count;
    trace->lanes = ARENA_ARRAY(arena, SimulateLanes, trace->rank_count + 1);
    if (!trace->lanes) return am_fail_memory(error, (int64_t)sizeof(SimulateLanes) * trace->rank_count);
    return trace_begin(&trace->file, path, error);
}

static void write(SimulateTrace *trace) {
    if (trace->text.failed) trace->status = am_fail_memory(trace->error, 0);
    else trace->status = trace_add(&trace->file, trace->text.data, trace->text.length, trace->error);
    trace->text.length = 0;
}

/* Selects the first free lane; without one, the overlapping part is cut off. */
static void choose_lane(SimulateLanes *lanes, TraceSlice *slice) {
    double *busy_until = lanes->busy_until[slice->stream];
    while (slice->lane + 1 < TRACE_LANES && busy_until[slice->lane] > slice->start) slice->lane++;
    if (busy_until[slice->lane] > slice->start) slice->start = busy_until[slice->lane];
    if (slice->end > busy_until[slice->lane]) busy_until[slice->lane] = slice->end;
    lanes->streams |= trace_bit(slice->stream, slice->lane);
}

void simulate_trace_slice(void *user, const SimulatedSlice *slice) {
    SimulateTrace *self = user;
    const ExecutedStep *executed = slice->executed;
    TraceSlice shown = {.device = slice->rank,
                        .stream = TRACE_COMPUTE,
                        .name = "update",
                        .start = slice->start,
                        .end = slice->end};
    if (self->status != AM_OK) return;
    bool is_operator = executed && executed->step < executed->program->step_count;
    if (is_operator) shown.stream = program_trace_stream(executed->program, executed->step);
    choose_lane(&self->lanes[slice->rank], &shown);
    if (is_operator)
        program_trace_append(&self->text, &shown, self->context, executed->program, executed->step,
                             slice->times);
    else trace_append_slice(&self->text, &shown);
    write(self);
}

AmStatus simulate_trace_end(SimulateTrace *self, const Simulation *simulation) {
    for (int32_t r = 0; r < self->rank_count && self->status == AM_OK; r++) {
        const TraceSlice step = {
            .device = r, .stream = TRACE_STEPS, .name = "step", .end = simulation->step_seconds};
        char name[160];
        snprintf(name, sizeof name, "rank %d (%.120s)", r, simulation->devices[r].name);
        trace_append_slice(&self->text, &step);
        trace_append_device(&self->text, r, name, self->lanes[r].streams | trace_bit(TRACE_STEPS, 0));
        write(self);
    }
    return self->status == AM_OK ? trace_end(&self->file, self->error) : self->status;
}

void simulate_trace_close(SimulateTrace *trace) {
    trace_abandon(&trace->file);
    text_free(&trace->text);
}
