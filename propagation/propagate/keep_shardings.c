/* Seeds from the shardings that a module carries (`--keep-shardings`).
 *
 * An assignment follows from axis priorities. This file finds priorities that reproduce the
 * given shardings: on each axis the classes that some value splits, a class before another if a
 * value has both and splits the first. A value for which they give another state gets an
 * override. A value is identified by the instruction that computes it, through tuples and
 * annotations; values made on demand take the state of their use and seed nothing.
 */
#include <string.h>

#include "ir/hlo.pb-c.h"
#include "propagation/assign/assign.h"
#include "propagation/propagate/propagate.h"
#include "propagation/propagate/read_sharding.h"
#include "propagation/propagate/read_shardy.h"

#define MAX_DIFFERENT 64 /* shardings; more than meshes of four axes give tensors of usual ranks */

typedef struct KeptValue {
    int32_t instruction; /* that makes it */
    int32_t sharding;    /* in `different` */
} KeptValue;

struct KeptShardings {
    DeviceTiles different[MAX_DIFFERENT];
    int32_t different_count;
    bool *known; /* [rules->count]: the instruction is among `values` */
    KeptValue *values;
    int32_t value_count, value_capacity;
};

static AmStatus fail_at(AmError *error, const PlanContext *context, int32_t instruction, const char *what) {
    const IrInstruction *value = plan_context_instruction(context, instruction);
    return am_fail(error, AM_ERROR_INPUT, context->module->source, "%s: %s",
                   value->op_name[0] ? value->op_name : value->name, what);
}

static bool same_integers(const int64_t *a, size_t count, const int64_t *b, size_t other) {
    return count == other && (count == 0 || memcmp(a, b, count * sizeof *a) == 0);
}

static bool same_mesh(const Hlo__MeshProto *a, const Hlo__MeshProto *b) {
    if (!a || !b || a->n_axes != b->n_axes) return a == b;
    if (a->n_device_ids > 0 || b->n_device_ids > 0 || a->iota_transform || b->iota_transform) return a == b;
    for (size_t k = 0; k < a->n_axes; k++)
        if (a->axes[k]->size != b->axes[k]->size || strcmp(a->axes[k]->name, b->axes[k]->name) != 0)
            return false;
    return true;
}

static bool same_named(const Hlo__NamedShardingProto *a, const Hlo__NamedShardingProto *b) {
    if (a == b) return true;
    if (!a || !b || !same_mesh(a->mesh, b->mesh) || a->n_dim_shardings != b->n_dim_shardings) return false;
    if (a->n_manual_axes + b->n_manual_axes + a->n_unreduced_axes + b->n_unreduced_axes > 0) return false;
    for (size_t d = 0; d < a->n_dim_shardings; d++) {
        if (a->dim_shardings[d]->n_axes != b->dim_shardings[d]->n_axes) return false;
        for (size_t k = 0; k < a->dim_shardings[d]->n_axes; k++) {
            const Hlo__AxisRefProto *left = a->dim_shardings[d]->axes[k];
            const Hlo__AxisRefProto *right = b->dim_shardings[d]->axes[k];
            if (left->mesh_axis_index != right->mesh_axis_index || left->sub_axis_info ||
                right->sub_axis_info)
                return false;
        }
    }
    return true;
}

/* Returns whether two messages say the same, as far as sharding_read() reads them. */
static bool same_sharding(const Hlo__OpSharding *a, const Hlo__OpSharding *b) {
    if (a->named_sharding || b->named_sharding) return same_named(a->named_sharding, b->named_sharding);
    return a->type == b->type && a->replicate_on_last_tile_dim == b->replicate_on_last_tile_dim &&
           same_integers(a->tile_assignment_dimensions, a->n_tile_assignment_dimensions,
                         b->tile_assignment_dimensions, b->n_tile_assignment_dimensions) &&
           same_integers(a->tile_assignment_devices, a->n_tile_assignment_devices, b->tile_assignment_devices,
                         b->n_tile_assignment_devices) &&
           same_integers(a->iota_reshape_dims, a->n_iota_reshape_dims, b->iota_reshape_dims,
                         b->n_iota_reshape_dims) &&
           a->n_iota_transpose_perm == b->n_iota_transpose_perm &&
           (a->n_iota_transpose_perm == 0 ||
            memcmp(a->iota_transpose_perm, b->iota_transpose_perm,
                   a->n_iota_transpose_perm * sizeof *a->iota_transpose_perm) == 0) &&
           a->n_last_tile_dims == b->n_last_tile_dims &&
           (a->n_last_tile_dims == 0 || memcmp(a->last_tile_dims, b->last_tile_dims,
                                               a->n_last_tile_dims * sizeof *a->last_tile_dims) == 0);
}

static AmStatus find_sharding(KeptShardings *kept, Arena *arena, const Hlo__OpSharding *message,
                              int32_t *index, AmError *error) {
    for (int32_t k = 0; k < kept->different_count; k++) {
        *index = k;
        if (same_sharding(kept->different[k].message, message)) return AM_OK;
    }
    if (kept->different_count == MAX_DIFFERENT)
        return am_fail(error, AM_ERROR_INPUT, "", "more than %d different shardings", MAX_DIFFERENT);
    *index = kept->different_count++;
    return sharding_read(&kept->different[*index], arena, message, error);
}

static AmStatus keep_value(KeptShardings *kept, Arena *arena, const PlanContext *context, int32_t instruction,
                           const Hlo__OpSharding *message, AmError *error) {
    const Rules *rules = context->rules;
    const IrShape *shape = &plan_context_instruction(context, instruction)->shape;
    int32_t source = rules->alias[instruction], index;
    if (message->type == HLO__OP_SHARDING__TYPE__UNKNOWN || shape->type == DTYPE_TUPLE) return AM_OK;
    AmError reason = {0};
    if (find_sharding(kept, arena, message, &index, &reason) != AM_OK)
        return fail_at(error, context, instruction, reason.text);
    if (kept->different[index].device_count > 0 && kept->different[index].rank != shape->rank)
        return fail_at(error, context, instruction, "its sharding is for another rank");
    bool is_stored = rules->rules[source].result_count > 0 && !rules->on_demand[source];
    if (kept->known[source] || !is_stored || rules->leaf[instruction] > 0) return AM_OK;
    ARENA_RESERVE(arena, kept->values, kept->value_count, kept->value_capacity);
    if (!kept->values) return am_fail_memory(error, kept->value_count);
    kept->known[source] = true;
    kept->values[kept->value_count++] = (KeptValue){source, index};
    return AM_OK;
}

AmStatus propagation_read_shardings(KeptShardings **kept, Arena *arena, const PlanContext *context,
                                    AmError *error) {
    KeptShardings *self = ARENA_ARRAY(arena, KeptShardings, 1);
    if (self) self->known = ARENA_ARRAY(arena, bool, context->rules->count);
    if (!self || !self->known) return am_fail_memory(error, context->rules->count);
    for (int32_t i = 0; i < context->rules->count; i++) {
        const IrInstruction *instruction = plan_context_instruction(context, i);
        const Hlo__OpSharding *message = instruction->message->sharding;
        Hlo__OpSharding *read = NULL;
        if (!message) {
            AmError reason = {0};
            if (shardy_read(&read, arena, context->module->message, instruction->message, &reason) != AM_OK)
                return fail_at(error, context, i, reason.text);
            message = read;
        }
        if (!message) continue;
        if (message->type != HLO__OP_SHARDING__TYPE__TUPLE) {
            TRY(keep_value(self, arena, context, i, message, error));
            continue;
        }
        if (instruction->opcode != IR_TUPLE ||
            message->n_tuple_shardings != (size_t)instruction->operand_count)
            continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            TRY(keep_value(self, arena, context, instruction->operands[k], message->tuple_shardings[k],
                           error));
    }
    *kept = self;
    return AM_OK;
}

bool propagation_is_kept(const KeptShardings *kept, int32_t instruction) {
    return kept->known[instruction];
}

AmStatus propagation_infer_mesh(Mesh *mesh, Arena *arena, const KeptShardings *kept, AmError *error) {
    const DeviceTiles *tiles[MAX_DIFFERENT];
    for (int32_t k = 0; k < kept->different_count; k++) tiles[k] = &kept->different[k];
    return sharding_infer_mesh(mesh, arena, tiles, kept->different_count, error);
}

/* The goal: the state of every kept value. */
typedef struct KeptStates {
    PlanStage *stage;
    Arena *arena;
    const PlanContext *context;
    const KeptShardings *kept;
    SbpState *states;              /* [kept->value_count] */
    int32_t pinned[MESH_MAX_AXES]; /* entries of the axis priorities before any are added */
} KeptStates;

static int32_t split_class(const KeptStates *self, int32_t v, int32_t axis) {
    Sbp sbp = self->states[v].axis[axis];
    if (!sbp_is_split(sbp)) return -1;
    return classes_of(self->context->classes, self->context->rules, self->kept->values[v].instruction,
                      sbp_dimension(sbp));
}

/* Appends the classes that values split on the axis, each before those over which it prevails. */
static AmStatus append_axis_priority(KeptStates *self, int32_t axis, AmError *error) {
    PlanAxisPriority *priority = &self->stage->axis_priorities[axis];
    int32_t classes = self->context->classes->count, left = 0;
    bool *wanted = ARENA_ARRAY(self->arena, bool, classes), *later = ARENA_ARRAY(self->arena, bool, classes);
    PlanEntry *entries = ARENA_ARRAY(self->arena, PlanEntry, classes + priority->count);
    if (self->arena->failed) return am_fail_memory(error, classes);
    if (priority->count > 0) memcpy(entries, priority->entries, sizeof *entries * (size_t)priority->count);
    priority->entries = entries;
    for (int32_t v = 0; v < self->kept->value_count; v++) {
        int32_t class_index = split_class(self, v, axis);
        if (class_index >= 0) wanted[class_index] = true;
    }
    for (int32_t k = 0; k < priority->count; k++) wanted[entries[k].class_index] = false;
    for (int32_t c = 0; c < classes; c++) left += wanted[c];
    while (left > 0) {
        int32_t before = priority->count;
        memset(later, 0, (size_t)classes * sizeof *later);
        /* These classes may not come next: some value has them, but splits another that is not listed yet. */
        for (int32_t v = 0; v < self->kept->value_count; v++) {
            int32_t first = split_class(self, v, axis), instruction = self->kept->values[v].instruction;
            if (first < 0 || !wanted[first]) continue;
            const IrShape *shape =
                split_options_array_shape(plan_context_instruction(self->context, instruction));
            for (int32_t d = 0; d < shape->rank; d++) {
                int32_t other = classes_of(self->context->classes, self->context->rules, instruction, d);
                if (other >= 0 && other != first) later[other] = true;
            }
        }
        for (int32_t c = 0; c < classes; c++)
            if (wanted[c] && !later[c]) entries[priority->count++].class_index = c;
        for (int32_t c = 0; c < classes && priority->count == before; c++) /* a cycle, cut anywhere */
            if (wanted[c]) entries[priority->count++].class_index = c;
        for (int32_t k = before; k < priority->count; k++) wanted[entries[k].class_index] = false;
        left -= priority->count - before;
    }
    return AM_OK;
}

/* Returns whether a class that was listed before any were added splits the value on the axis. */
static bool is_pinned(const KeptStates *self, int32_t instruction, int32_t axis, Sbp sbp) {
    if (!sbp_is_split(sbp)) return false;
    const PlanContext *context = self->context;
    int32_t class_index = classes_of(context->classes, context->rules, instruction, sbp_dimension(sbp));
    for (int32_t k = 0; k < self->pinned[axis]; k++)
        if (self->stage->axis_priorities[axis].entries[k].class_index == class_index) return true;
    return false;
}

AmStatus propagation_keep_shardings(PlanStage *stage, Arena *arena, const PlanContext *context,
                                    const KeptShardings *kept, AmWarnings *warnings, AmError *error) {
    KeptStates self = {.stage = stage, .arena = arena, .context = context, .kept = kept};
    self.states = ARENA_ARRAY(arena, SbpState, kept->value_count);
    if (!self.states) return am_fail_memory(error, kept->value_count);
    /* The values' states, replicated where shards would be uneven. */
    const Mesh *mesh = &self.stage->mesh;
    SbpState found[MAX_DIFFERENT];
    bool is_state[MAX_DIFFERENT];
    for (int32_t k = 0; k < self.kept->different_count; k++)
        is_state[k] = sharding_to_state(&found[k], &self.kept->different[k], mesh);
    for (int32_t v = 0; v < self.kept->value_count; v++) {
        const KeptValue *value = &self.kept->values[v];
        const IrInstruction *instruction = plan_context_instruction(self.context, value->instruction);
        if (!is_state[value->sharding])
            return fail_at(error, self.context, value->instruction,
                           "its sharding is not a split over axes of the mesh in their order");
        self.states[v] = found[value->sharding];
        const IrShape *shape = split_options_array_shape(instruction);
        for (int32_t d = 0; d < shape->rank; d++) {
            int32_t ways = sbp_ways(mesh, self.states[v], d);
            if (shape->dimensions[d] % ways == 0) continue;
            am_warn(warnings, "%s: dimension %d of size %lld over %d devices would be uneven and stays whole",
                    instruction->name, d, (long long)shape->dimensions[d], ways);
            for (int32_t axis = 0; axis < mesh->axis_count; axis++)
                if (self.states[v].axis[axis] == sbp_split(d)) self.states[v].axis[axis] = SBP_B;
        }
    }
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        self.pinned[axis] = stage->axis_priorities[axis].count;
        TRY(append_axis_priority(&self, axis, error));
    }
    /* overrides for the values that assignment would store otherwise */
    Assignment *assignment;
    TRY(plan_assign(&assignment, arena, context, stage, error));
    stage->overrides = ARENA_ARRAY(arena, PlanOverride, kept->value_count);
    if (!stage->overrides) return am_fail_memory(error, kept->value_count);
    for (int32_t v = 0; v < kept->value_count; v++) {
        int32_t i = kept->values[v].instruction;
        SbpState state = assignment->stored[i];
        for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
            if (!is_pinned(&self, i, axis, state.axis[axis])) state.axis[axis] = self.states[v].axis[axis];
        const IrShape *shape = split_options_array_shape(plan_context_instruction(context, i));
        bool divides = true;
        for (int32_t d = 0; d < shape->rank; d++)
            divides &= shape->dimensions[d] % sbp_ways(&stage->mesh, state, d) == 0;
        if (sbp_equal(state, assignment->stored[i]) || !divides) continue;
        stage->overrides[stage->override_count++] =
            (PlanOverride){.instruction = i, .has_states = true, .states = state};
    }
    return AM_OK;
}
