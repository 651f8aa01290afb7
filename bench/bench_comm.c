/* Benchmark of the collectives between threads of one process.
 *
 *   bench_comm [RANKS]
 *
 * The seconds of a barrier, and of an all_reduce of f32 in place by its size, beside a copy of as many bytes
 * by one thread: each rank reads its part of every operand and writes it to every result, so
 * with two ranks an all_reduce moves twice what the copy does, divided by two threads. Every rank is kept to
 * one processor, where there are as many. Best of several runs of many calls.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/process.h"
#include "executor/comm/comm.h"

enum { MOST_RANKS = 16, RUNS = 7 };
static const double run_seconds = 0.01;

typedef struct Case {
    int64_t bytes; /* 0: a barrier */
    int64_t calls;
    double seconds; /* of a call, of the best run */
} Case;

typedef struct Thread {
    Comm *comm;
    Case *its;
    float *memory;
    pthread_t thread;
    AmStatus status;
    AmError error;
} Thread;

static void keep_to_processor(int32_t rank) {
    cpu_set_t allowed, one;
    int32_t wanted = rank;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

static AmStatus measure(Thread *self) {
    Comm *comm = self->comm;
    int32_t ranks[MOST_RANKS];
    int64_t dimensions[1] = {self->its->bytes / (int64_t)sizeof(float)};
    IrShape shape = {.type = DTYPE_F32, .rank = 1, .dimensions = dimensions};
    const IrShape *shapes[1] = {&shape};
    void *addresses[1] = {self->memory};
    for (int32_t r = 0; r < comm->size; r++) ranks[r] = r;
    ProgramCollective collective = {
        .kind = PROGRAM_ALL_REDUCE, .reduction = SBP_ADD, .group_count = comm->size, .group = ranks};
    CommCall call = {.collective = &collective,
                     .ranks = ranks,
                     .rank_count = comm->size,
                     .position = comm->rank,
                     .operand_count = 1,
                     .result_count = 1,
                     .operand_shapes = shapes,
                     .result_shapes = shapes,
                     .operands = addresses,
                     .results = addresses};
    TRY(comm->back_end->join(comm, ranks, comm->size, &call.group, &self->error));
    TRY(comm->back_end->prepare(comm, &call, &self->error));
    TRY(comm->back_end->start(comm, &self->error));
    for (int32_t run = 0; run <= RUNS; run++) {
        TRY(comm->back_end->barrier(comm, &self->error));
        double begin = clock_seconds();
        for (int64_t k = 0; k < self->its->calls; k++)
            if (self->its->bytes > 0) TRY(comm->back_end->run(comm, &call, &self->error));
            else TRY(comm->back_end->barrier(comm, &self->error));
        double seconds = (clock_seconds() - begin) / (double)self->its->calls;
        if (comm->rank == 0 && run > 0 && (run == 1 || seconds < self->its->seconds))
            self->its->seconds = seconds;
    }
    return AM_OK;
}

static void *run_rank(void *argument) {
    Thread *self = argument;
    if (self->comm->size <= process_processors()) keep_to_processor(self->comm->rank);
    self->status = measure(self);
    if (self->status != AM_OK) self->comm->back_end->abort(self->comm);
    return NULL;
}

static AmStatus run_case(Case *its, int32_t ranks, AmError *error) {
    Comm comms[MOST_RANKS];
    Thread threads[MOST_RANKS] = {0};
    KernelDevice *devices[MOST_RANKS] = {NULL};
    AmStatus status = AM_OK;
    TRY(comm_local.open(comms, 0, ranks, ranks, devices, NULL, error));
    for (int32_t r = 0; r < ranks; r++) {
        threads[r] = (Thread){.comm = &comms[r], .its = its, .memory = calloc(1, (size_t)its->bytes + 4)};
        if (!threads[r].memory) status = am_fail_memory(error, its->bytes);
    }
    bool is_run = status == AM_OK;
    for (int32_t r = 0; is_run && r < ranks; r++)
        pthread_create(&threads[r].thread, NULL, run_rank, &threads[r]);
    for (int32_t r = 0; r < ranks; r++) {
        if (is_run) pthread_join(threads[r].thread, NULL);
        if (threads[r].status != AM_OK) {
            status = threads[r].status;
            *error = threads[r].error;
        }
        free(threads[r].memory);
    }
    comm_local.close(comms);
    return status;
}

static double copy_seconds(int64_t bytes, int64_t calls) {
    char *from = calloc(1, (size_t)bytes), *to = calloc(1, (size_t)bytes);
    double best = 0;
    for (int32_t run = 0; from && to && run <= RUNS; run++) {
        double begin = clock_seconds();
        for (int64_t k = 0; k < calls; k++) {
            memcpy(to, from, (size_t)bytes);
            __asm__ volatile("" : : "r"(to) : "memory");
        }
        double seconds = (clock_seconds() - begin) / (double)calls;
        if (run > 0 && (run == 1 || seconds < best)) best = seconds;
    }
    free(from);
    free(to);
    return best;
}

int main(int argc, char **argv) {
    int32_t ranks = argc > 1 ? atoi(argv[1]) : 2;
    AmError error = {0};
    if (ranks < 1 || ranks > MOST_RANKS) {
        fprintf(stderr, "usage: bench_comm [RANKS], 1 to %d\n", MOST_RANKS);
        return 2;
    }
    printf("%d ranks; microseconds\n%-14s%12s%12s%12s\n", ranks, "bytes", "all_reduce", "a copy", "GB/s");
    for (int64_t bytes = 0; bytes <= INT64_C(64) << 20; bytes = bytes > 0 ? bytes * 4 : 64) {
        Case its = {.bytes = bytes};
        its.calls = (int64_t)(run_seconds / (1e-6 + (double)bytes / 4e9)) + 1;
        if (run_case(&its, ranks, &error) != AM_OK) {
            fprintf(stderr, "%s\n", error.text);
            return 1;
        }
        if (bytes == 0) printf("%-14s%12.2f\n", "a barrier", 1e6 * its.seconds);
        else
            printf("%-14lld%12.2f%12.2f%12.2f\n", (long long)bytes, 1e6 * its.seconds,
                   1e6 * copy_seconds(bytes, its.calls), (double)bytes / its.seconds / 1e9);
        fflush(stdout);
    }
    return 0;
}
