/* Features of the current processor. Tables of kernels name the function that tests for a row's
 * vectors, widest first; the last row has no requirement.
 */
#ifndef BASE_SYSTEM_CPU_FEATURES_H
#define BASE_SYSTEM_CPU_FEATURES_H

#include <stdbool.h>

bool cpu_has_avx512(void); /* AVX-512F, which has fused multiply-add */
bool cpu_has_avx2(void);   /* with fused multiply-add */
bool cpu_has_any(void);    /* always */

#endif
