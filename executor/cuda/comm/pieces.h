/* Pieces: the parts of its arrays that a rank exchanges with the members of its group.
 *
 * A library that moves contiguous memory needs every piece in one run. If an array is split along
 * its outermost dimension (or all before it have size 1) the pieces are contiguous. Otherwise they
 * are packed, one after another in group order, into scratch memory before the transfer, and
 * unpacked after it.
 */
#ifndef EXECUTOR_CUDA_COMM_PIECES_H
#define EXECUTOR_CUDA_COMM_PIECES_H

#include "executor/cuda/comm/comm_rank.h"

/* Pieces of an array along a dimension; member k's has parts[k] elements, after those of the members before
 * it. A halo_exchange's lie where its ranges say, and may overlap. */
typedef struct CudaPieces {
    const IrShape *shape;
    int32_t dimension;
    const int64_t *parts; /* [count] */
    int32_t count;
    const ProgramMovement *halo; /* or NULL: then `parts` says it all */
    int32_t position;            /* of this rank, in a halo_exchange */
    bool is_sent;
} CudaPieces;

/* How operand k of a call travels. Offsets are in the call's scratch memory; -1:
 * the array itself. */
typedef struct CudaTransfer {
    int64_t send_offset, receive_offset;
} CudaTransfer;

/* Returns the sent parts of operand k: false if every member gets the same, or all of it is reduced. And the
 * parts of result k: false if it arrives whole. */
bool cuda_pieces_sent(CudaPieces *pieces, const CommCall *call, int32_t k);
bool cuda_pieces_received(CudaPieces *pieces, const CommCall *call, int32_t k);

/* Returns the number of elements of a member's piece. */
int64_t cuda_piece_elements(const CudaPieces *pieces, int32_t member);
/* Returns the first element of a member's piece: among the packed pieces, or (if the pieces are contiguous)
 * in the array itself. */
int64_t cuda_piece_offset(const CudaPieces *pieces, int32_t member, bool is_packed);
bool cuda_pieces_are_even(const CudaPieces *pieces);

/* Fills transfers[call->operand_count]; returns the bytes of scratch memory that they take. */
int64_t cuda_transfers_plan(CudaTransfer *transfers, const CommCall *call);
/* Returns the source address of operand k's pieces, and the destination of result k's; the call is bound. */
char *cuda_transfer_source(const CudaTransfer *transfer, const CommCall *call, int32_t k);
char *cuda_transfer_target(const CudaTransfer *transfer, const CommCall *call, int32_t k);

/* Uploads transfers: prepared->first packs, prepared->second unpacks; the call is bound and the device
 * current. */
AmStatus cuda_transfers_upload(CudaCommCall *prepared, CudaCommRank *rank, const CudaTransfer *transfers,
                               AmError *error);

#endif
