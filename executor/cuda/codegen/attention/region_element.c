/* Writes the statements that compute values of a region for one element.
 *
 * mark() marks the operators that the wanted values need, up to sums and scores that exist already.
 * region_element_append() then writes one statement for each, in the region's order. Loads use row-major
 * places of the labels' indices.
 */
#include "executor/cuda/codegen/attention/region_element.h"

#include <stdio.h>
#include <string.h>

AmStatus region_element_open(RegionElement *self, Arena *arena, const RegionPlan *plan, Text *out,
                             const char *index, AmError *error) {
    int32_t values = plan->blocks.region->value_count + 1;
    *self = (RegionElement){.plan = plan,
                            .region = plan->blocks.region,
                            .out = out,
                            .index = index,
                            .slots = ARENA_ARRAY(arena, int32_t, values),
                            .types = ARENA_ARRAY(arena, Dtype, 2 * values),
                            .needed = ARENA_ARRAY(arena, bool, values)};
    return arena->failed ? am_fail_memory(error, values * 16) : AM_OK;
}

void region_element_begin(RegionElement *self, const char *scores) {
    for (int32_t v = 0; v < self->region->value_count; v++) self->slots[v] = -1;
    self->count = 0;
    self->scores = scores;
}

static Dtype type_of(const RegionElement *self, int32_t value) {
    return self->region->values[value].shape.type;
}

void region_element_set(RegionElement *self, int32_t value, const char *expression) {
    self->types[self->count] = type_of(self, value);
    text_append(self->out, "const %s v%d = %s;\n", cuda_value_type(type_of(self, value)), self->count,
                expression);
    self->slots[value] = self->count++;
}

/* Appends the sum of the indices of labels [first, end) of a list, each times the sizes of the later ones. */
static void append_index(const RegionElement *self, Text *out, const int32_t *list, int32_t first,
                         int32_t end) {
    int64_t stride = 1;
    for (int32_t k = first; k < end; k++) stride *= self->plan->blocks.labels.sizes[list[k]];
    for (int32_t k = first; k < end; k++) {
        stride /= self->plan->blocks.labels.sizes[list[k]];
        text_append(out, "%sl%d", k > first ? " + " : "", list[k]);
        if (stride > 1)
            text_append(out, " * %lld%s", (long long)stride, strcmp(self->index, "u32") == 0 ? "u" : "ll");
    }
    if (end == first) text_append_string(out, "0");
}

void region_element_append_place(const RegionElement *self, int32_t value) {
    const ValueLabels *labels = &self->plan->blocks.labels.values[value];
    append_index(self, self->out, labels->list, 0, labels->count);
}

/* Appends the array of a parameter or a sum that an earlier kernel has computed. */
static void append_array(const RegionElement *self, Text *out, int32_t value) {
    const RegionPlan *plan = self->plan;
    if (plan->parameter_of[value] >= 0) {
        text_append(out, "in%d", plan->parameter_of[value]);
        return;
    }
    const RegionSum *sum = &plan->sums[plan->sum_of[value]];
    if (sum->output >= 0) text_append(out, "out%d", sum->output);
    else
        text_append(out, "((%s *)(scratch + %lldull))", cuda_memory_type(type_of(self, value)),
                    (long long)sum->at);
}

static void append_load(RegionElement *self, int32_t value) {
    Text element = {0}, load = {0};
    const ValueLabels *labels = &self->plan->blocks.labels.values[value];
    append_array(self, &element, value);
    text_append_string(&element, "[");
    append_index(self, &element, labels->list, 0, labels->count);
    text_append_string(&element, "]");
    cuda_append_load(&load, type_of(self, value), element.failed ? "" : element.data);
    region_element_set(self, value, load.failed ? "" : load.data);
    self->out->failed |= element.failed || load.failed;
    text_free(&element);
    text_free(&load);
}

/* Appends the element of a score product, rounded to its type; an addend follows. */
static void append_score(RegionElement *self, const ProgramInstruction *instruction) {
    char place[96];
    Text element = {0};
    Dtype type = type_of(self, instruction->first_result);
    int32_t addend = instruction->operand_count > 2 ? self->slots[instruction->operands[2]] : -1;
    snprintf(place, sizeof place, "s%d%s", self->plan->blocks.producer[instruction->first_result],
             self->scores);
    if (addend >= 0) text_append(&element, "v%d + ", addend);
    cuda_append_convert(&element, self->plan->product, type, place);
    region_element_set(self, instruction->first_result, element.failed ? "" : element.data);
    self->out->failed |= element.failed;
    text_free(&element);
}

static bool is_same_element(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_VIEW || instruction->opcode == IR_BROADCAST ||
           instruction->opcode == IR_RESHAPE || instruction->opcode == IR_TRANSPOSE;
}

static void append_operator(RegionElement *self, const ProgramInstruction *instruction) {
    const RegionPlan *plan = self->plan;
    int32_t value = instruction->first_result;
    Text index = {0};
    ProgramFusionOp op = {.opcode = instruction->opcode,
                          .type = type_of(self, value),
                          .operand_count = instruction->operand_count,
                          .attributes = instruction->attributes,
                          .literal = instruction->compute.literal,
                          .origin = instruction->origin};
    for (int32_t k = 0; k < instruction->operand_count; k++)
        op.operands[k] = self->slots[instruction->operands[k]];
    if (instruction->opcode == IR_IOTA) {
        const ValueLabels *labels = &plan->blocks.labels.values[value];
        int32_t d = instruction->attributes->dimension_count > 0
                        ? (int32_t)instruction->attributes->dimensions[0]
                        : 0;
        text_append_string(&index, "(s64)(");
        append_index(self, &index, labels->list, d > 0 ? labels->ends[d - 1] : 0, labels->ends[d]);
        text_append_string(&index, ")");
    }
    if (!cuda_append_operator(self->out, &op, self->count, self->types, index.data)) self->failed = true;
    self->out->failed |= index.failed;
    text_free(&index);
    self->slots[value] = self->count++;
}

void region_element_append(RegionElement *self, const int32_t *values, int32_t count) {
    const RegionPlan *plan = self->plan;
    const Program *region = plan->blocks.region;
    /* The operands of the values are needed, up to sums and scores, which are at hand. A score may have an
     * addend. */
    memset(self->needed, 0, (size_t)region->value_count);
    for (int32_t k = 0; k < count; k++) self->needed[values[k]] = true;
    for (int32_t i = region->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t value = instruction->first_result;
        if (!self->needed[value] || self->slots[value] >= 0 || self->plan->sum_of[value] >= 0) continue;
        for (int32_t k = self->plan->is_score[i] ? 2 : 0; k < instruction->operand_count; k++)
            self->needed[instruction->operands[k]] = true;
    }
    for (int32_t k = 0; k < region->roles->parameter_count; k++) {
        int32_t value = region->parameters[k];
        if (value >= 0 && self->needed[value] && self->slots[value] < 0) append_load(self, value);
    }
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t value = instruction->first_result;
        if (!self->needed[value] || self->slots[value] >= 0) continue;
        if (plan->sum_of[value] >= 0) append_load(self, value);
        else if (plan->is_score[i]) append_score(self, instruction);
        else if (is_same_element(instruction)) self->slots[value] = self->slots[instruction->operands[0]];
        else append_operator(self, instruction);
    }
}

/* Appends "[PLACE] = bf16_store(v7);". */
static void append_store(const RegionElement *self, int32_t value) {
    char name[32];
    snprintf(name, sizeof name, "v%d", self->slots[value]);
    text_append_string(self->out, "[");
    region_element_append_place(self, value);
    text_append_string(self->out, "] = ");
    cuda_append_store(self->out, type_of(self, value), name);
    text_append_string(self->out, ";\n");
}

void region_element_store_output(const RegionElement *self, int32_t output) {
    text_append(self->out, "out%d", output);
    append_store(self, self->region->outputs[output]);
}

void region_element_store_sum(const RegionElement *self, const RegionSum *sum) {
    append_array(self, self->out, sum->value);
    append_store(self, sum->value);
}
