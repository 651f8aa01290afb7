/* The CUDA driver, opened at run time.
 *
 * cuda_driver_open() loads libcuda.so.1 once in a process, fills the table `cuda`, and checks that the
 * driver is new enough. Devices are opened with their primary context. cuda_check() turns a CUresult into an
 * error with the driver's own words, and the memory functions name the bytes that were requested.
 */
#include "base/cuda/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

CudaFunctions cuda;

#define SYMBOL(function) CUDA_SYMBOL_IN(cuda, function)
static const CudaSymbol symbols[] = {CUDA_FUNCTIONS(SYMBOL)};
static const char *const names[] = {"libcuda.so.1", NULL};
static CudaLibrary library = {.title = "the NVIDIA driver",
                              .names = names,
                              .symbols = symbols,
                              .symbol_count = sizeof symbols / sizeof *symbols};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static AmStatus opened;
static AmError failure;

AmStatus cuda_check(CUresult result, const char *what, AmError *error) {
    const char *name = NULL, *words = NULL;
    if (result == CUDA_SUCCESS) return AM_OK;
    cuda.cuGetErrorName(result, &name);
    cuda.cuGetErrorString(result, &words);
    return am_fail(error, AM_ERROR_RUNTIME, "", "CUDA: %s: %s (%s)", what,
                   words ? words : "an error unknown to the driver", name ? name : "unnamed");
}

/* The version alone: an older driver lacks functions of the whole table. */
static CUresult (*get_version)(int *version);
static const CudaSymbol version_symbols[] = {{"cuDriverGetVersion", (void *)&get_version}};
static CudaLibrary version_library = {
    .title = "the NVIDIA driver", .names = names, .symbols = version_symbols, .symbol_count = 1};

/* Machine code and renamed functions are bound to the major version alone. */
static AmStatus check_version(AmError *error) {
    TRY(cuda_library_open(&version_library, error));
    int32_t version = cuda_driver_version(), needed = CUDA_VERSION / 1000;
    if (version / 1000 >= needed) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "the NVIDIA driver is too old: it serves CUDA %d.%d, and this build needs CUDA %d.0: "
                   "install a newer driver, or build automap with CUDA %d",
                   version / 1000, version % 1000 / 10, needed, version / 1000);
}

static AmStatus fail_without_device(AmError *error) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible
               ? am_fail(error, AM_ERROR_RUNTIME, "",
                         "there is no GPU: the NVIDIA driver finds no device (CUDA_VISIBLE_DEVICES is '%s')",
                         visible)
               : am_fail(error, AM_ERROR_RUNTIME, "", "there is no GPU: the NVIDIA driver finds no device");
}

static AmStatus open_driver(AmError *error) {
    TRY(check_version(error));
    TRY(cuda_library_open(&library, error));
    /* If ranks of NCCL may share a card, the driver loads modules at once, by a variable that cuInit() reads.
     * A collective of one rank occupies the card and waits for another rank, and the driver may wait for the
     * card when it loads a kernel of that rank at its first launch. NCCL shares a card only with its own
     * variable set, and comm_nccl.c refuses lazy loading there. Local collectives wait only for events of
     * work that is already issued and ends by itself. */
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (shared && strcmp(shared, "1") == 0) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    CUresult result = cuda.cuInit(0);
    int count = 0;
    if (result == CUDA_SUCCESS) result = cuda.cuDeviceGetCount(&count);
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && count == 0))
        return fail_without_device(error);
    return cuda_check(result, "starting the NVIDIA driver", error);
}

static void open_once(void) {
    opened = open_driver(&failure);
}

AmStatus cuda_driver_open(AmError *error) {
    pthread_once(&once, open_once);
    return opened == AM_OK ? AM_OK : am_fail(error, opened, "", "%s", failure.text);
}

int32_t cuda_driver_version(void) {
    int version = 0;
    if (cuda_library_open(&version_library, NULL) != AM_OK) return 0;
    return get_version(&version) == CUDA_SUCCESS ? version : 0;
}

int32_t cuda_device_count(void) {
    int count = 0;
    if (cuda_driver_open(NULL) != AM_OK) return 0;
    return cuda.cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

static AmStatus describe(CudaDevice *device, AmError *error) {
    static const char what[] = "asking for the device's properties";
    int major = 0, minor = 0, multiprocessors = 0;
    size_t bytes = 0;
    TRY(cuda_check(cuda.cuDeviceGetName(device->name, (int)sizeof device->name, device->device), what,
                   error));
    TRY(cuda_check(cuda.cuDeviceTotalMem(&bytes, device->device), what, error));
    const struct {
        int *value;
        CUdevice_attribute attribute;
    } queries[] = {{&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
                   {&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
                   {&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT}};
    for (size_t k = 0; k < sizeof queries / sizeof *queries; k++)
        TRY(cuda_check(cuda.cuDeviceGetAttribute(queries[k].value, queries[k].attribute, device->device),
                       what, error));
    device->architecture = 10 * major + minor;
    device->multiprocessors = multiprocessors;
    device->memory_bytes = (int64_t)bytes;
    return AM_OK;
}

AmStatus cuda_device_open(CudaDevice *device, int32_t ordinal, AmError *error) {
    *device = (CudaDevice){.ordinal = ordinal};
    TRY(cuda_driver_open(error));
    int32_t count = cuda_device_count();
    if (ordinal < 0 || ordinal >= count)
        return am_fail(error, AM_ERROR_RUNTIME, "", "there is no GPU %d: this machine has %d", ordinal,
                       count);
    TRY(cuda_check(cuda.cuDeviceGet(&device->device, ordinal), "opening the device", error));
    TRY(describe(device, error));
    TRY(cuda_check(cuda.cuDevicePrimaryCtxRetain(&device->context, device->device),
                   "making the device's context", error));
    AmStatus status = cuda_device_use(device, error);
    if (status != AM_OK) cuda_device_close(device);
    return status;
}

void cuda_device_close(CudaDevice *device) {
    if (device->context) cuda.cuDevicePrimaryCtxRelease(device->device);
    device->context = NULL;
}

AmStatus cuda_device_use(const CudaDevice *device, AmError *error) {
    return cuda_check(cuda.cuCtxSetCurrent(device->context), "making the device current", error);
}

AmStatus cuda_memory_alloc(CUdeviceptr *memory, const CudaDevice *device, int64_t bytes, AmError *error) {
    *memory = 0;
    CUresult result = cuda.cuMemAlloc(memory, bytes > 0 ? (size_t)bytes : 1);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return cuda_check(result, "allocating device memory", error);
    size_t unused = 0, total = 0;
    Text text = {0};
    cuda.cuMemGetInfo(&unused, &total);
    text_append_bytes_size(&text, (double)bytes);
    text_append_string(&text, " are wanted, ");
    text_append_bytes_size(&text, (double)unused);
    text_append_string(&text, " of ");
    text_append_bytes_size(&text, (double)total);
    am_fail(error, AM_ERROR_RUNTIME, "", "out of memory on GPU %d (%s): %s are free", device->ordinal,
            device->name, text.failed ? "more memory is requested than" : text.data);
    text_free(&text);
    return AM_ERROR_RUNTIME;
}

void cuda_memory_free(CUdeviceptr memory) {
    if (memory) cuda.cuMemFree(memory);
}
