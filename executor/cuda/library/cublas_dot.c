/* dot by cuBLASLt: batched matrix products in any layout.
 *
 * The dimensions of each operand are batch, free or contracted; the result is
 * [batch, left free, right free], or has them in another order. cuBLASLt reads an
 * operand in place if its free dimensions have one stride, its contracted
 * dimensions too, and one of the two strides is 1 (transposed or not).
 * Contracted dimensions are summed in the order of the operand that then needs
 * less packing. Free dimensions have the order of the result, whose columns belong
 * to the operand with the smaller strides there. Batch dimensions with one stride
 * in operands and result are joined; one of them is the library's batch, the
 * others are a few products one after the other. Another operand is packed to
 * [batch, free, contracted] first, as little as possible. cublas_dot_order.c has the
 * orders of the result, and slices for an order that the library refuses. The
 * library adds a third operand to the product (beta = 1). The generated kernel of
 * source_product.c runs types that the library does not multiply and products
 * that it refuses.
 */
#include <string.h>

#include "base/cuda/blas.h"
#include "base/int_list.h"
#include "executor/array/strided.h"
#include "executor/cuda/cuda.h"
#include "executor/cuda/library/cublas_dot_order.h"

#define FEW_PRODUCTS  16  /* for one dot; with more, operands are packed if that helps */
#define MOST_PRODUCTS 256 /* for one dot in any case */
#define MOST_LEADING  INT32_MAX
#define ADDEND        2 /* the operand that is added to the product */

/* An operand as matrices: strides are those of the multiplied array. */
typedef struct Side {
    CudaPack pack; /* rank 0: multiplied in place */
    int32_t batch_rank;
    int64_t batch_sizes[IR_MAX_RANK], batch_strides[IR_MAX_RANK];
    int64_t size, depth; /* free and contracted elements of one matrix */
    int64_t free_stride, contracted_stride;
} Side;

/* Batch dimensions, joined; strides of left, right and result. */
typedef struct Batch {
    int32_t rank;
    int64_t sizes[IR_MAX_RANK], strides[3][IR_MAX_RANK];
    int32_t strided;  /* the library's batch dimension; -1: none */
    int64_t products; /* one after the other */
} Batch;

typedef struct LibraryDot {
    Side sides[2];
    Batch batch;
    int64_t packed; /* elements */
} LibraryDot;

typedef struct DotKernel {
    CudaProduct *product;
    KernelCall packs[2];
    bool packed[2];
    int64_t packed_at[2], workspace_at; /* in the scratch memory */
    int32_t rows_of;                    /* the operand that has the rows */
    int32_t loop_rank;                  /* of the products one after the other */
    int64_t loop_sizes[IR_MAX_RANK], loop_bytes[3][IR_MAX_RANK];
    int64_t products;
    bool sliced; /* slices of the result go through the scratch memory and a copy */
    KernelCall copy;
    int64_t slice_at; /* in the scratch memory */
    int32_t slice_rank;
    int64_t slice_sizes[IR_MAX_RANK], slice_bytes[3][IR_MAX_RANK];
    int64_t slices;
    CudaSpare *spare; /* NULL: the product has been tried */
} DotKernel;

/* Describes a matrix [rows, columns] with these strides for the library; false: it cannot read it. */
static bool describe_matrix(CudaMatrix *matrix, int64_t rows, int64_t columns, int64_t row_stride,
                            int64_t column_stride) {
    bool plain = (columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= columns);
    bool turned = (rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= rows);
    matrix->transposed = !plain;
    matrix->leading = plain ? (rows == 1 ? columns : row_stride) : (columns == 1 ? rows : column_stride);
    return (plain || turned) && matrix->leading <= MOST_LEADING;
}

/* Lays an operand out, its free dimensions in the order `free`; false: it would have to be packed and `pack`
 * forbids it. */
static bool plan_side(Side *side, const IrShape *shape, const int64_t *batch, int32_t batch_count,
                      const int64_t *contracting, int32_t contracting_count, const int32_t *free, bool pack) {
    int64_t strides[IR_MAX_RANK], sizes[2][IR_MAX_RANK], steps[2][IR_MAX_RANK];
    int32_t ranks[2] = {0, contracting_count};
    strided_row_major(strides, shape->dimensions, shape->rank);
    *side = (Side){.batch_rank = batch_count};
    for (int32_t k = 0; k < batch_count; k++) {
        side->batch_sizes[k] = shape->dimensions[batch[k]];
        side->batch_strides[k] = strides[batch[k]];
    }
    int64_t given[IR_MAX_RANK];
    for (int32_t d = 0; d < shape->rank; d++)
        if (!int_list_contains(batch, batch_count, d) &&
            !int_list_contains(contracting, contracting_count, d))
            given[ranks[0]++] = d;
    for (int32_t k = 0; k < ranks[0]; k++) {
        sizes[0][k] = shape->dimensions[given[free[k]]];
        steps[0][k] = strides[given[free[k]]];
    }
    for (int32_t k = 0; k < contracting_count; k++) {
        sizes[1][k] = shape->dimensions[contracting[k]];
        steps[1][k] = strides[contracting[k]];
    }
    side->size = strided_elements(sizes[0], ranks[0]);
    side->depth = strided_elements(sizes[1], ranks[1]);
    if (!pack) {
        CudaMatrix matrix;
        side->free_stride = cuda_joint_stride(sizes[0], steps[0], ranks[0]);
        side->contracted_stride = cuda_joint_stride(sizes[1], steps[1], ranks[1]);
        return side->free_stride > 0 && side->contracted_stride > 0 &&
               describe_matrix(&matrix, side->size, side->depth, side->free_stride, side->contracted_stride);
    }
    for (int32_t k = 0; k < batch_count; k++)
        cuda_pack_add(&side->pack, side->batch_sizes[k], side->batch_strides[k]);
    for (int32_t part = 0; part < 2; part++)
        for (int32_t k = 0; k < ranks[part]; k++) cuda_pack_add(&side->pack, sizes[part][k], steps[part][k]);
    side->free_stride = side->depth;
    side->contracted_stride = 1;
    int64_t stride = side->size * side->depth;
    for (int32_t k = batch_count - 1; k >= 0; k--) {
        side->batch_strides[k] = stride;
        stride *= side->batch_sizes[k];
    }
    return true;
}

/* Joins what steps as one in all three, and chooses the library's batch: the largest. Dimensions that slices
 * fix are left out. `rows` and `columns`: the operands that have them. */
static void plan_batch(Batch *batch, const Side *rows, const Side *columns, const CudaDotOrder *order) {
    *batch = (Batch){.strided = -1, .products = 1};
    for (int32_t k = 0; k < rows->batch_rank; k++) {
        int64_t size = rows->batch_sizes[k];
        const int64_t steps[3] = {rows->batch_strides[k], columns->batch_strides[k], order->batch_strides[k]};
        if (size == 1 || order->fixed[k]) continue;
        bool joins = batch->rank > 0;
        for (int32_t o = 0; o < 3 && joins; o++)
            joins = batch->strides[o][batch->rank - 1] == steps[o] * size;
        if (!joins) batch->sizes[batch->rank++] = 1;
        batch->sizes[batch->rank - 1] *= size;
        for (int32_t o = 0; o < 3; o++) batch->strides[o][batch->rank - 1] = steps[o];
    }
    for (int32_t k = 0; k < batch->rank; k++)
        if (batch->strided < 0 || batch->sizes[k] > batch->sizes[batch->strided]) batch->strided = k;
    for (int32_t k = 0; k < batch->rank; k++)
        if (k != batch->strided) batch->products *= batch->sizes[k];
}

/* Orders contracted dimensions as they follow each other in the memory of operand `by`. */
static void order_contracted(int64_t *left, int64_t *right, const IrDot *dot, int32_t by) {
    for (int32_t k = 0; k < dot->contracting_count; k++) {
        int32_t at = k;
        int64_t l = dot->lhs_contracting[k], r = dot->rhs_contracting[k];
        while (at > 0 && (by == 0 ? left[at - 1] > l : right[at - 1] > r)) {
            left[at] = left[at - 1];
            right[at] = right[at - 1];
            at--;
        }
        left[at] = l;
        right[at] = r;
    }
}

/* Chooses the way with the fewest packed elements, and of these the one with the fewest products, among
 * those with at most `most_products`. False: no way has so few. */
static bool choose_among(LibraryDot *best, const IrDot *dot, const IrShape *left, const IrShape *right,
                         const CudaDotOrder *order, int64_t most_products) {
    bool found = false;
    for (int32_t way = 0; way < 8; way++) {
        int64_t lhs[IR_MAX_RANK], rhs[IR_MAX_RANK];
        LibraryDot plan = {.packed = 0};
        order_contracted(lhs, rhs, dot, way / 4);
        if (!plan_side(&plan.sides[0], left, dot->lhs_batch, dot->batch_count, lhs, dot->contracting_count,
                       order->free[0], way & 1) ||
            !plan_side(&plan.sides[1], right, dot->rhs_batch, dot->batch_count, rhs, dot->contracting_count,
                       order->free[1], way & 2))
            continue;
        plan_batch(&plan.batch, &plan.sides[order->rows_of], &plan.sides[1 - order->rows_of], order);
        if (plan.batch.products > most_products) continue;
        for (int32_t k = 0; k < 2; k++)
            if (plan.sides[k].pack.rank > 0) plan.packed += cuda_pack_elements(&plan.sides[k].pack);
        bool better = !found || plan.packed < best->packed ||
                      (plan.packed == best->packed && plan.batch.products < best->batch.products);
        if (better) *best = plan;
        found = true;
    }
    return found;
}

static bool is_multiplied(Dtype left, Dtype right, Dtype result) {
    bool half = dtype_is_16bit_float(left);
    return left == right && (half || left == DTYPE_F32 || left == DTYPE_F64) &&
           (result == left || (half && result == DTYPE_F32));
}

/* Returns the largest power of two, at most `alignment` bytes, that divides all these steps. */
static int32_t alignment_of(const int64_t *bytes, int32_t count, int64_t alignment) {
    for (int32_t k = 0; k < count; k++)
        while (bytes[k] % alignment != 0) alignment /= 2;
    return (int32_t)alignment;
}

static void describe_product(CudaProductShape *shape, DotKernel *kernel, const LibraryDot *plan,
                             const CudaDotOrder *order, const KernelCall *call) {
    const Side *left = &plan->sides[order->rows_of], *right = &plan->sides[1 - order->rows_of];
    const Batch *batch = &plan->batch;
    CudaMatrix *matrices[3] = {&shape->a, &shape->b, &shape->d};
    *shape = (CudaProductShape){.batch = batch->strided < 0 ? 1 : batch->sizes[batch->strided],
                                .rows = left->size,
                                .columns = right->size,
                                .depth = left->depth,
                                .alpha = 1,
                                .beta = call->operand_count > ADDEND ? 1 : 0,
                                .tf32 = cuda_device_of(call->device)->tf32};
    describe_matrix(&shape->a, left->size, left->depth, left->free_stride, left->contracted_stride);
    describe_matrix(&shape->b, right->depth, right->size, right->contracted_stride, right->free_stride);
    shape->d.leading = order->row_stride;
    kernel->products = batch->products;
    for (int32_t o = 0; o < 3; o++) {
        Dtype type = o < 2 ? call->operand_shapes[o]->type : call->result_shapes[0]->type;
        matrices[o]->type = type;
        if (batch->strided >= 0) matrices[o]->batch_stride = batch->strides[o][batch->strided];
        kernel->loop_rank = 0;
        for (int32_t k = 0; k < batch->rank; k++) {
            if (k == batch->strided) continue;
            kernel->loop_sizes[kernel->loop_rank] = batch->sizes[k];
            kernel->loop_bytes[o][kernel->loop_rank++] = batch->strides[o][k] * dtype_bytes(type);
        }
        matrices[o]->alignment = alignment_of(kernel->loop_bytes[o], kernel->loop_rank, 16);
        if (o < 2)
            matrices[o]->alignment =
                alignment_of(kernel->slice_bytes[o], kernel->slice_rank, matrices[o]->alignment);
    }
}

static void bind_dot(const KernelCall *call) {
    const DotKernel *kernel = call->compiled;
    for (int32_t k = 0; k < 2; k++) {
        if (!kernel->packed[k]) continue;
        kernel->packs[k].operands[0] = call->operands[k];
        kernel->packs[k].results[0] = (char *)call->scratch + kernel->packed_at[k];
    }
}

/* Adds the offsets of a loop's index, in bytes, in both operands and in the result. */
static void add_offsets(int64_t at[3], const int64_t *index, const int64_t (*bytes)[IR_MAX_RANK],
                        int32_t rank) {
    for (int32_t o = 0; o < 3; o++)
        for (int32_t k = 0; k < rank; k++) at[o] += index[k] * bytes[o][k];
}

/* Returns false, with the reason, if cuBLASLt refuses the product: nothing is computed then. */
static bool run_products(const KernelCall *call, char *const bases[3], AmError *reason) {
    const DotKernel *kernel = call->compiled;
    CudaKernelDevice *device = cuda_device_of(call->device);
    const char *addend = call->operand_count > ADDEND ? call->operands[ADDEND] : NULL;
    int64_t index[IR_MAX_RANK] = {0};
    for (int64_t product = 0; product < kernel->products; product++) {
        int64_t at[3] = {0};
        AmError failure = {0};
        add_offsets(at, index, kernel->loop_bytes, kernel->loop_rank);
        CudaProductBuffers buffers = {.a = bases[0] + at[0],
                                      .b = bases[1] + at[1],
                                      .d = bases[2] + at[2],
                                      .c = addend ? addend + at[2] : NULL,
                                      .workspace = (char *)call->scratch + kernel->workspace_at};
        AmStatus status = cuda_product_run(kernel->product, device->compute, &buffers, &failure);
        if (status == AM_ERROR_INPUT && kernel->spare) {
            *reason = failure;
            return false;
        }
        if (status != AM_OK) cuda_note_failure(device, &failure);
        strided_next(index, kernel->loop_sizes, kernel->loop_rank);
    }
    return true;
}

static void run_dot(const KernelCall *call) {
    const DotKernel *kernel = call->compiled;
    int64_t index[IR_MAX_RANK] = {0};
    char *operands[2];
    AmError reason = {0};
    if (kernel->spare && cuda_product_is_refused(kernel->product)) {
        cuda_run_spare(kernel->spare, call, NULL);
        return;
    }
    for (int32_t k = 0; k < 2; k++) {
        if (kernel->packed[k]) kernel->packs[k].run(&kernel->packs[k]);
        operands[k] = kernel->packed[k] ? kernel->packs[k].results[0] : call->operands[k];
    }
    for (int64_t slice = 0; slice < kernel->slices; slice++) {
        int64_t at[3] = {0};
        add_offsets(at, index, kernel->slice_bytes, kernel->slice_rank);
        char *result = (char *)call->results[0] + at[2];
        char *const bases[3] = {operands[kernel->rows_of] + at[0], operands[1 - kernel->rows_of] + at[1],
                                kernel->sliced ? (char *)call->scratch + kernel->slice_at : result};
        if (!run_products(call, bases, &reason)) {
            cuda_run_spare(kernel->spare, call, &reason);
            return;
        }
        if (kernel->sliced) {
            kernel->copy.operands[0] = bases[2];
            kernel->copy.results[0] = result;
            kernel->copy.run(&kernel->copy);
        }
        strided_next(index, kernel->slice_sizes, kernel->slice_rank);
    }
}

static void close_blas(void *blas) {
    cuda_blas_close(blas);
}

/* Lays out packs, workspace and slices in the scratch memory. */
static AmStatus lay_out_scratch(DotKernel *kernel, KernelCall *call, Arena *arena, const LibraryDot *plan,
                                const CudaDotOrder *order, AmError *error) {
    Dtype type = call->operand_shapes[0]->type, result_type = call->result_shapes[0]->type;
    int64_t scratch = 0;
    for (int32_t k = 0; k < 2; k++) {
        const CudaPack *pack = &plan->sides[k].pack;
        kernel->packed[k] = pack->rank > 0;
        if (!kernel->packed[k]) continue;
        TRY(cuda_prepare_pack(&kernel->packs[k], arena, call, pack, type, error));
        kernel->packed_at[k] = scratch;
        scratch += kernel_align(cuda_pack_elements(pack) * dtype_bytes(type));
    }
    kernel->sliced = order->sliced;
    if (kernel->sliced) {
        TRY(cuda_prepare_pack(&kernel->copy, arena, call, &order->copy, result_type, error));
        kernel->slice_at = scratch;
        scratch += kernel_align(cuda_pack_elements(&order->copy) * dtype_bytes(result_type));
    }
    kernel->workspace_at = scratch;
    call->scratch_bytes = scratch + cuda_product_workspace(kernel->product);
    return AM_OK;
}

/* Prepares the dot with its result in this order. AM_ERROR_INPUT: the library refuses it. */
static AmStatus prepare_in_order(KernelCall *call, Arena *arena, const CudaDotOrder *order, AmError *error) {
    const IrDot *dot = call->attributes->dot;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    LibraryDot plan;
    CudaProductShape shape;
    DotKernel *kernel = ARENA_ARRAY(arena, DotKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (!choose_among(&plan, dot, left, right, order, FEW_PRODUCTS) &&
        !choose_among(&plan, dot, left, right, order, MOST_PRODUCTS))
        return am_fail(error, AM_ERROR_INPUT, "", "more than %d products by cuBLASLt", MOST_PRODUCTS);
    kernel->rows_of = order->rows_of;
    /* The loop over the slices of the result. */
    kernel->slices = 1;
    for (int32_t k = 0; k < order->fixed_count; k++) {
        int32_t batch = order->fixed_batch[k], n = kernel->slice_rank++;
        kernel->slice_sizes[n] = plan.sides[0].batch_sizes[batch];
        kernel->slices *= kernel->slice_sizes[n];
        for (int32_t o = 0; o < 2; o++) {
            int32_t operand = o == 0 ? order->rows_of : 1 - order->rows_of;
            kernel->slice_bytes[o][n] = plan.sides[operand].batch_strides[batch] * dtype_bytes(left->type);
        }
        kernel->slice_bytes[2][n] = order->fixed_strides[k] * dtype_bytes(call->result_shapes[0]->type);
    }
    describe_product(&shape, kernel, &plan, order, call);
    CudaKernelDevice *device = cuda_device_of(call->device);
    TRY(cuda_product_make(&kernel->product, device->blas, &shape, error));
    TRY(lay_out_scratch(kernel, call, arena, &plan, order, error));
    if (!cuda_product_is_tried(kernel->product)) {
        am_warn(device->warnings, "there is no memory to try cuBLASLt's algorithms of some matrix products "
                                  "beforehand: the first step does");
        TRY(cuda_prepare_spare(&kernel->spare, call, arena, error));
    }
    call->compiled = kernel;
    call->bind = bind_dot;
    call->run = run_dot;
    return AM_OK;
}

AmStatus cuda_prepare_dot(KernelCall *call, Arena *arena, AmError *error) {
    const IrDot *dot = call->attributes->dot;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    if (!dot || !is_multiplied(left->type, right->type, call->result_shapes[0]->type) ||
        ir_shape_elements(left) == 0 || ir_shape_elements(right) == 0)
        return cuda_prepare_plain(call, arena, error);
    CudaKernelDevice *device = cuda_device_of(call->device);
    if (!device->blas) {
        CudaBlas *blas;
        TRY(cuda_blas_open(&blas, error));
        TRY(cuda_keep(device, blas, close_blas, error));
        device->blas = blas;
    }
    CudaDotOrder order;
    AmError reason = {0};
    AmStatus status = AM_ERROR_INPUT;
    if (cuda_dot_order(&order, call)) status = prepare_in_order(call, arena, &order, &reason);
    if (status == AM_ERROR_INPUT && cuda_dot_slices(&order, call)) {
        reason = (AmError){0};
        status = prepare_in_order(call, arena, &order, &reason);
    }
    if (status == AM_ERROR_INPUT) return cuda_prepare_refused(call, arena, &reason, error);
    return status == AM_OK ? AM_OK : am_fail(error, status, "", "%s", reason.text);
}
