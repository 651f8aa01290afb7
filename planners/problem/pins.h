/* A user's own decisions in a search (`search --pin`), on one mesh.
 *
 * A pin defines for every dimension of the parameters that it matches the axes over which it is
 * split. The classes of these dimensions are therefore decided: the pinned ones come first in the
 * lists of their axes in every plan, and searchers do not get them as candidates. Tied dimensions
 * follow. The shardings that the module carries (`--keep-shardings`) are decisions of the same
 * kind; a value that the lists would store otherwise keeps its own sharding by an override.
 */
#ifndef PLANNERS_PROBLEM_PINS_H
#define PLANNERS_PROBLEM_PINS_H

#include "propagation/propagate/propagate.h"

typedef struct MeshPins {
    PlanList prefix[MESH_MAX_AXES]; /* of every list of the axis */
    bool *is_pinned;                /* [classes->count]: a dimension of a pinned parameter is in it */
    PlanOverride *overrides;        /* of every plan: kept shardings that lists alone do not give */
    int32_t override_count;
    int32_t count; /* decisions; 0: none of the above matters */
} MeshPins;

/* `kept`: the module's shardings, or NULL; `is_even`: shards must be of equal size. AM_ERROR_USAGE names a
 * pin that means nothing for this module, or an axis that the mesh does not have; AM_ERROR_INFEASIBLE one
 * that cannot hold on this mesh: too few elements, an axis of one device, another pin. */
AmStatus pins_on_mesh(MeshPins *result, Arena *arena, const PlanContext *context, const Mesh *mesh,
                      const PropagationPin *pins, int32_t count, const KeptShardings *kept, bool is_even,
                      AmError *error);

#endif
