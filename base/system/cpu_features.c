/* The vector extensions of the processor, by the compiler's own detection. Processors of other families have
 * none of the x86 extensions.
 */
#include "base/system/cpu_features.h"

#if defined __x86_64__
bool cpu_has_avx512(void) {
    return __builtin_cpu_supports("avx512f");
}

bool cpu_has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
bool cpu_has_avx512(void) {
    return false;
}

bool cpu_has_avx2(void) {
    return false;
}
#endif

bool cpu_has_any(void) {
    return true;
}
