/* The stand-in libraries of CUDA: what tests read, and what stand-ins share.
 *
 * ctest puts libcuda.so.1, libnvrtc.so.13, libcublasLt.so.13, libcudnn.so.9 and
 * libnccl.so.2 of this folder before the real ones, so that the product's code
 * runs unchanged where there is no GPU. The driver among them keeps device memory
 * in host memory that only queued work may touch (it holds 0xA5 at first; a host
 * access faults, an overrun is found), runs kernels on the host block by block,
 * and runs a stream as late as possible: only what a synchronisation needs. A
 * missing event wait so shows as a wrong number. Every call is counted.
 *
 * Tests and the other stand-ins reach it through one table, which the real
 * driver does not have:
 *
 *   const StandIn *stand = stand_in();
 *   if (stand) assert_int_equal(stand->count("cuGraphLaunch"), 20);
 *
 * Environment: STAND_IN_DEVICES (1), STAND_IN_MEMORY (bytes of each, 4 GiB),
 * STAND_IN_ARCHITECTURE (90), STAND_IN_VERSION (of the driver, as 13000),
 * STAND_IN_PEERS (1; 0: no device reaches the memory of another),
 * STAND_IN_FAIL ("cuInit=100" or several with commas: that call returns that
 * code; "cuMemAlloc=2@3": from its third call on; "cuMemAlloc=2#3": the third
 * alone), STAND_IN_REFUSE ("7:30": with seed 7 the libraries refuse 30 of 100
 * problems, each time alike; "7:30:cublasLtMatmul,cudnnConvolutionForward": these
 * functions alone; "0:100:interleaved": results whose batches interleave); STAND_IN_PERTURB (a seed: sums and
 * functions round as another library's, elements.h).
 */
#ifndef TESTS_CUDA_STAND_IN_H
#define TESTS_CUDA_STAND_IN_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The work of a stream so far, by kind; work captured into a graph counts at its capture. */
typedef struct StandInStream {
    int64_t launches, copies, sets, waits, records, calls, host_functions, graph_launches;
} StandInStream;

typedef struct StandInMemory {
    int64_t allocations, bytes, peak_bytes; /* alive now; the most at once since the last reset */
} StandInMemory;

typedef struct StandIn {
    /* Queues work of another stand-in on a stream, also into a capture. `argument` (`bytes` of it)
     * is copied now; run(copy) does the work later, with device memory open to it, and returns
     * true. Work of several streams that meets (a collective) names a `group`, the same pointer
     * for all that meet, NULL otherwise: its run() notes its arrival and returns false until all
     * are there; it is called again after the others have moved on, and once more when a graph
     * is launched again. run() is under the stand-in's lock: it must not block, nor call CUDA. */
    CUresult (*enqueue)(CUstream stream, const char *name, bool (*run)(void *argument), const void *argument,
                        size_t bytes, const void *group);
    /* First thing in every function of a stand-in: counts the call, and returns the code that
     * STAND_IN_FAIL gives for it, else 0. */
    int (*enter)(const char *call);
    /* Returns whether this function refuses the problem of that number, by STAND_IN_REFUSE. */
    bool (*refuses)(const char *call, uint64_t problem);
    int64_t (*count)(const char *call);               /* calls of a function, by its name without _v2 */
    int64_t (*runs)(const char *name);                /* times that a kernel, or work enqueue()d, has run */
    void (*stream)(CUstream stream, StandInStream *); /* NULL: all streams together */
    void (*memory)(StandInMemory *);
    bool (*is_device)(const void *pointer, size_t bytes); /* these bytes are in one allocation */
    bool (*is_held)(const void *group);                   /* a graph that is alive has work of this group */
    void (*fail)(const char *failures);   /* replaces STAND_IN_FAIL; (stand->fail)("") for none */
    void (*refuse)(const char *refusals); /* replaces STAND_IN_REFUSE; (stand->refuse)("") for none */
    void (*reset)(void);                  /* all counts to zero */
    const char *(*loading)(void);         /* CUDA_MODULE_LOADING at cuInit(); "" where it was not set */
} StandIn;

/* The stand-in driver's table; NULL where the real driver, or none, is loaded. Looked up until it is found:
 * the stand-in libraries ask at every call. */
static inline const StandIn *stand_in(void) {
    static const StandIn *_Atomic found;
    const StandIn *(*table)(void) = NULL;
    if (found) return found;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbol;
    if (!driver) return NULL;
    symbol = dlsym(driver, "stand_in_table");
    memcpy(&table, &symbol, sizeof table);
    if (symbol) found = table();
    return found;
}

#endif
