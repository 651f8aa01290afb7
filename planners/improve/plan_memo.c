/* The memo of simulated plans: a table by the FNV-1a hash of a plan's decisions. The hash goes field by
 * field, since structs have padding.
 */
#include "planners/improve/plan_memo.h"

#include <math.h>
#include <string.h>

static void add_bytes(uint64_t *key, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    for (size_t k = 0; k < count; k++) *key = (*key ^ at[k]) * 0x100000001b3u;
}

static void add_number(uint64_t *key, int64_t number) {
    add_bytes(key, &number, sizeof number);
}

static void add_ranges(uint64_t *key, int32_t (*ranges)[2], int32_t count) {
    add_number(key, count);
    for (int32_t r = 0; r < count; r++) add_bytes(key, ranges[r], sizeof ranges[r]);
}

static void add_stage(uint64_t *key, const PlanStage *stage) {
    add_ranges(key, stage->ranges, stage->range_count);
    add_ranges(key, stage->recompute.ranges, stage->recompute.range_count);
    add_number(key, stage->recompute.saved_count);
    for (int32_t k = 0; k < stage->recompute.saved_count; k++) add_number(key, stage->recompute.saved[k]);
    const Mesh *mesh = &stage->mesh;
    add_number(key, mesh->axis_count);
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        const double *shares = mesh->axes[axis].shares;
        add_number(key, mesh->axes[axis].size);
        if (shares) add_bytes(key, shares, sizeof *shares * (size_t)mesh->axes[axis].size);
        add_number(key, stage->axis_priorities[axis].count);
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            add_number(key, stage->axis_priorities[axis].entries[e].class_index);
            add_number(key, (int64_t)stage->axis_priorities[axis].entries[e].kind);
        }
    }
    add_bytes(key, stage->devices, sizeof *stage->devices * (size_t)mesh->device_count);
    add_number(key, stage->is_even + 2 * stage->keeps_gathered_weights + 4 * stage->rounds_parts +
                        8 * stage->all_reduces_gradients + 16 * stage->reduces_in_f32 +
                        32 * stage->offloads_optimizer);
    add_number(key, stage->kept_bytes);
    add_number(key, stage->override_count);
    for (int32_t k = 0; k < stage->override_count; k++) {
        const PlanOverride *override = &stage->overrides[k];
        add_number(key, override->instruction);
        add_number(key, override->has_factors + 2 * override->has_states + 4 * override->is_pinned);
        if (override->has_factors) add_bytes(key, override->factors, sizeof override->factors);
        for (int32_t axis = 0; override->has_states && axis < MESH_MAX_AXES; axis++)
            add_number(key, (int64_t) override->states.axis[axis]);
    }
    add_number(key, stage->reshard_count);
    for (int32_t k = 0; k < stage->reshard_count; k++) {
        add_number(key, stage->reshard[k].instruction);
        add_number(key, (int64_t)stage->reshard[k].place);
    }
}

uint64_t plan_memo_key(const Plan *plan) {
    uint64_t key = 0xcbf29ce484222325u;
    add_number(&key, plan->micro_batches);
    add_number(&key, (int64_t)plan_schedule(plan));
    for (int32_t s = 0; s < plan->stage_count; s++) add_stage(&key, &plan->stages[s]);
    return key;
}

bool plan_memo_excludes(const PriceMemo *memo, uint64_t key, double seconds) {
    const PlanPrice *known = price_memo_find(memo, key);
    return known && !(known->seconds < seconds);
}

bool plan_memo_add(PriceMemo *memo, uint64_t key, double seconds) {
    return price_memo_add(memo, key, &(PlanPrice){.seconds = seconds});
}
