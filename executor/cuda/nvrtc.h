/* Generated kernels to machine code by NVRTC, with a cache on disk.
 *
 * NVRTC is opened at run time, so a build with CUDA starts without it and says
 * what is missing when a kernel is wanted. Compiled units are kept under
 * $XDG_CACHE_HOME/automap/kernels (else ~/.cache/automap/kernels), named after
 * the SHA-256 of the unit, the options, the architecture and NVRTC's version. A
 * file is checked when it is read; one that is damaged is compiled anew, and a
 * cache that cannot be written is done without. Needs no GPU and no driver.
 */
#ifndef EXECUTOR_CUDA_NVRTC_H
#define EXECUTOR_CUDA_NVRTC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

typedef struct CudaImage {
    const char *data; /* a cubin for one architecture, to be loaded by the driver; in the arena */
    int64_t bytes;
    const char *log; /* what NVRTC had to say, "" for nothing or from the cache */
    bool cached;     /* read from disk */
} CudaImage;

/* Compiles a unit of cuda_source_unit() for sm_`architecture`, e.g. 80. May be
 * called by several threads. AM_ERROR_RUNTIME: NVRTC is missing or does not
 * know the architecture; AM_ERROR_INTERNAL: it refuses the text, with its words. */
AmStatus cuda_compile(CudaImage *image, Arena *arena, const char *unit, int32_t architecture, AmError *error);

/* Whether NVRTC can be opened; AM_ERROR_RUNTIME says why not. */
AmStatus cuda_compiler_present(AmError *error);

#endif
