/* Names made unique. */
#ifndef IR_NAMES_H
#define IR_NAMES_H

#include "ir/module.h"

/* Makes names unique: the second "add" of names[0..count) becomes "add#2" (with separator '#'), the third
 * "add#3", and so on; a name that is taken already is skipped. New names are copied into `arena`. */
AmStatus ir_unique_names(const char **names, int32_t count, char separator, Arena *arena, AmError *error);

#endif
