/* Common parts of the stand-in for the CUDA driver, a library of the tests:
 *
 *   cuda_record.c   counts of calls, failures on demand, the table for tests
 *   cuda_device.c   start, devices, contexts, the words of errors
 *   cuda_memory.c   device and pinned memory, copies and fills
 *   cuda_queue.c    streams and events: queues that run as late as possible
 *   cuda_graph.c    captures and graphs
 *   cuda_module.c   device code compiled for the host, launches
 *
 * One lock is held through every call and every piece of queued work; so work of
 * all streams is one after the other, in an order that only needs decide.
 */
#ifndef TESTS_CUDA_STAND_IN_CUDA_PARTS_H
#define TESTS_CUDA_STAND_IN_CUDA_PARTS_H

#include <cuda.h>
#include <pthread.h>

#include "tests/cuda/stand_in/stand_in.h"

#define EXPORT __attribute__((visibility("default")))

/* First and last in every function of the driver: API(cuMemAlloc); ... return api_end(result); */
#define API(call)                                   \
    CUresult api_result_ = api_begin(#call, false); \
    if (api_result_ != CUDA_SUCCESS) return api_end(api_result_)
/* The same where a device must be current. */
#define DEVICE_API(call)                           \
    CUresult api_result_ = api_begin(#call, true); \
    if (api_result_ != CUDA_SUCCESS) return api_end(api_result_)
CUresult api_begin(const char *call, bool needs_device);
CUresult api_end(CUresult result);

extern pthread_mutex_t stand_in_lock;
extern pthread_cond_t stand_in_moved; /* work was queued or done */

/* cuda_record.c */
int record_enter(const char *call);
void record_run(const char *name);
void record_peak(int64_t bytes);
int64_t environment_number(const char *name, int64_t otherwise);

/* cuda_device.c */
typedef struct Device {
    int ordinal;
    int64_t memory_bytes, used_bytes;
    CUstream null_stream;
    CUresult sticky; /* the error that ended its context, once there is one */
} Device;
Device *device_current(void);
int device_count(void);
Device *device_at(int ordinal);
const char *device_loading(void); /* CUDA_MODULE_LOADING at cuInit() */
CUresult device_started(void);    /* CUDA_ERROR_NOT_INITIALIZED before cuInit() */

/* cuda_memory.c */
void memory_open(void); /* device memory may be touched until the matching close */
void memory_close(void);
bool memory_is_device(const void *pointer, size_t bytes);
bool memory_is_reachable(const void *pointer); /* for a kernel: device or pinned memory, or NULL */
const char *memory_overrun(void); /* words for the first damage beside an allocation, else NULL */
void memory_count(StandInMemory *);

/* cuda_queue.c. An operation is a wait for a place in a queue, or work. */
typedef struct Queue Queue;
typedef struct Operation {
    bool (*run)(void *argument); /* false: not yet; NULL: a wait */
    void *argument;              /* heap; the queue's */
    const char *name;            /* counted when it has run; NULL: not counted */
    const void *group;           /* see stand_in.h */
    CUgraph graph;               /* the launched graph, or NULL */
    Queue *queue;                /* of a wait: the queue to wait for; NULL: `lane` */
    int32_t lane;                /* of a wait without a queue: the lane of the same graph to wait for */
    int64_t position;            /* of a wait: the number of operations that must be done there */
} Operation;
struct Queue {
    Operation *operations; /* those from `first` up to `end` */
    int64_t first, done, end, capacity;
    bool running; /* by a frame of this thread's stack, or of another's */
    bool kept;    /* of a graph: operations stay when they have run */
};
void queue_add(Queue *queue, Operation operation);
/* Runs up to a position; false if something there cannot run yet. `lanes`: of the graph it is in. */
bool queue_run(Queue *queue, int64_t position, Queue *lanes);

typedef struct Capture Capture;
struct CUstream_st {
    Queue queue;
    Device *device;
    bool blocking; /* in step with the null stream */
    bool destroyed;
    Capture *capture;
    int32_t lane; /* of the capture */
    StandInStream record;
    struct CUstream_st *next;
};
struct CUevent_st {
    Queue *queue; /* where it was recorded, NULL: nowhere yet */
    int64_t position, capture_serial;
    int32_t lane;
    double seconds;
    struct CUevent_st *next;
};
extern struct CUstream_st *all_streams;

/* The handle's stream; NULL with *result set where it is none of a live one. */
CUstream stream_find(CUstream handle, CUresult *result);
CUstream stream_make(Device *device, bool blocking);
/* Queues an operation and takes its argument; on the null stream it runs at once. */
CUresult stream_submit(CUstream stream, Operation operation);
void stream_drain(CUstream stream);
void device_drain(Device *device, bool blocking_only);
CUresult stream_enqueue(CUstream stream, const char *name, bool (*run)(void *), const void *argument,
                        size_t bytes, const void *group);
void *copy_of(const void *argument, size_t bytes);

/* cuda_graph.c */
void capture_add(CUstream stream, Operation operation);
void capture_record(CUstream stream, CUevent event);
CUresult capture_wait(CUstream stream, CUevent event);
/* Returns whether this thread may not make a call that could disturb a capture; spoils the capture. */
bool capture_forbids(void);
bool capture_spoil(CUstream stream); /* true: the stream was capturing, and its capture is lost */
bool graph_has_group(CUgraph graph, const void *group);
bool graphs_have_group(const void *group); /* any that is alive */

#endif
