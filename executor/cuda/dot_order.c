/* A dot whose result has its dimensions in an order that the library cannot
 * write: the product in the usual order into scratch memory, and a copy out of it.
 */
#include "executor/cpu/strided.h"
#include "executor/cuda/cuda.h"
#include "executor/cuda/pack.h"

typedef struct OrderedDot {
    KernelCall *product, *copy;
    int64_t product_at; /* in the scratch memory, behind the product's own */
} OrderedDot;

static void bind_ordered(const KernelCall *call) {
    const OrderedDot *self = call->compiled;
    void *product = (char *)call->scratch + self->product_at;
    self->product->operands = call->operands;
    self->product->results[0] = product;
    self->product->scratch = call->scratch;
    if (self->product->bind) self->product->bind(self->product);
    self->copy->operands[0] = product;
    self->copy->results[0] = call->results[0];
}

static void run_ordered(const KernelCall *call) {
    const OrderedDot *self = call->compiled;
    self->product->run(self->product);
    self->copy->run(self->copy);
}

/* The call of the same dot without an order. */
static AmStatus make_product(KernelCall **product, const KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *result = call->result_shapes[0];
    KernelCall *inner = ARENA_ARRAY(arena, KernelCall, 1);
    ProgramInstruction *instruction = ARENA_ARRAY(arena, ProgramInstruction, 1);
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    IrShape *shape = ARENA_ARRAY(arena, IrShape, 1);
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, result->rank + 1);
    const IrShape **shapes = ARENA_ARRAY(arena, const IrShape *, 1);
    void **results = ARENA_ARRAY(arena, void *, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *inner);
    *attributes = *call->instruction->attributes;
    for (int32_t d = 0; d < result->rank; d++) sizes[attributes->dimensions[d]] = result->dimensions[d];
    attributes->dimensions = NULL;
    attributes->dimension_count = 0;
    *instruction = *call->instruction;
    instruction->attributes = attributes;
    *shape = *result;
    shape->dimensions = sizes;
    shapes[0] = shape;
    *inner = *call;
    inner->instruction = instruction;
    inner->result_shapes = shapes;
    inner->results = results;
    inner->scratch_bytes = 0;
    *product = inner;
    return cuda_prepare_dot(inner, arena, error);
}

AmStatus cuda_prepare_ordered_dot(KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *result = call->result_shapes[0];
    const int64_t *dimensions = call->instruction->attributes->dimensions;
    OrderedDot *self = ARENA_ARRAY(arena, OrderedDot, 1);
    KernelCall *copy = ARENA_ARRAY(arena, KernelCall, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *self);
    self->copy = copy;
    TRY(make_product(&self->product, call, arena, error));
    int64_t strides[IR_MAX_RANK];
    CudaPack pack = {0};
    strided_row_major(strides, self->product->result_shapes[0]->dimensions, result->rank);
    for (int32_t d = 0; d < result->rank; d++)
        cuda_pack_add(&pack, result->dimensions[d], strides[dimensions[d]]);
    TRY(cuda_prepare_pack(copy, arena, call, &pack, result->type, error));
    self->product_at = kernel_align(self->product->scratch_bytes);
    call->scratch_bytes = self->product_at + kernel_align(ir_shape_bytes(result));
    call->compiled = self;
    call->bind = bind_ordered;
    call->run = run_ordered;
    return AM_OK;
}
