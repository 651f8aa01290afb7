/* Common code of the kernel tests: runs one instruction or fusion on given values by the CPU back
 * end. Memory is zeroed and never shared between values, so that a sanitizer detects every invalid
 * access. */
#ifndef TESTS_SUPPORT_KERNEL_CASE_H
#define TESTS_SUPPORT_KERNEL_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "executor/kernels.h"

#define CASE_VALUES 16

typedef struct KernelCase {
    KernelDevice *device; /* NULL: the shared one */
    Arena arena;
    IrModule module;
    Program program;
    ProgramInstruction instruction;
    IrAttributes attributes;
    ProgramValue values[CASE_VALUES];
    void *memory[CASE_VALUES];
    IrInstruction body[16];
    IrComputation computations[4];
    AmError error;
} KernelCase;

static inline KernelCase *case_new(IrOpcode opcode) {
    KernelCase *self = calloc(1, sizeof *self);
    self->program.values = self->values;
    self->program.instructions = &self->instruction;
    self->program.instruction_count = 1;
    self->program.module = &self->module;
    self->module.source = "test";
    self->module.instructions = self->body;
    self->module.computations = self->computations;
    self->instruction.opcode = opcode;
    self->instruction.origin = -1;
    self->instruction.compute.called = self->instruction.compute.called_second = -1;
    self->instruction.attributes = &self->attributes;
    return self;
}

static inline int64_t *case_list(KernelCase *self, int32_t count, const int64_t *values) {
    int64_t *list = ARENA_ARRAY(&self->arena, int64_t, count + 1);
    for (int32_t k = 0; k < count; k++) list[k] = values[k];
    return list;
}
#define LIST(self, ...) \
    case_list((self), (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* Adds a value; its memory is released with the case. */
static inline int32_t case_value(KernelCase *self, Dtype type, int32_t rank, const int64_t *dimensions) {
    int32_t v = self->program.value_count++;
    self->values[v].shape =
        (IrShape){.type = type, .rank = rank, .dimensions = case_list(self, rank, dimensions)};
    self->values[v].storage = v;
    self->memory[v] = calloc(1, (size_t)ir_shape_bytes(&self->values[v].shape) + 1);
    return v;
}
#define VALUE(self, type, ...)                                                                \
    case_value((self), (type), (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
               (int64_t[]){__VA_ARGS__})

static inline float *case_floats(KernelCase *self, int32_t v) {
    return self->memory[v];
}

/* Small whole numbers, different for every value of `seed`. */
static inline void case_fill(KernelCase *self, int32_t v, uint32_t seed) {
    float *out = self->memory[v];
    for (int64_t i = 0; i < ir_shape_elements(&self->values[v].shape); i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (float)((int32_t)(seed >> 20 & 15) - 7);
    }
}

/* Operands are the first values, results the last `results`. */
static inline AmStatus case_run(KernelCase *self, const ProgramFusion *fusion, int32_t results) {
    int32_t operands = self->program.value_count - results;
    int32_t *list = ARENA_ARRAY(&self->arena, int32_t, operands + 1);
    for (int32_t k = 0; k < operands; k++) list[k] = k;
    self->instruction.operands = list;
    self->instruction.operand_count = operands;
    self->instruction.first_result = operands;
    self->instruction.result_count = results;
    if (fusion) self->program.execution.fusions = (ProgramFusion *)fusion;
    ProgramStep step = {.instruction = fusion ? -1 : 0, .fusion = fusion ? 0 : -1};
    KernelCall *call;
    TRY(kernel_prepare(&call, &self->arena, self->device ? self->device : &kernel_device_cpu, &self->program,
                       &step, &self->error));
    void *scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    for (int32_t k = 0; k < call->operand_count; k++)
        call->operands[k] = self->memory[fusion ? fusion->inputs[k].value : k];
    for (int32_t k = 0; k < results; k++)
        call->results[k] = self->memory[fusion ? fusion->output_values[k] : operands + k];
    call->scratch = scratch;
    if (call->bind) call->bind(call);
    call->run(call);
    free(scratch);
    return AM_OK;
}

/* Adds a computation of two scalars, `opcode` applied to both; returns its index. */
static inline int32_t case_computation(KernelCase *self, IrOpcode opcode, Dtype type, Dtype result) {
    int32_t first = self->module.instruction_count, c = self->module.computation_count++;
    static const IrAttributes nothing;
    for (int32_t k = 0; k < 3; k++) {
        IrInstruction *instruction = &self->body[first + k];
        *instruction = (IrInstruction){.opcode = k < 2 ? IR_PARAMETER : opcode,
                                       .opcode_name = "op",
                                       .name = "op",
                                       .shape = {.type = k < 2 ? type : result},
                                       .attributes = &nothing,
                                       .operand_count = k < 2 ? 0 : 2};
    }
    int32_t *operands = ARENA_ARRAY(&self->arena, int32_t, 4);
    operands[0] = operands[2] = first;
    operands[1] = operands[3] = first + 1;
    self->body[first + 2].operands = operands;
    self->module.instruction_count += 3;
    self->computations[c] = (IrComputation){.name = "computation",
                                            .first = first,
                                            .count = 3,
                                            .root = first + 2,
                                            .parameter_count = 2,
                                            .parameters = operands + 2};
    return c;
}

static inline void case_free(KernelCase *self) {
    for (int32_t v = 0; v < self->program.value_count; v++) free(self->memory[v]);
    arena_free(&self->arena);
    free(self);
}

#endif
