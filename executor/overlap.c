/* Overlap by addresses: see overlap.h. */
#include "executor/overlap.h"

#include <stdlib.h>

#include "executor/control.h"

static bool meet(const void *a, const IrShape *a_shape, const void *b, const IrShape *b_shape) {
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return first < second + (uintptr_t)ir_shape_bytes(b_shape) &&
           second < first + (uintptr_t)ir_shape_bytes(a_shape);
}

static bool any_meets(const void *address, const IrShape *shape, void *const *others,
                      const IrShape *const *other_shapes, int32_t count) {
    for (int32_t k = 0; k < count; k++)
        if (meet(address, shape, others[k], other_shapes[k])) return true;
    return false;
}

static bool conflict(const KernelCall *kernel, const CommCall *call) {
    for (int32_t k = 0; k < call->result_count; k++)
        if (any_meets(call->results[k], call->result_shapes[k], kernel->operands, kernel->operand_shapes,
                      kernel->operand_count) ||
            any_meets(call->results[k], call->result_shapes[k], kernel->results, kernel->result_shapes,
                      kernel->result_count))
            return true;
    for (int32_t k = 0; k < call->operand_count; k++)
        if (any_meets(call->operands[k], call->operand_shapes[k], kernel->results, kernel->result_shapes,
                      kernel->result_count))
            return true;
    return false;
}

AmStatus overlap_find_waits(ReadyStep *steps, int32_t count, const CommCall **last, AmError *error) {
    int32_t under_way = 0; /* of pending[], in the order of issue */
    const CommCall **pending = malloc(sizeof *pending * (size_t)(count + 1));
    if (!pending) return am_fail_memory(error, (int64_t)sizeof *pending * count);
    for (int32_t s = 0; s < count; s++) {
        if (steps[s].collective) {
            pending[under_way++] = steps[s].collective;
            continue;
        }
        int32_t newest = under_way - 1;
        while (steps[s].kernel && newest >= 0 && !conflict(steps[s].kernel, pending[newest])) newest--;
        if (newest < 0) continue;
        steps[s].wait = pending[newest];
        for (int32_t k = newest + 1; k < under_way; k++) pending[k - newest - 1] = pending[k];
        under_way -= newest + 1;
    }
    *last = under_way > 0 ? pending[under_way - 1] : NULL;
    free(pending);
    return AM_OK;
}

AmStatus overlap_find_stretches(ReadyStretch **result, int32_t *stretch_count, Arena *arena,
                                const ReadyStep *steps, int32_t count, bool meets_on_host, AmError *error) {
    ReadyStretch *stretches = ARENA_ARRAY(arena, ReadyStretch, count + 1);
    int32_t n = 0;
    if (!stretches) return am_fail_memory(error, (int64_t)sizeof *stretches * count);
    for (int32_t s = 0; s < count; s++) {
        bool waits =
            steps[s].control ? steps[s].control->waits_on_host : steps[s].collective && meets_on_host;
        if (n == 0 || stretches[n - 1].recordable == waits)
            stretches[n++] = (ReadyStretch){.first = s, .recordable = !waits};
        stretches[n - 1].end = s + 1;
    }
    *result = stretches;
    *stretch_count = n;
    return AM_OK;
}
