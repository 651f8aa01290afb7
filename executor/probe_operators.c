/* The classes of probe_texts.c, each at all its sizes, by the kernels themselves.
 *
 * A module becomes a program and is prepared as a rank would; then every thread
 * runs its own copy again and again, all of them at once, so that what ranks share
 * (caches, memory) is in the figures. A time is the least of some series, each long
 * enough for the clock, until the least comes again or the patience ends; of several
 * threads it is their mean. What more of a dimension takes, less of it does not exceed.
 */
#include "executor/probe_operators.h"

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "executor/probe_texts.h"
#include "executor/ready.h"
#include "ir/canonical.h"
#include "propagation/lower.h"

enum { LEAST_SERIES = 3, MOST_SERIES = 24, MOST_RANKS = 64, MOST_REPEATS = 20000 };
static const double series_seconds = 2.5e-4, long_seconds = 0.05;
static const double agreement = 1.015; /* two series as close as that are believed */

/* One module, run by all threads. */
typedef struct Trial {
    const Program *program;
    int32_t ranks, threads; /* of each rank */
    double end;
    pthread_barrier_t together;
    _Atomic int64_t repeats; /* of the next series, by the first thread; 0: there is none */
} Trial;

typedef struct Worker {
    Trial *trial;
    int32_t number;
    pthread_t thread;
    Arena arena;
    KernelDevice *device;
    ReadyProgram *ready;
    char *memory;
    double seconds;
    AmStatus status;
    AmError error;
} Worker;

/* A value that does not repeat soon, from 0 to 2^16 - 1. */
static uint32_t scatter_bits(int64_t i) {
    return (uint32_t)((uint64_t)i * 2654435761u >> 7) & 0xffff;
}

/* Numbers from 1/2 to 1 without an order that branches could learn; small integers, for indices. */
static void fill_parameters(const Worker *worker) {
    const Program *program = worker->trial->program;
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        const IrShape *shape = &program->values[program->parameters[k]].shape;
        int64_t elements = ir_shape_elements(shape);
        void *memory = ready_parameter(worker->ready, k);
        memset(memory, 0, (size_t)ir_shape_bytes(shape));
        for (int64_t i = 0; i < elements; i++) {
            if (shape->type == DTYPE_F32) ((float *)memory)[i] = 0.5f + (float)scatter_bits(i) / 131072.0f;
            if (shape->type == DTYPE_BF16)
                ((uint16_t *)memory)[i] = (uint16_t)(0x3f00 | (scatter_bits(i) & 0x7f));
            if (shape->type == DTYPE_S32) ((int32_t *)memory)[i] = (int32_t)(scatter_bits(i) % 16);
        }
    }
}

static AmStatus open_worker(Worker *worker) {
    const Trial *trial = worker->trial;
    const KernelOptions options = {
        .index = worker->number, .threads = trial->threads, .ranks_here = trial->ranks};
    TRY(kernels_cpu.open(&worker->device, &options, &worker->error));
    TRY(ready_prepare(&worker->ready, &worker->arena, worker->device, NULL, trial->program, false,
                      &worker->error));
    TRY(ready_allocate(worker->ready, &worker->memory, &worker->error));
    if (kernels_cpu.finish) TRY(kernels_cpu.finish(worker->device, &worker->error));
    fill_parameters(worker);
    return ready_run(worker->ready, &worker->error);
}

static double run_series(Worker *worker, int64_t repeats) {
    double begin = clock_seconds();
    for (int64_t k = 0; k < repeats; k++) (void)ready_run(worker->ready, NULL);
    return (clock_seconds() - begin) / (double)repeats;
}

/* Every thread comes to every barrier, also one that failed. */
static void *work(void *argument) {
    Worker *worker = argument;
    Trial *trial = worker->trial;
    worker->status = open_worker(worker);
    worker->seconds = INFINITY;
    for (int32_t k = 0;; k++) {
        pthread_barrier_wait(&trial->together);
        int64_t repeats = atomic_load(&trial->repeats);
        if (repeats == 0) return NULL;
        double seconds = worker->status == AM_OK ? run_series(worker, repeats) : 1;
        bool agrees = fmax(seconds, worker->seconds) < agreement * fmin(seconds, worker->seconds);
        worker->seconds = fmin(worker->seconds, seconds);
        pthread_barrier_wait(&trial->together);
        if (worker->number > 0) continue;
        double wanted = series_seconds / fmax(worker->seconds, 1e-9);
        int64_t next = wanted < 1 ? 1 : wanted > MOST_REPEATS ? MOST_REPEATS : (int64_t)wanted;
        bool is_long = worker->seconds * (k + 1) > long_seconds;
        bool is_late = clock_seconds() > trial->end;
        bool is_done = k >= LEAST_SERIES && (agrees || is_long || is_late || k >= MOST_SERIES);
        atomic_store(&trial->repeats, is_done ? 0 : next);
    }
}

static void close_worker(Worker *worker) {
    if (worker->memory) worker->device->back_end->release(worker->device, worker->memory);
    if (worker->device) worker->device->back_end->close(worker->device);
    arena_free(&worker->arena);
}

static AmStatus run_trial(Trial *trial, double *seconds, AmError *error) {
    Worker workers[MOST_RANKS] = {0};
    AmStatus status = AM_OK;
    int32_t started = 1;
    atomic_store(&trial->repeats, 1);
    for (int32_t k = 0; k < trial->ranks; k++) workers[k] = (Worker){.trial = trial, .number = k};
    for (; started < trial->ranks; started++)
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) break;
    if (started < trial->ranks)
        return am_fail(error, AM_ERROR_RUNTIME, "", "cannot start a thread to measure with");
    work(&workers[0]);
    *seconds = 0;
    for (int32_t k = 0; k < trial->ranks; k++) {
        if (k > 0) pthread_join(workers[k].thread, NULL);
        *seconds += workers[k].seconds / trial->ranks;
        if (status == AM_OK && workers[k].status != AM_OK) {
            status = workers[k].status;
            if (error) *error = workers[k].error;
        }
    }
    for (int32_t k = 0; k < trial->ranks; k++) close_worker(&workers[k]);
    return status;
}

/* Seconds of a run of a module in text form. */
static AmStatus measure_text(const Text *text, const Trial *form, double *seconds, AmError *error) {
    IrModule *module = NULL, *canonical = NULL;
    Arena arena = {0};
    Program *program;
    Trial trial = {.ranks = form->ranks, .threads = form->threads, .end = form->end};
    AmStatus status;
    pthread_barrier_init(&trial.together, NULL, (unsigned)form->ranks);
    TRY_OR_FAIL(ir_read_bytes(&module, "<probe>", text->data, (int64_t)text->length, error));
    TRY_OR_FAIL(ir_canonicalize(&canonical, module, error));
    TRY_OR_FAIL(program_from_computation(&program, &arena, canonical, canonical->entry, false, error));
    trial.program = program;
    TRY_OR_FAIL(run_trial(&trial, seconds, error));
fail:
    pthread_barrier_destroy(&trial.together);
    arena_free(&arena);
    if (canonical) ir_module_free(canonical);
    if (module) ir_module_free(module);
    return status;
}

static AmStatus measure_point(const ProbeClass *class, const int64_t *sizes, const Trial *form,
                              double *seconds, AmError *error) {
    double less = 0;
    Text text = {0};
    class->text(&text, class->operation, sizes);
    AmStatus status = text.failed ? am_fail_memory(error, 4096) : measure_text(&text, form, seconds, error);
    if (class->less && status == AM_OK) {
        text.length = 0;
        class->less(&text, class->operation, sizes);
        status = text.failed ? am_fail_memory(error, 4096) : measure_text(&text, form, &less, error);
    }
    text_free(&text);
    *seconds = fmax(*seconds - less, 0) / class->divisor;
    return status;
}

/* Four digits: more are noise. */
static json_t *number(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return json_real(strtod(text, NULL));
}

static int32_t count_sizes(const int64_t *sizes) {
    int32_t count = 0;
    while (count < PROBE_MOST_SIZES && sizes[count] > 0) count++;
    return count;
}

/* Stumbles are taken off: no point is dearer than the next one along a dimension that grows. */
static void smooth(double *seconds, const ProbeClass *class, const int32_t *counts, int32_t points) {
    int32_t stride = 1;
    for (int32_t d = class->dimensions - 1; d >= 0; stride *= counts[d--])
        for (int32_t p = points - 1; p >= 0 && d < class->grows; p--)
            if (p / stride % counts[d] < counts[d] - 1) seconds[p] = fmin(seconds[p], seconds[p + stride]);
}

static AmStatus measure_class(json_t **curve, const ProbeClass *class, const Trial *form, AmError *error) {
    int32_t counts[PROBE_MOST_DIMENSIONS], points = 1;
    json_t *sizes = json_array(), *seconds = json_array();
    *curve = json_pack("{s:o, s:o}", "sizes", sizes, "seconds", seconds);
    for (int32_t d = 0; d < class->dimensions; d++) {
        json_t *list = json_array();
        counts[d] = count_sizes(class->sizes[d]);
        points *= counts[d];
        for (int32_t k = 0; k < counts[d]; k++) json_array_append_new(list, json_integer(class->sizes[d][k]));
        json_array_append_new(sizes, list);
    }
    double *measured = malloc(sizeof *measured * (size_t)points);
    AmStatus status = measured ? AM_OK : am_fail_memory(error, points);
    for (int32_t p = 0; p < points && status == AM_OK; p++) {
        int64_t at[PROBE_MOST_DIMENSIONS];
        for (int32_t d = class->dimensions - 1, rest = p; d >= 0; rest /= counts[d--])
            at[d] = class->sizes[d][rest % counts[d]];
        status = measure_point(class, at, form, &measured[p], error);
    }
    if (status == AM_OK) smooth(measured, class, counts, points);
    for (int32_t p = 0; p < points && status == AM_OK; p++)
        json_array_append_new(seconds, number(measured[p]));
    free(measured);
    return status;
}

AmStatus probe_operators(json_t **operators, int32_t ranks, int32_t threads, double end,
                         ProbeProgress *progress, void *user, AmError *error) {
    const Trial form = {.ranks = ranks < MOST_RANKS ? ranks : MOST_RANKS, .threads = threads, .end = end};
    int products = openblas_get_num_threads();
    AmStatus status = AM_OK;
    *operators = json_object();
    openblas_set_num_threads(1); /* as in a run: the team divides what it divides */
    for (int32_t k = 0; k < probe_class_count && status == AM_OK; k++) {
        json_t *curve;
        if (progress) progress(user, (double)k / probe_class_count);
        status = measure_class(&curve, &probe_classes[k], &form, error);
        json_object_set_new(*operators, probe_classes[k].name, curve);
    }
    openblas_set_num_threads(products);
    if (progress) progress(user, 1);
    return status;
}
