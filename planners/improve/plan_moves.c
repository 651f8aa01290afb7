/* Larger changes of a plan than the single ones of `explain`, for restarts of a search. */
#include "planners/improve/plan_moves.h"

#include <string.h>

/* Returns a copy of the plan with stages of its own, which share everything with the plan's. */
static PlanStage *copy_plan(Plan **copy, Arena *arena, const Plan *plan, AmError *error) {
    Plan *made = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, plan->stage_count);
    if (!made || !stages) {
        am_fail_memory(error, plan->stage_count);
        return NULL;
    }
    memcpy(stages, plan->stages, sizeof *stages * (size_t)plan->stage_count);
    *made = *plan;
    made->stages = stages;
    *copy = made;
    return stages;
}

/* Returns the place one unit before (`step` -1) or after an instruction, or -1. */
static int32_t next_place(const Explainer *of, int32_t instruction, int32_t step) {
    int32_t found = -1;
    for (int32_t k = 0; k < of->places.count; k++) {
        if (step < 0 && of->places.of[k] < instruction) found = of->places.of[k];
        if (step > 0 && of->places.of[k] > instruction) return of->places.of[k];
    }
    return found;
}

AmStatus plan_move_shift(const Plan **made, Arena *arena, const Explainer *of, int32_t from, int32_t to,
                         AmError *error) {
    const Plan *plan = of->plan;
    int32_t step = from < to ? -1 : 1, first = from < to ? from : to, end = from < to ? to : from;
    Plan *copy;
    *made = NULL;
    PlanStage *stages = copy_plan(&copy, arena, plan, error);
    if (!stages) return AM_ERROR_INTERNAL;
    for (int32_t s = 0; s < plan->stage_count; s++) {
        size_t bytes = sizeof *stages->ranges * (size_t)stages[s].range_count;
        int32_t(*ranges)[2] = arena_alloc(arena, bytes);
        if (!ranges) return am_fail_memory(error, (int64_t)bytes);
        memcpy(ranges, plan->stages[s].ranges, bytes);
        stages[s].ranges = ranges;
    }
    for (int32_t c = first; c < end; c++) {
        int32_t old = of->result->cuts.of[c].instruction, place = next_place(of, old, step);
        if (place < 0) return AM_OK;
        for (int32_t s = 0; s < plan->stage_count; s++)
            for (int32_t r = 0; r < stages[s].range_count; r++)
                for (int32_t side = 0; side < 2; side++)
                    if (plan->stages[s].ranges[r][side] == old) stages[s].ranges[r][side] = place;
    }
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t r = 0; r < stages[s].range_count; r++)
            if (stages[s].ranges[r][0] >= stages[s].ranges[r][1]) return AM_OK;
    *made = copy;
    return AM_OK;
}

AmStatus plan_copy_axis_priorities(const Plan **made, Arena *arena, const Plan *plan, int32_t from,
                                   int32_t to, AmError *error) {
    const PlanStage *source = &plan->stages[from], *target = &plan->stages[to];
    bool is_same = true;
    Plan *copy;
    *made = NULL;
    if (source->mesh.axis_count != target->mesh.axis_count) return AM_OK;
    for (int32_t axis = 0; axis < source->mesh.axis_count; axis++) {
        const MeshAxis *a = &source->mesh.axes[axis], *b = &target->mesh.axes[axis];
        if (a->size != b->size || a->shares || b->shares) return AM_OK;
        is_same &= plan_axis_priority_equal(&source->axis_priorities[axis], &target->axis_priorities[axis]);
    }
    if (is_same) return AM_OK;
    PlanStage *stages = copy_plan(&copy, arena, plan, error);
    if (!stages) return AM_ERROR_INTERNAL;
    memcpy(stages[to].axis_priorities, source->axis_priorities, sizeof source->axis_priorities);
    *made = copy;
    return AM_OK;
}

AmStatus plan_move_entry(const Plan **made, Arena *arena, const Plan *plan, const EntryMove *move,
                         AmError *error) {
    const PlanStage *stage = &plan->stages[move->stage];
    const PlanAxisPriority *from = &stage->axis_priorities[move->axis],
                           *onto = &stage->axis_priorities[move->onto];
    const PlanEntry entry = from->entries[move->entry];
    Plan *copy;
    *made = NULL;
    for (int32_t e = 0; e < onto->count && move->onto != move->axis; e++)
        if (onto->entries[e].class_index == entry.class_index && onto->entries[e].kind == entry.kind)
            return AM_OK;
    PlanStage *stages = copy_plan(&copy, arena, plan, error);
    if (!stages) return AM_ERROR_INTERNAL;
    PlanEntry *left = ARENA_ARRAY(arena, PlanEntry, from->count + 1);
    PlanEntry *filled = ARENA_ARRAY(arena, PlanEntry, onto->count + 1);
    if (arena->failed) return am_fail_memory(error, onto->count);
    PlanAxisPriority *priorities = stages[move->stage].axis_priorities;
    memcpy(left, from->entries, sizeof *left * (size_t)move->entry);
    memcpy(left + move->entry, from->entries + move->entry + 1,
           sizeof *left * (size_t)(from->count - move->entry - 1));
    priorities[move->axis] = (PlanAxisPriority){.count = from->count - 1, .entries = left};
    const PlanAxisPriority *rest = &priorities[move->onto];
    int32_t place = move->place < rest->count ? move->place : rest->count, computed = 0;
    while (computed < rest->count && rest->entries[computed].kind == PLAN_COMPUTE) computed++;
    if (entry.kind == PLAN_COMPUTE && place > computed) place = computed; /* compute entries come first */
    if (entry.kind != PLAN_COMPUTE && place < computed) place = computed;
    memcpy(filled, rest->entries, sizeof *filled * (size_t)place);
    filled[place] = entry;
    memcpy(filled + place + 1, rest->entries + place, sizeof *filled * (size_t)(rest->count - place));
    priorities[move->onto] = (PlanAxisPriority){.count = rest->count + 1, .entries = filled};
    *made = copy;
    return AM_OK;
}

static int32_t compute_entries(const PlanAxisPriority *priority) {
    int32_t count = 0;
    while (count < priority->count && priority->entries[count].kind == PLAN_COMPUTE) count++;
    return count;
}

AmStatus plan_list_prefixes(PrefixMove **moves, int32_t *count, Arena *arena, const Plan *plan,
                            AmError *error) {
    int32_t most = 0;
    *count = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t axis = 0; axis < plan->stages[s].mesh.axis_count; axis++)
            most += plan->stages[s].axis_priorities[axis].count;
    *moves = ARENA_ARRAY(arena, PrefixMove, most + 1);
    if (!*moves) return am_fail_memory(error, most);
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t axis = 0; axis < plan->stages[s].mesh.axis_count; axis++) {
            int32_t entries = compute_entries(&plan->stages[s].axis_priorities[axis]);
            for (int32_t kept = 1; kept + 1 < entries; kept++)
                (*moves)[(*count)++] = (PrefixMove){s, axis, kept};
        }
    return AM_OK;
}

AmStatus plan_move_prefix(const Plan **made, Arena *arena, const Plan *plan, const PrefixMove *move,
                          AmError *error) {
    const PlanAxisPriority *of = &plan->stages[move->stage].axis_priorities[move->axis];
    int32_t computed = compute_entries(of), storage = of->count - computed;
    Plan *copy;
    *made = NULL;
    PlanStage *stages = copy_plan(&copy, arena, plan, error);
    PlanEntry *entries = ARENA_ARRAY(arena, PlanEntry, of->count + 1);
    if (!stages || !entries) return am_fail_memory(error, of->count);
    memcpy(entries, of->entries, sizeof *entries * (size_t)move->kept);
    memcpy(entries + move->kept, of->entries + computed, sizeof *entries * (size_t)storage);
    stages[move->stage].axis_priorities[move->axis] =
        (PlanAxisPriority){.count = move->kept + storage, .entries = entries};
    *made = copy;
    return AM_OK;
}

/* Returns whether a stage has a device of the same type and server at an earlier place. */
static bool has_its_like(const PlanStage *stage, int32_t place, const Cluster *cluster) {
    for (int32_t d = 0; d < place; d++)
        if (cluster->server_of[stage->devices[d]] == cluster->server_of[stage->devices[place]]) return true;
    return false;
}

AmStatus plan_list_swaps(DeviceSwap **swaps, int32_t *count, Arena *arena, const Plan *plan,
                         const Cluster *cluster, AmError *error) {
    *count = 0;
    *swaps = ARENA_ARRAY(arena, DeviceSwap, PLAN_MOST_SWAPS);
    if (!*swaps) return am_fail_memory(error, PLAN_MOST_SWAPS);
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++) {
            const ClusterDeviceType *type = cluster_device_type(cluster, plan->stages[s].devices[d]);
            if (has_its_like(&plan->stages[s], d, cluster)) continue;
            for (int32_t o = s + 1; o < plan->stage_count; o++)
                for (int32_t e = 0; e < plan->stages[o].mesh.device_count; e++) {
                    if (cluster_device_type(cluster, plan->stages[o].devices[e]) == type) continue;
                    if (has_its_like(&plan->stages[o], e, cluster)) continue;
                    if (*count == PLAN_MOST_SWAPS) {
                        *count = 0;
                        return AM_OK;
                    }
                    (*swaps)[(*count)++] = (DeviceSwap){s, d, o, e};
                }
        }
    return AM_OK;
}

AmStatus plan_swap_devices(const Plan **made, Arena *arena, const Plan *plan, const DeviceSwap *swap,
                           AmError *error) {
    const int32_t of[] = {swap->stage, swap->other_stage}, at[] = {swap->place, swap->other_place};
    Plan *copy;
    *made = NULL;
    PlanStage *stages = copy_plan(&copy, arena, plan, error);
    if (!stages) return AM_ERROR_INTERNAL;
    for (int32_t k = 0; k < 2; k++) {
        const PlanStage *from = &plan->stages[of[k]];
        int32_t *devices = ARENA_ARRAY(arena, int32_t, from->mesh.device_count);
        if (!devices) return am_fail_memory(error, from->mesh.device_count);
        memcpy(devices, from->devices, sizeof *devices * (size_t)from->mesh.device_count);
        devices[at[k]] = plan->stages[of[1 - k]].devices[at[1 - k]];
        stages[of[k]].devices = devices;
    }
    *made = copy;
    return AM_OK;
}

static bool has_same_ranges(const PlanStage *a, const PlanStage *b) {
    return a->ranges == b->ranges ||
           (a->range_count == b->range_count &&
            memcmp(a->ranges, b->ranges, sizeof *a->ranges * (size_t)a->range_count) == 0);
}

static bool has_same_overrides(const PlanStage *a, const PlanStage *b) {
    if (a->override_count != b->override_count) return false;
    for (int32_t k = 0; k < a->override_count; k++)
        if (a->overrides[k].instruction != b->overrides[k].instruction) return false;
    return true;
}

/* Puts into `into`, which has the changes of the one plan, what `from` changes of `stage`; false: both change
 * the same field. */
static bool join_stage(PlanStage *into, const PlanStage *from, const PlanStage *stage) {
    if (!has_same_ranges(from, stage)) {
        if (!has_same_ranges(into, stage)) return false;
        into->ranges = from->ranges;
    }
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        if (plan_axis_priority_equal(&from->axis_priorities[axis], &stage->axis_priorities[axis])) continue;
        if (!plan_axis_priority_equal(&into->axis_priorities[axis], &stage->axis_priorities[axis]))
            return false;
        into->axis_priorities[axis] = from->axis_priorities[axis];
    }
    if (!has_same_overrides(from, stage)) {
        if (!has_same_overrides(into, stage)) return false;
        into->overrides = from->overrides;
        into->override_count = from->override_count;
    }
    if (from->keeps_gathered_weights != stage->keeps_gathered_weights) {
        if (into->keeps_gathered_weights != stage->keeps_gathered_weights) return false;
        into->keeps_gathered_weights = from->keeps_gathered_weights;
    }
    return true;
}

/* Returns whether every stage of a changed plan has instructions and no two overlap: the cuts of
 * two changes have one order. */
static bool are_ranges_disjoint(const Plan *plan) {
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t r = 0; r < plan->stages[s].range_count; r++) {
            const int32_t *range = plan->stages[s].ranges[r];
            if (range[0] >= range[1]) return false;
            for (int32_t t = 0; t < plan->stage_count; t++)
                for (int32_t q = 0; q < plan->stages[t].range_count; q++) {
                    const int32_t *other = plan->stages[t].ranges[q];
                    bool is_other = t != s || q != r;
                    if (is_other && other[0] < range[1] && range[0] < other[1]) return false;
                }
        }
    return true;
}

AmStatus plan_move_join(const Plan **made, Arena *arena, const Plan *plan, const Plan *a, const Plan *b,
                        AmError *error) {
    Plan *copy;
    bool is_same_context = a->context == plan->context && b->context == plan->context;
    bool changes_both = plan_schedule(a) != plan_schedule(plan) && plan_schedule(b) != plan_schedule(plan);
    *made = NULL;
    if (!is_same_context || changes_both) return AM_OK;
    PlanStage *stages = copy_plan(&copy, arena, a, error);
    if (!stages) return AM_ERROR_INTERNAL;
    if (plan_schedule(b) != plan_schedule(plan)) copy->schedule = b->schedule;
    for (int32_t s = 0; s < plan->stage_count; s++)
        if (!join_stage(&stages[s], &b->stages[s], &plan->stages[s])) return AM_OK;
    if (are_ranges_disjoint(copy)) *made = copy;
    return AM_OK;
}
