/* Times the classes of calibration_modules.c, each at all its sizes, with the executor's kernels.
 *
 * A module becomes a program and is prepared as by a rank; then every thread runs its own copy, all
 * at once, so that the figures include contention for caches and memory. In a step a kernel rarely
 * follows itself: its code, its description and half of its arrays have left the nearest caches
 * since its last run. Before each sample other kernels therefore run (probe_between) and WALK_BYTES
 * of other memory are read and written. A series is the median of some samples; a time is the
 * minimum of some series, until the minimum repeats or the patience ends; several threads are
 * averaged. Times are made monotone in each dimension.
 *
 * If another process uses a core's second thread, all times grow by up to 1.7 for some 10 ms. The
 * kernels between the samples are always the same and detect this: they first run alone for a
 * while, and the tenth percentile of their series defines a calm state. A series in which they take
 * longer is scaled by the ratio, and the mean of such series counts if no series is calm.
 */
#define _GNU_SOURCE /* pthread_getaffinity_np */
#include "executor/calibrate/probe_operators.h"

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/files/json_digits.h"
#include "base/system/clock.h"
#include "base/system/clock_cost.h"
#include "base/system/parallel.h"
#include "executor/calibrate/calibration_modules.h"
#include "executor/calibrate/probe_samples.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

enum { MOST_SERIES = 12, MOST_RANKS = 64, SAMPLES = 12 };
enum { WALK_BYTES = 3 << 14, MOST_LEARNT = 2000 };
static const double medium_seconds = 1e-4, long_seconds = 2e-3; /* of one run */
static const double most_stretch = 1.1;     /* of the work between the samples, in a calm series */
static const int64_t most_sparse = 1 << 20; /* elements */
static const double least_available = 0.75;
static const double agreement = 1.03; /* two series as close as that are believed */

/* A rank's device, and what disturbs its caches between two samples. */
typedef struct Station {
    KernelDevice *device;
    Arena arena;
    Executable *between;
    char *memory;
    ProbeWalk walk;
    double calm; /* seconds of `between`; 0: not known yet */
    double learning_seconds;
    double available; /* the part of that time that the thread had a processor */
} Station;

/* The environment of a measurement: all ranks run at once. */
typedef struct Bench {
    Station stations[MOST_RANKS];
    int32_t ranks;
    double end;           /* of patience */
    double clock_seconds; /* what reading the clock takes */
    cpu_set_t allowed;    /* processors of the caller's thread, which devices keep on theirs */
    const ProbePace *pace;
    const ProbeListener *listener;
} Bench;

/* One module, run by all threads. */
typedef struct OperatorTrial {
    const Program *program;
    Bench *bench;
    struct Worker *workers;
    pthread_mutex_t gate; /* held until all threads are there, or one cannot be started */
    bool is_off;
    pthread_barrier_t together;
    atomic_bool goes_on; /* there is a next series; by the first thread */
} OperatorTrial;

typedef struct Worker {
    OperatorTrial *trial;
    int32_t number;
    pthread_t thread;
    Arena arena;
    Station *station;
    Executable *ready;
    char *memory;
    double first, seconds; /* of one run: the first one, and as measured */
    double scaled;         /* the same while it was not calm: of `restless` series together */
    int32_t restless;
    bool is_done; /* the least came again */
    AmStatus status;
    AmError error;
} Worker;

/* Returns a value that does not repeat soon, from 0 to 2^16 - 1. */
static uint32_t scatter_bits(int64_t i) {
    return (uint32_t)((uint64_t)i * 2654435761u >> 7) & 0xffff;
}

static AmStatus open_program(Executable **ready, char **memory, Arena *arena, KernelDevice *device,
                             const Program *program, AmError *error) {
    TRY(executable_prepare(ready, arena, device, NULL, program, false, error));
    TRY(executable_allocate(*ready, memory, NULL, error));
    if (kernels_cpu.finish) TRY(kernels_cpu.finish(device, error));
    /* Numbers from 1/2 to 1 without an order that branches could learn; small integers, for indices. */
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        const IrShape *shape = &program->values[program->parameters[k]].shape;
        int64_t elements = ir_shape_elements(shape);
        void *filled = executable_parameter(*ready, k);
        memset(filled, 0, (size_t)ir_shape_bytes(shape));
        for (int64_t i = 0; i < elements; i++) {
            if (shape->type == DTYPE_F32) ((float *)filled)[i] = 0.5f + (float)scatter_bits(i) / 131072.0f;
            if (shape->type == DTYPE_BF16)
                ((uint16_t *)filled)[i] = (uint16_t)(0x3f00 | (scatter_bits(i) & 0x7f));
            if (shape->type == DTYPE_S32) ((int32_t *)filled)[i] = (int32_t)(scatter_bits(i) % 16);
        }
    }
    return executable_run(*ready, error);
}

/* Evicts caches as other steps of a program do. Returns the seconds of the kernels. */
static double flush_caches(Station *station) {
    double begin = clock_seconds();
    (void)executable_run(station->between, NULL);
    double seconds = clock_seconds() - begin;
    probe_walk(&station->walk, WALK_BYTES);
    return seconds;
}

/* Returns the median of some samples; few suffice for long runs. `*stretch`: of the work between. */
static double run_series(Worker *worker, bool is_late, double *stretch) {
    Station *station = worker->station;
    double samples[SAMPLES], between[SAMPLES];
    int32_t count = worker->first > long_seconds                ? 1
                    : worker->first > medium_seconds || is_late ? 3
                                                                : SAMPLES;
    for (int32_t k = 0; k < count; k++) {
        between[k] = flush_caches(station);
        double begin = clock_seconds();
        (void)executable_run(worker->ready, NULL);
        samples[k] = clock_seconds() - begin;
    }
    *stretch = station->calm > 0 ? probe_median(between, count) / station->calm : 1;
    return fmax(probe_median(samples, count) - worker->trial->bench->clock_seconds, 1e-9);
}

static void measure_series(Worker *worker, bool is_late) {
    double stretch = 1, seconds = worker->status == AM_OK ? run_series(worker, is_late, &stretch) : 1;
    if (stretch > most_stretch) {
        worker->scaled += seconds / stretch;
        worker->restless++;
        return;
    }
    worker->is_done |= fmax(seconds, worker->seconds) < agreement * fmin(seconds, worker->seconds);
    worker->seconds = fmin(worker->seconds, seconds);
}

/* Decides on another series: the first thread calls it when all have ended theirs. */
static bool goes_on(const OperatorTrial *trial, double spent, int32_t series, bool is_late) {
    bool is_done = true;
    for (int32_t k = 0; k < trial->bench->ranks; k++) is_done &= trial->workers[k].is_done;
    if (is_late) return false;
    const ProbePace *pace = trial->bench->pace;
    return series < pace->least_series ||
           !(is_done || spent > pace->operator_seconds || series >= MOST_SERIES);
}

/* Runs a thread. It waits at every barrier, even after a failure, unless a thread is missing. */
static void *run_worker(void *argument) {
    Worker *worker = argument;
    OperatorTrial *trial = worker->trial;
    pthread_mutex_lock(&trial->gate);
    pthread_mutex_unlock(&trial->gate);
    if (trial->is_off) return NULL;
    worker->status = open_program(&worker->ready, &worker->memory, &worker->arena, worker->station->device,
                                  trial->program, &worker->error);
    worker->seconds = INFINITY;
    worker->first = 1;
    double begun = clock_seconds();
    if (worker->status == AM_OK) {
        (void)executable_run(worker->ready, NULL);
        worker->first = clock_seconds() - begun;
        begun = clock_seconds();
    }
    for (int32_t k = 0;; k++) {
        pthread_barrier_wait(&trial->together);
        if (!atomic_load(&trial->goes_on)) break;
        bool is_late = clock_seconds() > trial->bench->end;
        measure_series(worker, is_late);
        pthread_barrier_wait(&trial->together);
        if (worker->number > 0) continue;
        atomic_store(&trial->goes_on, goes_on(trial, clock_seconds() - begun, k + 1, is_late));
    }
    if (worker->restless > 0 && !isfinite(worker->seconds))
        worker->seconds = worker->scaled / worker->restless;
    return NULL;
}

static AmStatus run_trial(OperatorTrial *trial, double *seconds, AmError *error) {
    Worker workers[MOST_RANKS] = {0};
    AmStatus status = AM_OK;
    int32_t started = 1, ranks = trial->bench->ranks;
    atomic_store(&trial->goes_on, true);
    trial->workers = workers;
    for (int32_t k = 0; k < ranks; k++)
        workers[k] = (Worker){.trial = trial, .number = k, .station = &trial->bench->stations[k]};
    pthread_mutex_lock(&trial->gate);
    for (; started < ranks; started++)
        if ((status = parallel_start_thread(&workers[started].thread, run_worker, &workers[started],
                                            error)) != AM_OK)
            break;
    trial->is_off = started < ranks;
    pthread_mutex_unlock(&trial->gate);
    run_worker(&workers[0]);
    for (int32_t k = 1; k < started; k++) pthread_join(workers[k].thread, NULL);
    if (trial->is_off) return status;
    *seconds = 0;
    for (int32_t k = 0; k < ranks; k++) {
        *seconds += workers[k].seconds / ranks;
        if (status == AM_OK && workers[k].status != AM_OK) {
            status = workers[k].status;
            if (error) *error = workers[k].error;
        }
    }
    for (int32_t k = 0; k < ranks; k++) {
        Worker *worker = &workers[k];
        if (worker->memory) kernels_cpu.release(worker->station->device, worker->memory);
        arena_free(&worker->arena);
    }
    return status;
}

/* A module in text form as a program. */
typedef struct Module {
    IrModule *read, *canonical;
    Arena arena;
    Program *program;
} Module;

static AmStatus module_open(Module *self, const char *text, size_t length, AmError *error) {
    TRY(ir_read_bytes(&self->read, "<probe>", text, (int64_t)length, error));
    TRY(ir_canonicalize(&self->canonical, self->read, error));
    return program_from_computation(&self->program, &self->arena, self->canonical, self->canonical->entry,
                                    false, error);
}

static void module_close(Module *self) {
    arena_free(&self->arena);
    if (self->canonical) ir_module_free(self->canonical);
    if (self->read) ir_module_free(self->read);
}

/* Seconds of a run of a module, which is one step. */
static AmStatus measure_text(const Text *text, Bench *bench, double *seconds, AmError *error) {
    Module module = {0};
    OperatorTrial trial = {.bench = bench};
    AmStatus status = module_open(&module, text->data, text->length, error);
    pthread_mutex_init(&trial.gate, NULL);
    pthread_barrier_init(&trial.together, NULL, (unsigned)bench->ranks);
    trial.program = module.program;
    if (status == AM_OK) status = run_trial(&trial, seconds, error);
    if (status == AM_OK && bench->listener->on_operator)
        status = bench->listener->on_operator(bench->listener->user, bench->listener->type, module.program, 0,
                                              *seconds, error);
    pthread_barrier_destroy(&trial.together);
    pthread_mutex_destroy(&trial.gate);
    module_close(&module);
    return status;
}

static AmStatus measure_point(const ProbeClass *class, const int64_t *sizes, Bench *bench, double *seconds,
                              AmError *error) {
    double less = 0;
    Text text = {0};
    class->text(&text, class->operation, sizes);
    AmStatus status = text.failed ? am_fail_memory(error, 4096) : measure_text(&text, bench, seconds, error);
    if (class->less && status == AM_OK) {
        text.length = 0;
        class->less(&text, class->operation, sizes);
        status = text.failed ? am_fail_memory(error, 4096) : measure_text(&text, bench, &less, error);
    }
    text_free(&text);
    *seconds = fmax(*seconds - less, 0) / class->divisor;
    return status;
}

/* Copies the sizes of a dimension. A sparse grid has every other size up to most_sparse, of four dimensions
 * every third: times of products and convolutions are nearly linear in each dimension, as the interpolation
 * is. The first and the last size are always kept. Returns their number. */
static int32_t pick_sizes(int64_t *picked, const ProbeClass *class, int32_t d, bool is_sparse) {
    const int64_t *sizes = class->sizes[d];
    int32_t count = 0, kept = 0, stride = !is_sparse ? 1 : class->dimensions == 4 ? 3 : 2;
    while (count < PROBE_MOST_SIZES && sizes[count] > 0) count++;
    while (is_sparse && count > 1 && sizes[count - 1] > most_sparse) count--;
    for (int32_t k = 0; k < count; k++)
        if (k % stride == 0 || k == count - 1) picked[kept++] = sizes[k];
    return kept;
}

/* Measures a class of operators. `*curve` is NULL if the time is up before all is measured. */
static AmStatus measure_class(json_t **curve, const ProbeClass *class, Bench *bench, AmError *error) {
    int32_t counts[PROBE_MOST_DIMENSIONS], points = 1;
    int64_t picked[PROBE_MOST_DIMENSIONS][PROBE_MOST_SIZES];
    json_t *sizes = json_array(), *seconds = json_array();
    *curve = json_pack("{s:o, s:o}", "sizes", sizes, "seconds", seconds);
    for (int32_t d = 0; d < class->dimensions; d++) {
        json_t *list = json_array();
        counts[d] = pick_sizes(picked[d], class, d, bench->pace->is_sparse);
        points *= counts[d];
        for (int32_t k = 0; k < counts[d]; k++) json_array_append_new(list, json_integer(picked[d][k]));
        json_array_append_new(sizes, list);
    }
    double *measured = malloc(sizeof *measured * (size_t)points);
    AmStatus status = measured ? AM_OK : am_fail_memory(error, points);
    bool is_in_time = true;
    for (int32_t p = 0; p < points && status == AM_OK && is_in_time; p++) {
        int64_t at[PROBE_MOST_DIMENSIONS];
        for (int32_t d = class->dimensions - 1, rest = p; d >= 0; rest /= counts[d--])
            at[d] = picked[d][rest % counts[d]];
        status = measure_point(class, at, bench, &measured[p], error);
        is_in_time = clock_seconds() < bench->end + bench->pace->late_seconds;
    }
    if (!is_in_time) {
        json_decref(*curve);
        *curve = NULL;
        free(measured);
        return status;
    }
    if (status == AM_OK) {
        /* Outliers are removed: no point takes longer than the next one along a dimension that grows. */
        int32_t stride = 1;
        for (int32_t n = class->dimensions - 1; n >= 0; stride *= counts[n--])
            for (int32_t m = points - 1; m >= 0 && n < class->rises; m--)
                if (m / stride % counts[n] < counts[n] - 1)
                    measured[m] = fmin(measured[m], measured[m + stride]);
    }
    for (int32_t p = 0; p < points && status == AM_OK; p++)
        json_array_append_new(seconds, json_four_digits(measured[p]));
    free(measured);
    return status;
}

static double thread_seconds(void) {
    struct timespec used;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0
               ? (double)used.tv_sec + 1e-9 * (double)used.tv_nsec
               : 0;
}

/* Measures the kernels between samples without disturbance. */
static void *measure_kernels(void *argument) {
    Station *station = argument;
    double begun = clock_seconds(), used = thread_seconds();
    double series[MOST_LEARNT], samples[SAMPLES], until = clock_seconds() + station->learning_seconds;
    int32_t count = 0;
    (void)kernels_cpu.finish(station->device, NULL); /* on its processor */
    while (count == 0 || (count < MOST_LEARNT && clock_seconds() < until)) {
        for (int32_t k = 0; k < SAMPLES; k++) samples[k] = flush_caches(station);
        series[count++] = probe_median(samples, SAMPLES);
    }
    station->calm = probe_ranked(series, count, count / 10);
    station->available = (thread_seconds() - used) / (clock_seconds() - begun);
    return NULL;
}

/* Learns the pace of the calm machine in all ranks at once, as they measure later. */
static AmStatus learn_calm(Bench *bench, AmError *error) {
    pthread_t threads[MOST_RANKS];
    AmStatus status = AM_OK;
    int32_t started = 1;
    for (; started < bench->ranks; started++)
        if ((status = parallel_start_thread(&threads[started], measure_kernels, &bench->stations[started],
                                            error)) != AM_OK)
            break;
    measure_kernels(&bench->stations[0]);
    double available = bench->stations[0].available;
    for (int32_t k = 1; k < started; k++) {
        pthread_join(threads[k], NULL);
        available = fmin(available, bench->stations[k].available);
    }
    if (available < least_available)
        am_warn(bench->listener->warnings, "other programs use the processors: measured times are too long "
                                           "(measure again when they have ended)");
    return status;
}

/* A device keeps the thread that makes it ready on a processor; the caller's makes all of them ready, and
 * what begins later begins where the caller may be. */
static void let_go(const Bench *bench) {
    pthread_setaffinity_np(pthread_self(), sizeof bench->allowed, &bench->allowed);
}

static AmStatus open_bench(Bench *bench, const Program *between, int32_t ranks, int32_t threads,
                           AmError *error) {
    bench->ranks = ranks < MOST_RANKS ? ranks : MOST_RANKS;
    bench->clock_seconds = clock_cost();
    pthread_getaffinity_np(pthread_self(), sizeof bench->allowed, &bench->allowed);
    for (int32_t k = 0; k < bench->ranks; k++) {
        Station *station = &bench->stations[k];
        const KernelOptions options = {.index = k, .threads = threads, .ranks_here = bench->ranks};
        station->learning_seconds = bench->pace->learning_seconds;
        TRY(kernels_cpu.open(&station->device, &options, error));
        TRY(probe_walk_open(&station->walk, error));
        AmStatus status = open_program(&station->between, &station->memory, &station->arena, station->device,
                                       between, error);
        let_go(bench);
        TRY(status);
    }
    return AM_OK;
}

AmStatus probe_operators(json_t **operators, int32_t ranks, int32_t threads, double end,
                         const ProbePace *pace, const ProbeListener *listener, AmError *error) {
    int products = openblas_get_num_threads();
    Module between = {0};
    Bench *bench = calloc(1, sizeof *bench);
    AmStatus status = bench ? AM_OK : am_fail_memory(error, sizeof *bench);
    *operators = json_object();
    openblas_set_num_threads(1); /* as in a run: the team divides the work */
    if (bench) bench->pace = pace;
    if (status == AM_OK) status = module_open(&between, probe_between, strlen(probe_between), error);
    if (status == AM_OK) status = open_bench(bench, between.program, ranks, threads, error);
    if (bench) bench->end = end;
    if (bench) bench->listener = listener;
    if (status == AM_OK) status = learn_calm(bench, error);
    for (int32_t k = 0; k < probe_class_count && status == AM_OK; k++) {
        json_t *curve;
        probe_progress(listener, (double)k / probe_class_count);
        status = measure_class(&curve, &probe_classes[k], bench, error);
        if (curve) json_object_set_new(*operators, probe_classes[k].name, curve);
    }
    openblas_set_num_threads(products);
    for (int32_t k = 0; bench && k < bench->ranks; k++) {
        Station *station = &bench->stations[k];
        if (station->memory) kernels_cpu.release(station->device, station->memory);
        if (station->device) kernels_cpu.close(station->device);
        probe_walk_close(&station->walk);
        arena_free(&station->arena);
    }
    if (bench && bench->ranks > 0) let_go(bench);
    free(bench);
    module_close(&between);
    return status;
}

void probe_progress(const ProbeListener *listener, double done) {
    if (listener->progress) listener->progress(listener->user, listener->from + listener->part * done);
}

AmStatus probe_report_product(const ProbeListener *listener, Dtype type, int64_t side, double seconds,
                              AmError *error) {
    const int64_t sizes[PROBE_MOST_DIMENSIONS] = {1, side, side, side};
    Module module = {0};
    Text text = {0};
    int32_t k = 0;
    if (!listener->on_operator) return AM_OK;
    while (strcmp(probe_classes[k].name, "dot_nn") != 0) k++;
    probe_classes[k].text(&text, dtype_name(type), sizes);
    AmStatus status =
        text.failed ? am_fail_memory(error, 4096) : module_open(&module, text.data, text.length, error);
    if (status == AM_OK)
        status = listener->on_operator(listener->user, listener->type, module.program, 0, seconds, error);
    module_close(&module);
    text_free(&text);
    return status;
}
