/* Opens libraries of a vendor at run time, by the first of their names that exists, and fills their tables
 * of functions. */
#include "base/cuda/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* After the loader's own places: the build's toolkit and the usual one; folders where container runtimes, WSL
 * and distributions put the driver; the driver that comes with a toolkit. */
static const char *const folders[] = {"",
                                      AUTOMAP_CUDA_LIBRARY_FOLDER "/",
                                      "/usr/local/cuda/lib64/",
                                      "/usr/local/nvidia/lib64/",
                                      "/usr/local/nvidia/lib/",
                                      "/usr/lib/wsl/lib/",
                                      "/usr/lib/x86_64-linux-gnu/",
                                      "/usr/lib64/",
                                      "/usr/local/cuda/compat/"};
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* Returns the first that opens; else NULL, and why the first name did not. */
static void *open_first(const char *const *names, char *why, size_t why_bytes) {
    char path[512];
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (const char *const *name = names; *name; name++) {
            snprintf(path, sizeof path, "%s%s", folders[f], *name);
            void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (handle) return handle;
            const char *reason = dlerror();
            if (!why[0]) snprintf(why, why_bytes, "%s", reason ? reason : "no reason is given");
        }
    return NULL;
}

static AmStatus open_and_fill(const CudaLibrary *library, AmError *error) {
    char why[256] = "";
    void *handle = open_first(library->names, why, sizeof why);
    if (!handle) return am_fail(error, AM_ERROR_RUNTIME, "", "cannot open %s: %s", library->title, why);
    for (int32_t k = 0; k < library->symbol_count; k++) {
        void *symbol = dlsym(handle, library->symbols[k].name);
        if (!symbol) {
            dlclose(handle);
            return am_fail(error, AM_ERROR_RUNTIME, "", "%s (%s) has no %s: another version is needed",
                           library->title, library->names[0], library->symbols[k].name);
        }
        memcpy(library->symbols[k].place, &symbol, sizeof symbol);
    }
    return AM_OK;
}

AmStatus cuda_library_open(CudaLibrary *library, AmError *error) {
    pthread_mutex_lock(&opening);
    if (!library->tried) library->status = open_and_fill(library, &library->failure);
    library->tried = true;
    pthread_mutex_unlock(&opening);
    if (library->status == AM_OK) return AM_OK;
    return am_fail(error, library->status, "", "%s", library->failure.text);
}
