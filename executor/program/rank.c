/* One rank: memory, shards, and a step's run.
 *
 * The allocation holds the program's values, then the scratch memory of the
 * kernel that needs most and, as they work beside kernels, of the collective
 * that does.
 */
#include "executor/program/rank.h"

#include <stdlib.h>
#include <string.h>

#include "executor/array/strided.h"
#include "lowering/program/iota_values.h"

static AmStatus describe_shard(RankShard *shard, const Rank *rank, int32_t value, const IrShape *global,
                               AmError *error) {
    const Program *program = rank->program;
    *shard = (RankShard){.value = value};
    if (value < 0) return AM_OK;
    const ProgramValue *held = &program->values[value];
    if (held->shape.type == DTYPE_TUPLE || sbp_has_partial(held->state))
        return am_fail(error, AM_ERROR_INTERNAL, "", "a parameter or output is neither whole nor split");
    shard->writes_part = true;
    if (!shard_layout(&shard->layout, program->mesh, held->state, program->device, global))
        return am_fail(error, AM_ERROR_INPUT, "", "an array of %d dimensions cannot be cut in blocks",
                       global->rank);
    if (shard_elements(&shard->layout) != ir_shape_elements(&held->shape))
        return am_fail(error, AM_ERROR_INTERNAL, "", "a shard's shape is not its state's");
    /* Copies of one part: the device with coordinate 0 on the other axes writes it. */
    for (int32_t a = 0; a < program->mesh->axis_count; a++)
        if (!sbp_is_split(held->state.axis[a]) && mesh_coordinate(program->mesh, program->device, a) != 0)
            shard->writes_part = false;
    return AM_OK;
}

AmStatus rank_open(Rank *rank, KernelDevice *device, Comm *comm, Program *program, AmError *error) {
    int64_t largest = 1;
    rank->device = device;
    rank->comm = comm;
    rank->program = program;
    program_find_iotas(program);
    TRY(executable_prepare(&rank->ready, &rank->arena, device, comm, program, false, error));
    const IrRoles *roles = program->roles;
    rank->parameters = ARENA_ARRAY(&rank->arena, RankShard, roles->parameter_count + 1);
    rank->outputs = ARENA_ARRAY(&rank->arena, RankShard, roles->output_count + 1);
    if (rank->arena.failed) return am_fail_memory(error, (int64_t)sizeof(RankShard) * roles->parameter_count);
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrShape *global = &program->module->instructions[roles->parameters[k].instruction].shape;
        TRY(describe_shard(&rank->parameters[k], rank, program->parameters[k], global, error));
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        const IrShape *global = &program->module->instructions[roles->outputs[k]].shape;
        TRY(describe_shard(&rank->outputs[k], rank, program->outputs[k], global, error));
    }
    rank->scratch_bytes =
        kernel_align(rank->ready->scratch_bytes) + kernel_align(rank->ready->comm_scratch_bytes);
    rank->memory_bytes = kernel_align(program->allocation.bytes) + rank->scratch_bytes;
    TRY(executable_allocate(rank->ready, &rank->memory, &rank->host_memory, error));
    for (int32_t v = 0; v < program->value_count; v++) {
        int64_t bytes =
            program->values[v].kind == PROGRAM_VALUE_INTERNAL ? 0 : ir_shape_bytes(&program->values[v].shape);
        if (bytes > largest) largest = bytes;
    }
    rank->host = malloc((size_t)largest);
    return rank->host ? AM_OK : am_fail_memory(error, largest);
}

AmStatus rank_watch(Rank *rank, int64_t steps, int32_t micro_batches, AmError *error) {
    TRY(timeline_open(&rank->timeline, rank->program, steps, error));
    executable_watch(rank->ready, rank->timeline, micro_batches);
    return AM_OK;
}

void rank_close(Rank *rank) {
    timeline_close(rank->timeline);
    if (rank->memory) rank->device->back_end->release(rank->device, rank->memory);
    if (rank->host_memory) rank->device->back_end->release_host(rank->device, rank->host_memory);
    free(rank->host);
    arena_free(&rank->arena);
    memset(rank, 0, sizeof *rank);
}

void rank_read_value(Rank *rank, int32_t value, void *to) {
    const ProgramValue *read = &rank->program->values[value];
    const void *from = rank->ready->addresses[value];
    size_t bytes = (size_t)ir_shape_bytes(&read->shape);
    if (read->is_on_host) memcpy(to, from, bytes);
    else device_copy_out(rank->device, to, from, (int64_t)bytes);
}

void rank_write_value(Rank *rank, int32_t value, const void *from) {
    const ProgramValue *written = &rank->program->values[value];
    void *to = rank->ready->addresses[value];
    size_t bytes = (size_t)ir_shape_bytes(&written->shape);
    if (written->is_on_host) memcpy(to, from, bytes);
    else device_copy_in(rank->device, to, from, (int64_t)bytes);
}

void rank_set_parameter(Rank *rank, int32_t k, const void *global) {
    const RankShard *shard = &rank->parameters[k];
    if (shard->value < 0) return;
    const IrShape *shape = &rank->program->values[shard->value].shape;
    const ShardLayout *layout = &shard->layout;
    int64_t bytes = dtype_bytes(shape->type);
    strided_copy(rank->host, layout->local_strides, (const char *)global + layout->start_offset * bytes,
                 layout->global_strides, layout->dimensions, layout->rank, bytes);
    rank_set_shard(rank, k, rank->host);
}

void rank_set_shard(Rank *rank, int32_t k, const void *shard) {
    if (rank->parameters[k].value >= 0) rank_write_value(rank, rank->parameters[k].value, shard);
}

/* Copies a shard to its place in the global array on the host. */
static void get_shard(Rank *rank, const RankShard *shard, void *global) {
    if (!shard->writes_part) return;
    const IrShape *shape = &rank->program->values[shard->value].shape;
    const ShardLayout *layout = &shard->layout;
    int64_t bytes = dtype_bytes(shape->type);
    rank_read_value(rank, shard->value, rank->host);
    strided_copy((char *)global + layout->start_offset * bytes, layout->global_strides, rank->host,
                 layout->local_strides, layout->dimensions, layout->rank, bytes);
}

void rank_get_parameter(Rank *rank, int32_t k, void *global) {
    get_shard(rank, &rank->parameters[k], global);
}

void rank_get_output(Rank *rank, int32_t k, void *global) {
    get_shard(rank, &rank->outputs[k], global);
}

AmStatus rank_start(Rank *rank, AmError *error) {
    TRY(device_finish(rank->device, error));
    return comm_start(rank->comm, error);
}

AmStatus rank_run(Rank *rank, AmError *error) {
    TRY(executable_run(rank->ready, error));
    return rank_finish(rank, error);
}

AmStatus rank_finish(Rank *rank, AmError *error) {
    TRY(comm_await(rank->comm, error));
    return device_synchronize(rank->device, error);
}

void rank_update(Rank *rank) {
    updates_apply(&rank->ready->updates, rank->device);
}
