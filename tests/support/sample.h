/* The number of cases that a test takes. Sanitized programs are several times slower and check every access,
 * so they run the same lines on fewer cases. The ordinary build takes a sample with every value of every
 * dimension, and all cases where AUTOMAP_FULL is set. */
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* `many` cases, in sanitized programs `few`. */
static inline int32_t sample_of(int32_t many, int32_t few) {
#ifdef AUTOMAP_SANITIZED
    (void)many;
    return few;
#else
    (void)few;
    return many;
#endif
}

/* Whether the program looks for races between threads. A case that starts the same threads as another one
 * adds nothing to such a program. */
static inline bool is_searched_for_races(void) {
#ifdef __SANITIZE_THREAD__
    return true;
#elif defined __has_feature
    return __has_feature(thread_sanitizer);
#else
    return false;
#endif
}

/* `many` cases, in sanitized programs `few`, and `all` where AUTOMAP_FULL is set. */
static inline int32_t sample_of_all(int32_t all, int32_t many, int32_t few) {
    return getenv("AUTOMAP_FULL") ? all : sample_of(many, few);
}

#endif
