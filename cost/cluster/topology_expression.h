/* Integer expressions in the names of a topology: "d/4", "s != t && d % 2 == 0".
 *
 * A cluster file describes many edges by one row with variables, {"for": {"s": [0, 8]}, "from":
 * "server{s}/device0", ...}: topology_format() writes the name of each, and topology_expression() evaluates
 * conditions.
 */
#ifndef COST_CLUSTER_TOPOLOGY_EXPRESSION_H
#define COST_CLUSTER_TOPOLOGY_EXPRESSION_H

#include <stddef.h>
#include <stdint.h>

#define TOPOLOGY_MOST_VARIABLES 4

typedef struct TopologyVariables {
    int32_t count;
    const char *names[TOPOLOGY_MOST_VARIABLES];
    int64_t values[TOPOLOGY_MOST_VARIABLES];
} TopologyVariables;

/* Evaluates text[0..length): numbers, variables, parentheses and, from loosest to tightest, || &&
 * (== != < <= > >=) (+ -) (* / %) and the sign. Division rounds towards zero, comparisons give 0 or
 * 1. Returns NULL, or the error. */
const char *topology_expression(int64_t *value, const char *text, size_t length,
                                const TopologyVariables *variables);

/* Copies `format` to `name` with every {EXPRESSION} replaced by its value, which must not be
 * negative. Returns NULL, or the error. */
const char *topology_format(char *name, size_t capacity, const char *format,
                            const TopologyVariables *variables);

#endif
