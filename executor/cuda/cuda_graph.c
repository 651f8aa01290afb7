/* Capture regions of a step as CUDA graphs.
 *
 * The first time a capture region is issued plainly, so that libraries do their work of the first use. The
 * second time it is recorded (captured from the compute stream, with the communication stream's
 * part), instantiated and launched; from then on it is one launch. A capture region that cannot be
 * recorded is issued again, and plainly from then on.
 */
#include <stdlib.h>

#include "base/cuda/capture.h"
#include "executor/cuda/cuda.h"

typedef enum RecordState { NEW, WARM, RECORDED, PLAIN } RecordState;

typedef struct CudaRecord {
    RecordState state;
    CUgraphExec graph;
} CudaRecord;

static void release_record(void *object) {
    CudaRecord *record = object;
    if (record->graph) cuda.cuGraphExecDestroy(record->graph);
    free(record);
}

/* Makes an empty record of a capture region. A failure is noted; the capture region is then issued
 * plainly. */
static CudaRecord *make_record(CudaKernelDevice *device) {
    AmError failure = {0};
    CudaRecord *record = calloc(1, sizeof *record);
    if (!record) am_fail_memory(&failure, (int64_t)sizeof *record);
    else if (cuda_keep(device, record, release_record, &failure) == AM_OK) return record;
    cuda_note_failure(device, &failure);
    return NULL;
}

bool cuda_begin_recording(KernelDevice *device, void **place) {
    CudaKernelDevice *self = cuda_device_of(device);
    if (!*place) *place = make_record(self);
    CudaRecord *record = *place;
    cuda_join(self);
    if (!record) return false;
    if (record->state == RECORDED) {
        cuda_note(self, cuda.cuGraphLaunch(record->graph, self->compute), "launching a graph");
        return true;
    }
    if (record->state == WARM) {
        self->records = cuda_capture_begin(self->compute) == CUDA_SUCCESS;
        self->record_failed = false;
        if (!self->records) record->state = PLAIN;
    }
    return false;
}

bool cuda_end_recording(KernelDevice *device, void **place) {
    CudaKernelDevice *self = cuda_device_of(device);
    CudaRecord *record = *place;
    cuda_join(self);
    if (record && record->state == NEW) record->state = WARM;
    if (!self->records) return true;
    bool wanted = !self->record_failed;
    int64_t nodes = 0;
    bool recorded = cuda_capture_end(self->compute, wanted, &record->graph, &nodes) == CUDA_SUCCESS && wanted;
    self->records = self->record_failed = false;
    record->state = recorded ? RECORDED : PLAIN;
    if (!recorded) return false;
    device->graphs++;
    device->graph_nodes += nodes;
    cuda_note(self, cuda.cuGraphLaunch(record->graph, self->compute), "launching a graph");
    return true;
}

void cuda_release_records(CudaKernelDevice *device) {
    cuda_device_use(&device->device, NULL);
    for (CudaKept *kept = device->kept; kept; kept = kept->next) {
        if (kept->release != release_record) continue;
        CudaRecord *record = kept->object;
        if (record->graph) cuda.cuGraphExecDestroy(record->graph);
        *record = (CudaRecord){.state = PLAIN};
    }
}
