/* Dots and convolutions in tests: hand-made and random ones, filled with values
 * whose sums are exact, so that every order of summing gives the same bits. */
#ifndef TESTS_SUPPORT_PRODUCT_CASE_H
#define TESTS_SUPPORT_PRODUCT_CASE_H

#include "base/random.h"
#include "kernel_case.h"

/* Whole numbers in [-3, 3]; pred 0 or 1; unsigned types in [0, 3]. */
static inline void product_fill(KernelCase *self, int32_t v, Random *random) {
    const IrShape *shape = &self->values[v].shape;
    for (int64_t i = 0; i < ir_shape_elements(shape); i++) {
        int64_t value = (int64_t)random_below(random, 7) - 3;
        char *to = (char *)self->memory[v] + i * dtype_bytes(shape->type);
        float narrow = (float)value;
        double wide = (double)value;
        uint16_t half = shape->type == DTYPE_BF16 ? dtype_float_to_bf16(narrow) : dtype_float_to_f16(narrow);
        uint8_t truth = value > 0;
        switch (shape->type) {
        case DTYPE_F32: memcpy(to, &narrow, sizeof narrow); break;
        case DTYPE_F64: memcpy(to, &wide, sizeof wide); break;
        case DTYPE_BF16:
        case DTYPE_F16: memcpy(to, &half, sizeof half); break;
        case DTYPE_PRED: memcpy(to, &truth, sizeof truth); break;
        default:
            if (!dtype_is_signed(shape->type) && value < 0) value = -value;
            memcpy(to, &value, (size_t)dtype_bytes(shape->type));
        }
    }
}

/* Two operands and a result are there: names them to the instruction and fills the operands. */
static inline KernelCase *product_finish(KernelCase *self, Random *random) {
    self->instruction.operands = (int32_t *)ARENA_ARRAY(&self->arena, int32_t, 2);
    ((int32_t *)self->instruction.operands)[1] = 1;
    self->instruction.operand_count = 2;
    self->instruction.first_result = 2;
    self->instruction.result_count = 1;
    product_fill(self, 0, random);
    product_fill(self, 1, random);
    return self;
}

/* A third operand, which is added to the product: value 3. */
static inline KernelCase *product_add_addend(KernelCase *self, Random *random) {
    const IrShape *result = &self->values[2].shape;
    int32_t *list = ARENA_ARRAY(&self->arena, int32_t, 3);
    list[1] = 1;
    list[2] = case_value(self, result->type, result->rank, result->dimensions);
    self->instruction.operands = list;
    self->instruction.operand_count = 3;
    product_fill(self, list[2], random);
    return self;
}

typedef struct DotCase {
    const char *name;
    Dtype left_type, right_type, result_type;
    int64_t left[5], right[5]; /* 0 ends them */
    int32_t batch_count, contracting_count;
    int64_t left_batch[3], right_batch[3], left_contracting[3], right_contracting[3];
    int32_t products, kernels; /* of cuBLASLt, and generated ones, that it takes on a GPU */
} DotCase;

static inline bool product_names(const int64_t *list, int32_t count, int64_t d) {
    for (int32_t k = 0; k < count; k++)
        if (list[k] == d) return true;
    return false;
}

static inline int32_t product_rank(const int64_t *dimensions, int32_t most) {
    int32_t rank = 0;
    while (rank < most && dimensions[rank] >= 0 && dimensions[rank] != 0) rank++;
    return rank;
}

/* The result's shape follows from the rest. */
static inline KernelCase *dot_case(const DotCase *row, Random *random) {
    KernelCase *self = case_new(IR_DOT);
    int32_t left_rank = product_rank(row->left, 5), right_rank = product_rank(row->right, 5), rank = 0;
    int64_t result[IR_MAX_RANK];
    for (int32_t k = 0; k < row->batch_count; k++) result[rank++] = row->left[row->left_batch[k]];
    for (int32_t d = 0; d < left_rank; d++)
        if (!product_names(row->left_batch, row->batch_count, d) &&
            !product_names(row->left_contracting, row->contracting_count, d))
            result[rank++] = row->left[d];
    for (int32_t d = 0; d < right_rank; d++)
        if (!product_names(row->right_batch, row->batch_count, d) &&
            !product_names(row->right_contracting, row->contracting_count, d))
            result[rank++] = row->right[d];
    case_value(self, row->left_type, left_rank, row->left);
    case_value(self, row->right_type, right_rank, row->right);
    case_value(self, row->result_type, rank, result);
    IrDot *dot = ARENA_ARRAY(&self->arena, IrDot, 1);
    *dot = (IrDot){.batch_count = row->batch_count,
                   .contracting_count = row->contracting_count,
                   .lhs_batch = case_list(self, row->batch_count, row->left_batch),
                   .rhs_batch = case_list(self, row->batch_count, row->right_batch),
                   .lhs_contracting = case_list(self, row->contracting_count, row->left_contracting),
                   .rhs_contracting = case_list(self, row->contracting_count, row->right_contracting)};
    self->attributes = (IrAttributes){.dot = dot};
    return product_finish(self, random);
}

/* Labels as in HLO: "b01f", "01io", "b01f"; sizes of the window come from the kernel. */
typedef struct ConvolutionCase {
    const char *name;
    Dtype type, kernel_type, result_type;
    const char *input_labels, *kernel_labels, *output_labels;
    int64_t input[5], kernel[5];
    IrWindowDimension window[3];          /* zero strides and dilations are 1 */
    int64_t feature_groups, batch_groups; /* 0: 1 */
    const char *form;                     /* cuDNN's function; NULL: none */
    int32_t kernels;                      /* generated ones that it takes on a GPU */
} ConvolutionCase;

static inline int64_t label_at(const char *labels, char label) {
    const char *at = strchr(labels, label);
    return at ? at - labels : -1;
}

static inline KernelCase *convolution_case(const ConvolutionCase *row, Random *random) {
    KernelCase *self = case_new(IR_CONVOLUTION);
    int32_t rank = (int32_t)strlen(row->input_labels), spatial = rank - 2;
    IrConvolution *form = ARENA_ARRAY(&self->arena, IrConvolution, 1);
    IrWindowDimension *window = ARENA_ARRAY(&self->arena, IrWindowDimension, spatial + 1);
    int64_t at[3][3], output[5];
    *form = (IrConvolution){.input_batch = label_at(row->input_labels, 'b'),
                            .input_feature = label_at(row->input_labels, 'f'),
                            .kernel_input_feature = label_at(row->kernel_labels, 'i'),
                            .kernel_output_feature = label_at(row->kernel_labels, 'o'),
                            .output_batch = label_at(row->output_labels, 'b'),
                            .output_feature = label_at(row->output_labels, 'f'),
                            .spatial_count = spatial,
                            .feature_group_count = row->feature_groups ? row->feature_groups : 1,
                            .batch_group_count = row->batch_groups ? row->batch_groups : 1};
    output[form->output_batch] = row->input[form->input_batch] / form->batch_group_count;
    output[form->output_feature] = row->kernel[form->kernel_output_feature];
    for (int32_t s = 0; s < spatial; s++) {
        char label = (char)('0' + s);
        at[0][s] = label_at(row->input_labels, label);
        at[1][s] = label_at(row->kernel_labels, label);
        at[2][s] = label_at(row->output_labels, label);
        window[s] = row->window[s];
        window[s].size = row->kernel[at[1][s]];
        if (window[s].stride < 1) window[s].stride = 1;
        if (window[s].base_dilation < 1) window[s].base_dilation = 1;
        if (window[s].window_dilation < 1) window[s].window_dilation = 1;
        int64_t room = (row->input[at[0][s]] - 1) * window[s].base_dilation + 1 + window[s].padding_low +
                       window[s].padding_high - ((window[s].size - 1) * window[s].window_dilation + 1);
        output[at[2][s]] = room / window[s].stride + 1;
    }
    form->input_spatial = case_list(self, spatial, at[0]);
    form->kernel_spatial = case_list(self, spatial, at[1]);
    form->output_spatial = case_list(self, spatial, at[2]);
    case_value(self, row->type, rank, row->input);
    case_value(self, row->kernel_type ? row->kernel_type : row->type, rank, row->kernel);
    case_value(self, row->result_type ? row->result_type : row->type, rank, output);
    self->attributes = (IrAttributes){.convolution = form, .window = window, .window_count = spatial};
    return product_finish(self, random);
}

#endif
