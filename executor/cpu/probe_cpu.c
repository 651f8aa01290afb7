/* Measures the host with the parts of the CPU back end: products by OpenBLAS, loops over memory,
 * and alternating copies by two threads. The host is one device, whose cores
 * share products; a loop runs in one thread, as an element-wise operator of a rank does.
 */
#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/machine.h"
#include "base/system/parallel.h"
#include "executor/actors/actors.h"
#include "executor/actors/inbox.h"
#include "executor/calibrate/probe.h"
#include "executor/calibrate/probe_samples.h"

enum { LEAST_ROUNDS = 8 }; /* for a median of rounds of two copies */

typedef struct Host {
    ProbeDevice base;
    void *buffers[3]; /* operands and result, grown on demand */
    int64_t bytes;    /* of each */
} Host;

static AmStatus count_hosts(int32_t *count, AmError *error) {
    (void)error;
    *count = 1;
    return AM_OK;
}

static AmStatus open_host(ProbeDevice **device, int32_t index, AmError *error) {
    (void)index;
    Host *host = calloc(1, sizeof *host);
    *device = NULL;
    if (!host) return am_fail_memory(error, sizeof *host);
    host->base = (ProbeDevice){.back_end = &probe_cpu, .name = "host"};
    host->base.memory_bytes = machine_memory();
    host->base.usable_bytes = host->base.memory_bytes / 16;
    *device = &host->base;
    return AM_OK;
}

static void close_host(ProbeDevice *device) {
    Host *host = (Host *)device;
    for (int32_t k = 0; k < 3; k++) free(host->buffers[k]);
    free(host);
}

/* Allocates a buffer of bytes 0x3c: a small number in every floating type. */
static AmStatus reserve_buffer(Host *host, int64_t bytes, AmError *error) {
    if (bytes <= host->bytes) return AM_OK;
    host->bytes = 0;
    for (int32_t k = 0; k < 3; k++) {
        void *buffer = realloc(host->buffers[k], (size_t)bytes);
        if (!buffer) return am_fail_memory(error, bytes);
        host->buffers[k] = memset(buffer, 0x3c, (size_t)bytes);
    }
    host->bytes = bytes;
    return AM_OK;
}

static bool host_has_type(Dtype type) {
    return type == DTYPE_F32 || type == DTYPE_F64;
}

static AmStatus host_product(ProbeDevice *device, Dtype type, int64_t side, int32_t repeats, double *seconds,
                             AmError *error) {
    Host *host = (Host *)device;
    int n = (int)side;
    TRY(reserve_buffer(host, side * side * dtype_bytes(type), error));
    void *a = host->buffers[0], *b = host->buffers[1], *c = host->buffers[2];
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++) {
        if (type == DTYPE_F32)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
        else cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
    }
    *seconds = clock_seconds() - begun;
    return AM_OK;
}

/* Not inlined, so that repeats are not merged. */
static __attribute__((noinline)) void scale_add(float *y, const float *x, float a, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = a * x[i] + y[i];
}

/* An opaque side effect keeps the compiler from removing the call. */
static __attribute__((noinline)) void nothing(const float *y) {
    __asm__ volatile("" : : "r"(y) : "memory");
}

static AmStatus host_element_wise(ProbeDevice *device, int64_t elements, int32_t repeats, double *seconds,
                                  AmError *error) {
    Host *host = (Host *)device;
    TRY(reserve_buffer(host, elements * (int64_t)sizeof(float), error));
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++) scale_add(host->buffers[0], host->buffers[1], 0.5f, elements);
    *seconds = clock_seconds() - begun;
    return AM_OK;
}

static AmStatus host_launch(ProbeDevice *device, int32_t repeats, double *seconds, AmError *error) {
    Host *host = (Host *)device;
    TRY(reserve_buffer(host, sizeof(float), error));
    double begun = clock_seconds();
    for (int32_t k = 0; k < repeats; k++) nothing(host->buffers[0]);
    *seconds = clock_seconds() - begun;
    return AM_OK;
}

/* Two threads copy alternately, each after a signal of the other, as the ranks of two stages do. */
typedef struct Turns {
    Inbox inboxes[2];
    int32_t repeats, spins;
    void *const *buffers;
    int64_t bytes;
    double *begins; /* [repeats / 2 + 1] when the first thread's turns began */
} Turns;

static void take_turns(Turns *turns, int32_t own) {
    InboxMessage message = {.kind = INBOX_REQ, .count = 1};
    for (int32_t k = own; k < turns->repeats; k += 2) {
        while (k > 0 && inbox_take(&turns->inboxes[own], &message, 1) == 0)
            inbox_wait(&turns->inboxes[own], turns->spins, 1);
        if (own == 0) turns->begins[k / 2] = clock_seconds();
        memmove(turns->buffers[own], turns->buffers[2], (size_t)turns->bytes);
        inbox_post(&turns->inboxes[1 - own], message);
    }
}

static void *second_thread(void *turns) {
    take_turns(turns, 1);
    return NULL;
}

static AmStatus run_turns(Turns *turns, double *seconds, AmError *error) {
    pthread_t thread;
    TRY(inbox_open(&turns->inboxes[0], 2, error));
    TRY(inbox_open(&turns->inboxes[1], 2, error));
    TRY(parallel_start_thread(&thread, second_thread, turns, error));
    double begun = clock_seconds();
    take_turns(turns, 0);
    pthread_join(thread, NULL);
    *seconds = clock_seconds() - begun;
    return AM_OK;
}

static AmStatus host_copy(ProbeDevice *device, int32_t peer, int64_t bytes, int32_t repeats, double *seconds,
                          AmError *error) {
    Host *host = (Host *)device;
    (void)peer;
    TRY(reserve_buffer(host, bytes, error));
    Turns turns = {.repeats = repeats, .spins = actors_spins(2), .buffers = host->buffers, .bytes = bytes};
    turns.begins = calloc((size_t)repeats / 2 + 1, sizeof *turns.begins);
    if (!turns.begins) return am_fail_memory(error, repeats);
    AmStatus status = run_turns(&turns, seconds, error);
    for (int32_t k = 0; k < 2; k++) inbox_close(&turns.inboxes[k]);
    int32_t rounds = (repeats + 1) / 2 - 1;
    for (int32_t k = 0; k < rounds; k++) turns.begins[k] = turns.begins[k + 1] - turns.begins[k];
    /* The median of many, which a thread that waits for a processor now and then does not change. */
    if (status == AM_OK && rounds >= LEAST_ROUNDS)
        *seconds = probe_median(turns.begins, rounds) / 2 * repeats;
    free(turns.begins);
    return status;
}

static bool find_threads(ProbeRanks *ranks, int32_t way, int32_t count, int32_t devices) {
    static const int64_t sizes[] = {256, 4096, 32768, 262144, 2097152, 8388608, 0};
    int32_t processors = machine_processors();
    (void)devices;
    if (way > 0) return false;
    *ranks = (ProbeRanks){.kernels = &kernels_cpu,
                          .comm = &comm_local,
                          .count = count < PROBE_MOST_RANKS ? count : PROBE_MOST_RANKS,
                          .sizes = sizes};
    ranks->sharing = ranks->count > processors ? (double)ranks->count / processors : 1;
    return true;
}

const ProbeBackEnd probe_cpu = {.name = "cpu",
                                .count = count_hosts,
                                .open = open_host,
                                .close = close_host,
                                .has_type = host_has_type,
                                .product = host_product,
                                .element_wise = host_element_wise,
                                .launch = host_launch,
                                .copy = host_copy,
                                .operators = probe_operators,
                                .processors = machine_processors,
                                .find_ranks = find_threads};
