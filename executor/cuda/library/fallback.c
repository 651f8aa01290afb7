/* The generated kernel of a dot or a convolution (product.h) in place of a
 * library's.
 *
 * A type that a library never takes (integers, mixed types) is no subject of a
 * warning. A product that it refuses costs much time: one warning has their
 * number, the first instruction and its reason. A library that is absent is one
 * warning too. A call whose algorithms could not be tried beforehand has both
 * kernels: the generated one is its spare, if the library refuses the first run.
 */
#include <string.h>

#include "base/cuda/dnn.h"
#include "executor/cuda/codegen/source_product.h"
#include "executor/cuda/cuda.h"

AmStatus cuda_prepare_plain(KernelCall *call, Arena *arena, AmError *error) {
    CudaSource source;
    bool is_dot = ir_is_matrix_product(call->instruction->opcode);
    TRY(is_dot ? cuda_source_dot(&source, arena, call, error)
               : cuda_source_convolution(&source, arena, call, error));
    return cuda_prepare_source(call, arena, &source, error);
}

static const char *plural(int32_t count) {
    return count == 1 ? "" : "s";
}

/* Returns "2 matrix products and 1 convolution run as generated kernels, slowly; the first is 'dot.3':
 * REASON". */
static char *describe_refusals(const CudaRefusals *refusals, Arena *arena) {
    int32_t products = refusals->products, convolutions = refusals->convolutions;
    char *of_dots = arena_format(arena, "%d matrix product%s", products, plural(products));
    char *of_others = arena_format(arena, "%d convolution%s", convolutions, plural(convolutions));
    if (!of_dots || !of_others) return NULL;
    return arena_format(arena, "%s%s%s %s, slowly; the first is '%s': %s", products > 0 ? of_dots : "",
                        products > 0 && convolutions > 0 ? " and " : "", convolutions > 0 ? of_others : "",
                        products + convolutions == 1 ? "runs as a generated kernel"
                                                     : "run as generated kernels",
                        refusals->first, refusals->reason.text);
}

/* Counts a refusal; the reason is that of the first. Ranks may do so at the same time. */
static void count_refusal(CudaKernelDevice *device, const KernelCall *call, const AmError *reason) {
    CudaRefusals *refusals = &device->refusals;
    if (!refusals->first) {
        const IrModule *module = call->program->module;
        int32_t origin = call->instruction->origin;
        const char *name = module && origin >= 0 && origin < module->instruction_count
                               ? module->instructions[origin].name
                               : NULL;
        refusals->first = name ? name : ir_opcode_name(call->instruction->opcode);
        refusals->reason = *reason;
    }
    if (ir_is_matrix_product(call->instruction->opcode)) refusals->products++;
    else refusals->convolutions++;
    refusals->is_stated = false;
}

/* Returns the line's number among the warnings, or -1. */
static int32_t find_line(const AmWarnings *warnings, const char *line) {
    for (int32_t k = 0; line && k < warnings->count; k++)
        if (strcmp(warnings->texts[k], line) == 0) return k;
    return -1;
}

void cuda_state_refusals(CudaKernelDevice *device) {
    CudaRefusals *refusals = &device->refusals;
    AmWarnings *warnings = device->warnings;
    if (!warnings || !warnings->arena || !refusals->first || refusals->is_stated) return;
    char *line = describe_refusals(refusals, warnings->arena);
    if (!line) return;
    int32_t earlier = find_line(warnings, refusals->line), other = find_line(warnings, line);
    if (earlier < 0) {
        am_warn(warnings, "%s", line);
    } else if (other < 0) {
        warnings->texts[earlier] = line;
    } else if (other != earlier) { /* another rank has as many */
        for (int32_t k = earlier + 1; k < warnings->count; k++) warnings->texts[k - 1] = warnings->texts[k];
        warnings->count--;
    }
    refusals->line = line;
    refusals->is_stated = true;
}

AmStatus cuda_prepare_refused(KernelCall *call, Arena *arena, const AmError *reason, AmError *error) {
    CudaKernelDevice *device = cuda_device_of(call->device);
    TRY(cuda_prepare_plain(call, arena, error));
    count_refusal(device, call, reason);
    cuda_state_refusals(device);
    return AM_OK;
}

AmStatus cuda_prepare_spare(CudaSpare **spare, KernelCall *call, Arena *arena, AmError *error) {
    CudaSpare *made = ARENA_ARRAY(arena, CudaSpare, 1);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    int64_t scratch_bytes = call->scratch_bytes;
    made->call = *call;
    TRY(cuda_prepare_plain(&made->call, arena, error));
    if (made->call.scratch_bytes > scratch_bytes) call->scratch_bytes = made->call.scratch_bytes;
    *spare = made;
    return AM_OK;
}

void cuda_run_spare(CudaSpare *spare, const KernelCall *call, const AmError *reason) {
    if (!spare->is_used) count_refusal(cuda_device_of(call->device), call, reason);
    spare->is_used = true;
    spare->call.scratch = call->scratch;
    spare->call.run(&spare->call);
}

AmStatus cuda_prepare_without_dnn(KernelCall *call, Arena *arena, const char *reason, AmError *error) {
    AmWarnings *warnings = cuda_device_of(call->device)->warnings;
    TRY(cuda_prepare_plain(call, arena, error));
    if (warnings) am_warn(warnings, "convolutions run as plain kernels, slowly: %s", reason);
    return AM_OK;
}

static void close_dnn(void *dnn) {
    cuda_dnn_close(dnn);
}

AmStatus cuda_open_dnn(CudaKernelDevice *device, AmError *error) {
    CudaDnn *dnn;
    if (device->dnn) return AM_OK;
    TRY(cuda_dnn_open(&dnn, error));
    TRY(cuda_keep(device, dnn, close_dnn, error));
    device->dnn = dnn;
    return AM_OK;
}
