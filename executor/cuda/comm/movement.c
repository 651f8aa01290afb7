/* Moves and folds of parts of arrays on the device.
 *
 * Tables of moves or folds are uploaded when a collective is prepared; cuda_phase_run() launches one kernel
 * for a table. cuda_move() selects the widest unit, of up to 16 bytes, that divides all addresses and sizes.
 */
#include "executor/cuda/comm/movement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cuda/comm/collectives.cu.h"

enum { THREADS = 256, ELEMENTS_PER_THREAD = 4, MOST_BLOCKS = 2048, MOST_ENTRIES = 65535 };

CudaPart cuda_part(void *array, const IrShape *shape, int32_t dimension, int64_t start, int64_t extent) {
    int64_t outer = strided_elements(shape->dimensions, dimension);
    int64_t inner = strided_elements(shape->dimensions + dimension + 1, shape->rank - dimension - 1);
    return (CudaPart){.address = (char *)array + start * inner * dtype_bytes(shape->type),
                      .elements = outer * extent * inner,
                      .slab = {.row = extent * inner, .pitch = shape->dimensions[dimension] * inner}};
}

CudaPart cuda_part_contiguous(void *address, int64_t elements) {
    return (CudaPart){.address = address, .elements = elements, .slab = {elements, elements}};
}

/* Returns a move in the widest unit, of up to 16 bytes, that divides all addresses and sizes. */
CudaMove cuda_move(const CudaPart *from, const CudaPart *to, int64_t element_bytes) {
    uint64_t all = (uint64_t)(uintptr_t)from->address | (uint64_t)(uintptr_t)to->address |
                   (uint64_t)(from->slab.row * element_bytes) | (uint64_t)(from->slab.pitch * element_bytes) |
                   (uint64_t)(to->slab.row * element_bytes) | (uint64_t)(to->slab.pitch * element_bytes);
    int64_t unit = 16;
    while (all % (uint64_t)unit != 0) unit /= 2;
    return (CudaMove){
        .from = from->address,
        .to = to->address,
        .units = from->elements * element_bytes / unit,
        .from_slab = {from->slab.row * element_bytes / unit, from->slab.pitch * element_bytes / unit},
        .to_slab = {to->slab.row * element_bytes / unit, to->slab.pitch * element_bytes / unit},
        .unit_bytes = unit};
}

AmStatus cuda_movement_open(CudaMovement *movement, const CudaDevice *device, AmError *error) {
    *movement = (CudaMovement){0};
    return unit_cache_take(&movement->unit, device, cuda_text_collectives, error);
}

void cuda_movement_close(CudaMovement *movement) {
    for (int32_t k = 0; k < movement->table_count; k++) cuda_memory_free(movement->tables[k]);
    free(movement->tables);
    if (movement->unit) unit_cache_return(movement->unit);
    *movement = (CudaMovement){0};
}

/* Allocates device memory that is freed with the movement. */
static AmStatus new_table(CUdeviceptr *table, CudaMovement *movement, const CudaDevice *device, int64_t bytes,
                          AmError *error) {
    if (movement->table_count == movement->table_capacity) {
        int32_t capacity = movement->table_capacity > 0 ? 2 * movement->table_capacity : 16;
        CUdeviceptr *tables = realloc(movement->tables, sizeof *tables * (size_t)capacity);
        if (!tables) return am_fail_memory(error, (int64_t)sizeof *tables * capacity);
        movement->tables = tables;
        movement->table_capacity = capacity;
    }
    TRY(cuda_memory_alloc(table, device, bytes, error));
    movement->tables[movement->table_count++] = *table;
    return AM_OK;
}

/* A copy from ordinary memory may return before its end, and no rank's stream waits for the one that it is
 * on. */
static AmStatus upload(CUdeviceptr table, const void *bytes, int64_t count, AmError *error) {
    static const char what[] = "uploading a collective";
    TRY(cuda_check(cuda.cuMemcpyHtoD(table, bytes, (size_t)count), what, error));
    return cuda_check(cuda.cuStreamSynchronize(CU_STREAM_LEGACY), what, error);
}

AmStatus cuda_phase_of_moves(CudaPhase *phase, CudaMovement *movement, const CudaDevice *device,
                             const CudaMove *moves, int32_t count, AmError *error) {
    AmStatus status;
    CudaMove *used = malloc(sizeof *used * (size_t)(count > 0 ? count : 1));
    if (!used) return am_fail_memory(error, (int64_t)sizeof *used * count);
    *phase = (CudaPhase){.entry_bytes = (int64_t)sizeof *used};
    for (int32_t k = 0; k < count; k++) {
        if (moves[k].units == 0) continue;
        used[phase->count++] = moves[k];
        if (moves[k].units > phase->most) phase->most = moves[k].units;
    }
    status = AM_OK;
    if (phase->count == 0) goto fail;
    int64_t bytes = phase->entry_bytes * phase->count;
    TRY_OR_FAIL(new_table(&phase->table, movement, device, bytes, error));
    TRY_OR_FAIL(upload(phase->table, used, bytes, error));
    TRY_OR_FAIL(cuda_unit_function(&phase->function, unit_cache_unit(movement->unit), "move_parts", error));
fail:
    free(used);
    return status;
}

AmStatus cuda_phase_of_folds(CudaPhase *phase, CudaMovement *movement, const CudaDevice *device, Dtype type,
                             CudaMemberFold *folds, int32_t count, const void *const *operands,
                             AmError *error) {
    char name[32];
    int64_t members = count > 0 ? folds[0].member_count : 0;
    int64_t fold_bytes = (int64_t)sizeof *folds * count;
    int64_t operand_bytes = (int64_t)sizeof *operands * count * members;
    *phase = (CudaPhase){.entry_bytes = (int64_t)sizeof *folds, .count = count};
    if (count == 0) return AM_OK;
    TRY(new_table(&phase->table, movement, device, fold_bytes + operand_bytes, error));
    for (int32_t k = 0; k < count; k++) {
        CUdeviceptr row = phase->table + (CUdeviceptr)(fold_bytes + (int64_t)sizeof *operands * k * members);
        folds[k].operands = (const void *const *)(uintptr_t)row;
        if (folds[k].elements > phase->most) phase->most = folds[k].elements;
    }
    TRY(upload(phase->table, folds, fold_bytes, error));
    TRY(upload(phase->table + (CUdeviceptr)fold_bytes, operands, operand_bytes, error));
    snprintf(name, sizeof name, "fold_parts_%s", dtype_name(type));
    return cuda_unit_function(&phase->function, unit_cache_unit(movement->unit), name, error);
}

void cuda_phase_run(const CudaPhase *phase, CudaKernelDevice *device) {
    int64_t per_block = (int64_t)THREADS * ELEMENTS_PER_THREAD;
    int64_t blocks = (phase->most + per_block - 1) / per_block;
    if (!phase->function || blocks == 0) return;
    if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
    for (int32_t first = 0; first < phase->count; first += MOST_ENTRIES) {
        int32_t count = phase->count - first < MOST_ENTRIES ? phase->count - first : MOST_ENTRIES;
        CUdeviceptr table = phase->table + (CUdeviceptr)(phase->entry_bytes * first);
        void *arguments[] = {&table};
        CUresult result = cuda.cuLaunchKernel(phase->function, (unsigned)blocks, (unsigned)count, 1, THREADS,
                                              1, 1, 0, device->communication, arguments, NULL);
        cuda_note(device, result, "launching a collective's kernel");
    }
}
