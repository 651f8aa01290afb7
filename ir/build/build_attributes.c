/* Converts the attributes of a message to IrAttributes: one function per group of fields, and one
 * row per opcode with attributes. Arrays point into the message. A missing factor (stride,
 * dilation, group count) is 1.
 */
#include "ir/build/build_parts.h"

typedef struct Filler {
    const Builder *builder;
    IrAttributes *attributes;
    const Hlo__HloInstructionProto *message;
} Filler;

typedef AmStatus FillFunction(const Filler *filler);

static const IrAttributes no_attributes;

static int64_t at_least_one(int64_t value) {
    return value == 0 ? 1 : value;
}

static AmStatus out_of_memory(const Filler *filler, size_t bytes) {
    return am_fail_memory(filler->builder->error, (int64_t)bytes);
}

static AmStatus fill_dot(const Filler *filler) {
    const Hlo__DotDimensionNumbers *numbers = filler->message->dot_dimension_numbers;
    IrDot *dot = ARENA_ARRAY(filler->builder->arena, IrDot, 1);
    if (dot == NULL) return out_of_memory(filler, sizeof *dot);
    filler->attributes->dot = dot;
    if (numbers == NULL) return AM_OK;
    if (numbers->n_lhs_batch_dimensions != numbers->n_rhs_batch_dimensions ||
        numbers->n_lhs_contracting_dimensions != numbers->n_rhs_contracting_dimensions) {
        return build_refuse(filler->builder, filler->message,
                            "its left and right sides name different numbers of dimensions to pair");
    }
    dot->batch_count = (int32_t)numbers->n_lhs_batch_dimensions;
    dot->contracting_count = (int32_t)numbers->n_lhs_contracting_dimensions;
    dot->lhs_batch = numbers->lhs_batch_dimensions;
    dot->rhs_batch = numbers->rhs_batch_dimensions;
    dot->lhs_contracting = numbers->lhs_contracting_dimensions;
    dot->rhs_contracting = numbers->rhs_contracting_dimensions;
    return AM_OK;
}

static AmStatus fill_window(const Filler *filler) {
    const Hlo__Window *message = filler->message->window;
    size_t count = message ? message->n_dimensions : 0;
    if (count > IR_MAX_RANK)
        return build_refuse(filler->builder, filler->message, "its window has %zu dimensions", count);
    IrWindowDimension *window = ARENA_ARRAY(filler->builder->arena, IrWindowDimension, count);
    if (window == NULL) return out_of_memory(filler, count * sizeof *window);
    for (size_t i = 0; i < count; i++) {
        const Hlo__WindowDimension *from = message->dimensions[i];
        window[i] = (IrWindowDimension){
            .size = from->size,
            .stride = at_least_one(from->stride),
            .padding_low = from->padding_low,
            .padding_high = from->padding_high,
            .window_dilation = at_least_one(from->window_dilation),
            .base_dilation = at_least_one(from->base_dilation),
            .reversal = from->window_reversal,
        };
        if (from->size < 0 || window[i].stride < 1 || window[i].window_dilation < 1 ||
            window[i].base_dilation < 1) {
            return build_refuse(filler->builder, filler->message,
                                "dimension %zu of its window has a negative size, stride or dilation", i);
        }
    }
    filler->attributes->window_count = (int32_t)count;
    filler->attributes->window = window;
    return AM_OK;
}

static AmStatus fill_convolution(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    const Hlo__ConvolutionDimensionNumbers *numbers = message->convolution_dimension_numbers;
    TRY(fill_window(filler));
    IrConvolution *convolution = ARENA_ARRAY(filler->builder->arena, IrConvolution, 1);
    if (convolution == NULL) return out_of_memory(filler, sizeof *convolution);
    filler->attributes->convolution = convolution;
    if (numbers == NULL)
        return build_refuse(filler->builder, message, "it has no convolution dimension numbers");
    size_t spatial = numbers->n_input_spatial_dimensions;
    if (spatial != numbers->n_kernel_spatial_dimensions || spatial != numbers->n_output_spatial_dimensions) {
        return build_refuse(filler->builder, message,
                            "its input, kernel and output have different numbers of spatial dimensions");
    }
    if (spatial != (size_t)filler->attributes->window_count) {
        return build_refuse(filler->builder, message, "its window has %d dimensions, expected %zu",
                            filler->attributes->window_count, spatial);
    }
    *convolution = (IrConvolution){
        .input_batch = numbers->input_batch_dimension,
        .input_feature = numbers->input_feature_dimension,
        .kernel_input_feature = numbers->kernel_input_feature_dimension,
        .kernel_output_feature = numbers->kernel_output_feature_dimension,
        .output_batch = numbers->output_batch_dimension,
        .output_feature = numbers->output_feature_dimension,
        .spatial_count = (int32_t)spatial,
        .input_spatial = numbers->input_spatial_dimensions,
        .kernel_spatial = numbers->kernel_spatial_dimensions,
        .output_spatial = numbers->output_spatial_dimensions,
        .feature_group_count = at_least_one(message->feature_group_count),
        .batch_group_count = at_least_one(message->batch_group_count),
    };
    if (convolution->feature_group_count < 1 || convolution->batch_group_count < 1) {
        return build_refuse(filler->builder, message, "it has a negative number of groups");
    }
    return AM_OK;
}

static AmStatus fill_gather(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    const Hlo__GatherDimensionNumbers *numbers = message->gather_dimension_numbers;
    IrGather *gather = ARENA_ARRAY(filler->builder->arena, IrGather, 1);
    if (gather == NULL) return out_of_memory(filler, sizeof *gather);
    filler->attributes->gather = gather;
    filler->attributes->indices_are_sorted = message->indices_are_sorted;
    if (numbers == NULL) return build_refuse(filler->builder, message, "it has no gather dimension numbers");
    if (numbers->n_operand_batching_dims != numbers->n_start_indices_batching_dims) {
        return build_refuse(filler->builder, message,
                            "its operand and indices have different batching dimensions");
    }
    *gather = (IrGather){
        .offset_count = (int32_t)numbers->n_offset_dims,
        .collapsed_count = (int32_t)numbers->n_collapsed_slice_dims,
        .index_map_count = (int32_t)numbers->n_start_index_map,
        .batching_count = (int32_t)numbers->n_operand_batching_dims,
        .offset_dimensions = numbers->offset_dims,
        .collapsed_dimensions = numbers->collapsed_slice_dims,
        .start_index_map = numbers->start_index_map,
        .operand_batching = numbers->operand_batching_dims,
        .indices_batching = numbers->start_indices_batching_dims,
        .index_vector_dimension = numbers->index_vector_dim,
        .slice_sizes = message->gather_slice_sizes,
    };
    /* That there is one slice size per dimension of the operand is checked here,
     * where their number is known: dimensions are either offset, collapsed or batching. */
    size_t rank = numbers->n_offset_dims + numbers->n_collapsed_slice_dims + numbers->n_operand_batching_dims;
    if (message->n_gather_slice_sizes != rank) {
        return build_refuse(filler->builder, message, "it has %zu slice sizes, expected %zu",
                            message->n_gather_slice_sizes, rank);
    }
    return AM_OK;
}

static AmStatus fill_scatter(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    const Hlo__ScatterDimensionNumbers *numbers = message->scatter_dimension_numbers;
    IrGather *scatter = ARENA_ARRAY(filler->builder->arena, IrGather, 1);
    if (scatter == NULL) return out_of_memory(filler, sizeof *scatter);
    filler->attributes->gather = scatter;
    filler->attributes->indices_are_sorted = message->indices_are_sorted;
    filler->attributes->unique_indices = message->unique_indices;
    if (numbers == NULL) return build_refuse(filler->builder, message, "it has no scatter dimension numbers");
    if (numbers->n_input_batching_dims != numbers->n_scatter_indices_batching_dims) {
        return build_refuse(filler->builder, message,
                            "its operand and indices have different batching dimensions");
    }
    *scatter = (IrGather){
        .offset_count = (int32_t)numbers->n_update_window_dims,
        .collapsed_count = (int32_t)numbers->n_inserted_window_dims,
        .index_map_count = (int32_t)numbers->n_scatter_dims_to_operand_dims,
        .batching_count = (int32_t)numbers->n_input_batching_dims,
        .offset_dimensions = numbers->update_window_dims,
        .collapsed_dimensions = numbers->inserted_window_dims,
        .start_index_map = numbers->scatter_dims_to_operand_dims,
        .operand_batching = numbers->input_batching_dims,
        .indices_batching = numbers->scatter_indices_batching_dims,
        .index_vector_dimension = numbers->index_vector_dim,
    };
    return AM_OK;
}

static AmStatus fill_padding(const Filler *filler) {
    const Hlo__PaddingConfig *message = filler->message->padding_config;
    size_t count = message ? message->n_dimensions : 0;
    if (count != filler->message->shape->n_dimensions) {
        return build_refuse(filler->builder, filler->message,
                            "it has padding for %zu dimensions, expected %zu", count,
                            filler->message->shape->n_dimensions);
    }
    IrPadding *padding = ARENA_ARRAY(filler->builder->arena, IrPadding, count);
    if (padding == NULL) return out_of_memory(filler, count * sizeof *padding);
    for (size_t i = 0; i < count; i++) {
        const Hlo__PaddingConfig__PaddingConfigDimension *from = message->dimensions[i];
        padding[i] = (IrPadding){from->edge_padding_low, from->edge_padding_high, from->interior_padding};
        if (padding[i].interior < 0) {
            return build_refuse(filler->builder, filler->message, "it has negative interior padding");
        }
    }
    filler->attributes->padding = padding;
    return AM_OK;
}

static AmStatus fill_slice(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    size_t count = message->n_slice_dimensions;
    if (count != message->shape->n_dimensions) {
        return build_refuse(filler->builder, message, "it slices %zu dimensions, expected %zu", count,
                            message->shape->n_dimensions);
    }
    int64_t *values = ARENA_ARRAY(filler->builder->arena, int64_t, 3 * count);
    if (values == NULL) return out_of_memory(filler, 3 * count * sizeof *values);
    int64_t *start = values, *limit = values + count, *stride = values + 2 * count;
    for (size_t i = 0; i < count; i++) {
        start[i] = message->slice_dimensions[i]->start;
        limit[i] = message->slice_dimensions[i]->limit;
        stride[i] = at_least_one(message->slice_dimensions[i]->stride);
        if (start[i] < 0 || limit[i] < start[i] || stride[i] < 1) {
            return build_refuse(filler->builder, message,
                                "it slices [%lld:%lld:%lld], expected 0 <= start <= limit",
                                (long long)start[i], (long long)limit[i], (long long)stride[i]);
        }
    }
    filler->attributes->slice_start = start;
    filler->attributes->slice_limit = limit;
    filler->attributes->slice_stride = stride;
    return AM_OK;
}

static AmStatus fill_dynamic_slice(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    if (message->n_dynamic_slice_sizes != message->shape->n_dimensions) {
        return build_refuse(filler->builder, message, "it has %zu slice sizes, expected %zu",
                            message->n_dynamic_slice_sizes, message->shape->n_dimensions);
    }
    filler->attributes->slice_sizes = message->dynamic_slice_sizes;
    return AM_OK;
}

static AmStatus fill_compare(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    filler->attributes->comparison = message->comparison_direction;
    filler->attributes->comparison_type = message->comparison_type[0] ? message->comparison_type : NULL;
    return AM_OK;
}

static AmStatus fill_tuple_index(const Filler *filler) {
    filler->attributes->tuple_index = filler->message->tuple_index;
    return AM_OK;
}

static AmStatus fill_parameter(const Filler *filler) {
    filler->attributes->parameter_number = filler->message->parameter_number;
    return AM_OK;
}

static AmStatus fill_custom_call(const Filler *filler) {
    filler->attributes->custom_call_target = filler->message->custom_call_target;
    return AM_OK;
}

static AmStatus fill_sort(const Filler *filler) {
    filler->attributes->is_stable = filler->message->is_stable;
    return AM_OK;
}

static AmStatus fill_precision(const Filler *filler) {
    filler->attributes->exponent_bits = filler->message->exponent_bits;
    filler->attributes->mantissa_bits = filler->message->mantissa_bits;
    return AM_OK;
}

static AmStatus fill_options(const Filler *filler) {
    const Hlo__HloInstructionProto *message = filler->message;
    const Hlo__TriangularSolveOptions *solve = message->triangular_solve_options;
    IrOptions *options = ARENA_ARRAY(filler->builder->arena, IrOptions, 1);
    if (options == NULL) return out_of_memory(filler, sizeof *options);
    *options = (IrOptions){.largest = message->largest,
                           .lower = message->cholesky_options && message->cholesky_options->lower,
                           .random = (IrRandomAlgorithm)message->rng_algorithm,
                           .epsilon = message->epsilon,
                           .feature_index = message->feature_index,
                           .fft_type = (IrFftType)message->fft_type,
                           .fft_rank = (int32_t)message->n_fft_length,
                           .fft_length = message->fft_length};
    if (solve != NULL) {
        options->lower = solve->lower;
        options->left_side = solve->left_side;
        options->unit_diagonal = solve->unit_diagonal;
        options->is_transposed = solve->transpose_a == HLO__TRIANGULAR_SOLVE_OPTIONS__TRANSPOSE__TRANSPOSE ||
                                 solve->transpose_a == HLO__TRIANGULAR_SOLVE_OPTIONS__TRANSPOSE__ADJOINT;
        options->adjoint = solve->transpose_a == HLO__TRIANGULAR_SOLVE_OPTIONS__TRANSPOSE__ADJOINT;
    }
    filler->attributes->options = options;
    return AM_OK;
}

static FillFunction *const fillers[IR_OPCODE_COUNT + 1] = {
    [IR_BATCH_NORM_GRAD] = fill_options,
    [IR_BATCH_NORM_INFERENCE] = fill_options,
    [IR_BATCH_NORM_TRAINING] = fill_options,
    [IR_CHOLESKY] = fill_options,
    [IR_COMPARE] = fill_compare,
    [IR_CONVOLUTION] = fill_convolution,
    [IR_CUSTOM_CALL] = fill_custom_call,
    [IR_DOT] = fill_dot,
    [IR_DYNAMIC_SLICE] = fill_dynamic_slice,
    [IR_FFT] = fill_options,
    [IR_GATHER] = fill_gather,
    [IR_GET_TUPLE_ELEMENT] = fill_tuple_index,
    [IR_PAD] = fill_padding,
    [IR_PARAMETER] = fill_parameter,
    [IR_REDUCE_PRECISION] = fill_precision,
    [IR_REDUCE_WINDOW] = fill_window,
    [IR_RNG_BIT_GENERATOR] = fill_options,
    [IR_SCATTER] = fill_scatter,
    [IR_SELECT_AND_SCATTER] = fill_window,
    [IR_SLICE] = fill_slice,
    [IR_SORT] = fill_sort,
    [IR_TOPK] = fill_options,
    [IR_TRIANGULAR_SOLVE] = fill_options,
};

AmStatus build_attributes(const Builder *builder, const IrAttributes **attributes, IrOpcode opcode,
                          const Hlo__HloInstructionProto *message) {
    *attributes = &no_attributes;
    FillFunction *fill = fillers[opcode];
    bool takes_dimensions = ir_opcode_has(opcode, FACT_DIMENSIONS) && message->n_dimensions > 0;
    if (fill == NULL && !takes_dimensions) return AM_OK;
    IrAttributes *built = ARENA_ARRAY(builder->arena, IrAttributes, 1);
    if (built == NULL) return am_fail_memory(builder->error, sizeof *built);
    if (takes_dimensions) {
        built->dimension_count = (int32_t)message->n_dimensions;
        built->dimensions = message->dimensions;
    }
    *attributes = built;
    return fill ? fill(&(Filler){builder, built, message}) : AM_OK;
}
