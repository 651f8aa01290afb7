/* Collectives between threads of one process, on shared memory.
 *
 * The members of a group show one another their calls and meet (rendezvous.h),
 * then each builds its own results by reading the others' operands, and all
 * meet again before anybody's operand may change. all_reduce works in two
 * rounds, as in a ring but without copies on the way: member k reduces the k-th
 * part of the elements from all operands into its own result, then everybody
 * copies the parts of the others; that is correct in place.
 */
#include <stdlib.h>
#include <string.h>

#include "executor/comm.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"
#include "executor/rendezvous.h"

typedef struct CommWorld {
    Rendezvous *rendezvous;
} CommWorld;

/* What member `position` of the group runs at this moment. */
static const CommCall *call_of(const RendezvousGroup *group, int32_t position) {
    return group->brought[position];
}

static AmStatus join(Comm *comm, const int32_t *ranks, int32_t count, int32_t *name, AmError *error) {
    return rendezvous_join(comm->world->rendezvous, ranks, count, name, error);
}

static int64_t part_start(const int64_t *parts, int32_t k) {
    int64_t start = 0;
    for (int32_t j = 0; j < k; j++) start += parts[j];
    return start;
}

/* out[0..count) = reduction over members, in group order, of operand k from element `at` on. */
static void reduce_run(const RendezvousGroup *group, int32_t k, int64_t at, int64_t count, Dtype type,
                       char *out) {
    Wide sum[WIDE_RUN], run[WIDE_RUN];
    if (dtype_is_complex(type)) { /* real parts and imaginary parts are added as they lie */
        type = dtype_real_part(type);
        at *= 2;
        count *= 2;
    }
    WideKind kind = wide_kind(type);
    int64_t bytes = dtype_bytes(type);
    SbpReduction reduction = call_of(group, 0)->collective->reduction;
    for (int64_t done = 0; done < count; done += WIDE_RUN) {
        int64_t n = count - done < WIDE_RUN ? count - done : WIDE_RUN;
        for (int32_t member = 0; member < group->count; member++) {
            const char *in = (const char *)call_of(group, member)->operands[k] + (at + done) * bytes;
            wide_load(member == 0 ? sum : run, in, type, n, 1);
            if (member > 0) wide_fold(sum, run, kind, reduction, n);
        }
        wide_store(out + done * bytes, type, sum, kind, n, 1);
    }
}

static int64_t slice_start(int64_t elements, int32_t k, int32_t count) {
    return elements / count * k + (elements % count < k ? elements % count : k);
}

static AmStatus all_reduce(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->operand_shapes[k];
        int64_t elements = ir_shape_elements(shape), bytes = dtype_bytes(shape->type);
        int64_t first = slice_start(elements, call->position, group->count);
        int64_t end = slice_start(elements, call->position + 1, group->count);
        reduce_run(group, k, first, end - first, shape->type, (char *)call->results[k] + first * bytes);
    }
    TRY(rendezvous_meet(comm->world->rendezvous, group, comm->rank, error));
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->operand_shapes[k];
        int64_t elements = ir_shape_elements(shape), bytes = dtype_bytes(shape->type);
        for (int32_t member = 0; member < group->count; member++) {
            int64_t first = slice_start(elements, member, group->count);
            int64_t end = slice_start(elements, member + 1, group->count);
            if (member == call->position) continue;
            memcpy((char *)call->results[k] + first * bytes,
                   (const char *)call_of(group, member)->results[k] + first * bytes,
                   (size_t)((end - first) * bytes));
        }
    }
    return AM_OK;
}

static AmStatus all_gather(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
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
                         call_of(group, member)->operands[k], in_strides, box, shape->rank, bytes);
        }
    }
    return AM_OK;
}

static AmStatus reduce_scatter(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
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

static AmStatus all_to_all(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
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
                         (const char *)call_of(group, member)->operands[k] + in_at * bytes, in_strides, box,
                         shape->rank, bytes);
        }
    }
    return AM_OK;
}

static AmStatus halo_exchange(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
    (void)comm, (void)error;
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->result_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int64_t out_strides[IR_MAX_RANK], in_strides[IR_MAX_RANK], box[IR_MAX_RANK];
        int64_t bytes = dtype_bytes(shape->type), start, part;
        int32_t d = movement->dimension;
        strided_row_major(out_strides, shape->dimensions, shape->rank);
        memcpy(box, shape->dimensions, sizeof(int64_t) * (size_t)shape->rank);
        for (int32_t member = 0; member < group->count; member++) {
            box[d] = movement->parts[member];
            strided_row_major(in_strides, box, shape->rank);
            box[d] = program_halo_piece(movement, member, call->position, &start, &part);
            int64_t out_at = (start - movement->range_start[call->position]) * out_strides[d];
            if (box[d] > 0)
                strided_copy((char *)call->results[k] + out_at * bytes, out_strides,
                             (const char *)call_of(group, member)->operands[k] +
                                 (start - part) * in_strides[d] * bytes,
                             in_strides, box, shape->rank, bytes);
        }
    }
    return AM_OK;
}

static AmStatus (*const kinds[])(Comm *, RendezvousGroup *, const CommCall *, AmError *) = {
    [PROGRAM_ALL_REDUCE] = all_reduce,         [PROGRAM_ALL_GATHER] = all_gather,
    [PROGRAM_REDUCE_SCATTER] = reduce_scatter, [PROGRAM_ALL_TO_ALL] = all_to_all,
    [PROGRAM_HALO_EXCHANGE] = halo_exchange,
};

void comm_local_compute(RendezvousGroup *group, const CommCall *call) {
    if (call->collective->kind != PROGRAM_ALL_REDUCE) {
        kinds[call->collective->kind](NULL, group, call, NULL);
        return;
    }
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->operand_shapes[k];
        reduce_run(group, k, 0, ir_shape_elements(shape), shape->type, call->results[k]);
    }
}

/* Piece k of what this rank receives, from the call of the rank that gives it. */
static AmStatus fetch_piece(const CommCall *giver, const CommCall *taker, int32_t taker_rank, int32_t k,
                            AmError *error) {
    const ProgramPiece *to = &taker->transfer->receives[k], *from;
    const IrShape *shape = taker->result_shapes[0];
    int64_t in_strides[IR_MAX_RANK], out_strides[IR_MAX_RANK];
    TRY(comm_find_given(&from, giver, taker, taker_rank, k, error));
    const char *source = comm_piece_place(giver->operands[0], giver->operand_shapes[0], from, in_strides);
    char *target = comm_piece_place(taker->results[0], shape, to, out_strides);
    strided_copy(target, out_strides, source, in_strides, to->extent, shape->rank, dtype_bytes(shape->type));
    return AM_OK;
}

static AmStatus transfer(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
    for (int32_t k = 0; k < call->transfer->receive_count; k++) {
        int32_t peer = call->transfer->receives[k].peer, position = 0;
        while (peer != comm->rank && call->ranks[position] != peer) position++;
        const CommCall *giver = peer == comm->rank ? call : call_of(group, position);
        TRY(fetch_piece(giver, call, comm->rank, k, error));
    }
    return AM_OK;
}

static AmStatus run(Comm *comm, const CommCall *call, AmError *error) {
    Rendezvous *rendezvous = comm->world->rendezvous;
    if (call->position < 0) return transfer(comm, NULL, call, error);
    RendezvousGroup *group = rendezvous_group(rendezvous, call->group);
    if (!group) return am_fail(error, AM_ERROR_INTERNAL, "", "a collective of an unknown group");
    group->brought[call->position] = call;
    TRY(rendezvous_meet(rendezvous, group, comm->rank, error));
    if (call->transfer) TRY(transfer(comm, group, call, error));
    else TRY(kinds[call->collective->kind](comm, group, call, error));
    return rendezvous_meet(rendezvous, group, comm->rank, error);
}

static AmStatus barrier(Comm *comm, AmError *error) {
    return rendezvous_barrier(comm->world->rendezvous, comm->rank, error);
}

static void abort_all(Comm *comm) {
    rendezvous_abort(comm->world->rendezvous);
}

static AmStatus open_world(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, World *processes, AmError *error) {
    (void)processes;
    if (first != 0 || count != size)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "local collectives join the %d ranks of one process; the plan has %d", count, size);
    CommWorld *world = calloc(1, sizeof *world);
    if (!world) return am_fail_memory(error, sizeof *world);
    AmStatus status = rendezvous_open(&world->rendezvous, 0, size, error);
    if (status != AM_OK) {
        free(world);
        return status;
    }
    for (int32_t r = 0; r < size; r++)
        comms[r] =
            (Comm){.back_end = &comm_local, .rank = r, .size = size, .device = devices[r], .world = world};
    return AM_OK;
}

static void close_world(Comm *comms) {
    rendezvous_close(comms[0].world->rendezvous);
    free(comms[0].world);
}

const CommBackEnd comm_local = {
    .name = "local",
    .open = open_world,
    .close = close_world,
    .join = join,
    .run = run,
    .has_channels = true,
    .meets_on_host = true,
    .barrier = barrier,
    .abort = abort_all,
};
