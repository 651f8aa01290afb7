/* Stages that save more of their forward values for the backward pass.
 *
 * For the busiest stages with recomputation there are up to three changes: the stage saves more values in all
 * of its segments (the next level of planners/layers/recompute_levels.h), recomputes a quarter of its
 * segments less, or recomputes nothing. A climb over these changes fills the memory that is left.
 */
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "planners/explain/explain_parts.h"
#include "planners/layers/recompute_levels.h"

enum { MOST_STAGES = EXPLAIN_MOST_RECOMPUTED / 3, SEGMENTS_SHARE = 4 };

typedef struct Lister {
    Explainer *of;
    RecomputeLevels levels;
    int32_t *saved; /* [entry instruction] of the change at hand */
} Lister;

/* Finds the levels for segments that begin and end where those of the plan do. */
static AmStatus find_levels(Lister *self) {
    const Explainer *of = self->of;
    const Plan *plan = of->plan;
    int32_t entry = of->primary->rules->entry_count, count = 0, distinct = 0, room = 2;
    for (int32_t s = 0; s < plan->stage_count; s++) room += 2 * plan->stages[s].recompute.range_count;
    int32_t *cuts = ARENA_ARRAY(of->arena, int32_t, room);
    self->saved = ARENA_ARRAY(of->arena, int32_t, entry + 1);
    if (of->arena->failed) return am_fail_memory(of->error, entry);
    cuts[count++] = 0;
    cuts[count++] = entry;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t r = 0; r < plan->stages[s].recompute.range_count; r++)
            for (int32_t side = 0; side < 2; side++)
                cuts[count++] = plan->stages[s].recompute.ranges[r][side];
    qsort(cuts, (size_t)count, sizeof *cuts, compare_integers);
    for (int32_t k = 0; k < count; k++)
        if (distinct == 0 || cuts[k] > cuts[distinct - 1]) cuts[distinct++] = cuts[k];
    return recompute_levels_find(&self->levels, of->arena, of->primary,
                                 cluster_device_type(of->cluster, plan->stages[0].devices[0]), cuts,
                                 distinct - 1, of->error);
}

static double bytes_of(const Lister *self, const int32_t *saved, int32_t count) {
    double bytes = 0;
    for (int32_t k = 0; k < count; k++) bytes += self->levels.bytes[saved[k]];
    return bytes;
}

/* Adds the plan whose stage recomputes the ranges from `first` on, apart from `saved`, as a row "VALUE". */
static AmStatus add_row(Lister *self, int32_t stage, int32_t first, const int32_t *saved, int32_t saved_count,
                        const char *value) {
    Explainer *of = self->of;
    const PlanRecomputation *recompute = &of->plan->stages[stage].recompute;
    AmError why = {0};
    Plan *plan;
    if (!value) return am_fail_memory(of->error, 0);
    if (of->changes.most_priced > 0 && of->changes.count >= of->changes.most_priced) return AM_OK;
    ExplainedAlternative *row = explain_add_alternative(of, "recomputation", value);
    json_t *root = explain_other_document(of, of->plan->micro_batches);
    json_t *stages = json_deep_copy(json_object_get(root, "stages"));
    json_t *changed = json_array_get(stages, (size_t)stage), *ranges = json_array(), *list = json_array();
    for (int32_t r = first; r < recompute->range_count; r++)
        json_array_append_new(ranges, json_pack("[i, i]", recompute->ranges[r][0], recompute->ranges[r][1]));
    for (int32_t k = 0; k < saved_count; k++)
        if (first < recompute->range_count && saved[k] >= recompute->ranges[first][0])
            json_array_append_new(list, json_integer(saved[k]));
    json_object_set_new(changed, "recompute", ranges);
    json_object_set_new(changed, "saved", list);
    json_object_set_new(root, "stages", stages);
    AmStatus status = explain_keep_document(of, root);
    if (status == AM_OK)
        status = plan_stages_from_json(&plan, root, of->arena, of->primary, "the plan", &why);
    if (status == AM_OK) return explain_add_change(of, plan, &row->change);
    if (status != AM_ERROR_INTERNAL) return explain_note_reason(of, &row->change, &why);
    *of->error = why;
    return status;
}

static AmStatus add_stage(Lister *self, int32_t stage) {
    Arena *arena = self->of->arena;
    const PlanRecomputation *recompute = &self->of->plan->stages[stage].recompute;
    double bytes = bytes_of(self, recompute->saved, recompute->saved_count);
    int32_t fewer = (recompute->range_count + SEGMENTS_SHARE - 1) / SEGMENTS_SHARE, count = 0;
    bool has_more = false;
    for (int32_t k = self->levels.count - 1; k >= 0 && !has_more; k--) {
        count =
            recompute_levels_list(self->saved, &self->levels, k, recompute->ranges, recompute->range_count);
        has_more = bytes_of(self, self->saved, count) > 1.05 * bytes;
    }
    if (has_more)
        TRY(add_row(self, stage, 0, self->saved, count,
                    arena_format(arena, "of stage %d: %d values saved", stage, count)));
    if (fewer < recompute->range_count)
        TRY(add_row(self, stage, fewer, recompute->saved, recompute->saved_count,
                    arena_format(arena, "of stage %d: %d of %d segments", stage,
                                 recompute->range_count - fewer, recompute->range_count)));
    return add_row(self, stage, recompute->range_count, NULL, 0,
                   arena_format(arena, "of stage %d: none", stage));
}

/* Returns the time in which the stage's devices do something. */
static double busy_seconds(const ExplainedStage *stage) {
    return stage->seconds.compute + stage->seconds.communication - stage->seconds.hidden;
}

AmStatus explain_recompute(Explainer *self) {
    const Plan *plan = self->plan;
    Lister lister = {.of = self};
    bool is_listed[STAGES_MOST] = {false};
    for (int32_t k = 0; k < MOST_STAGES && k < plan->stage_count; k++) {
        int32_t best = -1;
        for (int32_t s = 0; s < plan->stage_count; s++) {
            if (is_listed[s] || plan->stages[s].recompute.range_count == 0) continue;
            if (best < 0 ||
                busy_seconds(&self->result->stages.of[s]) > busy_seconds(&self->result->stages.of[best]))
                best = s;
        }
        if (best < 0) return AM_OK;
        is_listed[best] = true;
        if (!lister.saved) TRY(find_levels(&lister));
        TRY(add_stage(&lister, best));
    }
    return AM_OK;
}
