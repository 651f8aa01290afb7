/* Makes the sample of a module: copies all but the omitted layers of a run of equal ones, and records which
 * instruction, parameter and output of the sample stands for which of the module.
 *
 * The entry is copied from operands to users, since an operand that takes the place of an omitted one may
 * come later in the module. Called computations follow, once for all callers.
 */
#include "ir/layers/sample_layers.h"

#include <string.h>

#include "ir/canonical/compose.h"
#include "ir/layers/kept_layers.h"
#include "ir/layers/sample_loops.h"

/* Marks what the sample has: all but the layers that are left out, and of the rest what something reads. */
static void mark_kept(bool *is_kept, const LayerRun *self) {
    int32_t root = self->from->computations[self->from->entry].root;
    const IrInstruction *outputs = ir_instruction(self->from, root);
    is_kept[root] = true;
    for (int32_t k = 0; k < outputs->operand_count; k++) {
        int32_t operand = outputs->operands[k];
        if (self->layer[operand] < 0 || !kept_layers_omit(self, self->layer[operand]))
            is_kept[operand] = true;
    }
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = ir_instruction(self->from, i);
        for (int32_t k = 0; is_kept[i] && i != root && k < instruction->operand_count; k++)
            is_kept[kept_layers_operand(self, instruction->operands[k], self->layer[i])] = true;
    }
}

typedef struct SampleBuilder {
    const LayerRun *run;
    bool *is_kept; /* [entry instruction] */
    IrComposer composer;
    int32_t *made;        /* [instruction]: its index in the computation that is made, or LAYER_NONE */
    int32_t *computation; /* [computation]: the one that is made, or LAYER_NONE */
    int32_t *count;       /* [computation made]: the layers that its caller stands for */
    IrLayerSample *record;
    bool fails;
} SampleBuilder;

static int32_t *called_of(SampleBuilder *self, const IrInstruction *from, int32_t layers) {
    int32_t *called = ARENA_ARRAY(&self->composer.module->arena, int32_t, from->called_count + 1);
    for (int32_t k = 0; called && k < from->called_count; k++) {
        int32_t *made = &self->computation[from->called[k]];
        if (*made < 0)
            *made =
                ir_compose_computation(&self->composer, self->run->from->computations[from->called[k]].name);
        called[k] = *made;
        self->count[*made] = layers;
    }
    return called;
}

/* Attributes with the number of a parameter in the sample. */
static const IrAttributes *number_parameter(SampleBuilder *self, const IrAttributes *from) {
    IrAttributes *attributes = ARENA_ARRAY(&self->composer.module->arena, IrAttributes, 1);
    if (!attributes) return from;
    *attributes = *from;
    attributes->parameter_number = self->record->parameter_count;
    self->record->parameters[self->record->parameter_count++] = (int32_t)from->parameter_number;
    return attributes;
}

/* Copies the root with the outputs that are kept. */
static void copy_root(SampleBuilder *self, IrInstruction *root, int32_t *operands) {
    const IrInstruction *from =
        ir_instruction(self->run->from, self->run->from->computations[self->run->from->entry].root);
    Arena *arena = &self->composer.module->arena;
    IrShape *elements = ARENA_ARRAY(arena, IrShape, from->operand_count + 1);
    int32_t count = 0;
    if (!elements) return;
    for (int32_t k = 0; k < from->operand_count; k++) {
        int32_t made = self->made[from->operands[k]];
        if (made < 0) continue;
        operands[count] = made;
        elements[count] = from->shape.elements[k];
        self->record->outputs[count++] = k;
    }
    self->record->output_count = root->operand_count = root->shape.rank = count;
    root->shape.elements = elements;
}

static void copy_instruction(SampleBuilder *self, int32_t made_in, int32_t i, int32_t layers) {
    const LayerRun *run = self->run;
    const IrInstruction *from = ir_instruction(run->from, i);
    IrInstruction instruction = *from;
    Arena *arena = &self->composer.module->arena;
    int32_t *operands = ARENA_ARRAY(arena, int32_t, from->operand_count + 1);
    instruction.called = called_of(self, from, layers);
    if (arena->failed) return;
    bool is_root = made_in == 0 && i == run->from->computations[run->from->entry].root;
    for (int32_t k = 0; k < from->operand_count && !is_root; k++) {
        int32_t operand = from->operands[k];
        operands[k] = self->made[made_in == 0 ? kept_layers_operand(run, operand, run->layer[i]) : operand];
        self->fails |= operands[k] < 0;
    }
    if (is_root) copy_root(self, &instruction, operands);
    if (made_in == 0 && from->opcode == IR_PARAMETER)
        instruction.attributes = number_parameter(self, from->attributes);
    instruction.operands = operands;
    if (!self->fails) self->made[i] = ir_compose(&self->composer, made_in, &instruction, i);
}

/* Copies an instruction of the entry. An operand that takes the place of another one may come later in the
 * module: it is copied before. */
static void copy_entry(SampleBuilder *self, int32_t i, int32_t depth) {
    enum { MOST_DEPTH = 256 };
    const LayerRun *run = self->run;
    const IrInstruction *from = ir_instruction(run->from, i);
    if (self->made[i] >= 0 || self->fails) return;
    self->fails |= depth == MOST_DEPTH;
    bool is_root = i == run->from->computations[run->from->entry].root;
    for (int32_t k = 0; k < from->operand_count && !is_root && !self->fails; k++)
        copy_entry(self, kept_layers_operand(run, from->operands[k], run->layer[i]), depth + 1);
    copy_instruction(self, 0, i, run->layer[i] >= 0 ? kept_layers_count(run, run->layer[i]) : 1);
}

static void copy_computations(SampleBuilder *self) {
    const LayerRun *run = self->run;
    const IrModule *from = run->from;
    bool goes_on = true;
    while (goes_on && !self->fails) {
        goes_on = false;
        for (int32_t c = 0; c < from->computation_count && !self->fails; c++) {
            int32_t made_in = self->computation[c];
            if (made_in < 0 || self->composer.computations[made_in].count > 0) continue;
            const IrComputation *body = &from->computations[c];
            for (int32_t i = body->first; i < body->first + body->count; i++) {
                if (made_in > 0) copy_instruction(self, made_in, i, self->count[made_in]);
                else if (self->is_kept[i]) copy_entry(self, i, 0);
            }
            if (self->composer.module->arena.failed || self->fails) return;
            self->composer.computations[made_in].root = self->made[body->root];
            goes_on = true;
        }
    }
}

/* Notes for every entry instruction of the module the one that stands for it. */
static void find_standing(SampleBuilder *self) {
    const LayerRun *run = self->run;
    IrLayerSample *record = self->record;
    for (int32_t i = 0; i < run->count; i++) {
        int32_t layer = run->layer[i];
        int32_t kept = layer >= 0 ? kept_layers_standing(run, layer) : LAYER_NONE;
        bool is_moved = kept >= 0 && kept != layer;
        record->layer[i] = layer;
        record->standing[i] = self->made[is_moved ? kept_layers_move(run, i, kept) : i];
    }
}

/* Finds the outputs that update parameters: if that of the module is left out, the one that takes its
 * place. */
static void find_updates(SampleBuilder *self) {
    const LayerRun *run = self->run;
    const IrInstruction *root = ir_instruction(run->from, run->from->computations[run->from->entry].root);
    IrLayerSample *record = self->record;
    for (int32_t p = 0; p < record->parameter_count; p++) {
        const IrParameter *parameter = &run->roles->parameters[record->parameters[p]];
        record->updates[p] = LAYER_NONE;
        if (parameter->output < 0) continue;
        int32_t layer = run->layer[parameter->instruction];
        int32_t value = kept_layers_operand(run, root->operands[parameter->output], layer);
        for (int32_t k = 0; k < record->output_count && record->updates[p] < 0; k++)
            if (root->operands[record->outputs[k]] == value) record->updates[p] = k;
    }
}

/* Makes the module of the sample: the instructions of the layers that it keeps, and all that are in no
 * layer. */
static AmStatus compose(IrModule **sample, IrLayerSample **record, const LayerRun *run, Arena *scratch,
                        AmError *error) {
    const IrModule *from = run->from;
    IrModule *module = ir_module_new(from->source);
    if (!module) return am_fail_memory(error, (int64_t)sizeof *module);
    SampleBuilder self = {.run = run,
                          .is_kept = ARENA_ARRAY(scratch, bool, run->count + 1),
                          .composer = {.module = module},
                          .made = ARENA_ARRAY(scratch, int32_t, from->instruction_count + 1),
                          .computation = ARENA_ARRAY(scratch, int32_t, from->computation_count + 1),
                          .count = ARENA_ARRAY(scratch, int32_t, from->computation_count + 1),
                          .record = ARENA_ARRAY(&module->arena, IrLayerSample, 1)};
    const IrRoles *roles = run->roles;
    IrLayerSample *made = self.record;
    AmStatus status = AM_OK;
    if (made)
        *made =
            (IrLayerSample){.standing = ARENA_ARRAY(&module->arena, int32_t, run->count + 1),
                            .layer = ARENA_ARRAY(&module->arena, int32_t, run->count + 1),
                            .parameters = ARENA_ARRAY(&module->arena, int32_t, roles->parameter_count + 1),
                            .outputs = ARENA_ARRAY(&module->arena, int32_t, roles->output_count + 1),
                            .updates = ARENA_ARRAY(&module->arena, int32_t, roles->parameter_count + 1),
                            .from_count = from->instruction_count};
    if (scratch->failed || module->arena.failed) {
        status = am_fail_memory(error, from->instruction_count);
        goto fail;
    }
    memset(self.made, LAYER_NONE, sizeof *self.made * (size_t)from->instruction_count);
    memset(self.computation, LAYER_NONE, sizeof *self.computation * (size_t)from->computation_count);
    module->name = from->name;
    self.computation[from->entry] =
        ir_compose_computation(&self.composer, from->computations[from->entry].name);
    mark_kept(self.is_kept, run);
    copy_computations(&self);
    if (module->arena.failed) status = am_fail_memory(error, from->instruction_count);
    if (status != AM_OK || self.fails) goto fail;
    find_standing(&self);
    find_updates(&self);
    TRY_OR_FAIL(ir_compose_finish(&self.composer, &made->origins, error));
    TRY_OR_FAIL(sample_loops_set(module, run, made, error));
    *sample = module;
    *record = made;
    return AM_OK;
fail:
    ir_module_free(module);
    return status;
}

AmStatus ir_sample_layers(IrModule **sample, IrLayerSample **record, const IrModule *canonical,
                          const IrRoles *roles, AmError *error) {
    Arena scratch = {0};
    LayerRun run;
    bool is_found = false;
    AmStatus status = AM_OK;
    *sample = NULL;
    int32_t root = canonical->computations[canonical->entry].root;
    if (canonical->instructions[root].opcode == IR_TUPLE)
        status = layer_run_find(&run, &is_found, &scratch, canonical, roles, error);
    if (status == AM_OK && is_found) status = compose(sample, record, &run, &scratch, error);
    arena_free(&scratch);
    return status;
}
