/* What the programs of a stage do in a step, apart from what it costs: the steps that they execute with their
 * work, and the pieces between which the stage meets others (pipeline_clock.h). It follows from the lowered
 * programs and is made with them, once; prices (stage_costs.h) are then found for the different events alone.
 */
#ifndef COST_STAGE_EVENTS_H
#define COST_STAGE_EVENTS_H

#include "cost/executed.h"
#include "cost/memory.h"
#include "cost/pipeline_clock.h"

/* In place of the number of a work. */
enum { EVENT_COLLECTIVE = -1, EVENT_TRANSFER = -2 };

/* One distinct program. */
typedef struct ProgramEvents {
    ExecutedStep *steps; /* the program's own updates are the last one */
    int32_t step_count;
    double *turns;       /* [step] of the spans around it, multiplied */
    int32_t *work_of;    /* [step]: its work, or what it is in place of one */
    OperatorWork *works; /* the different ones; each names the first step that has it */
    int32_t *first_step; /* [work]: this one */
    int32_t work_count;
    double *tensor_bytes; /* [step] of collectives, each time */
    double flops;
    MemoryUse memory;
} ProgramEvents;

/* Executed steps [first, end): one transfer, or what is between. */
typedef struct StagePiece {
    int32_t first, end;
    const ProgramTransfer *transfer; /* or NULL */
} StagePiece;

typedef struct StagePieces {
    StagePiece *pieces;
    PipelineSpan *spans;
    int32_t piece_count, span_count;
    int32_t most_collectives; /* in a piece */
} StagePieces;

/* Lists what a program executes; everything lives in the arena. Of conditionals the branch that takes longest
 * on `type`. `gradients`: memory_find_gradients() of its module. `pieces`, or NULL, gets what all devices
 * have alike. */
AmStatus stage_events_list(ProgramEvents *self, StagePieces *pieces, Arena *arena, const Program *program,
                           const ClusterDeviceType *type, const uint8_t *gradients, AmError *error);

#endif
