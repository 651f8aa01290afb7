/* The coverage of the CUDA back end: the function that prepares each opcode without a generated kernel, and
 * the opcodes that it lacks. */
#include "executor/cuda/coverage.h"

#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/marker.h"
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
    const char *target = call->instruction->attributes->custom_call_target;
    if (target && strcmp(target, "TopK") == 0) return cuda_prepare_generated(call, arena, error);
    if (cpu_covers_lapack(target))
        return kernel_call_refuse(call, "LAPACK's functions run on the host alone", error);
    return marker_prepare(call, arena, error);
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
};

/* Opcodes that the CPU runs and CUDA lacks. */
static const struct {
    IrOpcode opcode;
    const char *reason;
} lacking[] = {
    {IR_FFT, "cuFFT is not among the libraries that automap uses"},
};

static const IrOpcode lowered[] = {IR_GET_TUPLE_ELEMENT, IR_PARAMETER, IR_TUPLE};

const char *cuda_lacks(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof lacking / sizeof *lacking; k++)
        if (lacking[k].opcode == opcode) return lacking[k].reason;
    return NULL;
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
