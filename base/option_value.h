/* Values of options as text: integers ("1e4" is one, too), numbers, and names of a list. */
#ifndef BASE_OPTION_VALUE_H
#define BASE_OPTION_VALUE_H

#include "base/status.h"

/* Parses one value. `name` is the option in errors, "--seed" or "seed". AM_ERROR_USAGE states the
 * expectation, and the nearest name of a list. */
AmStatus option_parse_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *value,
                              AmError *error);
AmStatus option_parse_number(const char *name, const char *text, double least, double most, double *value,
                             AmError *error);
/* Sets *choice to the index of the text among `count` names (at most 64). */
AmStatus option_parse_choice(const char *name, const char *text, const char *(*name_of)(int32_t),
                             int32_t count, int32_t *choice, AmError *error);

#endif
