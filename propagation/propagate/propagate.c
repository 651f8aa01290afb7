/* Pins to lists, and the state of every instruction of a completed stage. */
#include "propagation/propagate/propagate.h"

#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "propagation/assign/assign.h"
#include "propagation/groups/strict.h"
#include "propagation/propagate/incremental.h"
#include "propagation/propagate/path_pattern.h"
#include "propagation/propagate/scopes.h"

AmStatus propagation_parse_pin(PropagationPin *pin, Arena *arena, const char *text, AmError *error) {
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text || equals[1] == '\0') {
        return am_fail(error, AM_ERROR_USAGE, "", "pin \"%s\": expected PATTERN=SHARDING", text);
    }
    pin->pattern = arena_copy_bytes(arena, text, (size_t)(equals - text));
    /* Tables show a sharding in brackets: [-,model]. */
    size_t length = strlen(++equals);
    bool is_bracketed = length > 2 && equals[0] == '[' && equals[length - 1] == ']';
    pin->sharding = arena_copy_bytes(arena, equals + is_bracketed, length - 2 * (size_t)is_bracketed);
    return arena->failed ? am_fail_memory(error, (int64_t)strlen(text)) : AM_OK;
}

static int32_t find_axis(const Mesh *mesh, const char *name, size_t length) {
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (strlen(mesh->axes[k].name) == length && strncmp(mesh->axes[k].name, name, length) == 0) return k;
    }
    return -1;
}

/* Refuses at[0..length) of a sharding; an unknown axis is reported with the nearest name. */
static AmStatus fail_axis(const Mesh *mesh, const char *text, const char *at, size_t length, AmError *error) {
    const char *names[MESH_MAX_AXES];
    char name[64], list[MESH_MAX_AXES * 64] = "", hint[SUGGEST_HINT_BYTES] = "";
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        size_t used = strlen(list);
        names[k] = mesh->axes[k].name;
        snprintf(list + used, sizeof list - used, "%s%.60s", k == 0 ? "" : ", ", names[k]);
    }
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    bool is_known = find_axis(mesh, at, length) >= 0;
    if (!is_known) suggest_hint(hint, name, names, (size_t)mesh->axis_count);
    return am_fail(error, AM_ERROR_USAGE, "", "sharding \"%s\": \"%s\" is %s (expected - or %s%s)%s", text,
                   name, is_known ? "used twice or not in the order of the mesh" : "no axis of the mesh",
                   mesh->axis_count > 1 ? "one of " : "", list, hint);
}

/* The axes of each dimension, as a state; at most one dimension per axis, and
 * axes that split one dimension jointly in the order of the mesh. */
static AmStatus parse_sharding(SbpState *state, int32_t *rank, const Mesh *mesh, const char *text,
                               AmError *error) {
    *state = (SbpState){.axis = {SBP_B}};
    *rank = 1;
    int32_t previous = -1; /* axis of this dimension */
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",+");
        bool is_whole = length == 1 && at[0] == '-';
        int32_t axis = is_whole ? -1 : find_axis(mesh, at, length);
        if (!is_whole && (axis <= previous || state->axis[axis] != SBP_B || *rank > IR_MAX_RANK)) {
            return fail_axis(mesh, text, at, length, error);
        }
        if (axis >= 0) state->axis[axis] = sbp_split(*rank - 1);
        at += length;
        previous = *at == '+' ? axis : -1;
        if (*at == '\0') return AM_OK;
        if (*at == ',') (*rank)++;
    }
}

static AmStatus add_entry(PlanStage *stage, Arena *arena, int32_t axis, int32_t class_index, AmError *error) {
    PlanList *list = &stage->lists[axis];
    for (int32_t k = 0; k < list->count; k++) {
        if (list->entries[k].class_index == class_index) return AM_OK;
    }
    list->entries = arena_grow(arena, list->entries, sizeof(PlanEntry) * (size_t)list->count,
                               sizeof(PlanEntry) * ((size_t)list->count + 1));
    if (!list->entries) return am_fail_memory(error, (int64_t)sizeof(PlanEntry) * (list->count + 1));
    list->entries[list->count++] = (PlanEntry){.class_index = class_index};
    return AM_OK;
}

/* Every shard has at least one element; with `is_even` all shards have equally many. */
static AmStatus check_split(const PlanContext *context, const PropagationPin *pin,
                            const IrParameter *parameter, const Mesh *mesh, SbpState state, int32_t dimension,
                            bool is_even, AmError *error) {
    int64_t size = context->canonical->instructions[parameter->instruction].shape.dimensions[dimension];
    int32_t ways = sbp_ways(mesh, state, dimension);
    if (is_even ? size > 0 && size % ways == 0 : size >= ways) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                   "pin \"%s=%s\": dimension %d of %s has size %lld (expected %s %d)", pin->pattern,
                   pin->sharding, dimension, parameter->path, (long long)size,
                   is_even ? "a multiple of" : "at least", ways);
}

static AmStatus for_each_in_scopes(const PlanContext *context, const Mesh *mesh, const PropagationPin *pins,
                                   int32_t count, PropagationPinFunction *apply, void *data, AmError *error) {
    Arena arena = {0};
    const PropagationPin *const *asked;
    SbpState *states;
    AmStatus status = scopes_resolve(&asked, &states, &arena, context, mesh, pins, count, error);
    for (int32_t p = 0; status == AM_OK && p < context->roles->parameter_count; p++)
        if (asked[p]) status = apply(data, asked[p], &context->roles->parameters[p], states[p], error);
    arena_free(&arena);
    return status;
}

static AmStatus fail_unmatched(const PlanContext *context, const PropagationPin *pin, AmError *error) {
    Text nearest = {0};
    path_append_nearest(&nearest, context->roles, pin->pattern);
    am_fail(error, AM_ERROR_USAGE, "", "pin: no parameter's path matches \"%s\"%s", pin->pattern,
            nearest.data ? nearest.data : "");
    text_free(&nearest);
    return AM_ERROR_USAGE;
}

/* Applies one pin with a sharding. If the pattern matches weights and optimizer state, state of
 * another rank, such as factored moments, is skipped. */
static AmStatus apply_pin(const PlanContext *context, const Mesh *mesh, const PropagationPin *pin,
                          PropagationPinFunction *apply, void *data, AmError *error) {
    SbpState state;
    int32_t rank, found = 0;
    const IrParameter *mismatch = NULL; /* the first one, weights before others */
    TRY(parse_sharding(&state, &rank, mesh, pin->sharding, error));
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &context->canonical->instructions[parameter->instruction].shape;
        if (!path_matches(pin->pattern, parameter->path)) continue;
        bool is_first = !mismatch || mismatch->role != IR_ROLE_WEIGHT;
        if (shape->type != DTYPE_TUPLE && shape->rank == rank) {
            TRY(apply(data, pin, parameter, state, error));
            found++;
        } else if (is_first && (!mismatch || parameter->role == IR_ROLE_WEIGHT)) {
            mismatch = parameter;
        }
    }
    if (found == 0 && !mismatch) return fail_unmatched(context, pin, error);
    if (!mismatch || (found > 0 && mismatch->role == IR_ROLE_OPTIMIZER)) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "pin: \"%s\" is for rank %d, %s has rank %d", pin->sharding,
                   rank, mismatch->path, context->canonical->instructions[mismatch->instruction].shape.rank);
}

AmStatus propagation_for_each_pinned(const PlanContext *context, const Mesh *mesh, const PropagationPin *pins,
                                     int32_t count, PropagationPinFunction *apply, void *data,
                                     AmError *error) {
    bool has_scopes = false;
    for (int32_t k = 0; k < count; k++) {
        if (scopes_is_scope(&pins[k])) has_scopes = true;
        else TRY(apply_pin(context, mesh, &pins[k], apply, data, error));
    }
    return has_scopes ? for_each_in_scopes(context, mesh, pins, count, apply, data, error) : AM_OK;
}

static AmStatus fail_unsplit(const PropagationPin *pin, const IrParameter *parameter, int32_t dimension,
                             AmError *error) {
    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                   "pin \"%s=%s\": every operator that uses %s needs its dimension %d whole", pin->pattern,
                   pin->sharding, parameter->path, dimension);
}

typedef struct ListTarget {
    PlanStage *stage;
    Arena *arena;
    const PlanContext *context;
} ListTarget;

static AmStatus pin_to_lists(void *data, const PropagationPin *pin, const IrParameter *parameter,
                             SbpState state, AmError *error) {
    ListTarget *target = data;
    const PlanContext *context = target->context;
    for (int32_t axis = 0; axis < target->stage->mesh.axis_count; axis++) {
        if (!sbp_is_split(state.axis[axis])) continue;
        int32_t dimension = sbp_dimension(state.axis[axis]);
        TRY(check_split(context, pin, parameter, &target->stage->mesh, state, dimension,
                        target->stage->is_even, error));
        int32_t class_index = classes_of(context->classes, context->rules, parameter->instruction, dimension);
        if (class_index < 0) return fail_unsplit(pin, parameter, dimension, error);
        TRY(add_entry(target->stage, target->arena, axis, class_index, error));
    }
    return AM_OK;
}

AmStatus propagation_pin_lists(PlanStage *stage, Arena *arena, const PlanContext *context,
                               const PropagationPin *pins, int32_t count, AmError *error) {
    ListTarget target = {stage, arena, context};
    return propagation_for_each_pinned(context, &stage->mesh, pins, count, pin_to_lists, &target, error);
}

typedef struct SeedTarget {
    Incremental *incremental;
    const PlanContext *context;
    const Mesh *mesh;
} SeedTarget;

static AmStatus pin_to_seeds(void *data, const PropagationPin *pin, const IrParameter *parameter,
                             SbpState state, AmError *error) {
    SeedTarget *target = data;
    for (int32_t axis = 0; axis < target->mesh->axis_count; axis++) {
        if (!sbp_is_split(state.axis[axis])) continue;
        int32_t dimension = sbp_dimension(state.axis[axis]);
        TRY(check_split(target->context, pin, parameter, target->mesh, state, dimension, false, error));
        if (target->mesh->axes[axis].size == 1) continue;
        if (!incremental_add(target->incremental, axis, parameter->instruction, dimension, 0))
            return fail_unsplit(pin, parameter, dimension, error);
    }
    return incremental_failed(target->incremental) ? am_fail_memory(error, 0) : AM_OK;
}

AmStatus propagation_pin_seeds(Incremental *incremental, const PlanContext *context, const Mesh *mesh,
                               const PropagationPin *pins, int32_t count, AmError *error) {
    SeedTarget target = {incremental, context, mesh};
    return propagation_for_each_pinned(context, mesh, pins, count, pin_to_seeds, &target, error);
}

/* The state in which user u needs operand k: by its factors, or by its own state
 * where it is made on demand itself. */
static SbpState needed_state(const PlanContext *context, const Assignment *assignment, const SbpState *states,
                             int32_t user, int32_t operand) {
    const FactorRule *rule = &context->rules->rules[user];
    SbpState needed = {.axis = {SBP_B}};
    if (operand >= rule->operand_count) return needed; /* tuple plumbing */
    for (int32_t axis = 0; axis < assignment->stage->mesh.axis_count; axis++) {
        int32_t chosen = -1;
        if (!context->rules->on_demand[user]) {
            chosen = assignment->factor[(size_t)user * MESH_MAX_AXES + (size_t)axis];
        } else if (sbp_is_split(states[user].axis[axis])) {
            for (int32_t f = 0; f < rule->factor_count && chosen < 0; f++) {
                if (rule->factors[f].kind == FACTOR_PARALLEL &&
                    rule->factors[f].dimension[rule->operand_count] == sbp_dimension(states[user].axis[axis]))
                    chosen = f;
            }
        }
        if (chosen >= 0 && rule->factors[chosen].dimension[operand] >= 0)
            needed.axis[axis] = sbp_split(rule->factors[chosen].dimension[operand]);
    }
    return needed;
}

/* An HLO sharding cannot say that a shard is a piece of each of several blocks: whole there. */
static SbpState without_blocks(SbpState state) {
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_split(state.axis[axis]) && state.cut[axis].outer > 1) sbp_set(&state, axis, SBP_B);
    return state;
}

AmStatus propagate(SbpState **states, Arena *arena, const PlanContext *context, const PlanStage *stage,
                   AmError *error) {
    const Rules *rules = context->rules;
    Assignment *assignment;
    TRY(plan_assign(&assignment, arena, context, stage, error));
    SbpState *built = ARENA_ARRAY(arena, SbpState, rules->count);
    if (!built) return am_fail_memory(error, (int64_t)sizeof(SbpState) * rules->count);
    for (int32_t i = rules->count - 1; i >= 0; i--) {
        if (!rules->on_demand[i]) built[i] = without_blocks(assignment->stored[i]);
        /* Users come after, and the first to come is seen last. */
        const IrInstruction *instruction = &rules->module->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t source = rules->alias[instruction->operands[k]];
            if (rules->on_demand[source] && rules->rules[i].result_count > 0)
                built[source] = needed_state(context, assignment, built, i, k);
        }
    }
    for (int32_t i = 0; i < rules->count; i++) built[i] = built[rules->alias[i]];
    *states = built;
    return AM_OK;
}

typedef struct StrictTarget {
    StrictProblem *problem;
    const PlanContext *context;
    const Mesh *mesh;
} StrictTarget;

static AmStatus fail_strictly(const PlanContext *context, int32_t instruction, AmError *error) {
    const IrInstruction *value = &context->canonical->instructions[instruction];
    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                   "strict rules: %s %s (%s:%d) allows no state beside the pins", value->opcode_name,
                   value->name, value->source_file, value->source_line);
}

static AmStatus pin_strictly(void *data, const PropagationPin *pin, const IrParameter *parameter,
                             SbpState state, AmError *error) {
    StrictTarget *target = data;
    if (!sbp_is_split(state.axis[0])) return AM_OK;
    int32_t dimension = sbp_dimension(state.axis[0]);
    TRY(check_split(target->context, pin, parameter, target->mesh, state, dimension, true, error));
    int32_t conflict = strict_partition(target->problem, parameter->number, dimension);
    return conflict < 0 ? AM_OK : fail_strictly(target->context, conflict, error);
}

AmStatus propagate_strictly(SbpState **states, Arena *arena, const PlanContext *context, const Mesh *mesh,
                            const PropagationPin *pins, int32_t count, AmError *error) {
    if (mesh->axis_count != 1) {
        return am_fail(error, AM_ERROR_USAGE, "", "strict mode: a mesh of one axis is expected, not of %d",
                       mesh->axis_count);
    }
    StrictTarget target = {.context = context, .mesh = mesh};
    TRY(strict_build(&target.problem, arena, context, mesh->axes[0].size, STRICT_STATE, error));
    TRY(propagation_for_each_pinned(context, mesh, pins, count, pin_strictly, &target, error));
    SbpState *built = ARENA_ARRAY(arena, SbpState, context->rules->count);
    if (!built) return am_fail_memory(error, (int64_t)sizeof(SbpState) * context->rules->count);
    int32_t conflict = strict_complete(target.problem);
    if (conflict >= 0) return fail_strictly(context, conflict, error);
    for (int32_t i = 0; i < context->rules->count; i++) built[i].axis[0] = strict_state(target.problem, i);
    *states = built;
    return AM_OK;
}
