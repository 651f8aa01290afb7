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
#define MISSING_WORD  2 /* cost of a word of the path that the pattern lacks */
#define PART          2
#define SHORTEST_PART 3

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

/* Returns how many bytes must be inserted, deleted or replaced to make `wanted` the word, or with `is_part`
 * any part of the word. */
static int32_t edits(const char *wanted, int32_t length, const char *word, int32_t word_length,
                     bool is_part) {
    int32_t row[MOST_WORDS], fewest = length;
    for (int32_t k = 0; k <= length; k++) row[k] = k;
    for (int32_t i = 0; i < word_length; i++) {
        int32_t diagonal = row[0];
        row[0] = is_part ? 0 : i + 1;
        for (int32_t k = 1; k <= length; k++) {
            int32_t replaced = diagonal + (wanted[k - 1] != word[i]);
            int32_t least = row[k] < row[k - 1] ? row[k] : row[k - 1];
            diagonal = row[k];
            row[k] = replaced < least + 1 ? replaced : least + 1;
        }
        if (row[length] < fewest) fewest = row[length];
    }
    return is_part ? fewest : row[length];
}

/* Returns the edits between two words. A part of a word, as "table" of "token_table", costs PART more than
 * its edits. */
static int32_t word_distance(const char *wanted, int32_t length, const char *word, int32_t word_length) {
    int32_t whole = edits(wanted, length, word, word_length, false);
    if (length < SHORTEST_PART || whole <= PART) return whole;
    int32_t part = PART + edits(wanted, length, word, word_length, true);
    return part < whole ? part : whole;
}

/* Splits "/layers/1" into words without their '/'; returns their number. */
static int32_t split_words(const char *starts[MOST_WORDS / 2], int32_t lengths[MOST_WORDS / 2],
                           const char *words) {
    int32_t count = 0;
    while (*words == '/') {
        starts[count] = ++words;
        lengths[count] = (int32_t)strcspn(words, "/");
        words += lengths[count++];
    }
    return count;
}

/* Returns the cost of changes that make the pattern the end of the path. A word of the path that the pattern
 * lacks costs MISSING_WORD, a changed byte of a word 1. So "layers/0/qury/kernel" is nearer to
 * "layers/0/attention/query/kernel" than to "layers/0/mlp_in/kernel". */
static int32_t distance(const char *pattern, const char *path) {
    const char *wanted[MOST_WORDS / 2], *words[MOST_WORDS / 2];
    int32_t wanted_lengths[MOST_WORDS / 2], lengths[MOST_WORDS / 2], row[MOST_WORDS / 2 + 1];
    int32_t wanted_count = split_words(wanted, wanted_lengths, pattern);
    int32_t count = split_words(words, lengths, path);
    row[0] = 0;
    for (int32_t k = 0; k < wanted_count; k++) row[k + 1] = row[k] + wanted_lengths[k];
    for (int32_t i = 0; i < count; i++) {
        int32_t diagonal = row[0]; /* the path's beginning is free */
        for (int32_t k = 0; k < wanted_count; k++) {
            bool is_any = wanted_lengths[k] == 1 && *wanted[k] == '*';
            int32_t changed = is_any ? 0 : word_distance(wanted[k], wanted_lengths[k], words[i], lengths[i]);
            int32_t least = diagonal + changed, above = row[k + 1];
            if (above + MISSING_WORD < least) least = above + MISSING_WORD;
            if (row[k] + wanted_lengths[k] < least) least = row[k] + wanted_lengths[k];
            row[k + 1] = least;
            diagonal = above;
        }
    }
    return row[wanted_count];
}

void path_append_nearest(Text *text, const IrRoles *roles, const char *pattern) {
    int32_t best[NEAREST], cost[NEAREST], count = 0;
    char wanted[MOST_WORDS], words[MOST_WORDS];
    int32_t examined = roles->parameter_count < MOST_EXAMINED ? roles->parameter_count : MOST_EXAMINED;
    if (words_of(wanted, pattern) < 0) return;
    for (int32_t p = 0; p < examined; p++) {
        if (words_of(words, roles->parameters[p].path) < 0) continue;
        /* Optimizer states have the paths of their weights, which come first. */
        bool is_weight = roles->parameters[p].role == IR_ROLE_WEIGHT;
        int32_t found = 2 * distance(wanted, words) + (is_weight ? 0 : 2 * MISSING_WORD - 1);
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
