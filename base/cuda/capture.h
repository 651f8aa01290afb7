/* Work of a stream as a graph: a capture from its begin to its end.
 *
 * The mode is THREAD_LOCAL: the thread that captures may not make unsafe calls,
 * other threads may. Work that any thread enqueues on the stream belongs to the
 * capture.
 */
#ifndef BASE_CUDA_CAPTURE_H
#define BASE_CUDA_CAPTURE_H

#include <stdbool.h>

#include "base/cuda/driver.h"

CUresult cuda_capture_begin(CUstream stream);
/* Ends the capture, in the thread that began it. `wanted`: *graph becomes the executable graph, to be
 * destroyed by cuGraphExecDestroy(); otherwise, and after a failure, *graph is not changed. */
CUresult cuda_capture_end(CUstream stream, bool wanted, CUgraphExec *graph);

#endif
