/* Parts of arrays on the move: what all collectives on the device are made of.
 *
 * A part of an array along one dimension is a slab: rows of contiguous elements,
 * a pitch apart. A move copies a part to a place of the same size that may have
 * other rows; a fold reduces the same part of several arrays to a contiguous
 * one. A phase is a list of moves or of folds that one launch carries out, its
 * table uploaded beforehand, so that a phase can be recorded in a graph. The
 * kernels are in collectives.cu, and take the structures CudaMove and
 * CudaMemberFold.
 */
#ifndef EXECUTOR_CUDA_COMM_MOVEMENT_H
#define EXECUTOR_CUDA_COMM_MOVEMENT_H

#include "executor/cuda/device.h"
#include "executor/cuda/unit_cache.h"

/* Element i is at i / row * pitch + i % row. */
typedef struct CudaSlab {
    int64_t row, pitch;
} CudaSlab;

/* Some elements of an array in device memory. */
typedef struct CudaPart {
    char *address; /* of the first */
    int64_t elements;
    CudaSlab slab;
} CudaPart;

/* Describes elements start .. start + extent - 1 along `dimension` of an array of these dimensions. */
CudaPart cuda_part(void *array, const IrShape *shape, int32_t dimension, int64_t start, int64_t extent);
CudaPart cuda_part_contiguous(void *address, int64_t elements);

typedef struct CudaMove {
    const void *from;
    void *to;
    int64_t units;
    CudaSlab from_slab, to_slab; /* in units */
    int64_t unit_bytes;
} CudaMove;

/* Describes a copy: `from` and `to` have as many elements; they do not overlap. */
CudaMove cuda_move(const CudaPart *from, const CudaPart *to, int64_t element_bytes);

typedef struct CudaMemberFold {
    const void *const *operands; /* [member_count] global arrays, on the device */
    void *result;
    int64_t elements, start; /* `start`: of the part, in elements */
    CudaSlab slab;
    int64_t member_count, reduction;
} CudaMemberFold;

/* The compiled kernels and all tables of one rank. */
typedef struct CudaMovement {
    SharedUnit *unit; /* by all ranks on the card */
    CUdeviceptr *tables;
    int32_t table_count, table_capacity;
} CudaMovement;

typedef struct CudaPhase {
    CUfunction function; /* NULL: nothing to do */
    CUdeviceptr table;
    int64_t entry_bytes, most; /* elements of the largest entry */
    int32_t count;
} CudaPhase;

/* Opens a movement. The device is current, also for close(), once, also after a failure. */
AmStatus cuda_movement_open(CudaMovement *movement, const CudaDevice *device, AmError *error);
void cuda_movement_close(CudaMovement *movement);

/* Uploads `count` moves (empty ones are omitted), replacing the previous phase. The device is
 * current and the phase is not running. */
AmStatus cuda_phase_of_moves(CudaPhase *phase, CudaMovement *movement, const CudaDevice *device,
                             const CudaMove *moves, int32_t count, AmError *error);
/* Fills a phase. `operands`: [count][member_count], row k for folds[k], whose field is set here. */
AmStatus cuda_phase_of_folds(CudaPhase *phase, CudaMovement *movement, const CudaDevice *device, Dtype type,
                             CudaMemberFold *folds, int32_t count, const void *const *operands,
                             AmError *error);

/* Issues the phase to the device's communication stream; failures are noted. */
void cuda_phase_run(const CudaPhase *phase, CudaKernelDevice *device);

#endif
