/* Collectives between threads on 2, 3, 4 and 8 ranks, with uneven parts, against
 * the whole arrays; a rank that fails releases the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "executor/comm.h"

enum { MOST_RANKS = 8, OUTER = 3, INNER = 2 };

typedef struct Job {
    Comm *comm;
    const ProgramCollective *collective;
    IrShape operand, result;
    void *in, *out;
    int32_t repeats;
    bool fails;
    AmStatus status;
    AmError error;
} Job;

static void *run_job(void *argument) {
    Job *job = argument;
    const IrShape *shapes[2] = {&job->operand, &job->result};
    void *addresses[2] = {job->in, job->out};
    CommCall call = {.collective = job->collective,
                     .operand_count = 1,
                     .operand_shapes = shapes,
                     .result_shapes = shapes + 1,
                     .operands = addresses,
                     .results = addresses + 1};
    const ProgramCollective *collective = job->collective;
    for (int32_t k = 0; k < collective->group_count; k++)
        if (collective->group[k] == job->comm->rank) call.position = k;
    const CommBackEnd *back_end = job->comm->back_end;
    job->status =
        back_end->join(job->comm, collective->group, collective->group_count, &call.group, &job->error);
    if (job->fails) {
        back_end->abort(job->comm);
        return NULL;
    }
    for (int32_t k = 0; k < job->repeats && job->status == AM_OK; k++)
        job->status = back_end->run(job->comm, &call, &job->error);
    return NULL;
}

static void run_jobs(Job *jobs, int32_t ranks) {
    pthread_t threads[MOST_RANKS];
    Comm comms[MOST_RANKS];
    KernelDevice *devices[MOST_RANKS] = {NULL};
    for (int32_t r = 0; r < ranks; r++) devices[r] = &kernel_device_cpu;
    assert_int_equal(comm_local.open(comms, 0, ranks, ranks, devices, NULL, NULL), AM_OK);
    for (int32_t r = 0; r < ranks; r++) {
        jobs[r].comm = &comms[r];
        if (jobs[r].repeats == 0) jobs[r].repeats = 1;
        pthread_create(&threads[r], NULL, run_job, &jobs[r]);
    }
    for (int32_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    comm_local.close(comms);
}

/* Part k of the split dimension has k % 3 + 1 elements. */
static int64_t make_parts(int64_t *parts, int32_t ranks) {
    int64_t total = 0;
    for (int32_t k = 0; k < ranks; k++) total += parts[k] = k % 3 + 1;
    return total;
}

static float value_at(int32_t rank, int64_t o, int64_t d, int64_t i) {
    return (float)(rank * 1000 + o * 100 + d * 10 + i);
}

static const int32_t everybody[MOST_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};

static void check_gather_and_scatter(int32_t ranks) {
    int64_t parts[MOST_RANKS], whole = make_parts(parts, ranks), start = 0;
    int64_t whole_dimensions[3] = {OUTER, whole, INNER}, dimensions[MOST_RANKS][3];
    ProgramMovement movement = {.dimension = 1, .other = -1, .parts = parts};
    for (int scatter = 0; scatter < 2; scatter++) {
        ProgramCollective collective = {.kind = scatter ? PROGRAM_REDUCE_SCATTER : PROGRAM_ALL_GATHER,
                                        .reduction = SBP_ADD,
                                        .group_count = ranks,
                                        .group = everybody,
                                        .movements = &movement};
        Job jobs[MOST_RANKS] = {0};
        start = 0;
        for (int32_t r = 0; r < ranks; r++) {
            memcpy(dimensions[r], (int64_t[]){OUTER, parts[r], INNER}, sizeof dimensions[r]);
            IrShape local = {.type = DTYPE_F32, .rank = 3, .dimensions = dimensions[r]};
            IrShape all = {.type = DTYPE_F32, .rank = 3, .dimensions = whole_dimensions};
            jobs[r] = (Job){
                .collective = &collective, .operand = scatter ? all : local, .result = scatter ? local : all};
            float *in = jobs[r].in = malloc(sizeof(float) * (size_t)ir_shape_elements(&jobs[r].operand));
            jobs[r].out = malloc(sizeof(float) * (size_t)ir_shape_elements(&jobs[r].result));
            int64_t extent = scatter ? whole : parts[r];
            for (int64_t o = 0; o < OUTER; o++)
                for (int64_t d = 0; d < extent; d++)
                    for (int64_t i = 0; i < INNER; i++)
                        in[(o * extent + d) * INNER + i] =
                            scatter ? value_at(r, o, d, i) : value_at(0, o, start + d, i);
            start += parts[r];
        }
        run_jobs(jobs, ranks);
        start = 0;
        for (int32_t r = 0; r < ranks; r++) {
            const float *out = jobs[r].out;
            int64_t extent = scatter ? parts[r] : whole;
            assert_int_equal(jobs[r].status, AM_OK);
            for (int64_t o = 0; o < OUTER; o++)
                for (int64_t d = 0; d < extent; d++)
                    for (int64_t i = 0; i < INNER; i++) {
                        float expected = value_at(0, o, d, i);
                        if (scatter) {
                            expected = 0;
                            for (int32_t q = 0; q < ranks; q++) expected += value_at(q, o, start + d, i);
                        }
                        assert_true(out[(o * extent + d) * INNER + i] == expected);
                    }
            start += parts[r];
            free(jobs[r].in);
            free(jobs[r].out);
        }
    }
}

static void test_all_gather_and_reduce_scatter(void **state) {
    (void)state;
    static const int32_t counts[] = {2, 3, 4, 8};
    for (int k = 0; k < 4; k++) check_gather_and_scatter(counts[k]);
}

/* Operand: part of dimension 0, whole dimension 1; result the other way round. */
static void check_all_to_all(int32_t ranks) {
    int64_t parts[MOST_RANKS], others[MOST_RANKS], whole = make_parts(parts, ranks), other = 0, start = 0;
    int64_t in_dimensions[MOST_RANKS][2], out_dimensions[MOST_RANKS][2];
    for (int32_t k = 0; k < ranks; k++) other += others[k] = (k + 1) % 2 + 1;
    ProgramMovement movement = {.dimension = 0, .other = 1, .parts = parts, .other_parts = others};
    ProgramCollective collective = {
        .kind = PROGRAM_ALL_TO_ALL, .group_count = ranks, .group = everybody, .movements = &movement};
    Job jobs[MOST_RANKS] = {0};
    for (int32_t r = 0; r < ranks; r++) {
        in_dimensions[r][0] = parts[r], in_dimensions[r][1] = other;
        out_dimensions[r][0] = whole, out_dimensions[r][1] = others[r];
        jobs[r] = (Job){.collective = &collective,
                        .operand = {.type = DTYPE_S64, .rank = 2, .dimensions = in_dimensions[r]},
                        .result = {.type = DTYPE_S64, .rank = 2, .dimensions = out_dimensions[r]}};
        int64_t *in = jobs[r].in = malloc(sizeof(int64_t) * (size_t)(parts[r] * other));
        jobs[r].out = malloc(sizeof(int64_t) * (size_t)(whole * others[r]));
        for (int64_t i = 0; i < parts[r] * other; i++) in[i] = start * other + i;
        start += parts[r];
    }
    run_jobs(jobs, ranks);
    start = 0;
    for (int32_t r = 0; r < ranks; r++) {
        assert_int_equal(jobs[r].status, AM_OK);
        for (int64_t i = 0; i < whole; i++)
            for (int64_t j = 0; j < others[r]; j++)
                assert_int_equal(((int64_t *)jobs[r].out)[i * others[r] + j], i * other + start + j);
        start += others[r];
        free(jobs[r].in);
        free(jobs[r].out);
    }
}

static void test_all_to_all(void **state) {
    (void)state;
    static const int32_t counts[] = {2, 3, 4, 8};
    for (int k = 0; k < 4; k++) check_all_to_all(counts[k]);
}

static void check_all_reduce(int32_t ranks, SbpReduction reduction, bool in_place) {
    enum { COUNT = 1001 };
    int64_t dimensions[1] = {COUNT};
    ProgramCollective collective = {
        .kind = PROGRAM_ALL_REDUCE, .reduction = reduction, .group_count = ranks, .group = everybody};
    Job jobs[MOST_RANKS] = {0};
    for (int32_t r = 0; r < ranks; r++) {
        IrShape shape = {.type = DTYPE_F32, .rank = 1, .dimensions = dimensions};
        float *in = malloc(sizeof(float) * COUNT);
        for (int i = 0; i < COUNT; i++) in[i] = (float)((i * 31 + r * 17) % 101 - 50);
        jobs[r] = (Job){.collective = &collective,
                        .operand = shape,
                        .result = shape,
                        .in = in,
                        .out = in_place ? in : malloc(sizeof(float) * COUNT)};
    }
    run_jobs(jobs, ranks);
    for (int32_t r = 0; r < ranks; r++) {
        assert_int_equal(jobs[r].status, AM_OK);
        for (int i = 0; i < COUNT; i++) {
            float expected = (float)((i * 31) % 101 - 50);
            for (int32_t q = 1; q < ranks; q++) {
                float value = (float)((i * 31 + q * 17) % 101 - 50);
                if (reduction == SBP_ADD) expected += value;
                else expected = value > expected ? value : expected;
            }
            assert_true(((float *)jobs[r].out)[i] == expected);
        }
        if (!in_place) free(jobs[r].out);
        free(jobs[r].in);
    }
}

static void test_all_reduce(void **state) {
    (void)state;
    static const int32_t counts[] = {1, 2, 3, 4, 8};
    for (int k = 0; k < 5; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            check_all_reduce(counts[k], SBP_ADD, in_place);
            check_all_reduce(counts[k], SBP_MAX, in_place);
        }
}

/* Two groups of two reduce at their own pace, many times, to the sum of their own members. */
static void test_groups_do_not_meet(void **state) {
    (void)state;
    static const int32_t groups[2][2] = {{0, 2}, {1, 3}};
    int64_t dimensions[1] = {5};
    IrShape shape = {.type = DTYPE_S32, .rank = 1, .dimensions = dimensions};
    ProgramCollective collectives[2];
    int32_t in[4][5], out[4][5];
    Job jobs[MOST_RANKS] = {0};
    for (int32_t g = 0; g < 2; g++)
        collectives[g] = (ProgramCollective){
            .kind = PROGRAM_ALL_REDUCE, .reduction = SBP_ADD, .group_count = 2, .group = groups[g]};
    for (int32_t r = 0; r < 4; r++) {
        for (int i = 0; i < 5; i++) in[r][i] = 10 * r + i;
        jobs[r] = (Job){.collective = &collectives[r % 2],
                        .operand = shape,
                        .result = shape,
                        .in = in[r],
                        .out = out[r],
                        .repeats = r % 2 ? 7 : 50};
    }
    run_jobs(jobs, 4);
    for (int32_t r = 0; r < 4; r++)
        for (int i = 0; i < 5; i++) assert_int_equal(out[r][i], 10 * (2 * (r % 2) + 2) + 2 * i);
}

static void test_failure_releases_the_others(void **state) {
    (void)state;
    int64_t dimensions[1] = {4};
    IrShape shape = {.type = DTYPE_F32, .rank = 1, .dimensions = dimensions};
    ProgramCollective collective = {
        .kind = PROGRAM_ALL_REDUCE, .reduction = SBP_ADD, .group_count = 3, .group = everybody};
    float in[3][4] = {{0}}, out[3][4];
    Job jobs[MOST_RANKS] = {0};
    for (int32_t r = 0; r < 3; r++)
        jobs[r] = (Job){.collective = &collective,
                        .operand = shape,
                        .result = shape,
                        .in = in[r],
                        .out = out[r],
                        .fails = r == 1};
    run_jobs(jobs, 3);
    assert_int_equal(jobs[0].status, AM_ERROR_RUNTIME);
    assert_int_equal(jobs[2].status, AM_ERROR_RUNTIME);
    assert_non_null(strstr(jobs[2].error.text, "rank 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_gather_and_reduce_scatter),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_groups_do_not_meet),
        cmocka_unit_test(test_failure_releases_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
