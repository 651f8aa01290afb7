/* Measures a GPU by the parts of the CUDA back end: products by cuBLASLt, an
 * element-wise kernel, empty launches, and copies between devices, for
 * executor/calibrate/probe.h. The host's clock times many repeats, from the first
 * enqueue to the end of the stream. Two events in the queue of the device time
 * collectives.
 */
#include <stdio.h>
#include <stdlib.h>

#include "automap_features.h"
#include "base/cuda/blas.h"
#include "base/cuda/unit.h"
#include "base/system/clock.h"
#include "executor/calibrate/probe.h"
#include "executor/cuda/device.h"
#include "executor/cuda/probe_kernels.cu.h"

enum { BUFFERS = 3, THREADS = 256, BLOCKS_PER_MULTIPROCESSOR = 8 };

typedef struct Card {
    ProbeDevice base;
    CudaDevice device;
    CudaUnit unit;
    CUfunction fill, scale_add, nothing;
    CUstream stream;
    CudaBlas *blas;
    CUdeviceptr buffers[BUFFERS]; /* operands and result, grown on demand */
    int64_t bytes;                /* of each */
} Card;

static AmStatus count_cards(int32_t *count, AmError *error) {
    TRY(cuda_driver_open(error));
    *count = cuda_device_count();
    return AM_OK;
}

static void close_card(ProbeDevice *device) {
    Card *card = (Card *)device;
    if (card->device.context) {
        cuda_device_use(&card->device, NULL);
        for (int32_t k = 0; k < BUFFERS; k++) cuda_memory_free(card->buffers[k]);
        cuda_blas_close(card->blas);
        cuda_unit_unload(&card->unit);
        if (card->stream) cuda.cuStreamDestroy(card->stream);
    }
    cuda_device_close(&card->device);
    free(card);
}

static AmStatus open_card(ProbeDevice **device, int32_t index, AmError *error) {
    Card *card = calloc(1, sizeof *card);
    *device = NULL;
    if (!card) return am_fail_memory(error, sizeof *card);
    card->base.back_end = &probe_cuda;
    AmStatus status = AM_OK;
    size_t unused = 0, total = 0;
    TRY_OR_FAIL(cuda_device_open(&card->device, index, error));
    TRY_OR_FAIL(cuda_unit_load(&card->unit, &card->device, cuda_text_probe_kernels, error));
    TRY_OR_FAIL(cuda_unit_function(&card->fill, &card->unit, "probe_fill", error));
    TRY_OR_FAIL(cuda_unit_function(&card->scale_add, &card->unit, "probe_scale_add", error));
    TRY_OR_FAIL(cuda_unit_function(&card->nothing, &card->unit, "probe_nothing", error));
    TRY_OR_FAIL(
        cuda_check(cuda.cuStreamCreate(&card->stream, CU_STREAM_NON_BLOCKING), "making a stream", error));
    TRY_OR_FAIL(cuda_blas_open(&card->blas, error));
    TRY_OR_FAIL(cuda_check(cuda.cuMemGetInfo(&unused, &total), "asking for the memory that is free", error));
    snprintf(card->base.name, sizeof card->base.name, "%s", card->device.name);
    card->base.memory_bytes = card->device.memory_bytes;
    card->base.usable_bytes = (int64_t)unused / 4;
    *device = &card->base;
    return AM_OK;
fail:
    close_card(&card->base);
    return status;
}

/* Launches a kernel whose blocks of THREADS stride over `elements`. */
static AmStatus enqueue(const Card *card, CUfunction kernel, int64_t elements, void **arguments,
                        AmError *error) {
    int64_t blocks = (elements + THREADS - 1) / THREADS;
    int64_t most = (int64_t)card->device.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    return cuda_check(cuda.cuLaunchKernel(kernel, (unsigned)(blocks < most ? blocks : most), 1, 1, THREADS, 1,
                                          1, 0, card->stream, arguments, NULL),
                      "starting a kernel", error);
}

static AmStatus reserve(Card *card, int64_t bytes, AmError *error) {
    long long words = (bytes + 3) / 4;
    if (bytes <= card->bytes) return AM_OK;
    card->bytes = 0;
    for (int32_t k = 0; k < BUFFERS; k++) {
        cuda_memory_free(card->buffers[k]);
        TRY(cuda_memory_alloc(&card->buffers[k], &card->device, 4 * words, error));
        void *arguments[] = {&card->buffers[k], &words};
        TRY(enqueue(card, card->fill, words, arguments, error));
    }
    card->bytes = bytes;
    return AM_OK;
}

static AmStatus finish(const Card *card, AmError *error) {
    return cuda_check(cuda.cuStreamSynchronize(card->stream), "measuring", error);
}

static bool card_has_type(Dtype type) {
    return type == DTYPE_F32 || type == DTYPE_F64 || dtype_is_16bit_float(type);
}

static AmStatus card_product(ProbeDevice *device, Dtype type, int64_t side, int32_t repeats, double *seconds,
                             AmError *error) {
    Card *card = (Card *)device;
    CudaMatrix matrix = {.type = type};
    CudaProductShape shape = {.batch = 1,
                              .rows = side,
                              .columns = side,
                              .depth = side,
                              .a = matrix,
                              .b = matrix,
                              .d = matrix,
                              .alpha = 1};
    CudaProduct *product;
    CUdeviceptr workspace = 0;
    AmStatus status = AM_OK;
    TRY(reserve(card, side * side * dtype_bytes(type), error));
    TRY(cuda_product_make(&product, card->blas, &shape, error));
    if (cuda_product_workspace(product) > 0)
        TRY(cuda_memory_alloc(&workspace, &card->device, cuda_product_workspace(product), error));
    CudaProductBuffers buffers = {.a = (const void *)(uintptr_t)card->buffers[0],
                                  .b = (const void *)(uintptr_t)card->buffers[1],
                                  .d = (void *)(uintptr_t)card->buffers[2],
                                  .workspace = (void *)(uintptr_t)workspace};
    TRY_OR_FAIL(finish(card, error));
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++)
        TRY_OR_FAIL(cuda_product_run(product, card->stream, &buffers, error));
    TRY_OR_FAIL(finish(card, error));
    *seconds = clock_seconds() - begun;
fail:
    cuda_memory_free(workspace);
    return status;
}

static AmStatus card_element_wise(ProbeDevice *device, int64_t elements, int32_t repeats, double *seconds,
                                  AmError *error) {
    Card *card = (Card *)device;
    TRY(reserve(card, elements * (int64_t)sizeof(float), error));
    long long count = elements;
    float factor = 0.5f;
    void *arguments[] = {&card->buffers[0], &card->buffers[1], &factor, &count};
    TRY(finish(card, error));
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++) TRY(enqueue(card, card->scale_add, elements, arguments, error));
    TRY(finish(card, error));
    *seconds = clock_seconds() - begun;
    return AM_OK;
}

static AmStatus card_launch(ProbeDevice *device, int32_t repeats, double *seconds, AmError *error) {
    Card *card = (Card *)device;
    TRY(finish(card, error));
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++) TRY(enqueue(card, card->nothing, 1, NULL, error));
    TRY(finish(card, error));
    *seconds = clock_seconds() - begun;
    return AM_OK;
}

/* Copies directly if the cards can, else through the host, as the driver does. */
static AmStatus card_copy(ProbeDevice *device, int32_t peer, int64_t bytes, int32_t repeats, double *seconds,
                          AmError *error) {
    Card *card = (Card *)device;
    CudaDevice other = {0};
    CUdeviceptr target = 0;
    AmStatus status;
    TRY(reserve(card, bytes, error));
    TRY_OR_FAIL(cuda_device_open(&other, peer, error));
    TRY_OR_FAIL(cuda_memory_alloc(&target, &other, bytes, error));
    TRY_OR_FAIL(cuda_device_use(&card->device, error));
    TRY_OR_FAIL(finish(card, error));
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++)
        TRY_OR_FAIL(cuda_check(cuda.cuMemcpyPeerAsync(target, other.context, card->buffers[0],
                                                      card->device.context, (size_t)bytes, card->stream),
                               "copying between devices", error));
    TRY_OR_FAIL(finish(card, error));
    *seconds = clock_seconds() - begun;
fail:
    if (other.context) cuda_device_use(&other, NULL);
    cuda_memory_free(target);
    cuda_device_close(&other);
    cuda_device_use(&card->device, NULL);
    return status;
}

/* Two events in the compute stream, which every collective is forked from and joined to. */
typedef struct Watch {
    CudaKernelDevice *device;
    CUevent begun, ended;
} Watch;

static void close_watch(void *watch) {
    Watch *self = watch;
    if (!self) return;
    cuda_device_use(&self->device->device, NULL);
    if (self->begun) cuda.cuEventDestroy(self->begun);
    if (self->ended) cuda.cuEventDestroy(self->ended);
    free(self);
}

static AmStatus open_watch(void **watch, KernelDevice *device, AmError *error) {
    Watch *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->device = cuda_device_of(device);
    *watch = self;
    TRY(cuda_device_use(&self->device->device, error));
    TRY(cuda_check(cuda.cuEventCreate(&self->begun, CU_EVENT_DEFAULT), "making an event", error));
    return cuda_check(cuda.cuEventCreate(&self->ended, CU_EVENT_DEFAULT), "making an event", error);
}

static void begin_watch(void *watch) {
    Watch *self = watch;
    cuda_note(self->device, cuda.cuEventRecord(self->begun, self->device->compute), "recording an event");
}

static void end_watch(void *watch) {
    Watch *self = watch;
    cuda_note(self->device, cuda.cuEventRecord(self->ended, self->device->compute), "recording an event");
}

static AmStatus read_watch(void *watch, double *seconds, AmError *error) {
    Watch *self = watch;
    float milliseconds = 0;
    TRY(cuda_check(cuda.cuEventElapsedTime(&milliseconds, self->begun, self->ended), "reading an event",
                   error));
    *seconds = 1e-3 * (double)milliseconds;
    return AM_OK;
}

static const ProbeStopwatch stopwatch = {open_watch, begin_watch, end_watch, read_watch, close_watch};

/* Uses NCCL if each rank has a card, else the collectives of ranks in one process. */
static bool find_card_ranks(ProbeRanks *ranks, int32_t way, int32_t count, int32_t devices) {
    static const int64_t sizes[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18,
                                    1 << 20, 1 << 22, 1 << 24, 1 << 26, 0};
    const CommBackEnd *ways[2];
    int32_t way_count = 0;
#ifdef AUTOMAP_HAVE_NCCL
    if (count <= devices) ways[way_count++] = &comm_nccl;
#endif
    (void)devices;
    ways[way_count++] = &comm_local_cuda;
    if (way >= way_count) return false;
    *ranks = (ProbeRanks){.kernels = &kernels_cuda,
                          .comm = ways[way],
                          .stopwatch = &stopwatch,
                          .count = count < PROBE_MOST_RANKS ? count : PROBE_MOST_RANKS,
                          .sharing = 1,
                          .sizes = sizes};
    return true;
}

const ProbeBackEnd probe_cuda = {.name = "cuda",
                                 .count = count_cards,
                                 .open = open_card,
                                 .close = close_card,
                                 .has_type = card_has_type,
                                 .product = card_product,
                                 .element_wise = card_element_wise,
                                 .launch = card_launch,
                                 .copy = card_copy,
                                 .find_ranks = find_card_ranks};
