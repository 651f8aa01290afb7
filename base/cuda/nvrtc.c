/* NVRTC, loaded by dlopen(), and the cache of its compilations.
 *
 * A file of the cache is the SHA-256 of the machine code as 64 hexadecimal
 * digits, a new line, and the machine code.
 */
#include "base/cuda/nvrtc.h"

#include <nvrtc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/library.h"
#include "base/files/file.h"
#include "base/files/private_folder.h"
#include "base/hash.h"

/* Products and sums stay apart, as on the CPU. */
static const char *const options[] = {"--fmad=false", "--std=c++17"};
enum { OPTION_COUNT = sizeof options / sizeof *options, DIGEST = 64 };

#define NVRTC_FUNCTIONS(X)       \
    X(nvrtcVersion)              \
    X(nvrtcGetErrorString)       \
    X(nvrtcGetNumSupportedArchs) \
    X(nvrtcGetSupportedArchs)    \
    X(nvrtcCreateProgram)        \
    X(nvrtcCompileProgram)       \
    X(nvrtcDestroyProgram)       \
    X(nvrtcGetProgramLogSize)    \
    X(nvrtcGetProgramLog)        \
    X(nvrtcGetPTXSize)           \
    X(nvrtcGetPTX)               \
    X(nvrtcGetCUBINSize)         \
    X(nvrtcGetCUBIN)

static struct { NVRTC_FUNCTIONS(CUDA_MEMBER) } nvrtc;

#define SYMBOL(function) CUDA_SYMBOL_IN(nvrtc, function)
static const CudaSymbol symbols[] = {NVRTC_FUNCTIONS(SYMBOL)};
static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
static CudaLibrary library = {.title = "NVRTC, the compiler of kernels in the CUDA toolkit",
                              .names = names,
                              .symbols = symbols,
                              .symbol_count = sizeof symbols / sizeof *symbols};

/* The output of NVRTC: machine code of this architecture, or PTX. */
typedef struct Target {
    int32_t architecture;
    bool ptx;
    int major, minor; /* NVRTC's version */
    char option[48];
} Target;

AmStatus cuda_compiler_present(AmError *error) {
    return cuda_library_open(&library, error);
}

int32_t cuda_compiler_version(void) {
    int major = 0, minor = 0;
    if (cuda_compiler_present(NULL) != AM_OK || nvrtc.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS) return 0;
    return 1000 * major + 10 * minor;
}

/* Returns the newest architecture that NVRTC knows and that is not above the card's; 0: none. */
static int32_t newest_known(int32_t architecture) {
    enum { MOST = 128 };
    int known[MOST], count = 0, newest = 0;
    if (nvrtc.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count > MOST) return 0;
    if (nvrtc.nvrtcGetSupportedArchs(known) != NVRTC_SUCCESS) return 0;
    for (int k = 0; k < count; k++)
        if (known[k] <= architecture && known[k] > newest) newest = known[k];
    return newest;
}

static AmStatus choose_target(Target *target, int32_t architecture, AmError *error) {
    if (nvrtc.nvrtcVersion(&target->major, &target->minor) != NVRTC_SUCCESS)
        return am_fail(error, AM_ERROR_RUNTIME, "", "%s does not report its version", library.title);
    target->architecture = newest_known(architecture);
    target->ptx = target->architecture < architecture;
    if (target->architecture == 0)
        return am_fail(error, AM_ERROR_RUNTIME, "",
                       "NVRTC %d.%d does not compile for sm_%d: the GPU is too old", target->major,
                       target->minor, architecture);
    snprintf(target->option, sizeof target->option, "--gpu-architecture=%s_%d",
             target->ptx ? "compute" : "sm", target->architecture);
    return AM_OK;
}

static void digest_of(char digest[DIGEST + 1], const char *data, int64_t bytes) {
    Sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, data, (size_t)bytes);
    sha256_end(&hash, digest);
}

/* Returns the file of this compilation, or NULL without a home, or if its folder is not private. */
static const char *cache_path(Arena *arena, const char *unit, const Target *target) {
    const char *given = getenv("XDG_CACHE_HOME");
    char base[3072];
    if (!private_folder_cache(base, sizeof base)) return NULL;
    char *folder = arena_format(arena, "%s/automap/kernels", base);
    if (!folder) return NULL;
    static atomic_flag was_refused = ATOMIC_FLAG_INIT;
    const char *reason = private_folder_make(folder);
    if (reason && strcmp(given ? given : "", "/dev/null") != 0 && !atomic_flag_test_and_set(&was_refused))
        fprintf(stderr, "automap: warning: %s: %s; kernels are not cached\n", folder, reason);
    if (reason) return NULL;
    char digest[DIGEST + 1],
        *key = arena_format(arena, "nvrtc %d.%d %s", target->major, target->minor, target->option);
    for (int32_t k = 0; k < OPTION_COUNT && key; k++) key = arena_format(arena, "%s %s", key, options[k]);
    if (key) key = arena_format(arena, "%s\n%s", key, unit);
    if (!key) return NULL;
    digest_of(digest, key, (int64_t)strlen(key));
    return arena_format(arena, "%s/%s.%s", folder, digest, target->ptx ? "ptx" : "cubin");
}

static bool read_cache(CudaImage *image, Arena *arena, const char *path) {
    FileBytes file;
    char digest[DIGEST + 1];
    if (file_read_regular(&file, path, NULL) != AM_OK) return false;
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

/* Returns NVRTC's log; "" without one. */
static const char *log_of(nvrtcProgram program, Arena *arena) {
    size_t size = 0;
    if (nvrtc.nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS || size <= 1) return "";
    char *log = arena_alloc(arena, size + 1);
    return log && nvrtc.nvrtcGetProgramLog(program, log) == NVRTC_SUCCESS ? log : "";
}

/* Returns the status of a failure. A text that does not compile is an error of this program. */
static AmStatus status_of(nvrtcResult result) {
    return result == NVRTC_ERROR_COMPILATION ? AM_ERROR_INTERNAL : AM_ERROR_RUNTIME;
}

/* Returns the name of the kernel that contains line `number`, from 1, of the unit. *length: 0 if there is
 * none. */
static const char *kernel_at_line(const char *unit, int64_t number, int32_t *length) {
    static const char global[] = "__global__", bounds[] = "__launch_bounds__(";
    const char *kernel = NULL, *end = unit;
    *length = 0;
    for (; number > 0 && *end; number--) {
        end += strcspn(end, "\n");
        end += *end == '\n';
    }
    for (const char *at = unit; (at = strstr(at, global)) && at < end; at += sizeof global - 1) kernel = at;
    if (!kernel) return "";
    kernel += sizeof global - 1;
    kernel += strspn(kernel, " \n");
    if (strncmp(kernel, "void ", 5) == 0) kernel += 5;
    if (strncmp(kernel, bounds, sizeof bounds - 1) == 0) kernel += strcspn(kernel, ")") + 1;
    kernel += strspn(kernel, " \n");
    *length = (int32_t)strcspn(kernel, "( \n");
    return kernel;
}

/* Fails with one line: "kernel reduce_1f... does not compile: ...: automap.cu(12): error: ...". An error that
 * is of no kernel, such as a missing part of NVRTC, has no name, and may have no log. */
static AmStatus fail_compilation(const char *unit, const char *log, nvrtcResult result, AmError *error) {
    /* The line of the log with the first error, else its first line. */
    const char *at = strstr(log, ": error");
    while (at && at > log && at[-1] != '\n') at--;
    const char *line = at ? at : log, *place = strchr(line, '('), *reason = nvrtc.nvrtcGetErrorString(result);
    int32_t length, line_length = (int32_t)strcspn(line, "\n");
    const char *kernel = kernel_at_line(unit, place ? strtoll(place + 1, NULL, 10) : 0, &length);
    const char *separator = line_length > 0 ? ": " : "";
    if (length == 0)
        return am_fail(error, status_of(result), "", "NVRTC compiles no kernels: %s%s%.*s", reason, separator,
                       line_length, line);
    return am_fail(error, status_of(result), "", "kernel %.*s does not compile: %s%s%.*s", length, kernel,
                   reason, separator, line_length, line);
}

static AmStatus compile(CudaImage *image, Arena *arena, const char *unit, nvrtcProgram program,
                        const Target *target, AmError *error) {
    const char *arguments[OPTION_COUNT + 1];
    for (int32_t k = 0; k < OPTION_COUNT; k++) arguments[k] = options[k];
    arguments[OPTION_COUNT] = target->option;
    nvrtcResult result = nvrtc.nvrtcCompileProgram(program, OPTION_COUNT + 1, arguments);
    image->log = log_of(program, arena);
    size_t bytes = 0;
    if (result == NVRTC_SUCCESS)
        result = (target->ptx ? nvrtc.nvrtcGetPTXSize : nvrtc.nvrtcGetCUBINSize)(program, &bytes);
    if (result != NVRTC_SUCCESS) return fail_compilation(unit, image->log, result, error);
    char *data = arena_alloc(arena, bytes + 1);
    if (!data) return am_fail_memory(error, (int64_t)bytes);
    result = (target->ptx ? nvrtc.nvrtcGetPTX : nvrtc.nvrtcGetCUBIN)(program, data);
    image->data = data;
    image->bytes = (int64_t)bytes;
    if (result == NVRTC_SUCCESS && bytes > 0) return AM_OK;
    return am_fail(error, status_of(result), "", "NVRTC gives no machine code: %s",
                   nvrtc.nvrtcGetErrorString(result));
}

static AmStatus compile_unit(CudaImage *image, Arena *arena, const char *unit, int32_t architecture,
                             bool reads_cache, AmError *error) {
    Target target = {0};
    *image = (CudaImage){.log = ""};
    TRY(cuda_compiler_present(error));
    TRY(choose_target(&target, architecture, error));
    const char *path = cache_path(arena, unit, &target);
    if (arena->failed) return am_fail_memory(error, (int64_t)strlen(unit));
    if (path && reads_cache && read_cache(image, arena, path)) return AM_OK;
    nvrtcProgram program;
    nvrtcResult result = nvrtc.nvrtcCreateProgram(&program, unit, "automap.cu", 0, NULL, NULL);
    if (result != NVRTC_SUCCESS)
        return am_fail(error, status_of(result), "", "NVRTC: %s", nvrtc.nvrtcGetErrorString(result));
    AmStatus status = compile(image, arena, unit, program, &target, error);
    nvrtc.nvrtcDestroyProgram(&program);
    if (status == AM_OK && path) write_cache(image, arena, path);
    return status;
}

AmStatus cuda_compile(CudaImage *image, Arena *arena, const char *unit, int32_t architecture,
                      AmError *error) {
    return compile_unit(image, arena, unit, architecture, true, error);
}

AmStatus cuda_compile_anew(CudaImage *image, Arena *arena, const char *unit, int32_t architecture,
                           AmError *error) {
    return compile_unit(image, arena, unit, architecture, false, error);
}
