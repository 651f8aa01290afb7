/* The ends of texts, such as ".gz" of a file's name. */
#ifndef BASE_SUFFIX_H
#define BASE_SUFFIX_H

#include <stdbool.h>
#include <string.h>

/* Returns whether a text ends with the suffix. */
static inline bool has_suffix(const char *text, const char *suffix) {
    size_t length = strlen(text), end = strlen(suffix);
    return length >= end && strcmp(text + length - end, suffix) == 0;
}

#endif
