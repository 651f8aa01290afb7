/* Nearest names by prefix and by edit distance.
 *
 * The distance counts insertions, deletions, substitutions and swaps of two
 * neighbouring characters, each as 1: distance("serach", "search") = 1. Three rows
 * of the dynamic program are kept. Names of more than SUGGEST_MOST bytes are never
 * suggested, so that the time per candidate is bounded.
 */
#include "base/suggest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SUGGEST_MOST 96

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Compares the first `length` characters without regard to case. */
static bool begins_with(const char *text, const char *prefix, size_t length) {
    for (size_t k = 0; k < length; k++)
        if (text[k] == '\0' || lower(text[k]) != lower(prefix[k])) return false;
    return true;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Returns the edits between two words: insertions, deletions, replacements, and swaps of neighbours. */
static size_t distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][SUGGEST_MOST + 1];
    for (size_t j = 0; j <= b_length; j++) rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *second_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            bool is_same = lower(a[i - 1]) == lower(b[j - 1]);
            row[j] = least(above[j - 1] + !is_same, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
                row[j] = least(row[j], second_above[j - 2] + 1);
        }
    }
    return rows[a_length % 3][b_length];
}

/* Returns the shortest candidate that begins with `word`, if all others that do begin with that candidate;
 * else NULL. */
static const char *find_by_prefix(const char *word, size_t length, const char *const *candidates,
                                  size_t count) {
    const char *shortest = NULL;
    for (size_t k = 0; k < count; k++)
        if (candidates[k] && begins_with(candidates[k], word, length) &&
            (!shortest || strlen(candidates[k]) < strlen(shortest)))
            shortest = candidates[k];
    for (size_t k = 0; shortest && k < count; k++)
        if (candidates[k] && begins_with(candidates[k], word, length) &&
            !begins_with(candidates[k], shortest, strlen(shortest)))
            return NULL;
    return shortest;
}

const char *suggest_nearest(const char *word, const char *const *candidates, size_t count) {
    size_t length = word ? strlen(word) : 0;
    if (length == 0 || length > SUGGEST_MOST) return NULL;
    const char *nearest = find_by_prefix(word, length, candidates, count);
    if (nearest) return nearest;
    size_t limit = (length + 2) / 3;
    for (size_t k = 0; k < count; k++) {
        size_t other = candidates[k] ? strlen(candidates[k]) : 0;
        if (other == 0 || other > SUGGEST_MOST) continue;
        size_t edits = distance(word, length, candidates[k], other);
        /* A name that shares no character with the word is no correction of it. */
        if (edits > limit || edits >= least(length, other)) continue;
        nearest = candidates[k];
        if (edits == 0) break;
        limit = edits - 1;
    }
    return nearest;
}

const char *suggest_hint(char buffer[SUGGEST_HINT_BYTES], const char *word, const char *const *candidates,
                         size_t count) {
    const char *nearest = suggest_nearest(word, candidates, count);
    buffer[0] = '\0';
    if (nearest) snprintf(buffer, SUGGEST_HINT_BYTES, "; did you mean %s?", nearest);
    return buffer;
}
