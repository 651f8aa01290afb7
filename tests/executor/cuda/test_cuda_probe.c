/* The GPUs of this machine as a cluster file: every figure is there and can be
 * read; GPUs of one kind are measured once; devices may share a GPU; collectives
 * are NCCL's, recorded as in a step, of every kind, count and size; without NCCL
 * they are those of one process; nothing of the device remains, also by
 * failures. Skipped (77) without CUDA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "automap_features.h"

enum { SKIPPED = 77, MEMORY = 12 << 20 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "base/files/json.h"
#include "base/system/clock.h"
#include "cost/cluster/cluster.h"
#include "cost/cluster/operator_curves.h"
#include "executor/calibrate/probe.h"
#include "executor/calibrate/probe_collectives.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/gpu_present.h"

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
    *(int32_t *)user += type[0] != '\0' && step < program->execution.step_count && seconds > 0;
    return AM_OK;
}

static void test_measured(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    json_t *description;
    int32_t cards = cuda_device_count();
    /* Kernels of the stand-in take long. */
    for (int32_t share = stand && !getenv("AUTOMAP_FULL") ? 2 : 1; share <= 2; share++) {
        int32_t products = 0;
        const ProbeListener listener = {.on_operator = count_product, .user = &products};
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
        if (stand) assert_int_equal(type->memory_bytes, MEMORY / share);
        cluster_free(cluster);
        json_decref(description);
    }
    assert_nothing_left();
    arena_free(&arena);
}

/* The reports of a probe while it measures. */
typedef struct Told {
    double done; /* as far as it has said */
    int32_t collectives;
    double least, most; /* ranks */
} Told;

static void take_progress(void *user, double done) {
    Told *told = user;
    assert_true(done >= told->done && done <= 1);
    told->done = done;
}

static AmStatus take_collective(void *user, const char *type, ProgramCollectiveKind kind, int32_t ranks,
                                double bytes, double seconds, AmError *error) {
    Told *told = user;
    (void)error;
    assert_true(type[0] != '\0' && kind < PROGRAM_HALO_EXCHANGE && bytes >= 1024 && seconds > 0);
    if (told->collectives++ == 0) told->least = told->most = ranks;
    if (ranks < told->least) told->least = ranks;
    if (ranks > told->most) told->most = ranks;
    return AM_OK;
}

/* Probes the cards; *link is the first link's description, borrowed from the description. */
static void probe_cards(json_t **description, json_t **link, int32_t devices, Told *told,
                        AmWarnings *warnings) {
    AmError error = {0};
    const ProbeListener listener = {
        .progress = take_progress, .collective = take_collective, .user = told, .warnings = warnings};
    if (probe_measure(description, "cuda", devices, 0.2, &listener, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_true(told->done == 1);
    *link = json_object_get(json_object_get(*description, "links"), "link");
}

/* Every kind has a time for each count of ranks and size; the cluster that is read back has them, too. A
 * probe on a crowded machine has time for few sizes. */
static void check_curves(json_t *description, json_t *collectives, const int32_t *groups, size_t count,
                         size_t least_sizes) {
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
    Arena arena = {0};
    Cluster *cluster;
    assert_int_equal(cluster_from_json(&cluster, &arena, description, "probe", NULL), AM_OK);
    assert_int_equal(json_object_size(collectives), 4);
    for (int32_t k = 0; k < 4; k++) {
        json_t *curve = json_object_get(collectives, kinds[k]), *seconds = json_object_get(curve, "seconds");
        json_t *ranks = json_array_get(json_object_get(curve, "sizes"), 0);
        json_t *bytes = json_array_get(json_object_get(curve, "sizes"), 1);
        size_t sizes = json_array_size(bytes);
        assert_int_equal(json_array_size(ranks), count);
        assert_true(sizes >= least_sizes);
        assert_int_equal(json_array_size(seconds), count * sizes);
        for (size_t g = 0; g < count; g++) {
            assert_int_equal(json_integer_value(json_array_get(ranks, g)), groups[g]);
            for (size_t s = 0; s < sizes; s++) {
                double at = json_real_value(json_array_get(seconds, g * sizes + s));
                const double size[] = {groups[g], (double)json_integer_value(json_array_get(bytes, s))};
                assert_true(at > 0 && at < 1);
                if (s > 0) assert_true(at >= json_real_value(json_array_get(seconds, g * sizes + s - 1)));
                double read = operator_curve_seconds(cluster->links[0].collectives,
                                                     (OperatorClass)(OPERATOR_FIRST_OF_LINKS + k), size);
                assert_true(read > 0.999 * at && read < 1.001 * at);
            }
        }
    }
    cluster_free(cluster);
    arena_free(&arena);
}

static void test_collectives(void **state) {
    (void)state;
    static const int32_t groups[] = {2, 4};
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    Told told = {0};
    ProbeRanks ranks;
    const ProbeListener listener = {.collective = take_collective, .user = &told, .type = "card"};
    json_t *description, *link, *of_four;
    if (!stand) skip();
    stand->reset();
    probe_cards(&description, &link, 2, &told, &warnings);
    json_t *collectives = json_object_get(link, "collectives");
    check_curves(description, collectives, groups, 1, 1);
    assert_true(told.least == 2 && told.most == 2);
    size_t points = json_array_size(json_object_get(json_object_get(collectives, "all_gather"), "seconds"));
    assert_int_equal(told.collectives, 4 * points);
#ifdef AUTOMAP_HAVE_NCCL
    static const char *const calls[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclSend"};
    for (size_t k = 0; k < 4; k++) assert_true(stand->count(calls[k]) > 0);
    assert_true(stand->count("cuGraphLaunch") > 0 && stand->count("cuEventElapsedTime") > 0);
    assert_int_equal(stand->count("cuMemcpyPeerAsync"), 0);
    assert_int_equal(warnings.count, 0);
#endif
    assert_true(json_real_value(json_object_get(link, "bytes_per_second")) > 0);
    assert_true(json_array_size(json_object_get(link, "efficiency")) >= 2);
    assert_true(probe_cuda.find_ranks(&ranks, 0, 4, 4));
    ranks.most_bytes = 3 << 16;
    assert_int_equal(probe_collectives(&of_four, &ranks, clock_seconds() + 20, &listener, NULL), AM_OK);
    json_object_set_new(link, "collectives", of_four);
    check_curves(description, of_four, groups, 2, 3);
    assert_true(told.most == 4);
    json_decref(description);
    assert_nothing_left();
    arena_free(&arena);
}

/* Ranks meet in another way where NCCL cannot, which is said. */
static void test_without_nccl(void **state) {
    (void)state;
    static const int32_t groups[] = {2};
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    Told told = {0};
    json_t *description, *link;
    if (!stand) skip();
#ifdef AUTOMAP_HAVE_NCCL
    stand->reset();
    (stand->fail)("ncclCommInitRankConfig=2");
    probe_cards(&description, &link, 2, &told, &warnings);
    (stand->fail)("");
    assert_non_null(strstr(warnings.texts[0], "'nccl' are not measured: NCCL: connecting"));
    assert_int_equal(stand->count("ncclAllReduce"), 0);
    /* A crowded machine may have no time for stand-ins to meet, which is said, too. */
    if (warnings.count == 2) assert_non_null(strstr(warnings.texts[1], "there was no time"));
    else check_curves(description, json_object_get(link, "collectives"), groups, 1, 1);
    assert_true(warnings.count <= 2);
    json_decref(description);
    assert_nothing_left();
#endif
    told = (Told){0};
    warnings.count = 0;
    probe_cards(&description, &link, 1, &told, &warnings); /* nobody to meet */
    assert_null(link);
    assert_int_equal(warnings.count, 1);
    assert_non_null(strstr(warnings.texts[0], "no collectives to measure"));
    json_decref(description);
    assert_nothing_left();
    arena_free(&arena);
}

/* Time that is up leaves whole sizes out, or all. */
static void test_late(void **state) {
    (void)state;
    ProbeRanks ranks;
    json_t *collectives;
    const ProbeListener nobody = {0};
    if (!stand) skip();
    assert_true(probe_cuda.find_ranks(&ranks, 0, 2, 2));
    ranks.most_bytes = 1 << 20;
    assert_int_equal(probe_collectives(&collectives, &ranks, 0, &nobody, NULL), AM_OK);
    assert_int_equal(json_object_size(collectives), 0);
    json_decref(collectives);
    assert_nothing_left();
}

static void test_refused(void **state) {
    (void)state;
    AmError error = {0};
    json_t *description;
    if (cuda_device_count() == 4)
        assert_int_equal(probe_measure(&description, "cuda", 5, 0, NULL, &error), AM_ERROR_USAGE);
    if (!stand) return;
    static const char *const failures[][2] = {
        {"cuMemAlloc=2@2", "out of memory on GPU 0"},
        {"cuLaunchKernel=719", "starting a kernel"},
        {"cuStreamSynchronize=700", "CUDA_ERROR_ILLEGAL_ADDRESS"},
#ifdef AUTOMAP_HAVE_NCCL
        {"ncclSend=5@30", "NCCL: transfer: invalid usage"},
#endif
    };
    for (size_t k = 0; k < sizeof failures / sizeof *failures; k++) {
        error = (AmError){0};
        stand->reset();
        (stand->fail)(failures[k][0]);
        if (probe_measure(&description, "cuda", 2, 0, NULL, &error) != AM_ERROR_RUNTIME)
            fail_msg("%s: no failure", failures[k][0]);
        assert_null(description);
        if (!strstr(error.text, failures[k][1])) fail_msg("%s: %s", failures[k][0], error.text);
        (stand->fail)("");
        assert_nothing_left();
    }
#ifdef AUTOMAP_HAVE_NCCL
    /* With time enough: a whole probe on a crowded machine may end before the first collective. */
    ProbeRanks ranks;
    json_t *collectives;
    const ProbeListener nobody = {0};
    assert_true(probe_cuda.find_ranks(&ranks, 0, 2, 2));
    ranks.most_bytes = 1 << 20;
    error = (AmError){0};
    (stand->fail)("ncclAllReduce=5@200");
    assert_int_equal(probe_collectives(&collectives, &ranks, clock_seconds() + 60, &nobody, &error),
                     AM_ERROR_RUNTIME);
    (stand->fail)("");
    if (!strstr(error.text, "NCCL: all_reduce: invalid usage")) fail_msg("%s", error.text);
    assert_nothing_left();
#endif
    (stand->fail)("ncclCommInitRankConfig=2,cuMemcpyPeerAsync=719");
    setenv("STAND_IN_PEERS", "0", 1);
    assert_int_equal(probe_measure(&description, "cuda", 2, 0, NULL, &error), AM_ERROR_RUNTIME);
    (stand->fail)("");
    unsetenv("STAND_IN_PEERS");
}

int main(void) {
    char memory[24];
    snprintf(memory, sizeof memory, "%d", MEMORY);
    setenv("STAND_IN_DEVICES", "4", 1);
    setenv("STAND_IN_MEMORY", memory, 1);
    if (!gpu_is_present()) return SKIPPED;
    stand = stand_in();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured), cmocka_unit_test(test_collectives),
                                       cmocka_unit_test(test_without_nccl), cmocka_unit_test(test_late),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
