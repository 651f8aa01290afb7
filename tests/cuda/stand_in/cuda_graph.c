/* The stand-in driver's captures and graphs.
 *
 * A capture has a lane for each stream in it, in order of joining; the first is
 * its origin's. A graph is these lanes, and a launch runs them as streams are
 * run: the first to its end, the others as far as waits in it ask for. That is
 * all of them, since the end of a capture checks that they have been joined.
 */
#include <stdlib.h>

#include "tests/cuda/stand_in/cuda_parts.h"

struct Capture {
    Queue *lanes;
    int32_t lane_count;
    int64_t serial;
    CUstream origin;
    CUstreamCaptureMode mode;
    pthread_t owner;
    bool spoiled;
    struct Capture *next;
};

struct CUgraph_st {
    Queue *lanes;
    int32_t lane_count;
    int32_t references; /* of handles, executable graphs and launches under way */
    struct CUgraph_st *next;
};

struct CUgraphExec_st {
    CUgraph graph;
};

typedef struct GraphLaunch {
    CUgraph graph;
    Queue lanes[];
} GraphLaunch;

static Capture *captures;
static CUgraph graphs;
static int64_t serials;

static void free_lanes(Queue *lanes, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        for (int64_t at = 0; at < lanes[k].end; at++) free(lanes[k].operations[at].argument);
        free(lanes[k].operations);
    }
    free(lanes);
}

static void release(CUgraph graph) {
    if (--graph->references > 0) return;
    CUgraph *link = &graphs;
    while (*link != graph) link = &(*link)->next;
    *link = graph->next;
    free_lanes(graph->lanes, graph->lane_count);
    free(graph);
}

static void join(Capture *capture, CUstream stream) {
    capture->lanes = realloc(capture->lanes, sizeof *capture->lanes * (size_t)(capture->lane_count + 1));
    if (!capture->lanes) abort();
    stream->capture = capture;
    stream->lane = capture->lane_count;
    capture->lanes[capture->lane_count++] = (Queue){.kept = true};
}

void capture_add(CUstream stream, Operation operation) {
    queue_add(&stream->capture->lanes[stream->lane], operation);
}

void capture_record(CUstream stream, CUevent event) {
    event->capture_serial = stream->capture->serial;
    event->lane = stream->lane;
    event->position = stream->capture->lanes[stream->lane].end;
}

CUresult capture_wait(CUstream stream, CUevent event) {
    Capture *capture = captures;
    while (capture && capture->serial != event->capture_serial) capture = capture->next;
    if (!capture && !stream->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (!capture || (stream->capture && stream->capture != capture)) {
        stream->capture->spoiled = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (stream == stream->device->null_stream) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!stream->capture) join(capture, stream);
    capture_add(stream, (Operation){.lane = event->lane, .position = event->position});
    return CUDA_SUCCESS;
}

bool capture_forbids(void) {
    bool forbidden = false;
    for (Capture *capture = captures; capture; capture = capture->next) {
        bool own = pthread_equal(capture->owner, pthread_self());
        if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
            (own && capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
            forbidden = capture->spoiled = true;
    }
    return forbidden;
}

bool capture_spoil(CUstream stream) {
    if (stream->capture) stream->capture->spoiled = true;
    return stream->capture;
}

bool graph_has_group(CUgraph graph, const void *group) {
    for (int32_t k = 0; k < graph->lane_count; k++)
        for (int64_t at = 0; at < graph->lanes[k].end; at++)
            if (graph->lanes[k].operations[at].group == group) return true;
    return false;
}

bool graphs_have_group(const void *group) {
    for (CUgraph graph = graphs; graph; graph = graph->next)
        if (graph_has_group(graph, group)) return true;
    return false;
}

EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    DEVICE_API(cuStreamBeginCapture);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    if (stream->capture) return api_end(CUDA_ERROR_ILLEGAL_STATE);
    if (stream == device_current()->null_stream) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    Capture *capture = calloc(1, sizeof *capture);
    if (!capture) abort();
    capture->serial = ++serials;
    capture->origin = stream;
    capture->mode = mode;
    capture->owner = pthread_self();
    capture->next = captures;
    captures = capture;
    join(capture, stream);
    return api_end(CUDA_SUCCESS);
}

/* Marks how far the lanes are reached by what `lane` does up to `end`. */
static void reach(const Capture *capture, int64_t *reached, int32_t lane, int64_t end) {
    for (int64_t at = reached[lane]; at < end; at = ++reached[lane]) {
        const Operation *operation = &capture->lanes[lane].operations[at];
        if (!operation->run && operation->position > reached[operation->lane])
            reach(capture, reached, operation->lane, operation->position);
    }
}

static bool is_joined(const Capture *capture) {
    int64_t *reached = calloc((size_t)capture->lane_count, sizeof *reached);
    bool joined = true;
    if (!reached) abort();
    reach(capture, reached, 0, capture->lanes[0].end);
    for (int32_t k = 0; k < capture->lane_count; k++) joined &= reached[k] == capture->lanes[k].end;
    free(reached);
    return joined;
}

EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    DEVICE_API(cuStreamEndCapture);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    *graph = NULL;
    if (!stream) return api_end(result);
    Capture *capture = stream->capture;
    if (!capture) return api_end(CUDA_ERROR_ILLEGAL_STATE);
    if (capture->origin != stream) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->owner, pthread_self()))
        return api_end(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    for (CUstream one = all_streams; one; one = one->next)
        if (one->capture == capture) one->capture = NULL;
    for (Capture **link = &captures; *link; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    if (capture->spoiled) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(capture)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS) {
        *graph = calloc(1, sizeof **graph);
        if (!*graph) abort();
        **graph = (struct CUgraph_st){capture->lanes, capture->lane_count, 1, graphs};
        graphs = *graph;
    } else {
        free_lanes(capture->lanes, capture->lane_count);
    }
    free(capture);
    return api_end(result);
}

EXPORT CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    DEVICE_API(cuStreamIsCapturing);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    DEVICE_API(cuGraphInstantiate);
    (void)flags;
    if (!graph) return api_end(CUDA_ERROR_INVALID_VALUE);
    *exec = malloc(sizeof **exec);
    if (!*exec) abort();
    (*exec)->graph = graph;
    graph->references++;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
    DEVICE_API(cuGraphDestroy);
    if (!graph) return api_end(CUDA_ERROR_INVALID_VALUE);
    release(graph);
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
    DEVICE_API(cuGraphExecDestroy);
    if (!exec) return api_end(CUDA_ERROR_INVALID_VALUE);
    release(exec->graph);
    free(exec);
    return api_end(CUDA_SUCCESS);
}

/* Waits are edges, all else is nodes. The nodes themselves are not told. */
EXPORT CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    DEVICE_API(cuGraphGetNodes);
    if (!graph || nodes) return api_end(CUDA_ERROR_INVALID_VALUE);
    *count = 0;
    for (int32_t k = 0; k < graph->lane_count; k++)
        for (int64_t at = 0; at < graph->lanes[k].end; at++)
            *count += graph->lanes[k].operations[at].run != NULL;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream handle) {
    DEVICE_API(cuGraphUpload);
    CUresult result = CUDA_SUCCESS;
    return api_end(exec && stream_find(handle, &result) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static bool run_graph(void *argument) {
    GraphLaunch *launch = argument;
    if (!queue_run(&launch->lanes[0], launch->lanes[0].end, launch->lanes)) return false;
    release(launch->graph);
    return true;
}

EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    DEVICE_API(cuGraphLaunch);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream || !exec) return api_end(CUDA_ERROR_INVALID_HANDLE);
    if (capture_spoil(stream)) return api_end(CUDA_ERROR_NOT_SUPPORTED);
    CUgraph graph = exec->graph;
    size_t bytes = sizeof *graph->lanes * (size_t)graph->lane_count;
    GraphLaunch *launch = malloc(sizeof *launch + bytes);
    if (!launch) abort();
    launch->graph = graph;
    memcpy(launch->lanes, graph->lanes, bytes);
    graph->references++;
    stream->record.graph_launches++;
    return api_end(stream_submit(stream, (Operation){.run = run_graph, .argument = launch, .graph = graph}));
}
