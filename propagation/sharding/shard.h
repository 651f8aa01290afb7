/* The positions of a shard's elements in the global array. */
#ifndef PROPAGATION_SHARDING_SHARD_H
#define PROPAGATION_SHARDING_SHARD_H

#include "propagation/sharding/sbp.h"

/* A dimension with a piece of each of several blocks on a device (SbpCut) counts as two, blocks and
 * pieces. Offsets and strides are in elements. */
typedef struct ShardLayout {
    int32_t rank; /* dimensions, counted so */
    int64_t dimensions[IR_MAX_RANK];
    int64_t start_offset; /* of the first element in the global array */
    int64_t global_strides[IR_MAX_RANK], local_strides[IR_MAX_RANK];
} ShardLayout;

/* Returns the layout of device's shard of an array under `state`; false where it has too many dimensions. */
bool shard_layout(ShardLayout *layout, const Mesh *mesh, SbpState state, int32_t device,
                  const IrShape *global);

/* Returns the number of elements of a shard. */
int64_t shard_elements(const ShardLayout *layout);
/* Copies the shard, elements of `width` bytes, out of the global array; `local` is row-major. */
void shard_copy_out(const ShardLayout *layout, void *local, const void *global, int64_t width);

#endif
