/* A user's hints on scopes of operators: `replicate` and `split(AXIS)`.
 *
 * Whale (section 3.2) annotates parts of a model in code; here a pattern names them. A scope is a
 * path of components: op_name "jit(step)/transpose(jvp(layer_3))/dot" is step/layer_3/dot, a
 * parameter's path "params['layers'][3]['kernel']" is params/layers/3/kernel. A pattern matches
 * whole components anywhere in it; '*' and '.*' match any text. A scope contains the weights whose
 * path matches, and those that an operator of the scope uses, directly or through views.
 *
 *   replicate    its weights are replicated: data parallelism there
 *   split(AXIS)  its weights are split over the axis, as far as strict linkage groups
 *                (strict.h) within such scopes allow: operator parallelism
 *
 * Among nested scopes the inner one counts; a pin with a sharding per dimension precedes all
 * scopes.
 */
#ifndef PROPAGATION_PROPAGATE_SCOPES_H
#define PROPAGATION_PROPAGATE_SCOPES_H

#include "propagation/propagate/propagate.h"

/* Returns whether the pin is one on a scope. */
bool scopes_is_scope(const PropagationPin *pin);

/* Returns whether a path, of an operator or of a parameter, is in the scope that a pattern names. */
bool scopes_match(const char *pattern, const char *path);

/* Resolves the scopes among `pins` on this mesh: asked[p] is the pin that applies to parameter p,
 * or NULL, and states[p] the state that it requires; both [roles->parameter_count], in the arena. A
 * weight of a split scope that no linkage group splits has no requirement. AM_ERROR_USAGE names a
 * scope that is empty, an unknown axis, or two scopes that overlap without nesting;
 * AM_ERROR_INFEASIBLE one that cannot be split. */
AmStatus scopes_resolve(const PropagationPin *const **asked, SbpState **states, Arena *arena,
                        const PlanContext *context, const Mesh *mesh, const PropagationPin *pins,
                        int32_t count, AmError *error);

#endif
