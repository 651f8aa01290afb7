/* Collectives for tests of several processes without a GPU: every collective
 * carries the operands of all ranks to all processes, through the process group. */
#ifndef TESTS_SUPPORT_COMM_PROCESSES_H
#define TESTS_SUPPORT_COMM_PROCESSES_H

#include <stdlib.h>
#include <string.h>

#include "executor/comm/collective_compute.h"
#include "executor/comm/comm.h"
#include "executor/comm/rendezvous.h"

typedef struct CommShared {
    Rendezvous *rendezvous; /* of this process's ranks */
    ProcessGroup *processes;
    int32_t first, count, size;
    const CommCall **calls; /* [count], of the collective in work */
    ProcessPart *parts;     /* [processes]: offsets[count][operands], then the operands */
    int64_t run_count;      /* collectives of the first rank */
} CommShared;

/* For planted failures: called by the first rank before each of its collectives. */
static AmStatus (*comm_processes_hook)(CommShared *shared, AmError *error);

static AmStatus comm_processes_open(Comm *comms, int32_t first, int32_t count, int32_t size,
                                    KernelDevice *const *devices, ProcessGroup *processes, AmError *error);

static void comm_processes_close(Comm *comms) {
    CommShared *shared = comms[0].shared;
    rendezvous_close(shared->rendezvous);
    process_group_release_parts(shared->processes, shared->parts);
    free(shared->parts);
    free(shared->calls);
    free(shared);
}

static AmStatus comm_processes_join(Comm *comm, const int32_t *ranks, int32_t count, int32_t *group,
                                    AmError *error) {
    (void)comm, (void)ranks, (void)count, (void)error;
    *group = 0;
    return AM_OK;
}

/* Packs this process's data; C heap. */
static char *comm_processes_pack(const CommShared *shared, int64_t *bytes) {
    int32_t operands = shared->calls[0]->operand_count;
    *bytes = (int64_t)sizeof(int64_t) * shared->count * operands;
    for (int32_t r = 0; r < shared->count; r++)
        for (int32_t k = 0; k < operands; k++)
            *bytes += kernel_align(ir_shape_bytes(shared->calls[r]->operand_shapes[k]));
    char *packed = calloc(1, (size_t)*bytes + 1);
    int64_t at = (int64_t)sizeof(int64_t) * shared->count * operands;
    for (int32_t r = 0; r < shared->count; r++)
        for (int32_t k = 0; k < operands; k++) {
            int64_t size = ir_shape_bytes(shared->calls[r]->operand_shapes[k]);
            memcpy(packed + sizeof at * (size_t)(r * operands + k), &at, sizeof at);
            memcpy(packed + at, shared->calls[r]->operands[k], (size_t)size);
            at += kernel_align(size);
        }
    return packed;
}

/* Sends the operands of all ranks to all ranks; by the first rank. */
static AmStatus comm_processes_exchange(CommShared *shared, AmError *error) {
    ProcessGroup *processes = shared->processes;
    int64_t bytes;
    if (comm_processes_hook) TRY(comm_processes_hook(shared, error));
    shared->run_count++;
    char *packed = comm_processes_pack(shared, &bytes);
    process_group_release_parts(processes, shared->parts);
    AmStatus status = process_group_gather(processes, packed, bytes, INT32_MAX, shared->parts, error);
    free(packed);
    for (int32_t p = 0; p < processes->count && status == AM_OK; p++) {
        status = process_group_broadcast(processes, &shared->parts[p].count, sizeof(int64_t), error);
        if (status != AM_OK) break;
        if (processes->process != 0) shared->parts[p].bytes = malloc((size_t)shared->parts[p].count + 1);
        status = process_group_broadcast(processes, shared->parts[p].bytes, shared->parts[p].count, error);
    }
    return status;
}

static void comm_processes_all_reduce(const RendezvousGroup *group, const CommCall *call,
                                      const CollectiveScratch *scratch) {
    for (int32_t k = 0; k < call->operand_count; k++) {
        Combine work = collective_combine(call, k, scratch);
        work.result_count = 1;
        work.results[0] = call->results[k];
        for (int32_t m = 0; m < group->count; m++) work.members[m] = collective_call(group, m)->operands[k];
        combine_run(&work, 0, collective_real_elements(call->operand_shapes[k]));
    }
}

static void comm_processes_compute(const CommShared *shared, const CommCall *call) {
    enum { MOST_MEMBERS = 16, MOST_OPERANDS = 64 };
    const ProgramCollective *collective = call->collective;
    CommCall members[MOST_MEMBERS];
    const void *brought[MOST_MEMBERS];
    const char *arrays[MOST_MEMBERS];
    char *results[MOST_MEMBERS];
    void *operands[MOST_MEMBERS][MOST_OPERANDS];
    for (int32_t m = 0; m < collective->group_count; m++) {
        int32_t rank = collective->group[m];
        char *part = shared->parts[rank / shared->count].bytes;
        for (int32_t k = 0; k < call->operand_count; k++) {
            int64_t at;
            memcpy(&at, part + sizeof at * (size_t)(rank % shared->count * call->operand_count + k),
                   sizeof at);
            operands[m][k] = part + at;
        }
        members[m] = *call;
        members[m].operands = operands[m];
        brought[m] = &members[m];
    }
    RendezvousGroup group = {.count = collective->group_count, .brought = brought};
    const CollectiveScratch scratch = {arrays, results};
    if (collective->kind == PROGRAM_ALL_REDUCE) comm_processes_all_reduce(&group, call, &scratch);
    else collective_compute(&group, call, &scratch);
}

/* All ranks run the same collectives in the same order, so that each waits for all others. */
static AmStatus comm_processes_run(Comm *comm, const CommCall *call, AmError *error) {
    CommShared *shared = comm->shared;
    shared->calls[comm->rank - shared->first] = call;
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    if (comm->rank == shared->first) TRY(comm_processes_exchange(shared, error));
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    comm_processes_compute(shared, call);
    return rendezvous_barrier(shared->rendezvous, comm->rank, error);
}

static AmStatus comm_processes_barrier(Comm *comm, AmError *error) {
    CommShared *shared = comm->shared;
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    if (comm->rank == shared->first) TRY(process_group_barrier(shared->processes, error));
    return rendezvous_barrier(shared->rendezvous, comm->rank, error);
}

static void comm_processes_abort(Comm *comm) {
    rendezvous_abort(comm->shared->rendezvous);
}

static const CommBackEnd comm_processes = {.name = "processes",
                                           .open = comm_processes_open,
                                           .close = comm_processes_close,
                                           .join = comm_processes_join,
                                           .run = comm_processes_run,
                                           .waits_on_ranks = true,
                                           .barrier = comm_processes_barrier,
                                           .abort = comm_processes_abort};

static AmStatus comm_processes_open(Comm *comms, int32_t first, int32_t count, int32_t size,
                                    KernelDevice *const *devices, ProcessGroup *processes, AmError *error) {
    CommShared *shared = calloc(1, sizeof *shared);
    *shared = (CommShared){.processes = processes, .first = first, .count = count, .size = size};
    shared->calls = calloc((size_t)count, sizeof *shared->calls);
    shared->parts = calloc((size_t)processes->count, sizeof *shared->parts);
    TRY(rendezvous_open(&shared->rendezvous, first, count, error));
    for (int32_t r = 0; r < count; r++)
        comms[r] = (Comm){.back_end = &comm_processes,
                          .rank = first + r,
                          .size = size,
                          .device = devices[r],
                          .shared = shared};
    return AM_OK;
}

#endif
