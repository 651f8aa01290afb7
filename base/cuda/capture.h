/* Work of a stream as a graph: a capture from its begin to its end.
 *
 * The mode is THREAD_LOCAL: the thread that captures may not make unsafe calls,
 * other threads may. Work that any thread enqueues on the stream belongs to the
 * capture.
 */
#ifndef BASE_CUDA_CAPTURE_H
#define BASE_CUDA_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda/driver.h"

CUresult cuda_capture_begin(CUstream stream);
/* Ends the capture, in the thread that began it. `wanted`: *graph becomes the executable graph, to be
 * destroyed by cuGraphExecDestroy(), and *nodes (unless NULL) its number of nodes; otherwise, and after a
 * failure, neither is changed. */
CUresult cuda_capture_end(CUstream stream, bool wanted, CUgraphExec *graph, int64_t *nodes);

#endif
