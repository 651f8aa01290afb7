/* Teams: every part runs once, whatever the size of the team and of the work. */
/* labels: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "executor/cpu/team.h"

enum { MOST = 1000 };

typedef struct Work {
    KernelDevice *device;
    atomic_int runs[MOST];
    atomic_int wrong, nested;
    int64_t sums[MOST]; /* written by the parts, read after them without any lock */
} Work;

static void count_part(void *user, int32_t part, int32_t parts) {
    Work *work = user;
    if (part < 0 || part >= parts || parts > MOST) {
        atomic_fetch_add(&work->wrong, 1);
        return;
    }
    atomic_fetch_add(&work->runs[part], 1);
    for (int32_t k = 0; k <= part; k++) work->sums[part] += k;
}

static void count_nested(void *user, int32_t part, int32_t parts) {
    (void)part, (void)parts;
    atomic_fetch_add(&((Work *)user)->nested, 1);
}

static void run_inside(void *user, int32_t part, int32_t parts) {
    Work *work = user;
    (void)part, (void)parts;
    team_run(work->device, count_nested, work, 3);
}

static KernelDevice *open_team(int32_t threads, int32_t ranks) {
    KernelDevice *device;
    AmError error = {0};
    KernelOptions options = {.threads = threads, .ranks_here = ranks};
    assert_int_equal(kernels_cpu.open(&device, &options, &error), AM_OK);
    assert_int_equal(kernels_cpu.finish(device, &error), AM_OK);
    return device;
}

/* Works of all sizes, closely after one another and with pauses in which the members fall asleep. */
static void check_parts(int32_t threads) {
    KernelDevice *device = open_team(threads, 1);
    assert_int_equal(team_size(device), threads);
    for (int32_t round = 0; round < 2000; round++) {
        static Work work;
        int32_t parts = round % 7 == 0 ? round % MOST : round % 5;
        memset(&work, 0, sizeof work);
        team_run(device, count_part, &work, parts);
        assert_int_equal(work.wrong, 0);
        for (int32_t k = 0; k < parts; k++) {
            assert_int_equal(work.runs[k], 1);
            assert_int_equal(work.sums[k], (int64_t)k * (k + 1) / 2);
        }
        if (round % 100 == 0) usleep(500);
    }
    kernels_cpu.close(device);
}

static void test_every_part_runs_once(void **state) {
    (void)state;
    check_parts(1);
    check_parts(2);
    check_parts(5);
}

static void test_work_inside_of_work(void **state) {
    (void)state;
    KernelDevice *device = open_team(3, 1);
    Work work = {.device = device};
    for (int32_t round = 0; round < 100; round++) team_run(device, run_inside, &work, 4);
    assert_int_equal(work.nested, 100 * 4 * 3);
    kernels_cpu.close(device);
}

/* The shared device has no team: any thread may use it. */
static void test_shared_device(void **state) {
    (void)state;
    Work work = {.device = &kernel_device_cpu};
    assert_int_equal(team_size(&kernel_device_cpu), 1);
    team_run(&kernel_device_cpu, count_part, &work, 10);
    for (int32_t k = 0; k < 10; k++) assert_int_equal(work.runs[k], 1);
}

static void *use_team(void *argument) {
    static Work works[4];
    Work *work = &works[(intptr_t)argument];
    KernelDevice *device = open_team(2, 4);
    for (int32_t round = 0; round < 500; round++) team_run(device, count_part, work, 6);
    kernels_cpu.close(device);
    for (int32_t k = 0; k < 6; k++)
        if (work->runs[k] != 500) return "a part was lost";
    return NULL;
}

static void test_several_teams(void **state) {
    pthread_t threads[4];
    (void)state;
    for (intptr_t k = 0; k < 4; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, use_team, (void *)k), 0);
    for (int32_t k = 0; k < 4; k++) {
        void *failure;
        pthread_join(threads[k], &failure);
        assert_null(failure);
    }
}

static void test_size_by_default(void **state) {
    (void)state;
    KernelDevice *device = open_team(0, 100000);
    assert_int_equal(team_size(device), 1);
    kernels_cpu.close(device);
    device = open_team(0, 0);
    assert_true(team_size(device) >= 1);
    assert_int_equal(team_parts(device, 1), 1);
    assert_int_equal(team_parts(device, 1e9), team_size(device));
    kernels_cpu.close(device);
}

static void test_stretches(void **state) {
    (void)state;
    for (int64_t count = 0; count < 100; count++)
        for (int32_t parts = 1; parts < 9; parts++) {
            int64_t first, end, last = 0;
            for (int32_t part = 0; part < parts; part++) {
                team_stretch(count, 8, part, parts, &first, &end);
                assert_int_equal(first, last);
                assert_true(end >= first && (end % 8 == 0 || end == count));
                last = end;
            }
            assert_int_equal(last, count);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_part_runs_once), cmocka_unit_test(test_work_inside_of_work),
        cmocka_unit_test(test_shared_device),        cmocka_unit_test(test_several_teams),
        cmocka_unit_test(test_size_by_default),      cmocka_unit_test(test_stretches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
