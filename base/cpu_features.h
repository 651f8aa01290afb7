/* What the processor that runs this can do: tables of kernels name the function that says whether a row's
 * vectors are there, widest first; the last row asks for nothing.
 */
#ifndef BASE_CPU_FEATURES_H
#define BASE_CPU_FEATURES_H

#include <stdbool.h>

bool cpu_has_avx512(void); /* AVX-512F, which has fused multiply-add */
bool cpu_has_avx2(void);   /* with fused multiply-add */
bool cpu_has_any(void);    /* always */

#endif
