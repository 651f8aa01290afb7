/* Transfers between the ranks of two stages on the device: the boxes that a rank sends and receives, as
 * moves. */
#include "executor/cuda/comm/exchange.h"

#include <stdlib.h>

#include "executor/array/strided.h"

/* Returns the last dimension after which an array is cut in one place at most: indices before it are taken
 * one by one. */
static int32_t single_from(const CudaBox *box, const int64_t *extent, int32_t rank) {
    int32_t last = -1, before = -1;
    for (int32_t d = 0; box->start && d < rank; d++)
        if (extent[d] != box->dimensions[d]) {
            before = last;
            last = d;
        }
    return before < 0 ? 0 : before;
}

/* Returns the elements of a box with these indices before dimension `from`. */
static CudaPart part_of(const CudaBox *box, const int64_t *extent, int32_t rank, int32_t from,
                        const int64_t *index, int64_t element_bytes) {
    int64_t strides[IR_MAX_RANK], at = 0, elements = 1;
    strided_row_major(strides, box->dimensions, rank);
    for (int32_t d = 0; d < rank; d++) {
        if (d < from) at += index[d] * strides[d];
        else elements *= extent[d];
        if (box->start) at += box->start[d] * strides[d];
    }
    CudaPart part = cuda_part_contiguous(box->array + at * element_bytes, elements);
    for (int32_t d = from + 1; d < rank; d++)
        if (extent[d] != box->dimensions[d])
            part.slab = (CudaSlab){.row = extent[d] * strides[d], .pitch = box->dimensions[d] * strides[d]};
    return part;
}

/* Appends what copies `extent` [rank] elements from one array to another. */
static AmStatus add_moves(CudaMoves *moves, const CudaBox *from, const CudaBox *to, const int64_t *extent,
                          int32_t rank, int64_t element_bytes, AmError *error) {
    int32_t a = single_from(from, extent, rank), b = single_from(to, extent, rank), first = a > b ? a : b;
    int64_t index[IR_MAX_RANK] = {0}, count = strided_elements(extent, first);
    if (strided_elements(extent, rank) == 0) return AM_OK;
    if (moves->count + count > moves->capacity) {
        int64_t capacity = 2 * (int64_t)moves->capacity + count + 16;
        CudaMove *list = capacity > INT32_MAX ? NULL : realloc(moves->list, sizeof *list * (size_t)capacity);
        if (!list) return am_fail_memory(error, (int64_t)sizeof *list * capacity);
        moves->list = list;
        moves->capacity = (int32_t)capacity;
    }
    for (int64_t k = 0; k < count; k++) {
        CudaPart in = part_of(from, extent, rank, first, index, element_bytes);
        CudaPart out = part_of(to, extent, rank, first, index, element_bytes);
        moves->list[moves->count++] = cuda_move(&in, &out, element_bytes);
        for (int32_t d = first - 1; d >= 0 && ++index[d] == extent[d]; d--) index[d] = 0;
    }
    return AM_OK;
}

static const IrShape *shape_of(const CommCall *call, bool is_sent) {
    return is_sent ? call->operand_shapes[0] : call->result_shapes[0];
}

static bool is_in_one_run(const IrShape *shape, const ProgramPiece *piece) {
    bool inner_is_whole = true;
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        if (!inner_is_whole && piece->extent[d] != 1) return false;
        inner_is_whole = inner_is_whole && piece->extent[d] == shape->dimensions[d];
    }
    return true;
}

static int64_t piece_bytes(const IrShape *shape, const ProgramPiece *piece) {
    return strided_elements(piece->extent, shape->rank) * dtype_bytes(shape->type);
}

/* Piece k of those before which `packed` bytes of scratch memory are taken; own ones are not packed. */
static CudaRun run_of(const CommCall *call, const ProgramPiece *pieces, int32_t k, bool is_sent,
                      int64_t packed) {
    const IrShape *shape = shape_of(call, is_sent);
    char *array = is_sent ? call->operands[0] : call->results[0];
    for (int32_t j = 0; j < k; j++)
        if (!is_in_one_run(shape, &pieces[j])) packed += kernel_align(piece_bytes(shape, &pieces[j]));
    CudaRun run = {.bytes = piece_bytes(shape, &pieces[k])};
    if (!is_in_one_run(shape, &pieces[k])) {
        run.address = (char *)call->scratch + packed;
        return run;
    }
    int64_t strides[IR_MAX_RANK], at = 0;
    strided_row_major(strides, shape->dimensions, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++) at += pieces[k].start[d] * strides[d];
    run.address = array + at * dtype_bytes(shape->type);
    return run;
}

static int64_t packed_bytes(const CommCall *call, const ProgramPiece *pieces, int32_t count, bool is_sent) {
    int64_t bytes = 0;
    for (int32_t k = 0; k < count; k++)
        if (!is_in_one_run(shape_of(call, is_sent), &pieces[k]))
            bytes += kernel_align(piece_bytes(shape_of(call, is_sent), &pieces[k]));
    return bytes;
}

int64_t cuda_exchange_scratch(const CommCall *call) {
    const ProgramTransfer *transfer = call->transfer;
    return packed_bytes(call, transfer->sends, transfer->send_count, true) +
           packed_bytes(call, transfer->receives, transfer->receive_count, false);
}

CudaRun cuda_exchange_sent(const CommCall *call, int32_t k) {
    return run_of(call, call->transfer->sends, k, true, 0);
}

CudaRun cuda_exchange_received(const CommCall *call, int32_t k) {
    const ProgramTransfer *transfer = call->transfer;
    return run_of(call, transfer->receives, k, false,
                  packed_bytes(call, transfer->sends, transfer->send_count, true));
}

static CudaBox box_of(const CommCall *call, const ProgramPiece *piece, bool is_sent) {
    return (CudaBox){.array = is_sent ? call->operands[0] : call->results[0],
                     .dimensions = shape_of(call, is_sent)->dimensions,
                     .start = piece->start};
}

/* Adds shard k of the call's received data, from the sender's array. */
static AmStatus add_fetched(CudaMoves *moves, const CommCall *call, int32_t own_rank, int32_t k,
                            const CommCall *sender, AmError *error) {
    const ProgramPiece *to = &call->transfer->receives[k], *from;
    const IrShape *shape = shape_of(call, false);
    TRY(comm_find_sent(&from, sender, call, own_rank, k, error));
    CudaBox source = box_of(sender, from, true), target = box_of(call, to, false);
    return add_moves(moves, &source, &target, to->extent, shape->rank, dtype_bytes(shape->type), error);
}

AmStatus cuda_exchange_fetch(CudaPhase *phase, CudaCommRank *rank, const CommCall *call, int32_t own_rank,
                             CudaSender *sender_of, void *user, AmError *error) {
    CudaMoves moves = {0};
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < call->transfer->receive_count && status == AM_OK; k++)
        status =
            add_fetched(&moves, call, own_rank, k, sender_of(user, call->transfer->receives[k].peer), error);
    if (status == AM_OK)
        status = cuda_phase_of_moves(phase, &rank->movement, &rank->device->device, moves.list, moves.count,
                                     error);
    free(moves.list);
    return status;
}

/* Packs (is_sent) or unpacks the pieces that are not contiguous; those of this rank itself are
 * omitted.
 */
static AmStatus add_packing(CudaMoves *moves, const CommCall *call, int32_t own_rank, bool is_sent,
                            AmError *error) {
    const ProgramTransfer *transfer = call->transfer;
    const ProgramPiece *pieces = is_sent ? transfer->sends : transfer->receives;
    int32_t count = is_sent ? transfer->send_count : transfer->receive_count;
    for (int32_t k = 0; k < count; k++) {
        const IrShape *shape = shape_of(call, is_sent);
        if (pieces[k].peer == own_rank || is_in_one_run(shape, &pieces[k])) continue;
        CudaRun run = is_sent ? cuda_exchange_sent(call, k) : cuda_exchange_received(call, k);
        CudaBox placed = box_of(call, &pieces[k], is_sent);
        CudaBox packed = {.array = run.address, .dimensions = pieces[k].extent};
        TRY(add_moves(moves, is_sent ? &placed : &packed, is_sent ? &packed : &placed, pieces[k].extent,
                      shape->rank, dtype_bytes(shape->type), error));
    }
    return AM_OK;
}

AmStatus cuda_exchange_upload(CudaCommCall *prepared, CudaCommRank *rank, int32_t own_rank, AmError *error) {
    const CommCall *call = prepared->call;
    const CudaDevice *device = &rank->device->device;
    CudaMoves packs = {0}, unpacks = {0};
    AmStatus status;
    TRY_OR_FAIL(add_packing(&packs, call, own_rank, true, error));
    for (int32_t k = 0; k < call->transfer->receive_count; k++)
        if (call->transfer->receives[k].peer == own_rank)
            TRY_OR_FAIL(add_fetched(&packs, call, own_rank, k, call, error));
    TRY_OR_FAIL(add_packing(&unpacks, call, own_rank, false, error));
    TRY_OR_FAIL(
        cuda_phase_of_moves(&prepared->first, &rank->movement, device, packs.list, packs.count, error));
    TRY_OR_FAIL(
        cuda_phase_of_moves(&prepared->second, &rank->movement, device, unpacks.list, unpacks.count, error));
fail:
    free(packs.list);
    free(unpacks.list);
    return status;
}
