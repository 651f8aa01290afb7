/* Compiles a unit of device code (CUDA C++ text) and loads it as a module with its kernels.
 *
 * Machine code from the cache may be of another driver, which refuses the image: cuda_unit_load() then
 * compiles the text again.
 */
#include "base/cuda/unit.h"

#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/cuda/nvrtc.h"

/* Loads an image. The driver compiles one of PTX here, and may report messages. */
static CUresult load(CudaUnit *unit, const CudaImage *image, char *log, size_t log_bytes) {
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)log_bytes};
    log[0] = '\0';
    CUresult result = cuda.cuModuleLoadDataEx(&unit->module, image->data, 2, options, values);
    log[log_bytes - 1] = '\0';
    log[strcspn(log, "\n")] = '\0';
    if (result != CUDA_SUCCESS) unit->module = NULL;
    return result;
}

static bool is_of_the_image(CUresult result) {
    return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
           result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_INVALID_SOURCE || result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

AmStatus cuda_unit_load(CudaUnit *unit, const CudaDevice *device, const char *text, AmError *error) {
    Arena arena = {0};
    CudaImage image;
    AmStatus status;
    char log[512];
    *unit = (CudaUnit){0};
    TRY_OR_FAIL(cuda_compile(&image, &arena, text, device->architecture, error));
    CUresult result = load(unit, &image, log, sizeof log);
    if (image.cached && is_of_the_image(result)) { /* of another driver, perhaps */
        TRY_OR_FAIL(cuda_compile_anew(&image, &arena, text, device->architecture, error));
        result = load(unit, &image, log, sizeof log);
    }
    unit->cached = image.cached;
    status = cuda_check(result, log[0] ? log : "loading compiled kernels", error);
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
