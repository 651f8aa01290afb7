/* Ranks of a plan: assigns shardings to the values of every stage, and lowers a rank's stage for its device.
 *
 * Groups of devices: each way in which a stage's assignment splits a dimension of some size is listed once.
 * Devices whose shards have the same sizes form a group; hashes of the sizes avoid most comparisons. An
 * operator with a halo reads other ranges at each place, so that the places along its axes count, too.
 * Example: 12 A100 with a share of 1/16 and 8 T4 with 1/32 of a batch of 64 have shards of 4 and of 2, thus
 * two groups. */
#include "lowering/spmd/ranks.h"

#include <string.h>

#include "base/hash.h"
#include "lowering/spmd/lower_chunks.h"

/* Returns whether two plans have the same parts of the model on stages of the same sizes. Changed plans share
 * unchanged arrays, so that pointers are compared. */
static bool have_same_parts(const Plan *a, const Plan *b) {
    if (a->stage_count != b->stage_count) return false;
    for (int32_t s = 0; s < a->stage_count; s++) {
        const PlanStage *x = &a->stages[s], *y = &b->stages[s];
        if (x->ranges != y->ranges || x->range_count != y->range_count) return false;
        if (x->mesh.device_count != y->mesh.device_count) return false;
    }
    return true;
}

/* Returns whether an assignment makes the same decisions for both stages: it depends on a stage's mesh and
 * decisions, and not on its part of the model or on its devices. */
static bool assign_alike(const PlanStage *a, const PlanStage *b) {
    if (!mesh_is_alike(&a->mesh, &b->mesh) || a->is_even != b->is_even ||
        a->rounds_parts != b->rounds_parts || a->keeps_gathered_weights != b->keeps_gathered_weights)
        return false;
    if (a->override_count > 0 || b->override_count > 0 || a->reshard_count > 0 || b->reshard_count > 0)
        return false;
    for (int32_t axis = 0; axis < a->mesh.axis_count; axis++)
        if (a->mesh.axes[axis].shares || b->mesh.axes[axis].shares ||
            !plan_axis_priority_equal(&a->axis_priorities[axis], &b->axis_priorities[axis]))
            return false;
    return true;
}

/* Assigns a part of the plan, as an earlier part where both have the same decisions. */
static AmStatus assign_part(PlanRanks *ranks, Arena *arena, int32_t part, AmError *error) {
    const PlanStage *stage = &ranks->parts->stages[part];
    int32_t alike = 0;
    while (alike < part && !assign_alike(&ranks->parts->stages[alike], stage)) alike++;
    if (alike == part)
        return plan_assign_stage(&ranks->assignments[part], arena, ranks->context, stage, ranks->map, error);
    Assignment *shared = ranks->assignments[part] = ARENA_ARRAY(arena, Assignment, 1);
    if (!shared) return am_fail_memory(error, (int64_t)sizeof *shared);
    *shared = *ranks->assignments[alike];
    shared->stage = stage;
    return AM_OK;
}

AmStatus plan_ranks(PlanRanks *ranks, Arena *arena, const PlanContext *context, const Plan *plan,
                    AmError *error) {
    return plan_ranks_beside(ranks, arena, context, plan, NULL, NULL, error);
}

AmStatus plan_ranks_beside(PlanRanks *ranks, Arena *arena, const PlanContext *context, const Plan *plan,
                           const PlanRanks *known, const StopSignal *stop, AmError *error) {
    context = plan_context_used(plan, context);
    const Plan *parts = plan;
    bool in_chunks = plan_schedule(plan) == SCHEDULE_INTERLEAVED;
    if (in_chunks) TRY(plan_of_chunks(&parts, arena, plan, error));
    *ranks = (PlanRanks){.context = context,
                         .plan = plan,
                         .parts = parts,
                         .assignments = ARENA_ARRAY(arena, Assignment *, parts->stage_count),
                         .first_rank = ARENA_ARRAY(arena, int32_t, plan->stage_count + 1),
                         .stage_count = plan->stage_count,
                         .stop = stop};
    if (arena->failed) return am_fail_memory(error, plan->stage_count * 16);
    if (known && (known->context != context || !have_same_parts(parts, known->parts))) known = NULL;
    if (known && (plan_schedule(known->plan) == SCHEDULE_INTERLEAVED) != in_chunks) known = NULL;
    if (known) ranks->map = known->map;
    else if (plan->stage_count > 1) TRY(stages_assign(&ranks->map, arena, context, parts, error));
    for (int32_t p = 0; p < parts->stage_count; p++) {
        const PlanStage *stage = &parts->stages[p];
        if (stop && stop_wanted(stop))
            return am_fail(error, AM_INTERRUPTED, "",
                           "interrupted while the shardings of a stage were assigned");
        bool is_known = known && memcmp(stage, &known->parts->stages[p], sizeof *stage) == 0;
        if (is_known) ranks->assignments[p] = known->assignments[p];
        else TRY(assign_part(ranks, arena, p, error));
    }
    for (int32_t s = 0; s < plan->stage_count; s++)
        ranks->first_rank[s + 1] = ranks->first_rank[s] + plan->stages[s].mesh.device_count;
    ranks->rank_count = ranks->first_rank[plan->stage_count];
    if (!in_chunks || known) return AM_OK;
    ranks->map->chunks = parts->stage_count / plan->stage_count;
    for (int32_t p = 0; p < parts->stage_count; p++)
        ranks->map->first_rank[p] = ranks->first_rank[p % plan->stage_count];
    return AM_OK;
}

int32_t plan_ranks_stage(const PlanRanks *ranks, int32_t rank) {
    int32_t stage = 0;
    while (rank >= ranks->first_rank[stage + 1]) stage++;
    return stage;
}

/* One way in which a stage splits dimensions: that of dimension 0 of `state`. */
typedef struct DimensionSplit {
    int64_t size;
    SbpState state;
} DimensionSplit;

/* The different ones of a stage. */
typedef struct DimensionSplits {
    Arena *arena;
    DimensionSplit *splits;
    int32_t count, capacity;
    uint32_t halo_axes; /* bits: along these, devices differ by their places */
} DimensionSplits;

static void add_split(DimensionSplits *self, int64_t size, SbpState state) {
    if (!sbp_has_split(state)) return;
    for (int32_t k = self->count - 1; k >= 0; k--)
        if (self->splits[k].size == size && sbp_equal(self->splits[k].state, state)) return;
    ARENA_RESERVE(self->arena, self->splits, self->count, self->capacity);
    if (self->splits) self->splits[self->count++] = (DimensionSplit){size, state};
}

static void add_stored(DimensionSplits *self, SbpState stored, const IrShape *shape) {
    for (int32_t d = 0; shape->type != DTYPE_TUPLE && d < shape->rank; d++) {
        SbpState state = {0};
        for (int32_t k = 0; k < MESH_MAX_AXES; k++)
            if (stored.axis[k] == sbp_split(d)) sbp_set_split(&state, k, 0, stored.cut[k]);
        add_split(self, shape->dimensions[d], state);
    }
}

static void add_factors(DimensionSplits *self, const Assignment *assignment, const FactorRule *rule,
                        int32_t i) {
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        SbpState state = {0};
        for (int32_t k = 0; k < MESH_MAX_AXES; k++)
            if (assignment->factor[i * MESH_MAX_AXES + k] == f) {
                sbp_set_split(&state, k, 0, assignment->cut[i * MESH_MAX_AXES + k]);
                if (factor->halo) self->halo_axes |= 1u << k;
            }
        add_split(self, factor->size, state);
        for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++)
            if (factor->extent[slot] > 0) add_split(self, factor->extent[slot], state);
    }
}

AmStatus plan_ranks_group(int32_t **group_of, int32_t *count, Arena *arena, const PlanRanks *ranks,
                          int32_t stage, AmError *error) {
    const Mesh *mesh = &ranks->plan->stages[stage].mesh;
    const Rules *rules = ranks->context->rules;
    DimensionSplits splits = {.arena = arena};
    uint64_t *signatures = ARENA_ARRAY(arena, uint64_t, mesh->device_count);
    int64_t **sizes = ARENA_ARRAY(arena, int64_t *, mesh->device_count); /* [group]: of its devices */
    *group_of = ARENA_ARRAY(arena, int32_t, mesh->device_count);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, mesh->device_count);
    for (int32_t p = stage; p < ranks->parts->stage_count; p += ranks->stage_count)
        for (int32_t i = 0; i < rules->count; i++) {
            if (!ranks->assignments[p]->live[i]) continue;
            add_stored(&splits, ranks->assignments[p]->stored[i],
                       &ir_instruction(ranks->context->canonical, i)->shape);
            add_factors(&splits, ranks->assignments[p], &rules->rules[i], i);
        }
    if (arena->failed) return am_fail_memory(error, rules->count);
    int64_t *own = ARENA_ARRAY(arena, int64_t, splits.count + MESH_MAX_AXES);
    if (!own) return am_fail_memory(error, splits.count);
    size_t bytes = (size_t)(splits.count + MESH_MAX_AXES) * sizeof *own;
    for (int32_t d = 0; d < mesh->device_count; d++) {
        /* the sizes of the device's shards, then its places along halo axes */
        for (int32_t k = 0; k < splits.count; k++) {
            int64_t start;
            sbp_shard(mesh, splits.splits[k].state, d, 0, splits.splits[k].size, &start, &own[k]);
        }
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
            bool counts = axis < mesh->axis_count && splits.halo_axes >> axis & 1;
            own[splits.count + axis] = counts ? mesh_coordinate(mesh, d, axis) : 0;
        }
        uint64_t signature = hash_bytes(own, bytes, 0);
        int32_t group = 0;
        while (group < *count && (signatures[group] != signature || memcmp(sizes[group], own, bytes) != 0))
            group++;
        if (group == *count) {
            int64_t *next = ARENA_ARRAY(arena, int64_t, splits.count + MESH_MAX_AXES);
            if (!next) return am_fail_memory(error, splits.count);
            signatures[group] = signature;
            sizes[(*count)++] = own;
            own = next;
        }
        (*group_of)[d] = group;
    }
    return AM_OK;
}

AmStatus plan_ranks_lower(Program **program, Arena *arena, const PlanRanks *ranks, int32_t rank,
                          AmError *error) {
    int32_t stage = plan_ranks_stage(ranks, rank), device = rank - ranks->first_rank[stage];
    if (!ranks->map)
        return plan_lower(program, arena, ranks->context, ranks->assignments[stage], device, error);
    const AssignedStages all = {ranks->context, ranks->map, ranks->assignments, plan_schedule(ranks->plan)};
    if (ranks->map->chunks > 1) return plan_lower_chunks(program, arena, &all, stage, device, error);
    return plan_lower_stage(program, arena, &all, stage, device, error);
}
