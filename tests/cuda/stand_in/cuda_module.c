/* The stand-in driver's modules: device code compiled for the host, and launches.
 *
 * An image is the output of the stand-in NVRTC: a line that names the target, then the text. c++ compiles it
 * after tests/cuda/host.h, without contraction as for the GPU, once for each text: the library stays in a
 * folder of the build.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/host_compiler.h"
#include "tests/cuda/stand_in/cuda_parts.h"
#include "tests/cuda/stand_in/image.h"

enum { MOST_ARGUMENTS = 256, PATH_BYTES = 512 };

static const char level[] = "-O1";

/* The options of the host's compiler; STAND_IN_PERTURB=SEED makes functions round as another library's. */
static void describe_compilation(char *words, size_t bytes) {
    const char *seed = getenv("STAND_IN_PERTURB");
    int length = snprintf(words, bytes, "%s", level);
    if (seed)
        snprintf(words + length, bytes - (size_t)length, " -DHOST_PERTURB=%luu", strtoul(seed, NULL, 10));
}

struct CUmod_st {
    void *library;
    struct CUfunc_st *functions;
};

typedef void Launcher(void **addresses, const unsigned *grid, const unsigned *block);

struct CUfunc_st {
    char name[96];
    Launcher *run;
    int argument_count, sizes[MOST_ARGUMENTS]; /* of a pointer: negative */
    struct CUfunc_st *next;
};

/* Calls use(context, name) for every `__global__ void [__launch_bounds__(n)] name(`. */
static void each_kernel(const char *text, void (*use)(void *, const char *), void *context) {
    for (const char *at = text; (at = strstr(at, "__global__")) != NULL;) {
        char name[96] = "";
        for (at += strlen("__global__"); *at && *at != '{' && *at != ';'; at++) {
            if (!isalpha((unsigned char)*at) && *at != '_') continue;
            size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
            snprintf(name, sizeof name, "%.*s", (int)length, at);
            at += length;
            at += strspn(at, " \n");
            if (*at == '(' && strncmp(name, "__", 2) != 0) break;
            while (*at == '(') at += strcspn(at, ")") + 1;
            at--;
        }
        if (name[0]) use(context, name);
    }
}

static uint64_t hash_of(const char *text, uint64_t hash) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_of_file(const char *path, uint64_t hash) {
    char line[1024];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) hash = hash_of(line, hash);
    if (file) fclose(file);
    return hash;
}

static void write_launcher(void *file, const char *name) {
    fprintf(file, "DRIVER_LAUNCHER(%s)\n", name);
}

static void write_name(void *file, const char *name) {
    fprintf(file, "\"%s\", ", name);
}

static bool preprocess(const char *from, const char *to, const char *words) {
    char command[4 * PATH_BYTES];
    snprintf(command, sizeof command, "c++ -std=c++17 -E -P -I'%s' '%s' -o '%s' 2>'%s'", STAND_IN_SOURCE,
             from, to, words);
    return system(command) == 0;
}

/* The text, then a launcher for each kernel and a list of their names. Macros may define kernels, so they are
 * found in the preprocessed text. */
static bool write_source(const char *text, const char *source, const char *scratch, const char *words) {
    FILE *file = fopen(source, "w");
    if (!file) return false;
    fputs(text, file);
    fclose(file);
    if (!preprocess(source, scratch, words) || !(file = fopen(scratch, "r"))) return false;
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    char *preprocessed = calloc(1, bytes + 1);
    if (!preprocessed) abort();
    rewind(file);
    bytes = fread(preprocessed, 1, bytes, file);
    fclose(file);
    file = fopen(source, "w");
    if (file) {
        fprintf(file, "#include \"tests/cuda/host.h\"\n#line 1 \"automap.cu\"\n%s\n", text);
        each_kernel(preprocessed, write_launcher, file);
        fputs("extern \"C\" const char *const host_kernels[] = {", file);
        each_kernel(preprocessed, write_name, file);
        fputs("nullptr};\n", file);
        fclose(file);
    }
    free(preprocessed);
    return file;
}

/* Compiles to a name of this process and renames, so that test programs may do it at the same time. */
static bool compile(const char *text, const char *path, const char *headers, char *log, size_t log_bytes) {
    char source[PATH_BYTES + 32], library[PATH_BYTES + 32], words[PATH_BYTES + 32], options[256];
    describe_compilation(options, sizeof options);
    snprintf(source, sizeof source, "%s.%d.cpp", path, (int)getpid());
    snprintf(library, sizeof library, "%s.%d.so", path, (int)getpid());
    snprintf(words, sizeof words, "%s.%d.log", path, (int)getpid());
    bool done = write_source(text, source, library, words) &&
                host_compile(source, library, words, STAND_IN_SOURCE, options, headers) &&
                rename(library, path) == 0;
    FILE *file = NULL;
    if (!done && log && log_bytes > 0 && (file = fopen(words, "r"))) {
        log[0] = '\0';
        while (fgets(log, (int)log_bytes, file) && !strstr(log, "error:")) continue;
        fclose(file);
    }
    unlink(source);
    unlink(words);
    if (!done) unlink(library);
    return done;
}

static void add_function(CUmodule module, const char *name) {
    char symbol[128];
    int (*describe)(int *, int);
    struct CUfunc_st *function = calloc(1, sizeof *function);
    if (!function) abort();
    snprintf(function->name, sizeof function->name, "%s", name);
    snprintf(symbol, sizeof symbol, "run_%s", name);
    *(void **)&function->run = dlsym(module->library, symbol);
    snprintf(symbol, sizeof symbol, "describe_%s", name);
    *(void **)&describe = dlsym(module->library, symbol);
    function->argument_count = describe ? describe(function->sizes, MOST_ARGUMENTS) : MOST_ARGUMENTS + 1;
    function->next = module->functions;
    module->functions = function;
}

/* Returns whether machine code or PTX for `target` runs on this device. */
static bool target_fits(const char *target) {
    int architecture = (int)environment_number("STAND_IN_ARCHITECTURE", 90), wanted = 0;
    if (sscanf(target, "sm_%d", &wanted) == 1)
        return wanted / 10 == architecture / 10 && wanted <= architecture;
    return sscanf(target, "compute_%d", &wanted) == 1 && wanted <= architecture;
}

static CUresult load(CUmodule *module, const char *image, char *log, size_t log_bytes) {
    char path[PATH_BYTES], headers[PATH_BYTES], target[32] = "", options[256];
    *module = NULL;
    if (strncmp(image, STAND_IN_IMAGE, strlen(STAND_IN_IMAGE)) != 0) return CUDA_ERROR_INVALID_IMAGE;
    sscanf(image + strlen(STAND_IN_IMAGE), "%31s", target);
    if (!target_fits(target)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const char *text = strchr(image, '\n') + 1;
    describe_compilation(options, sizeof options);
    static const char *const files[] = {"host.h", "host_compiler.h", "host_races.h"};
    uint64_t hash = hash_of(host_compiler_options(), UINT64_C(0xcbf29ce484222325));
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        snprintf(path, sizeof path, "%s/tests/cuda/%s", STAND_IN_SOURCE, files[k]);
        hash = hash_of_file(path, hash);
    }
    hash = hash_of(options, hash);
    mkdir(STAND_IN_FOLDER, 0777);
    snprintf(headers, sizeof headers, "%s/%016llx", STAND_IN_FOLDER, (unsigned long long)hash);
    hash = hash_of(text, hash);
    snprintf(path, sizeof path, "%s/%016llx.so", STAND_IN_FOLDER, (unsigned long long)hash);
    if (access(path, R_OK) != 0 && !compile(text, path, headers, log, log_bytes))
        return CUDA_ERROR_INVALID_PTX;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        if (log && log_bytes > 0) snprintf(log, log_bytes, "%s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *module = calloc(1, sizeof **module);
    if (!*module) abort();
    (*module)->library = library;
    const char *const *names = dlsym(library, "host_kernels");
    while (names && *names) add_function(*module, *names++);
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                           CUjit_option *options, void **values) {
    DEVICE_API(cuModuleLoadDataEx);
    char *log = NULL;
    size_t log_bytes = 0;
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    for (unsigned k = 0; k < count; k++) {
        if (options[k] == CU_JIT_ERROR_LOG_BUFFER) log = values[k];
        if (options[k] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) log_bytes = (size_t)(uintptr_t)values[k];
    }
    return api_end(load(module, image, log, log_bytes));
}

/* The library stays open: queued launches and graphs may still hold its kernels. */
EXPORT CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    API(cuModuleGetLoadingMode);
    *mode = strcmp(device_loading(), "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return api_end(device_started());
}

EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module) {
    DEVICE_API(cuModuleUnload);
    if (!module) return api_end(CUDA_ERROR_INVALID_HANDLE);
    while (module->functions) {
        struct CUfunc_st *function = module->functions;
        module->functions = function->next;
        free(function);
    }
    free(module);
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    DEVICE_API(cuModuleGetFunction);
    for (struct CUfunc_st *one = module->functions; one; one = one->next)
        if (strcmp(one->name, name) == 0 && one->run) {
            *function = one;
            return api_end(CUDA_SUCCESS);
        }
    return api_end(CUDA_ERROR_NOT_FOUND);
}

EXPORT CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    DEVICE_API(cuFuncGetAttribute);
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    DEVICE_API(cuFuncSetAttribute);
    (void)function, (void)attribute, (void)value;
    return api_end(CUDA_SUCCESS);
}

typedef struct Launch {
    Launcher *run;
    char name[96];
    Device *device;
    unsigned grid[3], block[3];
    void *addresses[]; /* then the arguments themselves */
} Launch;

static bool run_launch(void *argument) {
    Launch *launch = argument;
    launch->run(launch->addresses, launch->grid, launch->block);
    record_run(launch->name);
    const char *overrun = memory_overrun();
    if (overrun && launch->device->sticky == CUDA_SUCCESS) {
        fprintf(stderr, "stand-in: kernel %s: %s\n", launch->name, overrun);
        launch->device->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return true;
}

/* Copies the arguments, as the driver does at the call; NULL if a pointer leads nowhere on the device. */
static Launch *make_launch(CUfunction function, void **arguments) {
    enum { SLOT = 16 };
    size_t count = (size_t)function->argument_count, bytes = 0, at = 0;
    for (size_t k = 0; k < count; k++) bytes += ((size_t)abs(function->sizes[k]) + SLOT - 1) / SLOT * SLOT;
    size_t head = (sizeof(Launch) + sizeof(void *) * count + SLOT - 1) / SLOT * SLOT;
    Launch *launch = calloc(1, head + bytes);
    if (!launch) abort();
    for (size_t k = 0; k < count; k++) {
        size_t size = (size_t)abs(function->sizes[k]);
        launch->addresses[k] = (char *)launch + head + at;
        memcpy(launch->addresses[k], arguments[k], size);
        at += (size + SLOT - 1) / SLOT * SLOT;
        if (function->sizes[k] > 0 || memory_is_reachable(*(void **)launch->addresses[k])) continue;
        fprintf(stderr, "stand-in: kernel %s: argument %zu is no device memory\n", function->name, k);
        free(launch);
        return NULL;
    }
    return launch;
}

EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z,
                                       unsigned shared_bytes, CUstream handle, void **arguments,
                                       void **extra) {
    DEVICE_API(cuLaunchKernel);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (!function || threads == 0 || threads > 1024 || block_z > 64 || grid_x == 0 || grid_y == 0 ||
        grid_z == 0 || grid_x > 0x7fffffff || grid_y > 65535 || grid_z > 65535)
        return api_end(CUDA_ERROR_INVALID_VALUE);
    if (shared_bytes > 0 || extra || function->argument_count > MOST_ARGUMENTS)
        return api_end(CUDA_ERROR_NOT_SUPPORTED);
    Launch *launch = make_launch(function, arguments);
    if (!launch) return api_end(device_current()->sticky = CUDA_ERROR_ILLEGAL_ADDRESS);
    launch->run = function->run;
    launch->device = device_current();
    memcpy(launch->name, function->name, sizeof launch->name);
    memcpy(launch->grid, (const unsigned[]){grid_x, grid_y, grid_z}, sizeof launch->grid);
    memcpy(launch->block, (const unsigned[]){block_x, block_y, block_z}, sizeof launch->block);
    stream->record.launches++;
    return api_end(stream_submit(stream, (Operation){.run = run_launch, .argument = launch}));
}
