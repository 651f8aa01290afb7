/* Linkage groups as JSON and as text.
 *
 * A group lists its members by path and dimension; a dimension without a group has the operator that rejects
 * its split.
 */
#include <stdio.h>

#include "base/files/json.h"
#include "propagation/groups/groups.h"

static const char *path_of(const PlanContext *context, LinkageMember member) {
    return context->roles->parameters[member.parameter].path;
}

static json_t *member_to_json(const PlanContext *context, LinkageMember member) {
    return json_pack("{s:i, s:s, s:i}", "parameter", member.parameter, "path", path_of(context, member),
                     "dimension", member.dimension);
}

static json_t *group_to_json(const LinkageGroup *group, int32_t id, const PlanContext *context) {
    json_t *members = json_array();
    for (int32_t k = 0; k < group->member_count; k++)
        json_array_append_new(members, member_to_json(context, group->members[k]));
    json_t *object = json_pack("{s:i, s:i, s:f, s:f, s:o, s:o}", "id", id, "size", group->member_count,
                               "flops", group->flops, "bytes", group->bytes, "members", members, "excludes",
                               json_integers(group->excludes, group->exclude_count));
    if (object && group->class_index >= 0) {
        const DimensionClass *entry = &context->classes->classes[group->class_index];
        json_object_set_new(object, "class",
                            json_pack("[s, i, i]", entry->named_by_parameter ? "parameter" : "instruction",
                                      entry->number, entry->dimension));
        json_object_set_new(object, "tie", json_integer(entry->tie));
    }
    return object;
}

/* Returns any text as JSON: "" where it is not valid UTF-8. */
static json_t *text_to_json(const char *text) {
    json_t *value = json_string(text);
    return value ? value : json_string("");
}

static json_t *rejection_to_json(const LinkageRejection *rejection, const PlanContext *context) {
    json_t *object = member_to_json(context, rejection->member);
    if (!object) return NULL;
    if (rejection->instruction < 0) {
        json_object_set_new(object, "instruction", json_null());
    } else {
        const IrInstruction *instruction = plan_context_instruction(context, rejection->instruction);
        json_object_set_new(object, "instruction", json_integer(rejection->instruction));
        json_object_set_new(object, "op_name", text_to_json(instruction->op_name));
        char source[600] = "";
        if (instruction->source_file[0])
            snprintf(source, sizeof source, "%s:%d", instruction->source_file, instruction->source_line);
        json_object_set_new(object, "source", text_to_json(source));
    }
    json_object_set_new(object, "reason", json_string(rejection->reason));
    return object;
}

AmStatus groups_to_json(json_t **root, const LinkageGroups *groups, const PlanContext *context,
                        const int32_t *order, AmError *error) {
    /* Names of JSON members are UTF-8. */
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        json_t *path = json_string(context->roles->parameters[p].path);
        if (!path) {
            return am_fail(error, AM_ERROR_INPUT, context->canonical->source,
                           "parameter %d: its path is not valid UTF-8, which JSON needs", p);
        }
        json_decref(path);
    }
    json_t *list = json_array(), *rejected = json_array();
    for (int32_t g = 0; g < groups->group_count; g++)
        json_array_append_new(
            list, group_to_json(&groups->groups[order ? order[g] : g], order ? order[g] : g, context));
    for (int32_t k = 0; k < groups->rejected_count; k++)
        json_array_append_new(rejected, rejection_to_json(&groups->rejected[k], context));
    *root = json_pack("{s:s, s:s, s:i, s:o, s:o, s:{s:i, s:o, s:b}}", "format", "automap-groups-1", "mode",
                      groups->is_strict ? "strict" : "classes", "axis_size", groups->axis_size, "groups",
                      list, "rejected", rejected, "best", "partitioned", groups->best_partitioned, "groups",
                      json_integers(groups->best, groups->best_count), "exact", groups->best_is_exact);
    return *root ? AM_OK : am_fail(error, AM_ERROR_INTERNAL, "", "the groups cannot be written as JSON");
}

static void print_group(Text *text, const LinkageGroup *group, int32_t id, const PlanContext *context) {
    text_append(text, "group %d: %d dimension%s", id, group->member_count,
                group->member_count == 1 ? "" : "s");
    if (group->class_index >= 0)
        text_append(text, ", tie %d", context->classes->classes[group->class_index].tie);
    for (int32_t k = 0; k < group->exclude_count; k++)
        text_append(text, "%s %d", k ? "," : ", excludes", group->excludes[k]);
    text_append_string(text, "\n");
    for (int32_t k = 0; k < group->member_count; k++)
        text_append(text, "    %s dimension %d\n", path_of(context, group->members[k]),
                    group->members[k].dimension);
}

void groups_print(Text *text, const LinkageGroups *groups, const PlanContext *context, const int32_t *order) {
    text_append(text, "%s, axis of %d devices: %d groups, %d of %d weight dimensions can be split\n",
                groups->is_strict ? "Auto-MAP's strict rules" : "dimension classes", groups->axis_size,
                groups->group_count, groups->dimension_count - groups->rejected_count,
                groups->dimension_count);
    text_append(text, "%s together: %d dimensions in %d groups\n",
                groups->best_is_exact ? "most" : "at least", groups->best_partitioned, groups->best_count);
    for (int32_t g = 0; g < groups->group_count; g++)
        print_group(text, &groups->groups[order ? order[g] : g], order ? order[g] : g, context);
    if (groups->rejected_count > 0) text_append_string(text, "whole:\n");
    for (int32_t k = 0; k < groups->rejected_count; k++) {
        const LinkageRejection *rejection = &groups->rejected[k];
        text_append(text, "    %s dimension %d: %s", path_of(context, rejection->member),
                    rejection->member.dimension, rejection->reason);
        if (rejection->instruction >= 0) {
            const IrInstruction *instruction = plan_context_instruction(context, rejection->instruction);
            text_append(text, " (%s %s", instruction->opcode_name, instruction->name);
            if (instruction->source_file[0])
                text_append(text, ", %s:%d", instruction->source_file, instruction->source_line);
            text_append_string(text, ")");
        }
        text_append_string(text, "\n");
    }
}
