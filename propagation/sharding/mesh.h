/* Mesh: the devices of a stage, arranged in named axes, row-major, last axis fastest. A dimension
 * split over axis k has `size` shards; shares (fractions that sum to 1, or NULL for equal shards)
 * give their relative sizes.
 */
#ifndef PROPAGATION_SHARDING_MESH_H
#define PROPAGATION_SHARDING_MESH_H

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

#define MESH_MAX_AXES    4
#define MESH_MAX_DEVICES 65536

typedef struct MeshAxis {
    const char *name;
    int32_t size;
    const double *shares; /* [size] or NULL */
} MeshAxis;

typedef struct Mesh {
    int32_t axis_count;
    MeshAxis axes[MESH_MAX_AXES];
    int32_t device_count; /* product of the sizes */
} Mesh;

/* Parses "data=2,model=4"; names are copied into the arena. AM_ERROR_USAGE. */
AmStatus mesh_parse(Mesh *mesh, Arena *arena, const char *text, AmError *error);
/* Appends the axes and sizes, such as "data=2,model=4" with separator ",". */
void mesh_append(Text *text, const Mesh *mesh, const char *separator);
/* Returns the difference in number of two devices that are neighbours on an axis. */
int32_t mesh_axis_stride(const Mesh *mesh, int32_t axis);
/* Returns the place of a device on an axis, from 0. */
int32_t mesh_coordinate(const Mesh *mesh, int32_t device, int32_t axis);
/* Returns the devices that differ from `device` only on the axes of the bit mask, in row-major order over
 * those axes; returns how many, `group` has room for all. */
int32_t mesh_group(const Mesh *mesh, int32_t device, uint32_t axes, int32_t *group);
/* Returns whether no axis has shares. */
bool mesh_has_equal_shares(const Mesh *mesh);
/* Returns whether two meshes have axes of the same sizes in the same order. */
bool mesh_is_alike(const Mesh *mesh, const Mesh *other);

#endif
