/* Captures the work of a CUDA stream as a graph, which can be launched as a whole. */
#include "base/cuda/capture.h"

CUresult cuda_capture_begin(CUstream stream) {
    return cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

CUresult cuda_capture_end(CUstream stream, bool wanted, CUgraphExec *graph, int64_t *nodes) {
    size_t count = 0;
    CUgraph captured = NULL;
    CUgraphExec made = NULL;
    CUresult result = cuda.cuStreamEndCapture(stream, &captured);
    if (result == CUDA_SUCCESS && wanted) result = cuda.cuGraphInstantiate(&made, captured, 0);
    if (made && nodes && cuda.cuGraphGetNodes(captured, NULL, &count) == CUDA_SUCCESS)
        *nodes = (int64_t)count;
    if (captured) cuda.cuGraphDestroy(captured);
    if (result == CUDA_SUCCESS && wanted) *graph = made;
    return result;
}
