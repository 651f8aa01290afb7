/* Whole-number expressions in the names of a topology: "d/4", "s != t && d % 2 == 0". */
#ifndef COST_TOPOLOGY_EXPRESSION_H
#define COST_TOPOLOGY_EXPRESSION_H

#include <stddef.h>
#include <stdint.h>

#define TOPOLOGY_MOST_VARIABLES 4

typedef struct TopologyVariables {
    int32_t count;
    const char *names[TOPOLOGY_MOST_VARIABLES];
    int64_t values[TOPOLOGY_MOST_VARIABLES];
} TopologyVariables;

/* The value of text[0..length): numbers, variables, parentheses and, binding from
 * loosest to tightest, || && (== != < <= > >=) (+ -) (* / %) and the sign. Division
 * rounds towards zero, comparisons give 0 or 1. Returns NULL, or what is wrong. */
const char *topology_expression(int64_t *value, const char *text, size_t length,
                                const TopologyVariables *variables);

/* Copies `format` with every {EXPRESSION} replaced by its value, which must not be
 * negative, to `name`. Returns NULL, or what is wrong. */
const char *topology_format(char *name, size_t capacity, const char *format,
                            const TopologyVariables *variables);

#endif
