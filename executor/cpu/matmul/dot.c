/* dot: batched matrix products in any layout.
 *
 * dot_plan.c finds the products, each of one row, column and contracted dimension, with loops
 * around them. Sums in f32 are computed by tiles (product.h), which read f32, f16 and bf16 in
 * place. OpenBLAS, which reads matrices transposed or not, computes f64, c64 and c128, and products
 * that do not suit tiles, such as large products of few rows. Integers run in a plain loop that
 * wraps in 64 bits.
 *
 * A unit is a block of a product's result, computed by one thread. OpenBLAS's units depend on the
 * shapes alone; tiles give the same bits in any units.
 *
 * A third operand is added to the product. Tiles add it when they write their sums; any other
 * product is computed separately and then added.
 */
#include <cblas.h>
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/divide.h"
#include "executor/cpu/matmul/dot_plan.h"
#include "executor/cpu/matmul/product.h"

/* A unit has no less work than this, in multiplications, and there are no more blocks of a product. */
static const double least_work = 16e6;
enum { LEAST_EDGE = 192, MOST_BLOCKS = 16, BLOCKS_OF_MEMBER = 2 };
/* Edges of blocks are multiples of what tiles have, and of the widest registers. */
static const int64_t edge_units[2] = {24, 64};
/* Nanoseconds of a multiplication with its addition, and of starting a product. */
static const double multiply_time = 0.02, product_time = 100;
/* Nanoseconds of adding a number to another in memory. */
static const double add_time = 0.7;
enum { DOT_ADDEND = 2, ADD_GRAIN = 1024 }; /* the operand that is added; elements of a stretch */

typedef struct Matrices {
    char *arrays[DOT_ARRAYS];
    const char *addend; /* or NULL */
    int64_t rows, columns;
} Matrices;

typedef struct DotKernel {
    DotPlan plan;
    Dtype type; /* in which it is multiplied: f32, f64, c64, c128, or integers as s64 */
    Dtype types[DOT_ARRAYS], held[DOT_ARRAYS];         /* as given; as products read and write them */
    int64_t bytes[DOT_ARRAYS], scratch_at[DOT_ARRAYS]; /* of an element in memory; of packed arrays */
    int64_t row_block, column_block, row_blocks, column_blocks, units;
    ProductPlan product; /* multiply_tiles() */
    int64_t product_at;  /* scratch of its parts */
    int32_t parts;
    bool adds;       /* the third operand, when tiles write their sums */
    int64_t made_at; /* scratch of a product that it is added to afterwards */
    void (*multiply)(const struct DotKernel *kernel, const Matrices *matrices, void *scratch);
    void (*make)(const KernelCall *call); /* such a product */
} DotKernel;

typedef struct DotWork {
    const DotKernel *kernel;
    char *arrays[DOT_ARRAYS], *scratch;
    const char *addend; /* or NULL */
} DotWork;

static void multiply_integers(const DotKernel *kernel, const Matrices *of, void *scratch) {
    (void)scratch;
    const DotAxis *row = &kernel->plan.row, *column = &kernel->plan.column, *depth = &kernel->plan.depth;
    for (int64_t i = 0; i < of->rows; i++)
        for (int64_t j = 0; j < of->columns; j++) {
            uint64_t sum = 0;
            const uint64_t *x = (const uint64_t *)of->arrays[DOT_LEFT] + i * row->strides[DOT_LEFT];
            const uint64_t *y = (const uint64_t *)of->arrays[DOT_RIGHT] + j * column->strides[DOT_RIGHT];
            for (int64_t k = 0; k < depth->size; k++)
                sum += x[k * depth->strides[DOT_LEFT]] * y[k * depth->strides[DOT_RIGHT]];
            ((uint64_t *)of->arrays[DOT_RESULT])[i * row->strides[DOT_RESULT] + j] = sum;
        }
}

/* Multiplies one block of a product by OpenBLAS. */
static void multiply_matrices(const DotKernel *kernel, const Matrices *of, void *scratch) {
    (void)scratch;
    static const double one[2] = {1, 0}, zero[2];
    static const float single_one[2] = {1, 0}, single_zero[2];
    const DotAxis *row = &kernel->plan.row, *column = &kernel->plan.column, *deep = &kernel->plan.depth;
    bool left_plain = deep->strides[DOT_LEFT] == 1, right_plain = column->strides[DOT_RIGHT] == 1;
    enum CBLAS_TRANSPOSE left_as = left_plain ? CblasNoTrans : CblasTrans;
    enum CBLAS_TRANSPOSE right_as = right_plain ? CblasNoTrans : CblasTrans;
    int left_leading = (int)(left_plain ? row : deep)->strides[DOT_LEFT];
    int right_leading = (int)(right_plain ? deep : column)->strides[DOT_RIGHT];
    int rows = (int)of->rows, columns = (int)of->columns, depth = (int)deep->size;
    int leading = (int)row->strides[DOT_RESULT];
    const void *left = of->arrays[DOT_LEFT], *right = of->arrays[DOT_RIGHT];
    void *out = of->arrays[DOT_RESULT];
    if (kernel->type == DTYPE_C64)
        cblas_cgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, single_one, left, left_leading,
                    right, right_leading, single_zero, out, leading);
    else if (kernel->type == DTYPE_C128)
        cblas_zgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, one, left, left_leading, right,
                    right_leading, zero, out, leading);
    else if (kernel->type == DTYPE_F32)
        cblas_sgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, 1.0f, left, left_leading, right,
                    right_leading, 0.0f, out, leading);
    else
        cblas_dgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, 1.0, left, left_leading, right,
                    right_leading, 0.0, out, leading);
}

static void multiply_tiles(const DotKernel *kernel, const Matrices *of, void *scratch) {
    const Product product = {.out = (float *)of->arrays[DOT_RESULT],
                             .addend = (const float *)of->addend,
                             .left = of->arrays[DOT_LEFT],
                             .right = of->arrays[DOT_RIGHT],
                             .rows = of->rows,
                             .columns = of->columns};
    product_run(&kernel->product, &product, scratch);
}

/* Units go product by product, blocks of columns inside of blocks of rows. */
static void run_units(void *user, int32_t part, int32_t parts) {
    const DotWork *work = user;
    const DotKernel *kernel = work->kernel;
    const DotPlan *plan = &kernel->plan;
    int64_t first, end, index[DOT_MOST_LOOPS], blocks = kernel->row_blocks * kernel->column_blocks;
    team_stretch(kernel->units, 1, part, parts, &first, &end);
    if (first == end) return;
    int64_t left = first / blocks, block = first % blocks;
    for (int32_t d = plan->loop_rank - 1; d >= 0; d--) {
        index[d] = left % plan->loops[d].size;
        left /= plan->loops[d].size;
    }
    for (int64_t unit = first; unit < end; unit++) {
        Matrices of;
        int64_t i = block / kernel->column_blocks * kernel->row_block;
        int64_t j = block % kernel->column_blocks * kernel->column_block;
        for (int32_t a = 0; a < DOT_ARRAYS; a++) {
            int64_t at = i * plan->row.strides[a] + j * plan->column.strides[a];
            for (int32_t d = 0; d < plan->loop_rank; d++) at += index[d] * plan->loops[d].strides[a];
            of.arrays[a] = work->arrays[a] + at * kernel->bytes[a];
        }
        /* It lies as the result does. */
        of.addend = work->addend ? work->addend + (of.arrays[DOT_RESULT] - work->arrays[DOT_RESULT]) : NULL;
        of.rows = plan->row.size - i < kernel->row_block ? plan->row.size - i : kernel->row_block;
        of.columns =
            plan->column.size - j < kernel->column_block ? plan->column.size - j : kernel->column_block;
        kernel->multiply(kernel, &of, work->scratch + part * kernel_align(kernel->product.scratch_bytes));
        if (++block < blocks) continue;
        block = 0;
        for (int32_t d = plan->loop_rank - 1; d >= 0; d--) {
            if (++index[d] < plan->loops[d].size) break;
            index[d] = 0;
        }
    }
}

/* Returns an operand, or the result, as products use it. */
static char *operand_at(const KernelCall *call, const DotKernel *kernel, int32_t a) {
    const DotPlan *plan = &kernel->plan;
    const DotCopy *copy = &plan->copies[a];
    int32_t source = plan->swapped ? 1 - a : a;
    bool same_type = kernel->types[source] == kernel->held[a];
    if (!plan->packed[a] && same_type) return call->operands[source];
    char *near = (char *)call->scratch + kernel->scratch_at[a];
    const BoxCopy box = {.out = near,
                         .out_strides = copy->near,
                         .in = call->operands[source],
                         .in_strides = copy->far,
                         .dimensions = copy->sizes,
                         .rank = copy->rank,
                         .element_bytes = kernel->bytes[a]};
    const ElementBox far = {call->operands[source], kernel->types[source], copy->far, copy->sizes,
                            copy->rank};
    if (!plan->packed[a])
        divided_convert(call->device, near, kernel->held[a], call->operands[source], kernel->types[source],
                        ir_shape_elements(call->operand_shapes[source]));
    else if (same_type) divided_copy(call->device, &box);
    else divided_pack(call->device, near, kernel->held[a], &far);
    return near;
}

static void run_dot(const KernelCall *call) {
    const DotKernel *kernel = call->compiled;
    bool apart = kernel->plan.packed[DOT_RESULT] || kernel->types[DOT_RESULT] != kernel->type;
    DotWork work = {.kernel = kernel, .scratch = (char *)call->scratch + kernel->product_at};
    for (int32_t a = 0; a < DOT_RESULT; a++) work.arrays[a] = operand_at(call, kernel, a);
    work.arrays[DOT_RESULT] =
        apart ? (char *)call->scratch + kernel->scratch_at[DOT_RESULT] : call->results[0];
    if (kernel->adds) work.addend = call->operands[DOT_ADDEND];
    team_run(call->device, run_units, &work, kernel->parts);
    if (apart) {
        const DotCopy *copy = &kernel->plan.copies[DOT_RESULT];
        void *out = call->results[0], *near = work.arrays[DOT_RESULT];
        const BoxCopy box = {.out = out,
                             .out_strides = copy->far,
                             .in = near,
                             .in_strides = copy->near,
                             .dimensions = copy->sizes,
                             .rank = copy->rank,
                             .element_bytes = kernel->bytes[DOT_RESULT]};
        const ElementBox far = {out, kernel->types[DOT_RESULT], copy->far, copy->sizes, copy->rank};
        if (!kernel->plan.packed[DOT_RESULT])
            divided_convert(call->device, out, kernel->types[DOT_RESULT], near, kernel->type,
                            ir_shape_elements(call->result_shapes[0]));
        else if (kernel->types[DOT_RESULT] == kernel->type) divided_copy(call->device, &box);
        else divided_unpack(call->device, &far, near, kernel->type);
    }
}

/* Sums of nothing. */
static void run_zeros(const KernelCall *call) {
    Dtype type = call->result_shapes[0]->type, part = dtype_real_part(type);
    const Scalar64 zero[2] = {{.floating = 0}}; /* f8e8m0fnu has none: it becomes a NaN */
    int64_t elements = ir_shape_elements(call->result_shapes[0]);
    if (elements == 0) return;
    scalar64_store(call->results[0], part, zero, scalar64_kind(part), part == type ? 1 : 2, 1);
    divided_fill(call->device, call->results[0], call->results[0], elements, dtype_bytes(type));
}

typedef struct Addition {
    float *out;
    const float *addend, *product;
    int64_t count;
} Addition;

static void add_stretch(void *user, int32_t part, int32_t parts) {
    const Addition *of = user;
    int64_t first, end;
    team_stretch(of->count, ADD_GRAIN, part, parts, &first, &end);
    for (int64_t k = first; k < end; k++) of->out[k] = of->addend[k] + of->product[k];
}

/* Computes the product, then the sum. */
static void run_then_add(const KernelCall *call) {
    const DotKernel *kernel = call->compiled;
    KernelCall product = *call;
    void *made = (char *)call->scratch + kernel->made_at;
    product.results = &made;
    kernel->make(&product);
    Addition addition = {call->results[0], call->operands[DOT_ADDEND], made,
                         ir_shape_elements(call->result_shapes[0])};
    team_run(call->device, add_stretch, &addition,
             team_parts(call->device, add_time * (double)addition.count));
}

static Dtype product_type(Dtype left, Dtype right, Dtype result) {
    if (dtype_is_complex(result)) return left == result && right == result ? result : DTYPE_INVALID;
    if (!scalar64_supports(left) || !scalar64_supports(right) || !scalar64_supports(result))
        return DTYPE_INVALID;
    if (left == DTYPE_F64 || right == DTYPE_F64 || result == DTYPE_F64) return DTYPE_F64;
    return dtype_is_floating(result) ? DTYPE_F32 : DTYPE_S64;
}

/* Divides a product by tiles into as many blocks as the team needs, on which its result does not depend. */
static void plan_units(DotKernel *kernel, const KernelDevice *device) {
    const DotPlan *plan = &kernel->plan;
    int64_t team = team_size(device), most_blocks = MOST_BLOCKS;
    if (kernel->multiply == multiply_tiles) most_blocks = team > 1 ? BLOCKS_OF_MEMBER * team : 1;
    /* Halves of halves of the longer edge. */
    int64_t sizes[2] = {plan->row.size, plan->column.size}, edges[2] = {sizes[0], sizes[1]},
            counts[2] = {1, 1};
    for (int64_t blocks = 1; blocks * plan->products < most_blocks; blocks = counts[0] * counts[1]) {
        int longer = edges[1] > edges[0];
        double work = (double)edges[0] * (double)edges[1] * (double)plan->depth.size;
        if (work < 2 * least_work || edges[longer] < 2 * LEAST_EDGE) break;
        edges[longer] =
            (edges[longer] / 2 + edge_units[longer] - 1) / edge_units[longer] * edge_units[longer];
        counts[longer] = (sizes[longer] + edges[longer] - 1) / edges[longer];
    }
    kernel->row_block = edges[0];
    kernel->column_block = edges[1];
    kernel->row_blocks = counts[0];
    kernel->column_blocks = counts[1];
    kernel->units = plan->products * counts[0] * counts[1];
    double work = (double)kernel->row_block * (double)kernel->column_block * (double)plan->depth.size;
    int32_t parts = team_parts(device, (product_time + multiply_time * work) * (double)kernel->units);
    kernel->parts = parts < kernel->units ? parts : (int32_t)kernel->units;
}

static bool plan_tiles(DotKernel *kernel, Dtype left, Dtype right) {
    const DotPlan *plan = &kernel->plan;
    const ProductForm form = {
        .left = {left, plan->row.strides[DOT_LEFT], plan->depth.strides[DOT_LEFT]},
        .right = {right, plan->column.strides[DOT_RIGHT], plan->depth.strides[DOT_RIGHT]},
        .rows = plan->row.size,
        .columns = plan->column.size,
        .depth = plan->depth.size,
        .out_stride = plan->row.strides[DOT_RESULT]};
    return product_plan(&kernel->product, tile_kind(), &form);
}

/* Products by tiles, where those are better, read operands in their own types; small ones f32 alone. */
static bool takes_tiles(DotKernel *kernel) {
    Dtype left = kernel->types[kernel->plan.swapped], right = kernel->types[!kernel->plan.swapped];
    if (kernel->type != DTYPE_F32) return false;
    kernel->held[DOT_LEFT] = left;
    kernel->held[DOT_RIGHT] = right;
    if (plan_tiles(kernel, left, right)) return true;
    kernel->held[DOT_LEFT] = kernel->held[DOT_RIGHT] = DTYPE_F32;
    return plan_tiles(kernel, DTYPE_F32, DTYPE_F32);
}

/* Prepares the product of the first two operands; *kernel is in the arena. */
static AmStatus prepare_product(KernelCall *call, DotKernel **made, Arena *arena, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    const IrShape *result = call->result_shapes[0];
    DotKernel *kernel = ARENA_ARRAY(arena, DotKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    kernel->type = product_type(left->type, right->type, result->type);
    if (!attributes->dot || kernel->type == DTYPE_INVALID)
        return kernel_call_refuse(call, "not on these types", error);
    kernel->types[DOT_LEFT] = left->type;
    kernel->types[DOT_RIGHT] = right->type;
    kernel->types[DOT_RESULT] = result->type;
    *made = kernel;
    call->compiled = kernel;
    call->run = run_zeros;
    if (ir_shape_elements(left) == 0 || ir_shape_elements(right) == 0) return AM_OK;
    const int64_t *order = attributes->dimension_count > 0 ? attributes->dimensions : NULL;
    if (!dot_plan(&kernel->plan, attributes->dot, left, right, order))
        return kernel_call_refuse(call, "a dimension is above 2^31", error);
    bool by_tiles = takes_tiles(kernel);
    for (int32_t a = 0; a < DOT_ARRAYS; a++) {
        int32_t source = kernel->plan.swapped && a != DOT_RESULT ? 1 - a : a;
        const IrShape *shape = a == DOT_RESULT ? result : call->operand_shapes[source];
        if (!by_tiles || a == DOT_RESULT) kernel->held[a] = kernel->type;
        kernel->bytes[a] = dtype_bytes(kernel->held[a]);
        kernel->scratch_at[a] = call->scratch_bytes;
        if (kernel->plan.packed[a] || kernel->types[source] != kernel->held[a])
            call->scratch_bytes += kernel_align(ir_shape_elements(shape) * kernel->bytes[a]);
    }
    kernel->multiply = by_tiles                    ? multiply_tiles
                       : kernel->type == DTYPE_S64 ? multiply_integers
                                                   : multiply_matrices;
    plan_units(kernel, call->device);
    kernel->adds = call->operand_count > DOT_ADDEND && by_tiles && !kernel->product.is_small &&
                   !kernel->plan.packed[DOT_RESULT];
    if (kernel->adds) product_plan_addend(&kernel->product, kernel->row_block);
    kernel->product_at = call->scratch_bytes;
    call->scratch_bytes += kernel->parts * kernel_align(kernel->product.scratch_bytes);
    call->run = run_dot;
    return AM_OK;
}

AmStatus cpu_prepare_dot(KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *result = call->result_shapes[0];
    DotKernel *kernel = NULL;
    TRY(prepare_product(call, &kernel, arena, error));
    if (call->operand_count <= DOT_ADDEND || kernel->adds) return AM_OK;
    if (result->type != DTYPE_F32) return kernel_call_refuse(call, "it is not added to this type", error);
    kernel->make = call->run;
    kernel->made_at = call->scratch_bytes;
    call->scratch_bytes += kernel_align(ir_shape_bytes(result));
    call->run = run_then_add;
    return AM_OK;
}
