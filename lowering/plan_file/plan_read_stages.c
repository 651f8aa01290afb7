/* Reads the stages of a plan file: mesh, devices, axis priorities, overrides, reshards, ranges and
 * recomputation.
 *
 * Names of dimension classes and instructions are looked up in the module. A device is in one stage alone.
 */
#include <math.h>
#include <string.h>

#include "base/files/json.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/plan_file/plan_reader.h"
#include "lowering/plan_file/stage_switches.h"
#include "propagation/stages/stages.h"

const char *plan_reader_place(const PlanReader *self, const char *format, const char *where, int32_t index) {
    const char *path = arena_format(self->arena, format, where, index);
    return path ? path : where;
}

AmStatus plan_reader_refuse(const PlanReader *self, const char *where, const char *expected) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: %s", where, expected);
}

AmStatus plan_reader_integer(const PlanReader *self, int32_t *value, const json_t *array, int32_t index,
                             const char *where, int64_t least, int64_t most) {
    const json_t *element = json_array_get(array, (size_t)index);
    json_int_t number = json_integer_value(element);
    if (!json_is_integer(element) || number < least || number > most)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "%s[%d]: expected an integer from %lld to %lld", where, index, (long long)least,
                       (long long)most);
    *value = (int32_t)number;
    return AM_OK;
}

static AmStatus read_class(const PlanReader *self, int32_t *class_index, const json_t *name,
                           const char *where) {
    if (json_is_string(name))
        return plan_reader_refuse(
            self, where, "classes named by a pattern are not supported, expected [kind, number, dimension]");
    const char *kind = json_string_value(json_array_get(name, 0));
    bool by_parameter = kind && strcmp(kind, "parameter") == 0;
    if (!json_is_array(name) || json_array_size(name) != 3 || !kind ||
        (!by_parameter && strcmp(kind, "instruction") != 0))
        return plan_reader_refuse(self, where,
                                  "expected [\"parameter\" or \"instruction\", number, dimension]");
    int32_t number, dimension;
    TRY(plan_reader_integer(self, &number, name, 1, where, 0, INT32_MAX));
    TRY(plan_reader_integer(self, &dimension, name, 2, where, 0, IR_MAX_RANK - 1));
    *class_index = classes_find(self->context->classes, by_parameter, number, dimension);
    if (*class_index >= 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: the module has no class [\"%s\", %d, %d]",
                   where, kind, number, dimension);
}

static AmStatus read_shares(const PlanReader *self, MeshAxis *axis, const json_t *shares, const char *where) {
    if (json_is_null(shares)) return AM_OK;
    if (!json_is_array(shares) || json_array_size(shares) != (size_t)axis->size)
        return plan_reader_refuse(self, where, "expected null or one share for each part of the axis");
    double *values = ARENA_ARRAY(self->arena, double, axis->size), sum = 0;
    if (!values) return am_fail_memory(self->error, axis->size);
    for (int32_t k = 0; k < axis->size; k++) {
        values[k] = json_number_value(json_array_get(shares, (size_t)k));
        if (!(values[k] > 0) || values[k] > 1)
            return plan_reader_refuse(self, where, "expected shares in (0, 1]");
        sum += values[k];
    }
    if (fabs(sum - 1) > 1e-9) return plan_reader_refuse(self, where, "expected shares that sum to 1");
    axis->shares = values;
    return AM_OK;
}

static AmStatus read_mesh(const PlanReader *self, Mesh *mesh, const json_t *axes, const char *where) {
    static const char *const keys[] = {"axis", "size", "shares", NULL};
    size_t count = json_array_size(axes);
    if (count < 1 || count > MESH_MAX_AXES) return plan_reader_refuse(self, where, "expected 1 to 4 axes");
    *mesh = (Mesh){.axis_count = (int32_t)count, .device_count = 1};
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        json_t *object = json_array_get(axes, (size_t)k);
        const char *at = plan_reader_place(self, "%s[%d]", where, k), *name;
        int64_t size;
        if (!json_is_object(object)) return plan_reader_refuse(self, at, "expected an object");
        TRY(json_only_keys(object, keys, self->source, at, self->error));
        TRY(json_get_string(&name, object, "axis", self->source, at, self->error));
        TRY(json_get_integer(&size, object, "size", 1, MESH_MAX_DEVICES, self->source, at, self->error));
        if (name[0] == '\0') return plan_reader_refuse(self, at, "expected an axis with a name");
        for (int32_t other = 0; other < k; other++)
            if (strcmp(mesh->axes[other].name, name) == 0)
                return plan_reader_refuse(self, at, "expected axes of different names");
        if (mesh->device_count > MESH_MAX_DEVICES / size)
            return plan_reader_refuse(self, where, "too many devices");
        mesh->device_count *= (int32_t)size;
        mesh->axes[k].name = arena_copy_string(self->arena, name);
        if (!mesh->axes[k].name) return am_fail_memory(self->error, (int64_t)strlen(name));
        mesh->axes[k].size = (int32_t)size;
        TRY(read_shares(self, &mesh->axes[k], json_object_get(object, "shares"), at));
    }
    return AM_OK;
}

static AmStatus read_devices(const PlanReader *self, PlanStage *stage, const json_t *devices,
                             const char *where) {
    int32_t count = stage->mesh.device_count;
    if (json_array_size(devices) != (size_t)count)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "%s: expected %d devices, as the mesh has, found %zu", where, count,
                       json_array_size(devices));
    stage->devices = ARENA_ARRAY(self->arena, int32_t, count);
    if (!stage->devices) return am_fail_memory(self->error, count);
    for (int32_t k = 0; k < count; k++) {
        TRY(plan_reader_integer(self, &stage->devices[k], devices, k, where, 0, MESH_MAX_DEVICES - 1));
        if (self->taken[stage->devices[k]]) return plan_reader_refuse(self, where, "a device is named twice");
        self->taken[stage->devices[k]] = true;
    }
    return AM_OK;
}

static AmStatus read_entry(const PlanReader *self, PlanEntry *entry, json_t *object, const char *where) {
    static const char *const keys[] = {"class", "kind", NULL};
    const char *kind, *any = json_string_value(json_object_get(object, "class"));
    int32_t k = 0;
    if (!json_is_object(object)) return plan_reader_refuse(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_string(&kind, object, "kind", self->source, where, self->error));
    while (k < PLAN_ENTRY_KINDS && strcmp(kind, plan_entry_kind_name((PlanEntryKind)k)) != 0) k++;
    if (k == PLAN_ENTRY_KINDS)
        return am_fail(
            self->error, AM_ERROR_INPUT, self->source,
            "%s.kind: expected \"compute\", \"weights\", \"gradients\" or \"optimizer\", found \"%.40s\"",
            where, kind);
    *entry = (PlanEntry){.class_index = PLAN_ANY_CLASS, .kind = (PlanEntryKind)k};
    if (any && strcmp(any, "*") == 0 && k != PLAN_COMPUTE) return AM_OK;
    return read_class(self, &entry->class_index, json_object_get(object, "class"), where);
}

static AmStatus read_axis_priorities(const PlanReader *self, PlanStage *stage, json_t *lists,
                                     const char *where) {
    const char *axis_names[MESH_MAX_AXES + 1] = {NULL};
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        axis_names[axis] = stage->mesh.axes[axis].name;
    TRY(json_only_keys(lists, axis_names, self->source, where, self->error));
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        json_t *entries;
        TRY(json_get_array(&entries, lists, axis_names[axis], self->source, where, self->error));
        const char *at = plan_reader_place(self, "%s.axis[%d]", where, axis);
        PlanAxisPriority *priority = &stage->axis_priorities[axis];
        priority->count = (int32_t)json_array_size(entries);
        if (priority->count > PLAN_ENTRY_KINDS * (self->context->classes->count + 1))
            return plan_reader_refuse(self, at, "more entries than the module has classes");
        priority->entries = ARENA_ARRAY(self->arena, PlanEntry, priority->count + 1);
        if (!priority->entries) return am_fail_memory(self->error, priority->count);
        for (int32_t e = 0; e < priority->count; e++) {
            const char *place = plan_reader_place(self, "%s[%d]", at, e);
            TRY(read_entry(self, &priority->entries[e], json_array_get(entries, (size_t)e), place));
            if (e > 0 && priority->entries[e].kind == PLAN_COMPUTE &&
                priority->entries[e - 1].kind != PLAN_COMPUTE)
                return plan_reader_refuse(self, place, "compute entries come before storage entries");
        }
    }
    return AM_OK;
}

/* Reads an instruction of the context, by the number that the original has. */
static AmStatus read_instruction(const PlanReader *self, int64_t *instruction, json_t *object,
                                 const char *where) {
    TRY(json_get_integer(instruction, object, "instruction", 0,
                         plan_context_primary(self->context)->rules->count - 1, self->source, where,
                         self->error));
    *instruction = plan_instruction_of(self->context, (int32_t)*instruction);
    return *instruction < 0
               ? plan_reader_refuse(self, where, "no value of the micro-batches stands for the instruction")
               : AM_OK;
}

static AmStatus read_override(const PlanReader *self, PlanOverride *override, json_t *object,
                              const Mesh *mesh, const char *where) {
    static const char *const keys[] = {"instruction", "factor", "states", "pinned", NULL};
    int64_t instruction;
    if (!json_is_object(object)) return plan_reader_refuse(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(read_instruction(self, &instruction, object, where));
    const FactorRule *rule = &self->context->rules->rules[instruction];
    const IrShape *shape = &plan_context_instruction(self->context, instruction)->shape;
    json_t *factors = json_object_get(object, "factor"), *states = json_object_get(object, "states"),
           *pinned = json_object_get(object, "pinned");
    *override = (PlanOverride){(int32_t)instruction, .has_factors = factors, .has_states = states,
                               .is_pinned = pinned};
    const char *names[MESH_MAX_AXES + 1] = {NULL};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) names[axis] = mesh->axes[axis].name;
    if ((factors && !json_is_object(factors)) || (states && !json_is_object(states)) || (!factors && !states))
        return plan_reader_refuse(self, where, "expected \"factor\" or \"states\" as an object by axis");
    if (factors) TRY(json_only_keys(factors, names, self->source, where, self->error));
    if (states) TRY(json_only_keys(states, names, self->source, where, self->error));
    if (pinned && !(json_is_true(pinned) && states && shape->type != DTYPE_TUPLE))
        return plan_reader_refuse(self, where, "expected \"pinned\": true with \"states\" of an array");
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        override->factors[axis] = PLAN_NO_OVERRIDE;
        if (axis >= mesh->axis_count) continue;
        const json_t *factor = json_object_get(factors, names[axis]),
                     *state = json_object_get(states, names[axis]);
        if (factor) {
            json_int_t value = json_is_null(factor) ? -1 : json_integer_value(factor);
            if (!json_is_null(factor) &&
                (!json_is_integer(factor) || value < 0 || value >= rule->factor_count))
                return plan_reader_refuse(self, where, "expected a factor of the instruction, or null");
            override->factors[axis] = (int32_t)value;
        }
        if (!state) continue;
        Sbp sbp;
        if (!json_is_string(state) || sbp_parse_axis(&sbp, json_string_value(state), NULL) != AM_OK)
            return plan_reader_refuse(self, where, "expected a state such as \"S(1)\" or \"B\"");
        if (sbp_is_partial(sbp))
            return plan_reader_refuse(self, where, "a result is never stored as a partial value");
        if (sbp_is_split(sbp) && (shape->type == DTYPE_TUPLE || sbp_dimension(sbp) >= shape->rank))
            return plan_reader_refuse(self, where, "the instruction has no such dimension");
        override->states.axis[axis] = sbp;
    }
    return AM_OK;
}

/* Refuses an instruction that an earlier entry of the list has been about; `seen` [instruction] notes it. */
static AmStatus check_once(const PlanReader *self, bool *seen, int32_t instruction, const char *where) {
    if (seen[instruction])
        return plan_reader_refuse(self, where, "an earlier entry is about the same instruction");
    seen[instruction] = true;
    return AM_OK;
}

static AmStatus read_reshard(const PlanReader *self, PlanStage *stage, json_t *list, const char *where) {
    static const char *const keys[] = {"instruction", "place", NULL};
    stage->reshard_count = (int32_t)json_array_size(list);
    if (stage->reshard_count > plan_context_count(self->context))
        return plan_reader_refuse(self, where, "more reshards than the module has instructions");
    stage->reshard = ARENA_ARRAY(self->arena, PlanReshard, stage->reshard_count + 1);
    bool *seen = ARENA_ARRAY(self->arena, bool, plan_context_count(self->context) + 1);
    if (!stage->reshard || !seen) return am_fail_memory(self->error, stage->reshard_count);
    for (int32_t k = 0; k < stage->reshard_count; k++) {
        json_t *object = json_array_get(list, (size_t)k);
        const char *at = plan_reader_place(self, "%s.reshards[%d]", where, k), *name;
        int64_t instruction;
        int32_t place = 0;
        if (!json_is_object(object)) return plan_reader_refuse(self, at, "expected an object");
        TRY(json_only_keys(object, keys, self->source, at, self->error));
        TRY(read_instruction(self, &instruction, object, at));
        TRY(check_once(self, seen, (int32_t)instruction, at));
        TRY(json_get_string(&name, object, "place", self->source, at, self->error));
        while (place < RESHARD_PLACES && strcmp(name, reshard_place_name((ReshardPlace)place)) != 0) place++;
        if (place == RESHARD_PLACES)
            return plan_reader_refuse(self, at, "expected \"before\", \"kept\" or \"repeated\"");
        stage->reshard[k] = (PlanReshard){.instruction = (int32_t)instruction, .place = (ReshardPlace)place};
    }
    return AM_OK;
}

static AmStatus read_ranges(const PlanReader *self, PlanStage *stage, const json_t *ranges, bool *covered,
                            const char *where) {
    int32_t count = plan_context_primary(self->context)->rules->entry_count;
    stage->range_count = (int32_t)json_array_size(ranges);
    if (stage->range_count > count)
        return plan_reader_refuse(self, where, "more ranges than the module has instructions");
    stage->ranges = arena_alloc(self->arena, sizeof *stage->ranges * (size_t)(stage->range_count + 1));
    if (!stage->ranges) return am_fail_memory(self->error, stage->range_count);
    for (int32_t r = 0; r < stage->range_count; r++) {
        const json_t *pair = json_array_get(ranges, (size_t)r);
        const char *at = plan_reader_place(self, "%s.ranges[%d]", where, r);
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return plan_reader_refuse(self, at, "expected [first, end]");
        TRY(plan_reader_integer(self, &stage->ranges[r][0], pair, 0, at, 0, count - 1));
        TRY(plan_reader_integer(self, &stage->ranges[r][1], pair, 1, at, stage->ranges[r][0] + 1, count));
        for (int32_t i = stage->ranges[r][0]; i < stage->ranges[r][1]; i++) {
            if (covered[i]) return plan_reader_refuse(self, at, "an instruction is in two ranges");
            covered[i] = true;
        }
    }
    return AM_OK;
}

/* Finds the stage's share of the result of collect_recomputed(); `taken` is after it. */
static AmStatus take_recomputed(const PlanReader *self, PlanStage *stage, const json_t *object,
                                PlanRecomputation *taken, const char *where) {
    PlanRecomputation *recompute = &stage->recompute;
    *recompute =
        (PlanRecomputation){.ranges = self->recomputed.ranges + taken->range_count,
                            .range_count = (int32_t)json_array_size(json_object_get(object, "recompute")),
                            .saved = self->recomputed.saved + taken->saved_count,
                            .saved_count = (int32_t)json_array_size(json_object_get(object, "saved"))};
    taken->range_count += recompute->range_count;
    taken->saved_count += recompute->saved_count;
    for (int32_t r = 0; r < recompute->range_count; r++) {
        bool is_inside = false;
        for (int32_t k = 0; k < stage->range_count; k++)
            is_inside |= recompute->ranges[r][0] >= stage->ranges[k][0] &&
                         recompute->ranges[r][1] <= stage->ranges[k][1];
        if (!is_inside)
            return plan_reader_refuse(self, plan_reader_place(self, "%s.recompute[%d]", where, r),
                                      "expected operators of one of the stage's ranges");
    }
    return AM_OK;
}

/* Reads a list that may be left out where it would be empty: then it is NULL. */
static AmStatus get_list(json_t **list, const PlanReader *self, json_t *object, const char *key,
                         const char *where) {
    *list = NULL;
    if (!json_object_get(object, key)) return AM_OK;
    return json_get_array(list, object, key, self->source, where, self->error);
}

static AmStatus read_stage(const PlanReader *self, PlanStage *stage, json_t *object, bool *covered,
                           const char *where) {
    static const char *const keys[] = {"ranges",         "devices",
                                       "mesh",           "axis_priorities",
                                       "overrides",      "reshards",
                                       "recompute",      "saved",
                                       "even",           "keeps_gathered_weights",
                                       "rounds_parts",   "all_reduces_gradients",
                                       "reduces_in_f32", "offloads_optimizer",
                                       "kept_bytes",     NULL};
    json_t *ranges, *devices, *axes, *lists, *overrides, *reshard, *recompute, *saved;
    if (!json_is_object(object)) return plan_reader_refuse(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_array(&ranges, object, "ranges", self->source, where, self->error));
    TRY(json_get_array(&devices, object, "devices", self->source, where, self->error));
    TRY(json_get_array(&axes, object, "mesh", self->source, where, self->error));
    TRY(json_get_object(&lists, object, "axis_priorities", self->source, where, self->error));
    TRY(get_list(&overrides, self, object, "overrides", where));
    TRY(get_list(&reshard, self, object, "reshards", where));
    TRY(get_list(&recompute, self, object, "recompute", where));
    TRY(get_list(&saved, self, object, "saved", where));
    TRY(stage_switches_read(stage, object, self->source, where, self->error));
    TRY(read_ranges(self, stage, ranges, covered, where));
    TRY(read_mesh(self, &stage->mesh, axes, plan_reader_place(self, "%s.mesh", where, 0)));
    TRY(read_devices(self, stage, devices, plan_reader_place(self, "%s.devices", where, 0)));
    TRY(read_axis_priorities(self, stage, lists, plan_reader_place(self, "%s.axis_priorities", where, 0)));
    TRY(read_reshard(self, stage, reshard, where));
    bool *seen = ARENA_ARRAY(self->arena, bool, plan_context_count(self->context) + 1);
    stage->override_count = (int32_t)json_array_size(overrides);
    stage->overrides = ARENA_ARRAY(self->arena, PlanOverride, stage->override_count + 1);
    if (!stage->overrides || !seen) return am_fail_memory(self->error, stage->override_count);
    if (stage->override_count > plan_context_count(self->context))
        return plan_reader_refuse(self, where, "more overrides than the module has instructions");
    for (int32_t k = 0; k < stage->override_count; k++) {
        const char *at = plan_reader_place(self, "%s.overrides[%d]", where, k);
        TRY(read_override(self, &stage->overrides[k], json_array_get(overrides, (size_t)k), &stage->mesh,
                          at));
        TRY(check_once(self, seen, stage->overrides[k].instruction, at));
    }
    return AM_OK;
}

/* Checks that each stage is a replica of the whole model. */
static AmStatus check_replicas(const PlanReader *self, const Plan *plan) {
    int32_t count = plan_context_primary(self->context)->rules->entry_count;
    if (plan_schedule(plan) != SCHEDULE_GPIPE)
        return plan_reader_refuse(self, "$.schedule", "expected \"gpipe\" for replicas");
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        if (stage->range_count != 1 || stage->ranges[0][0] != 0 || stage->ranges[0][1] != count)
            return plan_reader_refuse(self, plan_reader_place(self, "%s.stages[%d].ranges", "$", s),
                                      "expected all instructions, since each stage is a replica");
        if (stage->recompute.range_count > 0)
            return plan_reader_refuse(self, plan_reader_place(self, "%s.stages[%d].recompute", "$", s),
                                      "expected none, since replicas do not recompute");
    }
    return AM_OK;
}

AmStatus plan_reader_stages(const PlanReader *self, const json_t *stages) {
    Plan *plan = self->plan;
    int32_t instructions = plan_context_primary(self->context)->rules->entry_count;
    plan->stage_count = (int32_t)json_array_size(stages);
    if (plan->stage_count < 1 || plan->stage_count > instructions)
        return plan_reader_refuse(self, "$.stages",
                                  "expected at least one stage, and no more than instructions");
    if (plan->stage_count > STAGES_MOST)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.stages: expected at most %d stages",
                       STAGES_MOST);
    bool is_one = plan->stage_count == 1;
    ScheduleKind schedule = schedule_kind_find(plan->schedule);
    bool is_known = is_one ? strcmp(plan->schedule, "none") == 0 : schedule != SCHEDULE_KINDS;
    if (!is_known)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "$.schedule: expected %s for %d stage%s, found \"%.40s\"",
                       is_one ? "\"none\""
                              : "\"gpipe\", \"1f1b\", \"interleaved_1f1b\", \"zb_h1\" or \"zb_2p\"",
                       plan->stage_count, is_one ? "" : "s", plan->schedule);
    plan->stages = ARENA_ARRAY(self->arena, PlanStage, plan->stage_count);
    bool *covered = ARENA_ARRAY(self->arena, bool, instructions);
    if (!plan->stages || !covered) return am_fail_memory(self->error, instructions);
    PlanRecomputation taken = {0};
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const char *where = plan_reader_place(self, "%s.stages[%d]", "$", s);
        json_t *stage = json_array_get(stages, (size_t)s);
        if (plan->replicas.count > 0) memset(covered, 0, (size_t)instructions * sizeof *covered);
        TRY(read_stage(self, &plan->stages[s], stage, covered, where));
        TRY(take_recomputed(self, &plan->stages[s], stage, &taken, where));
    }
    for (int32_t s = 0; s < plan->stage_count && schedule == SCHEDULE_INTERLEAVED; s++)
        if (plan->stages[s].range_count != plan->stages[0].range_count)
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "$.stages[%d].ranges: expected %d, one for each chunk, as stage 0 has", s,
                           plan->stages[0].range_count);
    if (schedule == SCHEDULE_INTERLEAVED && plan->stages[0].range_count > STAGES_MOST / plan->stage_count)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "$.stages[0].ranges: expected at most %d, so that there are at most %d chunks in all",
                       STAGES_MOST / plan->stage_count, STAGES_MOST);
    for (int32_t i = 0; i < instructions; i++)
        if (!covered[i])
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "$.stages: instruction %d is in no stage's ranges", i);
    return plan->replicas.count > 0 ? check_replicas(self, plan) : AM_OK;
}
