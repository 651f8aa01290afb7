/* Finds the cheapest path from one state of a tensor to another: the sequence of collectives that
 * moves the fewest bytes (OneFlow section 3.2, "boxing"), by Dijkstra's algorithm over states.
 *
 * A state gives every mesh axis B, P or S(d); among axes that split one dimension the earlier is
 * major. One step changes some axes, all at once, by one of:
 *   all_reduce      P -> B
 *   reduce_scatter  P -> S(d), the axes minor to those that split d
 *   all_to_all      S(d) -> S(e), minor ones of d, and minor to those that split e
 *   all_gather      S(d) -> B, minor ones of d
 *   halo_exchange   the minor axes of d split it differently, by any axes
 *   a local slice   B -> S(d), minor to those that split d: moves nothing
 * An axis keeps its state unless it has to change or splits a dimension that a changing axis
 * splits. There are therefore few states, and one step usually suffices. Weights assume equal
 * shards along an axis; among paths of equal weight the one with fewer collectives is taken.
 */
#include <string.h>

#include "lowering/spmd/reshard_path.h"

/* Dimensions of a tensor that are tried beside those that the two states split. */
enum { MOST_DIMENSIONS = 8, MOST_OPTIONS = MOST_DIMENSIONS + 3, MOST_STATES = MOST_OPTIONS * MOST_OPTIONS };

/* The weight of a collective itself: far below the weight of any moved tensor. */
#define STEP_WEIGHT 1e-7

/* One axis in one state. */
typedef struct Option {
    Sbp sbp;
    SbpCut cut;
} Option;

typedef struct Node {
    SbpState state;
    double weight; /* < 0: not reached */
    bool is_done;  /* or no state that may be */
    int32_t before;
    ReshardStep step; /* from `before` to here */
} Node;

typedef struct PathSearch {
    const Mesh *mesh;
    const IrShape *global;
    Option options[MESH_MAX_AXES][MOST_OPTIONS];
    int32_t option_count[MESH_MAX_AXES], stride[MESH_MAX_AXES];
    int32_t count; /* states */
    Node *nodes;
} PathSearch;

/* Returns the axes (bits) that split dimension d. */
static uint32_t axes_splitting(SbpState state, int32_t dimension) {
    uint32_t axes = 0;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (state.axis[axis] == sbp_split(dimension)) axes |= 1u << axis;
    return axes;
}

/* Returns whether every axis of `axes` is minor to all of `major`. */
static bool is_minor(uint32_t axes, uint32_t major) {
    return major == 0 || (axes & (~0u >> __builtin_clz(major))) == 0;
}

static int32_t group_size(const Mesh *mesh, uint32_t axes) {
    int32_t size = 1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (axes >> axis & 1) size *= mesh->axes[axis].size;
    return size;
}

static double share_of_tensor(const Mesh *mesh, SbpState state) {
    uint32_t axes = 0;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (sbp_is_split(state.axis[axis])) axes |= 1u << axis;
    return 1.0 / group_size(mesh, axes);
}

/* Returns the start of the device's shard of dimension d, in units of the common shard size. */
static int64_t part_of(const Mesh *mesh, int32_t device, uint32_t axes) {
    int64_t part = 0;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (axes >> axis & 1) part = part * mesh->axes[axis].size + mesh_coordinate(mesh, device, axis);
    return part;
}

/* Returns the mean share of dimension d that a device has in both states. */
static double common_share(const Mesh *mesh, uint32_t from, uint32_t to) {
    double a = group_size(mesh, from), b = group_size(mesh, to), common = 0;
    for (int32_t device = 0; device < mesh->device_count; device++) {
        double first = (double)part_of(mesh, device, from), second = (double)part_of(mesh, device, to);
        double start = first / a > second / b ? first / a : second / b;
        double end = (first + 1) / a < (second + 1) / b ? (first + 1) / a : (second + 1) / b;
        if (end > start) common += end - start;
    }
    return common / mesh->device_count;
}

/* Returns the share of the global tensor that a device receives in a step. */
static double step_weight(const Mesh *mesh, SbpState from, const ReshardStep *step) {
    double n = group_size(mesh, step->axes), part = (n - 1) / n;
    switch (step->kind) {
    case PROGRAM_ALL_REDUCE: return 2 * part * share_of_tensor(mesh, from);
    case PROGRAM_REDUCE_SCATTER:
    case PROGRAM_ALL_TO_ALL: return part * share_of_tensor(mesh, from);
    case PROGRAM_ALL_GATHER: return part * share_of_tensor(mesh, step->state);
    case PROGRAM_HALO_EXCHANGE: {
        uint32_t before = axes_splitting(from, step->dimension),
                 after = axes_splitting(step->state, step->dimension);
        double others = share_of_tensor(mesh, from) * group_size(mesh, before);
        return others * (1.0 / group_size(mesh, after) - common_share(mesh, before, after));
    }
    default: return 0;
    }
}

/* ---- the states ---- */

static int32_t index_of(const PathSearch *self, SbpState state) {
    int32_t index = 0;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        for (int32_t k = 0; k < self->option_count[axis]; k++) {
            SbpState option = state;
            sbp_set_split(&option, axis, 0, self->options[axis][k].cut);
            option.axis[axis] = self->options[axis][k].sbp;
            if (sbp_equal_on(option, state, axis)) index += k * self->stride[axis];
        }
    return index;
}

static SbpState state_of(const PathSearch *self, int32_t index) {
    SbpState state = {.axis = {SBP_B}};
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        const Option *option = &self->options[axis][index / self->stride[axis] % self->option_count[axis]];
        state.axis[axis] = option->sbp;
        state.cut[axis] = option->cut;
    }
    return state;
}

static void add_option(PathSearch *self, int32_t axis, Sbp sbp, SbpCut cut) {
    SbpState a = {.axis = {SBP_B}}, b = a;
    a.axis[axis] = sbp;
    a.cut[axis] = cut;
    for (int32_t k = 0; k < self->option_count[axis]; k++) {
        b.axis[axis] = self->options[axis][k].sbp;
        b.cut[axis] = self->options[axis][k].cut;
        if (sbp_equal_on(a, b, axis)) return;
    }
    if (self->option_count[axis] < MOST_OPTIONS)
        self->options[axis][self->option_count[axis]++] = (Option){sbp, cut};
}

/* Axes (bits) that have to change, and those that split a dimension with one of them. */
static uint32_t moving_axes(SbpState from, SbpState to) {
    uint32_t moving = 0, before;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (!sbp_equal_on(from, to, axis)) moving |= 1u << axis;
    do {
        before = moving;
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
            if (!(moving >> axis & 1)) continue;
            if (sbp_is_split(from.axis[axis]))
                moving |= axes_splitting(from, sbp_dimension(from.axis[axis])) |
                          axes_splitting(to, sbp_dimension(from.axis[axis]));
            if (sbp_is_split(to.axis[axis]))
                moving |= axes_splitting(from, sbp_dimension(to.axis[axis])) |
                          axes_splitting(to, sbp_dimension(to.axis[axis]));
        }
    } while (moving != before);
    return moving;
}

/* Lists the intermediate states of the axes: the states at both ends, replicated, or, if two axes
 * have to change, an even split of a dimension that no unchanged axis splits. */
static void find_options(PathSearch *self, SbpState from, SbpState to) {
    uint32_t moving = moving_axes(from, to);
    int32_t ways = group_size(self->mesh, moving);
    bool several = __builtin_popcount(moving) == 2;
    self->count = 1;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        add_option(self, axis, from.axis[axis], from.cut[axis]);
        if (moving >> axis & 1) {
            add_option(self, axis, to.axis[axis], to.cut[axis]);
            add_option(self, axis, SBP_B, (SbpCut){0, 0});
            for (int32_t d = 0; several && d < self->global->rank && d < MOST_DIMENSIONS; d++)
                if (self->global->dimensions[d] % ways == 0 && (axes_splitting(from, d) & ~moving) == 0)
                    add_option(self, axis, sbp_split(d), (SbpCut){0, 0});
        }
        self->stride[axis] = self->count;
        self->count *= self->option_count[axis];
    }
}

/* ---- the steps ---- */

static int32_t blocks_of(SbpState state, uint32_t axes) {
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (axes >> axis & 1 && state.cut[axis].outer > 1) return state.cut[axis].outer;
    return 1;
}

/* Returns whether one halo_exchange, or a cut, on dimension d leads from one to the other, which differ
 * there. */
static bool recut(SbpState from, SbpState to, int32_t dimension, ReshardStep *step) {
    uint32_t before = axes_splitting(from, dimension), after = axes_splitting(to, dimension), kept = 0;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) { /* the major ones that cut alike */
        if (!((before | after) >> axis & 1)) continue;
        if (!sbp_equal_on(from, to, axis)) break;
        kept |= 1u << axis;
    }
    step->axes = before & ~kept;
    step->dimension = dimension;
    if (step->axes == 0) return true;
    step->kind = after == kept ? PROGRAM_ALL_GATHER : PROGRAM_HALO_EXCHANGE;
    return after == kept || blocks_of(from, before) == blocks_of(to, after);
}

/* Returns whether one step leads from one state to the other. */
static bool find_step(SbpState from, SbpState to, ReshardStep *step) {
    uint32_t reduced = 0, scattered = 0, moved = 0;
    int32_t source = -1, target = -1, cut = -1;
    *step = (ReshardStep){.kind = RESHARD_CUT, .state = to};
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        Sbp a = from.axis[axis], b = to.axis[axis];
        if (sbp_equal_on(from, to, axis)) continue;
        int32_t out = sbp_is_split(a) ? sbp_dimension(a) : -1, in = sbp_is_split(b) ? sbp_dimension(b) : -1;
        if (sbp_is_partial(b)) return false;
        if (sbp_is_partial(a)) {
            SbpReduction reduction = sbp_reduction(a);
            if ((reduced | scattered) && reduction != step->reduction) return false;
            step->reduction = reduction;
            if (in < 0) reduced |= 1u << axis;
            else scattered |= 1u << axis;
        } else if (out >= 0 && in >= 0 && out != in) {
            if (source >= 0 && source != out) return false;
            source = out;
            moved |= 1u << axis;
        } else {
            int32_t along = out >= 0 ? out : in;
            if (cut >= 0 && cut != along) return false;
            cut = along;
            continue;
        }
        if (in < 0) continue;
        if (target >= 0 && target != in) return false;
        target = in;
    }
    if ((reduced != 0) + (scattered != 0) + (moved != 0) + (cut >= 0) != 1) return false;
    if (cut >= 0) return recut(from, to, cut, step);
    step->axes = reduced | scattered | moved;
    step->kind = reduced ? PROGRAM_ALL_REDUCE : scattered ? PROGRAM_REDUCE_SCATTER : PROGRAM_ALL_TO_ALL;
    if (reduced) return true;
    step->dimension = scattered ? target : source;
    step->other = target;
    return is_minor(step->axes, axes_splitting(from, target)) &&
           (scattered || is_minor(step->axes, axes_splitting(from, source) & ~moved));
}

/* ---- the way ---- */

/* Reaches other states from a node by one collective or cut, where that is cheaper than before. */
static void extend_node(PathSearch *self, int32_t index) {
    const Node *here = &self->nodes[index];
    for (int32_t next = 0; next < self->count; next++) {
        ReshardStep step;
        Node *there = &self->nodes[next];
        if (there->is_done || !find_step(here->state, there->state, &step)) continue;
        double weight = here->weight + step_weight(self->mesh, here->state, &step) +
                        (step.kind == RESHARD_CUT ? STEP_WEIGHT / 8 : STEP_WEIGHT);
        if (there->weight >= 0 && there->weight <= weight) continue;
        there->weight = weight;
        there->before = index;
        there->step = step;
    }
}

/* Finds the cheapest path by Dijkstra's algorithm over all states. Returns false if there is none. */
static bool search_path(PathSearch *self, SbpState from, SbpState to, ReshardPath *path) {
    int32_t end = index_of(self, to), at = index_of(self, from);
    for (int32_t k = 0; k < self->count; k++) {
        self->nodes[k] = (Node){.state = state_of(self, k), .weight = -1, .before = -1};
        self->nodes[k].is_done = sbp_colliding_axis(self->nodes[k].state) >= 0;
    }
    self->nodes[at].weight = 0;
    while (at >= 0 && at != end) {
        self->nodes[at].is_done = true;
        extend_node(self, at);
        at = -1;
        for (int32_t k = 0; k < self->count; k++) {
            const Node *node = &self->nodes[k];
            if (node->is_done || node->weight < 0) continue;
            if (at < 0 || node->weight < self->nodes[at].weight) at = k;
        }
    }
    if (at < 0) return false;
    path->count = 0;
    for (int32_t k = end; self->nodes[k].before >= 0; k = self->nodes[k].before) path->count++;
    if (path->count > RESHARD_MOST_STEPS) return false;
    for (int32_t k = end, step = path->count; step > 0; k = self->nodes[k].before)
        path->steps[--step] = self->nodes[k].step;
    return true;
}

bool reshard_find_path(ReshardPath *path, const Mesh *mesh, const IrShape *global, SbpState from,
                       SbpState to) {
    Node nodes[MOST_STATES];
    PathSearch self = {.mesh = mesh, .global = global, .nodes = nodes};
    path->count = 0;
    if (!sbp_equal(from, to)) {
        bool is_one_axis = __builtin_popcount(moving_axes(from, to)) == 1;
        path->count = 1;
        /* For a single axis, one step is the cheapest path, if one exists. */
        if (!is_one_axis || !find_step(from, to, &path->steps[0])) {
            find_options(&self, from, to);
            if (self.count > MOST_STATES || !search_path(&self, from, to, path)) return false;
        }
    }
    path->weight = 0;
    for (int32_t k = 0; k < path->count; k++) {
        path->weight += step_weight(mesh, from, &path->steps[k]);
        from = path->steps[k].state;
    }
    return true;
}

double reshard_weight(const Mesh *mesh, const IrShape *global, SbpState from, SbpState to) {
    ReshardPath path;
    return reshard_find_path(&path, mesh, global, from, to) ? path.weight : -1;
}
