/* The stand-in driver's start, devices, contexts and errors.
 *
 * A context is its device: only primary contexts are needed, one for each device.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/stand_in/cuda_parts.h"

pthread_mutex_t stand_in_lock;
pthread_cond_t stand_in_moved = PTHREAD_COND_INITIALIZER;

enum { MOST_DEVICES = 16 };
static Device devices[MOST_DEVICES];
static bool started;
static _Thread_local Device *current;
static char loading[16];

__attribute__((constructor)) static void make_lock(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&stand_in_lock, &attributes);
}

CUresult api_begin(const char *call, bool needs_device) {
    pthread_mutex_lock(&stand_in_lock);
    CUresult result = (CUresult)record_enter(call);
    if (result != CUDA_SUCCESS) return result;
    if (!needs_device) return CUDA_SUCCESS;
    if (!started) return CUDA_ERROR_NOT_INITIALIZED;
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    return current->sticky;
}

/* An error of work that ran during the call comes out of it, as of every later one. */
CUresult api_end(CUresult result) {
    if (result == CUDA_SUCCESS && current) result = current->sticky;
    pthread_mutex_unlock(&stand_in_lock);
    return result;
}

Device *device_current(void) {
    return current;
}

int device_count(void) {
    int64_t count = environment_number("STAND_IN_DEVICES", 1);
    return count < 0 ? 0 : count > MOST_DEVICES ? MOST_DEVICES : (int)count;
}

Device *device_at(int ordinal) {
    return &devices[ordinal];
}

CUresult device_started(void) {
    return started ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult CUDAAPI cuInit(unsigned flags) {
    API(cuInit);
    if (flags != 0) return api_end(CUDA_ERROR_INVALID_VALUE);
    if (device_count() == 0) return api_end(CUDA_ERROR_NO_DEVICE);
    for (int k = 0; k < MOST_DEVICES && !started; k++) {
        devices[k].ordinal = k;
        devices[k].memory_bytes = environment_number("STAND_IN_MEMORY", INT64_C(4) << 30);
    }
    const char *asked = getenv("CUDA_MODULE_LOADING");
    if (!started) snprintf(loading, sizeof loading, "%s", asked ? asked : "");
    started = true;
    return api_end(CUDA_SUCCESS);
}

const char *device_loading(void) {
    return loading;
}

EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version) {
    API(cuDriverGetVersion);
    *version = (int)environment_number("STAND_IN_VERSION", CUDA_VERSION);
    return api_end(CUDA_SUCCESS);
}

static const struct {
    CUresult code;
    const char *name, *words;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
};

static CUresult words_of(CUresult error, const char **text, bool name) {
    *text = NULL;
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].code == error) *text = name ? errors[k].name : errors[k].words;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) {
    return words_of(error, text, true);
}

EXPORT CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
    return words_of(error, text, false);
}

EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count) {
    API(cuDeviceGetCount);
    *count = device_count();
    return api_end(device_started());
}

EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    API(cuDeviceGet);
    if (!started) return api_end(CUDA_ERROR_NOT_INITIALIZED);
    if (ordinal < 0 || ordinal >= device_count()) return api_end(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device) {
    API(cuDeviceGetName);
    (void)device;
    snprintf(name, (size_t)length, "stand-in GPU");
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    API(cuDeviceTotalMem);
    *bytes = (size_t)devices[device].memory_bytes;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    API(cuDeviceGetAttribute);
    (void)device;
    int architecture = (int)environment_number("STAND_IN_ARCHITECTURE", 90);
    const struct {
        CUdevice_attribute attribute;
        int value;
    } known[] = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, architecture / 10},
                 {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, architecture % 10},
                 {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
                 {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                 {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
                 {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
                 {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
                 {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device}};
    *value = 0;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (known[k].attribute == attribute) *value = known[k].value;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    API(cuDevicePrimaryCtxRetain);
    if (!started) return api_end(CUDA_ERROR_NOT_INITIALIZED);
    if (device < 0 || device >= device_count()) return api_end(CUDA_ERROR_INVALID_DEVICE);
    if (!devices[device].null_stream) devices[device].null_stream = stream_make(&devices[device], false);
    *context = (CUcontext)(void *)&devices[device];
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
    API(cuDevicePrimaryCtxRelease);
    (void)device;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
    API(cuCtxSetCurrent);
    if (context &&
        ((Device *)(void *)context < devices || (Device *)(void *)context >= devices + MOST_DEVICES))
        return api_end(CUDA_ERROR_INVALID_CONTEXT);
    current = (Device *)(void *)context;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context) {
    API(cuCtxGetCurrent);
    *context = (CUcontext)(void *)current;
    return api_end(CUDA_SUCCESS);
}

/* All devices are one range of host memory, so that each can reach each. */
EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int *reaches, CUdevice device, CUdevice peer) {
    API(cuDeviceCanAccessPeer);
    if (device < 0 || device >= device_count() || peer < 0 || peer >= device_count())
        return api_end(CUDA_ERROR_INVALID_DEVICE);
    *reaches = device != peer && environment_number("STAND_IN_PEERS", 1) != 0;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext context, unsigned flags) {
    DEVICE_API(cuCtxEnablePeerAccess);
    static bool enabled[MOST_DEVICES][MOST_DEVICES];
    Device *peer = (Device *)(void *)context;
    if (flags != 0 || peer < devices || peer >= devices + MOST_DEVICES || peer == current)
        return api_end(CUDA_ERROR_INVALID_VALUE);
    bool *known = &enabled[current->ordinal][peer->ordinal], again = *known;
    *known = true;
    return api_end(again ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuCtxSynchronize(void) {
    DEVICE_API(cuCtxSynchronize);
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    device_drain(current, false);
    return api_end(CUDA_SUCCESS);
}
