/* Rules of instructions that call computations, and of tuples.
 *
 * The parameters of a computation have the shapes of the operands, or are scalars of their types if
 * it is applied element by element; its result determines the instruction's shape.
 */
#include "ir/verify/verify_parts.h"

AmStatus verify_tuple(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *result = &instruction->shape;
    if (result->type != DTYPE_TUPLE || result->rank != instruction->operand_count) {
        return verify_refuse(verifier, instruction, "its shape is no tuple of %d elements",
                             instruction->operand_count);
    }
    for (int32_t k = 0; k < result->rank; k++) {
        TRY(verify_shape(verifier, instruction, &result->elements[k],
                         verify_operand(verifier, instruction, k)));
    }
    return AM_OK;
}

AmStatus verify_get_tuple_element(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t index = instruction->attributes->tuple_index;
    if (operand->type != DTYPE_TUPLE || index < 0 || index >= operand->rank) {
        return verify_refuse(verifier, instruction, "its operand is no tuple with an element %lld",
                             (long long)index);
    }
    return verify_shape(verifier, instruction, &instruction->shape, &operand->elements[index]);
}

/* Checks call and fusion. XLA lets a fusion have operands that nothing reads. */
AmStatus verify_call(const Verifier *verifier, const IrInstruction *instruction) {
    bool takes_less = verifier->is_lax && instruction->called_count == 1 &&
                      verify_called(verifier, instruction, 0)->parameter_count < instruction->operand_count;
    int32_t taken =
        takes_less ? verify_called(verifier, instruction, 0)->parameter_count : instruction->operand_count;
    Verifier strict = {verifier->module, verifier->error, false};
    TRY(verify_calls(verifier, instruction, 1, taken));
    const IrComputation *called = verify_called(verifier, instruction, 0);
    for (int32_t k = 0; k < taken; k++) {
        TRY(verify_shape(&strict, instruction, verify_operand(verifier, instruction, k),
                         verify_parameter_shape(verifier, called, k)));
    }
    return verify_shape(&strict, instruction, &instruction->shape, verify_root_shape(verifier, called));
}

/* Checks that body and condition have the state as parameter, and that the body returns the next one. */
AmStatus verify_while(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *state = &instruction->shape;
    IrShape flag = {.type = DTYPE_PRED};
    TRY(verify_calls(verifier, instruction, 2, 1));
    TRY(verify_shape(verifier, instruction, state, verify_operand(verifier, instruction, 0)));
    const IrComputation *body = verify_called(verifier, instruction, 0),
                        *condition = verify_called(verifier, instruction, 1);
    TRY(verify_parameter(verifier, instruction, body, 0, state));
    TRY(verify_root(verifier, instruction, body, state));
    TRY(verify_parameter(verifier, instruction, condition, 0, state));
    return verify_root(verifier, instruction, condition, &flag);
}

/* Operands are the selector and one argument per branch; a pred selects between two. */
AmStatus verify_conditional(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *selector = verify_operand(verifier, instruction, 0);
    bool selects = selector->rank == 0 && (selector->type == DTYPE_PRED || selector->type == DTYPE_S32);
    if (!selects) return verify_refuse(verifier, instruction, "its selector is no scalar pred or s32");
    int32_t branches = instruction->operand_count - 1;
    if (selector->type == DTYPE_PRED && branches != 2) {
        return verify_refuse(verifier, instruction, "its pred selects between %d branches, expected 2",
                             branches);
    }
    TRY(verify_calls(verifier, instruction, branches, 1));
    for (int32_t i = 0; i < branches; i++) {
        const IrComputation *branch = verify_called(verifier, instruction, i);
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, i + 1),
                         verify_parameter_shape(verifier, branch, 0)));
        TRY(verify_root(verifier, instruction, branch, &instruction->shape));
    }
    return AM_OK;
}

/* Checks that the computation maps a scalar of each operand to a scalar of the result. All operands have the
 * same dimensions; XLA accepts scalars beside them. */
AmStatus verify_map(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_calls(verifier, instruction, 1, instruction->operand_count));
    const IrComputation *called = verify_called(verifier, instruction, 0);
    IrShape result = {.type = instruction->shape.type};
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        IrShape scalar = {.type = verify_operand(verifier, instruction, k)->type};
        bool is_scalar = verifier->is_lax && verify_operand(verifier, instruction, k)->rank == 0;
        if (!is_scalar)
            TRY(verify_like(verifier, instruction, verify_operand(verifier, instruction, k),
                            &instruction->shape, scalar.type));
        TRY(verify_parameter(verifier, instruction, called, k, &scalar));
    }
    return verify_root(verifier, instruction, called, &result);
}

/* Checks that the comparator has two scalars of each operand, operand by operand. One operand gives an
 * array, several give a tuple of arrays. */
AmStatus verify_sort(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *first = verify_operand(verifier, instruction, 0);
    IrShape flag = {.type = DTYPE_PRED};
    int64_t along;
    TRY(verify_one_dimension(verifier, instruction, first->rank, &along));
    TRY(verify_calls(verifier, instruction, 1, 2 * instruction->operand_count));
    const IrComputation *comparator = verify_called(verifier, instruction, 0);
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k);
        IrShape scalar = {.type = operand->type};
        TRY(verify_like(verifier, instruction, operand, first, operand->type));
        TRY(verify_parameter(verifier, instruction, comparator, 2 * k, &scalar));
        TRY(verify_parameter(verifier, instruction, comparator, 2 * k + 1, &scalar));
    }
    TRY(verify_root(verifier, instruction, comparator, &flag));
    return verify_each_operand(verifier, instruction, &instruction->shape, 0);
}

/* Checks that `whole` is `part` with one more dimension `along` of size *length, which is set by the first
 * and kept by the others. */
static AmStatus verify_stacked(const Verifier *verifier, const IrInstruction *instruction,
                               const IrShape *whole, const IrShape *part, int64_t along, int64_t *length) {
    int64_t sizes[IR_MAX_RANK];
    if (dtype_bits(whole->type) == 0 || along < 0 || along >= whole->rank) {
        return verify_refuse(verifier, instruction, "it scans dimension %lld of a value without dimensions",
                             (long long)along);
    }
    if (*length < 0) *length = whole->dimensions[along];
    if (whole->dimensions[along] != *length) {
        return verify_refuse(verifier, instruction, "it scans %lld elements, and elsewhere %lld",
                             (long long)whole->dimensions[along], (long long)*length);
    }
    int32_t rank = 0;
    for (int32_t d = 0; d < whole->rank; d++) {
        if (d != along) sizes[rank++] = whole->dimensions[d];
    }
    IrShape expected = {.type = whole->type, .rank = rank, .dimensions = sizes};
    return verify_shape(verifier, instruction, part, &expected);
}

/* Operands are the inputs, of which each step takes one slice, then the carried values; results are
 * the slices of all steps, then the carried values. */
AmStatus verify_scan(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *result = &instruction->shape;
    int64_t carried = instruction->message->num_carries, length = -1;
    TRY(verify_calls(verifier, instruction, 1, instruction->operand_count));
    const IrComputation *called = verify_called(verifier, instruction, 0);
    const IrShape *root = verify_root_shape(verifier, called);
    bool are_tuples = result->type == DTYPE_TUPLE && root->type == DTYPE_TUPLE && result->rank == root->rank;
    bool is_one = verifier->is_lax && result->type != DTYPE_TUPLE && root->type != DTYPE_TUPLE;
    IrShape one_result = {.type = DTYPE_TUPLE, .rank = 1, .elements = &instruction->shape};
    IrShape one_root = {.type = DTYPE_TUPLE, .rank = 1, .elements = root};
    if (is_one) result = &one_result, root = &one_root;
    if (!(are_tuples || is_one) || instruction->attributes->dimension_count != 1) {
        return verify_refuse(verifier, instruction,
                             "it names %d dimensions, expected 1 and a tuple as the computation gives",
                             instruction->attributes->dimension_count);
    }
    int64_t along = instruction->attributes->dimensions[0];
    int64_t inputs = instruction->operand_count - carried, outputs = result->rank - carried;
    if (carried < 0 || inputs < 0 || outputs < 0 || inputs + outputs == 0) {
        return verify_refuse(verifier, instruction, "it carries %lld of %d operands and %d results",
                             (long long)carried, instruction->operand_count, result->rank);
    }
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k),
                      *parameter = verify_parameter_shape(verifier, called, k);
        TRY(k < inputs ? verify_stacked(verifier, instruction, operand, parameter, along, &length)
                       : verify_shape(verifier, instruction, operand, parameter));
    }
    for (int32_t k = 0; k < result->rank; k++) {
        const IrShape *found = &result->elements[k], *part = &root->elements[k];
        TRY(k < outputs ? verify_stacked(verifier, instruction, found, part, along, &length)
                        : verify_shape(verifier, instruction, found, part));
    }
    return AM_OK;
}
