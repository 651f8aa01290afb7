/* What lower.c and box.c share: the state of one lowering. */
#ifndef PROPAGATION_LOWER_INTERNAL_H
#define PROPAGATION_LOWER_INTERNAL_H

#include "propagation/lower.h"

/* A value that holds (instruction, leaf) in some state. */
typedef struct LoweredState {
    struct LoweredState *next;
    int32_t leaf, value;
} LoweredState;

typedef struct Lowering {
    Arena *arena;
    const IrModule *module;
    const Rules *rules;
    const IrRoles *roles;
    const Completion *completion;
    Program *program;
    LoweredState **states; /* [instruction] */
} Lowering;

/* Adds a value produced by the next instruction to be added. */
int32_t lower_add_value(Lowering *self, const IrShape *global, int32_t origin, SbpState state);
ProgramInstruction *lower_add_instruction(Lowering *self);
void lower_remember(Lowering *self, int32_t instruction, int32_t leaf, int32_t value);

/* The value of (instruction i, leaf) in the given state, boxed or made if need be. */
AmStatus lower_ask_for(Lowering *self, int32_t i, int32_t leaf, SbpState state, int32_t *value,
                       AmError *error);

/* Share of the whole tensor that a device receives when boxing from one state
 * to another; -1 where that is impossible (making a value partial). */
double box_weight(const Mesh *mesh, SbpState from, SbpState to);

/* Emits the collectives and slices from value `from` to `to`; every state on
 * the way is remembered. `global` is the whole shape. */
AmStatus box_value(Lowering *self, int32_t i, int32_t leaf, const IrShape *global, int32_t from, SbpState to,
                   int32_t *value, AmError *error);

/* Independent collectives of one kind, group, reduction and type become one. */
AmStatus program_merge_collectives(Program *program, AmError *error);

#endif
