/* Generated kernels, launched: from a call to the launches of its source.
 *
 * A call's kernels are written as text when it is prepared (source.h) and put on
 * the device's list. finish() compiles the texts of the whole list as a few units
 * side by side, looks up each kernel once and uploads the constants, all in one
 * piece of memory. As the addresses of a call are fixed by then, the argument list of a
 * launch is made when it is prepared, and running it is one call to the driver.
 */
#include <string.h>

#include "base/system/parallel.h"
#include "executor/cuda/codegen/attention/source_region.h"
#include "executor/cuda/cuda.h"
#include "executor/cuda/unit_cache.h"

typedef struct CudaGenerated CudaGenerated;
struct CudaGenerated {
    CudaSource source;
    CUfunction *functions; /* [launch_count] */
    void **arguments;      /* pointers to the arguments of every launch; last, the number's place */
    int32_t number_at;     /* of arguments */
    CUdeviceptr upload;
    CudaGenerated *next;
};

static void run_generated(const KernelCall *call) {
    const CudaGenerated *kernel = call->compiled;
    CudaKernelDevice *device = cuda_device_of(call->device);
    for (int32_t k = 0; k < kernel->source.launch_count; k++) {
        CudaLaunch *launch = &kernel->source.launches[k];
        if (launch->copies && call->operands[0] == call->results[0]) continue;
        kernel->arguments[kernel->number_at] = &launch->number;
        cuda_note(device,
                  cuda.cuLaunchKernel(kernel->functions[k], (unsigned)launch->blocks, 1, 1,
                                      (unsigned)launch->threads, 1, 1, 0, device->compute, kernel->arguments,
                                      NULL),
                  launch->name);
    }
}

/* Puts the kernels of `call` on the device's list. `slots` [source->parameters] have the addresses; scratch
 * memory, uploaded data and number follow, as source.h defines. */
static AmStatus add_kernel(KernelCall *call, Arena *arena, const CudaSource *source, void **const *slots,
                           AmError *error) {
    CudaKernelDevice *device = cuda_device_of(call->device);
    CudaGenerated *kernel = ARENA_ARRAY(arena, CudaGenerated, 1);
    int32_t arguments = source->parameters + 3, n = 0;
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    kernel->source = *source;
    kernel->functions = ARENA_ARRAY(arena, CUfunction, kernel->source.launch_count + 1);
    kernel->arguments = ARENA_ARRAY(arena, void *, arguments);
    if (arena->failed) return am_fail_memory(error, arguments * 8);
    for (; n < source->parameters; n++) kernel->arguments[n] = slots[n];
    if (source->scratch_bytes > 0) kernel->arguments[n++] = &call->scratch;
    if (source->upload_bytes > 0) kernel->arguments[n++] = &kernel->upload;
    kernel->number_at = n;
    call->scratch_bytes = source->scratch_bytes;
    call->compiled = kernel;
    call->run = run_generated;
    kernel->next = device->generated;
    device->generated = kernel;
    return AM_OK;
}

AmStatus cuda_prepare_source(KernelCall *call, Arena *arena, const CudaSource *source, AmError *error) {
    void ***slots = ARENA_ARRAY(arena, void **, call->operand_count + call->result_count + 1);
    if (!slots) return am_fail_memory(error, call->operand_count * 8);
    for (int32_t k = 0; k < call->operand_count; k++) slots[k] = &call->operands[k];
    for (int32_t k = 0; k < call->result_count; k++) slots[call->operand_count + k] = &call->results[k];
    return add_kernel(call, arena, source, slots, error);
}

AmStatus cuda_prepare_generated(KernelCall *call, Arena *arena, AmError *error) {
    CudaSource source;
    TRY(cuda_source_make(&source, arena, call, error));
    return cuda_prepare_source(call, arena, &source, error);
}

/* Returns whether cuDNN may have the attention: some operand is bf16 or f16. */
static bool has_narrow_operand(const KernelCall *call) {
    for (int32_t k = 0; k < call->operand_count; k++)
        if (dtype_is_16bit_float(call->operand_shapes[k]->type)) return true;
    return false;
}

AmStatus cuda_prepare_region(KernelCall *call, Arena *arena, AmError *error) {
    AmWarnings *warnings = cuda_device_of(call->device)->warnings;
    AmError reason = {0};
    CudaSource source;
    if (has_narrow_operand(call)) {
        if (cuda_prepare_attention(call, arena, &reason) == AM_OK) return AM_OK;
        if (warnings)
            am_warn(warnings, "fused attention runs as generated kernels, not by cuDNN: %s", reason.text);
        reason = (AmError){0};
    }
    AmStatus status = cuda_source_region(&source, arena, call, &reason);
    if (status == AM_OK) return cuda_prepare_source(call, arena, &source, error);
    if (status == AM_ERROR_INPUT && warnings)
        am_warn(warnings, "fused attention runs operator by operator, with more memory than planned: %s",
                reason.text);
    return am_fail(error, status, "", "%s", reason.text);
}

static void run_with_last(const KernelCall *call) {
    (void)call;
}

AmStatus cuda_join_rows(KernelCall *const *calls, Arena *arena, AmError *error) {
    int32_t count = calls[0]->rows->count;
    CudaSource source;
    void ***slots;
    for (int32_t k = 0; k < count; k++)
        if (calls[k]->run != run_generated)
            return kernel_call_refuse(calls[k], "its kernel is a library's", error);
    TRY(cuda_source_rows(&source, &slots, arena, calls, error));
    for (int32_t k = 0; k < count; k++) {
        /* Remove the kernels of the call from the device's list. */
        CudaGenerated **link = &cuda_device_of(calls[k]->device)->generated;
        while (*link && *link != calls[k]->compiled) link = &(*link)->next;
        if (*link) *link = (*link)->next;
        calls[k]->scratch_bytes = 0;
        calls[k]->run = run_with_last;
    }
    return add_kernel(calls[count - 1], arena, &source, slots, error);
}

static void release_unit(void *unit) {
    unit_cache_return(unit);
}

static void release_constants(void *memory) {
    cuda_memory_free((CUdeviceptr)(uintptr_t)memory);
}

/* Uploads the data of all calls in one allocation and one copy. */
static AmStatus upload(CudaKernelDevice *device, Arena *arena, AmError *error) {
    static const char what[] = "uploading constants";
    CUdeviceptr memory;
    int64_t bytes = 0, at = 0;
    for (CudaGenerated *kernel = device->generated; kernel; kernel = kernel->next)
        bytes += kernel_align(kernel->source.upload_bytes);
    if (bytes == 0) return AM_OK;
    char *host = arena_alloc(arena, (size_t)bytes);
    if (!host) return am_fail_memory(error, bytes);
    TRY(cuda_memory_alloc(&memory, &device->device, bytes, error));
    TRY(cuda_keep(device, (void *)(uintptr_t)memory, release_constants, error));
    for (CudaGenerated *kernel = device->generated; kernel; kernel = kernel->next) {
        if (kernel->source.upload_bytes == 0) continue;
        memcpy(host + at, kernel->source.upload, (size_t)kernel->source.upload_bytes);
        kernel->upload = memory + (CUdeviceptr)at;
        at += kernel_align(kernel->source.upload_bytes);
    }
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(memory, host, (size_t)bytes, device->compute), what, error));
    return cuda_check(cuda.cuStreamSynchronize(device->compute), what, error);
}

/* The units of a list of kernels, compiled and loaded. */
typedef struct Units {
    const CudaDevice *device;
    int32_t count;
    const char **texts; /* NULL: the unit is empty */
    SharedUnit **loaded;
    AmError *failures; /* code AM_OK: none */
} Units;

static AmStatus find_functions(CudaGenerated *kernel, const Units *units, AmError *error) {
    for (int32_t k = 0; k < kernel->source.launch_count; k++) {
        const char *name = kernel->source.launches[k].name;
        SharedUnit *unit = units->loaded[cuda_source_unit_of(name, units->count)];
        TRY(cuda_unit_function(&kernel->functions[k], unit_cache_unit(unit), name, error));
    }
    return AM_OK;
}

/* Writes the units of all kernels on the list, the oldest first. */
static AmStatus write_units(Units *units, Arena *arena, const CudaGenerated *list, AmError *error) {
    int32_t count = 0, at = 0;
    for (const CudaGenerated *kernel = list; kernel; kernel = kernel->next) count++;
    CudaSource *sources = ARENA_ARRAY(arena, CudaSource, count + 1);
    if (!sources) return am_fail_memory(error, (int64_t)sizeof *sources * count);
    for (const CudaGenerated *kernel = list; kernel; kernel = kernel->next)
        sources[count - ++at] = kernel->source;
    TRY(cuda_source_units(&units->texts, &units->count, arena, sources, count, error));
    units->loaded = ARENA_ARRAY(arena, SharedUnit *, units->count);
    units->failures = ARENA_ARRAY(arena, AmError, units->count);
    return arena->failed ? am_fail_memory(error, (int64_t)sizeof(AmError) * units->count) : AM_OK;
}

/* Compiles and loads unit k; called by any thread. */
static void load_unit(void *user, int32_t k) {
    Units *units = user;
    if (!units->texts[k] || cuda_device_use(units->device, &units->failures[k]) != AM_OK) return;
    unit_cache_take(&units->loaded[k], units->device, units->texts[k], &units->failures[k]);
}

/* Compiles and loads the units concurrently; the device keeps them. Reports the first failure in their
 * order. */
static AmStatus load_units(Units *units, CudaKernelDevice *device, AmError *error) {
    AmStatus status = AM_OK;
    parallel_for(units->count, 0, load_unit, units);
    for (int32_t k = 0; k < units->count; k++) {
        const AmError *failure = &units->failures[k];
        if (failure->code != AM_OK && status == AM_OK)
            status = am_fail(error, failure->code, failure->source, "%s", failure->text);
        if (!units->loaded[k]) continue;
        AmStatus kept = cuda_keep(device, units->loaded[k], release_unit, status == AM_OK ? error : NULL);
        if (status == AM_OK) status = kept;
    }
    return status;
}

AmStatus cuda_finish_generated(CudaKernelDevice *device, AmError *error) {
    Arena arena = {0};
    Units units = {.device = &device->device};
    AmStatus status;
    TRY_OR_FAIL(write_units(&units, &arena, device->generated, error));
    TRY_OR_FAIL(load_units(&units, device, error));
    for (CudaGenerated *kernel = device->generated; kernel; kernel = kernel->next)
        TRY_OR_FAIL(find_functions(kernel, &units, error));
    TRY_OR_FAIL(upload(device, &arena, error));
    device->generated = NULL;
fail:
    arena_free(&arena);
    return status;
}
