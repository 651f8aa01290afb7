/* Rules of batch normalisation.
 *
 * The operands of a batch-norm after the first (except the last of a gradient) have one element per
 * feature, and the results after the first too.
 */
#include "ir/verify/verify_parts.h"

/* Operands 1 to last - 1 have one element for each feature of operand 0. */
static AmStatus verify_features(const Verifier *verifier, const IrInstruction *instruction, int32_t last,
                                int64_t *features) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t index = instruction->attributes->options->feature_index;
    if (index < 0 || index >= operand->rank) {
        return verify_refuse(verifier, instruction, "its feature_index %lld is not below rank %d",
                             (long long)index, operand->rank);
    }
    *features = operand->dimensions[index];
    IrShape expected = {.type = operand->type, .rank = 1, .dimensions = features};
    for (int32_t k = 1; k < last; k++) {
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, k), &expected));
    }
    return AM_OK;
}

/* Checks a result (as operand 0, one per feature, one per feature). */
static AmStatus verify_statistics(const Verifier *verifier, const IrInstruction *instruction,
                                  const int64_t *features) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    IrShape each = {.type = operand->type, .rank = 1, .dimensions = features};
    IrShape parts[3] = {*operand, each, each};
    IrShape expected = {.type = DTYPE_TUPLE, .rank = 3, .elements = parts};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

AmStatus verify_batch_norm_training(const Verifier *verifier, const IrInstruction *instruction) {
    int64_t features;
    TRY(verify_features(verifier, instruction, 3, &features));
    return verify_statistics(verifier, instruction, &features);
}

AmStatus verify_batch_norm_inference(const Verifier *verifier, const IrInstruction *instruction) {
    int64_t features;
    TRY(verify_features(verifier, instruction, 5, &features));
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

AmStatus verify_batch_norm_grad(const Verifier *verifier, const IrInstruction *instruction) {
    int64_t features;
    TRY(verify_features(verifier, instruction, 4, &features));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 4),
                     verify_operand(verifier, instruction, 0)));
    return verify_statistics(verifier, instruction, &features);
}
