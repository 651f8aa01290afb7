/* Packs and unpacks the parts of arrays that a rank exchanges with its group, for libraries that move
 * contiguous memory. */
#include "executor/cuda/comm/pieces.h"

#include <stdlib.h>

#include "executor/array/strided.h"

/* Finds the pieces of a halo_exchange in operand k, or in result k. */
static bool halo_pieces(CudaPieces *pieces, const CommCall *call, int32_t k, bool is_sent) {
    const ProgramMovement *movement = &call->collective->movements[k];
    *pieces = (CudaPieces){.shape = is_sent ? call->operand_shapes[k] : call->result_shapes[k],
                           .dimension = movement->dimension,
                           .count = call->collective->group_count,
                           .halo = movement,
                           .position = call->position,
                           .is_sent = is_sent};
    return true;
}

bool cuda_pieces_sent(CudaPieces *pieces, const CommCall *call, int32_t k) {
    const ProgramCollective *collective = call->collective;
    bool exchanges = collective->kind == PROGRAM_ALL_TO_ALL;
    if (collective->kind == PROGRAM_HALO_EXCHANGE) return halo_pieces(pieces, call, k, true);
    if (!exchanges && collective->kind != PROGRAM_REDUCE_SCATTER) return false;
    const ProgramMovement *movement = &collective->movements[k];
    *pieces = (CudaPieces){.shape = call->operand_shapes[k],
                           .dimension = exchanges ? movement->other : movement->dimension,
                           .parts = exchanges ? movement->other_parts : movement->parts,
                           .count = collective->group_count};
    return true;
}

bool cuda_pieces_received(CudaPieces *pieces, const CommCall *call, int32_t k) {
    const ProgramCollective *collective = call->collective;
    if (collective->kind == PROGRAM_HALO_EXCHANGE) return halo_pieces(pieces, call, k, false);
    if (collective->kind != PROGRAM_ALL_GATHER && collective->kind != PROGRAM_ALL_TO_ALL) return false;
    const ProgramMovement *movement = &collective->movements[k];
    *pieces = (CudaPieces){.shape = call->result_shapes[k],
                           .dimension = movement->dimension,
                           .parts = movement->parts,
                           .count = collective->group_count};
    return true;
}

/* Returns how much of the dimension a member's piece is; *start: its place in the array. */
static int64_t piece_extent(const CudaPieces *pieces, int32_t member, int64_t *start) {
    if (!pieces->halo) {
        *start = comm_part_start(pieces->parts, member);
        return pieces->parts[member];
    }
    int32_t from = pieces->is_sent ? pieces->position : member;
    int32_t to = pieces->is_sent ? member : pieces->position;
    int64_t part, extent = program_halo_piece(pieces->halo, from, to, start, &part);
    *start -= pieces->is_sent ? part : pieces->halo->range_start[to];
    return extent;
}

/* Elements that belong to one index of the dimension. */
static int64_t across(const CudaPieces *pieces) {
    const IrShape *shape = pieces->shape;
    return strided_elements(shape->dimensions, pieces->dimension) *
           strided_elements(shape->dimensions + pieces->dimension + 1, shape->rank - pieces->dimension - 1);
}

int64_t cuda_piece_elements(const CudaPieces *pieces, int32_t member) {
    int64_t start;
    return across(pieces) * piece_extent(pieces, member, &start);
}

int64_t cuda_piece_offset(const CudaPieces *pieces, int32_t member, bool is_packed) {
    int64_t offset = 0;
    if (!is_packed) {
        piece_extent(pieces, member, &offset);
        return across(pieces) * offset;
    }
    for (int32_t m = 0; m < member; m++) offset += cuda_piece_elements(pieces, m);
    return offset;
}

bool cuda_pieces_are_even(const CudaPieces *pieces) {
    if (pieces->halo) return false;
    for (int32_t m = 1; m < pieces->count; m++)
        if (pieces->parts[m] != pieces->parts[0]) return false;
    return true;
}

static bool are_in_runs(const CudaPieces *pieces) {
    return strided_elements(pieces->shape->dimensions, pieces->dimension) == 1;
}

static int64_t packed_bytes(const CudaPieces *pieces) {
    return kernel_align(cuda_piece_offset(pieces, pieces->count, true) * dtype_bytes(pieces->shape->type));
}

int64_t cuda_transfers_plan(CudaTransfer *transfers, const CommCall *call) {
    int64_t bytes = 0;
    for (int32_t k = 0; k < call->operand_count; k++) {
        CudaPieces pieces;
        transfers[k] = (CudaTransfer){-1, -1};
        if (cuda_pieces_sent(&pieces, call, k) && !are_in_runs(&pieces)) {
            transfers[k].send_offset = bytes;
            bytes += packed_bytes(&pieces);
        }
        if (cuda_pieces_received(&pieces, call, k) && !are_in_runs(&pieces)) {
            transfers[k].receive_offset = bytes;
            bytes += packed_bytes(&pieces);
        }
    }
    return bytes;
}

char *cuda_transfer_source(const CudaTransfer *transfer, const CommCall *call, int32_t k) {
    return transfer->send_offset < 0 ? call->operands[k] : (char *)call->scratch + transfer->send_offset;
}

char *cuda_transfer_target(const CudaTransfer *transfer, const CommCall *call, int32_t k) {
    return transfer->receive_offset < 0 ? call->results[k] : (char *)call->scratch + transfer->receive_offset;
}

/* Appends the moves of all pieces between `array` and the run of pieces at `packed`. */
static void add_moves(CudaMove *moves, int32_t *count, const CudaPieces *pieces, void *array, char *packed,
                      bool packs) {
    int64_t element_bytes = dtype_bytes(pieces->shape->type);
    for (int32_t m = 0; m < pieces->count; m++) {
        int64_t start, extent = piece_extent(pieces, m, &start);
        CudaPart placed = cuda_part(array, pieces->shape, pieces->dimension, start, extent);
        CudaPart in_run = cuda_part_contiguous(packed, placed.elements);
        packed += placed.elements * element_bytes;
        if (placed.elements == 0) continue;
        moves[(*count)++] =
            packs ? cuda_move(&placed, &in_run, element_bytes) : cuda_move(&in_run, &placed, element_bytes);
    }
}

AmStatus cuda_transfers_upload(CudaCommCall *prepared, CudaCommRank *rank, const CudaTransfer *transfers,
                               AmError *error) {
    const CommCall *call = prepared->call;
    const CudaDevice *device = &rank->device->device;
    size_t most = (size_t)call->operand_count * (size_t)call->collective->group_count + 1;
    int32_t packed = 0, unpacked = 0;
    CudaMove *packs = malloc(sizeof *packs * most), *unpacks = malloc(sizeof *unpacks * most);
    AmStatus status;
    if (!packs || !unpacks) {
        status = am_fail_memory(error, (int64_t)(sizeof *packs * most));
        goto fail;
    }
    for (int32_t k = 0; k < call->operand_count; k++) {
        CudaPieces pieces;
        if (transfers[k].send_offset >= 0 && cuda_pieces_sent(&pieces, call, k))
            add_moves(packs, &packed, &pieces, call->operands[k],
                      cuda_transfer_source(&transfers[k], call, k), true);
        if (transfers[k].receive_offset >= 0 && cuda_pieces_received(&pieces, call, k))
            add_moves(unpacks, &unpacked, &pieces, call->results[k],
                      cuda_transfer_target(&transfers[k], call, k), false);
    }
    TRY_OR_FAIL(cuda_phase_of_moves(&prepared->first, &rank->movement, device, packs, packed, error));
    TRY_OR_FAIL(cuda_phase_of_moves(&prepared->second, &rank->movement, device, unpacks, unpacked, error));
fail:
    free(packs);
    free(unpacks);
    return status;
}
