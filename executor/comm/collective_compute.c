/* The results of a collective from operands in one address space: all_gather, reduce_scatter, all_to_all and
 * halo_exchange.
 *
 * Each function copies or folds the parts of all members' operands into the results of one member.
 * comm_local.c has the all_reduce.
 */
#include "executor/comm/collective_compute.h"

#include <string.h>

#include "executor/array/strided.h"

Combine collective_combine(const CommCall *call, int32_t k, const CollectiveScratch *scratch) {
    Dtype type = call->operand_shapes[k]->type;
    return (Combine){.reduction = call->collective->reduction,
                     .type = dtype_is_complex(type) ? dtype_real_part(type) : type,
                     .members = scratch->members,
                     .member_count = call->rank_count,
                     .results = scratch->results};
}

int64_t collective_real_elements(const IrShape *shape) {
    return ir_shape_elements(shape) * (dtype_is_complex(shape->type) ? 2 : 1);
}

static void all_gather(const RendezvousGroup *group, const CommCall *call) {
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
            int64_t at = comm_part_start(movement->parts, member) * out_strides[movement->dimension];
            strided_copy((char *)call->results[k] + at * bytes, out_strides,
                         collective_call(group, member)->operands[k], in_strides, box, shape->rank, bytes);
        }
    }
}

static void reduce_scatter(const RendezvousGroup *group, const CommCall *call,
                           const CollectiveScratch *scratch) {
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *operand = call->operand_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int32_t d = movement->dimension;
        int64_t width = dtype_is_complex(operand->type) ? 2 : 1;
        int64_t bytes = dtype_bytes(operand->type), part = movement->parts[call->position];
        int64_t outer = strided_elements(operand->dimensions, d);
        int64_t inner = strided_elements(operand->dimensions + d + 1, operand->rank - d - 1);
        int64_t start = comm_part_start(movement->parts, call->position) * inner;
        Combine work = collective_combine(call, k, scratch);
        work.result_count = 1;
        for (int64_t o = 0; o < outer; o++) {
            int64_t at = (o * operand->dimensions[d] * inner + start) * bytes;
            work.results[0] = (char *)call->results[k] + o * part * inner * bytes;
            for (int32_t m = 0; m < group->count; m++)
                work.members[m] = (const char *)collective_call(group, m)->operands[k] + at;
            combine_run(&work, 0, part * inner * width);
        }
    }
}

static void all_to_all(const RendezvousGroup *group, const CommCall *call) {
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->result_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int32_t d = movement->dimension, other = movement->other;
        int64_t out_strides[IR_MAX_RANK], in_strides[IR_MAX_RANK], box[IR_MAX_RANK], from[IR_MAX_RANK];
        int64_t bytes = dtype_bytes(shape->type);
        strided_row_major(out_strides, shape->dimensions, shape->rank);
        memcpy(box, shape->dimensions, sizeof(int64_t) * (size_t)shape->rank);
        memcpy(from, box, sizeof(int64_t) * (size_t)shape->rank);
        from[other] = comm_part_start(movement->other_parts, group->count);
        for (int32_t member = 0; member < group->count; member++) {
            box[d] = from[d] = movement->parts[member];
            strided_row_major(in_strides, from, shape->rank);
            int64_t out_at = comm_part_start(movement->parts, member) * out_strides[d];
            int64_t in_at = comm_part_start(movement->other_parts, call->position) * in_strides[other];
            strided_copy((char *)call->results[k] + out_at * bytes, out_strides,
                         (const char *)collective_call(group, member)->operands[k] + in_at * bytes,
                         in_strides, box, shape->rank, bytes);
        }
    }
}

static void halo_exchange(const RendezvousGroup *group, const CommCall *call) {
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
                             (const char *)collective_call(group, member)->operands[k] +
                                 (start - part) * in_strides[d] * bytes,
                             in_strides, box, shape->rank, bytes);
        }
    }
}

void collective_compute(const RendezvousGroup *group, const CommCall *call,
                        const CollectiveScratch *scratch) {
    switch (call->collective->kind) {
    case PROGRAM_ALL_GATHER: all_gather(group, call); break;
    case PROGRAM_REDUCE_SCATTER: reduce_scatter(group, call, scratch); break;
    case PROGRAM_ALL_TO_ALL: all_to_all(group, call); break;
    case PROGRAM_HALO_EXCHANGE: halo_exchange(group, call); break;
    default: break;
    }
}
