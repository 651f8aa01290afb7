/* Writes the names of the numbers in a plan's stages.
 *
 * plan_names_to_json() adds a row for each instruction that the stages name, or one for each layer if a loop
 * has the instruction (add_instruction()). It adds a row for the first operator behind each border of a range
 * (add_border()). plan_carry.c reads them.
 */
#include "lowering/plan_file/plan_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "base/hash.h"
#include "lowering/plan_file/instruction_names.h"

typedef struct NameWriter {
    const PlanContext *primary; /* of the plan's numbers */
    const PlanContext
        *layers; /* in which the layers are apart: `primary`, or the context that splits its loops */
    const int32_t *origins; /* [instruction of `layers`]: that of `primary`; NULL: the same */
    int32_t *entry_place; /* [instruction of `primary`]: the entry's instruction that it is part of, or -1 */
    InstructionNames names;
    json_t *instructions, *borders;
} NameWriter;

static int compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

AmStatus plan_names_hash_parameters(char hex[65], Arena *arena, const PlanContext *context, AmError *error) {
    const IrRoles *roles = context->roles;
    const char **lines = ARENA_ARRAY(arena, const char *, roles->parameter_count + 1);
    Text line = {0};
    Sha256 hash;
    for (int32_t p = 0; lines && p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        line.length = 0;
        text_append(&line, "%s ", ir_role_name(parameter->role));
        ir_shape_append(&line, &plan_context_instruction(context, parameter->instruction)->shape);
        lines[p] = line.failed ? NULL : arena_copy_string(arena, line.data);
    }
    bool has_failed = line.failed || arena->failed;
    text_free(&line);
    if (has_failed) return am_fail_memory(error, roles->parameter_count);
    qsort(lines, (size_t)roles->parameter_count, sizeof *lines, compare_texts);
    sha256_begin(&hash);
    for (int32_t p = 0; p < roles->parameter_count; p++) sha256_add(&hash, lines[p], strlen(lines[p]) + 1);
    sha256_end(&hash, hex);
    return AM_OK;
}

AmStatus plan_names_prepare(PlanContext *source, PlanRewrites rewriting, AmError *error) {
    AmError own = {0};
    PlanContext *made;
    rewriting.splits_layers = true;
    AmStatus status = plan_context_rewrite(&made, source, rewriting, &own);
    return status == AM_ERROR_INFEASIBLE ? AM_OK : am_pass_error(status, &own, error);
}

/* Finds the context with separate layers. Returns false where there is none. */
static bool find_layers(NameWriter *self) {
    const PlanContext *primary = self->primary;
    self->layers = primary;
    if (primary->rewriting.splits_layers) return true;
    PlanRewrites wanted = primary->rewriting;
    wanted.splits_layers = true;
    for (const PlanContext *made = plan_context_source(primary)->rewritten; made; made = made->next_split)
        if (plan_rewriting_equal(made->rewriting, wanted)) self->layers = made;
    if (self->layers != primary && plan_rewriting_is_none(primary->rewriting))
        self->origins = self->layers->layer_map->origins;
    return self->layers != primary;
}

/* Marks the instructions of a computation, and of those that it calls, as part of one of the entry. */
static void mark_part(NameWriter *self, int32_t computation, int32_t part) {
    const IrModule *module = self->primary->canonical;
    const IrComputation *called = &module->computations[computation];
    for (int32_t i = called->first; i < called->first + called->count; i++) {
        if (self->entry_place[i] >= 0) continue;
        self->entry_place[i] = part;
        for (int32_t k = 0; k < module->instructions[i].called_count; k++)
            mark_part(self, module->instructions[i].called[k], part);
    }
}

static void add_row(const NameWriter *self, json_t *rows, json_int_t number, int32_t instruction) {
    Text name = {0};
    if (instruction >= 0) instruction_names_append(&name, &self->names, instruction);
    json_array_append_new(rows, json_pack("[I, s?]", number, name.data));
    text_free(&name);
}

/* Adds a row for an instruction of `primary`: one for each layer where a loop has it. */
static void add_instruction(const NameWriter *self, const json_t *value) {
    const PlanContext *primary = self->primary;
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number >= primary->canonical->instruction_count) return;
    if (self->layers == primary && number < self->names.count)
        add_row(self, self->instructions, number, (int32_t)number);
    if (!self->origins) return;
    const IrInstruction *named = plan_context_instruction(primary, number);
    for (int32_t i = 0; i < self->names.count; i++) {
        const IrInstruction *made = plan_context_instruction(self->layers, i);
        if (self->origins[i] == number && made->opcode == named->opcode &&
            ir_shape_equal(&made->shape, &named->shape))
            add_row(self, self->instructions, number, i);
    }
}

static void add_border(const NameWriter *self, const json_t *value) {
    json_int_t number = json_integer_value(value), before = -1;
    const json_t *last = json_array_get(self->borders, json_array_size(self->borders) - 1);
    if (last) before = json_integer_value(json_array_get(last, 0));
    if (number == before || number <= 0 || number >= self->primary->rules->entry_count) return;
    if (self->layers != self->primary && !self->origins) return;
    int32_t next = instruction_names_at_or_after(&self->names, self->origins ? 0 : (int32_t)number);
    while (next >= 0 && (self->origins ? self->entry_place[self->origins[next]] : next) < number)
        next = instruction_names_at_or_after(&self->names, next + 1);
    add_row(self, self->borders, number, next);
}

static void add_borders(const NameWriter *self, const json_t *ranges) {
    const json_t *range;
    size_t k;
    json_array_foreach(ranges, k, range) {
        add_border(self, json_array_get(range, 0));
        add_border(self, json_array_get(range, 1));
    }
}

static void add_stage(const NameWriter *self, const json_t *stage) {
    static const char *const lists[] = {"overrides", "reshards"};
    const char *axis;
    const json_t *row;
    json_t *entries;
    size_t k;
    json_object_foreach(json_object_get(stage, "axis_priorities"), axis, entries) {
        json_array_foreach(entries, k, row) {
            const json_t *class = json_object_get(row, "class");
            const char *kind = json_string_value(json_array_get(class, 0));
            if (kind && strcmp(kind, "instruction") == 0) add_instruction(self, json_array_get(class, 1));
        }
    }
    for (size_t list = 0; list < sizeof lists / sizeof *lists; list++)
        json_array_foreach(json_object_get(stage, lists[list]), k, row)
            add_instruction(self, json_object_get(row, "instruction"));
    json_array_foreach(json_object_get(stage, "saved"), k, row) add_instruction(self, row);
    add_borders(self, json_object_get(stage, "ranges"));
    add_borders(self, json_object_get(stage, "recompute"));
}

AmStatus plan_names_to_json(json_t **names, const json_t *stages, const PlanContext *primary,
                            AmError *error) {
    Arena arena = {0};
    NameWriter self = {.primary = primary};
    *names = NULL;
    AmStatus status = AM_OK;
    ParameterKeys keys;
    char hex[65];
    const json_t *stage;
    size_t s;
    if (!find_layers(&self)) {
        TRY_OR_FAIL(parameter_keys_make(&keys, &arena, self.primary->roles, error));
        if (!parameter_keys_have_layers(&keys)) goto fail;
    }
    TRY_OR_FAIL(plan_names_hash_parameters(hex, &arena, self.layers, error));
    TRY_OR_FAIL(instruction_names_make(&self.names, &arena, self.layers, error));
    const IrModule *module = self.primary->canonical;
    self.entry_place = ARENA_ARRAY(&arena, int32_t, module->instruction_count + 1);
    if (!self.entry_place) TRY_OR_FAIL(am_fail_memory(error, module->instruction_count));
    for (int32_t i = 0; i < module->instruction_count; i++) self.entry_place[i] = -1;
    for (int32_t i = 0; i < self.primary->rules->entry_count; i++) {
        self.entry_place[i] = i;
        for (int32_t k = 0; k < module->instructions[i].called_count; k++)
            mark_part(&self, module->instructions[i].called[k], i);
    }
    self.instructions = json_array();
    self.borders = json_array();
    json_array_foreach(stages, s, stage) add_stage(&self, stage);
    *names = json_pack("{s:s, s:o, s:o}", "parameters", hex, "instructions", self.instructions, "borders",
                       self.borders);
    status = *names ? AM_OK : am_fail_memory(error, self.names.count);
fail:
    arena_free(&arena);
    return status;
}
