/* The result shapes that HLO text leaves out: "%r = add(%a, %b)".
 *
 * Each opcode that XLA infers has one function here, found by a table. It derives the
 * shape from the operands and attributes, in range but not checked further: the
 * verifier compares every shape with its operator afterwards. Layouts are row-major,
 * but for results with the dimensions of an operand, which keep its layout.
 */
#include <string.h>

#include "ir/text/hlo_text.h"

typedef struct Inference {
    IrTextReader *reader;
    Hlo__HloInstructionProto *instruction;
    int64_t start; /* position of the opcode in the text */
} Inference;

typedef AmStatus InferFunction(Inference *self);

/* ------------------------------------------------------------------- Operands */

static AmStatus fail(const Inference *self) {
    return ir_scan_fail(&self->reader->scanner, self->start,
                        "cannot infer the shape of this result from its operands; write it before '%s'",
                        self->instruction->opcode);
}

static AmStatus set_shape(Inference *self, Hlo__ShapeProto *shape) {
    self->instruction->shape = shape;
    return shape ? AM_OK : ir_scan_memory(&self->reader->scanner);
}

/* Returns the shape of operand k; NULL if missing. */
static Hlo__ShapeProto *operand(const Inference *self, size_t k) {
    if (k >= self->instruction->n_operand_ids) return NULL;
    return ir_reader_instruction(self->reader->computation, self->instruction->operand_ids[k])->shape;
}

/* Returns the shape of operand k; NULL if it is missing or no array. */
static Hlo__ShapeProto *array(const Inference *self, size_t k) {
    Hlo__ShapeProto *shape = operand(self, k);
    return shape && dtype_bits((Dtype)shape->element_type) > 0 ? shape : NULL;
}

/* Returns the shape of the result of called computation k; NULL if missing. */
static Hlo__ShapeProto *called(const Inference *self, size_t k) {
    if (k >= self->instruction->n_called_computation_ids) return NULL;
    int64_t id = self->instruction->called_computation_ids[k];
    const Hlo__HloModuleProto *module = self->reader->module;
    if (id < 1 || id > (int64_t)module->n_computations) return NULL;
    return module->computations[id - 1]->program_shape->result;
}

/* ------------------------------------------------------------------- Results */

/* The dimensions of an array shape under construction. */
typedef struct Sizes {
    size_t rank;
    int64_t sizes[IR_MAX_RANK];
    bool is_dynamic[IR_MAX_RANK];
    bool is_wrong;
} Sizes;

static void add_size(Sizes *sizes, int64_t size) {
    sizes->is_wrong |= sizes->rank == IR_MAX_RANK || size < 0;
    if (!sizes->is_wrong) sizes->sizes[sizes->rank++] = size;
}

/* Adds dimension d of `shape`, with its flag. */
static void add_dimension(Sizes *sizes, const Hlo__ShapeProto *shape, int64_t d) {
    sizes->is_wrong |= sizes->rank == IR_MAX_RANK || d < 0 || d >= (int64_t)shape->n_dimensions;
    if (sizes->is_wrong) return;
    sizes->is_dynamic[sizes->rank] =
        (size_t)d < shape->n_is_dynamic_dimension && shape->is_dynamic_dimension[d];
    sizes->sizes[sizes->rank++] = shape->dimensions[d];
}

static bool holds(size_t count, const int64_t *values, int64_t value) {
    for (size_t i = 0; i < count; i++)
        if (values[i] == value) return true;
    return false;
}

/* Adds the dimensions of `shape` that neither list names. */
static void add_others(Sizes *sizes, const Hlo__ShapeProto *shape, size_t count, const int64_t *without,
                       size_t more_count, const int64_t *more) {
    for (int64_t d = 0; d < (int64_t)shape->n_dimensions; d++)
        if (!holds(count, without, d) && !holds(more_count, more, d)) add_dimension(sizes, shape, d);
}

static Hlo__ShapeProto *new_array(const Inference *self, Dtype type, const Sizes *sizes) {
    return ir_new_array_shape(self->reader->scanner.arena, type, sizes->rank, sizes->sizes,
                              sizes->is_dynamic);
}

static AmStatus set_array(Inference *self, Dtype type, const Sizes *sizes) {
    return sizes->is_wrong ? fail(self) : set_shape(self, new_array(self, type, sizes));
}

static Hlo__ShapeProto *new_tuple(const Inference *self, size_t count) {
    Hlo__ShapeProto *tuple = ir_new_message(self->reader->scanner.arena, &hlo__shape_proto__descriptor);
    if (!tuple) return NULL;
    tuple->element_type = HLO__PRIMITIVE_TYPE__TUPLE;
    tuple->tuple_shapes = ARENA_ARRAY(self->reader->scanner.arena, Hlo__ShapeProto *, count + 1);
    tuple->n_tuple_shapes = count;
    return tuple->tuple_shapes ? tuple : NULL;
}

/* Sets one shape for one input, a tuple for several: `make` gives the shape of input k. */
static AmStatus set_each(Inference *self, size_t count, Hlo__ShapeProto *make(const Inference *, size_t)) {
    if (count == 0) return fail(self);
    Hlo__ShapeProto *tuple = new_tuple(self, count);
    if (!tuple) return ir_scan_memory(&self->reader->scanner);
    for (size_t k = 0; k < count; k++) {
        tuple->tuple_shapes[k] = make(self, k);
        if (!tuple->tuple_shapes[k]) return fail(self);
    }
    return set_shape(self, count == 1 ? tuple->tuple_shapes[0] : tuple);
}

/* ------------------------------------------------------- As one operand is */

static AmStatus as_operand(Inference *self, size_t k) {
    Hlo__ShapeProto *shape = operand(self, k);
    return shape ? set_shape(self, shape) : fail(self);
}
static AmStatus as_first(Inference *self) {
    return as_operand(self, 0);
}
static AmStatus as_second(Inference *self) {
    return as_operand(self, 1);
}

static bool is_dynamic(const Hlo__ShapeProto *shape, size_t d) {
    return d < shape->n_is_dynamic_dimension && shape->is_dynamic_dimension[d];
}

/* Infers an element-wise shape: per dimension the size that is known; dynamic where an operand is. */
static AmStatus alike_but_first(Inference *self, size_t first) {
    Hlo__ShapeProto *shape = array(self, first);
    if (!shape) return fail(self);
    Sizes sizes = {0};
    bool is_changed = false;
    for (size_t d = 0; d < shape->n_dimensions; d++) {
        add_dimension(&sizes, shape, (int64_t)d);
        for (size_t k = first + 1; k < self->instruction->n_operand_ids && !sizes.is_wrong; k++) {
            const Hlo__ShapeProto *other = array(self, k);
            if (!other || other->n_dimensions != shape->n_dimensions) continue;
            bool was_unbounded = sizes.sizes[d] == IR_UNBOUNDED;
            bool is_unbounded = other->dimensions[d] == IR_UNBOUNDED;
            if (was_unbounded && !is_unbounded) {
                sizes.sizes[d] = other->dimensions[d];
                sizes.is_dynamic[d] = is_dynamic(other, d);
            } else if (!is_unbounded) {
                sizes.is_dynamic[d] |= is_dynamic(other, d);
            }
        }
        is_changed |= !sizes.is_wrong &&
                      (sizes.sizes[d] != shape->dimensions[d] || sizes.is_dynamic[d] != is_dynamic(shape, d));
    }
    if (!is_changed) return set_shape(self, shape);
    return set_array(self, (Dtype)shape->element_type, &sizes);
}
static AmStatus alike(Inference *self) {
    return alike_but_first(self, 0);
}
static AmStatus of_select(Inference *self) {
    return alike_but_first(self, 1);
}

static AmStatus with_type(Inference *self, Dtype type) {
    TRY(alike(self));
    Hlo__ShapeProto *shape = ir_new_message(self->reader->scanner.arena, &hlo__shape_proto__descriptor);
    if (shape) {
        *shape = *self->instruction->shape;
        shape->element_type = (Hlo__PrimitiveType)type;
    }
    return set_shape(self, shape);
}
static AmStatus of_predicate(Inference *self) {
    return with_type(self, DTYPE_PRED);
}
static AmStatus of_part(Inference *self) {
    Hlo__ShapeProto *shape = array(self, 0);
    Dtype type = shape ? (Dtype)shape->element_type : DTYPE_F32;
    return with_type(self, type == DTYPE_C64 ? DTYPE_F32 : type == DTYPE_C128 ? DTYPE_F64 : type);
}
static AmStatus of_complex(Inference *self) {
    Hlo__ShapeProto *shape = array(self, 0);
    return with_type(self, shape && (Dtype)shape->element_type == DTYPE_F64 ? DTYPE_C128 : DTYPE_C64);
}

static AmStatus of_map(Inference *self) {
    const Hlo__ShapeProto *root = called(self, 0);
    return root ? with_type(self, (Dtype)root->element_type) : fail(self);
}

/* ---------------------------------------------------------------- Contraction */

static AmStatus set_product(Inference *self, const Hlo__DotDimensionNumbers *numbers, Sizes *sizes,
                            size_t group_count, const int64_t *group_dimensions) {
    const Hlo__ShapeProto *lhs = array(self, 0), *rhs = array(self, 1);
    if (!lhs || !rhs || !numbers) return fail(self);
    for (size_t i = 0; i < numbers->n_lhs_batch_dimensions; i++)
        add_dimension(sizes, lhs, numbers->lhs_batch_dimensions[i]);
    add_others(sizes, lhs, numbers->n_lhs_batch_dimensions, numbers->lhs_batch_dimensions,
               numbers->n_lhs_contracting_dimensions, numbers->lhs_contracting_dimensions);
    for (int64_t d = 0; d < (int64_t)rhs->n_dimensions; d++) {
        if (!holds(numbers->n_rhs_batch_dimensions, numbers->rhs_batch_dimensions, d) &&
            !holds(numbers->n_rhs_contracting_dimensions, numbers->rhs_contracting_dimensions, d) &&
            !holds(group_count, group_dimensions, d))
            add_dimension(sizes, rhs, d);
    }
    return set_array(self, (Dtype)lhs->element_type, sizes);
}

static AmStatus of_dot(Inference *self) {
    Sizes sizes = {0};
    return set_product(self, self->instruction->dot_dimension_numbers, &sizes, 0, NULL);
}

/* Infers the shape of a ragged dot: contracted ragged dimensions give one product for each group. */
static AmStatus of_ragged_dot(Inference *self) {
    const Hlo__RaggedDotDimensionNumbers *ragged = self->instruction->ragged_dot_dimension_numbers;
    const Hlo__ShapeProto *groups = array(self, 2);
    if (!ragged || !ragged->dot_dimension_numbers || !groups || ragged->n_lhs_ragged_dimensions != 1)
        return fail(self);
    const Hlo__DotDimensionNumbers *numbers = ragged->dot_dimension_numbers;
    Sizes sizes = {0};
    bool is_contracted = holds(numbers->n_lhs_contracting_dimensions, numbers->lhs_contracting_dimensions,
                               ragged->lhs_ragged_dimensions[0]);
    if (is_contracted) add_dimension(&sizes, groups, (int64_t)groups->n_dimensions - 1);
    return set_product(self, numbers, &sizes, ragged->n_rhs_group_dimensions, ragged->rhs_group_dimensions);
}

static int64_t positions(const Hlo__WindowDimension *window, int64_t size) {
    IrWindowDimension dimension = {window->size,           window->stride,          window->padding_low,
                                   window->padding_high,   window->window_dilation, window->base_dilation,
                                   window->window_reversal};
    if (size < 0 || dimension.size < 1 || dimension.stride < 1 || dimension.window_dilation < 1 ||
        dimension.base_dilation < 1)
        return -1;
    return ir_window_positions(size, &dimension);
}

static AmStatus of_convolution(Inference *self) {
    const Hlo__ShapeProto *input = array(self, 0), *kernel = array(self, 1);
    const Hlo__ConvolutionDimensionNumbers *numbers = self->instruction->convolution_dimension_numbers;
    const Hlo__Window *window = self->instruction->window;
    if (!input || !kernel || !numbers || !window) return fail(self);
    size_t spatial = numbers->n_output_spatial_dimensions;
    Sizes sizes = {.rank = input->n_dimensions}, of_input = {0}, of_kernel = {0};
    int64_t batch_groups =
        self->instruction->batch_group_count > 0 ? self->instruction->batch_group_count : 1;
    add_dimension(&of_input, input, numbers->input_batch_dimension);
    add_dimension(&of_kernel, kernel, numbers->kernel_output_feature_dimension);
    bool is_wrong = of_input.is_wrong || of_kernel.is_wrong || spatial + 2 != sizes.rank ||
                    window->n_dimensions != spatial || numbers->n_input_spatial_dimensions != spatial;
    for (size_t i = 0; i < spatial && !is_wrong; i++) {
        int64_t to = numbers->output_spatial_dimensions[i], from = numbers->input_spatial_dimensions[i];
        is_wrong = to < 0 || to >= (int64_t)sizes.rank || from < 0 || from >= (int64_t)sizes.rank;
        if (is_wrong) break;
        sizes.sizes[to] = positions(window->dimensions[i], input->dimensions[from]);
        is_wrong = sizes.sizes[to] < 0;
    }
    int64_t batch = numbers->output_batch_dimension, feature = numbers->output_feature_dimension;
    if (is_wrong || batch < 0 || batch >= (int64_t)sizes.rank || feature < 0 ||
        feature >= (int64_t)sizes.rank)
        return fail(self);
    sizes.sizes[batch] = of_input.sizes[0] / batch_groups;
    sizes.sizes[feature] = of_kernel.sizes[0];
    return set_array(self, (Dtype)input->element_type, &sizes);
}

/* ------------------------------------------------------------------ Reduction */

/* Returns the element type of input k's result: that of its initial value. */
static Dtype reduced_type(const Inference *self, size_t k) {
    const Hlo__ShapeProto *initial = array(self, k + self->instruction->n_operand_ids / 2);
    return (Dtype)(initial ? initial : array(self, k))->element_type;
}

static Hlo__ShapeProto *reduced(const Inference *self, size_t k) {
    const Hlo__ShapeProto *input = array(self, k);
    Sizes sizes = {0};
    if (!input) return NULL;
    add_others(&sizes, input, self->instruction->n_dimensions, self->instruction->dimensions, 0, NULL);
    return sizes.is_wrong ? NULL : new_array(self, reduced_type(self, k), &sizes);
}
static AmStatus of_reduce(Inference *self) {
    return set_each(self, self->instruction->n_operand_ids / 2, reduced);
}

static Hlo__ShapeProto *windowed(const Inference *self, size_t k) {
    const Hlo__ShapeProto *input = array(self, k);
    const Hlo__Window *window = self->instruction->window;
    Sizes sizes = {0};
    if (!input || !window || window->n_dimensions != input->n_dimensions) return NULL;
    for (size_t d = 0; d < input->n_dimensions; d++)
        add_size(&sizes, positions(window->dimensions[d], input->dimensions[d]));
    return sizes.is_wrong ? NULL : new_array(self, reduced_type(self, k), &sizes);
}
static AmStatus of_reduce_window(Inference *self) {
    return set_each(self, self->instruction->n_operand_ids / 2, windowed);
}

/* Infers the operands that the result repeats: all of a sort, the first third of a scatter. */
static AmStatus of_sort(Inference *self) {
    return set_each(self, self->instruction->n_operand_ids, operand);
}
static AmStatus of_scatter(Inference *self) {
    return set_each(self, (self->instruction->n_operand_ids - 1) / 2, operand);
}

/* ------------------------------------------------------------------- Movement */

static AmStatus of_transpose(Inference *self) {
    const Hlo__ShapeProto *shape = array(self, 0);
    Sizes sizes = {0};
    if (!shape) return fail(self);
    for (size_t i = 0; i < self->instruction->n_dimensions; i++)
        add_dimension(&sizes, shape, self->instruction->dimensions[i]);
    TRY(set_array(self, (Dtype)shape->element_type, &sizes));
    Hlo__ShapeProto *result = self->instruction->shape;
    if (!shape->layout || result->n_dimensions != shape->n_dimensions ||
        shape->layout->n_minor_to_major != shape->n_dimensions)
        return AM_OK;
    for (size_t i = 0; i < shape->n_dimensions; i++) { /* elements stay where they are in memory */
        for (size_t d = 0; d < result->n_dimensions; d++)
            if (self->instruction->dimensions[d] == shape->layout->minor_to_major[i])
                result->layout->minor_to_major[i] = (int64_t)d;
    }
    return AM_OK;
}

/* Returns operand 0 with its sizes and the one dimension that the attribute `dimensions` names; NULL if it is
 * no array or has no such dimension. */
static const Hlo__ShapeProto *array_along(Inference *self, Sizes *sizes, int64_t *along) {
    const Hlo__ShapeProto *shape = array(self, 0);
    *sizes = (Sizes){0};
    if (!shape || self->instruction->n_dimensions != 1) return NULL;
    *along = self->instruction->dimensions[0];
    for (size_t d = 0; d < shape->n_dimensions; d++) add_dimension(sizes, shape, (int64_t)d);
    bool is_valid = !sizes->is_wrong && *along >= 0 && *along < (int64_t)sizes->rank;
    return is_valid ? shape : NULL;
}

static AmStatus of_concatenate(Inference *self) {
    Sizes sizes;
    int64_t along;
    const Hlo__ShapeProto *shape = array_along(self, &sizes, &along);
    if (!shape) return fail(self);
    for (size_t k = 1; k < self->instruction->n_operand_ids; k++) {
        const Hlo__ShapeProto *other = array(self, k);
        if (!other || along >= (int64_t)other->n_dimensions) return fail(self);
        sizes.is_dynamic[along] |= is_dynamic(other, (size_t)along);
        if (sizes.sizes[along] == IR_UNBOUNDED || other->dimensions[along] == IR_UNBOUNDED) {
            sizes.sizes[along] = IR_UNBOUNDED;
        } else if (__builtin_add_overflow(sizes.sizes[along], other->dimensions[along],
                                          &sizes.sizes[along])) {
            return fail(self);
        }
    }
    return set_array(self, (Dtype)shape->element_type, &sizes);
}

static AmStatus of_pad(Inference *self) {
    const Hlo__ShapeProto *shape = array(self, 0);
    const Hlo__PaddingConfig *padding = self->instruction->padding_config;
    if (!shape || !padding || padding->n_dimensions != shape->n_dimensions) return fail(self);
    Sizes sizes = {0};
    for (size_t d = 0; d < shape->n_dimensions; d++) {
        const Hlo__PaddingConfig__PaddingConfigDimension *part = padding->dimensions[d];
        int64_t size = shape->dimensions[d], inner;
        if (__builtin_mul_overflow(size > 0 ? size - 1 : 0, part->interior_padding, &inner) ||
            __builtin_add_overflow(size, inner, &size) ||
            __builtin_add_overflow(size, part->edge_padding_low, &size) ||
            __builtin_add_overflow(size, part->edge_padding_high, &size))
            return fail(self);
        add_size(&sizes, size);
    }
    return set_array(self, (Dtype)shape->element_type, &sizes);
}

/* Infers the shape of a gather: offset dimensions have the window's sizes, the others those of the
 * indices. */
static AmStatus of_gather(Inference *self) {
    const Hlo__ShapeProto *source = array(self, 0), *indices = array(self, 1);
    const Hlo__GatherDimensionNumbers *numbers = self->instruction->gather_dimension_numbers;
    if (!source || !indices || !numbers || self->instruction->n_gather_slice_sizes != source->n_dimensions)
        return fail(self);
    Sizes window = {0}, batch = {0}, sizes = {0};
    for (int64_t d = 0; d < (int64_t)source->n_dimensions; d++) {
        if (!holds(numbers->n_collapsed_slice_dims, numbers->collapsed_slice_dims, d) &&
            !holds(numbers->n_operand_batching_dims, numbers->operand_batching_dims, d))
            add_size(&window, self->instruction->gather_slice_sizes[d]);
    }
    add_others(&batch, indices, 1, &numbers->index_vector_dim, 0, NULL);
    if (window.is_wrong || batch.is_wrong || window.rank != numbers->n_offset_dims) return fail(self);
    size_t from_window = 0, from_batch = 0, rank = window.rank + batch.rank;
    for (size_t d = 0; d < rank; d++) {
        bool is_offset = holds(numbers->n_offset_dims, numbers->offset_dims, (int64_t)d);
        if (is_offset ? from_window == window.rank : from_batch == batch.rank) return fail(self);
        add_size(&sizes, is_offset ? window.sizes[from_window++] : batch.sizes[from_batch++]);
    }
    return set_array(self, (Dtype)source->element_type, &sizes);
}

/* Infers the shape of a transform: that of real numbers halves the last dimension, its inverse doubles
 * it. */
static AmStatus of_fft(Inference *self) {
    const Hlo__ShapeProto *shape = array(self, 0);
    const Hlo__HloInstructionProto *instruction = self->instruction;
    if (!shape || shape->n_dimensions == 0 || instruction->n_fft_length == 0) return fail(self);
    Sizes sizes = {0};
    Dtype type = (Dtype)shape->element_type;
    for (size_t d = 0; d < shape->n_dimensions; d++) add_dimension(&sizes, shape, (int64_t)d);
    int64_t length = instruction->fft_length[instruction->n_fft_length - 1];
    if (sizes.is_wrong || length < 0) return fail(self);
    if (instruction->fft_type == HLO__FFT_TYPE__RFFT) {
        sizes.sizes[sizes.rank - 1] = length == 0 ? 0 : length / 2 + 1;
        type = type == DTYPE_F64 ? DTYPE_C128 : DTYPE_C64;
    } else if (instruction->fft_type == HLO__FFT_TYPE__IRFFT) {
        sizes.sizes[sizes.rank - 1] = length;
        type = type == DTYPE_C128 ? DTYPE_F64 : DTYPE_F32;
    }
    return set_array(self, type, &sizes);
}

static AmStatus of_topk(Inference *self) {
    const Hlo__ShapeProto *shape = array(self, 0);
    Sizes sizes = {0};
    if (!shape || shape->n_dimensions == 0) return fail(self);
    for (size_t d = 0; d + 1 < shape->n_dimensions; d++) add_dimension(&sizes, shape, (int64_t)d);
    add_size(&sizes, self->instruction->k);
    if (sizes.is_wrong) return fail(self);
    Hlo__ShapeProto *tuple = new_tuple(self, 2);
    if (!tuple) return ir_scan_memory(&self->reader->scanner);
    tuple->tuple_shapes[0] = new_array(self, (Dtype)shape->element_type, &sizes);
    tuple->tuple_shapes[1] = new_array(self, DTYPE_S32, &sizes);
    bool is_made = tuple->tuple_shapes[0] && tuple->tuple_shapes[1];
    return set_shape(self, is_made ? tuple : NULL);
}

/* Infers the shape of a set-dimension-size: the size that operand 1 sets is at most the present one. */
static AmStatus of_set_dimension_size(Inference *self) {
    Sizes sizes;
    int64_t along;
    const Hlo__ShapeProto *shape = array_along(self, &sizes, &along);
    if (!shape) return fail(self);
    sizes.is_dynamic[along] = true;
    return set_array(self, (Dtype)shape->element_type, &sizes);
}

/* --------------------------------------------------- Tuples, calls and the rest */

static AmStatus of_tuple(Inference *self) {
    size_t count = self->instruction->n_operand_ids;
    Hlo__ShapeProto *tuple = new_tuple(self, count);
    for (size_t k = 0; tuple && k < count; k++) tuple->tuple_shapes[k] = operand(self, k);
    return set_shape(self, tuple);
}

static AmStatus of_get_tuple_element(Inference *self) {
    const Hlo__ShapeProto *tuple = operand(self, 0);
    int64_t index = self->instruction->tuple_index;
    if (!tuple || index < 0 || index >= (int64_t)tuple->n_tuple_shapes) return fail(self);
    return set_shape(self, tuple->tuple_shapes[index]);
}

/* Infers the shape of call and conditional. */
static AmStatus of_call(Inference *self) {
    Hlo__ShapeProto *root = called(self, 0);
    return root ? set_shape(self, root) : fail(self);
}

/* Infers the shapes of batch normalisation: a training pass gives the mean and the variance as well, a
 * gradient those of scale and offset. */
static AmStatus of_batch_norm(Inference *self) {
    Hlo__ShapeProto *tuple = new_tuple(self, 3);
    if (!tuple) return ir_scan_memory(&self->reader->scanner);
    for (size_t k = 0; k < 3; k++) {
        tuple->tuple_shapes[k] = array(self, k == 0 ? 0 : 1);
        if (!tuple->tuple_shapes[k]) return fail(self);
    }
    return set_shape(self, tuple);
}

/* Results are the slices of the steps, one dimension more than the computation's, then the carried values. */
static AmStatus of_scan(Inference *self) {
    const Hlo__HloInstructionProto *instruction = self->instruction;
    const Hlo__ShapeProto *root = called(self, 0), *input = array(self, 0);
    if (!root || (Dtype)root->element_type != DTYPE_TUPLE || !input || instruction->n_dimensions != 1)
        return fail(self);
    int64_t along = instruction->dimensions[0],
            slices = (int64_t)root->n_tuple_shapes - instruction->num_carries;
    if (along < 0 || along >= (int64_t)input->n_dimensions) return fail(self);
    Hlo__ShapeProto *tuple = new_tuple(self, root->n_tuple_shapes);
    if (!tuple) return ir_scan_memory(&self->reader->scanner);
    for (size_t k = 0; k < root->n_tuple_shapes; k++) {
        const Hlo__ShapeProto *part = root->tuple_shapes[k];
        tuple->tuple_shapes[k] = root->tuple_shapes[k];
        if ((int64_t)k >= slices) continue;
        Sizes sizes = {0};
        for (int64_t d = 0; d <= (int64_t)part->n_dimensions; d++) {
            if (d == along) add_dimension(&sizes, input, along);
            if (d < (int64_t)part->n_dimensions) add_dimension(&sizes, part, d);
        }
        if (sizes.is_wrong) return fail(self);
        tuple->tuple_shapes[k] = new_array(self, (Dtype)part->element_type, &sizes);
        if (!tuple->tuple_shapes[k]) return ir_scan_memory(&self->reader->scanner);
    }
    return set_shape(self, tuple);
}

static AmStatus set_scalar(Inference *self, Dtype type) {
    return set_shape(self, ir_new_array_shape(self->reader->scanner.arena, type, 0, NULL, NULL));
}
static AmStatus of_device_id(Inference *self) {
    return set_scalar(self, DTYPE_U32);
}
static AmStatus of_get_dimension_size(Inference *self) {
    return set_scalar(self, DTYPE_S32);
}
static AmStatus of_after_all(Inference *self) {
    Hlo__ShapeProto *shape = ir_new_message(self->reader->scanner.arena, &hlo__shape_proto__descriptor);
    if (shape) shape->element_type = HLO__PRIMITIVE_TYPE__TOKEN;
    return set_shape(self, shape);
}

/* ---------------------------------------------------------------------- Table */

/* Returns the function of an opcode; NULL: its shape is always written. */
static InferFunction *function_of(IrOpcode opcode) {
    switch (opcode) {
    case IR_ABS:
    case IR_REAL:
    case IR_IMAG: return of_part;
    case IR_COMPARE:
    case IR_IS_FINITE: return of_predicate;
    case IR_COMPLEX: return of_complex;
    case IR_SELECT: return of_select;
    case IR_ADD_DEPENDENCY:
    case IR_COPY:
    case IR_OPT_BARRIER:
    case IR_DOMAIN:
    case IR_WHILE:
    case IR_REVERSE:
    case IR_CHOLESKY:
    case IR_BATCH_NORM_INFERENCE:
    case IR_SELECT_AND_SCATTER: return as_first;
    case IR_CLAMP:
    case IR_TRIANGULAR_SOLVE: return as_second;
    case IR_MAP: return of_map;
    case IR_DOT:
    case IR_SCALED_DOT: return of_dot;
    case IR_RAGGED_DOT: return of_ragged_dot;
    case IR_CONVOLUTION: return of_convolution;
    case IR_REDUCE: return of_reduce;
    case IR_REDUCE_WINDOW: return of_reduce_window;
    case IR_SORT: return of_sort;
    case IR_SCATTER: return of_scatter;
    case IR_TRANSPOSE: return of_transpose;
    case IR_CONCATENATE: return of_concatenate;
    case IR_PAD: return of_pad;
    case IR_GATHER: return of_gather;
    case IR_FFT: return of_fft;
    case IR_TOPK: return of_topk;
    case IR_SET_DIMENSION_SIZE: return of_set_dimension_size;
    case IR_GET_DIMENSION_SIZE: return of_get_dimension_size;
    case IR_TUPLE: return of_tuple;
    case IR_GET_TUPLE_ELEMENT: return of_get_tuple_element;
    case IR_CALL:
    case IR_CONDITIONAL: return of_call;
    case IR_BATCH_NORM_TRAINING:
    case IR_BATCH_NORM_GRAD: return of_batch_norm;
    case IR_SCAN: return of_scan;
    case IR_REPLICA_ID:
    case IR_PARTITION_ID: return of_device_id;
    case IR_AFTER_ALL: return of_after_all;
    case IR_BITCAST_CONVERT:
    case IR_CONVERT:
    case IR_REDUCE_PRECISION:
    case IR_STOCHASTIC_CONVERT: return NULL;
    default: return ir_is_elementwise(opcode) ? alike : NULL;
    }
}

AmStatus ir_infer_shape(IrTextReader *reader, Hlo__HloInstructionProto *instruction, int64_t start) {
    Inference self = {reader, instruction, start};
    InferFunction *function = function_of(ir_opcode_from_name(instruction->opcode));
    if (!function)
        return ir_scan_fail(&reader->scanner, start, "expected the shape of the result before '%s'",
                            instruction->opcode);
    return function(&self);
}

AmStatus ir_set_transfer_shape(IrTextReader *reader, Hlo__HloInstructionProto *instruction) {
    Inference self = {reader, instruction, reader->scanner.at};
    Arena *arena = reader->scanner.arena;
    IrOpcode opcode = ir_opcode_from_name(instruction->opcode);
    bool is_start = opcode == IR_SEND || opcode == IR_RECV;
    if (!is_start && opcode != IR_RECV_DONE && opcode != IR_SEND_DONE) return AM_OK;
    const Hlo__ShapeProto *from = opcode == IR_RECV ? instruction->shape : operand(&self, 0);
    Hlo__ShapeProto *token = ir_new_message(arena, &hlo__shape_proto__descriptor);
    if (!token) return ir_scan_memory(&reader->scanner);
    token->element_type = HLO__PRIMITIVE_TYPE__TOKEN;
    if (opcode == IR_SEND_DONE) return set_shape(&self, token);
    if (!from || (opcode != IR_SEND && from->n_tuple_shapes == 0)) return AM_OK; /* the verifier refuses it */
    Hlo__ShapeProto *tuple = new_tuple(&self, is_start ? 3 : 2);
    if (!tuple) return ir_scan_memory(&reader->scanner);
    Hlo__ShapeProto *data = opcode == IR_SEND ? operand(&self, 0) : from->tuple_shapes[0];
    tuple->tuple_shapes[0] = data;
    tuple->tuple_shapes[is_start ? 2 : 1] = token;
    if (is_start) tuple->tuple_shapes[1] = ir_new_array_shape(arena, DTYPE_U32, 0, NULL, NULL);
    return set_shape(&self, tuple->tuple_shapes[1] ? tuple : NULL);
}
