/* Hints for frequent mistakes on the command line: a forgotten option, a typographic dash, a forgotten
 * command. */
#ifndef CLI_HINTS_H
#define CLI_HINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the option that an argument is likely meant for, by the content of the file or the name of a
 * built-in cluster: "--plan", "--cluster", "--roles", "--profile"; or NULL. */
const char *hint_option_for(const char *word);

/* Returns the number of bytes of dashes that word processors make of "--" at the beginning of the word; 0:
 * none. */
size_t hint_typographic_dash(const char *word);

/* Returns whether the word names a file or folder, or has the form of a path. */
bool hint_is_file(const char *word);

/* Returns the option that other tools call `name` ("--tp" is "--tensor"), or NULL. `next`: 0, 1, ... for the
 * further ones. */
const char *hint_synonym(const char *name, int32_t next);

#endif
