/* Roles of the entry's parameters and phases of its instructions.
 *
 * Roles and pairs (weight, optimizer, state, data, constant) are read from model.roles.json if it
 * exists; otherwise they follow from data flow, then order and shape; an alias only breaks ties.
 * Phases follow from data flow, and op_names refine them, so that a module without metadata gets
 * the same plan. All arrays are allocated in the caller's arena.
 */
#ifndef IR_ANALYSIS_ROLES_H
#define IR_ANALYSIS_ROLES_H

#include "ir/module.h"

typedef enum IrRole {
    IR_ROLE_WEIGHT,
    IR_ROLE_OPTIMIZER,
    IR_ROLE_STATE,
    IR_ROLE_DATA,
    IR_ROLE_CONSTANT
} IrRole;
const char *ir_role_name(IrRole role); /* "weight", ... */

typedef enum IrPhase {
    IR_PHASE_FORWARD,    /* an ancestor of the loss, a metric or a running statistic */
    IR_PHASE_RECOMPUTED, /* forward values made once more for the backward pass */
    IR_PHASE_BACKWARD,   /* from the loss's cotangent to the weights' gradients */
    IR_PHASE_OPTIMIZER,  /* from a gradient to the new weight or optimizer state */
    IR_PHASE_OTHER       /* parameters, constants, and what serves no output */
} IrPhase;
const char *ir_phase_name(IrPhase phase);

/* Returns whether instructions of the phase run with the forward pass: its own, and those of no phase. */
static inline bool ir_phase_is_with_forward(IrPhase phase) {
    return phase == IR_PHASE_FORWARD || phase == IR_PHASE_OTHER;
}

typedef struct IrParameter {
    int32_t number, instruction;
    const char *path; /* op_name, else the instruction's name, made unique as name#2 */
    IrRole role;
    int32_t output;        /* index of the output that updates it, or -1 */
    const char *paired_by; /* "roles file", "data flow", "order", "alias" or "" */
    int32_t moved_from; /* of data: where the user's tensor has the examples, first here; -1: it has none */
} IrParameter;

typedef struct IrRoles {
    IrParameter *parameters; /* by number */
    int32_t parameter_count;
    int32_t *outputs; /* instruction of output k: the operands of a root tuple, else the root itself */
    int32_t output_count;
    int32_t loss;     /* output index, or -1 */
    IrPhase *phases;  /* per instruction of the canonical module, loop bodies included */
    int32_t *repeats; /* per instruction: the forward one whose value a recomputed one makes again, or -1 */
    const char
        *whole_batch; /* why the exporter's step cannot run on parts of its batch, as a clause, or NULL */
} IrRoles;

/* Finds the roles. `roles_path` may be NULL; looking for a model.roles.json beside the model is the caller's
 * business. Disagreements become warnings of `canonical`. */
AmStatus ir_find_roles(IrRoles **roles, Arena *arena, IrModule *canonical, const char *roles_path,
                       AmError *error);

/* Fills outputs, phases and repeats of roles whose parameters and loss are known, as of a module made from
 * another. */
AmStatus ir_complete_roles(IrRoles *roles, Arena *arena, const IrModule *canonical, AmError *error);

/* Returns whether the source recomputes forward values in the backward pass, as with jax.checkpoint. */
bool ir_source_recomputes(const IrRoles *roles, const IrModule *canonical);

/* Returns why the module trains nothing, as a clause, or NULL if it updates a weight: some weight has an
 * output that is not the weight itself. The text lives in `arena`. */
const char *ir_no_training(Arena *arena, const IrRoles *roles);

#endif
