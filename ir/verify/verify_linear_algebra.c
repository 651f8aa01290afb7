/* Rules of operators on the last dimensions of an array: factorisations and
 * Fourier transforms. Dimensions before those are batches.
 *
 *   fft:   real transforms give n / 2 + 1 complex numbers for n real ones (none
 *          for none) in the last dimension, and the inverse takes them
 *   topk:  values and their indices along the last dimension, as s32 with XLA and
 *          as any integer here
 */
#include "ir/verify/verify_parts.h"

/* Checks that the last two dimensions of operand 0 are a square. */
static AmStatus verify_square(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int32_t rank = operand->rank;
    if (rank >= 2 && operand->dimensions[rank - 1] == operand->dimensions[rank - 2]) return AM_OK;
    return verify_refuse(verifier, instruction, "its first operand is no square matrix or batch of such");
}

AmStatus verify_cholesky(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_square(verifier, instruction));
    return verify_alike(verifier, instruction);
}

AmStatus verify_triangular_solve(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *a = verify_operand(verifier, instruction, 0),
                  *b = verify_operand(verifier, instruction, 1);
    const Hlo__TriangularSolveOptions *options = instruction->message->triangular_solve_options;
    int transpose = options ? (int)options->transpose_a : 0;
    if (transpose < HLO__TRIANGULAR_SOLVE_OPTIONS__TRANSPOSE__NO_TRANSPOSE ||
        transpose > HLO__TRIANGULAR_SOLVE_OPTIONS__TRANSPOSE__ADJOINT) {
        return verify_refuse(verifier, instruction,
                             "it does not say NO_TRANSPOSE, TRANSPOSE or ADJOINT of its matrix");
    }
    TRY(verify_square(verifier, instruction));
    TRY(verify_type(verifier, instruction, b->type, a->type));
    if (b->rank != a->rank) return verify_refuse(verifier, instruction, "its operands differ in rank");
    int32_t shared = options->left_side ? b->rank - 2 : b->rank - 1;
    for (int32_t d = 0; d < a->rank; d++) {
        bool must_equal = d < a->rank - 2 || d == shared;
        if (!must_equal || a->dimensions[d] == b->dimensions[d]) continue;
        return verify_refuse(verifier, instruction, "its operands have sizes %lld and %lld in dimension %d",
                             (long long)a->dimensions[d], (long long)b->dimensions[d], d);
    }
    return verify_shape(verifier, instruction, &instruction->shape, b);
}

static int64_t half_of(int64_t length) {
    return length == 0 ? 0 : length / 2 + 1;
}

typedef struct FftTypes {
    Dtype operand, result;
} FftTypes;

/* Indexed by IrFftType, then single or double precision. */
static const FftTypes fft_types[4][2] = {
    [IR_FFT_FORWARD] = {{DTYPE_C64, DTYPE_C64}, {DTYPE_C128, DTYPE_C128}},
    [IR_FFT_INVERSE] = {{DTYPE_C64, DTYPE_C64}, {DTYPE_C128, DTYPE_C128}},
    [IR_FFT_REAL] = {{DTYPE_F32, DTYPE_C64}, {DTYPE_F64, DTYPE_C128}},
    [IR_FFT_INVERSE_REAL] = {{DTYPE_C64, DTYPE_F32}, {DTYPE_C128, DTYPE_F64}},
};

AmStatus verify_fft(const Verifier *verifier, const IrInstruction *instruction) {
    const IrOptions *options = instruction->attributes->options;
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int type = (int)options->fft_type, rank = options->fft_rank;
    if (type < IR_FFT_FORWARD || type > IR_FFT_INVERSE_REAL)
        return verify_refuse(verifier, instruction, "its fft_type %d is unknown (expected 0 to 3)", type);
    if (rank < 1 || rank > 3 || rank > operand->rank) {
        return verify_refuse(verifier, instruction, "it has %d lengths, expected 1 to 3 of the %d dimensions",
                             rank, operand->rank);
    }
    int32_t is_double = operand->type == fft_types[type][1].operand;
    TRY(verify_type(verifier, instruction, operand->type, fft_types[type][is_double].operand));
    int64_t sizes[IR_MAX_RANK];
    for (int32_t d = 0; d < operand->rank; d++) sizes[d] = operand->dimensions[d];
    bool is_checked = type == IR_FFT_REAL || type == IR_FFT_INVERSE_REAL;
    for (int32_t i = 0; i < rank && is_checked; i++) {
        int32_t d = operand->rank - rank + i;
        bool is_half = type == IR_FFT_INVERSE_REAL && i == rank - 1;
        int64_t length = options->fft_length[i], expected = is_half ? half_of(length) : length;
        if (length < 0 || operand->dimensions[d] != expected) {
            return verify_refuse(verifier, instruction,
                                 "dimension %d has size %lld, expected %lld for the length %lld", d,
                                 (long long)operand->dimensions[d], (long long)expected, (long long)length);
        }
    }
    int64_t last = options->fft_length[rank - 1];
    if (type == IR_FFT_REAL) sizes[operand->rank - 1] = half_of(last);
    if (type == IR_FFT_INVERSE_REAL) sizes[operand->rank - 1] = last;
    IrShape expected = {
        .type = fft_types[type][is_double].result, .rank = operand->rank, .dimensions = sizes};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

AmStatus verify_topk(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t k = instruction->message->k, sizes[IR_MAX_RANK];
    if (operand->rank < 1 || k < 0 || k > operand->dimensions[operand->rank - 1]) {
        return verify_refuse(verifier, instruction, "it takes %lld of a last dimension that has not as many",
                             (long long)k);
    }
    for (int32_t d = 0; d < operand->rank; d++) sizes[d] = operand->dimensions[d];
    sizes[operand->rank - 1] = k;
    const IrShape *result = &instruction->shape;
    bool is_pair = result->type == DTYPE_TUPLE && result->rank == 2;
    Dtype index =
        is_pair && dtype_is_integer(result->elements[1].type) ? result->elements[1].type : DTYPE_S32;
    IrShape parts[2] = {{.type = operand->type, .rank = operand->rank, .dimensions = sizes},
                        {.type = index, .rank = operand->rank, .dimensions = sizes}};
    IrShape expected = {.type = DTYPE_TUPLE, .rank = 2, .elements = parts};
    return verify_shape(verifier, instruction, result, &expected);
}
