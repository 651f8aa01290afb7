/* Which set of vector instructions runs here: the widest of those that were
 * built (cmake/AutomapVectors.cmake) and that the processor has.
 */
#include "executor/cpu/vector/vector.h"

extern const VectorLoops vector_loops_baseline;
#ifdef AUTOMAP_VECTOR_LEVELS
extern const VectorLoops vector_loops_level3, vector_loops_level4;
#endif

const VectorLoops *vector_loops_at(int32_t k) {
    if (k == 0) return &vector_loops_baseline;
#ifdef AUTOMAP_VECTOR_LEVELS
    if (k == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return &vector_loops_level3;
    if (k == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &vector_loops_level4;
#endif
    return NULL;
}

const VectorLoops *vector_loops(void) {
    const VectorLoops *widest = NULL;
    for (int32_t k = VECTOR_SETS - 1; k >= 0 && !widest; k--) widest = vector_loops_at(k);
    return widest;
}

ElementLoop *element_floating_loop(IrOpcode opcode, Dtype type) {
    return vector_loops()->floating(opcode, type);
}

ElementLoop *element_integer_loop(IrOpcode opcode, Dtype type) {
    return vector_loops()->integer(opcode, type);
}

ElementLoop *element_compare_loop(const char *direction, bool total_order, Dtype type) {
    return vector_loops()->compare(direction, total_order, type);
}

ElementLoop *element_select_loop(Dtype type) {
    return vector_loops()->select(type);
}

ElementLoop *element_clamp_loop(Dtype type) {
    return vector_loops()->clamp(type);
}

ElementLoop *element_convert_loop(Dtype from, Dtype to) {
    ElementLoop *loop = vector_loops()->convert(from, to);
    return loop ? loop : element_convert;
}

ElementLoop *element_round_loop(Dtype type) {
    const VectorLoops *loops = vector_loops();
    return type == DTYPE_BF16 ? loops->round_bf16 : type == DTYPE_F16 ? loops->round_f16 : element_round;
}
