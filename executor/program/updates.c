/* Updates: which of them need a copy, and the copies.
 *
 * A new value that was written in place or is the old one needs none. One whose
 * memory another update writes is copied aside first (ProgramUpdate.staging), as
 * that memory may be overwritten before it is read.
 */
#include "executor/program/updates.h"

AmStatus updates_prepare(Updates *updates, Arena *arena, const Program *program, AmError *error) {
    *updates = (Updates){.list = ARENA_ARRAY(arena, Update, program->execution.update_count + 1)};
    if (!updates->list)
        return am_fail_memory(error, (int64_t)sizeof(Update) * program->execution.update_count);
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        const ProgramUpdate *update = &program->execution.updates[k];
        int32_t storage = program->values[update->value].storage;
        if (update->in_place || storage == program->parameters[update->parameter]) continue;
        updates->list[updates->count++] =
            (Update){.update = update, .bytes = ir_shape_bytes(&program->values[update->value].shape)};
    }
    return AM_OK;
}

void updates_bind(Update *update, const Program *program, void *const *addresses, void *staging) {
    update->to = addresses[program->parameters[update->update->parameter]];
    update->from = addresses[update->update->value];
    update->staging = staging;
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
