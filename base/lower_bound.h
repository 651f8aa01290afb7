/* Bisection in sorted rows: the first of several equal rows, where bsearch() returns any of them.
 *
 * The order is a function as for bsearch(), which receives the key first and a row second. In the numbers
 * 1 3 3 7 the lower bound of 3 is 1, that of 4 is 3, and that of 9 is 4.
 */
#ifndef BASE_LOWER_BOUND_H
#define BASE_LOWER_BOUND_H

#include <stddef.h>
#include <stdint.h>

/* Returns the number of rows before the first that is not less than the key: `count` if all are less. */
static inline int32_t lower_bound(const void *key, const void *rows, int32_t count, size_t row_bytes,
                                  int (*compare)(const void *, const void *)) {
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (compare(key, (const char *)rows + (size_t)middle * row_bytes) > 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

#endif
