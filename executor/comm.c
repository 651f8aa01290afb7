/* From a program's collective to a call: what all back ends share. */
#include "executor/comm.h"

#include <string.h>

#include "automap_features.h"
#include "executor/cpu/wide.h"

AmStatus comm_back_end_find(const CommBackEnd **result, const char *name, const KernelBackEnd *kernels,
                            AmError *error) {
    static const struct {
        const char *device;
        const CommBackEnd *back_end;
    } rows[] = {
        {"cpu", &comm_local},
#ifdef AUTOMAP_HAVE_CUDA
        {"cuda", &comm_local_cuda},
#endif
#ifdef AUTOMAP_HAVE_NCCL
        {"cuda", &comm_nccl},
#endif
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (strcmp(rows[k].device, kernels->name) == 0 && strcmp(rows[k].back_end->name, name) == 0) {
            *result = rows[k].back_end;
            return AM_OK;
        }
    if (strcmp(name, "nccl") != 0)
        return am_fail(error, AM_ERROR_USAGE, "", "there are no collectives '%s': local or nccl", name);
    if (kernels == &kernels_cpu)
        return am_fail(error, AM_ERROR_USAGE, "", "collectives 'nccl' need device 'cuda'");
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "this build has no collectives 'nccl' (it was configured without NCCL's header)");
}

AmStatus comm_prepare(CommCall **result, Arena *arena, Comm *comm, const Program *program,
                      const ProgramInstruction *instruction, AmError *error) {
    const ProgramCollective *collective = instruction->collective;
    int32_t count = instruction->operand_count;
    bool reduces = collective->kind == PROGRAM_ALL_REDUCE || collective->kind == PROGRAM_REDUCE_SCATTER;
    CommCall *call = ARENA_ARRAY(arena, CommCall, 1);
    const IrShape **shapes = ARENA_ARRAY(arena, const IrShape *, 2 * count + 1);
    void **addresses = ARENA_ARRAY(arena, void *, 2 * count + 1);
    if (arena->failed) return am_fail_memory(error, count * 32);
    *call = (CommCall){.collective = collective,
                       .position = -1,
                       .operand_count = count,
                       .operand_shapes = shapes,
                       .result_shapes = shapes + count,
                       .operands = addresses,
                       .results = addresses + count};
    for (int32_t k = 0; k < count; k++) {
        shapes[k] = &program->values[instruction->operands[k]].shape;
        shapes[count + k] = &program->values[instruction->first_result + k].shape;
        if (reduces && !wide_supports(shapes[k]->type))
            return am_fail(error, AM_ERROR_INPUT, program->module ? program->module->source : "",
                           "no %s on %s", program_collective_name(collective->kind),
                           dtype_name(shapes[k]->type));
    }
    for (int32_t k = 0; k < collective->group_count; k++)
        if (collective->group[k] == comm->rank) call->position = k;
    if (call->position < 0)
        return am_fail(error, AM_ERROR_INTERNAL, "", "rank %d is not in the group of its own collective",
                       comm->rank);
    *result = call;
    TRY(comm->back_end->join(comm, collective->group, collective->group_count, &call->group, error));
    return comm->back_end->prepare ? comm->back_end->prepare(comm, call, error) : AM_OK;
}

void comm_bind(CommCall *call, const ProgramInstruction *instruction, void *const *addresses, void *scratch) {
    call->scratch = scratch;
    for (int32_t k = 0; k < call->operand_count; k++) {
        call->operands[k] = addresses[instruction->operands[k]];
        call->results[k] = addresses[instruction->first_result + k];
    }
}
