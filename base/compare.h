/* Orders of plain numbers for qsort(), ascending: qsort(values, count, sizeof *values, compare_doubles).
 *
 * The difference of two int32_t may not fit, so each is a comparison.
 */
#ifndef BASE_COMPARE_H
#define BASE_COMPARE_H

#include <stdint.h>

static inline int compare_integers(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

static inline int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

#endif
