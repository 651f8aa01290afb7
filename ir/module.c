/* Modules as a whole: made, released, and one question that readers, rules and
 * kernels all ask of a computation: which scalar operator it is.
 */
#include "ir/module.h"

#include <stdlib.h>

IrModule *ir_module_new(const char *source) {
    IrModule *module = calloc(1, sizeof *module);
    if (module == NULL) return NULL;
    module->warnings.arena = &module->arena;
    module->source = arena_copy_string(&module->arena, source);
    module->name = "";
    if (module->source == NULL) {
        ir_module_free(module);
        return NULL;
    }
    return module;
}

void ir_module_free(IrModule *module) {
    if (module == NULL) return;
    arena_free(&module->arena);
    arena_free(&module->lists);
    free(module);
}

IrOpcode ir_computation_operator(const IrModule *module, int32_t computation) {
    const IrComputation *body = &module->computations[computation];
    if (body->parameter_count != 2 || body->count != 3) return IR_UNKNOWN;
    const IrInstruction *root = &module->instructions[body->root];
    if (root->operand_count != 2 || root->shape.type == DTYPE_TUPLE) return IR_UNKNOWN;
    int32_t left = root->operands[0], right = root->operands[1];
    int32_t first = body->parameters[0], second = body->parameters[1];
    bool in_order = left == first && right == second, swapped = left == second && right == first;
    return in_order || swapped ? root->opcode : IR_UNKNOWN;
}
