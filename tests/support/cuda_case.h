/* Common code of the CUDA back end's tests: runs a module given as HLO text on a CUDA device. With
 * the stand-in libraries (tests/cuda/stand_in) no GPU is needed, and calls are counted. */
#ifndef TESTS_SUPPORT_CUDA_CASE_H
#define TESTS_SUPPORT_CUDA_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/cuda/cuda.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"
#include "tests/cuda/stand_in/stand_in.h"

/* The entry computation on one device, bound to memory of its own. */
typedef struct CudaCase {
    Arena arena;
    IrModule *module, *canonical;
    IrModule *fused; /* the canonical module with its attention as fusions, or NULL */
    Program *program;
    KernelDevice *device;
    Executable *entry;
    char *memory;
    AmError error;
} CudaCase;

static inline void cuda_case_check(AmStatus status, const AmError *error) {
    if (status != AM_OK) fail_msg("%s", error->text);
}

static inline KernelDevice *cuda_case_device(const KernelBackEnd *back_end) {
    KernelDevice *device = NULL;
    AmError error = {0};
    cuda_case_check(back_end->open(&device, &(KernelOptions){.index = 0}, &error), &error);
    return device;
}

/* Everything up to the first run. */
static inline AmStatus cuda_case_open(CudaCase *self, KernelDevice *device, const char *text) {
    const KernelBackEnd *back_end = device->back_end;
    *self = (CudaCase){.device = device};
    TRY(ir_read_bytes(&self->module, "test", text, (int64_t)strlen(text), &self->error));
    TRY(ir_canonicalize(&self->canonical, self->module, &self->error));
    TRY(program_from_computation(&self->program, &self->arena, self->canonical, self->canonical->entry, false,
                                 &self->error));
    TRY(executable_prepare(&self->entry, &self->arena, device, NULL, self->program, false, &self->error));
    TRY(executable_allocate(self->entry, &self->memory, NULL, &self->error));
    return back_end->finish ? back_end->finish(device, &self->error) : AM_OK;
}

static inline void cuda_case_close(CudaCase *self) {
    if (self->memory) self->device->back_end->release(self->device, self->memory);
    arena_free(&self->arena);
    ir_module_free(self->fused);
    ir_module_free(self->canonical);
    ir_module_free(self->module);
}

static inline int64_t cuda_case_bytes(const CudaCase *self, int32_t value) {
    return ir_shape_bytes(&self->entry->program->values[value].shape);
}

static inline void cuda_case_set(CudaCase *self, int32_t k, const void *data) {
    self->device->back_end->copy_in(self->device, executable_parameter(self->entry, k), data,
                                    cuda_case_bytes(self, self->entry->program->parameters[k]));
}

static inline void cuda_case_get(CudaCase *self, int32_t k, void *data) {
    self->device->back_end->copy_out(self->device, data, executable_output(self->entry, k),
                                     cuda_case_bytes(self, self->entry->program->outputs[k]));
}

/* Issues it once; cuda_case_replay() lets the device record and replay it. */
static inline void cuda_case_run(CudaCase *self) {
    cuda_case_check(executable_issue(self->entry, &self->error), &self->error);
}

static inline void cuda_case_replay(CudaCase *self) {
    cuda_case_check(executable_run(self->entry, &self->error), &self->error);
}

static inline void cuda_case_synchronize(CudaCase *self) {
    cuda_case_check(self->device->back_end->synchronize(self->device, &self->error), &self->error);
}

/* How often a function of the driver was called; 0 with a real driver. */
static inline int64_t cuda_case_count(const char *function) {
    const StandIn *stand = stand_in();
    return stand ? stand->count(function) : 0;
}

/* Replaces the failures that the stand-in driver gives (its name is one of cmocka's macros). */
static inline void cuda_case_fail(const char *failures) {
    (stand_in()->fail)(failures);
}

/* The number that the stand-in counts, or whatever a real driver does. */
#define ASSERT_COUNT(function, expected)                                         \
    do {                                                                         \
        if (stand_in()) assert_int_equal(cuda_case_count(function), (expected)); \
    } while (0)

#endif
