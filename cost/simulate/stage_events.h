/* The events of a stage's programs in a step, without costs: the executed steps with their work,
 * and the pieces between which the stage waits for others (pipeline_clock.h). They follow from the
 * lowered programs and are built once with them; prices (stage_costs.h) are then computed for
 * distinct events only.
 */
#ifndef COST_SIMULATE_STAGE_EVENTS_H
#define COST_SIMULATE_STAGE_EVENTS_H

#include "cost/simulate/pipeline_clock.h"
#include "cost/step/executed.h"
#include "cost/step/memory.h"

/* In place of the number of a work. */
enum { EVENT_COLLECTIVE = -1, EVENT_TRANSFER = -2 };

/* One distinct program. */
typedef struct ProgramEvents {
    ExecutedStep *steps; /* the program's own updates are the last one */
    int32_t step_count;
    double *iterations;  /* [step] of the spans around it, multiplied */
    int32_t *work_of;    /* [step]: its work, or the marker that replaces it */
    OperatorWork *works; /* the different ones; each names the first step that has it */
    int32_t *first_step; /* [work]: this one */
    int32_t work_count;
    double *tensor_bytes; /* [step] of collectives, each time */
    double flops;
    MemoryUse memory;
    bool is_even; /* the shards of every value have one size */
} ProgramEvents;

/* Executed steps [first, end): one transfer, or the steps between two transfers. */
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

/* Lists the steps that a program executes; all memory is from the arena. A conditional counts as
 * its slowest branch on `type`. `gradients`: memory_find_gradients() of its module. `pieces`,
 * unless NULL, receives the pieces, which all devices share. */
AmStatus stage_events_list(ProgramEvents *self, StagePieces *pieces, Arena *arena, const Program *program,
                           const ClusterDeviceType *type, const uint8_t *gradients, AmError *error);

#endif
