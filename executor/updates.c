/* Updates: which of them need a copy, and the copies.
 *
 * A new value that was written in place or is the old one needs none. One that
 * lies in another parameter's memory is copied aside first, as that parameter
 * may be overwritten before it is read.
 */
#include "executor/updates.h"

static bool needs_copy(const Program *program, const ProgramUpdate *update) {
    const ProgramValue *value = &program->values[update->value];
    return !update->in_place && value->storage != program->parameters[update->parameter];
}

static bool lies_in_parameter(const Program *program, const ProgramUpdate *update) {
    return program->values[program->values[update->value].storage].kind == PROGRAM_VALUE_PARAMETER;
}

AmStatus updates_prepare(Updates *updates, Arena *arena, const Program *program, AmError *error) {
    *updates = (Updates){.list = ARENA_ARRAY(arena, Update, program->update_count + 1)};
    if (!updates->list) return am_fail_memory(error, (int64_t)sizeof(Update) * program->update_count);
    for (int32_t k = 0; k < program->update_count; k++) {
        const ProgramUpdate *update = &program->updates[k];
        if (!needs_copy(program, update)) continue;
        Update *copy = &updates->list[updates->count++];
        copy->bytes = ir_shape_bytes(&program->values[update->value].shape);
        if (lies_in_parameter(program, update)) updates->staging_bytes += kernel_align(copy->bytes);
    }
    return AM_OK;
}

void updates_bind(Updates *updates, const Program *program, char *base, char *staging) {
    int32_t n = 0;
    for (int32_t k = 0; k < program->update_count; k++) {
        const ProgramUpdate *update = &program->updates[k];
        if (!needs_copy(program, update)) continue;
        Update *copy = &updates->list[n++];
        copy->to = kernel_address(program, program->parameters[update->parameter], base);
        copy->from = kernel_address(program, update->value, base);
        copy->staging = NULL;
        if (!lies_in_parameter(program, update)) continue;
        copy->staging = staging;
        staging += kernel_align(copy->bytes);
    }
}

void updates_apply(const Updates *updates, KernelDevice *device) {
    const KernelBackEnd *back_end = device->back_end;
    for (int32_t k = 0; k < updates->count; k++) {
        const Update *update = &updates->list[k];
        if (update->staging) back_end->copy_within(device, update->staging, update->from, update->bytes);
    }
    for (int32_t k = 0; k < updates->count; k++) {
        const Update *update = &updates->list[k];
        back_end->copy_within(device, update->to, update->staging ? update->staging : update->from,
                              update->bytes);
    }
}
