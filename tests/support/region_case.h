/* Collectives inside of loops, branches and computations: a program given as
 * text, run by ranks as threads. Shared by the tests of the CPU and of CUDA.
 *
 * In the text a custom call "all_reduce" stands for the sum over all ranks, and
 * "all_gather" for their parts along dimension 0 one after the other. */
#ifndef TESTS_SUPPORT_REGION_CASE_H
#define TESTS_SUPPORT_REGION_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

enum { REGION_MOST_RANKS = 4, REGION_SIZE = 4, REGION_RUNS = 4 };

/* (x, w): n = 3..1 { x = sum(x) + w; if n is odd x = sum(x - w), else x = 2 x; twice: x += sum(w);
 * x += the first element of all ranks' w, by way of a fusion that gathers }. */
static const char region_text[] =
    "HloModule m\n"
    "inner_condition { s = (s32[4], s32[4], s32[]) parameter(0)\n"
    "  m = s32[] get-tuple-element(s), index=2 zero = s32[] constant(0)\n"
    "  ROOT c = pred[] compare(m, zero), direction=GT }\n"
    "inner { s = (s32[4], s32[4], s32[]) parameter(0)\n"
    "  x = s32[4] get-tuple-element(s), index=0 w = s32[4] get-tuple-element(s), index=1\n"
    "  m = s32[] get-tuple-element(s), index=2 one = s32[] constant(1)\n"
    "  t = s32[4] custom-call(w), custom_call_target=\"all_reduce\"\n"
    "  y = s32[4] add(x, t) less = s32[] subtract(m, one)\n"
    "  ROOT r = (s32[4], s32[4], s32[]) tuple(y, w, less) }\n"
    "odd { p = (s32[4], s32[4]) parameter(0)\n"
    "  x = s32[4] get-tuple-element(p), index=0 w = s32[4] get-tuple-element(p), index=1\n"
    "  y = s32[4] subtract(x, w)\n"
    "  ROOT t = s32[4] custom-call(y), custom_call_target=\"all_reduce\" }\n"
    "even { x = s32[4] parameter(0) ROOT y = s32[4] add(x, x) }\n"
    "first { w = s32[4] parameter(0) f = s32[1] slice(w), slice={[0:1]}\n"
    "  ROOT g = s32[RANKS] custom-call(f), custom_call_target=\"all_gather\" }\n"
    "plus { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] add(a, b) }\n"
    "condition { s = (s32[4], s32[4], s32[]) parameter(0)\n"
    "  n = s32[] get-tuple-element(s), index=2 zero = s32[] constant(0)\n"
    "  ROOT c = pred[] compare(n, zero), direction=GT }\n"
    "body { s = (s32[4], s32[4], s32[]) parameter(0)\n"
    "  x = s32[4] get-tuple-element(s), index=0 w = s32[4] get-tuple-element(s), index=1\n"
    "  n = s32[] get-tuple-element(s), index=2 one = s32[] constant(1) two = s32[] constant(2)\n"
    "  zero = s32[] constant(0)\n"
    "  t = s32[4] custom-call(x), custom_call_target=\"all_reduce\"\n"
    "  y = s32[4] add(t, w) half = s32[] remainder(n, two)\n"
    "  is = pred[] compare(half, zero), direction=NE both = (s32[4], s32[4]) tuple(y, w)\n"
    "  z = s32[4] conditional(is, both, y), true_computation=odd, false_computation=even\n"
    "  i = (s32[4], s32[4], s32[]) tuple(z, w, two)\n"
    "  j = (s32[4], s32[4], s32[]) while(i), condition=inner_condition, body=inner\n"
    "  v = s32[4] get-tuple-element(j), index=0\n"
    "  g = s32[RANKS] fusion(w), kind=kLoop, calls=first\n"
    "  all = s32[] reduce(g, zero), dimensions={0}, to_apply=plus\n"
    "  wide = s32[4] broadcast(all), dimensions={} u = s32[4] add(v, wide)\n"
    "  less = s32[] subtract(n, one)\n"
    "  ROOT r = (s32[4], s32[4], s32[]) tuple(u, w, less) }\n"
    "ENTRY e { x = s32[4] parameter(0) w = s32[4] parameter(1) n = s32[] constant(3)\n"
    "  t = (s32[4], s32[4], s32[]) tuple(x, w, n)\n"
    "  r = (s32[4], s32[4], s32[]) while(t), condition=condition, body=body\n"
    "  ROOT y = s32[4] get-tuple-element(r), index=0 }\n";

typedef struct RegionRank {
    Arena arena;
    Comm *comm;
    IrModule *module, *canonical;
    Executable *ready;
    char *memory;
    int32_t run; /* that was wrong first; -1: none */
    AmStatus status;
    AmError error;
    pthread_t thread;
} RegionRank;

static inline int32_t region_given(int32_t rank, int32_t k, int32_t i) {
    return (rank + 1) * (k == 0 ? 3 : -2) + i;
}

static inline int32_t region_sum(int32_t ranks, int32_t (*all)[REGION_SIZE], int32_t i) {
    int32_t sum = 0;
    for (int32_t r = 0; r < ranks; r++) sum += all[r][i];
    return sum;
}

/* The expected values of every rank, element by element. */
static inline void region_expected(int32_t ranks, int32_t (*x)[REGION_SIZE]) {
    int32_t w[REGION_MOST_RANKS][REGION_SIZE], next[REGION_MOST_RANKS][REGION_SIZE];
    for (int32_t r = 0; r < ranks; r++)
        for (int32_t i = 0; i < REGION_SIZE; i++)
            x[r][i] = region_given(r, 0, i), w[r][i] = region_given(r, 1, i);
    for (int32_t n = 3; n > 0; n--) {
        for (int32_t r = 0; r < ranks; r++)
            for (int32_t i = 0; i < REGION_SIZE; i++) {
                next[r][i] = region_sum(ranks, x, i) + w[r][i];
                next[r][i] = n % 2 ? next[r][i] - w[r][i] : 2 * next[r][i];
            }
        for (int32_t r = 0; r < ranks; r++)
            for (int32_t i = 0; i < REGION_SIZE; i++) {
                x[r][i] = n % 2 ? region_sum(ranks, next, i) : next[r][i];
                x[r][i] += 2 * region_sum(ranks, w, i) + region_sum(ranks, w, 0);
            }
    }
}

/* Makes collectives of the custom calls, here and in all regions. */
static inline void region_add_collectives(Program *program, const Comm *comm) {
    for (int32_t k = 0; k < program->instruction_count; k++) {
        ProgramInstruction *instruction = &program->instructions[k];
        for (int32_t r = 0; r < instruction->regions.count; r++)
            region_add_collectives(instruction->regions.programs[r], comm);
        if (instruction->opcode != IR_CUSTOM_CALL) continue;
        bool gathers = strcmp(instruction->attributes->custom_call_target, "all_gather") == 0;
        ProgramCollective *collective = ARENA_ARRAY(program->arena, ProgramCollective, 1);
        ProgramMovement *movement = ARENA_ARRAY(program->arena, ProgramMovement, 1);
        int32_t *group = ARENA_ARRAY(program->arena, int32_t, comm->size);
        int64_t *parts = ARENA_ARRAY(program->arena, int64_t, comm->size);
        for (int32_t m = 0; m < comm->size; m++) group[m] = m, parts[m] = 1;
        *movement = (ProgramMovement){.dimension = 0, .other = -1, .parts = parts};
        *collective = (ProgramCollective){.kind = gathers ? PROGRAM_ALL_GATHER : PROGRAM_ALL_REDUCE,
                                          .reduction = SBP_ADD,
                                          .group_count = comm->size,
                                          .group = group,
                                          .movements = gathers ? movement : NULL};
        instruction->kind = PROGRAM_COLLECTIVE;
        instruction->collective = collective;
    }
}

static inline AmStatus region_open(RegionRank *self) {
    KernelDevice *device = self->comm->device;
    AmError *error = &self->error;
    char text[sizeof region_text], *at;
    Program *program;
    memcpy(text, region_text, sizeof region_text);
    while ((at = strstr(text, "RANKS"))) {
        memset(at, ' ', strlen("RANKS"));
        *at = (char)('0' + self->comm->size);
    }
    TRY(ir_read_bytes(&self->module, "test", text, (int64_t)(sizeof region_text - 1), error));
    TRY(ir_canonicalize(&self->canonical, self->module, error));
    TRY(program_from_computation(&program, &self->arena, self->canonical, self->canonical->entry, false,
                                 error));
    region_add_collectives(program, self->comm);
    TRY(executable_prepare(&self->ready, &self->arena, device, self->comm, program, false, error));
    TRY(executable_allocate(self->ready, &self->memory, NULL, error));
    if (device->back_end->finish) TRY(device->back_end->finish(device, error));
    return self->comm->back_end->start ? self->comm->back_end->start(self->comm, error) : AM_OK;
}

static inline AmStatus region_run(RegionRank *self, int32_t run) {
    Comm *comm = self->comm;
    const KernelBackEnd *kernels = comm->device->back_end;
    int32_t expected[REGION_MOST_RANKS][REGION_SIZE], got[REGION_SIZE];
    region_expected(comm->size, expected);
    TRY(executable_run(self->ready, &self->error));
    if (comm->back_end->await) TRY(comm->back_end->await(comm, &self->error));
    TRY(kernels->synchronize(comm->device, &self->error));
    kernels->copy_out(comm->device, got, executable_output(self->ready, 0), sizeof got);
    if (self->run < 0 && memcmp(got, expected[comm->rank], sizeof got) != 0) self->run = run;
    return AM_OK;
}

static inline AmStatus region_work(RegionRank *self) {
    TRY(region_open(self));
    for (int32_t k = 0; k < 2; k++) {
        int32_t given[REGION_SIZE];
        for (int32_t i = 0; i < REGION_SIZE; i++) given[i] = region_given(self->comm->rank, k, i);
        self->comm->device->back_end->copy_in(self->comm->device, executable_parameter(self->ready, k), given,
                                              sizeof given);
    }
    for (int32_t run = 0; run < REGION_RUNS; run++) TRY(region_run(self, run));
    return AM_OK;
}

static inline void *region_thread(void *argument) {
    RegionRank *self = argument;
    self->run = -1;
    self->status = region_work(self);
    if (self->status != AM_OK) self->comm->back_end->abort(self->comm);
    return NULL;
}

/* Opens everything, runs REGION_RUNS times on `ranks` ranks, closes everything. */
static inline void region_run_ranks(const KernelBackEnd *kernels, const CommBackEnd *collectives,
                                    const CommBackEnd *stand_in, int32_t ranks, RegionRank *all) {
    KernelDevice *devices[REGION_MOST_RANKS] = {NULL};
    Comm comms[REGION_MOST_RANKS];
    AmError error = {0};
    for (int32_t r = 0; r < ranks; r++)
        if (kernels->open(&devices[r], &(KernelOptions){.index = r}, &error) != AM_OK)
            fail_msg("%s", error.text);
    if (collectives->open(comms, 0, ranks, ranks, devices, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t r = 0; r < ranks; r++) {
        if (stand_in) comms[r].back_end = stand_in;
        all[r] = (RegionRank){.comm = &comms[r]};
        pthread_create(&all[r].thread, NULL, region_thread, &all[r]);
    }
    for (int32_t r = 0; r < ranks; r++) pthread_join(all[r].thread, NULL);
    for (int32_t r = 0; r < ranks; r++) kernels->synchronize(devices[r], NULL);
    for (int32_t r = 0; r < ranks; r++) {
        if (all[r].memory) kernels->release(devices[r], all[r].memory);
        arena_free(&all[r].arena);
        ir_module_free(all[r].canonical);
        ir_module_free(all[r].module);
    }
    collectives->close(comms);
    for (int32_t r = 0; r < ranks; r++) kernels->close(devices[r]);
}

static inline void region_check(const KernelBackEnd *kernels, const CommBackEnd *collectives, int32_t ranks) {
    RegionRank all[REGION_MOST_RANKS];
    region_run_ranks(kernels, collectives, NULL, ranks, all);
    for (int32_t r = 0; r < ranks; r++) {
        if (all[r].status != AM_OK) fail_msg("rank %d of %d: %s", r, ranks, all[r].error.text);
        if (all[r].run >= 0) fail_msg("rank %d of %d: run %d is wrong", r, ranks, all[r].run);
    }
}

/* The failing collective: the first one of the second iteration of the outer loop. */
enum { REGION_FAILING_RANK = 1, REGION_FAILING_RUN = 5 };
static int32_t region_runs_until_failure;
static const CommBackEnd *region_real;

static inline AmStatus region_failing_run(Comm *comm, const CommCall *call, AmError *error) {
    if (comm->rank == REGION_FAILING_RANK && region_runs_until_failure-- == 0)
        return am_fail(error, AM_ERROR_RUNTIME, "", "this rank gives up");
    return region_real->run(comm, call, error);
}

/* A collective that fails in a loop ends it, and the other ranks are released from theirs. */
static inline void region_check_failure(const KernelBackEnd *kernels, const CommBackEnd *collectives) {
    RegionRank all[REGION_MOST_RANKS];
    CommBackEnd failing = *collectives;
    failing.run = region_failing_run;
    region_real = collectives;
    region_runs_until_failure = REGION_FAILING_RUN;
    region_run_ranks(kernels, collectives, &failing, 3, all);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(all[r].status, AM_ERROR_RUNTIME);
        if (r == REGION_FAILING_RANK) assert_non_null(strstr(all[r].error.text, "gives up"));
    }
}

#endif
