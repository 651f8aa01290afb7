/* Checks of the degrees of parallelism that a user has fixed, against options, clusters, meshes and plans. */
#include "planners/problem/degrees.h"

#include <stdio.h>
#include <string.h>

const DegreeRow degree_rows[DEGREE_KINDS] = {
#define DEGREE_ROW(kind, member, option, key, name, most) {option, key, name, most},
    DEGREE_LIST(DEGREE_ROW)
#undef DEGREE_ROW
};

bool degrees_are_free(const Degrees *degrees) {
    return degrees->stages == 0 && degrees->width == 0 && degrees->data == 0 && degrees->tensor == 0;
}

const char *degrees_text(char *buffer, const Degrees *degrees) {
    size_t length = 0;
    buffer[0] = '\0';
    if (degrees->stages > 0 && !degrees->origins[DEGREE_STAGES])
        length = (size_t)snprintf(buffer, DEGREES_TEXT_BYTES, "%d stage%s", degrees->stages,
                                  degrees->stages == 1 ? "" : "s");
    for (int32_t k = 0; k < DEGREE_KINDS; k++)
        if (degrees->values[k] > 0 && degrees->origins[k])
            length += (size_t)snprintf(buffer + length, DEGREES_TEXT_BYTES - length, "%s%.100s %d",
                                       length ? " " : "", degrees->origins[k], degrees->values[k]);
    return buffer;
}

/* ---- degrees that follow from others ---- */

static const char *origin_of(const Degrees *degrees, DegreeKind kind) {
    return degrees->origins[kind] ? degrees->origins[kind] : degree_rows[kind].name;
}

/* Sets `*part` to width / other. AM_ERROR_USAGE: that is no integer, or not the value that was given. */
static AmStatus derive_part(int32_t *part, DegreeKind kind, int32_t other, DegreeKind other_kind,
                            const Degrees *degrees, AmError *error) {
    const char *width_origin = origin_of(degrees, DEGREE_WIDTH),
               *other_origin = origin_of(degrees, other_kind);
    int32_t width = degrees->width;
    if (width % other != 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%.200s %d is not a multiple of %.200s %d (a stage has data x tensor devices)",
                       width_origin, width, other_origin, other);
    if (*part > 0 && *part != width / other)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%.200s %d and %.200s %d: a stage has %lld devices, and %.200s is %d",
                       origin_of(degrees, kind), *part, other_origin, other, (long long)*part * other,
                       width_origin, width);
    *part = width / other;
    return AM_OK;
}

AmStatus degrees_derive(Degrees *degrees, AmError *error) {
    if (degrees->width == 0 && degrees->data > 0 && degrees->tensor > 0) {
        int64_t width = (int64_t)degrees->data * degrees->tensor;
        if (width > MESH_MAX_DEVICES)
            return am_fail(error, AM_ERROR_USAGE, "",
                           "%.200s %d and %.200s %d: a stage has at most %d devices",
                           degrees->origins[DEGREE_DATA], degrees->data, degrees->origins[DEGREE_TENSOR],
                           degrees->tensor, MESH_MAX_DEVICES);
        degrees->width = (int32_t)width;
    }
    if (degrees->width == 0) return AM_OK;
    if (degrees->tensor > 0)
        TRY(derive_part(&degrees->data, DEGREE_DATA, degrees->tensor, DEGREE_TENSOR, degrees, error));
    if (degrees->data > 0)
        TRY(derive_part(&degrees->tensor, DEGREE_TENSOR, degrees->data, DEGREE_DATA, degrees, error));
    return AM_OK;
}

/* Fails because the degrees do not fit the number of devices. */
static AmStatus fail_devices(const Degrees *degrees, const Cluster *cluster, const char *reason,
                             AmError *error) {
    char text[DEGREES_TEXT_BYTES];
    return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s: cluster %s has %d device%s, %s",
                   degrees_text(text, degrees), cluster->name, cluster->device_count,
                   cluster->device_count == 1 ? "" : "s", reason);
}

AmStatus degrees_complete(Degrees *degrees, const Cluster *cluster, AmError *error) {
    int32_t devices = cluster->device_count;
    const Degrees given = *degrees;
    if (degrees->stages > devices) return fail_devices(&given, cluster, "fewer than stages", error);
    if (degrees->stages == 1 && degrees->width == 0) degrees->width = devices;
    if (degrees->width > 0 && degrees->stages == 0) degrees->stages = devices / degrees->width;
    if (degrees->width > 0 && (int64_t)degrees->width * degrees->stages != devices)
        return fail_devices(&given, cluster, "which these stages do not use exactly", error);
    int32_t part = degrees->tensor > 0 ? degrees->tensor : 1;
    if (devices % part != 0)
        return fail_devices(&given, cluster, "which are no multiple of the tensor degree", error);
    if (degrees->data > 0 && devices % degrees->data != 0)
        return fail_devices(&given, cluster, "which are no multiple of the data degree", error);
    AmError refusal = {0};
    if (degrees_derive(degrees, &refusal) != AM_OK)
        return fail_devices(&given, cluster, "which these degrees do not divide", error);
    return AM_OK;
}

/* ---- checks ---- */

bool degrees_allow_stages(const Degrees *degrees, int32_t stages) {
    if (stages == 1 && degrees->excludes_one_stage) return false;
    return degrees->stages == 0 || degrees->stages == stages;
}

bool degrees_allow_width(const Degrees *degrees, int32_t width) {
    if (degrees->width > 0) return degrees->width == width;
    if (degrees->tensor > 0 && width % degrees->tensor != 0) return false;
    return degrees->data == 0 || width % degrees->data == 0;
}

bool degrees_allow_mesh(const Degrees *degrees, int32_t width, int32_t tensor) {
    if (!degrees_allow_width(degrees, width) || width % tensor != 0) return false;
    if (degrees->tensor > 0 && degrees->tensor != tensor) return false;
    return degrees->data == 0 || degrees->data == width / tensor;
}

/* Returns whether a class is the first dimension of a data input, and of no weight. */
static bool is_of_examples(const PlanContext *context, int32_t class) {
    const DimensionClass *of = &context->classes->classes[class];
    if (of->data_count == 0 || of->weight_count > 0) return false;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        if (parameter->role != IR_ROLE_DATA) continue;
        if (classes_of(context->classes, context->rules, parameter->instruction, 0) == class) return true;
    }
    return false;
}

static bool splits_data(const PlanContext *context, const PlanAxisPriority *priority) {
    for (int32_t e = 0; e < priority->count; e++)
        if (priority->entries[e].kind == PLAN_COMPUTE &&
            context->classes->classes[priority->entries[e].class_index].data_count > 0)
            return true;
    return false;
}

/* Returns whether a priority splits operators, and no dimension of the examples. */
static bool splits_tensors(const PlanContext *context, const PlanAxisPriority *priority) {
    bool splits = false;
    for (int32_t e = 0; e < priority->count; e++) {
        if (priority->entries[e].kind != PLAN_COMPUTE) continue;
        if (is_of_examples(context, priority->entries[e].class_index)) return false;
        splits = true;
    }
    return splits;
}

/* Returns the size of the axis with that name, 1 without one; *number is its number, or -1. */
static int32_t axis_size(const Mesh *mesh, const char *name, int32_t *number) {
    *number = -1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (strcmp(mesh->axes[axis].name, name) == 0) *number = axis;
    return *number < 0 ? 1 : mesh->axes[*number].size;
}

bool degrees_allow_stage(const Degrees *degrees, const PlanContext *context, const PlanStage *stage) {
    int32_t data, model, tensor = axis_size(&stage->mesh, "model", &model);
    int32_t shares = axis_size(&stage->mesh, "data", &data);
    if (degrees_are_free(degrees)) return true;
    if (!degrees_allow_mesh(degrees, stage->mesh.device_count, tensor)) return false;
    if (degrees->tensor > 0 && tensor > 1 && !splits_tensors(context, &stage->axis_priorities[model]))
        return false;
    return degrees->data == 0 || shares == 1 || splits_data(context, &stage->axis_priorities[data]);
}

AmStatus degrees_check_plan(const Degrees *degrees, const Plan *plan, AmError *error) {
    bool is_allowed = degrees_allow_stages(degrees, plan->stage_count);
    for (int32_t s = 0; s < plan->stage_count && is_allowed; s++)
        is_allowed = degrees_allow_stage(degrees, plan->context, &plan->stages[s]);
    if (is_allowed) return AM_OK;
    char text[DEGREES_TEXT_BYTES];
    return am_fail(error, AM_ERROR_INFEASIBLE, "", "the plan lacks %s", degrees_text(text, degrees));
}
