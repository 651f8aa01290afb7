/* ragged-dot: one thread for each element of the result, which adds up its
 * products in the order of executor/cpu/matmul/ragged_dot.c.
 *
 * Ragged and free: the thread finds the group that its row is in, whose matrix of
 * the right side it reads; rows after the last group are 0. Ragged and
 * contracted: the thread adds up the part of the sum that is its group's.
 */
#include "executor/cpu/matmul/ragged_dot.h"

#include "executor/array/scalar64.h"
#include "executor/cuda/codegen/source_fold.h"

/* Appends "end": the end of group number "group"; sizes that reach over `length` are cut. */
static void append_next_group(Text *out, const KernelCall *call, int64_t length) {
    text_append_string(out, "        const s64 size = greatest_of(");
    cuda_append_index_load(out, call->operand_shapes[2]->type, 2, "group");
    text_append(out,
                ", 0ll);\n"
                "        end = size > %lldll - end ? %lldll : end + size;\n",
                (long long)length, (long long)length);
}

/* Finds the group of this thread: "group" and "end", and "start" where the group is a part of the sum. */
static void append_group(Text *out, const KernelCall *call, const RaggedDot *form) {
    text_append_string(out, "    s64 end = 0, group = 0;\n");
    if (form->contracts) {
        text_append_string(out, "    s64 start = 0;\n"
                                "    for (; group <= d0; group++) {\n"
                                "        start = end;\n");
        append_next_group(out, call, form->contracted[form->ragged]);
        text_append_string(out, "    }\n");
        return;
    }
    text_append(out, "    for (; group < %lldll; group++) {\n", (long long)form->groups);
    append_next_group(out, call, form->result[form->ragged]);
    text_append(out, "        if (d%d < end) break;\n    }\n", form->ragged);
    text_append(out, "    if (group == %lldll) {\n        out0[i] = 0;\n        return;\n    }\n",
                (long long)form->groups);
}

AmStatus cuda_source_ragged_dot(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *result = call->result_shapes[0];
    RaggedDot form = {0};
    Text body = {0};
    TRY(ragged_dot_read(&form, call, error));
    for (int32_t k = 0; k < 3; k++)
        if (!cuda_has_arithmetic(call->operand_shapes[k]->type) ||
            call->operand_shapes[k]->type == DTYPE_PRED)
            return kernel_call_refuse(call, "not on these types", error);
    int64_t elements = ir_shape_elements(result);
    if (elements == 0) return AM_OK;
    Scalar64Kind kind = scalar64_kind(result->type);
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, elements);
    /* Integers wrap, so they are added up without a sign. */
    text_append(&body, "    typedef %s Scalar64;\n", kind == SCALAR64_FLOATING ? "f64" : "u64");
    cuda_append_coordinates(&body, "d", form.result, form.result_rank);
    append_group(&body, call, &form);
    text_append_string(&body, "    const s64 left_at = ");
    cuda_append_dot(&body, "d", form.left, form.result_rank);
    text_append_string(&body, ", right_at = ");
    cuda_append_dot(&body, "d", form.right, form.result_rank);
    if (!form.contracts) text_append(&body, " + group * %lldll", (long long)form.group_stride);
    text_append_string(&body, ";\n    Scalar64 sum = 0;\n");
    /* Adds up "sum" over the contracted dimensions c0, c1, ... */
    for (int32_t d = 0; d < form.contracted_rank; d++) {
        bool is_ragged = form.contracts && d == form.ragged;
        text_append(&body, "    for (s64 c%d = %s; c%d < ", d, is_ragged ? "start" : "0", d);
        if (is_ragged) text_append(&body, "end; c%d++)\n", d);
        else text_append(&body, "%lldll; c%d++)\n", (long long)form.contracted[d], d);
    }
    text_append_string(&body, "    {\n        const s64 left = left_at + ");
    cuda_append_dot(&body, "c", form.contracted_left, form.contracted_rank);
    text_append_string(&body, ", right = right_at + ");
    cuda_append_dot(&body, "c", form.contracted_right, form.contracted_rank);
    text_append_string(&body, ";\n        sum = sum + (Scalar64)");
    cuda_append_element(&body, call->operand_shapes[0]->type, "in0", "left");
    text_append_string(&body, " * (Scalar64)");
    cuda_append_element(&body, call->operand_shapes[1]->type, "in1", "right");
    text_append_string(&body, ";\n    }\n");
    text_append_string(&body, "    out0[i] = ");
    cuda_append_narrow(&body, result->type, kind == SCALAR64_FLOATING ? SCALAR64_FLOATING : SCALAR64_UNSIGNED,
                       "sum");
    text_append_string(&body, ";\n}\n");
    return cuda_source_launch(source, "ragged_dot", &body, cuda_blocks(elements), CUDA_THREADS, error);
}
