/* NVRTC behind dlopen(), and the cache of what it compiled: see nvrtc.h.
 *
 * A file of the cache is the SHA-256 of the machine code as 64 hexadecimal
 * digits, a new line, and the machine code.
 */
#include "executor/cuda/nvrtc.h"

#include <dlfcn.h>
#include <nvrtc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"

/* Products and sums stay apart, as on the CPU. */
static const char *const options[] = {"--fmad=false", "--std=c++17"};
enum { OPTION_COUNT = sizeof options / sizeof *options, DIGEST = 64 };

#define NVRTC_FUNCTIONS(X)    \
    X(nvrtcVersion)           \
    X(nvrtcGetErrorString)    \
    X(nvrtcCreateProgram)     \
    X(nvrtcCompileProgram)    \
    X(nvrtcDestroyProgram)    \
    X(nvrtcGetProgramLogSize) \
    X(nvrtcGetProgramLog)     \
    X(nvrtcGetCUBINSize)      \
    X(nvrtcGetCUBIN)

static struct {
    char reason[256]; /* why it cannot be used, "" if it can */
    int major, minor;
#define MEMBER(name) __typeof__(name) *name;
    NVRTC_FUNCTIONS(MEMBER)
#undef MEMBER
} nvrtc;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

/* First where the loader looks, then where the toolkit was at build time. */
static void *open_library(void) {
    static const char *const names[] = {AUTOMAP_NVRTC_SONAME, AUTOMAP_NVRTC_LIBRARY};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        void *library = dlopen(names[k], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

static void open_nvrtc(void) {
    void *library = open_library();
    if (!library) {
        const char *why = dlerror();
        snprintf(nvrtc.reason, sizeof nvrtc.reason,
                 "cannot open %s of the CUDA toolkit, which compiles kernels: %s", AUTOMAP_NVRTC_SONAME,
                 why ? why : "no reason is given");
        return;
    }
#define FIND(name)                                 \
    *(void **)&nvrtc.name = dlsym(library, #name); \
    if (!nvrtc.name) snprintf(nvrtc.reason, sizeof nvrtc.reason, "%s lacks %s", AUTOMAP_NVRTC_SONAME, #name);
    NVRTC_FUNCTIONS(FIND)
#undef FIND
    if (!nvrtc.reason[0] && nvrtc.nvrtcVersion(&nvrtc.major, &nvrtc.minor) != NVRTC_SUCCESS)
        snprintf(nvrtc.reason, sizeof nvrtc.reason, "%s does not tell its version", AUTOMAP_NVRTC_SONAME);
}

AmStatus cuda_compiler_present(AmError *error) {
    pthread_once(&opened, open_nvrtc);
    return nvrtc.reason[0] ? am_fail(error, AM_ERROR_RUNTIME, "", "%s", nvrtc.reason) : AM_OK;
}

static void digest_of(char digest[DIGEST + 1], const char *data, int64_t bytes) {
    Sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, data, (size_t)bytes);
    sha256_end(&hash, digest);
}

/* Where this compilation is kept, or NULL: there is no home. Makes the folders. */
static const char *cache_path(Arena *arena, const char *unit, int32_t architecture) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = base && base[0] == '/';
    if (!given && (!home || !home[0])) return NULL;
    char *folder = given ? arena_format(arena, "%s/automap/kernels", base)
                         : arena_format(arena, "%s/.cache/automap/kernels", home);
    if (!folder) return NULL;
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, 0700); /* it may be there; what matters shows when a file is written */
        *slash = '/';
    }
    mkdir(folder, 0700);
    char digest[DIGEST + 1],
        *key = arena_format(arena, "nvrtc %d.%d sm_%d", nvrtc.major, nvrtc.minor, architecture);
    for (int32_t k = 0; k < OPTION_COUNT && key; k++) key = arena_format(arena, "%s %s", key, options[k]);
    if (key) key = arena_format(arena, "%s\n%s", key, unit);
    if (!key) return NULL;
    digest_of(digest, key, (int64_t)strlen(key));
    return arena_format(arena, "%s/%s.cubin", folder, digest);
}

static bool read_cache(CudaImage *image, Arena *arena, const char *path) {
    FileBytes file;
    char digest[DIGEST + 1];
    if (file_read(&file, path, NULL) != AM_OK) return false;
    bool valid = file.length > DIGEST + 1;
    if (valid) {
        digest_of(digest, file.data + DIGEST + 1, file.length - DIGEST - 1);
        valid = memcmp(digest, file.data, DIGEST) == 0;
    }
    if (valid) {
        image->bytes = file.length - DIGEST - 1;
        image->data = arena_copy_bytes(arena, file.data + DIGEST + 1, (size_t)image->bytes);
        image->log = "";
        image->cached = true;
    }
    file_release(&file);
    return valid && image->data;
}

static void write_cache(const CudaImage *image, Arena *arena, const char *path) {
    char digest[DIGEST + 1], *file = arena_alloc(arena, (size_t)image->bytes + DIGEST + 1);
    if (!file) return;
    digest_of(digest, image->data, image->bytes);
    memcpy(file, digest, DIGEST);
    file[DIGEST] = '\n';
    memcpy(file + DIGEST + 1, image->data, (size_t)image->bytes);
    file_write(path, file, (size_t)image->bytes + DIGEST + 1, NULL);
}

/* NVRTC's log; "" where there is none. */
static const char *log_of(nvrtcProgram program, Arena *arena) {
    size_t size = 0;
    if (nvrtc.nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS || size <= 1) return "";
    char *log = arena_alloc(arena, size + 1);
    return log && nvrtc.nvrtcGetProgramLog(program, log) == NVRTC_SUCCESS ? log : "";
}

static AmStatus compile(CudaImage *image, Arena *arena, nvrtcProgram program, int32_t architecture,
                        AmError *error) {
    const char *arguments[OPTION_COUNT + 1];
    char target[48];
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d", architecture);
    for (int32_t k = 0; k < OPTION_COUNT; k++) arguments[k] = options[k];
    arguments[OPTION_COUNT] = target;
    nvrtcResult result = nvrtc.nvrtcCompileProgram(program, OPTION_COUNT + 1, arguments);
    image->log = log_of(program, arena);
    if (result == NVRTC_ERROR_INVALID_OPTION)
        return am_fail(error, AM_ERROR_RUNTIME, "", "NVRTC %d.%d does not compile for sm_%d: %.300s",
                       nvrtc.major, nvrtc.minor, architecture, image->log);
    size_t bytes = 0;
    if (result == NVRTC_SUCCESS) result = nvrtc.nvrtcGetCUBINSize(program, &bytes);
    if (result != NVRTC_SUCCESS)
        return am_fail(error, AM_ERROR_INTERNAL, "", "a generated kernel does not compile: %s: %.300s",
                       nvrtc.nvrtcGetErrorString(result), image->log);
    char *data = arena_alloc(arena, bytes + 1);
    if (!data) return am_fail_memory(error, (int64_t)bytes);
    result = nvrtc.nvrtcGetCUBIN(program, data);
    image->data = data;
    image->bytes = (int64_t)bytes;
    if (result == NVRTC_SUCCESS && bytes > 0) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, "", "NVRTC gives no machine code: %s",
                   nvrtc.nvrtcGetErrorString(result));
}

AmStatus cuda_compile(CudaImage *image, Arena *arena, const char *unit, int32_t architecture,
                      AmError *error) {
    *image = (CudaImage){.log = ""};
    TRY(cuda_compiler_present(error));
    const char *path = cache_path(arena, unit, architecture);
    if (arena->failed) return am_fail_memory(error, (int64_t)strlen(unit));
    if (path && read_cache(image, arena, path)) return AM_OK;
    nvrtcProgram program;
    nvrtcResult result = nvrtc.nvrtcCreateProgram(&program, unit, "automap.cu", 0, NULL, NULL);
    if (result != NVRTC_SUCCESS)
        return am_fail(error, AM_ERROR_INTERNAL, "", "NVRTC: %s", nvrtc.nvrtcGetErrorString(result));
    AmStatus status = compile(image, arena, program, architecture, error);
    nvrtc.nvrtcDestroyProgram(&program);
    if (status == AM_OK && path) write_cache(image, arena, path);
    return status;
}
