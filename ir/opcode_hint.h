/* The opcode nearest to a misspelt one, for messages: "negat" gives "; did you mean negate?". */
#ifndef IR_OPCODE_HINT_H
#define IR_OPCODE_HINT_H

#include "base/suggest.h"

/* Writes the hint, or "" for a known opcode and for one that is near none (suggest.h). Returns `hint`. */
const char *ir_opcode_hint(char hint[SUGGEST_HINT_BYTES], const char *name);

#endif
