/* A user's hints on scopes of operators: `replicate` and `split(AXIS)`.
 *
 * Whale (section 3.2) annotates parts of a model so; here a pattern names them.
 * A scope is a path of components: op_name "jit(step)/transpose(jvp(layer_3))/dot"
 * is step/layer_3/dot, a parameter's path "params['layers'][3]['kernel']" is
 * params/layers/3/kernel. A pattern matches whole components anywhere in it;
 * '*' and '.*' stand for any text. In a scope are the weights whose path
 * matches, and those that an operator of the scope takes, directly or through views.
 *
 *   replicate    its weights are whole on every device: data parallelism there
 *   split(AXIS)  its weights are split over the axis, as strict linkage groups
 *                (strict.h) that lie in scopes so split allow: operator parallelism
 *
 * Of nested scopes the inner one counts; a pin with a sharding per dimension
 * counts before all scopes.
 */
#ifndef PROPAGATION_SCOPES_H
#define PROPAGATION_SCOPES_H

#include "propagation/propagate.h"

/* Returns whether the pin is one on a scope. */
bool scopes_is_scope(const PropagationPin *pin);

/* Returns whether a path, of an operator or of a parameter, lies in the scope that a pattern names. */
bool scopes_match(const char *pattern, const char *path);

/* What the scopes among `pins` ask of each weight on this mesh: asked[p] is the pin that
 * counts for parameter p, or NULL, and states[p] how it is to lie; both
 * [roles->parameter_count], in the arena. A weight of a split scope that no linkage
 * group splits is asked nothing. AM_ERROR_USAGE names a scope that is empty, an axis
 * that the mesh lacks, or two scopes that overlap and are not nested;
 * AM_ERROR_INFEASIBLE one that cannot be split. */
AmStatus scopes_resolve(const PropagationPin *const **asked, SbpState **states, Arena *arena,
                        const PlanContext *context, const Mesh *mesh, const PropagationPin *pins,
                        int32_t count, AmError *error);

#endif
