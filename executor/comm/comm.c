/* Makes a call of a back end from a collective or transfer of a program.
 *
 * comm_prepare() resolves ranks, local shapes and reductions, and comm_bind() sets addresses.
 * comm_back_end_choose() selects the back end by name, or by the kernels and processes of the run.
 */
#include "executor/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "automap_features.h"
#include "base/suggest.h"
#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/processes/mpi_wire.h"

/* Finds the back end of that name for ranks that compute on `kernels`; AM_ERROR_RUNTIME if this build has
 * none. */
static AmStatus comm_back_end_find(const CommBackEnd **result, const char *name, const KernelBackEnd *kernels,
                                   AmError *error) {
    static const struct {
        const char *device;
        const CommBackEnd *back_end;
    } rows[] = {
        {"cpu", &comm_local},
        {"cpu", &comm_mpi},
#ifdef AUTOMAP_HAVE_CUDA
        {"cuda", &comm_local_cuda},
#endif
#ifdef AUTOMAP_HAVE_NCCL
        {"cuda", &comm_nccl},
#endif
    };
    static const char *const names[] = {"local", "mpi", "nccl"};
    char hint[SUGGEST_HINT_BYTES];
    bool is_mpi = strcmp(name, "mpi") == 0;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (strcmp(rows[k].device, kernels->name) == 0 && strcmp(rows[k].back_end->name, name) == 0 &&
            (!is_mpi || mpi_wire_name())) {
            *result = rows[k].back_end;
            return AM_OK;
        }
    if (!is_mpi && strcmp(name, "nccl") != 0)
        return am_fail(error, AM_ERROR_USAGE, "", "--comm %.60s: expected one of local, mpi, nccl%s", name,
                       suggest_hint(hint, name, names, sizeof names / sizeof *names));
    if (is_mpi != (kernels == &kernels_cpu))
        return am_fail(error, AM_ERROR_USAGE, "", "collectives '%s' need device '%s'", name,
                       is_mpi ? "cpu" : "cuda");
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "this build has no collectives '%s' (it was configured without %s)", name,
                   is_mpi ? "MPI" : "NCCL's header");
}

AmStatus comm_back_end_choose(const CommBackEnd **result, const char *name, const KernelBackEnd *kernels,
                              const ProcessGroup *processes, AmError *error) {
    bool on_host = kernels == &kernels_cpu;
    if (!processes) /* a single process, whose ranks are all local */
        return comm_back_end_find(result, !name || (on_host && strcmp(name, "mpi") == 0) ? "local" : name,
                                  kernels, error);
    if (name && strcmp(name, "local") == 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%d processes need collectives '%s': 'local' ones join the threads of one process",
                       processes->count, on_host ? "mpi" : "nccl");
    /* MPI can join the processes if it has, or if srun has prepared it. */
    bool has_mpi = mpi_wire_name() && (mpi_wire_is_started() || getenv("PMIX_RANK") || getenv("PMI_RANK"));
    if (!name && on_host && !has_mpi)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "%d processes on device 'cpu' need collectives 'mpi', for which %s has not prepared them: "
            "start them by mpirun or srun --mpi=pmix%s, or one process, whose ranks are threads",
            processes->count, processes->launcher,
            mpi_wire_name() ? "" : " (in a build with MPI, which this is not)");
    return comm_back_end_find(result, name ? name : on_host ? "mpi" : "nccl", kernels, error);
}

void comm_copy_host(const CommCall *call) {
    int32_t count = call->result_count > 0 ? call->result_count : call->operand_count / 2;
    void *const *to = call->result_count > 0 ? call->results : call->operands + count;
    for (int32_t k = 0; k < count; k++)
        memcpy(to[k], call->operands[k], (size_t)ir_shape_bytes(call->operand_shapes[k]));
}

const char *comm_call_name(const CommCall *call) {
    return call->collective ? program_collective_name(call->collective->kind) : "transfer";
}

AmStatus comm_find_sent(const ProgramPiece **piece, const CommCall *sender, const CommCall *receiver,
                        int32_t receiver_rank, int32_t k, AmError *error) {
    const ProgramTransfer *sent = sender->transfer, *received = receiver->transfer;
    const ProgramPiece *to = &received->receives[k];
    size_t bytes = sizeof *to->extent * (size_t)receiver->result_shapes[0]->rank;
    int32_t before = 0;
    for (int32_t j = 0; j < k; j++) before += received->receives[j].peer == to->peer;
    *piece = NULL;
    for (int32_t j = 0; sent && j < sent->send_count && !*piece; j++)
        if (sent->sends[j].peer == receiver_rank && before-- == 0) *piece = &sent->sends[j];
    if (*piece && memcmp((*piece)->extent, to->extent, bytes) == 0) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, "", "ranks %d and %d do not mean the same transfer", to->peer,
                   receiver_rank);
}

char *comm_piece_place(void *array, const IrShape *shape, const ProgramPiece *piece, int64_t *strides) {
    int64_t at = 0;
    strided_row_major(strides, shape->dimensions, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++) at += piece->start[d] * strides[d];
    return (char *)array + at * dtype_bytes(shape->type);
}

/* Sets the ranks of the group from its mesh devices. */
static AmStatus set_ranks(CommCall *call, Arena *arena, const Program *program, AmError *error) {
    const ProgramCollective *collective = call->collective;
    if (call->transfer) {
        call->ranks = call->transfer->ranks;
        call->rank_count = call->transfer->rank_count;
        return AM_OK;
    }
    int32_t *ranks = ARENA_ARRAY(arena, int32_t, collective->group_count + 1);
    if (!ranks) return am_fail_memory(error, collective->group_count * 4);
    for (int32_t k = 0; k < collective->group_count; k++)
        ranks[k] = program->first_rank + collective->group[k];
    call->ranks = ranks;
    call->rank_count = collective->group_count;
    return AM_OK;
}

AmStatus comm_prepare(CommCall **result, Arena *arena, Comm *comm, const Program *program,
                      const ProgramInstruction *instruction, AmError *error) {
    const ProgramCollective *collective = instruction->collective;
    int32_t operands = instruction->operand_count, results = instruction->result_count;
    bool reduces =
        collective && (collective->kind == PROGRAM_ALL_REDUCE || collective->kind == PROGRAM_REDUCE_SCATTER);
    CommCall *call = ARENA_ARRAY(arena, CommCall, 1);
    const IrShape **shapes = ARENA_ARRAY(arena, const IrShape *, operands + results + 1);
    void **addresses = ARENA_ARRAY(arena, void *, operands + results + 1);
    if (arena->failed) return am_fail_memory(error, (operands + results) * 16);
    *call = (CommCall){.collective = collective,
                       .transfer = instruction->transfer,
                       .position = -1,
                       .operand_count = operands,
                       .result_count = results,
                       .operand_shapes = shapes,
                       .result_shapes = shapes + operands,
                       .operands = addresses,
                       .results = addresses + operands};
    for (int32_t k = 0; k < operands; k++) {
        shapes[k] = &program->values[instruction->operands[k]].shape;
        bool is_sum = reduces && collective->reduction == SBP_ADD; /* of complex numbers: of their parts */
        if (reduces && !scalar64_supports(is_sum ? dtype_real_part(shapes[k]->type) : shapes[k]->type))
            return am_fail(error, AM_ERROR_INPUT, program->module ? program->module->source : "",
                           "no %s on %s", program_collective_name(collective->kind),
                           dtype_name(shapes[k]->type));
    }
    for (int32_t k = 0; k < results; k++)
        shapes[operands + k] = &program->values[instruction->first_result + k].shape;
    TRY(set_ranks(call, arena, program, error));
    for (int32_t k = 0; k < call->rank_count; k++)
        if (call->ranks[k] == comm->rank) call->position = k;
    if (call->position < 0 && collective)
        return am_fail(error, AM_ERROR_INTERNAL, "", "rank %d is not in the group of its own collective",
                       comm->rank);
    *result = call;
    if (call->transfer && call->transfer->slots > 0) return AM_OK; /* a stream needs no rendezvous */
    if (call->position >= 0 && !comm_is_host_copy(call))
        TRY(comm->back_end->join(comm, call->ranks, call->rank_count, &call->group, error));
    return comm->back_end->prepare ? comm->back_end->prepare(comm, call, error) : AM_OK;
}

void comm_bind(CommCall *call, const ProgramInstruction *instruction, void *const *addresses, void *scratch) {
    call->scratch = scratch;
    for (int32_t k = 0; k < call->operand_count; k++) call->operands[k] = addresses[instruction->operands[k]];
    for (int32_t k = 0; k < call->result_count; k++)
        call->results[k] = addresses[instruction->first_result + k];
}
