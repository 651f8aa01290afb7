/* Splits paths into words and sorts the keys, so that a path or the layers of a stack are found by bisection.
 */
#include "lowering/plan_file/parameter_keys.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/lower_bound.h"

#define WHOLE_PATH (-1)

struct ParameterKey {
    uint64_t path; /* hash of its words */
    int64_t layer; /* the number that was left out, or WHOLE_PATH */
    int32_t number;
};
typedef struct ParameterKey ParameterKey;

enum { WORDS_MOST = 64 };

/* A word of a path: letters, digits and underscores. "layers" and "layer_3" have the stem "layer". */
typedef struct PathWord {
    uint64_t whole, stem; /* hashes; stem 0: the word is a number */
    int64_t number;       /* at its end, or WHOLE_PATH */
} PathWord;

static uint64_t hash_stem(const char *word, size_t length) {
    while (length > 0 && word[length - 1] == '_') length--;
    if (length > 2 && word[length - 1] == 's') length--;
    return length > 0 ? hash_bytes(word, length, 1) : 0;
}

static int32_t read_words(PathWord *words, const char *path) {
    int32_t count = 0;
    while (*path && count < WORDS_MOST) {
        size_t length = 0;
        while (isalnum((unsigned char)path[length]) || path[length] == '_') length++;
        if (length > 0) {
            enum { DIGITS_MOST = 9 };
            size_t digits = 0;
            PathWord read = {.number = WHOLE_PATH};
            while (digits < length && isdigit((unsigned char)path[length - 1 - digits])) digits++;
            if (digits > 0 && digits <= DIGITS_MOST) read.number = strtol(path + length - digits, NULL, 10);
            read.whole = read.number < 0 ? hash_stem(path, length) : hash_bytes(path, length, 1);
            if (digits < length) read.stem = hash_stem(path, length - digits);
            words[count++] = read;
        }
        path += length > 0 ? length : 1;
    }
    return count;
}

/* Returns the key of a path without the number of word `left_out`; -1: with all. */
static ParameterKey make_key(const PathWord *words, int32_t count, int32_t left_out) {
    ParameterKey key = {.path = 0, .layer = left_out < 0 ? WHOLE_PATH : words[left_out].number};
    for (int32_t k = 0; k < count; k++) {
        uint64_t hash = k == left_out ? words[k].stem : words[k].whole;
        if (hash) key.path = hash_combine(key.path, hash);
    }
    return key;
}

static int compare_keys(const void *left, const void *right) {
    const ParameterKey *a = left, *b = right;
    if (a->path != b->path) return a->path < b->path ? -1 : 1;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

AmStatus parameter_keys_make(ParameterKeys *self, Arena *arena, const IrRoles *roles, AmError *error) {
    PathWord words[WORDS_MOST];
    int32_t capacity = 0;
    *self = (ParameterKeys){0};
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t count = read_words(words, roles->parameters[p].path);
        for (int32_t k = -1; k < count; k++) {
            if (k >= 0 && words[k].number < 0) continue;
            ARENA_RESERVE(arena, self->keys, self->count, capacity);
            if (!self->keys) return am_fail_memory(error, capacity);
            self->keys[self->count] = make_key(words, count, k);
            self->keys[self->count++].number = p;
        }
    }
    if (self->count > 0) qsort(self->keys, (size_t)self->count, sizeof *self->keys, compare_keys);
    return AM_OK;
}

/* Returns the first key that is not before (path, layer). */
static int32_t find_first(const ParameterKeys *self, ParameterKey key) {
    key.number = -1;
    return lower_bound(&key, self->keys, self->count, sizeof key, compare_keys);
}

static bool is_at(const ParameterKeys *self, int32_t k, ParameterKey key) {
    return k < self->count && self->keys[k].path == key.path && self->keys[k].layer == key.layer;
}

int32_t parameter_keys_find(const ParameterKeys *self, const char *path) {
    PathWord words[WORDS_MOST];
    int32_t count = read_words(words, path), found = -1;
    for (int32_t k = -1; k < count; k++) {
        if (k >= 0 && words[k].number < 0) continue;
        ParameterKey key = make_key(words, count, k);
        int32_t at = find_first(self, key);
        if (!is_at(self, at, key)) continue;
        bool is_unique = !is_at(self, at + 1, key) && (found < 0 || found == self->keys[at].number);
        if (!is_unique) return -1;
        found = self->keys[at].number;
        if (k < 0) break;
    }
    return found;
}

bool parameter_keys_have_layers(const ParameterKeys *self) {
    for (int32_t k = 1; k < self->count; k++)
        if (self->keys[k].path == self->keys[k - 1].path && self->keys[k - 1].layer == 0 &&
            self->keys[k].layer == 1)
            return true;
    return false;
}

int32_t parameter_keys_layers(const ParameterKeys *self, Arena *arena, int32_t **layers, const char *path) {
    PathWord words[WORDS_MOST];
    ParameterKey key = make_key(words, read_words(words, path), -1);
    key.layer = 0;
    int32_t first = find_first(self, key), count = 0;
    while (first + count < self->count && self->keys[first + count].path == key.path) {
        if (self->keys[first + count].layer != count) return 0;
        count++;
    }
    *layers = ARENA_ARRAY(arena, int32_t, count + 1);
    for (int32_t k = 0; *layers && k < count; k++) (*layers)[k] = self->keys[first + k].number;
    return *layers ? count : 0;
}
