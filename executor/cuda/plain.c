/* The way out where a library has nothing: the generated kernel of a dot or a
 * convolution (product.h) in its place, and a word about it.
 *
 * What a library never does (integers, mixed types) is silent. What it could
 * have done but refuses, or a library that is not there, costs much time, so the
 * user is told, once for each instruction and reason.
 */
#include "executor/cuda/cuda.h"
#include "executor/cuda/product.h"

AmStatus cuda_prepare_plain(KernelCall *call, Arena *arena, AmError *error) {
    CudaSource source;
    bool is_dot = call->instruction->opcode == IR_DOT;
    TRY(is_dot ? cuda_source_dot(&source, arena, call, error)
               : cuda_source_convolution(&source, arena, call, error));
    return cuda_prepare_source(call, arena, &source, error);
}

static const char *name_of(const KernelCall *call) {
    const IrModule *module = call->program->module;
    int32_t origin = call->instruction->origin;
    return module && origin >= 0 && origin < module->instruction_count ? module->instructions[origin].name
                                                                       : NULL;
}

AmStatus cuda_prepare_refused(KernelCall *call, Arena *arena, const char *reason, AmError *error) {
    const char *name = name_of(call);
    AmWarnings *warnings = cuda_device_of(call->device)->warnings;
    TRY(cuda_prepare_plain(call, arena, error));
    if (warnings)
        am_warn(warnings, "'%s' runs as a plain kernel, slowly: %s",
                name ? name : ir_opcode_name(call->instruction->opcode), reason);
    return AM_OK;
}

AmStatus cuda_prepare_without_dnn(KernelCall *call, Arena *arena, const char *reason, AmError *error) {
    AmWarnings *warnings = cuda_device_of(call->device)->warnings;
    TRY(cuda_prepare_plain(call, arena, error));
    if (warnings) am_warn(warnings, "convolutions run as plain kernels, slowly: %s", reason);
    return AM_OK;
}
