/* The stand-in driver's streams and events.
 *
 * A stream is a queue of operations, and nothing in it runs until something
 * needs it: a synchronization, or a wait in a queue that runs. A wait runs the
 * other queue up to the place that the event marks, and no further. Work of
 * several streams that meets (a group) lets the other streams move on to their
 * part of the meeting; where a part has not been queued yet, the thread waits.
 * A query does one operation, so that a loop of queries ends.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/cuda/stand_in/cuda_parts.h"

struct CUstream_st *all_streams;
static struct CUevent_st *all_events;

void *copy_of(const void *argument, size_t bytes) {
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) abort();
    if (bytes) memcpy(copy, argument, bytes);
    return copy;
}

void queue_add(Queue *queue, Operation operation) {
    int64_t held = queue->end - queue->first;
    if (!queue->kept && queue->done > queue->first && !queue->running) {
        held = queue->end - queue->done;
        memmove(queue->operations, queue->operations + (queue->done - queue->first),
                sizeof operation * (size_t)held);
        queue->first = queue->done;
    }
    if (held == queue->capacity) {
        queue->capacity = held ? 2 * held : 16;
        queue->operations = realloc(queue->operations, sizeof operation * (size_t)queue->capacity);
        if (!queue->operations) abort();
    }
    queue->operations[held] = operation;
    queue->end++;
    pthread_cond_broadcast(&stand_in_moved);
}

static bool takes_part(const Operation *operation, const void *group) {
    return operation->group == group || (operation->graph && graph_has_group(operation->graph, group));
}

/* Every other stream with a part in a meeting moves on to its part, and through it if it can. */
static void advance_peers(const void *group) {
    for (CUstream stream = all_streams; stream; stream = stream->next) {
        Queue *queue = &stream->queue;
        for (int64_t at = queue->done; at < queue->end && !queue->running; at++)
            if (takes_part(&queue->operations[at - queue->first], group)) {
                queue_run(queue, at + 1, NULL);
                break;
            }
    }
}

static bool run_operation(const Operation *operation, Queue *lanes) {
    if (operation->run) return operation->run(operation->argument);
    if (operation->queue) return queue_run(operation->queue, operation->position, NULL);
    return queue_run(&lanes[operation->lane], operation->position, lanes);
}

bool queue_run(Queue *queue, int64_t position, Queue *lanes) {
    if (queue->running) return queue->done >= position;
    queue->running = true;
    while (queue->done < position) {
        Operation operation = queue->operations[queue->done - queue->first];
        if (!run_operation(&operation, lanes)) {
            if (!operation.group) break;
            advance_peers(operation.group);
            if (!run_operation(&operation, lanes)) break;
        }
        queue->done++;
        if (operation.name) record_run(operation.name);
        if (!queue->kept) free(operation.argument);
        pthread_cond_broadcast(&stand_in_moved);
    }
    queue->running = false;
    return queue->done >= position;
}

/* Runs, and sleeps while others have to move first; changes by other processes or aborts are polled. */
static void wait_for(Queue *queue, int64_t position) {
    while (queue->done < position) {
        memory_open();
        bool done = queue_run(queue, position, NULL);
        memory_close();
        if (done) return;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 5000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&stand_in_moved, &stand_in_lock, &until);
    }
}

static bool step(Queue *queue, int64_t position) {
    int64_t next = queue->done + 1;
    if (queue->done >= position) return true;
    memory_open();
    queue_run(queue, next, NULL);
    memory_close();
    return queue->done >= position;
}

void stream_drain(CUstream stream) {
    wait_for(&stream->queue, stream->queue.end);
}

void device_drain(Device *device, bool blocking_only) {
    for (CUstream stream = all_streams; stream; stream = stream->next)
        if (stream->device == device && (stream->blocking || !blocking_only)) stream_drain(stream);
}

CUstream stream_make(Device *device, bool blocking) {
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream) abort();
    stream->device = device;
    stream->blocking = blocking;
    stream->next = all_streams;
    return all_streams = stream;
}

CUstream stream_find(CUstream handle, CUresult *result) {
    if (!handle || handle == CU_STREAM_LEGACY) return device_current()->null_stream;
    for (CUstream stream = all_streams; stream; stream = stream->next)
        if (stream == handle && !stream->destroyed) return stream;
    *result = CUDA_ERROR_INVALID_HANDLE;
    return NULL;
}

CUresult stream_submit(CUstream stream, Operation operation) {
    if (stream->capture) {
        capture_add(stream, operation);
        return CUDA_SUCCESS;
    }
    if (stream != stream->device->null_stream) {
        queue_add(&stream->queue, operation);
        return CUDA_SUCCESS;
    }
    for (CUstream other = all_streams; other; other = other->next)
        if (other->device == stream->device && other->blocking && capture_spoil(other)) {
            free(operation.argument);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    device_drain(stream->device, true);
    queue_add(&stream->queue, operation);
    stream_drain(stream);
    return stream->device->sticky;
}

CUresult stream_enqueue(CUstream handle, const char *name, bool (*run)(void *), const void *argument,
                        size_t bytes, const void *group) {
    CUresult result = CUDA_SUCCESS;
    if (!device_current()) return CUDA_ERROR_INVALID_CONTEXT;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return result;
    stream->record.calls++;
    return stream_submit(
        stream, (Operation){.run = run, .argument = copy_of(argument, bytes), .name = name, .group = group});
}

EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags) {
    DEVICE_API(cuStreamCreate);
    *stream = stream_make(device_current(), !(flags & CU_STREAM_NON_BLOCKING));
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    DEVICE_API(cuStreamCreateWithPriority);
    (void)priority;
    *stream = stream_make(device_current(), !(flags & CU_STREAM_NON_BLOCKING));
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
    DEVICE_API(cuStreamDestroy);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = handle ? stream_find(handle, &result) : NULL;
    if (!stream) return api_end(CUDA_ERROR_INVALID_HANDLE);
    capture_spoil(stream);
    stream_drain(stream);
    stream->destroyed = true;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    DEVICE_API(cuStreamSynchronize);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    if (capture_spoil(stream)) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream == device_current()->null_stream) device_drain(device_current(), true);
    stream_drain(stream);
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    DEVICE_API(cuStreamQuery);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    if (capture_spoil(stream)) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return api_end(step(&stream->queue, stream->queue.end) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags) {
    DEVICE_API(cuEventCreate);
    (void)flags;
    *event = calloc(1, sizeof **event);
    if (!*event) abort();
    (*event)->next = all_events;
    all_events = *event;
    return api_end(CUDA_SUCCESS);
}

/* The event stays in the list: a queue may still hold its record. */
EXPORT CUresult CUDAAPI cuEventDestroy(CUevent event) {
    DEVICE_API(cuEventDestroy);
    return api_end(event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static bool run_record(void *argument) {
    CUevent event = *(CUevent *)argument;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    return true;
}

EXPORT CUresult CUDAAPI cuEventRecord(CUevent event, CUstream handle) {
    DEVICE_API(cuEventRecord);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream || !event) return api_end(CUDA_ERROR_INVALID_HANDLE);
    stream->record.records++;
    if (stream->capture) {
        capture_record(stream, event);
        return api_end(CUDA_SUCCESS);
    }
    result = stream_submit(stream, (Operation){.run = run_record, .argument = copy_of(&event, sizeof event)});
    event->queue = &stream->queue;
    event->position = stream->queue.end;
    event->capture_serial = 0;
    return api_end(result);
}

EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    DEVICE_API(cuStreamWaitEvent);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    (void)flags;
    if (!stream || !event) return api_end(CUDA_ERROR_INVALID_HANDLE);
    stream->record.waits++;
    if (stream->capture || event->capture_serial) return api_end(capture_wait(stream, event));
    if (!event->queue) return api_end(CUDA_SUCCESS);
    return api_end(stream_submit(stream, (Operation){.queue = event->queue, .position = event->position}));
}

EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event) {
    DEVICE_API(cuEventSynchronize);
    if (!event) return api_end(CUDA_ERROR_INVALID_HANDLE);
    if (event->capture_serial) return api_end(CUDA_ERROR_CAPTURED_EVENT);
    if (event->queue) wait_for(event->queue, event->position);
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuEventQuery(CUevent event) {
    DEVICE_API(cuEventQuery);
    if (!event) return api_end(CUDA_ERROR_INVALID_HANDLE);
    if (event->capture_serial) return api_end(CUDA_ERROR_CAPTURED_EVENT);
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    bool done = !event->queue || step(event->queue, event->position);
    return api_end(done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    DEVICE_API(cuEventElapsedTime);
    if (!begin || !end || !begin->queue || !end->queue) return api_end(CUDA_ERROR_INVALID_HANDLE);
    if (begin->queue->done < begin->position || end->queue->done < end->position)
        return api_end(CUDA_ERROR_NOT_READY);
    *milliseconds = (float)(1e3 * (end->seconds - begin->seconds));
    return api_end(CUDA_SUCCESS);
}

typedef struct HostCall {
    CUhostFn function;
    void *data;
} HostCall;

/* The lock is open meanwhile: a host function may wait for another thread. */
static bool run_host_call(void *argument) {
    HostCall call = *(HostCall *)argument;
    memory_close();
    pthread_mutex_unlock(&stand_in_lock);
    call.function(call.data);
    pthread_mutex_lock(&stand_in_lock);
    memory_open();
    return true;
}

EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    DEVICE_API(cuLaunchHostFunc);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    HostCall call = {function, data};
    stream->record.host_functions++;
    return api_end(
        stream_submit(stream, (Operation){.run = run_host_call, .argument = copy_of(&call, sizeof call)}));
}
