/* Device code, compiled and loaded: see unit.h. */
#include "base/cuda/unit.h"

#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/cuda/nvrtc.h"

/* Where the image is PTX, the driver compiles it here and may have words to say. */
static AmStatus load(CudaUnit *unit, const CudaImage *image, AmError *error) {
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUresult result = cuda.cuModuleLoadDataEx(&unit->module, image->data, 2, options, values);
    if (result == CUDA_SUCCESS) return AM_OK;
    log[sizeof log - 1] = '\0';
    log[strcspn(log, "\n")] = '\0';
    return cuda_check(result, log[0] ? log : "loading compiled kernels", error);
}

AmStatus cuda_unit_load(CudaUnit *unit, const CudaDevice *device, const char *text, AmError *error) {
    Arena arena = {0};
    CudaImage image;
    AmStatus status;
    *unit = (CudaUnit){0};
    TRY_OR_FAIL(cuda_compile(&image, &arena, text, device->architecture, error));
    unit->cached = image.cached;
    TRY_OR_FAIL(load(unit, &image, error));
fail:
    arena_free(&arena);
    return status;
}

AmStatus cuda_unit_function(CUfunction *function, const CudaUnit *unit, const char *name, AmError *error) {
    CUresult result = cuda.cuModuleGetFunction(function, unit->module, name);
    if (result == CUDA_ERROR_NOT_FOUND)
        return am_fail(error, AM_ERROR_INTERNAL, "", "compiled kernels: none is named %s", name);
    return cuda_check(result, "finding a kernel", error);
}

void cuda_unit_unload(CudaUnit *unit) {
    if (unit->module) cuda.cuModuleUnload(unit->module);
    unit->module = NULL;
}
