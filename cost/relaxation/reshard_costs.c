/* Lower bounds on the seconds of resharding, by states alone. All pairs of states by the algorithm of Floyd
 * and Warshall. */
#include "cost/relaxation/reshard_costs.h"

#include <math.h>

enum { WHOLE, PARTIAL, FIRST_SPLIT };

/* A number of bytes at which latency is negligible and all efficiency curves are constant. */
#define MANY_BYTES 1e15

typedef struct ReshardCostBuilder {
    ReshardCosts *costs;
    ReshardOrder order;
    double per_byte[1 << RESHARD_AXES][PROGRAM_DEVICE_COLLECTIVES]; /* of the tensor that a group moves */
} ReshardCostBuilder;

/* Returns the seconds for the axes of `set`, all in state `from`, to reach state `to`; INFINITY if that is
 * no single step. */
static double step_seconds(const ReshardCostBuilder *self, uint32_t set, int32_t from, int32_t to,
                           bool is_f32_sum) {
    const double *per_byte = self->per_byte[set];
    if (from == PARTIAL) {
        double rate = per_byte[to == WHOLE ? PROGRAM_ALL_REDUCE : PROGRAM_REDUCE_SCATTER];
        return is_f32_sum ? 2 * rate : rate;
    }
    if (to == PARTIAL) return INFINITY;
    if (from == WHOLE) return 0; /* a local cut */
    return per_byte[to == WHOLE ? PROGRAM_ALL_GATHER : PROGRAM_ALL_TO_ALL];
}

/* Returns whether the first axis alone leaves or enters a dimension that the second splits, which
 * would nest the split inside an existing one. */
static bool breaks_order(const ReshardCostBuilder *self, uint32_t set, ReshardState from, int32_t target) {
    int32_t minor = reshard_axis_state(from, 1);
    return self->order == RESHARD_AXIS_ORDER && set == 1 && minor >= FIRST_SPLIT &&
           (target == minor || reshard_axis_state(from, 0) == minor);
}

/* Sets the single steps from each state. The tensor that a group moves is the shard left by the
 * other axes. */
static void set_steps(ReshardCostBuilder *self, bool is_f32_sum) {
    const ReshardCosts *costs = self->costs;
    for (int32_t from = 0; from < RESHARD_STATES; from++)
        for (uint32_t set = 1; set < 1u << costs->axis_count; set++) {
            double share = 1;
            int32_t state = -1;
            bool is_same = true;
            for (int32_t k = 0; k < costs->axis_count; k++) {
                int32_t here = reshard_axis_state((ReshardState)from, k);
                if (set >> k & 1) is_same &= state < 0 || state == here;
                else if (here >= FIRST_SPLIT) share /= costs->sizes[k];
                if (set >> k & 1) state = here;
            }
            for (int32_t target = 0; is_same && target < RESHARD_AXIS_STATES; target++) {
                bool is_step = target != state && !breaks_order(self, set, (ReshardState)from, target);
                double seconds = is_step ? step_seconds(self, set, state, target, is_f32_sum) : INFINITY;
                int32_t to = 0;
                for (int32_t k = 0; k < RESHARD_AXES; k++)
                    to = to * RESHARD_AXIS_STATES +
                         (set >> k & 1 ? target : reshard_axis_state((ReshardState)from, k));
                float *cell = &self->costs->seconds[is_f32_sum][from][to];
                if (seconds * share < *cell) *cell = (float)(seconds * share);
            }
        }
}

AmStatus reshard_costs_create(ReshardCosts **costs, Arena *arena, const PlacedMesh *on, ReshardOrder order,
                              AmError *error) {
    ReshardCostBuilder self = {.costs = ARENA_ARRAY(arena, ReshardCosts, 1), .order = order};
    *costs = NULL;
    if (!self.costs) return am_fail_memory(error, (int64_t)sizeof **costs);
    for (int32_t axis = 0; axis < on->mesh->axis_count; axis++) {
        if (on->mesh->axes[axis].size == 1) continue;
        if (self.costs->axis_count == RESHARD_AXES) return AM_OK;
        self.costs->sizes[self.costs->axis_count] = on->mesh->axes[axis].size;
        self.costs->axes[self.costs->axis_count++] = axis;
    }
    for (uint32_t set = 1; set < 1u << self.costs->axis_count; set++) {
        CollectivePartition partition = {0};
        uint32_t axes = 0;
        for (int32_t k = 0; k < self.costs->axis_count; k++)
            if (set >> k & 1) axes |= 1u << self.costs->axes[k];
        TRY(collective_partition(&partition, arena, on->cluster, on->mesh, on->devices, axes, error));
        for (int32_t kind = 0; kind < PROGRAM_DEVICE_COLLECTIVES; kind++)
            for (int32_t g = 0; g < partition.distinct_count; g++) {
                double seconds = collective_seconds((ProgramCollectiveKind)kind, MANY_BYTES,
                                                    &partition.distinct[g], on->cluster) /
                                 MANY_BYTES;
                double *rate = &self.per_byte[set][kind];
                bool is_least = g > 0 && self.order == RESHARD_ANY_SHARES;
                *rate = is_least ? fmin(*rate, seconds) : fmax(*rate, seconds);
            }
    }
    for (int32_t is_f32_sum = 0; is_f32_sum < 2; is_f32_sum++) {
        for (int32_t from = 0; from < RESHARD_STATES; from++)
            for (int32_t to = 0; to < RESHARD_STATES; to++)
                self.costs->seconds[is_f32_sum][from][to] = from == to ? 0 : INFINITY;
        set_steps(&self, is_f32_sum != 0);
        float(*seconds)[RESHARD_STATES + 1] = self.costs->seconds[is_f32_sum];
        for (int32_t via = 0; via < RESHARD_STATES; via++)
            for (int32_t from = 0; from < RESHARD_STATES; from++) {
                float first = seconds[from][via];
                for (int32_t to = 0; isfinite(first) && to < RESHARD_STATES; to++)
                    if (first + seconds[via][to] < seconds[from][to])
                        seconds[from][to] = first + seconds[via][to];
            }
    }
    *costs = self.costs;
    return AM_OK;
}

ReshardState reshard_state_part(int32_t k, Sbp sbp) {
    int32_t state = sbp_is_partial(sbp) ? PARTIAL : sbp_is_split(sbp) ? FIRST_SPLIT + sbp_dimension(sbp) : 0;
    return (ReshardState)(k == 0 ? state * RESHARD_AXIS_STATES : state);
}

Sbp reshard_axis_sbp(ReshardState state, int32_t k) {
    int32_t here = reshard_axis_state(state, k);
    if (here == PARTIAL) return sbp_partial(SBP_ADD);
    return here >= FIRST_SPLIT ? sbp_split(here - FIRST_SPLIT) : SBP_B;
}

ReshardState reshard_state_of(const ReshardCosts *costs, SbpState state) {
    ReshardState all = 0;
    for (int32_t k = 0; k < costs->axis_count; k++) {
        Sbp sbp = state.axis[costs->axes[k]];
        if (sbp_is_split(sbp) && sbp_dimension(sbp) >= RESHARD_DIMENSIONS) return RESHARD_ANY;
        all = (ReshardState)(all + reshard_state_part(k, sbp));
    }
    return all;
}
