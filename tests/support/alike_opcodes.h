/* The element-wise opcodes whose operands and result have one shape and type, from ir/opcodes.def: tests that
 * go through them need no case for a new one. */
#ifndef TESTS_SUPPORT_ALIKE_OPCODES_H
#define TESTS_SUPPORT_ALIKE_OPCODES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct AlikeOpcode {
    const char *name;
    int32_t operands;
    const char *rule, *shape, *types; /* columns of the table */
} AlikeOpcode;

/* All rows of the table; alike_is() chooses. */
static const AlikeOpcode alike_opcodes[] = {
#define OPCODE(enum_name, name, operands, rule, linearity, cost, flops, shape, types, ...) \
    {name, operands, #rule, #shape, #types},
#include "ir/opcodes.def"
#undef OPCODE
};
enum { ALIKE_OPCODE_COUNT = sizeof alike_opcodes / sizeof *alike_opcodes };

static inline bool alike_is(const AlikeOpcode *self) {
    return strcmp(self->rule, "ELEMENTWISE") == 0 && strcmp(self->shape, "alike") == 0;
}

/* Returns whether the opcode takes floating numbers by XLA's verifier. */
static inline bool alike_takes_floats(const AlikeOpcode *self) {
    return strcmp(self->types, "INTEGER") != 0 && strcmp(self->types, "BITS") != 0;
}

#endif
