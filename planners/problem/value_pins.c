/* Finds the operators that a pin of values names.
 *
 * A pin without an operator is an error with the nearest name, or with the dimensions of the operators that
 * it names. Two pins of one operator must require the same sharding.
 */
#include "planners/problem/value_pins.h"

#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "lowering/micro_batch/micro_batches.h"
#include "propagation/propagate/scopes.h"

/* Search for the values of one pin after the other. */
typedef struct ValueFinder {
    Arena *arena;
    const PlanContext *context, *primary; /* plan_context_primary(): patterns are of its names */
    const Mesh *mesh;
    const PropagationPin **pinned; /* [instruction]: the pin of its result, or NULL */
    SbpState *states;              /* [instruction] */
} ValueFinder;

static const char *name_of(const PlanContext *context, int32_t instruction) {
    const IrInstruction *of = plan_context_instruction(context, instruction);
    return of->op_name[0] ? of->op_name : of->name;
}

/* Returns whether an instruction is a broadcast, maybe as a reshape that only adds dimensions of size 1. */
static bool is_broadcast(const IrModule *module, const IrInstruction *instruction) {
    const IrShape *shape = &instruction->shape;
    if (instruction->opcode == IR_BROADCAST) return true;
    if (instruction->opcode != IR_RESHAPE) return false;
    const IrShape *from = &module->instructions[instruction->operands[0]].shape;
    int32_t at = 0;
    for (int32_t d = 0; d < shape->rank; d++) {
        if (at < from->rank && shape->dimensions[d] == from->dimensions[at]) at++;
        else if (shape->dimensions[d] != 1) return false;
    }
    return at == from->rank && shape->rank > from->rank;
}

/* Returns whether the instruction computes an array of so many dimensions that plans store. */
static bool is_stored(const PlanContext *context, int32_t i, int32_t rank) {
    const IrInstruction *instruction = plan_context_instruction(context, i);
    const Rules *rules = context->rules;
    return !is_broadcast(context->canonical, instruction) && instruction->shape.type != DTYPE_TUPLE &&
           instruction->shape.rank == rank && rules->alias[i] == i && rules->rules[i].result_count > 0 &&
           !rules->on_demand[i];
}

/* Returns whether a forward operator that fused attention replaces is named so. */
static bool is_of_attention(const ValueFinder *self, const PropagationPin *pin) {
    const PlanContext *unfused = self->primary->unfused;
    bool *is_in = unfused ? ARENA_ARRAY(self->arena, bool, unfused->rules->count + 1) : NULL;
    if (!is_in) return false;
    scopes_find_named(is_in, unfused, pin->pattern);
    for (int32_t i = 0; i < unfused->rules->count; i++)
        if (unfused->roles->phases[i] == IR_PHASE_FORWARD &&
            (is_in[i] || strcmp(plan_context_instruction(unfused, i)->name, pin->pattern) == 0))
            return true;
    return false;
}

/* Returns whether the pattern names the forward operator k of the module as read. */
static bool is_named(const ValueFinder *self, const PropagationPin *pin, const bool *is_in, int32_t k) {
    const IrInstruction *instruction = plan_context_instruction(self->primary, k);
    bool has_name = is_in[k] || strcmp(instruction->name, pin->pattern) == 0;
    return has_name && self->primary->roles->phases[k] == IR_PHASE_FORWARD &&
           instruction->opcode != IR_PARAMETER;
}

/* Refuses a pin whose scope has values, none of so many dimensions; lists the numbers that it has. */
static AmStatus fail_rank(const ValueFinder *self, const PropagationPin *pin, const bool *is_in, int32_t rank,
                          AmError *error) {
    char label[PIN_LABEL_BYTES], list[4 * (IR_MAX_RANK + 1) + 1] = "";
    for (int32_t r = 0; r <= IR_MAX_RANK; r++) {
        bool has_rank = false;
        for (int32_t k = 0; k < plan_context_count(self->primary) && !has_rank; k++) {
            int32_t i = is_named(self, pin, is_in, k) ? plan_instruction_of(self->context, k) : -1;
            has_rank = i >= 0 && is_stored(self->context, i, r);
        }
        size_t used = strlen(list);
        if (has_rank) snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", r);
    }
    return am_fail(error, pin_error(pin), pin_file(pin),
                   "%s: no stored forward value of the scope has %d dimension%s (expected %s%s)",
                   pin_place(label, pin), rank, rank == 1 ? "" : "s", list[0] ? "" : "another scope", list);
}

/* Refuses a pin without operators, with the nearest name of a forward one. */
static AmStatus fail_name(const ValueFinder *self, const PropagationPin *pin, AmError *error) {
    char label[PIN_LABEL_BYTES], hint[SUGGEST_HINT_BYTES] = "";
    const PlanContext *primary = self->primary;
    const char **names = ARENA_ARRAY(self->arena, const char *, primary->rules->count + 1);
    if (!names) return am_fail_memory(error, primary->rules->count);
    for (int32_t k = 0; k < primary->rules->count; k++)
        if (primary->roles->phases[k] == IR_PHASE_FORWARD)
            names[k] = plan_context_instruction(primary, k)->name;
    suggest_hint(hint, pin->pattern, names, (size_t)primary->rules->count);
    return am_fail(error, pin_error(pin), pin_file(pin),
                   "%s: no forward operator has the name, op_name, weight or source line \"%s\"%s",
                   pin_place(label, pin), pin->pattern, hint);
}

static AmStatus fail_unmatched(const ValueFinder *self, const PropagationPin *pin, const bool *is_in,
                               int32_t rank, AmError *error) {
    char label[PIN_LABEL_BYTES];
    bool has_operators = false;
    for (int32_t k = 0; k < plan_context_count(self->primary); k++)
        has_operators |= is_named(self, pin, is_in, k);
    if (!has_operators && is_of_attention(self, pin))
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s: fused attention has no such value",
                       pin_label(label, pin));
    return has_operators ? fail_rank(self, pin, is_in, rank, error) : fail_name(self, pin, error);
}

static AmStatus find_of_pin(ValueFinder *self, const PropagationPin *pin, AmError *error) {
    const PlanContext *primary = self->primary;
    char text[PIN_ARGUMENT_BYTES], label[PIN_LABEL_BYTES];
    SbpState state;
    int32_t rank, found = 0;
    AmError refusal = {0};
    ArenaMark mark = arena_mark(self->arena);
    bool *is_in = ARENA_ARRAY(self->arena, bool, primary->rules->count + 1);
    if (!is_in) return am_fail_memory(error, primary->rules->count);
    if (propagation_parse_sharding(&state, &rank, self->mesh, pin_argument(text, pin), &refusal) != AM_OK)
        return am_fail(error, pin_error(pin), pin_file(pin), "%s: %s", pin_place(label, pin), refusal.text);
    TRY(scopes_find_members(is_in, self->arena, primary, pin->pattern, error));
    for (int32_t k = 0; k < primary->rules->count; k++) {
        int32_t i = is_named(self, pin, is_in, k) ? plan_instruction_of(self->context, k) : -1;
        if (i < 0 || !is_stored(self->context, i, rank)) continue;
        const PropagationPin *before = self->pinned[i];
        char first[PIN_LABEL_BYTES], second[PIN_LABEL_BYTES];
        if (before && !sbp_equal(self->states[i], state))
            return am_fail(error, pin_error(before), pin_file(before),
                           "%s and %s contradict each other: %s has one sharding", pin_place(first, before),
                           pin_label(second, pin), name_of(self->context, i));
        self->pinned[i] = pin;
        self->states[i] = state;
        found++;
    }
    if (found == 0) return fail_unmatched(self, pin, is_in, rank, error);
    arena_release(self->arena, mark);
    return AM_OK;
}

AmStatus value_pins_find(PinnedValue **values, int32_t *count, Arena *arena, const PlanContext *context,
                         const Mesh *mesh, const PropagationPin *pins, int32_t pin_count, AmError *error) {
    int32_t instructions = context->rules->count;
    bool has_values = false;
    *values = NULL;
    *count = 0;
    for (int32_t k = 0; k < pin_count; k++) has_values |= pin_kind(&pins[k]) == PIN_VALUE;
    if (!has_values) return AM_OK;
    ValueFinder self = {.arena = arena,
                        .context = context,
                        .primary = plan_context_primary(context),
                        .mesh = mesh,
                        .pinned = ARENA_ARRAY(arena, const PropagationPin *, instructions + 1),
                        .states = ARENA_ARRAY(arena, SbpState, instructions + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(SbpState) * instructions);
    for (int32_t k = 0; k < pin_count; k++)
        if (pin_kind(&pins[k]) == PIN_VALUE) TRY(find_of_pin(&self, &pins[k], error));
    PinnedValue *found = ARENA_ARRAY(arena, PinnedValue, instructions + 1);
    if (!found) return am_fail_memory(error, (int64_t)sizeof *found * instructions);
    for (int32_t i = 0; i < instructions; i++)
        if (self.pinned[i]) found[(*count)++] = (PinnedValue){i, self.states[i], self.pinned[i]};
    *values = found;
    return AM_OK;
}

AmStatus value_pin_check(const PinnedValue *value, const PlanContext *context, const Mesh *mesh, bool is_even,
                         AmError *error) {
    const IrInstruction *instruction = plan_context_instruction(context, value->instruction);
    const IrShape *shape = &instruction->shape;
    const char *name = name_of(context, value->instruction);
    char label[PIN_LABEL_BYTES];
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (sbp_is_split(value->state.axis[axis]) && mesh->axes[axis].size == 1)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s: %s cannot be split over axis %s of one device", pin_label(label, value->pin),
                           name, mesh->axes[axis].name);
    for (int32_t d = 0; d < shape->rank; d++) {
        int32_t ways = sbp_ways(mesh, value->state, d);
        if (ways <= shape->dimensions[d] && (!is_even || shape->dimensions[d] % ways == 0)) continue;
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "%s: dimension %d of %s (%s) has %lld elements, which %d devices cannot share%s",
                       pin_label(label, value->pin), d, instruction->name, name,
                       (long long)shape->dimensions[d], ways, is_even ? " equally" : "");
    }
    return AM_OK;
}
