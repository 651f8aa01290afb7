/* The option "trace" of am_simulate(): the predicted timeline as a Chrome trace, whose slices are written as
 * the simulation proceeds. */
#include "api/simulate_trace.h"

#include <stdio.h>

#include "cost/step/executed.h"
#include "lowering/program/memory_counter.h"
#include "lowering/program/program_trace.h"

enum { MOST_OWN_NOTES = 2 };

/* The body of a loop over micro-batches, which a rank runs again and again, or a program inside of it. */
typedef struct RepeatedProgram {
    const Program *program;
    int32_t body; /* number of the body */
    const ExecutedStep *last;
    int32_t iteration; /* of the body */
} RepeatedProgram;

/* How often a rank has sent, or received, a value. */
typedef struct SeenTransfer {
    const ProgramTransfer *transfer;
    int32_t count;
} SeenTransfer;

/* The state of a rank. */
typedef struct SimulateLanes {
    uint32_t streams; /* trace_bit() */
    double busy_until[TRACE_STREAMS][TRACE_LANES];
    int32_t stage;
    RepeatedProgram *programs;
    int32_t program_count, program_capacity;
    SeenTransfer *transfers;
    int32_t transfer_count, transfer_capacity;
    MemoryCounter *memory; /* NULL before its first slice */
} SimulateLanes;

AmStatus simulate_trace_open(SimulateTrace *trace, Arena *arena, const char *path, TraceEvents *events,
                             const PlanContext *context, const Plan *plan, AmError *error) {
    *trace = (SimulateTrace){.events = events,
                             .context = context,
                             .error = error,
                             .arena = arena,
                             .micro_batches = plan->micro_batches};
    for (int32_t s = 0; s < plan->stage_count; s++) trace->rank_count += plan->stages[s].mesh.device_count;
    trace->lanes = ARENA_ARRAY(arena, SimulateLanes, trace->rank_count + 1);
    for (int32_t k = 0; k < 2; k++) trace->ends[k] = ARENA_ARRAY(arena, TraceSlice, trace->rank_count + 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(SimulateLanes) * trace->rank_count);
    for (int32_t s = 0, rank = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++) trace->lanes[rank++].stage = s;
    return path ? trace_begin(&trace->file, path, TRACE_OF_SIMULATION, error) : AM_OK;
}

static void write(SimulateTrace *trace) {
    if (trace->text.failed) trace->status = am_fail_memory(trace->error, 0);
    else trace->status = trace_add(&trace->file, trace->text.data, trace->text.length, trace->error);
    trace->text.length = 0;
}

/* Lists the programs that a rank runs in loops over micro-batches; `body`: of the loop around, or -1. */
static void add_repeated(SimulateTrace *self, SimulateLanes *lanes, const Program *program, int32_t body) {
    for (int32_t k = 0; k < program->instruction_count; k++) {
        const ProgramInstruction *instruction = &program->instructions[k];
        for (int32_t r = 0; r < instruction->regions.count; r++) {
            const Program *region = instruction->regions.programs[r];
            bool is_body = body < 0 && region->counter.iterations == self->micro_batches;
            int32_t inside = is_body ? lanes->program_count : body;
            if (inside >= 0) {
                ARENA_RESERVE(&self->memory, lanes->programs, lanes->program_count, lanes->program_capacity);
                if (self->memory.failed) return;
                lanes->programs[lanes->program_count++] = (RepeatedProgram){region, inside, NULL, 0};
            }
            add_repeated(self, lanes, region, inside);
        }
    }
}

/* Returns the iteration of a repeated program's body: it begins anew where the steps of the body do. */
static int32_t iteration_of(const SimulateLanes *lanes, RepeatedProgram *program,
                            const ExecutedStep *executed, bool computes) {
    RepeatedProgram *body = &lanes->programs[program->body];
    if (!computes || program != body) return body->iteration;
    if (body->last && executed <= body->last) body->iteration++;
    body->last = executed;
    return body->iteration;
}

static bool is_same_value(const ProgramTransfer *a, const ProgramTransfer *b) {
    return a && a->number == b->number && a->sender == b->sender && a->receiver == b->receiver;
}

/* Returns the number of times that the rank has sent, or received, the value before. */
static int32_t count_transfer(SimulateTrace *self, SimulateLanes *lanes, const ProgramTransfer *transfer) {
    SeenTransfer *found = lanes->transfers, *end = lanes->transfers + lanes->transfer_count;
    while (found < end && !is_same_value(found->transfer, transfer)) found++;
    if (found == end) {
        ARENA_RESERVE(self->arena, lanes->transfers, lanes->transfer_count, lanes->transfer_capacity);
        if (self->arena->failed) return 0;
        found = &lanes->transfers[lanes->transfer_count++];
        *found = (SeenTransfer){transfer, 0};
    }
    return found->count++;
}

/* Writes arrows from the senders to the receivers of the value that travels, by their places in the
 * stages. */
static void append_arrows(SimulateTrace *self) {
    int32_t senders = self->end_counts[0], receivers = self->end_counts[1];
    int32_t count = senders > receivers ? senders : receivers;
    for (int32_t k = 0; k < count && senders > 0 && receivers > 0; k++) {
        trace_append_flow(&self->text, &self->ends[0][(int64_t)k * senders / count], self->arrow_count,
                          false);
        trace_append_flow(&self->text, &self->ends[1][(int64_t)k * receivers / count], self->arrow_count,
                          true);
        self->arrow_count++;
    }
    self->end_counts[0] = self->end_counts[1] = 0;
}

/* Notes an end of a value that travels from `start`; all ends of one value arrive one after another. */
static void add_end(SimulateTrace *self, const TraceSlice *slice, const ProgramTransfer *transfer,
                    double start) {
    bool is_end = slice->stream == TRACE_RECEIVE;
    bool goes_on = is_same_value(self->travelling, transfer) && self->travels_from == start;
    if (!goes_on || self->end_counts[is_end] == self->rank_count) append_arrows(self);
    self->travelling = transfer;
    self->travels_from = start;
    self->ends[is_end][self->end_counts[is_end]++] = *slice;
}

/* Writes the names of a rank's lanes, before its first slice. */
static void open_lanes(SimulateTrace *self, SimulateLanes *lanes, const SimulatedSlice *slice) {
    lanes->memory = ARENA_ARRAY(&self->memory, MemoryCounter, 1);
    if (self->micro_batches > 1) add_repeated(self, lanes, slice->entry, -1);
    if (self->memory.failed) self->status = am_fail_memory(self->error, (int64_t)sizeof(MemoryCounter));
    else
        self->status = memory_counter_open(lanes->memory, &self->memory, slice->entry, slice->channel_bytes,
                                           self->error);
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
    SimulateLanes *lanes = &self->lanes[slice->rank];
    if (!lanes->memory) open_lanes(self, lanes, slice);
    if (self->status != AM_OK) return;
    ProgramTraceRoom room;
    TraceNote notes[MOST_OWN_NOTES] = {{"stage", NULL, lanes->stage}};
    bool is_operator = executed && executed->step < executed->program->execution.step_count;
    if (is_operator) shown.stream = program_trace_stream(executed->program, executed->step);
    /* The first free lane; without one, the overlapping part is cut off. */
    double *busy_until = lanes->busy_until[shown.stream];
    while (shown.lane + 1 < TRACE_LANES && busy_until[shown.lane] > shown.start) shown.lane++;
    if (busy_until[shown.lane] > shown.start) shown.start = busy_until[shown.lane];
    if (shown.end > busy_until[shown.lane]) busy_until[shown.lane] = shown.end;
    lanes->streams |= trace_bit(shown.stream, shown.lane);
    bool crosses = shown.stream == TRACE_SEND || shown.stream == TRACE_RECEIVE;
    if (!crosses && !self->events) append_arrows(self);
    const ProgramTransfer *transfer = crosses ? executed_transfer(executed)->transfer : NULL;
    RepeatedProgram *repeated = NULL;
    for (int32_t k = 0; k < lanes->program_count && is_operator && !repeated; k++)
        if (lanes->programs[k].program == executed->program) repeated = &lanes->programs[k];
    int32_t iteration = slice->micro_batch;
    if (repeated && crosses) iteration = count_transfer(self, lanes, transfer);
    else if (repeated && iteration == 0)
        iteration = iteration_of(lanes, repeated, executed, shown.stream == TRACE_COMPUTE);
    notes[1] = (TraceNote){"micro_batch", NULL, iteration};
    shown.notes = notes;
    shown.note_count = repeated ? MOST_OWN_NOTES : 1;
    if (is_operator)
        program_trace_describe(&shown, &room, self->context, executed->program, executed->step, slice->times);
    if (self->events) {
        self->status = trace_events_add(self->events, &shown, self->error);
        return;
    }
    trace_append_slice(&self->text, &shown);
    if (crosses) add_end(self, &shown, transfer, slice->start);
    if (executed && self->status == AM_OK)
        memory_counter_append(&self->text, lanes->memory, slice->rank, executed->program, executed->step,
                              slice->start);
    if (self->status == AM_OK) write(self);
}

AmStatus simulate_trace_end(SimulateTrace *self, const Simulation *simulation) {
    append_arrows(self);
    for (int32_t r = 0; r < self->rank_count && self->status == AM_OK; r++) {
        const TraceNote stage = {"stage", NULL, self->lanes[r].stage};
        const TraceSlice step = {.device = r,
                                 .stream = TRACE_STEPS,
                                 .name = "step",
                                 .end = simulation->step_seconds,
                                 .notes = &stage,
                                 .note_count = 1};
        if (self->events) {
            self->status = trace_events_add(self->events, &step, self->error);
            continue;
        }
        char name[160];
        snprintf(name, sizeof name, "rank %d (%.120s)", r, simulation->devices[r].name);
        if (self->lanes[r].memory)
            memory_counter_end(&self->text, self->lanes[r].memory, r, simulation->step_seconds);
        trace_append_slice(&self->text, &step);
        trace_append_device(&self->text, r, name, self->lanes[r].streams | trace_bit(TRACE_STEPS, 0));
        write(self);
    }
    return self->status == AM_OK && !self->events ? trace_end(&self->file, self->error) : self->status;
}

void simulate_trace_close(SimulateTrace *trace) {
    trace_abandon(&trace->file);
    text_free(&trace->text);
    arena_free(&trace->memory);
}
