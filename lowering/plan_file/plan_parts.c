/* The derived parts of a plan file, and names that refer to the module.
 *
 * `parameters` comes from the assignment of each stage (docs/method.md, section 3), the
 * very states that lowering starts from. `decisions` repeats the axis priorities, each
 * entry with the op name and source line of what names its class.
 */
#include "lowering/plan_file/plan_parts.h"

#include <string.h>

#include "base/files/json.h"
#include "base/hash.h"
#include "lowering/spmd/ranks.h"

json_t *plan_entry_class_to_json(const PlanEntry *entry, const Classes *classes) {
    if (entry->class_index == PLAN_ANY_CLASS) return json_string("*");
    /* A class is named by one dimension of it: ["parameter", 7, 0] or ["instruction", 120, 1]. */
    const DimensionClass *class = &classes->classes[entry->class_index];
    return json_pack("[s, i, i]", class->named_by_parameter ? "parameter" : "instruction", class->number,
                     class->dimension);
}

json_t *plan_string_to_json(const char *string) {
    json_t *value = json_string(string ? string : "");
    if (value) return value;
    char clean[256];
    size_t length = strlen(string);
    if (length >= sizeof clean) length = sizeof clean - 1;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)string[i];
        clean[i] = byte >= 0x20 && byte < 0x7f ? string[i] : '?';
    }
    return json_stringn(clean, length);
}

json_t *plan_source_to_json(const IrInstruction *instruction) {
    if (!instruction->source_file[0]) return json_string("");
    char source[1024];
    Text text = {0};
    text_append(&text, "%s:%d", instruction->source_file, instruction->source_line);
    size_t length = text.failed ? 0 : text.length < sizeof source ? text.length : sizeof source - 1;
    if (length > 0) memcpy(source, text.data, length);
    source[length] = '\0';
    text_free(&text);
    return plan_string_to_json(source);
}

json_t *plan_replicas_to_json(const PlanReplicas *replicas) {
    if (replicas->count == 0) return NULL;
    json_t *parts = json_array();
    for (int32_t r = 0; r < replicas->count; r++)
        json_array_append_new(parts, json_integer(replicas->parts[r]));
    return parts;
}

AmStatus plan_json_sha256(char hex[65], const json_t *value, AmError *error) {
    Text text = {0};
    Sha256 hash;
    json_write(&text, value, JSON_STYLE_CANONICAL);
    sha256_begin(&hash);
    if (!text.failed) sha256_add(&hash, text.data, text.length);
    sha256_end(&hash, hex);
    AmStatus status = text.failed ? am_fail_memory(error, 0) : AM_OK;
    text_free(&text);
    return status;
}

AmStatus plan_decided_sha256(char hex[65], const json_t *root, AmError *error) {
    static const char *const keys[] = {"stages",      "micro_batches", "schedule",
                                       "relaxations", "rewriting",     "replicas"};
    json_t *decided = json_array();
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        json_array_append(decided, json_object_get(root, keys[k]));
    AmStatus status = decided ? plan_json_sha256(hex, decided, error) : am_fail_memory(error, 0);
    json_decref(decided);
    return status;
}

const char *plan_axes_text(Arena *arena, const json_t *axes) {
    const char *joined = "";
    for (size_t a = 0; joined && a < json_array_size(axes); a++)
        joined =
            arena_format(arena, "%s%s%s", joined, a ? "+" : "", json_string_value(json_array_get(axes, a)));
    return joined;
}

const IrInstruction *plan_class_instruction(const PlanContext *context, const DimensionClass *class) {
    int32_t index =
        class->named_by_parameter ? context->roles->parameters[class->number].instruction : class->number;
    if (!class->named_by_parameter && context->primary)
        return plan_context_instruction(context->primary, index % plan_context_count(context->primary));
    return plan_context_instruction(context, index);
}

json_t *plan_sharding_to_json(const Mesh *mesh, SbpState state, const IrShape *shape) {
    json_t *sharding = json_array();
    int32_t rank = shape->type == DTYPE_TUPLE ? 0 : shape->rank;
    for (int32_t d = 0; d < rank; d++) {
        json_t *axes = json_array();
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (state.axis[axis] == sbp_split(d))
                json_array_append_new(axes, json_string(mesh->axes[axis].name));
        json_array_append_new(sharding, axes);
    }
    return sharding;
}

AmStatus plan_parameters_to_json(json_t **parameters, const Plan *plan, const PlanContext *context,
                                 AmError *error) {
    Arena arena = {0};
    json_t *list = json_array();
    AmStatus status = AM_OK;
    PlanRanks ranks;
    if (!list) {
        status = am_fail_memory(error, 0);
        goto fail;
    }
    TRY_OR_FAIL(plan_ranks(&ranks, &arena, context, plan, error));
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        int32_t part = ranks.map ? ranks.map->owner[p] : 0, s = part % plan->stage_count;
        json_t *sharding = plan_sharding_to_json(
            &plan->stages[s].mesh, ranks.assignments[part]->stored[parameter->instruction],
            &plan_context_instruction(context, parameter->instruction)->shape);
        json_array_append_new(list, json_pack("{s:i, s:o, s:i, s:o?}", "number", p, "path",
                                              plan_string_to_json(parameter->path), "stage", s, "sharding",
                                              sharding));
    }
    *parameters = list;
    list = NULL;
fail:
    json_decref(list);
    arena_free(&arena);
    return status;
}

/* Returns an entry, and what names its class; "*" has no name in the module, and says its kind instead. */
static json_t *decision_to_json(const PlanContext *context, const PlanEntry *entry, const char *axis) {
    json_t *class = plan_entry_class_to_json(entry, context->classes);
    if (entry->class_index == PLAN_ANY_CLASS)
        return json_pack("{s:o, s:s, s:s, s:s}", "class", class, "choice", axis, "op_name",
                         plan_entry_kind_name(entry->kind), "source", "");
    const IrInstruction *named =
        plan_class_instruction(context, &context->classes->classes[entry->class_index]);
    return json_pack("{s:o, s:s, s:o, s:o}", "class", class, "choice", axis, "op_name",
                     plan_string_to_json(named->op_name), "source", plan_source_to_json(named));
}

AmStatus plan_decisions_to_json(json_t **decisions, const Plan *plan, const PlanContext *context,
                                AmError *error) {
    json_t *list = json_array();
    if (!list) return am_fail_memory(error, 0);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
            for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
                json_array_append_new(list,
                                      decision_to_json(context, &stage->axis_priorities[axis].entries[e],
                                                       stage->mesh.axes[axis].name));
            }
    }
    *decisions = list;
    return AM_OK;
}
