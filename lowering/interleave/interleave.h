/* Interleaves the forward and the backward loop of a pipeline: 1F1B and ZB-H1.
 *
 * A pipeline's step in micro-batches has a loop for the forward pass and one for the backward pass
 * (micro_batches.h, separate_backward). Run one after the other they are GPipe: the values that the
 * backward pass needs are kept for all micro-batches. On stage s of S, iteration m of the second
 * loop needs at most the first one's iteration m, so that they may alternate: the first runs at
 * most min(M, S - s) iterations ahead (DAPPLE), and only these are kept. No stage may keep fewer
 * iterations than its successor; otherwise both would wait for each other.
 *
 *   GPipe, stage 0 of 2, M = 4     F0 F1 F2 F3 B0 B1 B2 B3     4 places
 *   1F1B                           F0 F1 B0 F2 B1 F3 B2 B3     2 places
 *
 * Under ZB-H1 the second loop becomes two: the part of an iteration that can wait is a third loop
 * (interleave_weights.h).
 *
 * Stages run different iterations at a time, so that a transfer inside such a loop has slots: the
 * sender continues while up to |s - t| + 1 values are in flight to stage t. That suffices for
 * progress and for transfers to overlap with computation.
 */
#ifndef LOWERING_INTERLEAVE_INTERLEAVE_H
#define LOWERING_INTERLEAVE_INTERLEAVE_H

#include "lowering/program/program_edit.h"
#include "propagation/plan/pipeline_schedule.h"
#include "propagation/stages/stages.h"

/* Two loops of the entry: instruction numbers of the canonical module. */
typedef struct LoopPair {
    int32_t first, second;
    int32_t iterations;
} LoopPair;

/* Finds the loops whose iterations alternate, in order: loops of one trip count above 1, of which
 * the second reads results of the first. A loop is in one pair at most. In the arena. */
AmStatus interleave_pairs(LoopPair **pairs, int32_t *count, Arena *arena, const Rules *rules, AmError *error);

/* Joins the loops of each pair in a program without fusions and buffers (except in its regions),
 * for schedule 1f1b, zb_h1 or zb_2p: they become adjacent, the values between them have as many places as
 * stage `stage` keeps iterations, and transfers inside have slots. AM_ERROR_INFEASIBLE: the second
 * needs results of all iterations of the first; the message names the instruction and its source
 * line. */
AmStatus program_interleave(Program *program, const Rules *rules, const StageMap *map, int32_t stage,
                            ScheduleKind schedule, AmError *error);

/* Makes the values between the loops of each pair of such a program contiguous per iteration, for
 * schedule gpipe. Does nothing without pairs. */
AmStatus program_gather_stacks(Program *program, const Rules *rules, AmError *error);

/* Fuses and places a region anew after it was changed. */
AmStatus program_finish_again(Program *region, AmError *error);

/* A value that passes from the first loop to the second, one place per iteration
 * (interleave_stacks.c): operand `operand` of the second is, through views, result `result` of the
 * first, an array in which iteration m writes and reads place m of dimension `dimension`. */
typedef struct LoopStack {
    int32_t operand, result;
    int32_t dimension;
    int32_t kept;    /* places that are enough */
    bool may_shrink; /* it has no other user, and its initial value is a repeated scalar */
} LoopStack;

/* A pair in one program, and who uses what there and in the bodies. */
typedef struct JoinedLoops {
    Program *program;
    int32_t first, second; /* instructions */
    int32_t iterations;
    ProgramUses uses, in_first, in_second;
} JoinedLoops;

/* Finds the uses of values in the program and in the bodies of two loops, in the arena. */
AmStatus joined_loops_open(JoinedLoops *loops, Arena *arena, Program *program, int32_t first, int32_t second,
                           int32_t iterations, AmError *error);
/* Returns whether operand `operand` of the second loop is such an array. */
bool stack_find(LoopStack *stack, const JoinedLoops *loops, int32_t operand);
/* Returns whether a later pass computes result `result` of an instruction again for another reason. */
typedef bool RepeatsToo(const Program *program, const ProgramInstruction *instruction, int32_t result);
/* Finds what a later pass has or computes again, [value], given what it has: results of cheap operators
 * (FACT_REPEATABLE) on such values, and those of `repeats_too`, which may be NULL. They leave `is_kept`
 * (stacks_spare.c). */
void stacks_find_repeated(const Program *body, bool *is_kept, bool *is_had, RepeatsToo *repeats_too);
/* Adds the stacks to program->spare_bytes whose values the second loop could compute again from the others
 * and from what never changes, by cheap operators alone, and to program->kept_bytes the others
 * (stacks_spare.c). */
AmStatus stacks_count_spare(const JoinedLoops *loops, const LoopStack *stacks, int32_t count, AmError *error);
/* Reduces the stacks that may shrink to the sufficient number of places, of which there are at most
 * two, along their first dimension, so that a place is contiguous. The program and both bodies
 * change and get other instruction numbers. */
AmStatus stacks_shrink(JoinedLoops *loops, const LoopStack *stacks, int32_t count, AmError *error);

#endif
