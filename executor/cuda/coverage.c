/* The coverage of the CUDA back end: the function that prepares each opcode without a generated kernel, and
 * the opcodes and element types that it lacks. */
#include "executor/cuda/coverage.h"

#include <string.h>

#include "executor/annotation_calls.h"
#include "executor/cpu/cpu.h"
#include "executor/program/control_flow.h"
#include "executor/refused.h"

static void run_nothing(const KernelCall *call) {
    (void)call;
}

/* Steps run one after the other, so a token is no more than a place in their order. */
static AmStatus prepare_order(KernelCall *call, Arena *arena, AmError *error) {
    (void)arena, (void)error;
    call->run = run_nothing;
    return AM_OK;
}

static AmStatus prepare_custom_call(KernelCall *call, Arena *arena, AmError *error) {
    const char *target = call->attributes->custom_call_target;
    if (target && strcmp(target, "TopK") == 0) return cuda_prepare_generated(call, arena, error);
    if (cpu_covers_lapack(target))
        return kernel_call_refuse(call, "LAPACK's functions run on the host alone", error);
    return annotation_call_prepare(call, arena, error);
}

static const struct {
    IrOpcode opcode;
    CudaPrepare *prepare;
    const char *way;
} rows[] = {
    {IR_AFTER_ALL, prepare_order, "order"},
    {IR_CONVOLUTION, cuda_prepare_convolution, "cuDNN"},
    {IR_CUSTOM_CALL, prepare_custom_call, "markers, TopK"},
    {IR_DOT, cuda_prepare_dot, "cuBLASLt"},
    {IR_FUSION, cuda_prepare_region, "generated"},
};

/* Opcodes that the CPU runs and CUDA lacks. */
static const struct {
    IrOpcode opcode;
    const char *reason;
} lacking[] = {
    {IR_FFT, "cuFFT is not among the libraries that automap uses"},
};

/* Opcodes that work on every type: they move elements, or only order, repeat or rename. After them those
 * that have no narrow type on any device. All others compute, and lack CUDA_NARROW. */
static const IrOpcode typeless[] = {
    IR_ADD_DEPENDENCY,
    IR_AFTER_ALL,
    IR_BITCAST,
    IR_BROADCAST,
    IR_CALL,
    IR_CONCATENATE,
    IR_CONDITIONAL,
    IR_CONSTANT,
    IR_COPY,
    IR_DOMAIN,
    IR_DYNAMIC_RESHAPE,
    IR_DYNAMIC_SLICE,
    IR_FUSION,
    IR_GATHER,
    IR_DYNAMIC_UPDATE_SLICE,
    IR_GET_DIMENSION_SIZE,
    IR_GET_TUPLE_ELEMENT,
    IR_OPT_BARRIER,
    IR_PAD,
    IR_PARAMETER,
    IR_RESHAPE,
    IR_REVERSE,
    IR_RNG_BIT_GENERATOR,
    IR_SET_DIMENSION_SIZE,
    IR_SLICE,
    IR_TRANSPOSE,
    IR_TUPLE,
    IR_WHILE,
    IR_COMPLEX,
    IR_IMAG,
    IR_REAL,
};

/* Types that an opcode lacks beside CUDA_NARROW. */
static const struct {
    IrOpcode opcode;
    unsigned types;
} lacking_types[] = {
    {IR_CHOLESKY, CUDA_COMPLEX}, {IR_CONVOLUTION, CUDA_COMPLEX},      {IR_DOT, CUDA_COMPLEX},
    {IR_RAGGED_DOT, CUDA_PRED},  {IR_TRIANGULAR_SOLVE, CUDA_COMPLEX},
};

static const IrOpcode lowered[] = {IR_GET_TUPLE_ELEMENT, IR_PARAMETER, IR_TUPLE};

const char *cuda_lacks(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof lacking / sizeof *lacking; k++)
        if (lacking[k].opcode == opcode) return lacking[k].reason;
    return NULL;
}

unsigned cuda_type_set(Dtype type) {
    if (type == DTYPE_PRED) return CUDA_PRED;
    if (dtype_real_part(type) != type) return CUDA_COMPLEX;
    bool is_small = dtype_is_floating(type) ? dtype_bits(type) < 16 : dtype_bits(type) < 8;
    return is_small ? CUDA_NARROW : 0;
}

unsigned cuda_lacking_types(IrOpcode opcode) {
    if (refused_reason(opcode) || cuda_lacks(opcode)) return 0;
    for (size_t k = 0; k < sizeof typeless / sizeof *typeless; k++)
        if (typeless[k] == opcode) return 0;
    for (size_t k = 0; k < sizeof lacking_types / sizeof *lacking_types; k++)
        if (lacking_types[k].opcode == opcode) return CUDA_NARROW | lacking_types[k].types;
    return CUDA_NARROW;
}

const char *cuda_coverage_way(IrOpcode opcode) {
    if (refused_reason(opcode)) return "-";
    if (cuda_lacks(opcode)) return "no";
    if (control_covers(opcode)) return "control";
    for (size_t k = 0; k < sizeof lowered / sizeof *lowered; k++)
        if (lowered[k] == opcode) return "lowered";
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return rows[k].way;
    return cuda_source_covers(opcode) ? "generated" : NULL;
}

CudaPrepare *cuda_coverage_prepare(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return rows[k].prepare;
    return cuda_prepare_generated;
}
