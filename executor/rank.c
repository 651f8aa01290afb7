/* One rank: preparation, memory, shards, and the loop over a program's steps.
 *
 * The allocation holds the program's values, then the staging area of updates
 * that read another parameter's memory, then the scratch memory of the kernel
 * that wants most.
 */
#include "executor/rank.h"

#include <stdlib.h>
#include <string.h>

#include "executor/cpu/strided.h"

static int64_t aligned(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

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

static AmStatus prepare_steps(Rank *rank, int64_t *scratch, AmError *error) {
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
            continue;
        }
        TRY(kernel_prepare(&ready->kernel, &rank->arena, rank->back_end, program, step, error));
        if (ready->kernel->scratch_bytes > *scratch) *scratch = ready->kernel->scratch_bytes;
    }
    return AM_OK;
}

AmStatus rank_open(Rank *rank, const KernelBackEnd *back_end, Comm *comm, Program *program, AmError *error) {
    int64_t scratch = 0, largest = 1;
    rank->back_end = back_end;
    rank->comm = comm;
    rank->program = program;
    TRY(prepare_steps(rank, &scratch, error));
    TRY(describe_shards(rank, error));
    TRY(updates_prepare(&rank->updates, &rank->arena, program, error));
    int64_t values = aligned(program->allocation_bytes), staging = rank->updates.staging_bytes;
    rank->scratch_bytes = aligned(scratch);
    rank->memory_bytes = values + staging + rank->scratch_bytes;
    TRY(back_end->allocate((void **)&rank->memory, rank->memory_bytes, error));
    for (int32_t s = 0; s < program->step_count; s++) {
        if (rank->steps[s].kernel)
            kernel_bind(rank->steps[s].kernel, rank->memory, rank->memory + values + staging);
        else
            comm_bind(rank->steps[s].collective, program,
                      &program->instructions[program->steps[s].instruction], rank->memory);
    }
    updates_bind(&rank->updates, program, rank->memory, rank->memory + values);
    for (int32_t v = 0; v < program->value_count; v++) {
        int64_t bytes =
            program->values[v].kind == PROGRAM_VALUE_INTERNAL ? 0 : ir_shape_bytes(&program->values[v].shape);
        if (bytes > largest) largest = bytes;
    }
    rank->host = malloc((size_t)largest);
    return rank->host ? AM_OK : am_fail_memory(error, largest);
}

void rank_close(Rank *rank) {
    if (rank->memory) rank->back_end->release(rank->memory);
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
    rank->back_end->copy_in(kernel_address(rank->program, shard->value, rank->memory), rank->host,
                            ir_shape_bytes(shape));
}

static void get(Rank *rank, const RankShard *shard, void *whole) {
    const IrShape *shape = &rank->program->values[shard->value].shape;
    int64_t bytes = dtype_bytes(shape->type);
    if (!shard->speaks) return;
    rank->back_end->copy_out(rank->host, kernel_address(rank->program, shard->value, rank->memory),
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

AmStatus rank_run(Rank *rank, AmError *error) {
    for (int32_t s = 0; s < rank->program->step_count; s++) {
        const RankStep *step = &rank->steps[s];
        if (step->kernel) step->kernel->run(step->kernel);
        else TRY(rank->comm->back_end->run(rank->comm, step->collective, error));
    }
    return rank->back_end->synchronize(error);
}

void rank_update(Rank *rank) {
    updates_apply(&rank->updates, rank->back_end);
}
