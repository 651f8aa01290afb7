/* The steps that a program executes in one training step, including those inside loops.
 *
 * executed_steps() lists steps in order, each with the number of times that it runs; executed_stage() also
 * lists the loops whose iterations alternate. Prices and simulations go over these lists instead of nested
 * programs.
 */
#ifndef COST_STEP_EXECUTED_H
#define COST_STEP_EXECUTED_H

#include "cost/operator/operator.h"
#include "cost/step/device_streams.h"
#include "ir/analysis/loops.h"
#include "lowering/program/program.h"

/* A step of the program or of a region somewhere in it. */
typedef struct ExecutedStep {
    const Program *program;
    int32_t step; /* program->execution.step_count: the updates with which an iteration of a loop ends */
    double times; /* that it runs */
    const ProgramInstruction *instruction; /* NULL: a fusion, or updates */
    int32_t wait; /* how many executed steps before this one the collective is that it waits for
                     (lowering/program/waits.h); 0: none */
} ExecutedStep;

/* Lists in order the program's steps, after each loop or conditional what that runs. A loop's body counts
 * trip count times, and once where that is unknown; the condition once more; of a conditional the branch that
 * takes longest on `type`. The array is the arena's. The program's own updates are not in it. */
AmStatus executed_steps(ExecutedStep **steps, int32_t *count, Arena *arena, const Program *program,
                        const ClusterDeviceType *type, AmError *error);

/* steps[first, end) of a loop: they run in sequence, `iterations` times, and each step counts `times` in
 * every iteration. If loops are joined (InterleavedLoops), the first names the others: their iterations
 * alternate. The first is at most `kept` iterations ahead of the second and `kept_until_third`
 * ahead of the third; the second is at most `kept_from_second` ahead of the third. */
typedef struct ExecutedSpan {
    int32_t first, end;
    int64_t iterations;
    int32_t second, third; /* spans of the loops that are joined with this one; -1: none, or this is one */
    int64_t kept, kept_until_third, kept_from_second;
    const InterleavedLoops
        *chunks;           /* of several chunks (then second and third are -1): the spans of all joined
                          loops follow on one another in the loops' order, inner spans between */
    const int32_t *joined; /* [chunks->chunks * 2]: these spans */
} ExecutedSpan;

/* Lists the steps of a stage of a pipeline: a loop with transfers inside becomes a span, outer spans before
 * inner ones. At most EXECUTED_MOST_ITERATIONS iterations remain, those of nested loops multiplied; then
 * each represents several. The program's own updates are the last step. */
enum { EXECUTED_MOST_ITERATIONS = 4096 };
AmStatus executed_stage(ExecutedStep **steps, int32_t *count, ExecutedSpan **spans, int32_t *span_count,
                        Arena *arena, const Program *program, const ClusterDeviceType *type, AmError *error);

/* Returns the instruction of the canonical module from which a step comes, of a fusion the last one; -1:
 * none. */
int32_t executed_origin(const ExecutedStep *executed);

/* Returns the instruction of a step that is a transfer, else NULL. */
static inline const ProgramInstruction *executed_transfer(const ExecutedStep *executed) {
    const ProgramInstruction *instruction = executed->instruction;
    return instruction && instruction->kind == PROGRAM_TRANSFER ? instruction : NULL;
}
/* Returns the instruction of a step that is a collective, else NULL. */
static inline const ProgramInstruction *executed_collective(const ExecutedStep *executed) {
    const ProgramInstruction *instruction = executed->instruction;
    return instruction && instruction->kind == PROGRAM_COLLECTIVE ? instruction : NULL;
}
/* Returns the layers of a collective of a sample that runs beside operators; else one. */
static inline StreamLayers executed_layers_beside(const ExecutedStep *executed) {
    const ProgramInstruction *collective = executed_collective(executed);
    const IrModule *module = executed->program->module;
    const StreamLayers one = {.count = 1};
    if (!collective || collective->origin < 0 || !ir_is_sample(module)) return one;
    if (!module->loops->is_beside[collective->origin]) return one;
    return (StreamLayers){module->loops->layers[collective->origin], program_gathers(collective)};
}
/* Sets the layers that the computation of a step represents, unless it computes weights or gradients alone,
 * which may be those of other layers. */
static inline void executed_set_layers(DeviceStreams *streams, const ExecutedStep *executed) {
    const IrLoops *loops = executed->program->module->loops;
    if (!ir_is_sample(executed->program->module)) return;
    int32_t origin = executed_origin(executed);
    if (origin >= 0 && !loops->is_beside[origin]) streams->of_layers = loops->layers[origin];
}
/* Finds the work of one execution on a device; zero for collectives and updates. */
void executed_work(OperatorWork *work, const ExecutedStep *executed);
/* Returns the seconds of one run on a device, given its work; of updates those of their copies. */
double executed_work_seconds(const ExecutedStep *executed, const OperatorWork *work,
                             const ClusterDeviceType *type);
/* Returns the seconds of one run on a device, with its work computed here. */
double executed_seconds(const ExecutedStep *executed, const ClusterDeviceType *type);

#endif
