/* Turns of the backward pass between turns of the forward pass: 1F1B and ZB-H1.
 *
 * A pipeline's step in micro-batches has a loop for the forward pass and one for
 * the backward pass (micro_batches.h, separate_backward). Run one after the other
 * they are GPipe: all turns of what the backward pass needs are kept. On stage s of
 * S, turn m of the second loop needs no more than the first one's turn m, so that
 * they may alternate: the first runs at most min(M, S - s) turns ahead (DAPPLE), and
 * no more is kept. No stage may keep fewer turns than the one after it, or both would
 * wait for one another.
 *
 *   GPipe, stage 0 of 2, M = 4     F0 F1 F2 F3 B0 B1 B2 B3     4 places
 *   1F1B                           F0 F1 B0 F2 B1 F3 B2 B3     2 places
 *
 * Under ZB-H1 the second loop is two: what of a turn of it can wait is a third one (interleave_weights.h).
 *
 * As stages are in different turns, a transfer inside such a loop has slots: the
 * giver goes on while up to |s - t| + 1 values are under way to stage t, which is
 * enough for all to come to an end and for transfers to take place beside the work.
 */
#ifndef PROPAGATION_INTERLEAVE_H
#define PROPAGATION_INTERLEAVE_H

#include "propagation/pipeline_schedule.h"
#include "propagation/program.h"
#include "propagation/stages.h"

/* Two loops of the entry: instruction numbers of the canonical module. */
typedef struct LoopPair {
    int32_t first, second;
    int32_t turns;
} LoopPair;

/* The loops whose turns alternate, in order: loops of one trip count, more than 1, of which the
 * second takes what the first has made. A loop is in one pair at most. In the arena. */
AmStatus interleave_pairs(LoopPair **pairs, int32_t *count, Arena *arena, const Rules *rules, AmError *error);

/* Joins the loops of each pair in a program that is neither fused nor has buffers, but for its regions, for
 * schedule 1f1b or zb_h1: they stand side by side, what passes between them has as many places as
 * stage `stage` keeps turns, and transfers inside have slots. AM_ERROR_INFEASIBLE: the second
 * needs what only all turns of the first have made; named with its place in the source. */
AmStatus program_interleave(Program *program, const Rules *rules, const StageMap *map, int32_t stage,
                            ScheduleKind schedule, AmError *error);

/* What passes between the loops of each pair of such a program, for schedule gpipe: turn by turn in places
 * that lie together each. Does nothing where there are no pairs. */
AmStatus program_gather_stacks(Program *program, const Rules *rules, AmError *error);

/* Where each value is made and used, and edits of the list of instructions (interleave_edit.c). */
typedef struct ProgramUses {
    int32_t *maker;         /* [value]: instruction, or -1 */
    int32_t *first, *users; /* value v is used by instructions users[first[v]] .. users[first[v + 1] - 1] */
    bool *is_output;        /* [value] */
} ProgramUses;

/* Adds a value that has its own memory; its number. */
int32_t program_add_value(Program *program, const ProgramValue *value);
AmStatus program_uses(ProgramUses *uses, Arena *arena, const Program *program, AmError *error);
/* The list becomes list[count], a selection and order of the present ones. */
AmStatus program_relist(Program *program, const int32_t *list, int32_t count, AmError *error);
/* Fuses and places a region anew after it was changed. */
AmStatus program_finish_again(Program *region, AmError *error);

/* What passes from the first loop to the second, turn by turn (interleave_stacks.c): operand `operand` of
 * the second is, through views, result `result` of the first, an array in which turn m writes
 * and reads place m of dimension `dimension`. */
typedef struct LoopStack {
    int32_t operand, result;
    int32_t dimension;
    int32_t kept;    /* places that are enough */
    bool may_shrink; /* nobody else has it, and it begins as a scalar that is repeated */
} LoopStack;

/* A pair in one program, and who uses what there and in the bodies. */
typedef struct JoinedLoops {
    Program *program;
    int32_t first, second; /* instructions */
    int32_t turns;
    ProgramUses uses, in_first, in_second;
} JoinedLoops;

AmStatus joined_loops_open(JoinedLoops *loops, Arena *arena, Program *program, int32_t first, int32_t second,
                           int32_t turns, AmError *error);
/* Returns whether operand `operand` of the second loop is such an array. */
bool stack_find(LoopStack *stack, const JoinedLoops *loops, int32_t operand);
/* Gives the stacks that may shrink as many places as are enough, of which there are two numbers at most,
 * along their first dimension, so that a place lies together. The program and both bodies are changed and
 * have other instruction numbers. */
AmStatus stacks_shrink(JoinedLoops *loops, const LoopStack *stacks, int32_t count, AmError *error);

#endif
