/* Storage entries of axis priorities: ZeRO stores values of a role in shards, however they are computed.
 *
 * storage_begin() finds the dimension of each weight that is split on each axis. storage_choose_states()
 * stores weights, gradients and optimizer state so; storage_choose_factors() splits the operators that run
 * on shards. storage_follow_overrides() does the same for weights whose storage an override names, and
 * storage_apply_places() applies the places of gathers that the stage names.
 */
#include "propagation/assign/storage.h"

/* A weight of fewer elements is not split unevenly. */
#define LEAST_UNEVEN_ELEMENTS 65536

static const char *const kind_names[PLAN_ENTRY_KINDS] = {"compute", "weights", "gradients", "optimizer"};
static const char *const place_names[RESHARD_PLACES] = {"before", "kept", "repeated"};

const char *plan_entry_kind_name(PlanEntryKind kind) {
    return kind_names[kind];
}

int32_t storage_zero_level(const PlanStage *stage) {
    static const int32_t levels[PLAN_ENTRY_KINDS] = {
        [PLAN_COMPUTE] = 0, [PLAN_OPTIMIZER] = 1, [PLAN_GRADIENTS] = 2, [PLAN_WEIGHTS] = 3};
    int32_t most = 0;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            int32_t level = levels[stage->axis_priorities[axis].entries[e].kind];
            if (level > most) most = level;
        }
    return most;
}

bool storage_is_used(const PlanStage *stage) {
    return storage_zero_level(stage) > 0;
}

const char *reshard_place_name(ReshardPlace place) {
    return place_names[place];
}

static int8_t *split_of(const Storage *self, PlanEntryKind kind, int32_t axis, int32_t parameter) {
    int32_t count = self->context->roles->parameter_count;
    return &self->split[((int32_t)kind * MESH_MAX_AXES + axis) * count + parameter];
}

/* Returns the dimension of weight `parameter` that the entry splits on the axis, or -1. Several axes of one
 * kind split one dimension jointly where that divides, so that one collective gathers it. */
static int32_t dimension_for(const Storage *self, const PlanEntry *entry, int32_t axis, int32_t parameter,
                             bool evenly) {
    const PlanContext *context = self->context;
    int32_t instruction = context->roles->parameters[parameter].instruction, best = -1;
    const IrShape *shape = &plan_context_instruction(context, instruction)->shape;
    SbpState state = self->assignment->stored[instruction];
    bool best_is_joint = false;
    if (shape->type == DTYPE_TUPLE || state.axis[axis] != SBP_B) return -1;
    if (!evenly && ir_shape_elements(shape) < LEAST_UNEVEN_ELEMENTS) return -1;
    for (int32_t d = 0; d < shape->rank; d++) {
        int64_t ways = 1; /* of dimension d by entries of the kind, first on the axes before `axis` */
        for (int32_t k = 0; k < axis; k++)
            if (*split_of(self, entry->kind, k, parameter) == d) ways *= self->mesh->axes[k].size;
        bool is_joint = ways > 1;
        bool is_computed_split = false;
        for (int32_t k = 0; k < MESH_MAX_AXES; k++) is_computed_split |= state.axis[k] == sbp_split(d);
        if (is_computed_split || shape->dimensions[d] < 1) continue;
        ways *= self->mesh->axes[axis].size;
        if (evenly ? shape->dimensions[d] % ways != 0 : shape->dimensions[d] < ways) continue;
        if (entry->class_index != PLAN_ANY_CLASS &&
            classes_of(context->classes, context->rules, instruction, d) != entry->class_index)
            continue;
        if (best >= 0 && (best_is_joint || (!is_joint && shape->dimensions[d] <= shape->dimensions[best])))
            continue;
        best = d;
        best_is_joint = is_joint;
    }
    return best;
}

AmStatus storage_begin(Storage *self, Arena *arena, const PlanContext *context, Assignment *assignment,
                       AmError *error) {
    const PlanStage *stage = assignment->stage;
    int32_t parameters = context->roles->parameter_count;
    int32_t places = PLAN_ENTRY_KINDS * MESH_MAX_AXES * parameters;
    *self = (Storage){.context = context,
                      .rules = context->rules,
                      .mesh = &assignment->stage->mesh,
                      .roles = context->split_options->storage,
                      .assignment = assignment,
                      .split = ARENA_ARRAY(arena, int8_t, places + 1)};
    if (!self->split) return am_fail_memory(error, places);
    for (int32_t k = 0; k < places; k++) self->split[k] = -1;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        if (stage->mesh.axes[axis].size == 1) continue;
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            const PlanEntry *entry = &stage->axis_priorities[axis].entries[e];
            if (entry->kind == PLAN_COMPUTE) continue;
            for (int32_t p = 0; p < parameters; p++) {
                int8_t *split = split_of(self, entry->kind, axis, p);
                if (context->roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
                if (*split < 0) *split = (int8_t)dimension_for(self, entry, axis, p, true);
                if (*split < 0 && !self->assignment->stage->is_even)
                    *split = (int8_t)dimension_for(self, entry, axis, p, false);
            }
        }
    }
    return AM_OK;
}

/* Returns the dimension of instruction i that entries of the kind split on the axis, or -1. */
static int32_t kept_dimension(const Storage *self, PlanEntryKind kind, int32_t i, int32_t axis) {
    const StorageRoles *roles = self->roles;
    int32_t dimension = *split_of(self, kind, axis, roles->weight[i]);
    const IrShape *shape = split_options_array_shape(plan_context_instruction(self->context, i));
    if (dimension < 0 || shape->type == DTYPE_TUPLE) return -1;
    for (int32_t d = 0; d < shape->rank; d++)
        if (roles->dimension[roles->first[i] + d] == dimension) return d;
    return -1;
}

void storage_keep(const Storage *self, int32_t i, int32_t axis) {
    static const PlanEntryKind kinds[] = {[STORAGE_NONE] = PLAN_COMPUTE,
                                          [STORAGE_WEIGHT] = PLAN_WEIGHTS,
                                          [STORAGE_GRADIENT] = PLAN_GRADIENTS,
                                          [STORAGE_OPTIMIZER] = PLAN_OPTIMIZER};
    StorageRole role = (StorageRole)self->roles->role[i];
    SbpState *state = &self->assignment->stored[i];
    const Mesh *mesh = self->mesh;
    sbp_set(state, axis, SBP_B);
    if (role == STORAGE_NONE || self->roles->weight[i] < 0) return;
    int32_t d = kept_dimension(self, kinds[role], i, axis);
    /* A finished gradient comes to the optimizer in its shards; one that is still added to, in a loop,
     * stays partial until that is over. */
    if (d < 0 && role == STORAGE_GRADIENT && !self->roles->is_added_up[i])
        d = kept_dimension(self, PLAN_OPTIMIZER, i, axis);
    if (d < 0) return;
    int64_t size = split_options_array_shape(plan_context_instruction(self->context, i))->dimensions[d];
    if (size < (int64_t)sbp_ways(mesh, *state, d) * mesh->axes[axis].size) return;
    sbp_set_split(state, axis, d, sbp_cut(mesh, *state, axis, d, size, 1, size));
}

void storage_choose_states(const Storage *self) {
    const SplitOptions *split_options = self->context->split_options;
    Assignment *assignment = self->assignment;
    for (int32_t axis = 0; axis < assignment->stage->mesh.axis_count; axis++) {
        if (assignment->stage->mesh.axes[axis].size == 1) continue;
        for (int32_t k = 0; k < split_options->decided_count; k++) {
            int32_t i = split_options->decided[k];
            if (self->roles->role[i] == STORAGE_NONE || assignment->stored[i].axis[axis] != SBP_B) continue;
            storage_keep(self, i, axis);
            if (self->roles->role[i] == STORAGE_WEIGHT && assignment->stored[i].axis[axis] != SBP_B)
                assignment->regathered[i] = !assignment->stage->keeps_gathered_weights;
        }
    }
}

static bool never_follows(IrOpcode opcode) {
    return ir_is_product(opcode) || opcode == IR_GATHER || opcode == IR_SCATTER;
}

/* Finds the value that instruction i's factors should follow on the axis: its result if that is
 * stored in shards, else its largest operand that is. `slot` counts as in Factor; `source` is the
 * owner. */
static bool find_kept(const Storage *self, int32_t i, int32_t axis, int32_t *slot, int32_t *source) {
    const SplitOptions *split_options = self->context->split_options;
    const SbpState *stored = self->assignment->stored;
    *slot = self->rules->rules[i].operand_count;
    *source = i;
    if (sbp_is_split(stored[i].axis[axis])) return true;
    double most = -1;
    for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
        int32_t operand = split_options->operands[k];
        if (!sbp_is_split(stored[operand].axis[axis]) || split_options->array_bytes[operand] <= most)
            continue;
        most = split_options->array_bytes[operand];
        *slot = k - split_options->first_operand[i];
        *source = operand;
    }
    return most >= 0;
}

static void choose_factor(const Storage *self, int32_t i, int32_t axis) {
    const FactorRule *rule = &self->rules->rules[i];
    size_t place = (size_t)i * MESH_MAX_AXES + (size_t)axis;
    int32_t slot, source;
    if (!find_kept(self, i, axis, &slot, &source)) return;
    SbpState kept = self->assignment->stored[source];
    int32_t d = sbp_dimension(kept.axis[axis]);
    int64_t size = split_options_array_shape(plan_context_instruction(self->context, source))->dimensions[d];
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->kind != FACTOR_PARALLEL && factor->kind != FACTOR_REDUCTION) continue;
        if (factor->dimension[slot] != d || factor->size > INT32_MAX || factor->blocks) continue;
        if (!sbp_cuts_between(self->mesh, kept, d, size, factor->size)) continue;
        self->assignment->factor[place] = (int8_t)f;
        self->assignment->cut[place] =
            kept.cut[axis].count > 0 ? kept.cut[axis] : (SbpCut){1, (int32_t)factor->size};
        return;
    }
}

void storage_choose_factors(const Storage *self) {
    const SplitOptions *split_options = self->context->split_options;
    const IrModule *module = self->context->canonical;
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++) {
        if (self->mesh->axes[axis].size == 1) continue;
        for (int32_t k = 0; k < split_options->decided_count; k++) {
            int32_t i = split_options->decided[k];
            if (self->assignment->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] >= 0) continue;
            bool has_role =
                self->roles->role[i] != STORAGE_NONE || self->context->roles->phases[i] == IR_PHASE_OPTIMIZER;
            if (!has_role || never_follows(module->instructions[i].opcode)) continue;
            if (self->rules->rules[i].result_count == 1) choose_factor(self, i, axis);
        }
    }
}

/* Returns the state of instruction i of a weight that an override stores as `wanted`: split in the same way,
 * else unchanged unless that collides. */
static SbpState followed_state(const Storage *self, int32_t i, const SbpState *wanted) {
    const StorageRoles *roles = self->roles;
    const Mesh *mesh = self->mesh;
    const SbpState old = self->assignment->stored[i];
    const IrShape *shape = split_options_array_shape(plan_context_instruction(self->context, i));
    SbpState state = {.axis = {SBP_B}};
    uint32_t split = 0;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        if (!sbp_is_split(wanted->axis[axis])) continue;
        for (int32_t d = 0; d < shape->rank; d++) {
            if (roles->dimension[roles->first[i] + d] != sbp_dimension(wanted->axis[axis])) continue;
            int64_t size = shape->dimensions[d];
            if (size < (int64_t)sbp_ways(mesh, state, d) * mesh->axes[axis].size) continue;
            sbp_set_split(&state, axis, d, sbp_cut(mesh, state, axis, d, size, 1, size));
            split |= 1u << d;
        }
    }
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (!sbp_is_split(wanted->axis[axis]) && sbp_is_split(old.axis[axis]) &&
            !(split >> sbp_dimension(old.axis[axis]) & 1))
            sbp_take(&state, old, axis);
    return state;
}

/* Splits instruction i by the storage of its result or its operands. */
static void choose_factors_anew(const Storage *self, int32_t i) {
    const Mesh *mesh = self->mesh;
    if (never_follows(plan_context_instruction(self->context, i)->opcode)) return;
    if (self->rules->rules[i].result_count != 1) return;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        if (mesh->axes[axis].size == 1) continue;
        self->assignment->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] = -1;
        choose_factor(self, i, axis);
    }
}

AmStatus storage_follow_overrides(const Storage *self, Arena *arena, AmError *error) {
    const SplitOptions *split_options = self->context->split_options;
    const PlanStage *stage = self->assignment->stage;
    const PlanOverride **wanted = /* [parameter]: how this weight is stored */
        ARENA_ARRAY(arena, const PlanOverride *, self->context->roles->parameter_count + 1);
    if (!wanted) return am_fail_memory(error, self->context->roles->parameter_count);
    bool is_any = false;
    for (int32_t e = 0; e < stage->override_count; e++) {
        int32_t i = stage->overrides[e].instruction;
        bool is_parameter = i < self->rules->entry_count &&
                            plan_context_instruction(self->context, i)->opcode == IR_PARAMETER;
        if (!stage->overrides[e].has_states || !is_parameter || self->roles->role[i] != STORAGE_WEIGHT)
            continue;
        wanted[self->roles->weight[i]] = &stage->overrides[e];
        is_any = true;
    }
    for (int32_t pass = 0; is_any && pass < 2; pass++) /* states, then the factors that go by them */
        for (int32_t k = 0; k < split_options->decided_count; k++) {
            int32_t i = split_options->decided[k], weight = self->roles->weight[i];
            if (self->roles->role[i] == STORAGE_NONE || weight < 0 || !wanted[weight]) continue;
            if (pass == 0) self->assignment->stored[i] = followed_state(self, i, &wanted[weight]->states);
            else choose_factors_anew(self, i);
        }
    return AM_OK;
}

/* Gathers a value over the axes on which the stage stores weights in shards; over all axes if it names none,
 * since an override may store them so. */
static void gather_stored(SbpState *state, const PlanStage *stage) {
    bool is_stored[MESH_MAX_AXES] = {false}, is_any = false;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t k = 0; k < stage->axis_priorities[axis].count; k++)
            is_any |= is_stored[axis] |= stage->axis_priorities[axis].entries[k].kind == PLAN_WEIGHTS;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (is_stored[axis] || !is_any) sbp_set(state, axis, SBP_B);
}

/* Arrays that loops read unchanged and that come from `instruction` are carried whole. */
static bool gather_before(Assignment *assignment, const PlanContext *context, int32_t instruction) {
    const Rules *rules = context->rules;
    bool found = false;
    for (int32_t k = 0; k < rules->loop_count; k++) {
        for (int32_t l = 0; l < rules->loops[k].leaf_count; l++) {
            const LoopLeaf *leaf = &rules->loops[k].leaves[l];
            if (!leaf->is_invariant || leaf->in_body < 0) continue;
            if (leaf->in_body != instruction && leaf->initial != instruction) continue;
            gather_stored(&assignment->stored[leaf->in_body], assignment->stage);
            assignment->regathered[leaf->in_body] = false;
            found = true;
        }
    }
    return found;
}

AmStatus storage_apply_places(Assignment *assignment, const PlanContext *context, AmError *error) {
    const PlanStage *stage = assignment->stage;
    for (int32_t i = 0; i < context->rules->count && !stage->keeps_gathered_weights; i++)
        if (context->split_options->storage->is_reread[i]) assignment->regathered[i] = true;
    for (int32_t k = 0; k < stage->reshard_count; k++) {
        const PlanReshard *reshard = &stage->reshard[k];
        int32_t i = reshard->instruction;
        if (i < 0 || i >= context->rules->count)
            return am_fail(error, AM_ERROR_INPUT, context->canonical->source,
                           "resharding of instruction %d: the module has %d", i, context->rules->count);
        assignment->regathered[i] = reshard->place == PLAN_REPEATED;
        if (reshard->place != PLAN_BEFORE || gather_before(assignment, context, i)) continue;
        return am_fail(error, AM_ERROR_INPUT, context->canonical->source,
                       "resharding of %s: no loop reads it unchanged, so it has no place before one",
                       plan_context_instruction(context, i)->name);
    }
    /* A broadcast is computed at its use: it follows its operand. */
    for (int32_t i = 0; i < context->rules->count; i++) {
        const IrInstruction *instruction = plan_context_instruction(context, i);
        if (context->rules->on_demand[i] && instruction->opcode == IR_BROADCAST)
            assignment->regathered[i] =
                assignment->regathered[context->rules->alias[instruction->operands[0]]];
    }
    return AM_OK;
}
