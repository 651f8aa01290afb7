/* The axes of a named mesh, cut into the parts that one sharding names.
 *
 * 'x':(2)2 is the part of axis 'x' of size 2 after parts of the product 2: an axis of 8 is then cut into
 * 2 x 2 x 2, and the sharding names the one in the middle. An axis that is named whole is all its parts.
 */
#ifndef PROPAGATION_SHARDING_MESH_PARTS_H
#define PROPAGATION_SHARDING_MESH_PARTS_H

#include "ir/hlo.pb-c.h"
#include "ir/module.h"

enum { MESH_PARTS_MAX = 2 * IR_MAX_RANK };

typedef struct MeshParts {
    const Hlo__MeshProto *mesh;
    int32_t count;
    int64_t size[MESH_PARTS_MAX]; /* of each part, major first */
    int32_t axis[MESH_PARTS_MAX];
    bool is_taken[MESH_PARTS_MAX];
    bool has_cut_axis; /* an axis has several parts */
} MeshParts;

/* Cuts the axes of the sharding's mesh. AM_ERROR_INPUT: too many axes, or parts that overlap or do not
 * divide. */
AmStatus mesh_parts_cut(MeshParts *parts, const Hlo__NamedShardingProto *sharding, AmError *error);

/* Appends the parts of a named axis to `order` and multiplies `ways` by their sizes. AM_ERROR_INPUT: a part
 * is taken already. */
AmStatus mesh_parts_take(MeshParts *parts, const Hlo__AxisRefProto *axis, int32_t *order, size_t *count,
                         int64_t *ways, AmError *error);

#endif
