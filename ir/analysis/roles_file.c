/* Reads model.roles.json, strictly: every parameter once and in order, known
 * keys and roles, outputs of the parameter's shape, no output twice. The format
 * is described in docs/plans.md. */
#include "ir/analysis/roles_file.h"

#include <stdio.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "base/files/json.h"

#define FORMAT "automap-roles-1"

typedef struct RolesReader {
    IrRoles *roles;
    Arena *arena; /* of the roles */
    const IrDataflow *flow;
    const IrModule *module; /* of the flow */
    const char *path;
    int32_t *parameter_of; /* per output, or -1 */
    AmError *error;
} RolesReader;

static const IrShape *output_shape(const RolesReader *reader, int32_t output) {
    return &reader->module->instructions[reader->flow->outputs[output]].shape;
}

/* Reads an index of an output, or -1 for null. */
static AmStatus read_output(const RolesReader *reader, json_t *object, const char *key, const char *where,
                            int32_t *output) {
    if (json_is_null(json_object_get(object, key))) {
        *output = -1;
        return AM_OK;
    }
    int64_t value = 0;
    TRY(json_get_integer(&value, object, key, 0, (int64_t)reader->flow->output_count - 1, reader->path, where,
                         reader->error));
    *output = (int32_t)value;
    return AM_OK;
}

static AmStatus read_role(const RolesReader *reader, json_t *object, const char *where, IrRole *role) {
    const char *name = NULL;
    TRY(json_get_string(&name, object, "role", reader->path, where, reader->error));
    for (int r = IR_ROLE_WEIGHT; r <= IR_ROLE_CONSTANT; r++) {
        if (strcmp(name, ir_role_name((IrRole)r)) != 0) continue;
        *role = (IrRole)r;
        return AM_OK;
    }
    return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                   "%s.role: expected weight, optimizer, state, data or constant, not \"%s\"", where, name);
}

/* Checks that a weight, optimizer or state parameter has an output, and a data or constant parameter none. */
static AmStatus check_pair(const RolesReader *reader, const IrParameter *parameter, const char *where) {
    bool is_updated = parameter->role != IR_ROLE_DATA && parameter->role != IR_ROLE_CONSTANT;
    if (is_updated != (parameter->output >= 0))
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "%s.output: expected %s for a parameter of role %s", where,
                       is_updated ? "the index of an output" : "null", ir_role_name(parameter->role));
    if (!is_updated) return AM_OK;
    if (reader->parameter_of[parameter->output] >= 0)
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "%s.output: output %d is the update of parameter %d already", where, parameter->output,
                       reader->parameter_of[parameter->output]);
    const IrShape *shape = &reader->module->instructions[parameter->instruction].shape;
    if (!ir_shape_equal(shape, output_shape(reader, parameter->output)))
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "%s.output: output %d has another shape than parameter %d", where, parameter->output,
                       parameter->number);
    reader->parameter_of[parameter->output] = parameter->number;
    return AM_OK;
}

/* Reads the dimension of the examples in the tensor that a user has; absent: 0, null: -1. */
static AmStatus read_moved(const RolesReader *reader, json_t *object, const char *where,
                           IrParameter *parameter) {
    json_t *given = json_object_get(object, "batch_dimension");
    int64_t value = 0;
    if (!given) return AM_OK;
    if (parameter->role != IR_ROLE_DATA)
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "%s.batch_dimension: expected for a parameter of role data only", where);
    parameter->moved_from = -1;
    if (json_is_null(given)) return AM_OK;
    const IrShape *shape = &reader->module->instructions[parameter->instruction].shape;
    int32_t rank = shape->type == DTYPE_TUPLE ? 0 : shape->rank;
    TRY(json_get_integer(&value, object, "batch_dimension", 0, rank > 0 ? rank - 1 : 0, reader->path, where,
                         reader->error));
    parameter->moved_from = (int32_t)value;
    return AM_OK;
}

static AmStatus read_parameter(const RolesReader *reader, json_t *object, int32_t number) {
    static const char *const keys[] = {"number", "path", "role", "output", "batch_dimension", NULL};
    IrParameter *parameter = &reader->roles->parameters[number];
    char where[48];
    snprintf(where, sizeof where, "$.parameters[%d]", number);
    if (!json_is_object(object))
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path, "%s: expected an object", where);
    TRY(json_only_keys(object, keys, reader->path, where, reader->error));
    int64_t given = 0;
    const char *path = NULL;
    TRY(json_get_integer(&given, object, "number", number, number, reader->path, where, reader->error));
    TRY(json_get_string(&path, object, "path", reader->path, where, reader->error));
    TRY(read_role(reader, object, where, &parameter->role));
    TRY(read_output(reader, object, "output", where, &parameter->output));
    TRY(check_pair(reader, parameter, where));
    TRY(read_moved(reader, object, where, parameter));
    parameter->paired_by = parameter->output >= 0 ? "roles file" : "";
    /* A module without metadata names its parameters otherwise: only a known op_name must agree. */
    bool has_op_name = *reader->module->instructions[parameter->instruction].op_name != '\0';
    if (has_op_name && strcmp(path, parameter->path) != 0)
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path, "%s.path: expected \"%s\", found \"%s\"",
                       where, parameter->path, path);
    return AM_OK;
}

/* Reads why the step needs the whole batch; absent: it does not. */
static AmStatus read_whole_batch(const RolesReader *reader, json_t *root) {
    const char *why = NULL;
    if (!json_object_get(root, "whole_batch")) return AM_OK;
    TRY(json_get_string(&why, root, "whole_batch", reader->path, "$", reader->error));
    reader->roles->whole_batch = arena_copy_string(reader->arena, why);
    return reader->roles->whole_batch ? AM_OK : am_fail_memory(reader->error, (int64_t)strlen(why));
}

static AmStatus read_document(const RolesReader *reader, json_t *root) {
    static const char *const keys[] = {"format", "loss", "parameters", "whole_batch", NULL};
    IrRoles *roles = reader->roles;
    json_t *parameters = NULL;
    TRY(json_check_format(root, FORMAT, reader->path, reader->error));
    TRY(json_only_keys(root, keys, reader->path, "$", reader->error));
    TRY(read_whole_batch(reader, root));
    TRY(json_get_array(&parameters, root, "parameters", reader->path, "$", reader->error));
    if (json_array_size(parameters) != (size_t)roles->parameter_count)
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "$.parameters: expected the module's %d parameters, found %zu", roles->parameter_count,
                       json_array_size(parameters));
    for (int32_t p = 0; p < roles->parameter_count; p++)
        TRY(read_parameter(reader, json_array_get(parameters, (size_t)p), p));
    TRY(read_output(reader, root, "loss", "$", &roles->loss));
    if (roles->loss < 0) return AM_OK;
    const IrShape *shape = output_shape(reader, roles->loss);
    if (!ir_is_scalar(shape) || !dtype_is_floating(shape->type))
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "$.loss: output %d is not a floating scalar", roles->loss);
    if (reader->parameter_of[roles->loss] >= 0)
        return am_fail(reader->error, AM_ERROR_INPUT, reader->path,
                       "$.loss: output %d is the update of parameter %d", roles->loss,
                       reader->parameter_of[roles->loss]);
    return AM_OK;
}

AmStatus ir_read_roles_file(IrRoles *roles, Arena *arena, const IrDataflow *flow, const char *path,
                            AmError *error) {
    AmStatus status = AM_OK;
    json_t *root = NULL;
    Arena scratch = {0};
    FileBytes bytes;
    TRY(file_read(&bytes, path, error));
    TRY_OR_FAIL(file_format_expect(FILE_FORMAT_ROLES, bytes.name, bytes.data, bytes.length, error));
    TRY_OR_FAIL(json_parse(&root, bytes.name, bytes.data, (size_t)bytes.length, error));
    RolesReader reader = {roles,        arena,      flow,
                          flow->module, bytes.name, ARENA_ARRAY(&scratch, int32_t, flow->output_count),
                          error};
    if (!reader.parameter_of) {
        status = am_fail_memory(error, (int64_t)flow->output_count * 4);
        goto fail;
    }
    for (int32_t o = 0; o < flow->output_count; o++) reader.parameter_of[o] = -1;
    status = read_document(&reader, root);
fail:
    json_decref(root);
    arena_free(&scratch);
    file_release(&bytes);
    return status;
}
