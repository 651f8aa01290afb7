/* Row groups: several steps that run one block of rows after the other (lowering/passes/row_groups.c).
 *
 * Each step is a fusion or a reduction of rows, prepared as if it ran alone. A part of the team takes a
 * stretch of blocks. For each block it runs the steps in order, each over the block's rows, so that a value
 * is read while it is in a cache. Values inside the group have room for one block in scratch memory: their
 * address is shifted so that the block's first row is there. Every element is computed as by the step alone,
 * so that neither blocks nor threads change a bit.
 */
#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/team.h"

typedef struct Member {
    KernelCall call; /* as of the step; its arrays of addresses are the step's own, which are bound */
    int64_t row;     /* elements of a fusion's index space in a row; 1 for a reduction */
    int64_t *near_at,
        *row_bytes; /* [operand, result]: scratch offset of an inside value, or -1; bytes of a row */
    int64_t work_at, addresses_at; /* scratch offsets */
} Member;

typedef struct RowsKernel {
    const ProgramRowGroup *rows;
    Member *members; /* [rows->count] */
    int64_t blocks, part_bytes;
    int32_t parts;
} RowsKernel;

static void run_member(const Member *member, char *scratch, int64_t first, int64_t end) {
    KernelCall call = member->call;
    call.operands = (void **)(scratch + member->addresses_at);
    call.results = call.operands + call.operand_count;
    /* The addresses for the block whose first row is `first`. */
    for (int32_t k = 0; k < member->call.operand_count + member->call.result_count; k++)
        if (member->near_at[k] >= 0)
            call.operands[k] = (void *)((uintptr_t)(scratch + member->near_at[k]) -
                                        (uintptr_t)(first * member->row_bytes[k]));
    if (call.fusion) cpu_fusion_run(&call, first * member->row, end * member->row, scratch + member->work_at);
    else cpu_reduce_run(&call, first, end);
}

static void run_part(void *user, int32_t part, int32_t parts) {
    const KernelCall *call = user;
    const RowsKernel *kernel = call->compiled;
    const ProgramRowGroup *rows = kernel->rows;
    char *scratch = (char *)call->scratch + part * kernel->part_bytes;
    int64_t first, end;
    team_stretch(kernel->blocks, 1, part, parts, &first, &end);
    if (first == end) return;
    for (int32_t m = 0; m < rows->count; m++) {
        const Member *member = &kernel->members[m];
        int32_t count = member->call.operand_count + member->call.result_count;
        memcpy(scratch + member->addresses_at, member->call.operands, sizeof(void *) * (size_t)count);
        if (member->call.fusion)
            cpu_fusion_begin(&member->call, rows->block * member->row, scratch + member->work_at);
    }
    for (int64_t block = first; block < end; block++) {
        int64_t row = block * rows->block, last = row + rows->block;
        if (last > rows->rows) last = rows->rows;
        for (int32_t m = 0; m < rows->count; m++) run_member(&kernel->members[m], scratch, row, last);
    }
}

static void run_rows(const KernelCall *call) {
    const RowsKernel *kernel = call->compiled;
    team_run(call->device, run_part, (void *)call, kernel->parts);
}

static void run_with_last(const KernelCall *call) {
    (void)call;
}

/* Prepares the scratch memory of a thread: a block of each inside value, then the scratch memory of each
 * member. */
static AmStatus prepare_member(RowsKernel *kernel, Member *member, Arena *arena, int64_t *near_at,
                               AmError *error) {
    const KernelCall *call = &member->call;
    const Program *program = call->program;
    int32_t count = call->operand_count + call->result_count;
    member->near_at = ARENA_ARRAY(arena, int64_t, count + 1);
    member->row_bytes = ARENA_ARRAY(arena, int64_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count * 16);
    for (int32_t k = 0; k < count; k++) {
        int32_t storage = program->values[kernel_call_value(call, k)].storage;
        const ProgramValue *value = &program->values[storage];
        member->near_at[k] = -1;
        if (value->kind != PROGRAM_VALUE_INTERNAL) continue;
        member->row_bytes[k] = ir_shape_bytes(&value->shape) / kernel->rows->rows;
        if (k >= call->operand_count) {
            near_at[storage] = kernel->part_bytes;
            kernel->part_bytes += kernel_align(kernel->rows->block * member->row_bytes[k]);
        }
        member->near_at[k] = near_at[storage];
    }
    member->addresses_at = kernel->part_bytes;
    kernel->part_bytes += kernel_align((int64_t)sizeof(void *) * count);
    member->work_at = kernel->part_bytes;
    if (call->fusion) kernel->part_bytes += cpu_fusion_scratch(call);
    return AM_OK;
}

AmStatus cpu_join_rows(KernelCall *const *calls, Arena *arena, AmError *error) {
    const ProgramRowGroup *rows = calls[0]->rows;
    KernelCall *last = calls[rows->count - 1];
    RowsKernel *kernel = ARENA_ARRAY(arena, RowsKernel, 1);
    int64_t *near_at = ARENA_ARRAY(arena, int64_t, last->program->value_count + 1);
    double nanoseconds = 0;
    for (int32_t k = 0; k < rows->count; k++)
        if (!calls[k]->fusion && !cpu_reduce_has_ranges(calls[k]))
            return kernel_call_refuse(calls[k], "its rows cannot be reduced one by one", error);
    if (arena->failed) return am_fail_memory(error, last->program->value_count * 8);
    kernel->rows = rows;
    kernel->blocks = (rows->rows + rows->block - 1) / rows->block;
    kernel->members = ARENA_ARRAY(arena, Member, rows->count);
    if (!kernel->members) return am_fail_memory(error, (int64_t)sizeof(Member) * rows->count);
    for (int32_t k = 0; k < rows->count; k++) {
        Member *member = &kernel->members[k];
        member->call = *calls[k];
        member->row = calls[k]->fusion ? calls[k]->fusion->elements / rows->rows : 1;
        TRY(prepare_member(kernel, member, arena, near_at, error));
        nanoseconds += calls[k]->fusion ? cpu_fusion_nanoseconds(calls[k])
                                        : 0.2 * (double)ir_shape_elements(calls[k]->operand_shapes[0]);
        calls[k]->run = run_with_last;
        calls[k]->scratch_bytes = 0;
    }
    int32_t parts = team_parts(last->device, nanoseconds);
    kernel->parts = parts < kernel->blocks ? parts : (int32_t)kernel->blocks;
    last->scratch_bytes = kernel->parts * kernel->part_bytes;
    last->compiled = kernel;
    last->run = run_rows;
    return AM_OK;
}
