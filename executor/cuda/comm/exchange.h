/* Transfers between the ranks of two stages on the device: the boxes that a rank
 * sends and receives, as moves.
 *
 * A box of an array is one slab where it is cut in its outermost dimension and
 * one other, else one slab for each index before those. For a library that moves
 * contiguous memory, other boxes are packed one after the other in scratch
 * memory. A box from a rank to itself is one move without a transfer.
 */
#ifndef EXECUTOR_CUDA_COMM_EXCHANGE_H
#define EXECUTOR_CUDA_COMM_EXCHANGE_H

#include "executor/cuda/comm/comm_rank.h"

/* A part of an array; a NULL `start` with the extents as dimensions is a packed box. */
typedef struct CudaBox {
    char *array;
    const int64_t *dimensions, *start;
} CudaBox;

/* Moves being listed; C heap. */
typedef struct CudaMoves {
    CudaMove *list;
    int32_t count, capacity;
} CudaMoves;

/* The contiguous memory of piece k of a call's sent, or received, data; the call is bound. */
typedef struct CudaRun {
    char *address;
    int64_t bytes;
} CudaRun;

/* Returns the scratch memory that packed pieces of a transfer take. */
int64_t cuda_exchange_scratch(const CommCall *call);
CudaRun cuda_exchange_sent(const CommCall *call, int32_t k);
CudaRun cuda_exchange_received(const CommCall *call, int32_t k);

/* Uploads an exchange: prepared->first packs and moves the rank's own, prepared->second unpacks; the call is
 * bound and the device current. */
AmStatus cuda_exchange_upload(CudaCommCall *prepared, CudaCommRank *rank, int32_t own_rank, AmError *error);
/* phase: all pieces that the call receives, out of the arrays of those that give them: `sender_of` gives the
 * call of a rank. */
typedef const CommCall *CudaSender(void *user, int32_t peer);
AmStatus cuda_exchange_fetch(CudaPhase *phase, CudaCommRank *rank, const CommCall *call, int32_t own_rank,
                             CudaSender *sender_of, void *user, AmError *error);

#endif
