/* The CUDA back end's device: what one rank computes on.
 *
 * Ranks on the same card share its context and its compiled kernels; each has a
 * compute stream, on which everything is issued in the order of the calls, and
 * a communication stream for collectives. Neither waits for the legacy default
 * stream, on which only uploads before the first step run. A collective forks: the
 * communication stream waits for the work issued so far, runs the collective beside
 * the compute stream and records an event. The compute stream waits for the event
 * before the first kernel that needs the result. At the end of a section the compute
 * stream waits for all of the communication stream, so no event crosses the bounds
 * of a recorded graph.
 *
 * Launches return no error: the device keeps a failure until synchronize() returns
 * it. One thread at a time uses a device, and calls cuda_rank_use() first.
 */
#ifndef EXECUTOR_CUDA_DEVICE_H
#define EXECUTOR_CUDA_DEVICE_H

#include "base/cuda/driver.h"
#include "executor/kernels.h"

struct CudaBlas;
struct CudaDnn;

/* An object that is released with the device. */
typedef struct CudaKept {
    void *object;
    void (*release)(void *object);
    struct CudaKept *next;
} CudaKept;

/* Calls that a library refuses and that run as generated kernels (fallback.c). */
typedef struct CudaRefusals {
    int32_t products, convolutions;
    const char *first; /* instruction, a string of the module; NULL before the first */
    AmError reason;    /* of the first */
    const char *line;  /* of the warnings, where this is stated; NULL: none */
    bool is_stated;    /* with these numbers */
} CudaRefusals;

typedef struct CudaKernelDevice {
    KernelDevice base; /* first: a KernelDevice of this back end is a CudaKernelDevice */
    CudaDevice device;
    CUstream compute, communication; /* neither is ordered with the legacy default stream */
    CUevent forked, joined;          /* of cuda_fork() and cuda_join() */
    bool tf32;                       /* KernelOptions */
    AmWarnings *warnings;            /* KernelOptions; or NULL */
    bool communicates;               /* the communication stream has work that is not joined yet */
    bool records;                    /* issued work is recorded in a graph and does not run */
    bool record_failed;              /* some issued work could not be recorded */
    int64_t section;                 /* counts up where the communication stream is joined whole */
    struct CudaBlas *blas;           /* opened at the first use; else NULL */
    struct CudaDnn *dnn;
    int64_t slice_bytes; /* of a dot's result that is copied (cublas_dot_order.h) */
    CudaRefusals refusals;
    struct CudaGenerated *generated; /* calls that finish() compiles, the newest first */
    AmError failure;                 /* the first since the last synchronize(); its code is AM_OK: none */
    CudaKept *kept;                  /* newest first, in the order of release */
} CudaKernelDevice;

/* Returns the back end's own device of a general one. */
static inline CudaKernelDevice *cuda_device_of(KernelDevice *device) {
    return (CudaKernelDevice *)device;
}

/* Opens the device of a rank with its two streams. AM_ERROR_RUNTIME: there is no such GPU, or no memory. */
AmStatus cuda_rank_open(KernelDevice **device, const KernelOptions *options, AmError *error);
void cuda_rank_close(KernelDevice *device);

/* Makes the device current in this thread; a failure is noted. */
void cuda_rank_use(CudaKernelDevice *device);

/* Keeps an object. The object is released with the device, after all that was kept later. On failure it is
 * released at once. */
AmStatus cuda_keep(CudaKernelDevice *device, void *object, void (*release)(void *object), AmError *error);

/* Notes a failure, unless there is one already; successes are let pass. While a
 * graph is recorded it only ends the recording: what failed is issued again. */
void cuda_note(CudaKernelDevice *device, CUresult result, const char *what);
void cuda_note_failure(CudaKernelDevice *device, const AmError *failure);

/* Orders work issued to the communication stream from now on after all work issued to the compute
 * stream. */
void cuda_fork(CudaKernelDevice *device);
/* Joins the streams: the compute stream goes on after all that was issued to the communication stream; a new
 * section begins. */
void cuda_join(CudaKernelDevice *device);

/* A place in the communication stream. */
typedef struct CudaMark {
    CUevent event;
    int64_t section;
} CudaMark;

/* Makes a mark that has not been set. */
AmStatus cuda_mark_open(CudaMark *mark, AmError *error);
void cuda_mark_close(CudaMark *mark); /* may be called on a zeroed one */
/* Sets the mark here: after all that was issued to the communication stream. */
void cuda_mark_set(CudaKernelDevice *device, CudaMark *mark);
/* Lets the compute stream go on after the mark, which has been set, if that is not so already. */
void cuda_mark_wait(CudaKernelDevice *device, const CudaMark *mark);

#endif
