/* Device code to machine code by NVRTC, with a cache on disk.
 *
 * NVRTC is opened at run time, so a build with CUDA starts without it, and the
 * first kernel fails if it is missing. For an architecture that it knows it
 * makes a cubin; for a newer card PTX of the newest architecture below the card's,
 * which the driver compiles when it loads it. Compiled units are kept under
 * $XDG_CACHE_HOME/automap/kernels (else ~/.cache/automap/kernels), named after
 * the SHA-256 of the unit, the options, the architecture and NVRTC's version. A
 * file is checked when it is read; one that is damaged is compiled anew, and a
 * cache that cannot be written is done without. Needs no GPU and no driver.
 */
#ifndef BASE_CUDA_NVRTC_H
#define BASE_CUDA_NVRTC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

typedef struct CudaImage {
    const char *data; /* a cubin or PTX (NUL-terminated), to be loaded by the driver; in the arena */
    int64_t bytes;    /* with PTX's NUL */
    const char *log;  /* what NVRTC had to say, "" for nothing or from the cache */
    bool cached;      /* read from disk */
} CudaImage;

/* Compiles a text of extern "C" kernels for sm_`architecture`, e.g. 80. May be
 * called by several threads. AM_ERROR_RUNTIME: NVRTC is missing or knows
 * neither the architecture nor an older one, or fails; AM_ERROR_INTERNAL: it refuses the text, with its log.
 */
AmStatus cuda_compile(CudaImage *image, Arena *arena, const char *unit, int32_t architecture, AmError *error);
/* Compiles a text and replaces its file in the cache, which is not read: for a cached image that the
 * driver refuses. */
AmStatus cuda_compile_anew(CudaImage *image, Arena *arena, const char *unit, int32_t architecture,
                           AmError *error);

/* Opens NVRTC; AM_ERROR_RUNTIME says why it cannot. */
AmStatus cuda_compiler_present(AmError *error);

/* Returns NVRTC's version, as 1000 * major + 10 * minor; 0 without it. */
int32_t cuda_compiler_version(void);

#endif
