/* One rank: preparation, memory, shards, and the loop over a program's steps.
 *
 * The allocation holds the program's values, then the staging area of updates
 * that read another parameter's memory, then the scratch memory of the kernel
 * that wants most and, as they work beside kernels, of the collective that does.
 */
#include "executor/rank.h"

#include <stdlib.h>
#include <string.h>

#include "executor/cpu/strided.h"

static AmStatus describe_shard(RankShard *shard, const Rank *rank, int32_t value, const IrShape *whole,
                               AmError *error) {
    const Program *program = rank->program;
    const ProgramValue *held = &program->values[value];
    if (held->shape.type == DTYPE_TUPLE || sbp_has_partial(held->state))
        return am_fail(error, AM_ERROR_INTERNAL, "", "a parameter or output is neither whole nor split");
    shard->value = value;
    shard->speaks = true;
    shard->start_offset = 0;
    strided_row_major(shard->whole_strides, whole->dimensions, whole->rank);
    strided_row_major(shard->local_strides, held->shape.dimensions, held->shape.rank);
    for (int32_t d = 0; d < whole->rank; d++) {
        int64_t start, extent;
        sbp_shard(program->mesh, held->state, program->device, d, whole->dimensions[d], &start, &extent);
        shard->dimensions[d] = extent;
        shard->start_offset += start * shard->whole_strides[d];
        if (extent != held->shape.dimensions[d])
            return am_fail(error, AM_ERROR_INTERNAL, "", "a shard's shape is not its state's");
    }
    /* Copies of one part: the device with coordinate 0 on the other axes speaks. */
    for (int32_t a = 0; a < program->mesh->axis_count; a++)
        if (!sbp_is_split(held->state.axis[a]) && mesh_coordinate(program->mesh, program->device, a) != 0)
            shard->speaks = false;
    return AM_OK;
}

static AmStatus describe_shards(Rank *rank, AmError *error) {
    const Program *program = rank->program;
    const IrRoles *roles = program->roles;
    rank->parameters = ARENA_ARRAY(&rank->arena, RankShard, roles->parameter_count + 1);
    rank->outputs = ARENA_ARRAY(&rank->arena, RankShard, roles->output_count + 1);
    if (rank->arena.failed) return am_fail_memory(error, (int64_t)sizeof(RankShard) * roles->parameter_count);
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrShape *whole = &program->module->instructions[roles->parameters[k].instruction].shape;
        TRY(describe_shard(&rank->parameters[k], rank, program->parameters[k], whole, error));
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        const IrShape *whole = &program->module->instructions[roles->outputs[k]].shape;
        TRY(describe_shard(&rank->outputs[k], rank, program->outputs[k], whole, error));
    }
    return AM_OK;
}

static AmStatus prepare_steps(Rank *rank, int64_t *scratch, int64_t *comm_scratch, AmError *error) {
    const Program *program = rank->program;
    rank->steps = ARENA_ARRAY(&rank->arena, RankStep, program->step_count + 1);
    if (!rank->steps) return am_fail_memory(error, (int64_t)sizeof(RankStep) * program->step_count);
    for (int32_t s = 0; s < program->step_count; s++) {
        const ProgramStep *step = &program->steps[s];
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        RankStep *ready = &rank->steps[s];
        if (instruction && instruction->kind == PROGRAM_COLLECTIVE) {
            TRY(comm_prepare(&ready->collective, &rank->arena, rank->comm, program, instruction, error));
            if (ready->collective->scratch_bytes > *comm_scratch)
                *comm_scratch = ready->collective->scratch_bytes;
            continue;
        }
        TRY(kernel_prepare(&ready->kernel, &rank->arena, rank->device, program, step, error));
        if (ready->kernel->scratch_bytes > *scratch) *scratch = ready->kernel->scratch_bytes;
    }
    return AM_OK;
}

AmStatus rank_open(Rank *rank, KernelDevice *device, Comm *comm, Program *program, AmError *error) {
    int64_t scratch = 0, comm_scratch = 0, largest = 1;
    rank->device = device;
    rank->comm = comm;
    rank->program = program;
    TRY(prepare_steps(rank, &scratch, &comm_scratch, error));
    TRY(describe_shards(rank, error));
    TRY(updates_prepare(&rank->updates, &rank->arena, program, error));
    int64_t values = kernel_align(program->allocation_bytes), staging = rank->updates.staging_bytes;
    rank->scratch_bytes = kernel_align(scratch) + kernel_align(comm_scratch);
    rank->memory_bytes = values + staging + rank->scratch_bytes;
    TRY(device->back_end->allocate(device, (void **)&rank->memory, rank->memory_bytes, error));
    char *for_kernels = rank->memory + values + staging,
         *for_collectives = for_kernels + kernel_align(scratch);
    for (int32_t s = 0; s < program->step_count; s++) {
        if (rank->steps[s].kernel) kernel_bind(rank->steps[s].kernel, rank->memory, for_kernels);
        else
            comm_bind(rank->steps[s].collective, program,
                      &program->instructions[program->steps[s].instruction], rank->memory, for_collectives);
    }
    updates_bind(&rank->updates, program, rank->memory, rank->memory + values);
    if (comm->back_end->wait)
        TRY(overlap_find_waits(rank->steps, program->step_count, &rank->last_wait, error));
    TRY(overlap_find_stretches(&rank->stretches, &rank->stretch_count, &rank->arena, rank->steps,
                               program->step_count, comm->back_end->meets_on_host, error));
    for (int32_t v = 0; v < program->value_count; v++) {
        int64_t bytes =
            program->values[v].kind == PROGRAM_VALUE_INTERNAL ? 0 : ir_shape_bytes(&program->values[v].shape);
        if (bytes > largest) largest = bytes;
    }
    rank->host = malloc((size_t)largest);
    return rank->host ? AM_OK : am_fail_memory(error, largest);
}

void rank_close(Rank *rank) {
    if (rank->memory) rank->device->back_end->release(rank->device, rank->memory);
    free(rank->host);
    arena_free(&rank->arena);
    memset(rank, 0, sizeof *rank);
}

void rank_set_parameter(Rank *rank, int32_t k, const void *whole) {
    const RankShard *shard = &rank->parameters[k];
    const IrShape *shape = &rank->program->values[shard->value].shape;
    int64_t bytes = dtype_bytes(shape->type);
    strided_copy(rank->host, shard->local_strides, (const char *)whole + shard->start_offset * bytes,
                 shard->whole_strides, shard->dimensions, shape->rank, bytes);
    rank->device->back_end->copy_in(rank->device, kernel_address(rank->program, shard->value, rank->memory),
                                    rank->host, ir_shape_bytes(shape));
}

static void get(Rank *rank, const RankShard *shard, void *whole) {
    const IrShape *shape = &rank->program->values[shard->value].shape;
    int64_t bytes = dtype_bytes(shape->type);
    if (!shard->speaks) return;
    rank->device->back_end->copy_out(rank->device, rank->host,
                                     kernel_address(rank->program, shard->value, rank->memory),
                                     ir_shape_bytes(shape));
    strided_copy((char *)whole + shard->start_offset * bytes, shard->whole_strides, rank->host,
                 shard->local_strides, shard->dimensions, shape->rank, bytes);
}

void rank_get_parameter(Rank *rank, int32_t k, void *whole) {
    get(rank, &rank->parameters[k], whole);
}

void rank_get_output(Rank *rank, int32_t k, void *whole) {
    get(rank, &rank->outputs[k], whole);
}

AmStatus rank_start(Rank *rank, AmError *error) {
    const KernelBackEnd *kernels = rank->device->back_end;
    if (kernels->finish) TRY(kernels->finish(rank->device, error));
    if (rank->comm->back_end->start) TRY(rank->comm->back_end->start(rank->comm, error));
    return AM_OK;
}

static AmStatus run_steps(Rank *rank, int32_t first, int32_t end, AmError *error) {
    const CommBackEnd *collectives = rank->comm->back_end;
    for (int32_t s = first; s < end; s++) {
        const RankStep *step = &rank->steps[s];
        if (step->wait) collectives->wait(rank->comm, step->wait);
        if (step->kernel) step->kernel->run(step->kernel);
        else TRY(collectives->run(rank->comm, step->collective, error));
    }
    if (end == rank->program->step_count && rank->last_wait) collectives->wait(rank->comm, rank->last_wait);
    return AM_OK;
}

/* Runs a stretch, or lets the device replay it. */
static AmStatus run_stretch(Rank *rank, RankStretch *stretch, AmError *error) {
    const KernelBackEnd *kernels = rank->device->back_end;
    bool done = false, recordable = kernels->begin && stretch->recordable;
    while (!done) {
        if (recordable && kernels->begin(rank->device, &stretch->record)) return AM_OK;
        AmStatus status = run_steps(rank, stretch->first, stretch->end, error);
        done = !recordable || kernels->end(rank->device, &stretch->record);
        TRY(status);
    }
    return AM_OK;
}

AmStatus rank_run(Rank *rank, AmError *error) {
    for (int32_t k = 0; k < rank->stretch_count; k++) TRY(run_stretch(rank, &rank->stretches[k], error));
    if (rank->comm->back_end->await) TRY(rank->comm->back_end->await(rank->comm, error));
    return rank->device->back_end->synchronize(rank->device, error);
}

void rank_update(Rank *rank) {
    updates_apply(&rank->updates, rank->device);
}
