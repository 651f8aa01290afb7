/* Subprograms: preparation, addresses, and a run.
 *
 * A subprogram is to its caller's kernel what a program is to a rank: kernels
 * prepared once, one piece of memory, and after a run the updates. Steps of a
 * subprogram may have subprograms themselves, each with memory of its own
 * inside the scratch memory of its caller.
 */
#include "executor/subprogram.h"

AmStatus subprogram_prepare(Subprogram **result, Arena *arena, KernelDevice *device, const Program *program,
                            AmError *error) {
    Subprogram *self = ARENA_ARRAY(arena, Subprogram, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->program = program;
    self->device = device;
    self->parameter_count = program->roles->parameter_count;
    self->output_count = program->roles->output_count;
    self->value_bytes = kernel_align(program->allocation_bytes);
    self->calls = ARENA_ARRAY(arena, KernelCall *, program->step_count + 1);
    self->parameters = ARENA_ARRAY(arena, void *, self->parameter_count + 1);
    self->outputs = ARENA_ARRAY(arena, void *, self->output_count + 1);
    if (arena->failed) return am_fail_memory(error, program->step_count * 8);
    for (int32_t s = 0; s < program->step_count; s++) {
        TRY(kernel_prepare(&self->calls[s], arena, device, program, &program->steps[s], error));
        if (self->calls[s]->scratch_bytes > self->scratch_bytes)
            self->scratch_bytes = self->calls[s]->scratch_bytes;
        self->waits_on_host |= self->calls[s]->waits_on_host;
    }
    TRY(updates_prepare(&self->updates, arena, program, error));
    *result = self;
    return AM_OK;
}

void subprogram_bind(Subprogram *self, char *values, char *staging, char *scratch) {
    const Program *program = self->program;
    for (int32_t s = 0; s < program->step_count; s++) kernel_bind(self->calls[s], values, scratch);
    updates_bind(&self->updates, program, values, staging);
    for (int32_t k = 0; k < self->parameter_count; k++)
        self->parameters[k] = kernel_address(program, program->parameters[k], values);
    for (int32_t k = 0; k < self->output_count; k++)
        self->outputs[k] = kernel_address(program, program->outputs[k], values);
}

void subprogram_run(const Subprogram *self) {
    for (int32_t s = 0; s < self->program->step_count; s++) self->calls[s]->run(self->calls[s]);
    updates_apply(&self->updates, self->device);
}

void subprogram_replay(Subprogram *self) {
    const KernelBackEnd *back_end = self->device->back_end;
    bool done = false, recordable = back_end->begin && !self->waits_on_host;
    while (!done) {
        if (recordable && back_end->begin(self->device, &self->record)) return;
        subprogram_run(self);
        done = !recordable || back_end->end(self->device, &self->record);
    }
}
