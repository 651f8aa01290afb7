/* Collectives for tests of several processes without a GPU: every collective
 * carries the operands of all ranks to all processes, through the world's star. */
#ifndef TESTS_SUPPORT_COMM_WORLD_H
#define TESTS_SUPPORT_COMM_WORLD_H

#include <stdlib.h>
#include <string.h>

#include "executor/comm/collective_compute.h"
#include "executor/comm/comm.h"
#include "executor/comm/rendezvous.h"

typedef struct CommWorld {
    Rendezvous *rendezvous; /* of this process's ranks */
    World *processes;
    int32_t first, count, size;
    const CommCall **calls; /* [count], of the collective in work */
    WorldPart *parts;       /* [processes]: offsets[count][operands], then the operands */
    int64_t run_count;      /* collectives of the first rank */
} CommWorld;

/* For planted failures: called by the first rank before each of its collectives. */
static AmStatus (*comm_world_hook)(CommWorld *world, AmError *error);

static AmStatus comm_world_open(Comm *comms, int32_t first, int32_t count, int32_t size,
                                KernelDevice *const *devices, World *processes, AmError *error);

static void comm_world_close(Comm *comms) {
    CommWorld *world = comms[0].world;
    rendezvous_close(world->rendezvous);
    world_release_parts(world->processes, world->parts);
    free(world->parts);
    free(world->calls);
    free(world);
}

static AmStatus comm_world_join(Comm *comm, const int32_t *ranks, int32_t count, int32_t *group,
                                AmError *error) {
    (void)comm, (void)ranks, (void)count, (void)error;
    *group = 0;
    return AM_OK;
}

/* Packs this process's data; C heap. */
static char *comm_world_pack(const CommWorld *world, int64_t *bytes) {
    int32_t operands = world->calls[0]->operand_count;
    *bytes = (int64_t)sizeof(int64_t) * world->count * operands;
    for (int32_t r = 0; r < world->count; r++)
        for (int32_t k = 0; k < operands; k++)
            *bytes += kernel_align(ir_shape_bytes(world->calls[r]->operand_shapes[k]));
    char *packed = calloc(1, (size_t)*bytes + 1);
    int64_t at = (int64_t)sizeof(int64_t) * world->count * operands;
    for (int32_t r = 0; r < world->count; r++)
        for (int32_t k = 0; k < operands; k++) {
            int64_t size = ir_shape_bytes(world->calls[r]->operand_shapes[k]);
            memcpy(packed + sizeof at * (size_t)(r * operands + k), &at, sizeof at);
            memcpy(packed + at, world->calls[r]->operands[k], (size_t)size);
            at += kernel_align(size);
        }
    return packed;
}

/* Everybody's operands to everybody; by the first rank. */
static AmStatus comm_world_exchange(CommWorld *world, AmError *error) {
    World *processes = world->processes;
    int64_t bytes;
    if (comm_world_hook) TRY(comm_world_hook(world, error));
    world->run_count++;
    char *packed = comm_world_pack(world, &bytes);
    world_release_parts(processes, world->parts);
    AmStatus status = world_gather(processes, packed, bytes, INT32_MAX, world->parts, error);
    free(packed);
    for (int32_t p = 0; p < processes->count && status == AM_OK; p++) {
        status = world_broadcast(processes, &world->parts[p].count, sizeof(int64_t), error);
        if (status != AM_OK) break;
        if (processes->process != 0) world->parts[p].bytes = malloc((size_t)world->parts[p].count + 1);
        status = world_broadcast(processes, world->parts[p].bytes, world->parts[p].count, error);
    }
    return status;
}

static void comm_world_all_reduce(const RendezvousGroup *group, const CommCall *call,
                                  const CollectiveScratch *scratch) {
    for (int32_t k = 0; k < call->operand_count; k++) {
        Combine work = collective_combine(call, k, scratch);
        work.result_count = 1;
        work.results[0] = call->results[k];
        for (int32_t m = 0; m < group->count; m++) work.members[m] = collective_call(group, m)->operands[k];
        combine_run(&work, 0, collective_real_elements(call->operand_shapes[k]));
    }
}

static void comm_world_compute(const CommWorld *world, const CommCall *call) {
    enum { MOST_MEMBERS = 16, MOST_OPERANDS = 64 };
    const ProgramCollective *collective = call->collective;
    CommCall members[MOST_MEMBERS];
    const void *brought[MOST_MEMBERS];
    const char *arrays[MOST_MEMBERS];
    char *results[MOST_MEMBERS];
    void *operands[MOST_MEMBERS][MOST_OPERANDS];
    for (int32_t m = 0; m < collective->group_count; m++) {
        int32_t rank = collective->group[m];
        char *part = world->parts[rank / world->count].bytes;
        for (int32_t k = 0; k < call->operand_count; k++) {
            int64_t at;
            memcpy(&at, part + sizeof at * (size_t)(rank % world->count * call->operand_count + k),
                   sizeof at);
            operands[m][k] = part + at;
        }
        members[m] = *call;
        members[m].operands = operands[m];
        brought[m] = &members[m];
    }
    RendezvousGroup group = {.count = collective->group_count, .brought = brought};
    const CollectiveScratch scratch = {arrays, results};
    if (collective->kind == PROGRAM_ALL_REDUCE) comm_world_all_reduce(&group, call, &scratch);
    else collective_compute(&group, call, &scratch);
}

/* All ranks run the same collectives in the same order, so that each waits for all others. */
static AmStatus comm_world_run(Comm *comm, const CommCall *call, AmError *error) {
    CommWorld *world = comm->world;
    world->calls[comm->rank - world->first] = call;
    TRY(rendezvous_barrier(world->rendezvous, comm->rank, error));
    if (comm->rank == world->first) TRY(comm_world_exchange(world, error));
    TRY(rendezvous_barrier(world->rendezvous, comm->rank, error));
    comm_world_compute(world, call);
    return rendezvous_barrier(world->rendezvous, comm->rank, error);
}

static AmStatus comm_world_barrier(Comm *comm, AmError *error) {
    CommWorld *world = comm->world;
    TRY(rendezvous_barrier(world->rendezvous, comm->rank, error));
    if (comm->rank == world->first) TRY(world_barrier(world->processes, error));
    return rendezvous_barrier(world->rendezvous, comm->rank, error);
}

static void comm_world_abort(Comm *comm) {
    rendezvous_abort(comm->world->rendezvous);
}

static const CommBackEnd comm_world = {.name = "world",
                                       .open = comm_world_open,
                                       .close = comm_world_close,
                                       .join = comm_world_join,
                                       .run = comm_world_run,
                                       .waits_on_ranks = true,
                                       .barrier = comm_world_barrier,
                                       .abort = comm_world_abort};

static AmStatus comm_world_open(Comm *comms, int32_t first, int32_t count, int32_t size,
                                KernelDevice *const *devices, World *processes, AmError *error) {
    CommWorld *world = calloc(1, sizeof *world);
    *world = (CommWorld){.processes = processes, .first = first, .count = count, .size = size};
    world->calls = calloc((size_t)count, sizeof *world->calls);
    world->parts = calloc((size_t)processes->count, sizeof *world->parts);
    TRY(rendezvous_open(&world->rendezvous, first, count, error));
    for (int32_t r = 0; r < count; r++)
        comms[r] = (Comm){
            .back_end = &comm_world, .rank = first + r, .size = size, .device = devices[r], .world = world};
    return AM_OK;
}

#endif
