/* A user's own decisions about parameters in a search (propagation/propagate/pins.h), on one mesh.
 *
 * A pin defines for every dimension of the parameters that it matches the axes over which it is
 * split. The classes of these dimensions are therefore decided: the pinned ones come first in the
 * priorities of their axes in every plan, and searchers do not get them as class sets. Tied dimensions
 * follow. The shardings that the module carries (`--keep-shardings`) are decisions of the same
 * kind; a value that the axis priorities would store otherwise keeps its own sharding by an override.
 *
 * A pinned value has its sharding by an override in every plan.
 *
 * A stage of a pipeline keeps the pins of its own parameters and values, on its own mesh.
 */
#ifndef PLANNERS_PROBLEM_MESH_PINS_H
#define PLANNERS_PROBLEM_MESH_PINS_H

#include "planners/problem/degrees.h"
#include "planners/problem/value_pins.h"
#include "propagation/assign/assign.h"
#include "propagation/propagate/propagate.h"

typedef struct MeshPins {
    PlanAxisPriority prefix[MESH_MAX_AXES]; /* of the axis priority in every plan */
    bool *is_pinned;                        /* [classes->count]: a dimension of a pinned parameter is in it */
    PlanOverride
        *overrides; /* of every plan: pinned values, and kept shardings that axis priorities do not give */
    int32_t override_count;
    const PinnedParameter *parameters; /* [parameter]; NULL: no pins */
    int32_t count;                     /* decisions; 0: none of the above matters */
} MeshPins;

/* The pins that count on a mesh. */
typedef struct PinSet {
    const PropagationPin *pins; /* [count] */
    int32_t count;
    const KeptShardings *kept; /* or NULL */
    bool is_even;              /* shards must be of equal size */
    const bool *is_held;       /* [parameter]: those whose pins count; NULL: all */
    const bool *is_computed;   /* likewise [instruction] */
    /* [parameter], out: its pin cannot hold on axes after the first. The first axis is then one of unknown
     * size, over which nothing is split. NULL: such a pin fails the call. */
    bool *fails;
    bool *value_fails; /* [instruction], out with `fails`: likewise; values then get no overrides */
} PinSet;

/* Finds the pins on a mesh. AM_ERROR_USAGE names a pin that means nothing for this module, an axis that the
 * mesh does not have, or two pins that contradict each other; AM_ERROR_INFEASIBLE a pin that cannot hold on
 * this mesh: too few elements, an axis of one device, another pin. */
AmStatus pins_on_mesh(MeshPins *result, Arena *arena, const PlanContext *context, const Mesh *mesh,
                      const PinSet *set, AmError *error);

/* Checks each pin alone, and all together where none names a stage, after a search without a plan.
 * AM_ERROR_INFEASIBLE names a pin that no mesh data x model of a stage with the degrees, on at most so many
 * devices, takes. */
AmStatus pins_check_meshes(const PlanContext *context, const PropagationPin *pins, int32_t count,
                           const Degrees *degrees, bool is_even, int32_t devices, AmError *error);

/* Returns whether an assignment on the mesh of the pins stores every pinned parameter and value as its pin
 * requires. */
bool pins_hold(const MeshPins *pins, const PlanContext *context, const Assignment *assignment);

/* Checks a plan. AM_ERROR_INFEASIBLE names a pin that the plan does not keep, where the plan itself can be
 * assigned. */
AmStatus pins_check_plan(const PropagationPin *pins, int32_t count, const Plan *plan, AmError *error);
/* The parameters and values that a stage of a plan has. */
typedef struct StageContents {
    bool *parameters; /* [parameter] */
    bool *values;     /* [instruction of the plan's context] */
} StageContents;
/* Finds these for each stage of a plan [stage], in the arena. */
AmStatus pins_find_contents(StageContents **contents, Arena *arena, const Plan *plan, AmError *error);

#endif
