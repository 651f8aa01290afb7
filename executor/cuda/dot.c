/* dot by cuBLASLt: batched matrix products in any layout.
 *
 * The dimensions of each operand are batch, free or contracted; the result is
 * [batch, left free, right free]. cuBLASLt reads an operand as it lies where its
 * free dimensions step through memory as one, its contracted dimensions too, and
 * one of the two strides is 1 (transposed or not). Contracted dimensions are
 * summed in whichever of the two operands' orders fits better. Batch dimensions
 * that step as one in operands and result are one; one of them is the library's
 * batch, others are a few products one after the other. What does not fit is
 * packed to [batch, free, contracted] first, as little as possible. A result
 * whose dimensions are in another order is written so where its rows step as one
 * (dot_order.c has the others). A third operand is added to it by the library (beta = 1). Types that
 * the library does not multiply, and what it has no algorithm for, go through
 * the generated kernel of source_product.c.
 */
#include <string.h>

#include "base/cuda/blas.h"
#include "executor/cpu/strided.h"
#include "executor/cuda/cuda.h"
#include "executor/cuda/pack.h"

#define MOST_PRODUCTS 16 /* for one dot; with more, operands are packed */
#define MOST_LEADING  INT32_MAX
#define ADDEND        2 /* the operand that is added to the product */

/* An operand as matrices: strides are those of what is multiplied. */
typedef struct Side {
    CudaPack pack; /* rank 0: it is multiplied as it lies */
    int32_t batch_rank;
    int64_t batch_sizes[IR_MAX_RANK], batch_strides[IR_MAX_RANK];
    int64_t size, depth; /* free and contracted elements of one matrix */
    int64_t free_stride, contracted_stride;
} Side;

/* Batch dimensions, joined; strides of left, right and result. */
typedef struct Batch {
    int32_t rank;
    int64_t sizes[IR_MAX_RANK], strides[3][IR_MAX_RANK];
    int32_t strided;  /* the one that is the library's batch; -1: there is none */
    int64_t products; /* one after the other */
} Batch;

typedef struct Plan {
    Side sides[2];
    Batch batch;
    int64_t packed; /* elements */
} Plan;

/* Where the result's dimensions lie. */
typedef struct ResultOrder {
    int64_t batch_strides[IR_MAX_RANK], row_stride;
} ResultOrder;

typedef struct DotKernel {
    CudaProduct *product;
    KernelCall packs[2];
    bool packed[2];
    int64_t packed_at[2], workspace_at; /* in the scratch memory */
    int32_t loop_rank;                  /* of the products one after the other */
    int64_t loop_sizes[IR_MAX_RANK], loop_bytes[3][IR_MAX_RANK];
    int64_t products;
} DotKernel;

static bool names(const int64_t *list, int32_t count, int64_t value) {
    for (int32_t k = 0; k < count; k++)
        if (list[k] == value) return true;
    return false;
}

/* The one stride with which dimensions are stepped through in order, or -1. */
static int64_t joint_stride(const int64_t *sizes, const int64_t *strides, int32_t rank) {
    int64_t stride = -1, expected = 0;
    for (int32_t d = rank - 1; d >= 0; d--) {
        if (sizes[d] == 1) continue;
        if (stride < 0) stride = strides[d];
        else if (strides[d] != expected) return -1;
        expected = strides[d] * sizes[d];
    }
    return stride < 0 ? 1 : stride;
}

/* A matrix [rows, columns] with these strides as the library describes it; false: it cannot. */
static bool describe_matrix(CudaMatrix *matrix, int64_t rows, int64_t columns, int64_t row_stride,
                            int64_t column_stride) {
    bool plain = (columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= columns);
    bool turned = (rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= rows);
    matrix->transposed = !plain;
    matrix->leading = plain ? (rows == 1 ? columns : row_stride) : (columns == 1 ? rows : column_stride);
    return (plain || turned) && matrix->leading <= MOST_LEADING;
}

/* Lays an operand out; false: it would have to be packed and `pack` forbids it. */
static bool plan_side(Side *side, const IrShape *shape, const int64_t *batch, int32_t batch_count,
                      const int64_t *contracting, int32_t contracting_count, bool pack) {
    int64_t strides[IR_MAX_RANK], sizes[2][IR_MAX_RANK], steps[2][IR_MAX_RANK];
    int32_t ranks[2] = {0, contracting_count};
    strided_row_major(strides, shape->dimensions, shape->rank);
    *side = (Side){.batch_rank = batch_count};
    for (int32_t k = 0; k < batch_count; k++) {
        side->batch_sizes[k] = shape->dimensions[batch[k]];
        side->batch_strides[k] = strides[batch[k]];
    }
    for (int32_t d = 0; d < shape->rank; d++) {
        if (names(batch, batch_count, d) || names(contracting, contracting_count, d)) continue;
        sizes[0][ranks[0]] = shape->dimensions[d];
        steps[0][ranks[0]++] = strides[d];
    }
    for (int32_t k = 0; k < contracting_count; k++) {
        sizes[1][k] = shape->dimensions[contracting[k]];
        steps[1][k] = strides[contracting[k]];
    }
    side->size = strided_elements(sizes[0], ranks[0]);
    side->depth = strided_elements(sizes[1], ranks[1]);
    if (!pack) {
        CudaMatrix matrix;
        side->free_stride = joint_stride(sizes[0], steps[0], ranks[0]);
        side->contracted_stride = joint_stride(sizes[1], steps[1], ranks[1]);
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

/* Joins what steps as one in all three, and chooses the library's batch: the largest. */
static void plan_batch(Batch *batch, const Side *left, const Side *right, const ResultOrder *order) {
    const int64_t *result_strides = order->batch_strides;
    *batch = (Batch){.strided = -1, .products = 1};
    for (int32_t k = 0; k < left->batch_rank; k++) {
        int64_t size = left->batch_sizes[k];
        const int64_t steps[3] = {left->batch_strides[k], right->batch_strides[k], result_strides[k]};
        if (size == 1) continue;
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

/* Contracted dimensions, as they follow each other in the memory of operand `by`. */
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

/* Strides of the result's dimensions; false: its columns do not lie together, or its rows do not step as one.
 */
static bool order_result(ResultOrder *order, const IrAttributes *attributes, const IrShape *left,
                         const IrShape *right, const IrShape *result) {
    const IrDot *dot = attributes->dot;
    int64_t given[IR_MAX_RANK], strides[IR_MAX_RANK], sizes[IR_MAX_RANK];
    int32_t rows = left->rank - dot->batch_count - dot->contracting_count;
    int32_t columns = right->rank - dot->batch_count - dot->contracting_count;
    strided_row_major(given, result->dimensions, result->rank);
    for (int32_t d = 0; d < result->rank; d++) {
        int64_t natural = attributes->dimension_count > 0 ? attributes->dimensions[d] : d;
        strides[natural] = given[d];
        sizes[natural] = result->dimensions[d];
    }
    int32_t first_row = dot->batch_count, first_column = first_row + rows;
    int64_t width = strided_elements(sizes + first_column, columns);
    int64_t column_stride = joint_stride(sizes + first_column, strides + first_column, columns);
    order->row_stride = strided_elements(sizes + first_row, rows) == 1
                            ? width
                            : joint_stride(sizes + first_row, strides + first_row, rows);
    for (int32_t d = 0; d < dot->batch_count; d++) order->batch_strides[d] = strides[d];
    return (width == 1 || column_stride == 1) && order->row_stride >= width;
}

/* The way with the fewest packed elements, and of these the one with the fewest products. */
static Plan choose_plan(const IrDot *dot, const IrShape *left, const IrShape *right,
                        const ResultOrder *order) {
    Plan best = {.packed = -1};
    for (int32_t way = 0; way < 8; way++) {
        int64_t lhs[IR_MAX_RANK], rhs[IR_MAX_RANK];
        Plan plan = {.packed = 0};
        order_contracted(lhs, rhs, dot, way / 4);
        if (!plan_side(&plan.sides[0], left, dot->lhs_batch, dot->batch_count, lhs, dot->contracting_count,
                       way & 1) ||
            !plan_side(&plan.sides[1], right, dot->rhs_batch, dot->batch_count, rhs, dot->contracting_count,
                       way & 2))
            continue;
        plan_batch(&plan.batch, &plan.sides[0], &plan.sides[1], order);
        if (plan.batch.products > MOST_PRODUCTS) continue;
        for (int32_t k = 0; k < 2; k++)
            if (plan.sides[k].pack.rank > 0) plan.packed += cuda_pack_elements(&plan.sides[k].pack);
        bool better = best.packed < 0 || plan.packed < best.packed ||
                      (plan.packed == best.packed && plan.batch.products < best.batch.products);
        if (better) best = plan;
    }
    return best;
}

static bool is_multiplied(Dtype left, Dtype right, Dtype result) {
    bool half = left == DTYPE_BF16 || left == DTYPE_F16;
    return left == right && (half || left == DTYPE_F32 || left == DTYPE_F64) &&
           (result == left || (half && result == DTYPE_F32));
}

/* Bytes, at most 16, of which all addresses are multiples: arrays are aligned, steps may be less. */
static int32_t alignment_of(const int64_t *bytes, int32_t count) {
    int64_t alignment = 16;
    for (int32_t k = 0; k < count; k++)
        while (bytes[k] % alignment != 0) alignment /= 2;
    return (int32_t)alignment;
}

static void describe_product(CudaProductShape *shape, DotKernel *kernel, const Plan *plan,
                             const ResultOrder *order, const KernelCall *call) {
    const Side *left = &plan->sides[0], *right = &plan->sides[1];
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
        matrices[o]->alignment = alignment_of(kernel->loop_bytes[o], kernel->loop_rank);
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

static void run_dot(const KernelCall *call) {
    const DotKernel *kernel = call->compiled;
    CudaKernelDevice *device = cuda_device_of(call->device);
    char *bases[3] = {call->operands[0], call->operands[1], call->results[0]};
    const char *addend = call->operand_count > ADDEND ? call->operands[ADDEND] : NULL;
    int64_t index[IR_MAX_RANK] = {0};
    for (int32_t k = 0; k < 2; k++) {
        if (!kernel->packed[k]) continue;
        kernel->packs[k].run(&kernel->packs[k]);
        bases[k] = kernel->packs[k].results[0];
    }
    for (int64_t product = 0; product < kernel->products; product++) {
        int64_t at[3] = {0};
        AmError failure = {0};
        for (int32_t o = 0; o < 3; o++)
            for (int32_t k = 0; k < kernel->loop_rank; k++) at[o] += index[k] * kernel->loop_bytes[o][k];
        CudaProductBuffers buffers = {.a = bases[0] + at[0],
                                      .b = bases[1] + at[1],
                                      .d = bases[2] + at[2],
                                      .c = addend ? addend + at[2] : NULL,
                                      .workspace = (char *)call->scratch + kernel->workspace_at};
        if (cuda_product_run(kernel->product, device->compute, &buffers, &failure) != AM_OK)
            cuda_note_failure(device, &failure);
        strided_next(index, kernel->loop_sizes, kernel->loop_rank);
    }
}

static void close_blas(void *blas) {
    cuda_blas_close(blas);
}

static AmStatus open_blas(CudaKernelDevice *device, AmError *error) {
    if (device->blas) return AM_OK;
    CudaBlas *blas;
    TRY(cuda_blas_open(&blas, error));
    TRY(cuda_keep(device, blas, close_blas, error));
    device->blas = blas;
    return AM_OK;
}

AmStatus cuda_prepare_dot(KernelCall *call, Arena *arena, AmError *error) {
    const IrDot *dot = call->instruction->attributes->dot;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    CudaKernelDevice *device = cuda_device_of(call->device);
    ResultOrder order;
    bool has_order = dot && call->instruction->attributes->dimension_count > 0;
    if (has_order &&
        (ir_shape_elements(call->result_shapes[0]) == 0 ||
         !order_result(&order, call->instruction->attributes, left, right, call->result_shapes[0])))
        return cuda_prepare_ordered_dot(call, arena, error);
    if (!dot || !is_multiplied(left->type, right->type, call->result_shapes[0]->type) ||
        ir_shape_elements(left) == 0 || ir_shape_elements(right) == 0)
        return has_order ? cuda_prepare_ordered_dot(call, arena, error)
                         : cuda_prepare_plain(call, arena, error);
    TRY(open_blas(device, error));
    DotKernel *kernel = ARENA_ARRAY(arena, DotKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    order_result(&order, call->instruction->attributes, left, right, call->result_shapes[0]);
    Plan plan = choose_plan(dot, left, right, &order);
    CudaProductShape shape;
    AmError reason = {0};
    describe_product(&shape, kernel, &plan, &order, call);
    AmStatus status = cuda_product_make(&kernel->product, device->blas, &shape, &reason);
    if (status == AM_ERROR_INPUT && has_order) return cuda_prepare_ordered_dot(call, arena, error);
    if (status == AM_ERROR_INPUT) return cuda_prepare_refused(call, arena, reason.text, error);
    if (status != AM_OK) return am_fail(error, status, "", "%s", reason.text);
    int64_t scratch = 0;
    for (int32_t k = 0; k < 2; k++) {
        const CudaPack *pack = &plan.sides[k].pack;
        kernel->packed[k] = pack->rank > 0;
        if (!kernel->packed[k]) continue;
        TRY(cuda_prepare_pack(&kernel->packs[k], arena, call, pack, left->type, error));
        kernel->packed_at[k] = scratch;
        scratch += kernel_align(cuda_pack_elements(pack) * dtype_bytes(left->type));
    }
    kernel->workspace_at = scratch;
    call->scratch_bytes = scratch + cuda_product_workspace(kernel->product);
    call->compiled = kernel;
    call->bind = bind_dot;
    call->run = run_dot;
    return AM_OK;
}
