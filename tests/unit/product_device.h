/* Common code of the tests of dot and of convolution: runs the cases of product_case.h on a CUDA
 * device and on the CPU. All are compiled together. */
#ifndef TESTS_UNIT_PRODUCT_DEVICE_H
#define TESTS_UNIT_PRODUCT_DEVICE_H

#include "executor/cuda/cuda.h"
#include "product_rows.h"
#include "tests/cuda/stand_in/stand_in.h"

#define PRODUCT_MOST 64

/* One device with many cases, each with memory of its own. */
typedef struct ProductDevice {
    KernelDevice *device;
    KernelCase *cases[PRODUCT_MOST];
    KernelCall *calls[PRODUCT_MOST];
    int32_t count;
    AmWarnings warnings;
    Arena arena;
} ProductDevice;

static inline void product_device_open(ProductDevice *self, bool tf32) {
    AmError error = {0};
    *self = (ProductDevice){0};
    self->warnings.arena = &self->arena;
    KernelOptions options = {.tf32 = tf32, .warnings = &self->warnings};
    if (kernels_cuda.open(&self->device, &options, &error) != AM_OK) fail_msg("%s", error.text);
}

static inline void *product_memory(ProductDevice *self, int64_t bytes) {
    AmError error = {0};
    void *memory = NULL;
    if (kernels_cuda.allocate(self->device, &memory, bytes + 1, &error) != AM_OK) fail_msg("%s", error.text);
    return memory;
}

/* Prepares and binds a case; operands are copied to the device, a third one to the result's place. The case
 * is the device's from now on. */
static inline KernelCall *product_device_add(ProductDevice *self, KernelCase *c) {
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    if (kernel_prepare(&call, &c->arena, self->device, &c->program, &step, &c->error) != AM_OK)
        fail_msg("%s", c->error.text);
    for (int32_t k = 0; k < 3; k++) {
        int64_t bytes = ir_shape_bytes(&c->values[k].shape);
        void *memory = product_memory(self, bytes);
        if (k < 2) kernels_cuda.copy_in(self->device, memory, c->memory[k], bytes);
        *(k < 2 ? &call->operands[k] : &call->results[0]) = memory;
    }
    if (call->operand_count > 2) {
        call->operands[2] = call->results[0];
        kernels_cuda.copy_in(self->device, call->operands[2], c->memory[3],
                             ir_shape_bytes(&c->values[3].shape));
    }
    call->scratch = product_memory(self, call->scratch_bytes);
    if (call->bind) call->bind(call);
    self->cases[self->count] = c;
    return self->calls[self->count++] = call;
}

static inline void product_device_finish(ProductDevice *self) {
    AmError error = {0};
    if (kernels_cuda.finish(self->device, &error) != AM_OK) fail_msg("%s", error.text);
}

/* Runs case k; the result is copied to `out`, of the result's size. */
static inline void product_device_run(ProductDevice *self, int32_t k, void *out) {
    AmError error = {0};
    const IrShape *shape = self->calls[k]->result_shapes[0];
    self->calls[k]->run(self->calls[k]);
    if (kernels_cuda.synchronize(self->device, &error) != AM_OK) fail_msg("%s", error.text);
    kernels_cuda.copy_out(self->device, out, self->calls[k]->results[0], ir_shape_bytes(shape));
}

/* Runs case k on the CPU too; every byte of the results is equal. */
static inline void product_device_compare(ProductDevice *self, int32_t k, const char *name) {
    KernelCase *c = self->cases[k];
    ProgramStep step = {.instruction = 0, .fusion = -1};
    int64_t bytes = ir_shape_bytes(&c->values[2].shape);
    KernelCall *call;
    char *out = calloc(1, (size_t)bytes + 1);
    product_device_run(self, k, out);
    assert_int_equal(kernel_prepare(&call, &c->arena, &kernel_device_cpu, &c->program, &step, &c->error),
                     AM_OK);
    void *scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    for (int32_t o = 0; o < 2; o++) call->operands[o] = c->memory[o];
    if (call->operand_count > 2) call->operands[2] = c->memory[3];
    call->results[0] = c->memory[2];
    call->scratch = scratch;
    if (call->bind) call->bind(call);
    call->run(call);
    if (memcmp(out, c->memory[2], (size_t)bytes) != 0) fail_msg("%s differs from the CPU's", name);
    free(scratch);
    free(out);
}

static inline int64_t product_count(const char *function) {
    const StandIn *stand = stand_in();
    return stand ? stand->count(function) : 0;
}

static inline void product_device_close(ProductDevice *self) {
    for (int32_t k = 0; k < self->count; k++) {
        KernelCall *call = self->calls[k];
        void *memory[] = {call->operands[0], call->operands[1], call->results[0], call->scratch};
        for (size_t m = 0; m < sizeof memory / sizeof *memory; m++)
            kernels_cuda.release(self->device, memory[m]);
    }
    kernels_cuda.close(self->device);
    arena_free(&self->arena);
    for (int32_t k = 0; k < self->count; k++) case_free(self->cases[k]);
}

#endif
