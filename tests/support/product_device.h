/* Common code of the tests of dot and of convolution: runs the cases of product_case.h on a CUDA
 * device and on the CPU. All are compiled together. */
#ifndef TESTS_SUPPORT_PRODUCT_DEVICE_H
#define TESTS_SUPPORT_PRODUCT_DEVICE_H

#include "error_case.h"
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

static inline KernelCall *product_prepare(ProductDevice *self, KernelCase *c) {
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    if (kernel_prepare(&call, &c->arena, self->device, &c->program, &step, &c->error) != AM_OK)
        fail_msg("%s", c->error.text);
    return call;
}

/* Binds a prepared case; operands are copied to the device, a third one to the result's place. The case is
 * the device's from now on. */
static inline KernelCall *product_device_bind(ProductDevice *self, KernelCase *c, KernelCall *call) {
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

static inline KernelCall *product_device_add(ProductDevice *self, KernelCase *c) {
    return product_device_bind(self, c, product_prepare(self, c));
}

/* The same for a case whose library has no memory to try its algorithms beforehand. */
static inline KernelCall *product_device_add_untried(ProductDevice *self, KernelCase *c) {
    (stand_in()->fail)("cuMemAlloc=2");
    KernelCall *call = product_prepare(self, c);
    (stand_in()->fail)("");
    return product_device_bind(self, c, call);
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

/* Runs a case on the CPU; the result is at c->memory[2]. */
static inline void product_run_host(KernelCase *c) {
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    assert_int_equal(kernel_prepare(&call, &c->arena, &kernel_device_cpu, &c->program, &step, &c->error),
                     AM_OK);
    void *scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    for (int32_t o = 0; o < 2; o++) call->operands[o] = c->memory[o];
    if (call->operand_count > 2) call->operands[2] = c->memory[3];
    call->results[0] = c->memory[2];
    call->scratch = scratch;
    if (call->bind) call->bind(call);
    call->run(call);
    free(scratch);
}

static inline double product_element(const void *data, Dtype type, int64_t at) {
    switch (type) {
    case DTYPE_F64: return ((const double *)data)[at];
    case DTYPE_F32: return (double)((const float *)data)[at];
    case DTYPE_BF16: return (double)dtype_bf16_to_float(((const uint16_t *)data)[at]);
    default: return (double)dtype_f16_to_float(((const uint16_t *)data)[at]);
    }
}

/* Clears the signs of the operands, so that a run gives the sizes of the sums. */
static inline void product_clear_signs(KernelCase *c) {
    for (int32_t v = 0; v < 2; v++) {
        int64_t bytes = dtype_bytes(c->values[v].shape.type);
        unsigned char *at = c->memory[v];
        for (int64_t i = 0; i < ir_shape_elements(&c->values[v].shape); i++) at[(i + 1) * bytes - 1] &= 0x7f;
    }
}

/* A convolution of 16-bit numbers, which the library may compute through a transform. */
static inline void product_compare_bounded(KernelCase *c, const char *out, const char *name) {
    const IrShape *shape = &c->values[2].shape;
    CaseError error = {case_unit(shape->type), 0, 0};
    int64_t count = ir_shape_elements(shape);
    double *expected = calloc((size_t)count + 1, sizeof *expected);
    for (int64_t i = 0; i < count; i++) expected[i] = product_element(c->memory[2], shape->type, i);
    product_clear_signs(c);
    product_run_host(c);
    for (int64_t i = 0; i < count; i++) {
        double value = product_element(out, shape->type, i),
               size = product_element(c->memory[2], shape->type, i);
        if (!case_bounds(&error, value, expected[i], size))
            fail_msg("%s: element %d is %g, on the CPU %g", name, (int)i, value, expected[i]);
    }
    if (!case_bounds_mean(&error)) fail_msg("%s: mean error %g", name, error.sum / error.size);
    free(expected);
}

/* Runs case k on the CPU too. Sums of whole numbers are exact in any order, so results are equal, a zero of
 * either sign; convolutions of 16-bit numbers within the bound of error_case.h. */
static inline void product_device_compare(ProductDevice *self, int32_t k, const char *name) {
    KernelCase *c = self->cases[k];
    const IrShape *shape = &c->values[2].shape;
    int64_t bytes = ir_shape_bytes(shape);
    char *out = calloc(1, (size_t)bytes + 1);
    product_device_run(self, k, out);
    product_run_host(c);
    bool half = shape->type == DTYPE_BF16 || shape->type == DTYPE_F16;
    if (half && c->instruction.opcode == IR_CONVOLUTION) {
        product_compare_bounded(c, out, name);
    } else if (memcmp(out, c->memory[2], (size_t)bytes) != 0) {
        if (!half && shape->type != DTYPE_F32 && shape->type != DTYPE_F64)
            fail_msg("%s differs from the CPU's", name);
        for (int64_t i = 0; i < ir_shape_elements(shape); i++)
            if (product_element(out, shape->type, i) != product_element(c->memory[2], shape->type, i))
                fail_msg("%s differs from the CPU's at element %d", name, (int)i);
    }
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
