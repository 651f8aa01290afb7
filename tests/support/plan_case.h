/* A module given as HLO text, run under a plan by ranks as threads and compared,
 * element by element, with the run on one device: shared by the tests that try many plans.
 *
 * Every rank's part of every output is compared, not only the part of the rank that
 * speaks for it, and all parts together must fill the whole. */
#ifndef TESTS_SUPPORT_PLAN_CASE_H
#define TESTS_SUPPORT_PLAN_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/file.h"
#include "base/random.h"
#include "executor/program/rank.h"
#include "lowering/spmd/lower.h"

enum { PLAN_MOST_RANKS = 16, PLAN_MOST_ARRAYS = 16 };

/* One module, the values of its parameters and the results of one device. */
typedef struct PlanCase {
    PlanContext *context;
    char *parameters[PLAN_MOST_ARRAYS], *expected[PLAN_MOST_ARRAYS], *got;
    int64_t output_bytes[PLAN_MOST_ARRAYS];
} PlanCase;

/* Ranks 0 .. count - 1 as threads, with their collectives. */
typedef struct PlanRanks {
    int32_t count;
    KernelDevice *devices[PLAN_MOST_RANKS];
    Comm comms[PLAN_MOST_RANKS];
} PlanRanks;

typedef struct PlanThread {
    Rank rank;
    AmStatus status;
    AmError error;
    pthread_t thread;
} PlanThread;

static inline void plan_ranks_open(PlanRanks *ranks, int32_t count) {
    AmError error = {0};
    ranks->count = count;
    for (int32_t r = 0; r < count; r++) ranks->devices[r] = &kernel_device_cpu;
    if (comm_local.open(ranks->comms, 0, count, count, ranks->devices, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
}

static inline void plan_ranks_close(PlanRanks *ranks) {
    comm_local.close(ranks->comms);
}

static inline const IrShape *plan_output_shape(const PlanContext *context, int32_t k) {
    return &context->canonical->instructions[context->roles->outputs[k]].shape;
}

/* Small whole numbers of any type; a parameter whose name begins with "index" gets such
 * that lie a little outside of small arrays too, "positive" 1 to 4, "sign" -1 and 1. */
static inline void plan_fill(char *data, const IrShape *shape, const char *name, Random *random) {
    int64_t elements = ir_shape_elements(shape);
    for (int64_t e = 0; e < elements; e++) {
        int64_t value = random_below(random, 7) - 3;
        if (strncmp(name, "index", 5) == 0) value = random_below(random, 12) - 2;
        if (strncmp(name, "positive", 8) == 0) value = 1 + random_below(random, 4);
        if (strncmp(name, "sign", 4) == 0) value = random_below(random, 2) * 2 - 1;
        float single = (float)value;
        double real = (double)value;
        int32_t whole = (int32_t)value;
        uint16_t half = dtype_float_to_bf16(single);
        switch (shape->type) {
        case DTYPE_F32: memcpy(data + e * 4, &single, 4); break;
        case DTYPE_F64: memcpy(data + e * 8, &real, 8); break;
        case DTYPE_BF16: memcpy(data + e * 2, &half, 2); break;
        case DTYPE_S64:
        case DTYPE_U64: memcpy(data + e * 8, &value, 8); break;
        case DTYPE_PRED: data[e] = (char)(value > 0); break;
        default: memcpy(data + e * dtype_bytes(shape->type), &whole, (size_t)dtype_bytes(shape->type)); break;
        }
    }
}

/* Zeros without a sign: the sum of negated parts is 0 where the negated sum is -0. */
static inline void plan_clear_zeros(char *data, Dtype type, size_t bytes) {
    int64_t width = dtype_bytes(dtype_is_complex(type) ? dtype_real_part(type) : type);
    if (!dtype_is_floating(type) && !dtype_is_complex(type)) return;
    for (size_t at = 0; at + (size_t)width <= bytes; at += (size_t)width) {
        bool is_zero = (data[at + (size_t)width - 1] & 0x7f) == 0;
        for (int64_t b = 0; b + 1 < width; b++) is_zero &= data[at + (size_t)b] == 0;
        if (is_zero) data[at + (size_t)width - 1] = 0;
    }
}

/* The bytes of output k that this rank has, into `whole`, whether or not it speaks for them. */
static inline void plan_take_output(Rank *rank, int32_t k, char *whole) {
    bool writes_part = rank->outputs[k].writes_part;
    rank->outputs[k].writes_part = true;
    rank_get_output(rank, k, whole);
    rank->outputs[k].writes_part = writes_part;
}

/* One device's run of the case's parameters, which become case->expected. */
static inline void plan_run_whole(PlanCase *self) {
    PlanRanks one;
    Rank rank = {0};
    Program *program;
    AmError error = {0};
    plan_ranks_open(&one, 1);
    AmStatus status = plan_lower_one_device(&program, &rank.arena, self->context, &error);
    if (status == AM_OK) status = rank_open(&rank, one.devices[0], &one.comms[0], program, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    const IrRoles *roles = self->context->roles;
    for (int32_t k = 0; k < roles->parameter_count; k++) rank_set_parameter(&rank, k, self->parameters[k]);
    if (rank_run(&rank, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t k = 0; k < roles->output_count; k++) {
        plan_take_output(&rank, k, self->expected[k]);
        plan_clear_zeros(self->expected[k], plan_output_shape(self->context, k)->type,
                         (size_t)self->output_bytes[k]);
    }
    rank_close(&rank);
    plan_ranks_close(&one);
}

/* Reads the module and runs it on one device. `name` is for messages. */
static inline void plan_case_open(PlanCase *self, const char *name, const char *text, uint64_t seed) {
    AmError error = {0};
    char path[64];
    int64_t largest = 1;
    Random random;
    *self = (PlanCase){0};
    random_seed(&random, seed);
    snprintf(path, sizeof path, "plan_case_%d.hlo.txt", (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    AmStatus status = plan_context_read(&self->context, path, NULL, &error);
    unlink(path);
    if (status != AM_OK) fail_msg("%s: %s in\n%s", name, error.text, text);
    const IrRoles *roles = self->context->roles;
    assert_true(roles->parameter_count <= PLAN_MOST_ARRAYS && roles->output_count <= PLAN_MOST_ARRAYS);
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrShape *shape = plan_context_parameter_shape(self->context, k);
        self->parameters[k] = calloc(1, (size_t)ir_shape_bytes(shape) + 1);
        plan_fill(self->parameters[k], shape,
                  self->context->canonical->instructions[roles->parameters[k].instruction].name, &random);
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        self->output_bytes[k] = ir_shape_bytes(plan_output_shape(self->context, k));
        self->expected[k] = calloc(1, (size_t)self->output_bytes[k] + 1);
        if (self->output_bytes[k] > largest) largest = self->output_bytes[k];
    }
    self->got = malloc((size_t)largest);
    plan_run_whole(self);
}

static inline void plan_case_close(PlanCase *self) {
    for (int32_t k = 0; k < PLAN_MOST_ARRAYS; k++) {
        free(self->parameters[k]);
        free(self->expected[k]);
    }
    free(self->got);
    plan_context_free(self->context);
}

static inline void *plan_thread_run(void *argument) {
    PlanThread *self = argument;
    self->status = rank_start(&self->rank, &self->error);
    if (self->status == AM_OK) self->status = rank_run(&self->rank, &self->error);
    if (self->status != AM_OK) comm_local.abort(self->rank.comm);
    return NULL;
}

/* The first output that is not as on one device: -1, all are. */
static inline int32_t plan_compare(const PlanCase *self, PlanThread *threads, int32_t count) {
    for (int32_t k = 0; k < self->context->roles->output_count; k++) {
        size_t bytes = (size_t)self->output_bytes[k];
        Dtype type = plan_output_shape(self->context, k)->type;
        memcpy(self->got, self->expected[k], bytes);
        for (int32_t r = 0; r < count; r++) {
            plan_take_output(&threads[r].rank, k, self->got);
            plan_clear_zeros(self->got, type, bytes);
            if (memcmp(self->got, self->expected[k], bytes) != 0) return k;
        }
        for (size_t b = 0; b < bytes; b++) self->got[b] = (char)~self->expected[k][b];
        for (int32_t r = 0; r < count; r++) rank_get_output(&threads[r].rank, k, self->got);
        plan_clear_zeros(self->got, type, bytes);
        if (memcmp(self->got, self->expected[k], bytes) != 0) return k;
    }
    return -1;
}

/* Lowers, runs and compares a completed stage. AM_ERROR_RUNTIME: the result is another. */
static inline AmStatus plan_case_run(const PlanCase *self, const PlanRanks *ranks,
                                     const Assignment *assignment, AmError *error) {
    static PlanThread threads[PLAN_MOST_RANKS];
    AmStatus status = AM_OK;
    Comm *comms = (Comm *)ranks->comms;
    const IrRoles *roles = self->context->roles;
    memset(threads, 0, sizeof threads);
    for (int32_t r = 0; r < ranks->count && status == AM_OK; r++) {
        Rank *rank = &threads[r].rank;
        Program *program;
        status = plan_lower(&program, &rank->arena, self->context, assignment, r, error);
        if (status == AM_OK) status = rank_open(rank, ranks->devices[r], &comms[r], program, error);
        for (int32_t k = 0; status == AM_OK && k < roles->parameter_count; k++)
            rank_set_parameter(rank, k, self->parameters[k]);
    }
    if (status == AM_OK) {
        for (int32_t r = 1; r < ranks->count; r++)
            assert_int_equal(pthread_create(&threads[r].thread, NULL, plan_thread_run, &threads[r]), 0);
        plan_thread_run(&threads[0]);
        for (int32_t r = 1; r < ranks->count; r++) pthread_join(threads[r].thread, NULL);
        for (int32_t r = 0; r < ranks->count && status == AM_OK; r++) {
            status = threads[r].status;
            if (status != AM_OK) *error = threads[r].error;
        }
    }
    int32_t wrong = status == AM_OK ? plan_compare(self, threads, ranks->count) : -1;
    if (wrong >= 0)
        status = am_fail(error, AM_ERROR_RUNTIME, "", "output %d is not what one device computes", wrong);
    for (int32_t r = 0; r < ranks->count; r++) rank_close(&threads[r].rank);
    return status;
}

#endif
