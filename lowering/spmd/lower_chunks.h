/* Stages in chunks: interleaved 1F1B (Narayanan et al. 2021).
 *
 * A stage has V parts of the model instead of one: chunk c of stage s of S is part c S + s, so that
 * the results of a part go to the next stage, and from the last stage to the first. A bubble is
 * then as long as the iterations of a chunk, not of a stage. Each part is lowered as a stage of its
 * own, on its stage's ranks. The program of a rank combines theirs: the forward loops of all chunks
 * and then the backward loops are adjacent and joined; instructions before and after them stay
 * before and after.
 *
 * Transfers outside the loops keep the one order of all stages. A transfer to another part
 * of the same stage becomes a copy on the device.
 */
#ifndef LOWERING_SPMD_LOWER_CHUNKS_H
#define LOWERING_SPMD_LOWER_CHUNKS_H

#include "lowering/program/program.h"
#include "propagation/plan/plan.h"
#include "propagation/stages/stages.h"

/* Creates the plan whose stages are the parts of `plan`, whose stages have as many ranges as chunks; in the
 * arena. */
AmStatus plan_of_chunks(const Plan **parts, Arena *arena, const Plan *plan, AmError *error);

/* Lowers the program of a rank of stage `stage` of `stage_count`, of those of its chunks in order, which are
 * neither fused nor have buffers. AM_ERROR_INFEASIBLE: a chunk has no iterations in one of the passes. */
AmStatus lower_merge_chunks(Program **program, Program *const *chunks, int32_t chunk_count, int32_t stage,
                            int32_t stage_count, AmError *error);

#endif
