/* Builds a canonical module computation by computation, for transformations that rewrite a module.
 *
 * Instructions are appended to computations in any order of computations, operands before users.
 * ir_compose_finish() arranges them in the canonical order (ir/canonical/canonical.h): the entry first, then
 * the computations in the order of their first reference.
 */
#ifndef IR_CANONICAL_COMPOSE_H
#define IR_CANONICAL_COMPOSE_H

#include "ir/module.h"

typedef struct IrComposed {
    const char *name;
    IrInstruction *instructions; /* operands are indices into this list, called ones of the composer */
    int32_t *origins;            /* for each instruction, an origin chosen by the caller */
    int32_t count, capacity, origin_capacity;
    int32_t root;
} IrComposed;

typedef struct IrComposer {
    IrModule *module;         /* the result; everything but the lists is in its arena */
    IrComposed *computations; /* in module->lists */
    int32_t count, capacity;
} IrComposer;

/* Returns the number of the computation; 0 is the entry. */
int32_t ir_compose_computation(IrComposer *composer, const char *name);
/* Returns an instruction named by its opcode that serves another one, whose op_name and source it has.
 * `attributes` NULL: none. Shape, operands and attributes are not copied. */
IrInstruction ir_serving(const IrInstruction *served, IrOpcode opcode, const IrShape *shape,
                         const int32_t *operands, int32_t operand_count, const IrAttributes *attributes);
/* Appends a copy of *instruction; its index in the computation. Operands and
 * called computations are copied too. */
int32_t ir_compose(IrComposer *composer, int32_t computation, const IrInstruction *instruction,
                   int32_t origin);
static inline IrInstruction *ir_composed(const IrComposer *composer, int32_t computation, int32_t index) {
    return &composer->computations[computation].instructions[index];
}
/* Fills composer->module, whose entry keeps its numbers; `*origins`
 * [instruction_count] lives in its arena. Finds loops and called work. Frees the lists, as ir_module_free()
 * does where the composition fails before. */
AmStatus ir_compose_finish(IrComposer *composer, int32_t **origins, AmError *error);

#endif
