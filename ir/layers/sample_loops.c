/* Sets the layers of a sample's instructions, and marks the values of weights and gradients.
 *
 * An instruction of a sample stands for as many layers as its layer does. IrLoops has these numbers, so that
 * prices multiply by them as by the trips of a loop. A pipeline may be cut at the first instruction of a
 * layer.
 */
#include "ir/layers/sample_loops.h"

#include "ir/analysis/loops.h"
#include "ir/layers/kept_layers.h"

/* Marks values that follow from one weight alone, and gradients. A gradient is a value of the backward pass
 * that only updates read, directly or after operators that keep its elements. */
static void mark_beside(bool *is_beside, const IrModule *module, const IrPhase *phases,
                        const IrParameter *parameters, int32_t parameter_count) {
    int32_t count = module->computations[module->entry].count;
    for (int32_t p = 0; p < parameter_count; p++)
        is_beside[module->computations[module->entry].parameters[p]] = parameters[p].role == IR_ROLE_WEIGHT;
    for (int32_t i = count - 1; i >= 0; i--) /* for now: gradients are not read by anything else */
        if (phases[i] == IR_PHASE_BACKWARD) is_beside[i] = true;
    for (int32_t i = count - 1; i >= 0; i--) {
        const IrInstruction *user = &module->instructions[i];
        for (int32_t k = 0; k < user->operand_count; k++) {
            int32_t operand = user->operands[k];
            const IrShape *from = &module->instructions[operand].shape;
            if (phases[operand] != IR_PHASE_BACKWARD || phases[i] == IR_PHASE_OPTIMIZER) continue;
            bool keeps = phases[i] == IR_PHASE_BACKWARD && is_beside[i] && !ir_is_product(user->opcode) &&
                         user->opcode != IR_TUPLE && from->type != DTYPE_TUPLE &&
                         user->shape.type != DTYPE_TUPLE &&
                         ir_shape_elements(from) == ir_shape_elements(&user->shape);
            if (!keeps) is_beside[operand] = false;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        if (instruction->operand_count == 1 && phases[i] != IR_PHASE_BACKWARD)
            is_beside[i] = is_beside[instruction->operands[0]];
    }
}

AmStatus sample_loops_set(IrModule *module, const LayerRun *run, const IrLayerSample *record,
                          AmError *error) {
    const int32_t *origins = record->origins;
    int32_t *layers = ARENA_ARRAY(&module->arena, int32_t, module->instruction_count + 1);
    int32_t *place = ARENA_ARRAY(&module->arena, int32_t, module->instruction_count + 1), places = 0;
    int32_t *number = ARENA_ARRAY(&module->arena, int32_t, module->instruction_count + 1);
    IrPhase *phases = ARENA_ARRAY(&module->arena, IrPhase, module->instruction_count + 1);
    IrLoops *loops = ARENA_ARRAY(&module->arena, IrLoops, 1);
    bool *is_beside = ARENA_ARRAY(&module->arena, bool, module->instruction_count + 1);
    bool *may_cut = ARENA_ARRAY(&module->arena, bool, module->instruction_count + 1);
    IrParameter *parameters = ARENA_ARRAY(&module->arena, IrParameter, record->parameter_count + 1);
    if (module->arena.failed) return am_fail_memory(error, module->instruction_count);
    for (int32_t p = 0; p < record->parameter_count; p++)
        parameters[p] = run->roles->parameters[record->parameters[p]];
    for (int32_t i = 0; i < module->instruction_count; i++) {
        layers[i] = 1;
        number[i] = place[i] = LAYER_NONE;
        phases[i] = run->roles->phases[origins[i]];
    }
    for (int32_t i = 0; i < module->computations[0].count; i++) {
        int32_t layer = run->layer[origins[i]];
        if (layer >= 0) layers[i] = kept_layers_count(run, layer);
        if (layer >= 0) number[i] = kept_layers_number(run, layer);
        if (layer >= run->low && layer <= run->high) place[i] = run->place[origins[i]];
        if (place[i] >= places) places = place[i] + 1;
        may_cut[i] = layers[i] == 1 || (layer > 0 && origins[i] == run->borders[layer - 1]);
    }
    for (int32_t i = 0; i < module->instruction_count; i++) /* callers come before what they call */
        for (int32_t k = 0; k < module->instructions[i].called_count; k++) {
            const IrComputation *called = &module->computations[module->instructions[i].called[k]];
            for (int32_t j = called->first; j < called->first + called->count; j++) {
                layers[j] = layers[i];
                number[j] = number[i];
            }
        }
    *loops = *module->loops;
    loops->layers = layers;
    loops->layer = number;
    loops->layer_count = kept_layers_number(run, run->layers);
    loops->place = place;
    loops->place_count = places;
    loops->phases = phases;
    mark_beside(is_beside, module, phases, parameters, record->parameter_count);
    loops->is_beside = is_beside;
    loops->may_cut = may_cut;
    module->loops = loops;
    return AM_OK;
}
