/* Lists of integers, such as the dimensions that an attribute names. */
#ifndef BASE_INT_LIST_H
#define BASE_INT_LIST_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether a value is in the list. */
static inline bool int_list_contains(const int64_t *list, int64_t count, int64_t value) {
    for (int64_t k = 0; k < count; k++)
        if (list[k] == value) return true;
    return false;
}

/* Returns the first place of a value in the list, or -1. */
static inline int32_t int_list_place(const int64_t *list, int32_t count, int64_t value) {
    for (int32_t k = 0; k < count; k++)
        if (list[k] == value) return k;
    return -1;
}

#endif
