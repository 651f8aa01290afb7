/* Rules of random numbers. The valid states depend on the generator and differ between platforms;
 * the rule requires the same shape of state in operand and result.
 */
#include "ir/verify/verify_parts.h"

/* Checks two scalars of the result's type: bounds, or mean and deviation. */
AmStatus verify_rng(const Verifier *verifier, const IrInstruction *instruction) {
    IrShape scalar = {.type = instruction->shape.type};
    int distribution = (int)instruction->message->distribution;
    bool is_normal = distribution == HLO__RANDOM_DISTRIBUTION__RNG_NORMAL;
    if (!is_normal && distribution != HLO__RANDOM_DISTRIBUTION__RNG_UNIFORM)
        return verify_refuse(verifier, instruction, "its distribution is neither uniform nor normal");
    if (instruction->operand_count != 2) {
        return verify_refuse(verifier, instruction, "it has %d operands, expected 2",
                             instruction->operand_count);
    }
    if (is_normal && !dtype_is_floating(instruction->shape.type))
        return verify_refuse(verifier, instruction, "its distribution is normal and its type not floating");
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 0), &scalar));
    return verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &scalar);
}

/* Checks (next state, bits), or the bits alone, as older modules have it. */
AmStatus verify_rng_bit_generator(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *result = &instruction->shape;
    int algorithm = (int)instruction->message->rng_algorithm;
    if (algorithm < IR_RANDOM_DEFAULT || algorithm > IR_RANDOM_PHILOX)
        return verify_refuse(verifier, instruction, "its algorithm %d is unknown (expected 0 to 2)",
                             algorithm);
    if (dtype_bits(result->type) > 0) return AM_OK;
    bool has_bits =
        result->type == DTYPE_TUPLE && result->rank == 2 && dtype_bits(result->elements[1].type) > 0;
    if (!has_bits) return verify_refuse(verifier, instruction, "its shape is no tuple of a state and bits");
    return verify_shape(verifier, instruction, &result->elements[0],
                        verify_operand(verifier, instruction, 0));
}

/* Checks rng-get-and-update-state. */
AmStatus verify_rng_state(const Verifier *verifier, const IrInstruction *instruction) {
    static const int64_t two = 2;
    IrShape expected = {.type = DTYPE_U64, .rank = 1, .dimensions = &two};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}
