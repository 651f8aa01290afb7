/* Reductions: with a single operator (add, max, ...) they are folds in lanes
 * (source_fold.h) that begin with the initial value. Any other computation, as
 * that of an argmax, is folded by one thread per result in the CPU's order.
 */
#include <stdio.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_fold.h"

/* Appends the element and the statements after the fold of a reduction by one operator. */
static void append_operands(Text *element, Text *finish, CudaFold *fold, Dtype type) {
    text_append_string(element, "(Scalar64)");
    cuda_append_element(element, type, "in0", "place");
    text_append_string(finish, "    const Scalar64 initial = (Scalar64)");
    cuda_append_element(finish, type, "in1", "0");
    text_append_string(finish, ", sum = ");
    fold->kind = scalar64_kind(type);
    cuda_append_combination(finish, fold, "initial", "value0");
    text_append_string(finish, ";\n    out0[result] = ");
    cuda_append_narrow(finish, type, fold->kind, "sum");
    text_append_string(finish, ";\n");
    fold->value_count = 1;
    fold->elements[0] = element->data;
}

/* Appends the loop over the reduced elements: values v0.. are the accumulators, then the elements. */
static bool append_loop(Text *out, const CudaFold *self, const ElementComputation *body, Dtype *types) {
    int32_t count = body->output_count;
    text_append(out, "    for (s64 k = 0; k < %lldll; k++) {\n        const s64 place = base + ",
                (long long)self->reduced_count);
    if (self->reduced_count == 0) text_append_string(out, "0");
    else cuda_append_offset(out, "k", "ll", self->reduced, self->reduced_strides, self->reduced_rank);
    text_append_string(out, ";\n");
    for (int32_t slot = 0; slot < 2 * count; slot++) {
        types[slot] = body->input_types[slot];
        text_append(out, "        const %s v%d = ", cuda_value_type(types[slot]), slot);
        char array[32];
        snprintf(array, sizeof array, "in%d", slot - count);
        if (slot < count) text_append(out, "sum%d", slot);
        else cuda_append_element(out, types[slot], array, "place");
        text_append_string(out, ";\n");
    }
    for (int32_t k = 0; k < body->op_count; k++) {
        text_append_string(out, "        ");
        if (!cuda_append_operator(out, &body->ops[k], 2 * count + k, types, NULL)) return false;
    }
    for (int32_t k = 0; k < count; k++) text_append(out, "        sum%d = v%d;\n", k, body->output_slots[k]);
    text_append_string(out, "    }\n");
    return true;
}

static bool fits(const ElementComputation *body, const KernelCall *call) {
    int32_t count = call->result_count;
    if (body->input_count != 2 * count || body->output_count != count || call->operand_count != 2 * count)
        return false;
    for (int32_t k = 0; k < count; k++) {
        Dtype type = call->result_shapes[k]->type;
        if (!cuda_has_operators(type) || body->input_types[k] != type ||
            body->input_types[count + k] != call->operand_shapes[k]->type ||
            call->operand_shapes[count + k]->type != type)
            return false;
    }
    return true;
}

static AmStatus write_by_computation(CudaSource *source, const CudaFold *self, const KernelCall *call,
                                     AmError *error) {
    ElementComputation computation;
    Text body = {0};
    TRY(element_computation_read(&computation, source->arena, call->program->module,
                                 call->instruction->compute.called, error));
    if (!fits(&computation, call))
        return kernel_call_refuse(call, "its computation has other operands", error);
    int32_t count = call->result_count;
    Dtype *types = ARENA_ARRAY(source->arena, Dtype, computation.input_count + computation.op_count + 1);
    if (!types) return am_fail_memory(error, computation.op_count * 4);
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, self->results);
    text_append_string(&body, "    const s64 base = ");
    cuda_append_offset(&body, "i", "ll", self->kept, self->kept_strides, self->kept_rank);
    text_append_string(&body, ";\n");
    for (int32_t k = 0; k < count; k++) {
        char initial[32];
        snprintf(initial, sizeof initial, "in%d[0]", count + k);
        text_append(&body, "    %s sum%d = ", cuda_value_type(computation.input_types[k]), k);
        cuda_append_load(&body, computation.input_types[k], initial);
        text_append_string(&body, ";\n");
    }
    if (!append_loop(&body, self, &computation, types)) {
        text_free(&body);
        return kernel_call_refuse(call, "its computation has an operator without a kernel", error);
    }
    for (int32_t k = 0; k < count; k++) {
        char value[32];
        snprintf(value, sizeof value, "sum%d", k);
        text_append(&body, "    out%d[i] = ", k);
        cuda_append_store(&body, computation.input_types[k], value);
        text_append_string(&body, ";\n");
    }
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, "fold", &body, cuda_blocks(self->results), CUDA_THREADS, error);
}

/* Returns whether the reduction has one operator that a fold knows, and elements. */
static bool find_operator(CudaFold *self, const KernelCall *call) {
    /* The kept and reduced dimensions of the operand. */
    const IrAttributes *attributes = call->attributes;
    const IrShape *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK];
    bool is_reduced[IR_MAX_RANK] = {false};
    memset(self, 0, sizeof *self);
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t k = 0; k < attributes->dimension_count; k++) is_reduced[attributes->dimensions[k]] = true;
    for (int32_t d = 0; d < operand->rank; d++) {
        int32_t *rank = is_reduced[d] ? &self->reduced_rank : &self->kept_rank;
        (is_reduced[d] ? self->reduced : self->kept)[*rank] = operand->dimensions[d];
        (is_reduced[d] ? self->reduced_strides : self->kept_strides)[(*rank)++] = strides[d];
    }
    self->results = strided_elements(self->kept, self->kept_rank);
    self->reduced_count = strided_elements(self->reduced, self->reduced_rank);
    self->reduction = call->operand_count == 2
                          ? sbp_reduction_of(ir_computation_operator(call->program->module,
                                                                     call->instruction->compute.called))
                          : SBP_REDUCTION_COUNT;
    /* Without elements the fold gives the initial value. */
    return self->reduction != SBP_REDUCTION_COUNT && cuda_has_arithmetic(call->operand_shapes[0]->type) &&
           self->reduced_count > 0;
}

AmStatus cuda_source_reduce(CudaSource *source, const KernelCall *call, AmError *error) {
    CudaFold self;
    if (find_operator(&self, call) && self.results > 0) {
        Text element = {0}, finish = {0};
        append_operands(&element, &finish, &self, call->operand_shapes[0]->type);
        cuda_fold_plan(&self, source);
        AmStatus status = element.failed || finish.failed
                              ? am_fail_memory(error, 256)
                              : cuda_fold_launch(source, call, &self, "reduce", finish.data, error);
        text_free(&element);
        text_free(&finish);
        return status;
    }
    return write_by_computation(source, &self, call, error);
}

AmStatus cuda_append_reduce_rows(Text *out, const KernelCall *call, AmError *error) {
    static const char reason[] = "its rows cannot be reduced one by one";
    Text element = {0}, finish = {0};
    CudaFold self;
    if (!find_operator(&self, call)) return kernel_call_refuse(call, reason, error);
    append_operands(&element, &finish, &self, call->operand_shapes[0]->type);
    bool has_memory = !element.failed && !finish.failed;
    bool is_written = has_memory && cuda_append_fold_rows(out, &self, finish.data);
    text_free(&element);
    text_free(&finish);
    if (!has_memory) return am_fail_memory(error, 256);
    return is_written ? AM_OK : kernel_call_refuse(call, reason, error);
}
