/* Programs made ready: preparation, addresses, and a run.
 *
 * A run executes one capture region after another. The device records a capture region in which the host
 * waits for nothing and replays it when it comes again; for a program that
 * repeats, the copies of the updates belong to the last capture region.
 */
#include "executor/program/executable.h"

#include <stdio.h>

#include "base/integers.h"
#include "base/text.h"
#include "executor/program/control_flow.h"
#include "executor/program/stream.h"

static void add_placed(ExecutableStep *ready, const Program *program, int32_t number, void **address) {
    const ProgramValue *value = &program->values[number];
    if (!value->place) return;
    ready->placed[ready->placed_count++] =
        (PlacedAddress){.address = address,
                        .place = value->place,
                        .bytes = ir_shape_bytes(&program->values[value->storage].shape)};
}

/* Operands and results whose addresses the iteration chooses: those of an instruction's or a fusion's
 * call. */
static AmStatus prepare_placed(ExecutableStep *ready, Arena *arena, const Program *program,
                               const ProgramStep *step, AmError *error) {
    const ProgramFusion *fusion = step->fusion >= 0 ? &program->execution.fusions[step->fusion] : NULL;
    const ProgramInstruction *instruction = fusion ? NULL : &program->instructions[step->instruction];
    int32_t operands = fusion ? fusion->input_count : program_operands_read(instruction), placed = 0;
    int32_t results = fusion ? fusion->output_count : instruction->result_count;
    for (int32_t pass = 0; pass < 2; pass++) {
        if (pass == 1 && placed == 0) return AM_OK;
        if (pass == 1) ready->placed = ARENA_ARRAY(arena, PlacedAddress, placed);
        if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *ready->placed * placed);
        const CommCall *call = ready->stream ? ready->stream->call : ready->collective;
        for (int32_t k = 0; k < operands + results; k++) {
            bool is_result = k >= operands;
            int32_t at = is_result ? k - operands : k;
            int32_t value = !is_result
                                ? (fusion ? fusion->inputs[at].value : instruction->operands[at])
                                : (fusion ? fusion->output_values[at] : instruction->first_result + at);
            if (pass == 0) placed += program->values[value].place != NULL;
            else if (ready->kernel)
                add_placed(ready, program, value,
                           is_result ? &ready->kernel->results[at] : &ready->kernel->operands[at]);
            else add_placed(ready, program, value, is_result ? &call->results[at] : &call->operands[at]);
        }
    }
    return AM_OK;
}

static AmStatus prepare_step(Executable *self, Arena *arena, int32_t s, AmError *error) {
    const Program *program = self->program;
    const ProgramStep *step = &program->execution.steps[s];
    const ProgramInstruction *instruction =
        step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
    ExecutableStep *ready = &self->steps[s];
    if (instruction && instruction->kind == PROGRAM_TRANSFER && instruction->transfer->slots > 0)
        return stream_prepare(&ready->stream, arena, self->comm, program, instruction, error);
    if (instruction && (instruction->kind == PROGRAM_COLLECTIVE || instruction->kind == PROGRAM_TRANSFER)) {
        if (!self->comm)
            return am_fail(error, AM_ERROR_INTERNAL, "", "a collective in a program that runs on its own");
        TRY(comm_prepare(&ready->collective, arena, self->comm, self->program, instruction, error));
        self->comm_scratch_bytes = larger_integer(self->comm_scratch_bytes, ready->collective->scratch_bytes);
        self->waits_on_host |= self->comm->back_end->waits_on_ranks;
        return AM_OK;
    }
    /* A back end without a kernel for the region runs it instruction by instruction. */
    if (instruction && instruction->regions.in_blocks &&
        kernel_prepare(&ready->kernel, arena, self->device, program, step, NULL) == AM_OK) {
        self->scratch_bytes = larger_integer(self->scratch_bytes, ready->kernel->scratch_bytes);
        return AM_OK;
    }
    ready->kernel = NULL;
    if (instruction && control_covers(instruction->opcode)) {
        TRY(control_prepare(&ready->control, arena, self->device, self->comm, program, instruction, error));
        self->scratch_bytes = larger_integer(self->scratch_bytes, ready->control->scratch_bytes);
        self->comm_scratch_bytes =
            larger_integer(self->comm_scratch_bytes, ready->control->comm_scratch_bytes);
        self->waits_on_host |= ready->control->waits_on_host;
        return AM_OK;
    }
    TRY(kernel_prepare(&ready->kernel, arena, self->device, program, step, error));
    self->scratch_bytes = larger_integer(self->scratch_bytes, ready->kernel->scratch_bytes);
    return AM_OK;
}

/* Values that only a row group uses, in the scratch memory of kernels: its steps run one by one. */
static AmStatus place_rows(Executable *self, Arena *arena, const ProgramRowGroup *rows, AmError *error) {
    const Program *program = self->program;
    int64_t end = 0;
    if (!self->scratch_at) self->scratch_at = ARENA_ARRAY(arena, int64_t, program->value_count + 1);
    if (!self->scratch_at) return am_fail_memory(error, program->value_count * 8);
    for (int32_t s = rows->first; s < rows->first + rows->count; s++)
        for (int32_t k = 0; k < program_step_results(program, &program->execution.steps[s]); k++) {
            int32_t value = program_step_result(program, &program->execution.steps[s], k);
            if (program->values[value].kind != PROGRAM_VALUE_INTERNAL) continue;
            self->scratch_at[value] = end;
            end += kernel_align(ir_shape_bytes(&program->values[value].shape));
        }
    for (int32_t s = rows->first; s < rows->first + rows->count; s++) {
        self->steps[s].scratch_at = end;
        self->scratch_bytes = larger_integer(self->scratch_bytes, end + self->steps[s].kernel->scratch_bytes);
    }
    return AM_OK;
}

static AmStatus prepare_rows(Executable *self, Arena *arena, const ProgramRowGroup *rows, AmError *error) {
    const KernelBackEnd *kernels = self->device->back_end;
    KernelCall **calls = ARENA_ARRAY(arena, KernelCall *, rows->count);
    if (!calls) return am_fail_memory(error, rows->count * 8);
    for (int32_t k = 0; k < rows->count; k++) calls[k] = self->steps[rows->first + k].kernel;
    AmError reason = {0};
    AmStatus status = kernels->join_rows ? kernels->join_rows(calls, arena, &reason) : AM_ERROR_INPUT;
    if (status == AM_ERROR_INPUT) return place_rows(self, arena, rows, error);
    if (status != AM_OK) return am_fail(error, status, "", "%s", reason.text);
    self->scratch_bytes = larger_integer(self->scratch_bytes, calls[rows->count - 1]->scratch_bytes);
    return AM_OK;
}

AmStatus executable_prepare(Executable **result, Arena *arena, KernelDevice *device, Comm *comm,
                            const Program *program, bool repeats, AmError *error) {
    Executable *self = ARENA_ARRAY(arena, Executable, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (Executable){.device = device,
                         .comm = comm,
                         .program = program,
                         .repeats = repeats,
                         .arena = arena,
                         .steps = ARENA_ARRAY(arena, ExecutableStep, program->execution.step_count + 1),
                         .addresses = ARENA_ARRAY(arena, void *, program->value_count + 1)};
    if (arena->failed)
        return am_fail_memory(error, (int64_t)sizeof(ExecutableStep) * program->execution.step_count);
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        TRY(prepare_step(self, arena, s, error));
        TRY(prepare_placed(&self->steps[s], arena, program, &program->execution.steps[s], error));
    }
    for (int32_t g = 0; g < program->execution.row_group_count; g++)
        TRY(prepare_rows(self, arena, &program->execution.row_groups[g], error));
    TRY(updates_prepare(&self->updates, arena, program, error));
    *result = self;
    return overlap_find_capture_regions(&self->capture_regions, &self->capture_region_count, arena,
                                        self->steps, program->execution.step_count,
                                        comm && comm->back_end->waits_on_ranks, error);
}

char *executable_place(const Program *program, const ExecutableMemory *memory, int64_t offset) {
    return memory->values + (memory->parameters ? offset - program->allocation.parameter_bytes : offset);
}

AmStatus executable_bind(Executable *self, const ExecutableMemory *memory, AmError *error) {
    const Program *program = self->program;
    /* Values common to two outputs are computed in the first one's memory. */
    for (int32_t k = 0; k < program->roles->parameter_count && memory->parameters; k++)
        if (program->parameters[k] >= 0) self->addresses[program->parameters[k]] = memory->parameters[k];
    for (int32_t k = program->roles->output_count - 1; k >= 0 && memory->outputs; k--) {
        if (program->outputs[k] < 0) continue;
        int32_t storage = program->values[program->outputs[k]].storage;
        if (program->values[storage].offset < 0) self->addresses[storage] = memory->outputs[k];
    }
    for (int32_t v = 0; v < program->value_count && memory->host; v++)
        if (program->values[v].is_on_host) self->addresses[v] = memory->host + program->values[v].host_offset;
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *owner = &program->values[program->values[v].storage];
        bool is_scratch = self->scratch_at && owner->kind == PROGRAM_VALUE_INTERNAL;
        if (is_scratch)
            self->addresses[program->values[v].storage] =
                memory->scratch + self->scratch_at[program->values[v].storage];
        bool elsewhere = owner->offset < 0 || (memory->parameters && owner->kind == PROGRAM_VALUE_PARAMETER);
        self->addresses[v] = elsewhere ? self->addresses[program->values[v].storage]
                                       : executable_place(program, memory, owner->offset);
    }
    TRY(red_zones_find(&self->zones, self->arena, program, self->device, memory->values,
                       memory->parameters ? program->allocation.parameter_bytes : 0, error));
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ExecutableStep *step = &self->steps[s];
        if (step->kernel) kernel_bind(step->kernel, self->addresses, memory->scratch + step->scratch_at);
        else if (step->control) TRY(control_bind(step->control, self->addresses, memory, error));
        else
            comm_bind(step->stream ? step->stream->call : step->collective,
                      &program->instructions[program->execution.steps[s].instruction], self->addresses,
                      memory->comm_scratch);
        for (int32_t k = 0; k < step->placed_count; k++) step->placed[k].array = *step->placed[k].address;
    }
    for (int32_t k = 0; k < self->updates.count; k++) {
        const ProgramUpdate *update = self->updates.list[k].update;
        char *staging = update->staging >= 0 ? executable_place(program, memory, update->staging) : NULL;
        updates_bind(&self->updates.list[k], program, self->addresses, staging);
    }
    if (!self->comm || !self->comm->back_end->wait) return AM_OK;
    return overlap_find_waits(self->steps, program->execution.step_count, &self->last_wait, error);
}

/* Appends to an error the parts of an allocation: "...; 31 MB of values, 2 MB of scratch memory". */
static void append_parts(AmError *error, int64_t values, int64_t scratch) {
    Text text = {0};
    if (!error) return;
    text_append(&text, "%s; ", error->text);
    text_append_bytes_size(&text, (double)values);
    text_append_string(&text, " of values, ");
    text_append_bytes_size(&text, (double)scratch);
    text_append_string(&text, " of scratch memory");
    if (!text.failed) snprintf(error->text, sizeof error->text, "%s", text.data);
    text_free(&text);
}

AmStatus executable_allocate(Executable *self, char **memory, char **host, AmError *error) {
    const KernelBackEnd *kernels = self->device->back_end;
    int64_t host_bytes = self->program->allocation.host_bytes;
    int64_t values = kernel_align(self->program->allocation.bytes);
    int64_t scratch = kernel_align(self->scratch_bytes), for_comm = kernel_align(self->comm_scratch_bytes);
    if (host) *host = NULL;
    if (host_bytes > 0 && !host)
        return am_fail(error, AM_ERROR_INTERNAL, "", "a program with memory in the host, which has none");
    if (host_bytes > 0) TRY(kernels->allocate_host(self->device, (void **)host, host_bytes, error));
    AmStatus status = kernels->allocate(self->device, (void **)memory, values + scratch + for_comm, error);
    if (status != AM_OK) {
        append_parts(error, values, scratch + for_comm);
        return status;
    }
    ExecutableMemory parts = {.values = *memory,
                              .scratch = *memory + values,
                              .comm_scratch = *memory + values + scratch,
                              .host = host ? *host : NULL};
    return executable_bind(self, &parts, error);
}

void executable_watch(Executable *self, Timeline *timeline, int32_t micro_batches) {
    self->timeline = timeline;
    if (!self->micro_batch && micro_batches > 1 && self->program->counter.iterations == micro_batches)
        self->micro_batch = &self->iteration;
    for (int32_t s = 0; s < self->program->execution.step_count; s++) {
        const Control *control = self->steps[s].control;
        for (int32_t r = 0; control && r < control->instruction->regions.count; r++) {
            control->regions[r]->micro_batch = self->micro_batch;
            executable_watch(control->regions[r], timeline, micro_batches);
        }
    }
}

/* Returns the number of the micro-batch plus 1, for records. */
static int32_t micro_batch_of(const Executable *self) {
    return self->micro_batch ? (int32_t)*self->micro_batch + 1 : 0;
}

void executable_mark_iteration(const Executable *body, double start) {
    if (!body->timeline) return;
    timeline_add(body->timeline, (TimelineRecord){.start = start,
                                                  .kind = TIMELINE_ITERATION,
                                                  .number = body->iteration,
                                                  .micro_batch = micro_batch_of(body)});
}

static AmStatus run_step(const Executable *self, const ExecutableStep *step, AmError *error) {
    if (step->placed_count > 0) { /* the addresses of this iteration */
        for (int32_t k = 0; k < step->placed_count; k++) {
            const PlacedAddress *placed = &step->placed[k];
            *placed->address = placed->array + placed->place->offset[self->iteration];
        }
        if (step->kernel && step->kernel->bind) step->kernel->bind(step->kernel);
    }
    if (step->wait) comm_wait(self->comm, step->wait);
    if (step->kernel) step->kernel->run(step->kernel);
    else if (step->control) return control_run(step->control, error);
    else if (step->stream) return stream_run(step->stream, error);
    else return comm_run(self->comm, step->collective, error);
    return AM_OK;
}

/* Runs until the step is done, and not only issued. */
static AmStatus run_watched(const Executable *self, int32_t s, AmError *error) {
    KernelDevice *device = self->device;
    TimelineRecord record = {.start = clock_seconds(),
                             .kind = TIMELINE_OPERATOR,
                             .program = self->program,
                             .step = s,
                             .micro_batch = micro_batch_of(self)};
    TRY(run_step(self, &self->steps[s], error));
    TRY(comm_await(self->comm, error));
    TRY(device_synchronize(device, error));
    timeline_add(self->timeline, record);
    return AM_OK;
}

AmStatus executable_run_steps(const Executable *self, int32_t first, int32_t end, AmError *error) {
    /* Every time: the regions of a loop have the same memory. */
    if (self->zones && first == 0) red_zones_fill(self->zones);
    for (int32_t s = first; s < end; s++) {
        TRY(self->timeline ? run_watched(self, s, error) : run_step(self, &self->steps[s], error));
        if (!self->zones) continue;
        TRY(comm_await(self->comm, error));
        TRY(red_zones_check(self->zones, s, error));
    }
    if (end < self->program->execution.step_count) return AM_OK;
    if (self->last_wait) comm_wait(self->comm, self->last_wait);
    if (self->repeats) updates_apply(&self->updates, self->device);
    return self->repeats && self->zones && end > 0 ? red_zones_check(self->zones, end - 1, error) : AM_OK;
}

AmStatus executable_issue(const Executable *self, AmError *error) {
    return executable_run_steps(self, 0, self->program->execution.step_count, error);
}

/* Runs a capture region, or lets the device replay it. */
static AmStatus run_capture_region(Executable *self, CaptureRegion *region, AmError *error) {
    const KernelBackEnd *kernels = self->device->back_end;
    void **record = &region->records[region->record_of ? region->record_of[self->iteration] : 0];
    bool done = false, recordable = kernels->begin && region->recordable && !self->timeline && !self->zones;
    while (!done) {
        if (recordable && kernels->begin(self->device, record)) return AM_OK;
        AmStatus status = executable_run_steps(self, region->first, region->end, error);
        done = !recordable || kernels->end(self->device, record);
        TRY(status);
    }
    return AM_OK;
}

AmStatus executable_run(Executable *self, AmError *error) {
    if (self->capture_region_count == 0) return executable_issue(self, error);
    for (int32_t k = 0; k < self->capture_region_count; k++)
        TRY(run_capture_region(self, &self->capture_regions[k], error));
    return AM_OK;
}
