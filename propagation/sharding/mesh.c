/* Mesh arithmetic: device number <-> coordinates, and the groups of devices
 * that a collective over some axes connects.
 *
 * Device = row-major index of its coordinates, so the stride of an axis is the
 * product of the sizes of the axes after it.
 */
#include "propagation/sharding/mesh.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int32_t mesh_axis_stride(const Mesh *mesh, int32_t axis) {
    int32_t stride = 1;
    for (int32_t k = axis + 1; k < mesh->axis_count; k++) stride *= mesh->axes[k].size;
    return stride;
}

static bool is_name(const char *text, size_t length) {
    for (size_t k = 0; k < length; k++) {
        if (!isalnum((unsigned char)text[k]) && text[k] != '_') return false;
    }
    return length > 0;
}

/* Reads one "name=size" of text[0..length) as the next axis of the mesh. */
static AmStatus add_axis(Mesh *mesh, Arena *arena, const char *text, size_t length, AmError *error) {
    const char *equals = memchr(text, '=', length);
    size_t name_length = equals ? (size_t)(equals - text) : length;
    if (!equals || !is_name(text, name_length)) {
        return am_fail(error, AM_ERROR_USAGE, "",
                       "mesh: expected AXIS=SIZE at \"%.*s\", such as data=2,model=4", (int)length, text);
    }
    if (mesh->axis_count == MESH_MAX_AXES) {
        return am_fail(error, AM_ERROR_USAGE, "", "mesh: more than %d axes", MESH_MAX_AXES);
    }
    int64_t size = 0;
    size_t digits = length - name_length - 1;
    for (size_t k = 0; k < digits && size <= MESH_MAX_DEVICES; k++) {
        if (!isdigit((unsigned char)equals[1 + k])) digits = 0;
        else size = size * 10 + (equals[1 + k] - '0');
    }
    if (digits == 0 || size < 1 || size * mesh->device_count > MESH_MAX_DEVICES) {
        return am_fail(error, AM_ERROR_USAGE, "",
                       "mesh: expected a size of at least 1 in \"%.*s\", and at most %d devices in all",
                       (int)length, text, MESH_MAX_DEVICES);
    }
    const char *name = arena_copy_bytes(arena, text, name_length);
    if (!name) return am_fail_memory(error, (int64_t)name_length + 1);
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (strcmp(mesh->axes[k].name, name) == 0) {
            return am_fail(error, AM_ERROR_USAGE, "", "mesh: axis \"%s\" is named twice", name);
        }
    }
    mesh->axes[mesh->axis_count++] = (MeshAxis){.name = name, .size = (int32_t)size};
    mesh->device_count *= (int32_t)size;
    return AM_OK;
}

AmStatus mesh_parse(Mesh *mesh, Arena *arena, const char *text, AmError *error) {
    *mesh = (Mesh){.device_count = 1};
    for (;;) {
        size_t length = strcspn(text, ",");
        TRY(add_axis(mesh, arena, text, length, error));
        if (text[length] == '\0') return AM_OK;
        text += length + 1;
    }
}

void mesh_append(Text *text, const Mesh *mesh, const char *separator) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        text_append(text, "%s%s=%d", axis > 0 ? separator : "", mesh->axes[axis].name, mesh->axes[axis].size);
}

int32_t mesh_coordinate(const Mesh *mesh, int32_t device, int32_t axis) {
    return device / mesh_axis_stride(mesh, axis) % mesh->axes[axis].size;
}

int32_t mesh_group(const Mesh *mesh, int32_t device, uint32_t axes, int32_t *group) {
    int32_t first = device;
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (axes >> k & 1) first -= mesh_coordinate(mesh, device, k) * mesh_axis_stride(mesh, k);
    }
    int32_t count = 1;
    group[0] = first;
    /* From the last axis to the first: the part so far is the fastest. */
    for (int32_t k = mesh->axis_count - 1; k >= 0; k--) {
        if (!(axes >> k & 1)) continue;
        int32_t stride = mesh_axis_stride(mesh, k), inner = count;
        for (int32_t coordinate = 1; coordinate < mesh->axes[k].size; coordinate++) {
            for (int32_t member = 0; member < inner; member++)
                group[count++] = group[member] + coordinate * stride;
        }
    }
    return count;
}

bool mesh_has_equal_shares(const Mesh *mesh) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].shares) return false;
    return true;
}

bool mesh_is_alike(const Mesh *mesh, const Mesh *other) {
    if (mesh->axis_count != other->axis_count) return false;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].size != other->axes[axis].size) return false;
    return true;
}
