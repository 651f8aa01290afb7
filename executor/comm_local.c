/* Collectives between threads of one process, on shared memory.
 *
 * Each group has a rendezvous: its members publish their calls, wait for one
 * another, then each builds its own results by reading the others' operands,
 * and all wait again before anybody's operand may change. all_reduce works in
 * two rounds, as in a ring but without copies on the way: member k reduces the
 * k-th part of the elements from all operands into its own result, then
 * everybody copies the parts of the others; that is correct in place.
 * A failure sets one flag and wakes every rendezvous.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "executor/comm.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

typedef struct Rendezvous {
    int32_t count, arrived;
    uint64_t round;
    pthread_mutex_t mutex;
    pthread_cond_t all_here;
    int32_t *ranks;         /* [count] */
    const CommCall **calls; /* [count], of the collective in work */
    struct Rendezvous *next;
    int32_t name;
} Rendezvous;

typedef struct CommWorld {
    int32_t size;
    atomic_bool failed;
    pthread_mutex_t mutex; /* guards the list of groups */
    Rendezvous *groups;    /* newest first; nodes stay where they are */
    int32_t group_count;
    Rendezvous *everybody;
} CommWorld;

static AmStatus released(Comm *comm, AmError *error) {
    return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d was stopped because another rank failed",
                   comm->rank);
}

/* Waits until all members have come here; AM_ERROR_RUNTIME if a rank failed meanwhile. */
static AmStatus meet(Comm *comm, Rendezvous *group, AmError *error) {
    bool complete = true;
    pthread_mutex_lock(&group->mutex);
    uint64_t round = group->round;
    if (++group->arrived == group->count) {
        group->arrived = 0;
        group->round++;
        pthread_cond_broadcast(&group->all_here);
    } else {
        while (group->round == round && !atomic_load(&comm->world->failed))
            pthread_cond_wait(&group->all_here, &group->mutex);
        complete = group->round != round;
    }
    pthread_mutex_unlock(&group->mutex);
    return complete ? AM_OK : released(comm, error);
}

static void free_group(Rendezvous *group) {
    if (!group) return;
    free(group->ranks);
    free(group->calls);
    free(group);
}

static AmStatus new_group(Rendezvous **result, const int32_t *ranks, int32_t count, AmError *error) {
    Rendezvous *group = calloc(1, sizeof *group);
    if (group) {
        group->ranks = malloc(sizeof(int32_t) * (size_t)count);
        group->calls = calloc((size_t)count, sizeof *group->calls);
    }
    if (!group || !group->ranks || !group->calls) {
        free_group(group);
        return am_fail_memory(error, count * 16);
    }
    memcpy(group->ranks, ranks, sizeof(int32_t) * (size_t)count);
    group->count = count;
    pthread_mutex_init(&group->mutex, NULL);
    pthread_cond_init(&group->all_here, NULL);
    *result = group;
    return AM_OK;
}

static AmStatus join(Comm *comm, const int32_t *ranks, int32_t count, int32_t *name, AmError *error) {
    CommWorld *world = comm->world;
    AmStatus status = AM_OK;
    pthread_mutex_lock(&world->mutex);
    Rendezvous *group = world->groups;
    while (group &&
           (group->count != count || memcmp(group->ranks, ranks, sizeof(int32_t) * (size_t)count) != 0))
        group = group->next;
    if (!group) {
        status = new_group(&group, ranks, count, error);
        if (status == AM_OK) {
            group->next = world->groups;
            group->name = world->group_count++;
            world->groups = group;
        }
    }
    if (status == AM_OK) *name = group->name;
    pthread_mutex_unlock(&world->mutex);
    return status;
}

static Rendezvous *find_group(CommWorld *world, int32_t name) {
    pthread_mutex_lock(&world->mutex);
    Rendezvous *group = world->groups;
    while (group && group->name != name) group = group->next;
    pthread_mutex_unlock(&world->mutex);
    return group;
}

static int64_t part_start(const int64_t *parts, int32_t k) {
    int64_t start = 0;
    for (int32_t j = 0; j < k; j++) start += parts[j];
    return start;
}

/* out[0..count) = reduction over members, in group order, of operand k from element `at` on. */
static void reduce_run(const Rendezvous *group, int32_t k, int64_t at, int64_t count, Dtype type, char *out) {
    Wide sum[WIDE_RUN], run[WIDE_RUN];
    WideKind kind = wide_kind(type);
    int64_t bytes = dtype_bytes(type);
    SbpReduction reduction = group->calls[0]->collective->reduction;
    for (int64_t done = 0; done < count; done += WIDE_RUN) {
        int64_t n = count - done < WIDE_RUN ? count - done : WIDE_RUN;
        for (int32_t member = 0; member < group->count; member++) {
            const char *in = (const char *)group->calls[member]->operands[k] + (at + done) * bytes;
            wide_load(member == 0 ? sum : run, in, type, n, 1);
            if (member > 0) wide_fold(sum, run, kind, reduction, n);
        }
        wide_store(out + done * bytes, type, sum, kind, n, 1);
    }
}

static int64_t slice_start(int64_t elements, int32_t k, int32_t count) {
    return elements / count * k + (elements % count < k ? elements % count : k);
}

static AmStatus all_reduce(Comm *comm, Rendezvous *group, const CommCall *call, AmError *error) {
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->operand_shapes[k];
        int64_t elements = ir_shape_elements(shape), bytes = dtype_bytes(shape->type);
        int64_t first = slice_start(elements, call->position, group->count);
        int64_t end = slice_start(elements, call->position + 1, group->count);
        reduce_run(group, k, first, end - first, shape->type, (char *)call->results[k] + first * bytes);
    }
    TRY(meet(comm, group, error));
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->operand_shapes[k];
        int64_t elements = ir_shape_elements(shape), bytes = dtype_bytes(shape->type);
        for (int32_t member = 0; member < group->count; member++) {
            int64_t first = slice_start(elements, member, group->count);
            int64_t end = slice_start(elements, member + 1, group->count);
            if (member == call->position) continue;
            memcpy((char *)call->results[k] + first * bytes,
                   (const char *)group->calls[member]->results[k] + first * bytes,
                   (size_t)((end - first) * bytes));
        }
    }
    return AM_OK;
}

static AmStatus all_gather(Comm *comm, Rendezvous *group, const CommCall *call, AmError *error) {
    (void)comm, (void)error;
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->result_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int64_t out_strides[IR_MAX_RANK], in_strides[IR_MAX_RANK], box[IR_MAX_RANK];
        int64_t bytes = dtype_bytes(shape->type);
        strided_row_major(out_strides, shape->dimensions, shape->rank);
        memcpy(box, shape->dimensions, sizeof(int64_t) * (size_t)shape->rank);
        for (int32_t member = 0; member < group->count; member++) {
            box[movement->dimension] = movement->parts[member];
            strided_row_major(in_strides, box, shape->rank);
            int64_t at = part_start(movement->parts, member) * out_strides[movement->dimension];
            strided_copy((char *)call->results[k] + at * bytes, out_strides,
                         group->calls[member]->operands[k], in_strides, box, shape->rank, bytes);
        }
    }
    return AM_OK;
}

static AmStatus reduce_scatter(Comm *comm, Rendezvous *group, const CommCall *call, AmError *error) {
    (void)comm, (void)error;
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *whole = call->operand_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int32_t d = movement->dimension;
        int64_t bytes = dtype_bytes(whole->type), part = movement->parts[call->position];
        int64_t outer = strided_elements(whole->dimensions, d);
        int64_t inner = strided_elements(whole->dimensions + d + 1, whole->rank - d - 1);
        int64_t start = part_start(movement->parts, call->position) * inner;
        for (int64_t o = 0; o < outer; o++)
            reduce_run(group, k, o * whole->dimensions[d] * inner + start, part * inner, whole->type,
                       (char *)call->results[k] + o * part * inner * bytes);
    }
    return AM_OK;
}

static AmStatus all_to_all(Comm *comm, Rendezvous *group, const CommCall *call, AmError *error) {
    (void)comm, (void)error;
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->result_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int32_t d = movement->dimension, other = movement->other;
        int64_t out_strides[IR_MAX_RANK], in_strides[IR_MAX_RANK], box[IR_MAX_RANK], from[IR_MAX_RANK];
        int64_t bytes = dtype_bytes(shape->type);
        strided_row_major(out_strides, shape->dimensions, shape->rank);
        memcpy(box, shape->dimensions, sizeof(int64_t) * (size_t)shape->rank);
        memcpy(from, box, sizeof(int64_t) * (size_t)shape->rank);
        from[other] = part_start(movement->other_parts, group->count);
        for (int32_t member = 0; member < group->count; member++) {
            box[d] = from[d] = movement->parts[member];
            strided_row_major(in_strides, from, shape->rank);
            int64_t out_at = part_start(movement->parts, member) * out_strides[d];
            int64_t in_at = part_start(movement->other_parts, call->position) * in_strides[other];
            strided_copy((char *)call->results[k] + out_at * bytes, out_strides,
                         (const char *)group->calls[member]->operands[k] + in_at * bytes, in_strides, box,
                         shape->rank, bytes);
        }
    }
    return AM_OK;
}

static AmStatus run(Comm *comm, const CommCall *call, AmError *error) {
    static AmStatus (*const kinds[])(Comm *, Rendezvous *, const CommCall *, AmError *) = {
        [PROGRAM_ALL_REDUCE] = all_reduce,
        [PROGRAM_ALL_GATHER] = all_gather,
        [PROGRAM_REDUCE_SCATTER] = reduce_scatter,
        [PROGRAM_ALL_TO_ALL] = all_to_all,
    };
    Rendezvous *group = find_group(comm->world, call->group);
    if (!group) return am_fail(error, AM_ERROR_INTERNAL, "", "a collective of an unknown group");
    group->calls[call->position] = call; /* read by the others after they met */
    TRY(meet(comm, group, error));
    TRY(kinds[call->collective->kind](comm, group, call, error));
    return meet(comm, group, error);
}

static AmStatus barrier(Comm *comm, AmError *error) {
    return meet(comm, comm->world->everybody, error);
}

static void abort_all(Comm *comm) {
    CommWorld *world = comm->world;
    atomic_store(&world->failed, true);
    pthread_mutex_lock(&world->mutex);
    for (Rendezvous *group = world->groups; group; group = group->next) {
        pthread_mutex_lock(&group->mutex);
        pthread_cond_broadcast(&group->all_here);
        pthread_mutex_unlock(&group->mutex);
    }
    pthread_mutex_unlock(&world->mutex);
}

static AmStatus open_world(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, AmError *error) {
    if (first != 0 || count != size)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "local collectives join the %d ranks of one process; the plan has %d", count, size);
    CommWorld *world = calloc(1, sizeof *world);
    int32_t *everybody = malloc(sizeof(int32_t) * (size_t)(size > 0 ? size : 1));
    int32_t name = 0;
    if (!world || !everybody) {
        free(world);
        free(everybody);
        return am_fail_memory(error, size * 4);
    }
    world->size = size;
    atomic_init(&world->failed, false);
    pthread_mutex_init(&world->mutex, NULL);
    for (int32_t r = 0; r < size; r++) {
        everybody[r] = r;
        comms[r] =
            (Comm){.back_end = &comm_local, .rank = r, .size = size, .device = devices[r], .world = world};
    }
    AmStatus status = join(&comms[0], everybody, size, &name, error);
    free(everybody);
    if (status != AM_OK) {
        free(world);
        return status;
    }
    world->everybody = world->groups;
    return AM_OK;
}

static void close_world(Comm *comms) {
    CommWorld *world = comms[0].world;
    while (world->groups) {
        Rendezvous *next = world->groups->next;
        pthread_mutex_destroy(&world->groups->mutex);
        pthread_cond_destroy(&world->groups->all_here);
        free_group(world->groups);
        world->groups = next;
    }
    pthread_mutex_destroy(&world->mutex);
    free(world);
}

const CommBackEnd comm_local = {
    .name = "local",
    .open = open_world,
    .close = close_world,
    .join = join,
    .run = run,
    .meets_on_host = true,
    .barrier = barrier,
    .abort = abort_all,
};
