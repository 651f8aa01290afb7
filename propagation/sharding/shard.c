/* The positions of a shard's elements in the global array. Both arrays are row-major. */
#include "propagation/sharding/shard.h"

#include <string.h>

static void add_dimension(ShardLayout *layout, int64_t extent, int64_t global_stride) {
    layout->dimensions[layout->rank] = extent;
    layout->global_strides[layout->rank++] = global_stride;
}

bool shard_layout(ShardLayout *layout, const Mesh *mesh, SbpState state, int32_t device,
                  const IrShape *global) {
    int64_t stride = 1, strides[IR_MAX_RANK];
    *layout = (ShardLayout){.rank = 0};
    if (global->rank > IR_MAX_RANK) return false;
    for (int32_t d = global->rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= global->dimensions[d];
    }
    for (int32_t d = 0; d < global->rank; d++) {
        int64_t start, extent, blocks = sbp_blocks(state, d);
        sbp_shard(mesh, state, device, d, global->dimensions[d], &start, &extent);
        if (layout->rank + (blocks > 1) + (global->rank - d) > IR_MAX_RANK) return false;
        if (blocks > 1) add_dimension(layout, blocks, strides[d] * (global->dimensions[d] / blocks));
        add_dimension(layout, extent / blocks, strides[d]);
        layout->start_offset += start * strides[d];
    }
    stride = 1;
    for (int32_t d = layout->rank - 1; d >= 0; d--) {
        layout->local_strides[d] = stride;
        stride *= layout->dimensions[d];
    }
    return true;
}

int64_t shard_elements(const ShardLayout *layout) {
    int64_t elements = 1;
    for (int32_t d = 0; d < layout->rank; d++) elements *= layout->dimensions[d];
    return elements;
}

void shard_copy_out(const ShardLayout *layout, void *local, const void *global, int64_t width) {
    int64_t index[IR_MAX_RANK] = {0}, from = layout->start_offset;
    for (int64_t e = 0, elements = shard_elements(layout); e < elements; e++) {
        memcpy((char *)local + e * width, (const char *)global + from * width, (size_t)width);
        for (int32_t d = layout->rank - 1; d >= 0; d--) {
            from += layout->global_strides[d];
            if (++index[d] < layout->dimensions[d]) break;
            from -= layout->global_strides[d] * layout->dimensions[d];
            index[d] = 0;
        }
    }
}
