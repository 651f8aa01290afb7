/* Writes the kernels of a region phase by phase, and those of a thread for each element.
 *
 * Sums of one phase with equal loops share a kernel by tiles (region_tiles.c). Sums and outputs without
 * tiles have a kernel with a thread for each element (launch_flat()). Indices have 32 bits if no array has
 * more elements.
 */
#include "executor/cuda/codegen/attention/source_region.h"

#include <stdio.h>

#include "executor/cuda/codegen/attention/region_writer.h"

void region_writer_append_labels(RegionWriter *self, const int32_t *list, int32_t count, const char *name) {
    const int64_t *sizes = self->plan->blocks.labels.sizes;
    int64_t stride = 1;
    for (int32_t k = count - 1; k >= 0; k--) {
        text_append(&self->body, "const %s l%d = %s", self->index, list[k], name);
        if (stride > 1) text_append(&self->body, " / %lld%s", (long long)stride, self->suffix);
        if (k > 0) text_append(&self->body, " %% %lld%s", (long long)sizes[list[k]], self->suffix);
        text_append_string(&self->body, ";\n");
        stride *= sizes[list[k]];
    }
}

static const ProgramInstruction *instruction_of(const RegionWriter *self, const RegionSum *sum) {
    return &self->region->instructions[sum->instruction];
}

static SbpReduction reduction_of(const RegionWriter *self, const RegionSum *sum) {
    const ProgramInstruction *instruction = instruction_of(self, sum);
    if (instruction->opcode == IR_DOT) return SBP_ADD;
    return sbp_reduction_of(ir_computation_operator(self->region->module, instruction->compute.called));
}

void region_writer_append_fold(RegionWriter *self, const RegionSum *sum, const char *a, const char *b) {
    SbpReduction reduction = reduction_of(self, sum);
    if (reduction == SBP_ADD) text_append(&self->body, "%s + %s", a, b);
    else text_append(&self->body, "%s_of(%s, %s)", reduction == SBP_MAX ? "greatest" : "least", a, b);
}

const char *region_writer_identity(const RegionWriter *self, const RegionSum *sum) {
    SbpReduction reduction = reduction_of(self, sum);
    return reduction == SBP_ADD   ? "0.0"
           : reduction == SBP_MAX ? "bits_as<f64>(0xfff0000000000000ull)"
                                  : "bits_as<f64>(0x7ff0000000000000ull)";
}

void region_writer_append_summand(RegionWriter *self, const RegionSum *sum) {
    const ProgramInstruction *instruction = instruction_of(self, sum);
    text_append(&self->body, "(f64)v%d", self->element.slots[instruction->operands[0]]);
    if (instruction->opcode == IR_DOT)
        text_append(&self->body, " * (f64)v%d", self->element.slots[instruction->operands[1]]);
}

void region_writer_finish(RegionWriter *self, const RegionSum *sum) {
    const RegionPlan *plan = self->plan;
    const Program *region = plan->blocks.region;
    const ProgramInstruction *instruction = instruction_of(self, sum);
    Dtype type = region->values[sum->value].shape.type;
    RegionElement *element = &self->element;
    Text value = {0};
    region_element_begin(element, NULL);
    if (instruction->opcode == IR_REDUCE) {
        region_element_append(element, &instruction->operands[1], 1);
        char initial[32];
        snprintf(initial, sizeof initial, "(f64)v%d", element->slots[instruction->operands[1]]);
        text_append_string(&self->body, "const f64 all = ");
        region_writer_append_fold(self, sum, initial, "sum");
        text_append_string(&self->body, ";\n");
        cuda_append_convert(&value, DTYPE_F64, type, "all");
    } else {
        if (instruction->operand_count > 2) {
            region_element_append(element, &instruction->operands[2], 1);
            text_append(&value, "v%d + ", element->slots[instruction->operands[2]]);
        }
        cuda_append_convert(&value, sum->kind == SUM_PRODUCT ? plan->product : DTYPE_F64, type, "sum");
    }
    region_element_set(element, sum->value, value.failed ? "" : value.data);
    self->body.failed |= value.failed;
    text_free(&value);
    if (sum->is_stored && sum->output < 0) region_element_store_sum(element, sum);
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        if (plan->attached[k] != plan->sum_of[sum->value]) continue;
        region_element_append(element, &region->outputs[k], 1);
        region_element_store_output(element, k);
    }
}

/* Begins a kernel with a thread for each element of the value. */
static int64_t begin_flat(RegionWriter *self, int32_t value) {
    const ValueLabels *labels = &self->plan->blocks.labels.values[value];
    int64_t elements = ir_shape_elements(&self->region->values[value].shape);
    cuda_append_signature(&self->body, self->call, self->source, "u8", false);
    cuda_append_guard(&self->body, elements);
    region_writer_append_labels(self, labels->list, labels->count, "i");
    return elements;
}

static AmStatus launch_flat(RegionWriter *self, int64_t elements, AmError *error) {
    text_append_string(&self->body, "}\n");
    return cuda_source_launch(self->source, "attention", &self->body, cuda_blocks(elements), CUDA_THREADS,
                              error);
}

AmStatus region_writer_flat_sum(RegionWriter *self, const RegionSum *sum, AmError *error) {
    const RegionLabels *labels = &self->plan->blocks.labels;
    const ProgramInstruction *instruction = instruction_of(self, sum);
    int64_t elements = begin_flat(self, sum->value);
    text_append(&self->body, "f64 sum = %s;\n", region_writer_identity(self, sum));
    for (int32_t l = 0; l < labels->count; l++)
        if (sum->is_looped[l])
            text_append(&self->body, "for (%s l%d = 0; l%d < %lld%s; l%d++)\n", self->index, l, l,
                        (long long)labels->sizes[l], self->suffix, l);
    text_append_string(&self->body, "{\n");
    region_element_begin(&self->element, NULL);
    region_element_append(&self->element, instruction->operands, instruction->opcode == IR_DOT ? 2 : 1);
    text_append_string(&self->body, "const f64 summand = ");
    region_writer_append_summand(self, sum);
    text_append_string(&self->body, ";\nsum = ");
    region_writer_append_fold(self, sum, "sum", "summand");
    text_append_string(&self->body, ";\n}\n");
    region_writer_finish(self, sum);
    return launch_flat(self, elements, error);
}

AmStatus region_writer_flat_output(RegionWriter *self, int32_t output, AmError *error) {
    const int32_t *value = &self->region->outputs[output];
    int64_t elements = begin_flat(self, *value);
    region_element_begin(&self->element, NULL);
    region_element_append(&self->element, value, 1);
    region_element_store_output(&self->element, output);
    return launch_flat(self, elements, error);
}

/* Chooses 32-bit indices if no array has more elements. */
static void choose_index(RegionWriter *self) {
    const Program *region = self->region;
    int64_t most = 0;
    for (int32_t v = 0; v < region->value_count; v++) {
        int64_t elements = ir_shape_elements(&region->values[v].shape);
        bool is_array = self->plan->parameter_of[v] >= 0 || self->plan->sum_of[v] >= 0;
        for (int32_t k = 0; k < region->roles->output_count; k++) is_array |= region->outputs[k] == v;
        if (is_array && elements > most) most = elements;
    }
    bool is_narrow = most < INT32_MAX - (1 << 16);
    self->index = is_narrow ? "u32" : "s64";
    self->suffix = is_narrow ? "u" : "ll";
    self->number = self->plan->product == DTYPE_F64 ? "f64" : "f32";
}

static AmStatus write_kernels(RegionWriter *self, RegionPlan *plan, AmError *error) {
    const Program *region = plan->blocks.region;
    int32_t last = 0;
    for (int32_t s = 0; s < plan->sum_count; s++)
        if (plan->sums[s].phase > last) last = plan->sums[s].phase;
    for (int32_t phase = 1; phase <= last; phase++)
        for (int32_t s = 0; s < plan->sum_count; s++) {
            RegionSum *sum = &plan->sums[s];
            bool is_first = sum->phase == phase;
            for (int32_t before = 0; before < s && is_first; before++)
                is_first = !region_plan_alike(plan, &plan->sums[before], sum);
            if (!is_first) continue;
            if (sum->kind == SUM_FLAT) TRY(region_writer_flat_sum(self, sum, error));
            else TRY(region_writer_tiles(self, sum, error));
        }
    for (int32_t k = 0; k < region->roles->output_count; k++)
        if (plan->attached[k] < 0) TRY(region_writer_flat_output(self, k, error));
    return AM_OK;
}

AmStatus cuda_source_region(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    AmError reason = {0};
    RegionPlan *plan = ARENA_ARRAY(arena, RegionPlan, 1);
    RegionWriter *self = ARENA_ARRAY(arena, RegionWriter, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *plan);
    if (call->instruction->regions.count != 1)
        return kernel_call_refuse(call, "it lacks its computation", error);
    AmStatus status = region_plan_find(plan, arena, call->instruction->regions.programs[0], &reason);
    *source = (CudaSource){.arena = arena,
                           .parameters = call->operand_count + call->result_count,
                           .scratch_bytes = plan->scratch_bytes};
    if (source->parameters > CUDA_MOST_PARAMETERS)
        return kernel_call_refuse(call, "it reads and writes more than 512 arrays", error);
    *self = (RegionWriter){
        .plan = plan, .region = plan->blocks.region, .call = call, .arena = arena, .source = source};
    if (status == AM_OK) {
        choose_index(self);
        status = region_element_open(&self->element, arena, plan, &self->body, self->index, &reason);
    }
    if (status == AM_OK) status = write_kernels(self, plan, &reason);
    text_free(&self->body);
    if (status == AM_OK && self->element.failed)
        return kernel_call_refuse(call, "an operator has no kernel on its type", error);
    if (status == AM_ERROR_INPUT) return kernel_call_refuse(call, reason.text, error);
    return status == AM_OK ? AM_OK : am_fail(error, status, "", "%s", reason.text);
}
