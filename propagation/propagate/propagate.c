/* Pins as entries of axis priorities or as seeds, and the state of every instruction of an assignment.
 *
 * propagate() assigns shardings by the axis priorities of a stage; propagate_strictly() decides by the
 * constraint problem of strict mode (propagation/groups/strict.h).
 */
#include "propagation/propagate/propagate.h"

#include <string.h>

#include "propagation/assign/assign.h"
#include "propagation/groups/strict.h"
#include "propagation/propagate/incremental.h"

static AmStatus add_entry(PlanStage *stage, Arena *arena, int32_t axis, int32_t class_index, AmError *error) {
    PlanAxisPriority *priority = &stage->axis_priorities[axis];
    for (int32_t k = 0; k < priority->count; k++) {
        if (priority->entries[k].class_index == class_index) return AM_OK;
    }
    priority->entries = arena_grow(arena, priority->entries, sizeof(PlanEntry) * (size_t)priority->count,
                                   sizeof(PlanEntry) * ((size_t)priority->count + 1));
    if (!priority->entries) return am_fail_memory(error, (int64_t)sizeof(PlanEntry) * (priority->count + 1));
    priority->entries[priority->count++] = (PlanEntry){.class_index = class_index};
    return AM_OK;
}

/* Checks that every shard has at least one element, and with `is_even` that all shards have equally many. */
static AmStatus check_split(const PlanContext *context, const PropagationPin *pin,
                            const IrParameter *parameter, const Mesh *mesh, SbpState state, int32_t dimension,
                            bool is_even, AmError *error) {
    int64_t size = plan_context_instruction(context, parameter->instruction)->shape.dimensions[dimension];
    int32_t ways = sbp_ways(mesh, state, dimension);
    if (is_even ? size > 0 && size % ways == 0 : size >= ways) return AM_OK;
    char label[PIN_LABEL_BYTES];
    return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s: dimension %d of %s has size %lld (expected %s %d)",
                   pin_label(label, pin), dimension, parameter->path, (long long)size,
                   is_even ? "a multiple of" : "at least", ways);
}

static AmStatus fail_unsplit(const PropagationPin *pin, const IrParameter *parameter, int32_t dimension,
                             AmError *error) {
    char label[PIN_LABEL_BYTES];
    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                   "%s: every operator that uses %s needs its dimension %d whole", pin_label(label, pin),
                   parameter->path, dimension);
}

AmStatus propagation_pin_parameter(PlanStage *stage, Arena *arena, const PlanContext *context,
                                   const PropagationPin *pin, const IrParameter *parameter, SbpState state,
                                   AmError *error) {
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        if (!sbp_is_split(state.axis[axis])) continue;
        int32_t dimension = sbp_dimension(state.axis[axis]);
        TRY(check_split(context, pin, parameter, &stage->mesh, state, dimension, stage->is_even, error));
        int32_t class_index = classes_of(context->classes, context->rules, parameter->instruction, dimension);
        if (class_index < 0) return fail_unsplit(pin, parameter, dimension, error);
        TRY(add_entry(stage, arena, axis, class_index, error));
    }
    return AM_OK;
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
    return AM_OK;
}

AmStatus propagation_pin_seeds(Incremental *incremental, const PlanContext *context, const Mesh *mesh,
                               const PropagationPin *pins, int32_t count, AmError *error) {
    SeedTarget target = {incremental, context, mesh};
    return propagation_for_each_pinned(context, mesh, pins, count, pin_to_seeds, &target, error);
}

/* Returns the state in which user u needs operand k: by its factors, or by its own state where it is made on
 * demand itself. */
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

AmStatus propagate(SbpState **states, Arena *arena, const PlanContext *context, const PlanStage *stage,
                   AmError *error) {
    const Rules *rules = context->rules;
    Assignment *assignment;
    TRY(plan_assign(&assignment, arena, context, stage, error));
    SbpState *built = ARENA_ARRAY(arena, SbpState, rules->count);
    if (!built) return am_fail_memory(error, (int64_t)sizeof(SbpState) * rules->count);
    for (int32_t i = rules->count - 1; i >= 0; i--) {
        /* An HLO sharding cannot express a shard of each of several blocks: the value is replicated there. */
        SbpState state = assignment->stored[i];
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
            if (sbp_is_split(state.axis[axis]) && state.cut[axis].outer > 1) sbp_set(&state, axis, SBP_B);
        if (!rules->on_demand[i]) built[i] = state;
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
    const IrInstruction *value = plan_context_instruction(context, instruction);
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
