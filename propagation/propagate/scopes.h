/* A user's hints on scopes of operators: `replicate`, `split(AXIS)` and `sharding(-,AXIS)`.
 *
 * Whale (section 3.2) annotates parts of a model in code; here a pattern names them. A scope is a
 * path of components: op_name "jit(step)/transpose(jvp(layer_3))/dot" is step/layer_3/dot, a
 * parameter's path "params['layers'][3]['kernel']" is params/layers/3/kernel. A pattern matches
 * whole components anywhere in it; '*' and '.*' match any text. A scope contains the weights whose
 * path matches, and those that an operator of the scope uses, directly or through views. A pattern
 * "model.py:57" is a source line instead.
 *
 *   replicate    its weights are replicated: data parallelism there
 *   split(AXIS)  its weights are split over the axis, as far as strict linkage groups
 *                (strict.h) within such scopes allow: operator parallelism
 *
 *   sharding(-,AXIS)  its weights of as many dimensions have this sharding, others are open
 *
 * split(4) is split(AXIS) with the last axis of 4 devices; replicate(4) is replicate. Among nested scopes the
 * inner one counts; a pin with a sharding per dimension precedes all scopes.
 */
#ifndef PROPAGATION_PROPAGATE_SCOPES_H
#define PROPAGATION_PROPAGATE_SCOPES_H

#include "propagation/propagate/pins.h"

#define SCOPES_MARK "automap-" /* begins the words that marks.h reads, which other patterns pass over */

/* Returns whether a character is one of a path's words. */
bool scopes_is_word(char c);

/* Returns whether the pin is one on a scope. */
bool scopes_is_scope(const PropagationPin *pin);

/* Returns whether a path, of an operator or of a parameter, is in the scope that a pattern names. */
bool scopes_match(const char *pattern, const char *path);

/* Marks the instructions [rules->count] that a pattern names: by op_name or source line, in loops too. */
void scopes_find_named(bool *is_in, const PlanContext *context, const char *pattern);

/* Marks the instructions that scopes_find_named() finds, and those that use a weight whose path the
 * pattern matches, directly or through views. */
AmStatus scopes_find_members(bool *is_in, Arena *scratch, const PlanContext *context, const char *pattern,
                             AmError *error);

/* Marks the forward operators of the entry [rules->entry_count] in a scope: by their names, by their source
 * line ("model.py:57"), or because they use a weight whose path is in it. A loop is in the scope if an
 * operator inside it is. `*count` is their number. */
AmStatus scopes_find_operators(bool *is_in, int32_t *count, Arena *scratch, const PlanContext *context,
                               const char *pattern, AmError *error);

/* Resolves the scopes among `pins` on this mesh: for each parameter [roles->parameter_count] the pin that
 * applies to it, or NULL, and the state that this requires, in the arena. A weight of a split scope that no
 * linkage group splits has no requirement; a scope that cannot be split gives its weights a refusal.
 * AM_ERROR_USAGE names a scope that is empty, an unknown axis, or two scopes that contradict each other or
 * overlap without nesting. */
AmStatus scopes_resolve(PinnedParameter **pinned, Arena *arena, const PlanContext *context, const Mesh *mesh,
                        const PropagationPin *pins, int32_t count, AmError *error);

#endif
