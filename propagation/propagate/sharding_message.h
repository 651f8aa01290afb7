/* SBP states as sharding messages of HLO, in the spellings that other systems read.
 *
 * S(0) on an axis of 2 and B on one of 4 are, as tiles, "{devices=[2,1,4]<=[8] last_tile_dim_replicate}";
 * ShardingSpelling shows the others.
 */
#ifndef PROPAGATION_PROPAGATE_SHARDING_MESSAGE_H
#define PROPAGATION_PROPAGATE_SHARDING_MESSAGE_H

#include "ir/hlo.pb-c.h"
#include "propagation/sharding/mesh.h"
#include "propagation/sharding/sbp.h"

typedef enum ShardingSpelling {
    SHARDING_TILES,  /* {devices=[2,1,4]<=[8] last_tile_dim_replicate} */
    SHARDING_NAMED,  /* {mesh['data'=2,'model'=4], [{'data'}, {}]} */
    SHARDING_SHARDY, /* tiles, and beside them #sdy.sharding<@mesh, [{"data"}, {}]> as a frontend attribute */
    SHARDING_SHARDY_OPEN /* the same, but for constraints inside: #sdy.sharding<@mesh, [{"data", ?}p0, {?}p1]>
                          */
} ShardingSpelling;

/* Returns a copy of values[count] as 64-bit integers, in the arena; NULL without memory. */
int64_t *sharding_copy_int64(Arena *arena, const int32_t *values, int32_t count);

/* Returns the sharding attribute of an array of that rank; NULL without memory. */
Hlo__OpSharding *sharding_message(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank,
                                  ShardingSpelling spelling);

/* Returns frontend attributes with `key` = `value` and those of `from` (may be NULL) that do not describe
 * shardings; `key` NULL: these alone. NULL if the result is empty. */
Hlo__FrontendAttributes *sharding_frontend(Arena *arena, const Hlo__FrontendAttributes *from, const char *key,
                                           const char *value);

static inline bool sharding_is_shardy(ShardingSpelling spelling) {
    return spelling == SHARDING_SHARDY || spelling == SHARDING_SHARDY_OPEN;
}

/* Returns `{mesh = #sdy.mesh<["data"=2, "model"=4]>}`: the value of a module's xla.sdy.meshes. */
const char *sharding_shardy_meshes(Arena *arena, const Mesh *mesh);
/* Returns `#sdy.sharding<@mesh, [{"data"}, {}]>` of a parameter, or of an operator's only result
 * `#sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>`. P axes are left out. Open dimensions may get more
 * axes from Shardy's propagation: those that the plan splits first (p0), then the others (p1). */
const char *sharding_shardy(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank, bool is_result,
                            bool is_open);

#endif
