/* The state of one lowering, shared by the files of this folder.
 *
 * lower.c lowers instructions in order, and reshard.c brings operands into the needed states. lower_loop.c
 * and lower_branches.c lower loops and conditionals as programs of their own. lower_stages.c and transfer.c
 * restrict a program to its stage.
 */
#ifndef LOWERING_SPMD_LOWER_INTERNAL_H
#define LOWERING_SPMD_LOWER_INTERNAL_H

#include "lowering/spmd/lower.h"
#include "lowering/spmd/lower_memo.h"
#include "propagation/assign/split.h"

/* Numbers in the place of a leaf (LoweredState.leaf), for values that are no leaf of a result of the
 * module. */
#define LOWERED_F32_SUM   (-1) /* the f32 sum of a result of a 16-bit type, not yet rounded */
#define LOWERED_HALO      (-2) /* a shard with elements of its neighbours, for one user */
#define LOWERED_IN_BLOCKS (-3) /* a view of the value in which it is moved */
#define LOWERED_HELPER    (-4) /* a value of a reshard or a conversion */

/* A value that is resharded again for every pass is used again in the same pass until
 * so many others have been. */
#define LOWERED_NEAR_GATHERS 16

/* Which result of its origin a value holds, and in which state. */
typedef struct LoweredState {
    int32_t older; /* another value of that origin, or -1 */
    int32_t leaf;
    int32_t gather; /* 0: it lasts; else the number of the resharding that made it for one pass: */
    IrPhase pass;   /* this one, forward or backward for instance */
    SbpState state;
} LoweredState;

/* The stage that is lowered among others. */
typedef struct LoweredStages {
    const PlanContext *context;
    const StageMap *map;
    Assignment *const *assignments; /* [stage_count] */
    int32_t stage;
    ScheduleKind schedule;
    StageSet *awaited; /* [instruction]: stages for which its transfer, or that of its source, is delayed */
} LoweredStages;

/* One program being made: the stage's, or that of a loop's body or condition. */
typedef struct Lowering {
    Arena *arena;   /* of the program */
    Arena *scratch; /* of `states`, which the passes over the program do not need */
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    const IrRoles *roles;
    const Assignment *assignment;
    const Mesh *mesh;            /* of the stage; set by lower_begin() */
    const LoweredStages *stages; /* NULL: the stage has everything */
    int32_t transfers;           /* of this program so far, of other stages as well */
    int32_t sender, receiver;    /* of the last one */
    int32_t *put_off; /* [put_off_count]: instructions of this program whose transfers are to come */
    int32_t put_off_count, put_off_capacity;
    bool *is_uneven; /* shards of some value so far differ in size; shared with regions */
    LowerMemo *memo; /* likewise shared */
    int32_t device;
    bool fuses_rows; /* reductions with their neighbours (lowering/passes/row_groups.c) */
    Program *program;
    LoweredState *states; /* [value] */
    int32_t state_capacity;
    IrPhase phase;   /* of the instruction that is being lowered */
    int32_t gathers; /* reshards so far of values that are resharded for every pass */
    int32_t *newest; /* [instruction]: the last of its values, or -1; shared with regions, since an
                        instruction is in one program only */
} Lowering;

/* Starts the program of a computation, with room for about as many instructions as this stage holds of it. */
AmStatus lower_begin(Lowering *self, const IrRoles *roles, int32_t computation, AmError *error);
/* Lowers the live instructions of a planned computation, in order. */
AmStatus lower_instructions(Lowering *self, int32_t computation, AmError *error);
/* Merges, fuses and gives buffers to a program that has its parameters and outputs. */
AmStatus lower_finish(Lowering *self, AmError *error);
/* Reduces a partial value of (instruction i, leaf) at its definition, except the part that is left
 * to its user. */
AmStatus lower_finish_partial(Lowering *self, int32_t i, int32_t leaf, int32_t value, AmError *error);
/* Lowers a planned loop: its operands, results and regions. */
AmStatus lower_loop(Lowering *self, const PlannedLoop *loop, AmError *error);

/* Lowers a planned conditional: its operands, results and branches. */
AmStatus lower_conditional(Lowering *self, const PlannedConditional *conditional, AmError *error);

/* Returns whether this stage has an instruction, parameter, output, array of a planned loop
 * (lower_stages.c). */
bool lower_holds(const Lowering *self, int32_t i);
bool lower_holds_parameter(const Lowering *self, int32_t k);
bool lower_holds_output(const Lowering *self, int32_t k);
/* Returns whether an array of a loop changes or is read in it. */
bool lower_needs_leaf(const Lowering *self, const LoopLeaf *leaf);
/* Finds the arrays of a loop that this stage carries, ascending; `*count` of them, in the arena. */
AmStatus lower_list_carried(const Lowering *self, const PlannedLoop *loop, int32_t **leaves, int32_t *count,
                            AmError *error);
/* Handle transfers. All stages call these for all instructions, in one order. `lower_value_defined`:
 * instruction i is computed, and is sent before its first user. `lower_flush_transfers`: i is about to be
 * computed; its operands are sent together with all delayed values. `lower_transfers`: sends all delayed
 * values. */
AmStatus lower_value_defined(Lowering *self, int32_t i, AmError *error);
AmStatus lower_flush_transfers(Lowering *self, int32_t i, AmError *error);
AmStatus lower_transfers(Lowering *self, AmError *error);

/* A result of an instruction, in no state yet. */
typedef struct LoweredResult {
    int32_t i, leaf;       /* instruction; leaf of its result, or LOWERED_* */
    const IrShape *global; /* global shape */
} LoweredResult;

/* Adds a value that holds (instruction, leaf) in `state`, produced by the next
 * instruction to be added. `global` is the global shape. */
int32_t lower_add_value(Lowering *self, int32_t instruction, int32_t leaf, const IrShape *global,
                        SbpState state);
ProgramInstruction *lower_add_instruction(Lowering *self);

/* Returns the shape in f32. */
IrShape lower_f32_shape(const IrShape *shape);
/* Converts `value` to the type of `result`, in the same state; `*converted` becomes a value of `result`. */
AmStatus lower_convert(Lowering *self, LoweredResult result, int32_t value, int32_t *converted,
                       AmError *error);

/* Finds the value of (instruction i, leaf) in the given state, resharded or made if need be. */
AmStatus lower_operand_in_state(Lowering *self, int32_t i, int32_t leaf, SbpState state, int32_t *value,
                                AmError *error);

/* Returns whether the result of an operator without operands depends on the position of the shard
 * in the global array (ProgramShard).
 */
static inline bool lower_makes_by_place(IrOpcode opcode) {
    return opcode == IR_IOTA || opcode == IR_RNG || opcode == IR_RNG_BIT_GENERATOR;
}
/* Returns whether indices of the operator select the position in operand 0 where it reads or
 * writes; the sizes of the window that they move, without splits: [rank of operand 0]. */
bool lower_moves_window(IrOpcode opcode);
const int64_t *lower_window(Arena *arena, const IrModule *module, const IrInstruction *source);
/* Returns the position of a shard of a tensor of that shape in the global array; `window` as in
 * lower_window(), or NULL. */
const ProgramShard *lower_shard(Lowering *self, const IrShape *shape, SbpState state, const int64_t *window);
/* Returns the part of a constant that this device holds, row-major. */
const IrLiteral *lower_literal(Lowering *self, const IrInstruction *instruction, SbpState state);
/* Attributes that contain sizes, rewritten for the local operand, whose global array has shape `operand`. */
const IrAttributes *lower_attributes(Lowering *self, const IrInstruction *instruction, SbpState state,
                                     const IrShape *operand);
/* Returns whether the result, a value, has the elements of the operand, also a value, in the same
 * memory order, on every device. */
bool lower_is_view(const Lowering *self, const IrInstruction *instruction, int32_t operand, int32_t result);
/* Finds the groups that a convolution's shard has, which is made of whole ones. */
AmStatus lower_local_groups(const Lowering *self, ProgramInstruction *instruction,
                            const IrInstruction *source, AmError *error);

/* Returns whether one of the factors that instruction i splits brings operands to ranges of their own
 * (lower_halo.c).
 */
bool lower_has_halo(const Lowering *self, int32_t i, const int8_t *factors);
/* Returns the state in which to request such an operand, `state` being that of plain shards: its stored
 * state, or replicated. */
SbpState lower_halo_state(const Lowering *self, int32_t i, const int8_t *factors, int32_t slot,
                          SbpState state);
/* Emits such an instruction. Its operands, in the requested states, are replaced by the resharded
 * values. */
AmStatus lower_halo(Lowering *self, int32_t i, const int8_t *factors, int32_t *operands,
                    SbpState result_state, AmError *error);

/* Returns whether instructions of this opcode run computations as programs of their own (program.h). */
bool lower_has_regions(IrOpcode opcode);
/* Refuses a bitcast that reads elements in another order, as those of compiled modules do. AM_ERROR_INPUT. */
AmStatus lower_check_bitcast(const IrModule *module, int32_t i, AmError *error);
/* Refuses computations that multiply beyond all proportion, mention by mention. AM_ERROR_INPUT. */
AmStatus lower_check_regions(const IrModule *module, const IrInstruction *instruction, AmError *error);
/* Gives an instruction whose operands are set its regions, with all values replicated. */
AmStatus lower_replicated_regions(ProgramInstruction *instruction, Arena *arena, const IrModule *module,
                                  AmError *error);

/* Gives a fusion of products its region, with the shapes that follow from its operands and results. */
AmStatus lower_fusion_region(Lowering *self, ProgramInstruction *instruction, AmError *error);
/* Fuses and gives buffers to the regions of fusions of products, after transposes beside them are inside. */
AmStatus lower_finish_fusion_regions(Program *program, AmError *error);

/* Emits the collectives and slices from value `from` of a result to state `to`; every state on the way is
 * remembered. */
AmStatus reshard_value(Lowering *self, LoweredResult result, int32_t from, SbpState to, int32_t *value,
                       AmError *error);

/* Returns the state from which `to` is made by making some axes partial, which moves nothing; `to` itself
 * where `from` has all its partial axes. All axes that split a dimension of it cut the same blocks, so that
 * there is a way to it. */
SbpState reshard_before_partial(SbpState from, SbpState to);
/* Makes that last step; its operators are of one kind. */
AmStatus reshard_make_partial(Lowering *self, LoweredResult result, int32_t from, SbpState to, int32_t *value,
                              AmError *error);

#endif
