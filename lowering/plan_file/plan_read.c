/* Reads plan files ("automap-plan-1") and checks them against the module.
 *
 * The file is not trusted: keys must be known, indices must be within the module and the mesh,
 * ranges must cover every instruction once, and derived parts must agree with the stages (except
 * paths, op names and sources, which a text module may lack).
 */
#include <math.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "base/files/json.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/plan_file/plan_adapt.h"
#include "lowering/plan_file/plan_parts.h"
#include "lowering/plan_file/stage_switches.h"
#include "propagation/stages/stages.h"

#define FORMAT_NAME "automap-plan-1"

typedef struct PlanReader {
    Arena *arena;
    const PlanContext *context;
    const char *source;
    Plan *plan;
    bool *taken;                  /* [MESH_MAX_DEVICES]: devices that a stage has named */
    PlanRecomputation recomputed; /* across stages, in order */
    AmError *error;
} PlanReader;

static const char *where_of(const PlanReader *self, const char *format, const char *where, int32_t index) {
    const char *path = arena_format(self->arena, format, where, index);
    return path ? path : where;
}

static AmStatus refuse(const PlanReader *self, const char *where, const char *expected) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: %s", where, expected);
}

/* One integer of an array, within [least, most]. */
static AmStatus read_element(const PlanReader *self, int32_t *value, const json_t *array, int32_t index,
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
        return refuse(self, where,
                      "classes named by a pattern are not supported, expected [kind, number, dimension]");
    const char *kind = json_string_value(json_array_get(name, 0));
    bool by_parameter = kind && strcmp(kind, "parameter") == 0;
    if (!json_is_array(name) || json_array_size(name) != 3 || !kind ||
        (!by_parameter && strcmp(kind, "instruction") != 0))
        return refuse(self, where, "expected [\"parameter\" or \"instruction\", number, dimension]");
    int32_t number, dimension;
    TRY(read_element(self, &number, name, 1, where, 0, INT32_MAX));
    TRY(read_element(self, &dimension, name, 2, where, 0, IR_MAX_RANK - 1));
    *class_index = classes_find(self->context->classes, by_parameter, number, dimension);
    if (*class_index >= 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: the module has no class [\"%s\", %d, %d]",
                   where, kind, number, dimension);
}

static AmStatus read_shares(const PlanReader *self, MeshAxis *axis, const json_t *shares, const char *where) {
    if (json_is_null(shares)) return AM_OK;
    if (!json_is_array(shares) || json_array_size(shares) != (size_t)axis->size)
        return refuse(self, where, "expected null or one share for each part of the axis");
    double *values = ARENA_ARRAY(self->arena, double, axis->size), sum = 0;
    if (!values) return am_fail_memory(self->error, axis->size);
    for (int32_t k = 0; k < axis->size; k++) {
        values[k] = json_number_value(json_array_get(shares, (size_t)k));
        if (!(values[k] > 0) || values[k] > 1) return refuse(self, where, "expected shares in (0, 1]");
        sum += values[k];
    }
    if (fabs(sum - 1) > 1e-9) return refuse(self, where, "expected shares that sum to 1");
    axis->shares = values;
    return AM_OK;
}

static AmStatus read_mesh(const PlanReader *self, Mesh *mesh, const json_t *axes, const char *where) {
    static const char *const keys[] = {"axis", "size", "shares", NULL};
    size_t count = json_array_size(axes);
    if (count < 1 || count > MESH_MAX_AXES) return refuse(self, where, "expected 1 to 4 axes");
    *mesh = (Mesh){.axis_count = (int32_t)count, .device_count = 1};
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        json_t *object = json_array_get(axes, (size_t)k);
        const char *at = where_of(self, "%s[%d]", where, k), *name;
        int64_t size;
        if (!json_is_object(object)) return refuse(self, at, "expected an object");
        TRY(json_only_keys(object, keys, self->source, at, self->error));
        TRY(json_get_string(&name, object, "axis", self->source, at, self->error));
        TRY(json_get_integer(&size, object, "size", 1, MESH_MAX_DEVICES, self->source, at, self->error));
        if (name[0] == '\0') return refuse(self, at, "expected an axis with a name");
        for (int32_t other = 0; other < k; other++)
            if (strcmp(mesh->axes[other].name, name) == 0)
                return refuse(self, at, "expected axes of different names");
        if (mesh->device_count > MESH_MAX_DEVICES / size) return refuse(self, where, "too many devices");
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
        TRY(read_element(self, &stage->devices[k], devices, k, where, 0, MESH_MAX_DEVICES - 1));
        if (self->taken[stage->devices[k]]) return refuse(self, where, "a device is named twice");
        self->taken[stage->devices[k]] = true;
    }
    return AM_OK;
}

static AmStatus read_entry(const PlanReader *self, PlanEntry *entry, json_t *object, const char *where) {
    static const char *const keys[] = {"class", "kind", NULL};
    const char *kind, *any = json_string_value(json_object_get(object, "class"));
    int32_t k = 0;
    if (!json_is_object(object)) return refuse(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_string(&kind, object, "kind", self->source, where, self->error));
    while (k < PLAN_ENTRY_KINDS && strcmp(kind, plan_entry_kind_name((PlanEntryKind)k)) != 0) k++;
    if (k == PLAN_ENTRY_KINDS)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "%s.kind: expected \"compute\", \"weights\", \"gradients\" or \"optimizer\", found "
                       "\"%.40s\"",
                       where, kind);
    *entry = (PlanEntry){.class_index = PLAN_ANY_CLASS, .kind = (PlanEntryKind)k};
    if (any && strcmp(any, "*") == 0 && k != PLAN_COMPUTE) return AM_OK;
    return read_class(self, &entry->class_index, json_object_get(object, "class"), where);
}

static AmStatus read_lists(const PlanReader *self, PlanStage *stage, json_t *lists, const char *where) {
    const char *axis_names[MESH_MAX_AXES + 1] = {NULL};
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        axis_names[axis] = stage->mesh.axes[axis].name;
    TRY(json_only_keys(lists, axis_names, self->source, where, self->error));
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        json_t *entries;
        TRY(json_get_array(&entries, lists, axis_names[axis], self->source, where, self->error));
        const char *at = where_of(self, "%s.axis[%d]", where, axis);
        PlanAxisPriority *list = &stage->lists[axis];
        list->count = (int32_t)json_array_size(entries);
        if (list->count > PLAN_ENTRY_KINDS * (self->context->classes->count + 1))
            return refuse(self, at, "more entries than the module has classes");
        list->entries = ARENA_ARRAY(self->arena, PlanEntry, list->count + 1);
        if (!list->entries) return am_fail_memory(self->error, list->count);
        for (int32_t e = 0; e < list->count; e++) {
            const char *place = where_of(self, "%s[%d]", at, e);
            TRY(read_entry(self, &list->entries[e], json_array_get(entries, (size_t)e), place));
            if (e > 0 && list->entries[e].kind == PLAN_COMPUTE && list->entries[e - 1].kind != PLAN_COMPUTE)
                return refuse(self, place, "compute entries come before storage entries");
        }
    }
    return AM_OK;
}

/* An instruction of the context, from the number that the original has. */
static AmStatus read_instruction(const PlanReader *self, int64_t *instruction, json_t *object,
                                 const char *where) {
    TRY(json_get_integer(instruction, object, "instruction", 0,
                         plan_context_whole(self->context)->rules->count - 1, self->source, where,
                         self->error));
    *instruction = plan_instruction_of(self->context, (int32_t)*instruction);
    return *instruction < 0 ? refuse(self, where, "no value of the micro-batches stands for the instruction")
                            : AM_OK;
}

static AmStatus read_override(const PlanReader *self, PlanOverride *override, json_t *object,
                              const Mesh *mesh, const char *where) {
    static const char *const keys[] = {"instruction", "factor", "states", "pinned", NULL};
    int64_t instruction;
    if (!json_is_object(object)) return refuse(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(read_instruction(self, &instruction, object, where));
    const FactorRule *rule = &self->context->rules->rules[instruction];
    const IrShape *shape = &self->context->canonical->instructions[instruction].shape;
    json_t *factors = json_object_get(object, "factor"), *states = json_object_get(object, "states"),
           *pinned = json_object_get(object, "pinned");
    *override = (PlanOverride){(int32_t)instruction, .has_factors = factors, .has_states = states,
                               .is_pinned = pinned};
    const char *names[MESH_MAX_AXES + 1] = {NULL};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) names[axis] = mesh->axes[axis].name;
    if ((factors && !json_is_object(factors)) || (states && !json_is_object(states)) || (!factors && !states))
        return refuse(self, where, "expected \"factor\" or \"states\" as an object by axis");
    if (factors) TRY(json_only_keys(factors, names, self->source, where, self->error));
    if (states) TRY(json_only_keys(states, names, self->source, where, self->error));
    if (pinned && !(json_is_true(pinned) && states && shape->type != DTYPE_TUPLE))
        return refuse(self, where, "expected \"pinned\": true with \"states\" of an array");
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        override->factors[axis] = PLAN_NO_OVERRIDE;
        if (axis >= mesh->axis_count) continue;
        const json_t *factor = json_object_get(factors, names[axis]),
                     *state = json_object_get(states, names[axis]);
        if (factor) {
            json_int_t value = json_is_null(factor) ? -1 : json_integer_value(factor);
            if (!json_is_null(factor) &&
                (!json_is_integer(factor) || value < 0 || value >= rule->factor_count))
                return refuse(self, where, "expected a factor of the instruction, or null");
            override->factors[axis] = (int32_t)value;
        }
        if (!state) continue;
        Sbp sbp;
        if (!json_is_string(state) || sbp_parse_axis(&sbp, json_string_value(state), NULL) != AM_OK)
            return refuse(self, where, "expected a state such as \"S(1)\" or \"B\"");
        if (sbp_is_partial(sbp)) return refuse(self, where, "a result is never stored as a partial value");
        if (sbp_is_split(sbp) && (shape->type == DTYPE_TUPLE || sbp_dimension(sbp) >= shape->rank))
            return refuse(self, where, "the instruction has no such dimension");
        override->states.axis[axis] = sbp;
    }
    return AM_OK;
}

/* Refuses an instruction that an earlier entry of the list has been about; `seen` [instruction] notes it. */
static AmStatus check_once(const PlanReader *self, bool *seen, int32_t instruction, const char *where) {
    if (seen[instruction]) return refuse(self, where, "an earlier entry is about the same instruction");
    seen[instruction] = true;
    return AM_OK;
}

static AmStatus read_overrides(const PlanReader *self, PlanStage *stage, json_t *list, const char *where) {
    bool *seen = ARENA_ARRAY(self->arena, bool, self->context->rules->count + 1);
    stage->override_count = (int32_t)json_array_size(list);
    stage->overrides = ARENA_ARRAY(self->arena, PlanOverride, stage->override_count + 1);
    if (!stage->overrides || !seen) return am_fail_memory(self->error, stage->override_count);
    if (stage->override_count > self->context->rules->count)
        return refuse(self, where, "more overrides than the module has instructions");
    for (int32_t k = 0; k < stage->override_count; k++) {
        const char *at = where_of(self, "%s.overrides[%d]", where, k);
        TRY(read_override(self, &stage->overrides[k], json_array_get(list, (size_t)k), &stage->mesh, at));
        TRY(check_once(self, seen, stage->overrides[k].instruction, at));
    }
    return AM_OK;
}

static AmStatus read_reshard(const PlanReader *self, PlanStage *stage, json_t *list, const char *where) {
    static const char *const keys[] = {"instruction", "place", NULL};
    stage->reshard_count = (int32_t)json_array_size(list);
    if (stage->reshard_count > self->context->rules->count)
        return refuse(self, where, "more reshards than the module has instructions");
    stage->reshard = ARENA_ARRAY(self->arena, PlanReshard, stage->reshard_count + 1);
    bool *seen = ARENA_ARRAY(self->arena, bool, self->context->rules->count + 1);
    if (!stage->reshard || !seen) return am_fail_memory(self->error, stage->reshard_count);
    for (int32_t k = 0; k < stage->reshard_count; k++) {
        json_t *object = json_array_get(list, (size_t)k);
        const char *at = where_of(self, "%s.reshards[%d]", where, k), *name;
        int64_t instruction;
        int32_t place = 0;
        if (!json_is_object(object)) return refuse(self, at, "expected an object");
        TRY(json_only_keys(object, keys, self->source, at, self->error));
        TRY(read_instruction(self, &instruction, object, at));
        TRY(check_once(self, seen, (int32_t)instruction, at));
        TRY(json_get_string(&name, object, "place", self->source, at, self->error));
        while (place < RESHARD_PLACES && strcmp(name, reshard_place_name((ReshardPlace)place)) != 0) place++;
        if (place == RESHARD_PLACES) return refuse(self, at, "expected \"before\", \"kept\" or \"repeated\"");
        stage->reshard[k] = (PlanReshard){.instruction = (int32_t)instruction, .place = (ReshardPlace)place};
    }
    return AM_OK;
}

static AmStatus read_ranges(const PlanReader *self, PlanStage *stage, const json_t *ranges, bool *covered,
                            const char *where) {
    int32_t count = plan_context_whole(self->context)->rules->entry_count;
    stage->range_count = (int32_t)json_array_size(ranges);
    if (stage->range_count > count)
        return refuse(self, where, "more ranges than the module has instructions");
    stage->ranges = arena_alloc(self->arena, sizeof *stage->ranges * (size_t)(stage->range_count + 1));
    if (!stage->ranges) return am_fail_memory(self->error, stage->range_count);
    for (int32_t r = 0; r < stage->range_count; r++) {
        const json_t *pair = json_array_get(ranges, (size_t)r);
        const char *at = where_of(self, "%s.ranges[%d]", where, r);
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return refuse(self, at, "expected [first, end]");
        TRY(read_element(self, &stage->ranges[r][0], pair, 0, at, 0, count - 1));
        TRY(read_element(self, &stage->ranges[r][1], pair, 1, at, stage->ranges[r][0] + 1, count));
        for (int32_t i = stage->ranges[r][0]; i < stage->ranges[r][1]; i++) {
            if (covered[i]) return refuse(self, at, "an instruction is in two ranges");
            covered[i] = true;
        }
    }
    return AM_OK;
}

static bool stage_has_range(const PlanStage *stage, const int32_t *range) {
    for (int32_t r = 0; r < stage->range_count; r++)
        if (range[0] >= stage->ranges[r][0] && range[1] <= stage->ranges[r][1]) return true;
    return false;
}

/* The stage's share of what collect_recomputed() read; `taken` is behind it. */
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
    for (int32_t r = 0; r < recompute->range_count; r++)
        if (!stage_has_range(stage, recompute->ranges[r]))
            return refuse(self, where_of(self, "%s.recompute[%d]", where, r),
                          "expected operators of one of the stage's ranges");
    return AM_OK;
}

/* A list that may be left out where it would be empty: then it is NULL. */
static AmStatus get_list(json_t **list, const PlanReader *self, json_t *object, const char *key,
                         const char *where) {
    *list = NULL;
    if (!json_object_get(object, key)) return AM_OK;
    return json_get_array(list, object, key, self->source, where, self->error);
}

static AmStatus read_stage(const PlanReader *self, PlanStage *stage, json_t *object, bool *covered,
                           const char *where) {
    static const char *const keys[] = {
        "ranges",       "devices",    "mesh", "axis_priorities",        "overrides",    "reshards",
        "recompute",    "saved",      "even", "keeps_gathered_weights", "rounds_parts", "reduces_whole",
        "reduces_wide", "kept_bytes", NULL};
    json_t *ranges, *devices, *axes, *lists, *overrides, *reshard, *recompute, *saved;
    if (!json_is_object(object)) return refuse(self, where, "expected an object");
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
    TRY(read_mesh(self, &stage->mesh, axes, where_of(self, "%s.mesh", where, 0)));
    TRY(read_devices(self, stage, devices, where_of(self, "%s.devices", where, 0)));
    TRY(read_lists(self, stage, lists, where_of(self, "%s.axis_priorities", where, 0)));
    TRY(read_reshard(self, stage, reshard, where));
    return read_overrides(self, stage, overrides, where);
}

static AmStatus read_stages(const PlanReader *self, const json_t *stages) {
    Plan *plan = self->plan;
    int32_t instructions = plan_context_whole(self->context)->rules->entry_count;
    plan->stage_count = (int32_t)json_array_size(stages);
    if (plan->stage_count < 1 || plan->stage_count > instructions)
        return refuse(self, "$.stages", "expected at least one stage, and no more than instructions");
    if (plan->stage_count > STAGES_MOST)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.stages: expected at most %d stages",
                       STAGES_MOST);
    bool is_one = plan->stage_count == 1;
    ScheduleKind schedule = schedule_kind_find(plan->schedule);
    bool is_known = is_one ? strcmp(plan->schedule, "none") == 0 : schedule != SCHEDULE_KINDS;
    if (!is_known)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "$.schedule: expected %s for %d stage%s, found \"%.40s\"",
                       is_one ? "\"none\"" : "\"gpipe\", \"1f1b\", \"interleaved_1f1b\" or \"zb_h1\"",
                       plan->stage_count, is_one ? "" : "s", plan->schedule);
    plan->stages = ARENA_ARRAY(self->arena, PlanStage, plan->stage_count);
    bool *covered = ARENA_ARRAY(self->arena, bool, instructions);
    if (!plan->stages || !covered) return am_fail_memory(self->error, instructions);
    PlanRecomputation taken = {0};
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const char *where = where_of(self, "%s.stages[%d]", "$", s);
        json_t *stage = json_array_get(stages, (size_t)s);
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
    return AM_OK;
}

static AmStatus refuse_module(const PlanReader *self, const json_t *root, const char *sha256) {
    const PlanContext *context = self->context;
    Text difference = {0};
    plan_append_difference(&difference, root, context);
    am_fail(self->error, AM_ERROR_INPUT, self->source,
            "$.module: the plan is for module %.100s (sha256 %.12s), not for %.100s of %s (sha256 %.12s)%s",
            self->plan->module_name, sha256, context->canonical->name, context->module->source,
            context->sha256, difference.data ? difference.data : "");
    text_free(&difference);
    return AM_ERROR_INPUT;
}

static AmStatus read_module(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"name", "sha256", "instructions", "structure", NULL};
    json_t *module;
    const char *sha256;
    int64_t instructions;
    const PlanContext *context = self->context;
    TRY(json_get_object(&module, root, "module", self->source, "$", self->error));
    TRY(json_only_keys(module, keys, self->source, "$.module", self->error));
    TRY(json_get_string(&self->plan->module_name, module, "name", self->source, "$.module", self->error));
    TRY(json_get_string(&sha256, module, "sha256", self->source, "$.module", self->error));
    TRY(json_get_integer(&instructions, module, "instructions", 0, INT32_MAX, self->source, "$.module",
                         self->error));
    if (strcmp(sha256, context->sha256) != 0) return refuse_module(self, root, sha256);
    self->plan->module_sha256 = sha256;
    if (instructions != context->canonical->instruction_count)
        return refuse(self, "$.module.instructions", "not the module's number of instructions");
    self->plan->module_instructions = (int32_t)instructions;
    return AM_OK;
}

static AmStatus read_cluster(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"name", "sha256", "description", NULL};
    json_t *cluster;
    Plan *plan = self->plan;
    TRY(json_get_object(&cluster, root, "cluster", self->source, "$", self->error));
    TRY(json_only_keys(cluster, keys, self->source, "$.cluster", self->error));
    TRY(json_get_string(&plan->cluster_name, cluster, "name", self->source, "$.cluster", self->error));
    TRY(json_get_string(&plan->cluster_sha256, cluster, "sha256", self->source, "$.cluster", self->error));
    TRY(json_get_object(&plan->cluster_description, cluster, "description", self->source, "$.cluster",
                        self->error));
    char hex[65];
    TRY(plan_json_sha256(hex, plan->cluster_description, self->error));
    if (strcmp(hex, plan->cluster_sha256) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source,
                   "$.cluster: the description of cluster %.100s has sha256 %.12s, not %.12s",
                   plan->cluster_name, hex, plan->cluster_sha256);
}

static AmStatus read_predicted(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"step_seconds", "devices", "of", NULL};
    static const char *const device_keys[] = {
        "peak_bytes",      "weights_bytes",         "gradients_bytes", "optimizer_bytes", "activation_bytes",
        "compute_seconds", "communication_seconds", "idle_seconds",    "channel_bytes",   NULL};
    json_t *predicted, *devices;
    Plan *plan = self->plan;
    int64_t expected = 0;
    char decided[65];
    TRY(json_get_object(&predicted, root, "predicted", self->source, "$", self->error));
    TRY(json_only_keys(predicted, keys, self->source, "$.predicted", self->error));
    TRY(json_get_number(&plan->predicted_step_seconds, predicted, "step_seconds", 0, 1e300, self->source,
                        "$.predicted", self->error));
    TRY(json_get_array(&devices, predicted, "devices", self->source, "$.predicted", self->error));
    TRY(plan_decided_sha256(decided, root, self->error));
    const char *of = json_string_value(json_object_get(predicted, "of"));
    plan->is_changed = !of || strcmp(of, decided) != 0;
    for (int32_t s = 0; s < plan->stage_count; s++) expected += plan->stages[s].mesh.device_count;
    if ((int64_t)json_array_size(devices) != expected)
        return refuse(self, "$.predicted.devices", "expected one for each device of the stages");
    plan->device_count = (int32_t)expected;
    plan->predicted = ARENA_ARRAY(self->arena, PlanDevicePrediction, expected);
    if (!plan->predicted) return am_fail_memory(self->error, expected);
    for (int32_t d = 0; d < plan->device_count; d++) {
        PlanDevicePrediction *device = &plan->predicted[d];
        json_t *object = json_array_get(devices, (size_t)d);
        const char *at = where_of(self, "%s.devices[%d]", "$.predicted", d);
        int64_t *bytes[] = {&device->peak_bytes, &device->weights_bytes, &device->gradients_bytes,
                            &device->optimizer_bytes, &device->activation_bytes};
        double *seconds[] = {&device->compute_seconds, &device->communication_seconds, &device->idle_seconds};
        if (!json_is_object(object)) return refuse(self, at, "expected an object");
        TRY(json_only_keys(object, device_keys, self->source, at, self->error));
        for (int32_t k = 0; k < 5; k++)
            TRY(json_get_integer(bytes[k], object, device_keys[k], 0, INT64_MAX, self->source, at,
                                 self->error));
        for (int32_t k = 0; k < 3; k++)
            TRY(json_get_number(seconds[k], object, device_keys[5 + k], 0, 1e300, self->source, at,
                                self->error));
        if (json_object_get(object, "channel_bytes"))
            TRY(json_get_integer(&device->channel_bytes, object, "channel_bytes", 0, INT64_MAX, self->source,
                                 at, self->error));
    }
    return AM_OK;
}

/* Which part of the search found the plan; files of earlier versions do not say. */
static AmStatus read_origin(const PlanReader *self, json_t *search) {
    static const char *const names[] = {
#define PLAN_ORIGIN_KEY(name, text, help) text,
        PLAN_ORIGIN_LIST(PLAN_ORIGIN_KEY)
#undef PLAN_ORIGIN_KEY
            NULL};
    Plan *plan = self->plan;
    const char *name;
    json_t *found;
    if (!json_object_get(search, "origin")) return AM_OK;
    TRY(json_get_string(&name, search, "origin", self->source, "$.search", self->error));
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT; k++)
        if (strcmp(name, names[k - 1]) == 0) plan->origin = (PlanOrigin)k;
    if (plan->origin == PLAN_ORIGIN_UNKNOWN)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "$.search.origin: \"%.60s\" is no part of a search (expected \"%s\")", name,
                       plan_origin_name(PLAN_ORIGIN_BASELINE));
    if (!json_object_get(search, "found_seconds")) return AM_OK;
    TRY(json_get_object(&found, search, "found_seconds", self->source, "$.search", self->error));
    TRY(json_only_keys(found, names, self->source, "$.search.found_seconds", self->error));
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT; k++)
        if (json_object_get(found, names[k - 1]))
            TRY(json_get_number(&plan->found_seconds[k], found, names[k - 1], 0, 1e300, self->source,
                                "$.search.found_seconds", self->error));
    return AM_OK;
}

static AmStatus read_search(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"searcher", "seed",     "evaluations", "bound_seconds", "bound",
                                       "space",    "settings", "origin",      "found_seconds", NULL};
    json_t *search;
    Plan *plan = self->plan;
    int64_t seed;
    TRY(json_get_object(&search, root, "search", self->source, "$", self->error));
    TRY(json_only_keys(search, keys, self->source, "$.search", self->error));
    TRY(json_get_string(&plan->searcher, search, "searcher", self->source, "$.search", self->error));
    TRY(json_get_string(&plan->space, search, "space", self->source, "$.search", self->error));
    TRY(json_get_integer(&seed, search, "seed", INT64_MIN, INT64_MAX, self->source, "$.search", self->error));
    TRY(json_get_integer(&plan->evaluations, search, "evaluations", 0, INT64_MAX, self->source, "$.search",
                         self->error));
    TRY(json_get_object(&plan->settings, search, "settings", self->source, "$.search", self->error));
    TRY(read_origin(self, search));
    plan->seed = (uint64_t)seed;
    plan->bound_seconds = NAN;
    if (!json_is_null(json_object_get(search, "bound_seconds")))
        TRY(json_get_number(&plan->bound_seconds, search, "bound_seconds", 0, 1e300, self->source, "$.search",
                            self->error));
    if (!json_is_null(json_object_get(search, "bound")))
        TRY(json_get_string(&plan->bound, search, "bound", self->source, "$.search", self->error));
    return AM_OK;
}

static AmStatus read_relaxations(const PlanReader *self, uint32_t *relaxations, json_t *root) {
    json_t *list;
    Plan *plan = self->plan;
    TRY(json_get_array(&list, root, "relaxations", self->source, "$", self->error));
    plan->relaxations = ARENA_ARRAY(self->arena, const char *, RELAXATION_COUNT + 1);
    if (!plan->relaxations) return am_fail_memory(self->error, RELAXATION_COUNT);
    for (size_t k = 0; k < json_array_size(list); k++) {
        const char *name = json_string_value(json_array_get(list, k));
        Relaxation relaxation = name ? relaxation_from_name(name) : RELAXATION_COUNT;
        if (relaxation == RELAXATION_COUNT)
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "$.relaxations[%zu]: %s%.60s%s is no relaxation (expected %s or %s)", k,
                           name ? "\"" : "", name ? name : "the value", name ? "\"" : "",
                           relaxation_name((Relaxation)0), relaxation_name((Relaxation)1));
        if (*relaxations >> relaxation & 1)
            return refuse(self, "$.relaxations", "a relaxation is named twice");
        *relaxations |= 1u << relaxation;
        plan->relaxations[plan->relaxation_count++] = relaxation_name(relaxation);
    }
    return AM_OK;
}

/* Collects the saved operators across stages, each of which is in a recomputed range (`is_in_range`). */
static AmStatus collect_saved(PlanReader *self, const json_t *stages, bool *is_in_range) {
    PlanRecomputation *recomputed = &self->recomputed;
    int32_t count = plan_context_whole(self->context)->rules->entry_count;
    const json_t *stage;
    size_t capacity = 0, s;
    json_array_foreach(stages, s, stage) capacity += json_array_size(json_object_get(stage, "saved"));
    if (capacity > (size_t)count)
        return refuse(self, "$.stages", "expected no more saved operators than instructions");
    recomputed->saved = ARENA_ARRAY(self->arena, int32_t, capacity + 1);
    if (!recomputed->saved) return am_fail_memory(self->error, (int64_t)capacity * 4);
    json_array_foreach(stages, s, stage) {
        const json_t *saved = json_object_get(stage, "saved");
        const char *at = where_of(self, "%s.stages[%d].saved", "$", (int32_t)s);
        for (int32_t k = 0, least = 0; k < (int32_t)json_array_size(saved); k++) {
            int32_t *operator= & recomputed->saved[recomputed->saved_count++];
            TRY(read_element(self, operator, saved, k, at, least, count - 1));
            least = *operator+ 1;
            if (!is_in_range[*operator])
                return refuse(
                    self, arena_format(self->arena, "%s[%d]", at, k),
                    "expected an operator of one of the ranges of \"recompute\", and of no other stage");
            is_in_range[*operator] = false;
        }
    }
    return AM_OK;
}

/* Collects the recomputed ranges across stages: their names are resolved in a context with
 * recomputation. */
static AmStatus collect_recomputed(PlanReader *self, const json_t *root) {
    const json_t *stages = json_object_get(root, "stages"), *stage, *pair;
    PlanRecomputation *recomputed = &self->recomputed;
    int32_t count = plan_context_whole(self->context)->rules->entry_count;
    size_t capacity = 0, s, k;
    json_array_foreach(stages, s, stage) capacity += json_array_size(json_object_get(stage, "recompute"));
    if (capacity > (size_t)count)
        return refuse(self, "$.stages", "expected no more ranges to recompute than instructions");
    recomputed->ranges = arena_alloc(self->arena, sizeof *recomputed->ranges * (capacity + 1));
    bool *taken = ARENA_ARRAY(self->arena, bool, count + 1);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)capacity * 8);
    json_array_foreach(stages, s, stage) json_array_foreach(json_object_get(stage, "recompute"), k, pair) {
        int32_t *range = recomputed->ranges[recomputed->range_count++];
        const char *at = arena_format(self->arena, "$.stages[%d].recompute[%d]", (int)s, (int)k);
        if (!at) return am_fail_memory(self->error, 32);
        if (json_array_size(pair) != 2) return refuse(self, at, "expected [first, end]");
        TRY(read_element(self, &range[0], pair, 0, at, 0, count - 1));
        TRY(read_element(self, &range[1], pair, 1, at, range[0] + 1, count));
        for (int32_t i = range[0]; i < range[1]; i++) {
            if (taken[i]) return refuse(self, at, "an operator is in two ranges");
            taken[i] = true;
        }
    }
    return collect_saved(self, stages, taken);
}

/* The context in which the plan's names are to be read. */
static AmStatus read_micro_batches(PlanReader *self, PlanContext *whole, json_t *root) {
    MicroBatching settings = {0};
    int64_t micro_batches;
    TRY(json_get_integer(&micro_batches, root, "micro_batches", 1, MICRO_BATCHES_MOST, self->source, "$",
                         self->error));
    TRY(read_relaxations(self, &settings.relaxations, root));
    TRY(collect_recomputed(self, root));
    settings.recomputed = self->recomputed;
    self->plan->micro_batches = settings.micro_batches = (int32_t)micro_batches;
    settings.separate_backward = json_array_size(json_object_get(root, "stages")) > 1;
    AmError own = {0};
    AmStatus status = plan_context_for(&self->context, whole, &settings, &own);
    if (status == AM_ERROR_INFEASIBLE)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.micro_batches: %s", own.text);
    if (status != AM_OK) {
        if (self->error) *self->error = own;
        return status;
    }
    self->plan->context = self->context;
    return AM_OK;
}

/* The same rows with the same values of `keys`; other keys are for readers. A plan written by hand may do
 * without. */
static AmStatus check_derived(const PlanReader *self, json_t *root, const char *name, const json_t *derived,
                              const char *const *keys) {
    json_t *given;
    if (!json_object_get(root, name)) return AM_OK;
    TRY(json_get_array(&given, root, name, self->source, "$", self->error));
    const char *at = where_of(self, "$.%s", name, 0);
    if (json_array_size(given) != json_array_size(derived))
        return refuse(self, at, "not as many as the stages give");
    for (size_t k = 0; k < json_array_size(given); k++)
        for (const char *const *key = keys; *key; key++)
            if (!json_equal(json_object_get(json_array_get(given, k), *key),
                            json_object_get(json_array_get(derived, k), *key)))
                return am_fail(self->error, AM_ERROR_INPUT, self->source,
                               "%s[%zu].%s: differs from the value derived from the plan's stages", at, k,
                               *key);
    return AM_OK;
}

static AmStatus check_all_derived(const PlanReader *self, json_t *root) {
    static const char *const parameter_keys[] = {"number", "stage", "sharding", NULL};
    static const char *const decision_keys[] = {"class", "choice", NULL};
    json_t *parameters = NULL, *decisions = NULL;
    AmStatus status;
    status = plan_parameters_to_json(&parameters, self->plan, self->context, self->error);
    if (status == AM_ERROR_INPUT && self->error) /* of the stages, whatever file their names are from */
        snprintf(self->error->source, sizeof self->error->source, "%s", self->source);
    if (status != AM_OK) goto fail;
    TRY_OR_FAIL(plan_decisions_to_json(&decisions, self->plan, self->context, self->error));
    TRY_OR_FAIL(check_derived(self, root, "parameters", parameters, parameter_keys));
    TRY_OR_FAIL(check_derived(self, root, "decisions", decisions, decision_keys));
fail:
    json_decref(parameters);
    json_decref(decisions);
    return status;
}

/* The value of a key of "rewriting", which has one legal word; `*is_set`: it is there. */
static AmStatus read_rewriting_key(PlanReader *self, bool *is_set, json_t *object, const char *key,
                                   const char *word) {
    const char *text;
    *is_set = json_object_get(object, key) != NULL;
    if (!*is_set) return AM_OK;
    TRY(json_get_string(&text, object, key, self->source, "$.rewriting", self->error));
    if (strcmp(text, word) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source,
                   "$.rewriting.%s: expected \"%s\", found \"%.40s\"", key, word, text);
}

/* Replaces the context by that of the module as the plan rewrites it. The module of another plan is refused
 * by read_module(). */
static AmStatus read_rewriting(PlanReader *self, PlanContext **whole, json_t *root) {
    static const char *const keys[] = {"layers", "recomputation", "attention", NULL};
    json_t *object = json_object_get(root, "rewriting");
    const char *sha256 = json_string_value(json_object_get(json_object_get(root, "module"), "sha256"));
    PlanRewriting rewriting = {0};
    if ((*whole)->source) *whole = (*whole)->source;
    self->context = *whole;
    if (!object) return AM_OK;
    if (!json_is_object(object)) return refuse(self, "$.rewriting", "expected an object");
    TRY(json_only_keys(object, keys, self->source, "$.rewriting", self->error));
    TRY(read_rewriting_key(self, &rewriting.splits_layers, object, "layers", "split"));
    TRY(read_rewriting_key(self, &rewriting.undoes_recomputation, object, "recomputation", "undone"));
    TRY(read_rewriting_key(self, &rewriting.fuses_attention, object, "attention", "fused"));
    if (!sha256 || strcmp(sha256, (*whole)->sha256) != 0) return AM_OK;
    AmError own = {0};
    AmStatus status = plan_context_rewrite(whole, *whole, rewriting, &own);
    if (status == AM_ERROR_INFEASIBLE)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.rewriting: %s", own.text);
    if (status != AM_OK && self->error) *self->error = own;
    self->context = *whole;
    return status;
}

static AmStatus read_plan(PlanReader *self, PlanContext *whole, json_t *root) {
    static const char *const keys[] = {
        "format",      "automap_version", "module",    "cluster",   "micro_batches", "schedule",  "stages",
        "relaxations", "parameters",      "decisions", "predicted", "search",        "rewriting", NULL};
    const char *version;
    json_t *stages;
    if (!json_is_object(root)) return refuse(self, "$", "expected an object");
    TRY(json_check_format(root, FORMAT_NAME, self->source, self->error));
    TRY(json_only_keys(root, keys, self->source, "$", self->error));
    TRY(json_get_string(&version, root, "automap_version", self->source, "$", self->error));
    TRY(plan_rename_keys(root, self->error));
    TRY(plan_adapt(root, plan_context_source(whole), self->source, self->error));
    TRY(read_rewriting(self, &whole, root));
    TRY(read_module(self, root));
    TRY(read_cluster(self, root));
    TRY(read_micro_batches(self, whole, root));
    TRY(json_get_string(&self->plan->schedule, root, "schedule", self->source, "$", self->error));
    TRY(json_get_array(&stages, root, "stages", self->source, "$", self->error));
    TRY(read_stages(self, stages));
    TRY(read_predicted(self, root));
    return read_search(self, root);
}

static AmStatus from_json(Plan **plan, json_t *root, Arena *arena, PlanContext *context, const char *source,
                          bool is_checked, AmError *error) {
    PlanReader reader = {.arena = arena,
                         .context = context,
                         .source = source,
                         .plan = ARENA_ARRAY(arena, Plan, 1),
                         .taken = ARENA_ARRAY(arena, bool, MESH_MAX_DEVICES),
                         .error = error};
    if (!reader.plan || !reader.taken) return am_fail_memory(error, (int64_t)sizeof(Plan));
    reader.plan->source = source;
    TRY(read_plan(&reader, context, root));
    if (is_checked) TRY(check_all_derived(&reader, root));
    *plan = reader.plan;
    return AM_OK;
}

AmStatus plan_stages_from_json(Plan **plan, json_t *root, Arena *arena, PlanContext *context,
                               const char *source, AmError *error) {
    return from_json(plan, root, arena, context, source, false, error);
}

AmStatus plan_parse(Plan **plan, json_t **root, Arena *arena, PlanContext *context, const char *source,
                    const char *data, int64_t length, AmError *error) {
    json_t *document = NULL;
    const char *kept = arena_copy_string(arena, source);
    if (!kept) return am_fail_memory(error, 0);
    TRY(file_format_expect(FILE_FORMAT_PLAN, kept, data, length, error));
    TRY(json_parse(&document, kept, data, (size_t)length, error));
    AmStatus status = from_json(plan, document, arena, context, kept, true, error);
    if (status == AM_OK) *root = document;
    else json_decref(document);
    return status;
}

AmStatus plan_read(Plan **plan, json_t **root, Arena *arena, PlanContext *context, const char *path,
                   AmError *error) {
    FileBytes bytes = {0};
    TRY(file_read(&bytes, path, error));
    AmStatus status = plan_parse(plan, root, arena, context, bytes.name, bytes.data, bytes.length, error);
    file_release(&bytes);
    return status;
}
