/* Versions of the libraries found at run time, for `automap --version`.
 *
 * Each library has its own format: the driver and NVRTC 1000 major + 10 minor, the others 10000
 * major + 100 minor + patch.
 */
#include "executor/cuda/versions.h"

#include <stdint.h>

#include "base/cuda/blas.h"
#include "base/cuda/dnn.h"
#include "base/cuda/driver.h"
#include "base/cuda/nvrtc.h"

/* Its own table of one function: nccl.h belongs to the collectives. */
static int32_t nccl_version(void) {
    static int (*get_version)(int *version);
    static const CudaSymbol symbols[] = {{"ncclGetVersion", (void *)&get_version}};
    static const char *const names[] = {"libnccl.so.2", NULL};
    static CudaLibrary library = {.title = "NCCL", .names = names, .symbols = symbols, .symbol_count = 1};
    int version = 0;
    if (cuda_library_open(&library, NULL) != AM_OK || get_version(&version) != 0) return 0;
    return version;
}

void cuda_versions(Text *text) {
    static const struct {
        const char *name;
        int32_t (*version)(void);
        int32_t major, minor, patch; /* the factors; 0: not reported */
    } parts[] = {{"driver", cuda_driver_version, 1000, 10, 0},
                 {"nvrtc", cuda_compiler_version, 1000, 10, 0},
                 {"cublaslt", cuda_blas_version, 10000, 100, 1},
                 {"cudnn", cuda_dnn_version, 10000, 100, 1},
                 {"nccl", nccl_version, 10000, 100, 1}};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        int32_t version = parts[k].version(), major = parts[k].major, minor = parts[k].minor;
        text_append(text, "%s%s ", k ? ", " : "", parts[k].name);
        if (version == 0) text_append_string(text, "not found");
        else text_append(text, "%d.%d", version / major, version % major / minor);
        if (version > 0 && parts[k].patch > 0) text_append(text, ".%d", version % minor);
    }
}
