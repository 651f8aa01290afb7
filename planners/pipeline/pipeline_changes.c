/* Changes of the best simulated pipelines beyond the tables: axis priorities of stages, and cuts into
 * chunks. */
#include "planners/pipeline/pipeline_changes.h"

#include <math.h>
#include <string.h>

#include "planners/pipeline/stage_model.h"

/* ---- axis priorities ---- */

/* Stages that are busy for less than this fraction of the busiest one's time are not changed, since
 * they do not limit the step. */
#define WORTH_CHANGING 0.75

typedef struct Lister {
    const PipelineCandidate *candidate;
    StageProblem problems[PIPELINE_MOST_STAGES]; /* of the stages, busiest first */
    int32_t stages[PIPELINE_MOST_STAGES];
    int32_t stage_count;
    PipelineChange *changes;
    int32_t count, most;
} Lister;

static void add_change(Lister *self, int32_t k, const AxisPlan *axis_plan) {
    int32_t stage = self->stages[k];
    if (self->count == self->most) return;
    if (memcmp(axis_plan, &self->candidate->axis_plans[stage], sizeof *axis_plan) == 0) return;
    self->changes[self->count++] = (PipelineChange){.stage = stage, .axis_plan = *axis_plan};
}

/* Adds the plans with the class set at the end of the axis priority, and in front of it. */
static void add_insertion(Lister *self, int32_t k, int32_t axis, int32_t class_set, bool at_end) {
    const StageProblem *problem = &self->problems[k];
    AxisPlan changed = self->candidate->axis_plans[self->stages[k]];
    int32_t place = at_end ? changed.count[axis] : 0;
    if (problem->mesh.axes[axis].size == 1 || !problem_can_split(problem, class_set, axis)) return;
    if (!at_end && changed.count[axis] == 0) return; /* that is its end, too */
    if (axis_plan_insert(&changed, axis, place, class_set)) add_change(self, k, &changed);
}

/* Adds the plans with entry `place` removed, and with it moved to the end of the other axis. */
static void add_removals(Lister *self, int32_t k, int32_t axis, int32_t place) {
    const StageProblem *problem = &self->problems[k];
    AxisPlan without = self->candidate->axis_plans[self->stages[k]];
    int32_t class_set = without.entries[axis][place], other = 1 - axis;
    axis_plan_remove(&without, axis, place);
    add_change(self, k, &without);
    if (problem->mesh.axes[other].size == 1 || !problem_can_split(problem, class_set, other)) return;
    if (axis_plan_insert(&without, other, without.count[other], class_set)) add_change(self, k, &without);
}

AmStatus pipeline_changes_list(PipelineChange *changes, int32_t most, int32_t *count, PipelinePlans *plans,
                               const PipelineCandidate *candidate, AmError *error) {
    Lister self = {.candidate = candidate, .changes = changes, .most = most};
    double longest = 0;
    for (int32_t s = 0; s < candidate->pipeline.stage_count; s++) longest = fmax(longest, candidate->busy[s]);
    for (int32_t s = 0; s < candidate->pipeline.stage_count; s++) {
        int32_t at = self.stage_count;
        if (candidate->busy[s] < WORTH_CHANGING * longest) continue;
        for (; at > 0 && candidate->busy[self.stages[at - 1]] < candidate->busy[s]; at--)
            self.stages[at] = self.stages[at - 1];
        self.stages[at] = s;
        self.stage_count++;
    }
    for (int32_t k = 0; k < self.stage_count; k++)
        TRY(pipeline_plans_problem(&self.problems[k], plans, candidate, self.stages[k], error));
    for (int32_t k = 0; k < self.stage_count; k++)
        for (int32_t axis = 0; axis < 2; axis++) {
            const StageProblem *problem = &self.problems[k];
            if (problem->mesh.axes[axis].size == 1) continue;
            for (int32_t kinds = problem_storage_kinds(problem, axis); kinds >= 0; kinds--) {
                AxisPlan changed = candidate->axis_plans[self.stages[k]];
                changed.storage[axis] = (uint8_t)kinds;
                add_change(&self, k, &changed);
            }
        }
    for (int32_t c = 0; self.stage_count > 0 && c < self.problems[0].class_set_count; c++)
        for (int32_t k = 0; k < self.stage_count; k++)
            for (int32_t axis = 0; axis < 2; axis++) add_insertion(&self, k, axis, c, true);
    for (int32_t place = 0; place < AXIS_PLAN_MAX_ENTRIES; place++)
        for (int32_t k = 0; k < self.stage_count; k++)
            for (int32_t axis = 0; axis < 2; axis++)
                if (place < candidate->axis_plans[self.stages[k]].count[axis])
                    add_removals(&self, k, axis, place);
    for (int32_t c = 0; self.stage_count > 0 && c < self.problems[0].class_set_count; c++)
        for (int32_t k = 0; k < self.stage_count; k++)
            for (int32_t axis = 0; axis < 2; axis++) add_insertion(&self, k, axis, c, false);
    *count = self.count;
    return AM_OK;
}

/* ---- chunks ---- */

bool pipeline_chunks_find(PipelineChunks *chunks, const StageModel *own, const PipelineLayout *pipeline,
                          int32_t count) {
    const StageModel *model = stage_model_of(own, pipeline);
    const LayerCosts *costs = model->costs;
    const StageLayout *first = &pipeline->stages[0];
    int32_t stages = pipeline->stage_count, parts = stages * count;
    double done[LAYER_MOST_UNITS + 1] = {0}, wanted = 0;
    Arena scratch = {0};
    StagePricing pricing;
    *chunks = (PipelineChunks){.count = count};
    bool found = parts <= STAGES_MOST && parts <= costs->units.count &&
                 stage_pricing_open(&pricing, model, &scratch, pipeline->micro_batches, first->place.class,
                                    &first->strategy);
    for (int32_t u = 0; found && u < costs->units.count; u++)
        done[u + 1] = done[u] + pricing.units[u].forward + pricing.units[u].backward;
    for (int32_t p = 0; found && p < parts - 1; p++) {
        const StageLayout *stage = &pipeline->stages[p % stages];
        wanted += (done[stage->end_unit] - done[stage->first_unit]) / count;
        /* The checkpoint whose work done is nearest to `wanted`; -1: none before the end. */
        int32_t cut = -1;
        for (int32_t u = chunks->units[p] + 1; u < costs->units.count; u++) {
            if (!costs->checkpoints.is_at[u]) continue;
            if (cut < 0 || fabs(done[u] - wanted) < fabs(done[cut] - wanted)) cut = u;
        }
        found = cut >= 0;
        chunks->units[p + 1] = cut;
    }
    chunks->units[parts < STAGES_MOST ? parts : STAGES_MOST] = costs->units.count;
    arena_free(&scratch);
    return found;
}
