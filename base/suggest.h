/* Finds the known name nearest to a misspelt word, for error messages.
 *
 * Names are compared without regard to case. The order of preference is: the same
 * name, the only name that begins with the word, the name at the least
 * Damerau-Levenshtein distance. "serach" gives "search", "H100" gives "H100-80GB".
 */
#ifndef BASE_SUGGEST_H
#define BASE_SUGGEST_H

#include <stddef.h>

#define SUGGEST_HINT_BYTES 160

/* Returns the candidate nearest to `word`, the first one of several at the same distance. Returns NULL where
 * the distance exceeds a third of the word's length, rounded up, or the word is empty. Candidates may be
 * NULL. */
const char *suggest_nearest(const char *word, const char *const *candidates, size_t count);

/* Writes "; did you mean NAME?" into `buffer`, or "" where no candidate is near. Returns `buffer`. */
const char *suggest_hint(char buffer[SUGGEST_HINT_BYTES], const char *word, const char *const *candidates,
                         size_t count);

#endif
