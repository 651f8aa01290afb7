/* The GPUs of this machine as a cluster file: every figure is there and can be
 * read; GPUs of one kind are measured once; devices may share a GPU; nothing of
 * the device is left behind, also by failures. Skipped (77) without CUDA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "cost/cluster.h"
#include "executor/probe.h"
#include "tests/cuda/stand_in/stand_in.h"

static const StandIn *stand;

static void assert_nothing_left(void) {
    StandInMemory memory;
    if (!stand) return;
    stand->memory(&memory);
    assert_int_equal(memory.allocations, 0);
}

static AmStatus count_product(void *user, const char *type, const Program *program, int32_t step,
                              double seconds, AmError *error) {
    (void)error;
    *(int32_t *)user += type[0] != '\0' && step < program->step_count && seconds > 0;
    return AM_OK;
}

static void test_measured(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    json_t *description;
    int32_t cards = cuda_device_count();
    for (int32_t share = 1; share <= 2; share++) {
        int32_t products = 0;
        const ProbeListener listener = {.operator= count_product, .user = &products};
        if (probe_measure(&description, "cuda", share * cards, 0.2, &listener, &error) != AM_OK ||
            cluster_from_json(&cluster, &arena, description, "probe", &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_int_equal(cluster->device_count, share * cards);
        assert_true(products >= 4); /* each is an event, for a profile */
        const ClusterDeviceType *type = cluster_device_type(cluster, 0);
        static const Dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};
        for (size_t k = 0; k < 4; k++) assert_true(type->named[types[k]]);
        assert_true(type->dot[DTYPE_F32].count > 0 && type->memory.count > 0);
        assert_true(type->memory_bytes_per_second > 0 && type->kernel_launch_seconds > 0);
        assert_int_equal(cluster->link_count, share * cards > 1);
        if (stand) assert_int_equal(cluster->type_count, 1);
        if (stand) assert_int_equal(type->memory_bytes, (INT64_C(4) << 30) / share);
        cluster_free(cluster);
        json_decref(description);
    }
    assert_nothing_left();
    arena_free(&arena);
}

static void test_refused(void **state) {
    (void)state;
    AmError error = {0};
    json_t *description;
    if (cuda_device_count() == 2)
        assert_int_equal(probe_measure(&description, "cuda", 3, 0, NULL, &error), AM_ERROR_USAGE);
    if (!stand) return;
    static const char *const failures[][2] = {
        {"cuMemAlloc=2@2", "out of memory on GPU 0"},
        {"cuLaunchKernel=719", "starting a kernel"},
        {"cuStreamSynchronize=700", "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {"cuMemcpyPeerAsync=719", "copying between devices"},
    };
    for (size_t k = 0; k < sizeof failures / sizeof *failures; k++) {
        error = (AmError){0};
        stand->reset();
        (stand->fail)(failures[k][0]);
        assert_int_equal(probe_measure(&description, "cuda", 2, 0, NULL, &error), AM_ERROR_RUNTIME);
        assert_null(description);
        assert_non_null(strstr(error.text, failures[k][1]));
        (stand->fail)("");
        assert_nothing_left();
    }
}

int main(void) {
    AmError error = {0};
    setenv("STAND_IN_DEVICES", "2", 1);
    if (cuda_driver_open(&error) != AM_OK) {
        printf("skipped: %s\n", error.text);
        return SKIPPED;
    }
    stand = stand_in();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
