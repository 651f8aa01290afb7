/* Patterns for the paths of parameters, as users write them.
 *
 * JAX writes a path as a Python expression, "model['layers'][1]['kernel']". A pattern names it in that
 * form, or by its words with any separators: "layers/1/kernel", "layers.1.kernel", "blocks*kernel".
 * Words may begin anywhere in the path and end where the path ends. '*' stands for any text.
 */
#ifndef PROPAGATION_PROPAGATE_PATH_PATTERN_H
#define PROPAGATION_PROPAGATE_PATH_PATTERN_H

#include "base/text.h"
#include "ir/analysis/roles.h"

/* Returns true if the path or its last words match the pattern. */
bool path_matches(const char *pattern, const char *path);

/* Appends "; the nearest are A, B, C": the paths of parameters that differ least from the pattern. */
void path_append_nearest(Text *text, const IrRoles *roles, const char *pattern);

#endif
