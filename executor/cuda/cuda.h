/* The CUDA back end's parts: how each family of operators is prepared.
 *
 * A prepare function does what KernelBackEnd.prepare() does for the calls that
 * are its own. call->device is a CudaKernelDevice (device.h) that is current in
 * this thread; run() launches on its compute stream, allocates nothing, and
 * notes failures by cuda_note().
 */
#ifndef EXECUTOR_CUDA_CUDA_H
#define EXECUTOR_CUDA_CUDA_H

#include "executor/cuda/codegen/source.h"
#include "executor/cuda/device.h"

typedef AmStatus CudaPrepare(KernelCall *call, Arena *arena, AmError *error);

CudaPrepare cuda_prepare_dot;         /* cublas_dot.c */
CudaPrepare cuda_prepare_convolution; /* cudnn_convolution.c */
CudaPrepare cuda_prepare_generated;   /* generated.c: kernels of source.h, fusions too */
CudaPrepare cuda_prepare_region;      /* generated.c: fused attention */
CudaPrepare cuda_prepare_attention;   /* cudnn_attention.c; AM_ERROR_INPUT: another form than its own */

/* Prepares a call of kernels whose text is written already, of any family (generated.c). The source is
 * copied. */
AmStatus cuda_prepare_source(KernelCall *call, Arena *arena, const CudaSource *source, AmError *error);

/* Implements KernelBackEnd.join_rows: one kernel for the steps of a row group (generated.c). */
AmStatus cuda_join_rows(KernelCall *const *calls, Arena *arena, AmError *error);

/* Prepares the generated kernel of a dot or a convolution: plainly; with a warning that a library refused it;
 * and with a warning that there is no cuDNN (fallback.c). */
AmStatus cuda_prepare_plain(KernelCall *call, Arena *arena, AmError *error);
AmStatus cuda_prepare_refused(KernelCall *call, Arena *arena, const AmError *reason, AmError *error);
AmStatus cuda_prepare_without_dnn(KernelCall *call, Arena *arena, const char *reason, AmError *error);
/* Opens cuDNN for the device at the first use (fallback.c). */
AmStatus cuda_open_dnn(CudaKernelDevice *device, AmError *error);
/* Updates the warning of refused calls; no rank runs meanwhile. */
void cuda_state_refusals(CudaKernelDevice *device);

/* The generated kernel of a call that a library may refuse when it is first run (fallback.c). */
typedef struct CudaSpare {
    KernelCall call;
    bool is_used; /* it has run and is counted */
} CudaSpare;

/* Prepares the spare of a call that the library's part has prepared, and enlarges its scratch memory if need
 * be. */
AmStatus cuda_prepare_spare(CudaSpare **spare, KernelCall *call, Arena *arena, AmError *error);
/* Runs the spare in place of the call. `reason`: of the refusal; NULL if another call has had it. */
void cuda_run_spare(CudaSpare *spare, const KernelCall *call, const AmError *reason);

/* Compiles and loads the generated kernels of all calls prepared since the last time, and uploads
 * their data; the device is current. */
AmStatus cuda_finish_generated(CudaKernelDevice *device, AmError *error);

/* Implements KernelBackEnd.begin() and end(): cuda_graph.c. */
bool cuda_begin_recording(KernelDevice *device, void **record);
bool cuda_end_recording(KernelDevice *device, void **record);
/* Destroys the graphs of all regions, which hold what collectives put into them; nothing is issued any
 * more. */
void cuda_release_records(CudaKernelDevice *device);

#endif
