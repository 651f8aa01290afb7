/* How much of a sample a test takes. The sanitizers make a program several times slower and look at every
 * access: there the same lines run on fewer cases. The ordinary build, and AUTOMAP_FULL, decide the rest. */
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include <stdint.h>

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

#endif
