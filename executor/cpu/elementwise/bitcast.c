/* bitcast-convert between types of different widths: an element becomes several narrower ones, or
 * vice versa, the lowest bits first.
 *
 * In memory an element of less than a byte occupies a byte, so that bits are extracted from and
 * inserted into bytes; if both types fill their bytes the memory is unchanged.
 */
#include <string.h>

#include "executor/cpu/cpu.h"

static void run_bitcast(const KernelCall *call) {
    Dtype from = call->operand_shapes[0]->type, to = call->result_shapes[0]->type;
    int32_t from_bits = dtype_bits(from), to_bits = dtype_bits(to);
    int32_t step = from_bits < to_bits ? from_bits : to_bits;
    if (step > 8) step = 8;
    const uint8_t *in = call->operands[0];
    uint8_t *out = call->results[0];
    int64_t bytes = ir_shape_bytes(call->result_shapes[0]);
    int64_t bits = ir_shape_elements(call->result_shapes[0]) * to_bits;
    memset(out, 0, (size_t)bytes);
    for (int64_t at = 0; at < bits; at += step) {
        /* Up to 8 bits of the element, from bit `first` on. */
        int32_t first = (int32_t)(at % from_bits);
        uint32_t byte = in[at / from_bits * dtype_bytes(from) + first / 8];
        uint32_t part = byte >> first % 8 & ((1u << step) - 1);
        int32_t within = (int32_t)(at % to_bits);
        out[at / to_bits * dtype_bytes(to) + within / 8] |= (uint8_t)(part << within % 8);
    }
    if (to_bits >= 8 || !dtype_is_signed(to) || !dtype_is_integer(to)) return;
    int32_t unused = 8 - to_bits;
    for (int64_t k = 0; k < bytes; k++) out[k] = (uint8_t)((int8_t)(uint8_t)(out[k] << unused) >> unused);
}

AmStatus cpu_prepare_bitcast_convert(KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *from = call->operand_shapes[0], *to = call->result_shapes[0];
    int32_t from_bits = dtype_bits(from->type), to_bits = dtype_bits(to->type);
    if (from_bits == to_bits) return cpu_prepare_single(call, arena, error);
    if (ir_shape_elements(from) * from_bits != ir_shape_elements(to) * to_bits)
        return kernel_call_refuse(call, "operand and result differ in size", error);
    if (from_bits >= 8 && to_bits >= 8) return cpu_prepare_reshape(call, arena, error);
    call->run = run_bitcast;
    return AM_OK;
}
