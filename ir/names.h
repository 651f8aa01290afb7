/* Names made unique. */
#ifndef IR_NAMES_H
#define IR_NAMES_H

#include "ir/module.h"

/* Makes names unique: the second "add" of names[0..count) becomes "add#2" (with separator '#'), the third
 * "add#3", and so on; a name that is taken already is skipped. New names are copied into `arena`. */
AmStatus ir_unique_names(const char **names, int32_t count, char separator, Arena *arena, AmError *error);

/* Makes the names of instructions unique, with separator '.': a body that is inlined twice gets its own names
 * the second time. New names are copied into `arena`; `scratch` holds a list of the names. */
AmStatus ir_unique_instruction_names(IrInstruction *instructions, int32_t count, Arena *arena, Arena *scratch,
                                     AmError *error);

#endif
