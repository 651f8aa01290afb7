/* A user's own decisions in a search (`search --pin`), on one mesh.
 *
 * A pin says of every dimension of the parameters that it matches over which
 * axes it is split. So the classes of these dimensions are nobody else's to
 * decide: the pinned ones stand first in the lists of their axes in every plan,
 * and none of them is offered to a searcher. What is tied to them follows.
 */
#ifndef PLANNERS_PINS_H
#define PLANNERS_PINS_H

#include "propagation/propagate.h"

typedef struct MeshPins {
    PlanList prefix[MESH_MAX_AXES]; /* of every list of the axis */
    bool *is_pinned;                /* [classes->count]: a dimension of a pinned parameter is in it */
    int32_t count;                  /* pins; 0: none of the above matters */
} MeshPins;

/* AM_ERROR_USAGE names a pin that means nothing for this module, or an axis that
 * the mesh does not have; AM_ERROR_INFEASIBLE one that cannot hold on this mesh:
 * a size that does not divide, an axis of one device, another pin. */
AmStatus pins_on_mesh(MeshPins *result, Arena *arena, const PlanContext *context, const Mesh *mesh,
                      const PropagationPin *pins, int32_t count, AmError *error);

#endif
