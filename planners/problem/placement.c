/* Finds the operators that pins place, and compares plans with them. */
#include "planners/problem/placement.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "propagation/propagate/path_pattern.h"
#include "propagation/propagate/scopes.h"
#include "propagation/stages/stages.h"

int32_t placement_stages(const PropagationPin *pins, int32_t count, const PropagationPin **last) {
    int32_t stages = 0;
    *last = NULL;
    for (int32_t k = 0; k < count; k++) {
        if (pin_kind(&pins[k]) != PIN_STAGE || pin_number(&pins[k]) < stages) continue;
        stages = pin_number(&pins[k]) + 1;
        *last = &pins[k];
    }
    return stages;
}

int32_t placement_free_stage(const PropagationPin *pins, int32_t count) {
    bool is_named[STAGES_MOST] = {false};
    const PropagationPin *last;
    int32_t stages = placement_stages(pins, count, &last);
    for (int32_t k = 0; k < count; k++)
        if (pin_kind(&pins[k]) == PIN_STAGE && pin_number(&pins[k]) < STAGES_MOST)
            is_named[pin_number(&pins[k])] = true;
    for (int32_t s = 0; s < stages && s < STAGES_MOST; s++)
        if (!is_named[s]) return s;
    return -1;
}

/* ---- devices by name and number ---- */

/* Returns the cluster whose device numbers users write. */
static const Cluster *described(const Cluster *cluster) {
    return cluster->parent ? cluster->parent : cluster;
}

static bool mark_item(bool *allowed, const Cluster *cluster, const char *item) {
    int32_t type = cluster_type_named(cluster, item);
    bool found = false;
    for (int32_t d = 0; type >= 0 && d < cluster->device_count; d++) {
        if (cluster_device_type(cluster, d) != &cluster->types[type]) continue;
        allowed[d] = found = true;
    }
    if (found || !isdigit((unsigned char)*item)) return found;
    char *end;
    long first = strtol(item, &end, 10), last = first;
    if (*end == '-' && isdigit((unsigned char)end[1])) last = strtol(end + 1, &end, 10);
    if (*end != '\0' || first > last || last >= described(cluster)->device_count) return false;
    for (int32_t d = 0; d < cluster->device_count; d++) {
        int32_t number = cluster_number(cluster, d);
        allowed[d] |= number >= first && number <= last;
    }
    return true;
}

bool placement_mark_devices(bool *allowed, char unknown[PIN_ARGUMENT_BYTES], const Cluster *cluster,
                            const PropagationPin *pin) {
    char list[PIN_ARGUMENT_BYTES], *rest = list;
    pin_argument(list, pin);
    for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ",")) {
        if (mark_item(allowed, cluster, item)) continue;
        memcpy(unknown, item, strlen(item) + 1);
        return false;
    }
    return true;
}

static AmStatus read_devices(bool **allowed, Arena *arena, const Cluster *cluster, const PropagationPin *pin,
                             AmError *error) {
    char unknown[PIN_ARGUMENT_BYTES], label[PIN_LABEL_BYTES];
    *allowed = ARENA_ARRAY(arena, bool, cluster->device_count);
    if (!*allowed) return am_fail_memory(error, cluster->device_count);
    if (placement_mark_devices(*allowed, unknown, cluster, pin)) return AM_OK;
    bool *of_described = ARENA_ARRAY(arena, bool, described(cluster)->device_count);
    if (!of_described) return am_fail_memory(error, described(cluster)->device_count);
    if (placement_mark_devices(of_described, unknown, described(cluster), pin))
        return am_fail(error, AM_ERROR_INFEASIBLE, pin_file(pin),
                       "%s: no such device is among the %d of cluster %s that are searched (expected others, "
                       "or another --quota)",
                       pin_place(label, pin), cluster->device_count, cluster->name);
    return am_fail(
        error, pin_error(pin), pin_file(pin),
        "%s: \"%s\" is no device of cluster %s (expected a type, such as %s, or numbers from 0 to %d)",
        pin_place(label, pin), unknown, cluster->name, cluster->types[0].name,
        described(cluster)->device_count - 1);
}

/* ---- operators ---- */

static AmStatus fail_pair(const PropagationPin *a, const PropagationPin *b, const IrInstruction *operator,
                          const char * problem, AmError *error) {
    char first[PIN_LABEL_BYTES], second[PIN_LABEL_BYTES];
    return am_fail(error, pin_error(a), pin_file(a), "%s and %s contradict each other: %s %s", pin_place(first, a),
                   pin_label(second, b), operator->op_name[0] ? operator->op_name : operator->name, problem);
}

/* Notes one pin for one operator. */
static AmStatus place_operator(Placement *self, const PropagationPin *pin, const bool *devices, int32_t i,
                               const IrInstruction *operator, AmError * error) {
    const PropagationPin *before;
    switch (pin_kind(pin)) {
    case PIN_STAGE:
        before = self->on_stage[i];
        if (before && pin_number(before) != pin_number(pin))
            return fail_pair(before, pin, operator, "is on one stage", error);
        self->on_stage[i] = pin;
        return AM_OK;
    case PIN_DEVICES:
        before = self->on_devices[i];
        if (before && strcmp(before->sharding, pin->sharding) != 0)
            return fail_pair(before, pin, operator, "is in one place", error);
        self->on_devices[i] = pin;
        self->devices[i] = devices;
        return AM_OK;
    case PIN_REPLICATE:
    case PIN_SPLIT:
        before = self->on_number[i];
        if (!before || pin_number(before) < pin_number(pin)) self->on_number[i] = pin;
        return AM_OK;
    case PIN_SCOPE_SHARDING:
    case PIN_VALUE:
    case PIN_SHARDING: break;
    }
    return AM_OK;
}

static bool places(const PropagationPin *pin) {
    PinKind kind = pin_kind(pin);
    bool has_number = (kind == PIN_REPLICATE || kind == PIN_SPLIT) && pin_number(pin) > 0;
    return kind == PIN_STAGE || kind == PIN_DEVICES || has_number;
}

static AmStatus place_scope(Placement *self, Arena *arena, const PlanContext *context,
                            const PropagationPin *pin, AmError *error) {
    bool *is_in = ARENA_ARRAY(arena, bool, self->count + 1), *devices = NULL;
    int32_t found;
    if (!is_in) return am_fail_memory(error, self->count);
    if (pin_kind(pin) == PIN_DEVICES) TRY(read_devices(&devices, arena, self->cluster, pin, error));
    TRY(scopes_find_operators(is_in, &found, arena, context, pin->pattern, error));
    for (int32_t i = 0; i < self->count; i++)
        if (is_in[i]) TRY(place_operator(self, pin, devices, i, plan_context_instruction(context, i), error));
    if (found > 0 || pin_kind(pin) == PIN_REPLICATE || pin_kind(pin) == PIN_SPLIT) return AM_OK;
    char label[PIN_LABEL_BYTES];
    Text nearest = {0};
    path_append_nearest(&nearest, context->roles, pin->pattern);
    am_fail(error, pin_error(pin), pin_file(pin), "%s: no forward operator is in the scope \"%s\"%s",
            pin_place(label, pin), pin->pattern, nearest.data ? nearest.data : "");
    text_free(&nearest);
    return pin_error(pin);
}

/* Checks that each operator may be on as many devices as the number of its pin. Parts of a cluster are left
 * out: the search tries them. */
static AmStatus check_device_counts(const Placement *self, const PlanContext *context, AmError *error) {
    const Cluster *cluster = self->cluster;
    char label[PIN_LABEL_BYTES];
    if (cluster->parent) return AM_OK;
    for (int32_t i = 0; i < self->count; i++) {
        const PropagationPin *number = self->on_number[i];
        int32_t allowed = 0;
        if (number && pin_number(number) > cluster->device_count)
            return am_fail(error, AM_ERROR_INFEASIBLE, pin_file(number),
                           "%s: cluster %s has %d devices (expected at most as many)",
                           pin_place(label, number), cluster->name, cluster->device_count);
        if (!number || !self->on_devices[i]) continue;
        for (int32_t d = 0; d < cluster->device_count; d++) allowed += self->devices[i][d];
        if (allowed < pin_number(number))
            return fail_pair(self->on_devices[i], number, plan_context_instruction(context, i),
                             "has fewer devices than it needs", error);
    }
    return AM_OK;
}

/* Checks that each stage has a device of the cluster that all pins of its operators allow. */
static AmStatus check_stage_devices(const Placement *self, Arena *arena, AmError *error) {
    const Cluster *cluster = described(self->cluster);
    const PropagationPin *first[STAGES_MOST] = {0};
    bool *shared[STAGES_MOST] = {0}; /* the devices that the pins before allow */
    char label[PIN_LABEL_BYTES], other[PIN_LABEL_BYTES], unknown[PIN_ARGUMENT_BYTES];
    const PropagationPin *before = NULL;
    for (int32_t i = 0; i < self->count; i++) {
        const PropagationPin *pin = self->on_devices[i];
        int32_t stage = self->on_stage[i] && pin ? pin_number(self->on_stage[i]) : -1, left = 0;
        if (stage < 0 || stage >= STAGES_MOST || pin == first[stage] || pin == before) continue;
        bool *allowed = ARENA_ARRAY(arena, bool, cluster->device_count);
        if (!allowed) return am_fail_memory(error, cluster->device_count);
        before = pin;
        if (!placement_mark_devices(allowed, unknown, cluster, pin)) continue;
        if (!first[stage]) {
            first[stage] = pin;
            shared[stage] = allowed;
            continue;
        }
        for (int32_t d = 0; d < cluster->device_count; d++) left += shared[stage][d] &= allowed[d];
        if (left == 0)
            return am_fail(
                error, pin_error(pin), pin_file(pin),
                "%s and %s contradict each other: no device is in both, and both scopes are on stage %d",
                pin_place(label, first[stage]), pin_label(other, pin), stage);
    }
    return AM_OK;
}

AmStatus placement_find(const Placement **placement, Arena *arena, const PlanContext *context,
                        const Cluster *cluster, const PropagationPin *pins, int32_t count, AmError *error) {
    bool has_any = false;
    *placement = NULL;
    for (int32_t k = 0; k < count; k++) has_any |= places(&pins[k]);
    if (!has_any) return AM_OK;
    int32_t operators = context->rules->entry_count;
    Placement *self = ARENA_ARRAY(arena, Placement, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (Placement){.count = operators,
                        .cluster = cluster,
                        .on_stage = ARENA_ARRAY(arena, const PropagationPin *, operators + 1),
                        .on_number = ARENA_ARRAY(arena, const PropagationPin *, operators + 1),
                        .on_devices = ARENA_ARRAY(arena, const PropagationPin *, operators + 1),
                        .devices = ARENA_ARRAY(arena, const bool *, operators + 1)};
    if (arena->failed) return am_fail_memory(error, operators);
    for (int32_t k = 0; k < count; k++)
        if (places(&pins[k])) TRY(place_scope(self, arena, context, &pins[k], error));
    /* The stages of pinned operators ascend in the module's order. */
    const PropagationPin *last = NULL;
    for (int32_t i = 0; i < self->count; i++) {
        const PropagationPin *pin = self->on_stage[i];
        if (!pin) continue;
        if (last && pin_number(pin) < pin_number(last))
            return fail_pair(last, pin, plan_context_instruction(context, i),
                             "follows operators of the later stage", error);
        last = pin;
    }
    TRY(check_device_counts(self, context, error));
    TRY(check_stage_devices(self, arena, error));
    *placement = self;
    return AM_OK;
}

AmStatus placement_check_numbers(const Placement *placement, int32_t stages, AmError *error) {
    const PropagationPin *of[STAGES_MOST] = {0};
    char label[PIN_LABEL_BYTES];
    int32_t sum = 0;
    if (!placement || stages < 1 || stages > STAGES_MOST) return AM_OK;
    for (int32_t i = 0; i < placement->count; i++) {
        const PropagationPin *number = placement->on_number[i];
        int32_t stage = placement->on_stage[i] ? pin_number(placement->on_stage[i]) : stages == 1 ? 0 : -1;
        if (!number || stage < 0) continue;
        if (!of[stage] || pin_number(of[stage]) < pin_number(number)) of[stage] = number;
    }
    for (int32_t s = 0; s < stages; s++) {
        if (!of[s]) return AM_OK;
        sum += pin_number(of[s]);
    }
    int32_t devices = placement->cluster->device_count;
    if (devices % sum == 0) return AM_OK;
    return am_fail(
        error, AM_ERROR_INFEASIBLE, pin_file(of[0]),
        "%s: the %d stages have %d devices by their pins (expected a divisor of the %d of cluster %s)",
        pin_place(label, of[0]), stages, sum, devices, placement->cluster->name);
}

AmStatus placement_check_order(const Placement *placement, AmError *error) {
    const PropagationPin *before = NULL;
    char label[PIN_LABEL_BYTES], other[PIN_LABEL_BYTES];
    int32_t device = 0; /* the first that operators up to here may be on */
    for (int32_t i = 0; placement && i < placement->count; i++) {
        const PropagationPin *pin = placement->on_devices[i];
        if (!pin || pin == before) continue;
        while (device < placement->cluster->device_count && !placement->devices[i][device]) device++;
        if (before && device == placement->cluster->device_count)
            return am_fail(
                error, AM_ERROR_INFEASIBLE, pin_file(pin),
                "%s: its devices precede those of %s, whose operators come first (expected no --keep-order)",
                pin_place(label, pin), pin_label(other, before));
        before = pin;
    }
    return AM_OK;
}

/* ---- ranges and plans ---- */

RangePlacement placement_of_range(const Placement *placement, int32_t first, int32_t end) {
    RangePlacement found = {.stage = -1};
    for (int32_t i = first; i < end && i < placement->count; i++) {
        const PropagationPin *stage = placement->on_stage[i], *number = placement->on_number[i];
        if (placement->on_devices[i]) found.on_devices = placement->on_devices[i];
        if (stage) {
            found.is_contradicted |= found.stage >= 0 && found.stage != pin_number(stage);
            found.stage = pin_number(stage);
        }
        if (!number || pin_number(number) <= found.number) continue;
        found.number = pin_number(number);
        found.on_number = number;
    }
    return found;
}

bool placement_allows_devices(const Placement *placement, int32_t first, int32_t end, int32_t device,
                              int32_t device_count) {
    const bool *before = NULL;
    for (int32_t i = first; i < end && i < placement->count; i++) {
        const bool *allowed = placement->devices[i];
        if (!allowed || allowed == before) continue;
        for (int32_t d = device; d < device + device_count; d++)
            if (!allowed[d]) return false;
        before = allowed;
    }
    return true;
}

/* Fails because an operator of a stage is elsewhere by its pin. */
static AmStatus check_operators(const Placement *self, const Plan *plan, int32_t number, AmError *error) {
    const PlanStage *stage = &plan->stages[number];
    char label[PIN_LABEL_BYTES];
    for (int32_t r = 0; r < stage->range_count; r++)
        for (int32_t i = stage->ranges[r][0]; i < stage->ranges[r][1] && i < self->count; i++) {
            const PropagationPin *pin = self->on_stage[i];
            if (pin && pin_number(pin) != number)
                return am_fail(error, AM_ERROR_INFEASIBLE, "",
                               "%s: the plan has operators of this scope on stage %d", pin_label(label, pin),
                               number);
            for (int32_t d = 0; self->devices[i] && d < stage->mesh.device_count; d++)
                if (!self->devices[i][stage->devices[d]])
                    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                                   "%s: the plan has operators of this scope on device %d",
                                   pin_label(label, self->on_devices[i]),
                                   cluster_number(self->cluster, stage->devices[d]));
        }
    return AM_OK;
}

AmStatus placement_check_plan(const Placement *placement, const Plan *plan, AmError *error) {
    char label[PIN_LABEL_BYTES], other[PIN_LABEL_BYTES];
    const PropagationPin *first = NULL;
    int32_t replicas = 0;
    for (int32_t s = 0; placement && s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        RangePlacement all = {0};
        TRY(check_operators(placement, plan, s, error));
        for (int32_t r = 0; r < stage->range_count; r++) {
            const RangePlacement of = placement_of_range(placement, stage->ranges[r][0], stage->ranges[r][1]);
            if (of.number > all.number) all = of;
        }
        if (all.number == 0) continue;
        int32_t devices = stage->mesh.device_count;
        if (devices % all.number != 0)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s: stage %d has %d devices (expected a multiple of %d)",
                           pin_label(label, all.on_number), s, devices, all.number);
        if (first && devices / all.number != replicas)
            return am_fail(
                error, AM_ERROR_INFEASIBLE, "",
                "%s and %s: the plan has %d replicas of the one and %d of the other (expected equally many)",
                pin_label(label, first), pin_label(other, all.on_number), replicas, devices / all.number);
        first = all.on_number;
        replicas = devices / all.number;
    }
    return AM_OK;
}
