/* The three costs of a reshard are one formula. An axis has n devices and a link of r bytes/s, without
 * latency and efficiency curves. A ring sends (n-1)/n of the bytes that a group moves, and twice that for an
 * all-reduce. Bytes of assignment, shares of lowering and seconds of the bound have to be the same numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/relaxation/reshard_costs.h"
#include "lowering/spmd/reshard_path.h"
#include "propagation/assign/reshard_bytes.h"

static const double rate = 1e9;

static Cluster *open_cluster(Arena *arena, int32_t devices) {
    static const char form[] =
        "{'format': 'automap-cluster-1', 'name': 'even', 'device_types': {'d': {'memory_bytes': 1000000000,"
        " 'memory_bytes_per_second': 1e12, 'flops_per_second': {'f32': 1e12}}}, 'links': {'l':"
        " {'bytes_per_second': 1e9, 'latency_seconds': 0}}, 'servers': [{'count': 1, 'device_type': 'd',"
        " 'devices': %d, 'link': 'l'}]}";
    char *text = arena_format(arena, form, devices);
    AmError error = {0};
    Cluster *cluster;
    json_t *root;
    assert_non_null(text);
    for (char *c = text; *c; c++)
        if (*c == '\'') *c = '"';
    assert_int_equal(json_parse(&root, "even", text, strlen(text), &error), AM_OK);
    assert_int_equal(cluster_from_json(&cluster, arena, root, "even", &error), AM_OK);
    json_decref(root);
    return cluster;
}

static void assert_near(double got, double expected) {
    assert_true(fabs(got - expected) <= 1e-5 * expected);
}

/* Every pair of states of one axis, of 2 to 8 devices. */
static void test_one_axis(void **state) {
    (void)state;
    const Sbp states[] = {SBP_B, sbp_split(0), sbp_split(1), sbp_partial(SBP_ADD)};
    for (int32_t parts = 2; parts <= 8; parts++) {
        Arena arena = {0};
        AmError error = {0};
        ReshardCosts *costs;
        int32_t devices[8], pairs = 0;
        for (int32_t d = 0; d < parts; d++) devices[d] = d;
        Cluster *cluster = open_cluster(&arena, parts);
        const Mesh mesh = {.axis_count = 1, .axes = {{.name = "x", .size = parts}}, .device_count = parts};
        const IrShape shape = {.type = DTYPE_F32, .rank = 2, .dimensions = (int64_t[]){840 * 8, 840 * 8}};
        const double bytes = (double)ir_shape_bytes(&shape);
        assert_int_equal(reshard_costs_create(&costs, &arena, &(PlacedMesh){&mesh, cluster, devices},
                                              RESHARD_ANY_ORDER, &error),
                         AM_OK);
        for (int32_t from = 0; from < 4; from++)
            for (int32_t to = 0; to < 3; to++) {
                SbpState have = {.axis = {SBP_B}}, want = {.axis = {SBP_B}};
                sbp_set(&have, 0, states[from]);
                sbp_set(&want, 0, states[to]);
                double sent = reshard_bytes(have.axis[0], want.axis[0], bytes, parts);
                double seconds =
                    costs->seconds[0][reshard_state_of(costs, have)][reshard_state_of(costs, want)] * bytes;
                assert_near(reshard_weight(&mesh, &shape, have, want) * bytes, sent);
                assert_near(seconds * rate, sent);
                pairs += sent > 0;
            }
        assert_int_equal(pairs, 7); /* all but cuts, and states that stay */
        cluster_free(cluster);
        arena_free(&arena);
    }
}

/* On two axes the seconds of the bound never exceed the shares of the sequence that is lowered. */
static void test_two_axes(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    ReshardCosts *costs;
    int32_t devices[8], equal = 0, pairs = 0;
    for (int32_t d = 0; d < 8; d++) devices[d] = d;
    Cluster *cluster = open_cluster(&arena, 8);
    const Mesh mesh = {
        .axis_count = 2, .axes = {{.name = "x", .size = 2}, {.name = "y", .size = 4}}, .device_count = 8};
    const IrShape shape = {.type = DTYPE_F32, .rank = 2, .dimensions = (int64_t[]){64, 64}};
    assert_int_equal(reshard_costs_create(&costs, &arena, &(PlacedMesh){&mesh, cluster, devices},
                                          RESHARD_ANY_ORDER, &error),
                     AM_OK);
    for (int32_t from = 0; from < RESHARD_STATES; from++)
        for (int32_t to = 0; to < RESHARD_STATES; to++) {
            SbpState have = {.axis = {SBP_B}}, want = {.axis = {SBP_B}};
            bool fits = true;
            for (int32_t axis = 0; axis < 2; axis++) {
                const Sbp before = reshard_axis_sbp((ReshardState)from, axis);
                const Sbp after = reshard_axis_sbp((ReshardState)to, axis);
                fits &= !sbp_is_partial(after) && !(sbp_is_split(before) && sbp_dimension(before) > 1) &&
                        !(sbp_is_split(after) && sbp_dimension(after) > 1);
                if (!fits) break;
                sbp_set(&have, axis, before);
                sbp_set(&want, axis, after);
            }
            double share = fits ? reshard_weight(&mesh, &shape, have, want) : -1;
            if (share < 0) continue;
            double bound = costs->seconds[0][from][to] * rate;
            assert_true(bound <= share * (1 + 1e-5));
            equal += share > 0 && bound >= share * (1 - 1e-5);
            pairs += share > 0;
        }
    assert_true(equal > pairs / 2 && pairs > equal);
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_axis), cmocka_unit_test(test_two_axes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
