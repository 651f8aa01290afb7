/* The CPU back end: a table from opcode to the kernel that prepares it.
 * An opcode that is neither here nor element-wise has no kernel.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/system/memory_limit.h"
#include "executor/annotation_calls.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/divide.h"
#include "executor/cpu/team.h"
#include "executor/refused.h"

enum { LARGE_PAGE = 2 << 20 };

static const struct {
    IrOpcode opcode;
    CpuPrepare *prepare;
} rows[] = {
    {IR_ADD_DEPENDENCY, cpu_prepare_reshape},
    {IR_BATCH_NORM_GRAD, cpu_prepare_batch_norm_gradient},
    {IR_BATCH_NORM_INFERENCE, cpu_prepare_batch_norm_inference},
    {IR_BATCH_NORM_TRAINING, cpu_prepare_batch_norm_training},
    {IR_BITCAST, cpu_prepare_reshape},
    {IR_BITCAST_CONVERT, cpu_prepare_bitcast_convert},
    {IR_BROADCAST, cpu_prepare_broadcast},
    {IR_CHOLESKY, cpu_prepare_cholesky},
    {IR_CONCATENATE, cpu_prepare_concatenate},
    {IR_CONSTANT, cpu_prepare_constant},
    {IR_CONVOLUTION, cpu_prepare_convolution},
    {IR_CUSTOM_CALL, annotation_call_prepare},
    {IR_DOMAIN, cpu_prepare_reshape},
    {IR_DOT, cpu_prepare_dot},
    {IR_DYNAMIC_RESHAPE, cpu_prepare_dynamic},
    {IR_DYNAMIC_SLICE, cpu_prepare_dynamic_slice},
    {IR_DYNAMIC_UPDATE_SLICE, cpu_prepare_dynamic_update_slice},
    {IR_FFT, cpu_prepare_fft},
    {IR_FUSION, cpu_prepare_blocked_region},
    {IR_GATHER, cpu_prepare_gather},
    {IR_GET_DIMENSION_SIZE, cpu_prepare_get_dimension_size},
    {IR_IOTA, cpu_prepare_iota},
    {IR_MAP, cpu_prepare_map},
    {IR_OPT_BARRIER, cpu_prepare_reshape},
    {IR_PAD, cpu_prepare_pad},
    {IR_RAGGED_DOT, cpu_prepare_ragged_dot},
    {IR_REDUCE, cpu_prepare_reduce},
    {IR_REDUCE_WINDOW, cpu_prepare_reduce_window},
    {IR_RESHAPE, cpu_prepare_reshape},
    {IR_REVERSE, cpu_prepare_reverse},
    {IR_RNG, cpu_prepare_rng},
    {IR_RNG_BIT_GENERATOR, cpu_prepare_random_bits},
    {IR_SCATTER, cpu_prepare_scatter},
    {IR_SELECT_AND_SCATTER, cpu_prepare_select_and_scatter},
    {IR_SET_DIMENSION_SIZE, cpu_prepare_dynamic},
    {IR_SLICE, cpu_prepare_slice},
    {IR_SORT, cpu_prepare_sort},
    {IR_TOPK, cpu_prepare_topk},
    {IR_TRANSPOSE, cpu_prepare_transpose},
    {IR_TRIANGULAR_SOLVE, cpu_prepare_triangular_solve},
};

static void run_nothing(const KernelCall *call) {
    (void)call;
}

static AmStatus prepare_kernel(KernelCall *call, Arena *arena, AmError *error) {
    if (call->fusion) return cpu_prepare_fusion(call, arena, error);
    IrOpcode opcode = call->instruction->opcode;
    if (refused_reason(opcode)) return kernel_call_refuse(call, refused_reason(opcode), error);
    if (opcode == IR_AFTER_ALL) {
        call->run = run_nothing;
        return AM_OK;
    }
    /* Operators run one after the other, so that a token is nothing but its place in their order. */
    if (opcode == IR_ADD_DEPENDENCY) call->operand_count = 1;
    for (int32_t k = 0; k < call->result_count; k++)
        if (dtype_bytes(call->result_shapes[k]->type) == 0)
            return kernel_call_refuse(call, "its result is no array of numbers", error);
    for (int32_t k = 0; k < call->operand_count; k++)
        if (dtype_bytes(call->operand_shapes[k]->type) == 0)
            return kernel_call_refuse(call, "an operand is no array of numbers", error);
    const char *target = call->attributes->custom_call_target;
    if (opcode == IR_CUSTOM_CALL && cpu_covers_lapack(target)) return cpu_prepare_lapack(call, arena, error);
    if (opcode == IR_CUSTOM_CALL && target && strcmp(target, "TopK") == 0)
        return cpu_prepare_topk(call, arena, error);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return rows[k].prepare(call, arena, error);
    /* Element programs refuse unsupported operators. */
    if (ir_is_elementwise(opcode)) return cpu_prepare_single(call, arena, error);
    return kernel_call_refuse(call, "this operator cannot be run yet", error);
}

/* Allocates memory. More than the machine or a limit has is refused rather than left to the operating system
 * to kill. */
static AmStatus allocate_memory(KernelDevice *device, void **memory, int64_t bytes, AmError *error) {
    MemoryLimit limit = memory_limit("");
    (void)device;
    if (limit.bytes > 0 && bytes > limit.bytes)
        return am_fail(error, AM_ERROR_RUNTIME, "",
                       "a rank needs %.3g GB of memory and %s has %.3g GB in all", (double)bytes / 1e9,
                       limit.name, (double)limit.bytes / 1e9);
    /* Large pages reduce the cost of the first use, and of every distant access. */
    size_t page = bytes >= 2 * LARGE_PAGE ? LARGE_PAGE : 64;
    size_t whole = ((size_t)bytes / page + 1) * page;
    *memory = aligned_alloc(page, whole);
    if (!*memory) return am_fail_memory(error, bytes);
    if (page == LARGE_PAGE) madvise(*memory, whole, MADV_HUGEPAGE);
    memset(*memory, 0, (size_t)bytes);
    return AM_OK;
}

static void release_memory(KernelDevice *device, void *memory) {
    (void)device;
    free(memory);
}

static void copy_bytes(KernelDevice *device, void *to, const void *from, int64_t bytes) {
    (void)device;
    memcpy(to, from, (size_t)bytes);
}

static void copy_within(KernelDevice *device, void *to, const void *from, int64_t bytes) {
    divided_copy_bytes(device, to, from, bytes);
}

static AmStatus synchronize(KernelDevice *device, AmError *error) {
    (void)device, (void)error;
    return AM_OK;
}

const KernelBackEnd kernels_cpu = {
    .name = "cpu",
    .open = team_open,
    .close = team_close,
    .prepare = prepare_kernel,
    .join_rows = cpu_join_rows,
    .finish = team_start,
    .allocate = allocate_memory,
    .release = release_memory,
    .allocate_host = allocate_memory,
    .release_host = release_memory,
    .copy_in = copy_bytes,
    .copy_out = copy_bytes,
    .copy_within = copy_within,
    .synchronize = synchronize,
};

KernelDevice kernel_device_cpu = {.back_end = &kernels_cpu};
