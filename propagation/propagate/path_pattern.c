/* Matching of paths by text and by words, and the edit distance that finds the nearest paths.
 *
 * The words of a path are its runs of letters, digits, '_' and '-', each with '/' before it:
 * "model['layers'][1]" is "/model/layers/1". A pattern is brought into the same form with its '*' kept.
 */
#include "propagation/propagate/path_pattern.h"

#include <string.h>

#define NEAREST       3
#define MOST_WORDS    512 /* bytes of a path or pattern as words; the rest is cut off */
#define MOST_EXAMINED 20000

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '*' || (unsigned char)c >= 0x80;
}

/* Writes the words of `text`; returns the length, or -1 if they do not fit. */
static int32_t words_of(char words[MOST_WORDS], const char *text) {
    int32_t count = 0;
    bool is_inside = false;
    for (const char *c = text; *c; c++) {
        if (count + 2 >= MOST_WORDS) return -1;
        if (is_word(*c)) {
            if (!is_inside) words[count++] = '/';
            words[count++] = *c;
        }
        is_inside = is_word(*c);
    }
    words[count] = '\0';
    return count;
}

/* Returns true if the whole text matches. Only the last '*' is tried again, so that time is linear. */
static bool matches_text(const char *pattern, const char *text) {
    const char *star = NULL, *retry = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            retry = text;
        } else if (*pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

bool path_matches(const char *pattern, const char *path) {
    char wanted[MOST_WORDS + 1], words[MOST_WORDS];
    if (strcmp(pattern, path) == 0 || matches_text(pattern, path)) return true;
    wanted[0] = '*';
    if (words_of(wanted + 1, pattern) <= 0 || words_of(words, path) <= 0) return false;
    return matches_text(wanted + 1, words) || matches_text(wanted, words);
}

/* Returns how many bytes must be inserted, deleted or replaced to make the pattern the end of the path. */
static int32_t distance(const char *pattern, int32_t length, const char *path) {
    int32_t row[MOST_WORDS + 1];
    for (int32_t k = 0; k <= length; k++) row[k] = k;
    for (const char *c = path; *c; c++) {
        int32_t diagonal = row[0];
        row[0] = 0; /* the path's beginning is free */
        for (int32_t k = 1; k <= length; k++) {
            int32_t replaced = diagonal + (pattern[k - 1] != *c && pattern[k - 1] != '*');
            int32_t least = row[k] < row[k - 1] ? row[k] : row[k - 1];
            diagonal = row[k];
            row[k] = replaced < least + 1 ? replaced : least + 1;
        }
    }
    return row[length];
}

void path_append_nearest(Text *text, const IrRoles *roles, const char *pattern) {
    int32_t best[NEAREST], cost[NEAREST], count = 0;
    char wanted[MOST_WORDS], words[MOST_WORDS];
    int32_t length = words_of(wanted, pattern);
    int32_t examined = roles->parameter_count < MOST_EXAMINED ? roles->parameter_count : MOST_EXAMINED;
    for (int32_t p = 0; p < examined && length >= 0; p++) {
        if (words_of(words, roles->parameters[p].path) < 0) continue;
        /* Weights come first among equally near paths. */
        int32_t found = 2 * distance(wanted, length, words) + (roles->parameters[p].role != IR_ROLE_WEIGHT);
        if (count == NEAREST && found >= cost[NEAREST - 1]) continue;
        int32_t at = count < NEAREST ? count++ : NEAREST - 1;
        for (; at > 0 && cost[at - 1] > found; at--) {
            best[at] = best[at - 1];
            cost[at] = cost[at - 1];
        }
        best[at] = p;
        cost[at] = found;
    }
    for (int32_t k = 0; k < count; k++)
        text_append(text, "%s%.200s", k ? ", " : "; the nearest are ", roles->parameters[best[k]].path);
}
