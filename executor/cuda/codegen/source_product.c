/* Generated kernels that sum products: dot, and the code that it shares with others, where the libraries
 * have no kernel. */
#include "executor/cuda/codegen/source_product.h"

#include <stdio.h>

#include "base/int_list.h"
#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_text.h"

Dtype cuda_product_type(Dtype left, Dtype right, Dtype result) {
    if (!cuda_has_arithmetic(left) || !cuda_has_arithmetic(right) || !cuda_has_arithmetic(result))
        return DTYPE_INVALID;
    if (left == DTYPE_F64 || right == DTYPE_F64 || result == DTYPE_F64) return DTYPE_F64;
    return dtype_is_floating(result) ? DTYPE_F32 : DTYPE_S64;
}

void cuda_append_result_index(Text *out, const KernelCall *call) {
    const IrShape *shape = call->result_shapes[0];
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, shape->dimensions, shape->rank);
    text_append(out, "    const s64 i = (s64)blockIdx.x * %d + threadIdx.x;\n", CUDA_THREADS);
    text_append(out, "    if (i >= %lldll) return;\n", (long long)ir_shape_elements(shape));
    for (int32_t d = 0; d < shape->rank; d++)
        text_append(out, "    const s64 d%d = i / %lldll %% %lldll;\n", d, (long long)strides[d],
                    (long long)shape->dimensions[d]);
}

void cuda_append_sum(Text *out, Dtype product) {
    text_append(out, "    %s sum = 0;\n", product == DTYPE_S64 ? "u64" : "f64");
}

/* Appends "const f32 x0 = ...;": element at0 of operand 0 in the type of the product. */
static void append_operand(Text *out, const KernelCall *call, int32_t k, Dtype product) {
    Dtype type = call->operand_shapes[k]->type;
    char name[16], element[32];
    snprintf(name, sizeof name, "m%d", k);
    snprintf(element, sizeof element, "in%d[at%d]", k, k);
    text_append(out, "const %s m%d = ", cuda_value_type(type), k);
    cuda_append_load(out, type, element);
    text_append(out, "; const %s x%d = ", cuda_value_type(product), k);
    cuda_append_convert(out, type, product, name);
    text_append_string(out, "; ");
}

void cuda_append_product(Text *out, const KernelCall *call, Dtype product) {
    const char *type = product == DTYPE_S64 ? "u64" : "f64";
    text_append_string(out, "{ ");
    append_operand(out, call, 0, product);
    append_operand(out, call, 1, product);
    text_append(out, "sum += (%s)x0 * (%s)x1; }\n", type, type);
}

void cuda_append_result(Text *out, const KernelCall *call, Dtype product) {
    Text value = {0};
    Dtype type = call->result_shapes[0]->type;
    bool has_addend = ir_is_matrix_product(call->instruction->opcode) && call->operand_count > 2; /* f32 */
    text_append(out, "    const %s rounded = (%s)sum;\n    out0[i] = ", cuda_value_type(product),
                cuda_value_type(product));
    if (has_addend) text_append_string(&value, "in2[i] + ");
    cuda_append_convert(&value, product, type, "rounded");
    if (value.failed) out->failed = true;
    else cuda_append_store(out, type, value.data);
    text_append_string(out, ";\n}\n");
    text_free(&value);
}

/* Returns the result's dimension that is number `natural` of [batch, left free, right free]. */
static int32_t result_dimension(const IrAttributes *attributes, int32_t natural) {
    if (attributes->dimension_count == 0) return natural;
    return int_list_place(attributes->dimensions, attributes->dimension_count, natural);
}

/* Appends "s64 base0 = d0 * 12ll + d2 * 3ll;": the begin of an operand's part of the result's element.
 * `free_from`: the natural number of the result's first dimension that is the operand's own. */
static void append_base(Text *out, const KernelCall *call, int32_t operand, const int64_t *batch,
                        const int64_t *contracting, int32_t free_from) {
    const IrAttributes *attributes = call->attributes;
    const IrShape *shape = call->operand_shapes[operand];
    int32_t batch_count = attributes->dot->batch_count,
            contracting_count = attributes->dot->contracting_count;
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, shape->dimensions, shape->rank);
    text_append(out, "    const s64 base%d = 0", operand);
    for (int32_t d = 0; d < shape->rank; d++) {
        if (int_list_place(contracting, contracting_count, d) >= 0) continue;
        int32_t b = int_list_place(batch, batch_count, d);
        text_append(out, " + d%d * %lldll", result_dimension(attributes, b >= 0 ? b : free_from++),
                    (long long)strides[d]);
    }
    text_append_string(out, ";\n");
}

static void append_place(Text *out, const IrShape *shape, int32_t operand, const int64_t *contracting,
                         int32_t count) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, shape->dimensions, shape->rank);
    text_append(out, "    const s64 at%d = base%d", operand, operand);
    for (int32_t k = 0; k < count; k++)
        text_append(out, " + k%d * %lldll", k, (long long)strides[contracting[k]]);
    text_append_string(out, ";\n");
}

AmStatus cuda_source_dot(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    const IrDot *dot = call->attributes->dot;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    int64_t elements = ir_shape_elements(call->result_shapes[0]);
    Dtype product = cuda_product_type(left->type, right->type, call->result_shapes[0]->type);
    if (!dot || product == DTYPE_INVALID) return kernel_call_refuse(call, "not on these types", error);
    *source = (CudaSource){.arena = arena, .parameters = call->operand_count + call->result_count};
    int32_t left_free = left->rank - dot->batch_count - dot->contracting_count;
    Text body = {0};
    cuda_append_signature(&body, call, source, NULL, false);
    if (elements > 0) {
        cuda_append_result_index(&body, call);
        append_base(&body, call, 0, dot->lhs_batch, dot->lhs_contracting, dot->batch_count);
        append_base(&body, call, 1, dot->rhs_batch, dot->rhs_contracting, dot->batch_count + left_free);
        cuda_append_sum(&body, product);
        for (int32_t k = 0; k < dot->contracting_count; k++)
            text_append(&body, "    for (s64 k%d = 0; k%d < %lldll; k%d++)%s\n", k, k,
                        (long long)left->dimensions[dot->lhs_contracting[k]], k,
                        k + 1 == dot->contracting_count ? " {" : "");
        append_place(&body, left, 0, dot->lhs_contracting, dot->contracting_count);
        append_place(&body, right, 1, dot->rhs_contracting, dot->contracting_count);
        text_append_string(&body, "    ");
        cuda_append_product(&body, call, product);
        if (dot->contracting_count > 0) text_append_string(&body, "    }\n");
        cuda_append_result(&body, call, product);
    }
    return cuda_source_launch(source, "dot", &body, cuda_blocks(elements), CUDA_THREADS, error);
}
