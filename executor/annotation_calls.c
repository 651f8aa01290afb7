/* Annotation calls: custom calls that only annotate a value, so that the result is a copy.
 *
 * Frontends name shardings, layouts and memory spaces by custom calls; on one device, or after
 * partitioning, they have no effect.
 */
#include "executor/annotation_calls.h"

#include <string.h>

static void run_annotation(const KernelCall *call) {
    for (int32_t k = 0; k < call->result_count; k++)
        device_copy_within(call->device, call->results[k], call->operands[k],
                           ir_shape_bytes(call->result_shapes[k]));
}

AmStatus annotation_call_prepare(KernelCall *call, Arena *arena, AmError *error) {
    static const char *const annotations[] = {
        "Sharding",     "SPMDFullToShardShape", "SPMDShardToFullShape",     "LayoutConstraint",
        "MoveToDevice", "MoveToHost",           "annotate_device_placement"};
    const char *target = call->attributes->custom_call_target;
    bool is_annotation = target && strncmp(target, "xla.sdy.", 8) == 0;
    for (size_t k = 0; target && k < sizeof annotations / sizeof *annotations; k++)
        is_annotation |= strcmp(annotations[k], target) == 0;
    if (!is_annotation) {
        const char *reason =
            arena_format(arena, "the custom call \"%.100s\" is not known", target ? target : "");
        return reason ? kernel_call_refuse(call, reason, error) : am_fail_memory(error, 128);
    }
    if (call->operand_count != call->result_count)
        return kernel_call_refuse(call, "an annotation with other numbers of operands and results", error);
    for (int32_t k = 0; k < call->result_count; k++)
        if (!ir_shape_equal(call->operand_shapes[k], call->result_shapes[k]))
            return kernel_call_refuse(call, "an annotation that changes shapes", error);
    call->run = run_annotation;
    return AM_OK;
}
