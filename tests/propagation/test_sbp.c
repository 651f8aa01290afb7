/* Meshes and SBP states: parsing, groups, and shards that partition a dimension. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "propagation/sharding/sbp.h"

static Mesh parse(Arena *arena, const char *text) {
    Mesh mesh;
    AmError error = {0};
    assert_int_equal(mesh_parse(&mesh, arena, text, &error), AM_OK);
    return mesh;
}

static void test_mesh_parse(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "data=2,model=4");
    assert_int_equal(mesh.axis_count, 2);
    assert_int_equal(mesh.device_count, 8);
    assert_string_equal(mesh.axes[0].name, "data");
    assert_int_equal(mesh.axes[1].size, 4);
    arena_free(&arena);
}

static void test_mesh_refuses(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "data",
                                      "data=",
                                      "data=0",
                                      "data=-1",
                                      "=2",
                                      "data=2,",
                                      "data=2,data=2",
                                      "a=1,b=1,c=1,d=1,e=1",
                                      "a b=2",
                                      "data=99999999999999999999",
                                      "a=65536,b=2",
                                      "a=2x"};
    Arena arena = {0};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        Mesh mesh;
        AmError error = {0};
        assert_int_equal(mesh_parse(&mesh, &arena, bad[k], &error), AM_ERROR_USAGE);
        assert_true(error.text[0] != '\0');
    }
    arena_free(&arena);
}

static void test_mesh_group(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "a=2,b=3,c=2");
    int32_t group[12];
    assert_int_equal(mesh_coordinate(&mesh, 9, 0), 1);
    assert_int_equal(mesh_coordinate(&mesh, 9, 1), 1);
    assert_int_equal(mesh_coordinate(&mesh, 9, 2), 1);
    assert_int_equal(mesh_group(&mesh, 9, 1u << 1, group), 3);
    assert_int_equal(group[0], 7);
    assert_int_equal(group[1], 9);
    assert_int_equal(group[2], 11);
    assert_int_equal(mesh_group(&mesh, 9, 1u << 0 | 1u << 2, group), 4);
    const int32_t expected[] = {2, 3, 8, 9};
    assert_memory_equal(group, expected, sizeof expected);
    assert_int_equal(mesh_group(&mesh, 5, 7, group), 12);
    for (int32_t k = 0; k < 12; k++) assert_int_equal(group[k], k);
    assert_int_equal(mesh_group(&mesh, 5, 0, group), 1);
    assert_int_equal(group[0], 5);
    arena_free(&arena);
}

static void test_states_print_and_parse(void **state) {
    (void)state;
    static const char *const texts[] = {"B", "S(0)", "S(15)", "P(add)", "P(max)", "P(multiply)", "P(or)"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        Sbp sbp;
        AmError error = {0};
        Text text = {0};
        assert_int_equal(sbp_parse_axis(&sbp, texts[k], &error), AM_OK);
        sbp_print_axis(&text, sbp);
        assert_string_equal(text.data, texts[k]);
        text_free(&text);
    }
    static const char *const bad[] = {"",    "S",   "S()",     "S(-1)", "S(16)",
                                      "S(1", "P()", "P(mean)", "b",     "S( 1)"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        Sbp sbp;
        AmError error = {0};
        assert_int_equal(sbp_parse_axis(&sbp, bad[k], &error), AM_ERROR_INPUT);
    }
    for (int32_t r = 0; r < SBP_REDUCTION_COUNT; r++)
        assert_int_equal(sbp_reduction_of(sbp_reduction_opcode((SbpReduction)r)), r);
    assert_int_equal(sbp_reduction_of(IR_SUBTRACT), SBP_REDUCTION_COUNT);
}

/* Shards of all devices that differ on the splitting axes meet without gap or overlap. */
static void check_partition(const Mesh *mesh, SbpState states, int64_t size, uint32_t axes) {
    int32_t group[64];
    int32_t count = mesh_group(mesh, 0, axes, group);
    int64_t next = 0;
    for (int32_t k = 0; k < count; k++) {
        int64_t start, extent;
        sbp_shard(mesh, states, group[k], 1, size, &start, &extent);
        assert_int_equal(start, next);
        assert_true(extent >= 0);
        next = start + extent;
    }
    assert_int_equal(next, size);
}

static void test_shards_partition(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "a=2,b=3,c=4");
    SbpState on_b = {.axis = {SBP_B, sbp_split(1), SBP_B, SBP_B}};
    SbpState on_a_and_c = {.axis = {sbp_split(1), SBP_B, sbp_split(1), SBP_B}};
    for (int64_t size = 0; size < 40; size++) {
        check_partition(&mesh, on_b, size, 1u << 1);
        check_partition(&mesh, on_a_and_c, size, 1u << 0 | 1u << 2);
    }
    assert_int_equal(sbp_ways(&mesh, on_a_and_c, 1), 8);
    assert_int_equal(sbp_ways(&mesh, on_a_and_c, 0), 1);
    int64_t start, extent;
    sbp_shard(&mesh, on_b, 8, 1, 50257, &start, &extent); /* b = 2: 50257 = 3 * 16752 + 1 */
    assert_int_equal(extent, 16752);
    assert_int_equal(start, 16753 + 16752);
    arena_free(&arena);
}

static void test_shares(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "a=3");
    const double shares[] = {0.5, 0.3, 0.2};
    mesh.axes[0].shares = shares;
    SbpState states = {.axis = {sbp_split(1)}};
    int64_t start, extent;
    sbp_shard(&mesh, states, 1, 1, 10, &start, &extent);
    assert_int_equal(start, 5);
    assert_int_equal(extent, 3);
    for (int64_t size = 0; size < 40; size++) check_partition(&mesh, states, size, 1);
    arena_free(&arena);
}

/* Dimension 1 of `size` cut over the first `axes` axes between `count` granules. */
static SbpState cut_over(const Mesh *mesh, int32_t axes, int64_t size, int64_t count) {
    SbpState made = {.axis = {SBP_B}};
    for (int32_t axis = 0; axis < axes; axis++)
        sbp_set_split(&made, axis, 1, sbp_cut(mesh, made, axis, 1, size, 1, count));
    return made;
}

/* Returns whether every device's shard starts and ends at a multiple of size / granules. */
static bool starts_between(const Mesh *mesh, SbpState states, int64_t size, int64_t granules) {
    for (int32_t device = 0; device < mesh->device_count; device++) {
        int64_t start, extent;
        sbp_shard(mesh, states, device, 1, size, &start, &extent);
        if (start % (size / granules) != 0 || extent % (size / granules) != 0) return false;
    }
    return true;
}

static void test_cuts_fall_between_granules(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "a=2,b=3");
    const double shares[] = {0.5, 0.3, 0.2};
    int32_t checked = 0, plain = 0;
    for (int32_t pass = 0; pass < 2; pass++) {
        mesh.axes[1].shares = pass ? shares : NULL;
        for (int64_t count = 1; count <= 13; count++) {
            for (int64_t unit = 1; unit <= 4; unit++) {
                for (int32_t axes = 1; axes <= 2; axes++) {
                    SbpState cut = cut_over(&mesh, axes, count * unit, count);
                    check_partition(&mesh, cut, count * unit, axes == 1 ? 1 : 3);
                    assert_true(starts_between(&mesh, cut, count * unit, count));
                    assert_true(sbp_cuts_between(&mesh, cut, 1, count * unit, count));
                    /* Canonical: states that mean the same are equal. */
                    SbpState even = cut_over(&mesh, axes, count * unit, count * unit);
                    if (sbp_is_even(&mesh, cut, 1, count * unit)) assert_true(sbp_equal(cut, even));
                    plain += sbp_equal(cut, even);
                    for (int64_t granules = 1; granules <= count * unit; granules++) {
                        if (!sbp_cuts_between(&mesh, cut, 1, count * unit, granules)) continue;
                        assert_true(starts_between(&mesh, cut, count * unit, granules));
                        checked++;
                    }
                }
            }
        }
    }
    assert_true(plain > 0 && checked > 400);
    arena_free(&arena);
}

static void test_heads_stay_whole(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "a=8");
    SbpState heads = cut_over(&mesh, 1, 12, 12), width = cut_over(&mesh, 1, 12 * 64, 12);
    for (int32_t device = 0; device < 8; device++) {
        int64_t start, extent, wide_start, wide_extent;
        sbp_shard(&mesh, heads, device, 1, 12, &start, &extent);
        sbp_shard(&mesh, width, device, 1, 12 * 64, &wide_start, &wide_extent);
        assert_int_equal(extent, device < 4 ? 2 : 1);
        assert_int_equal(wide_start, start * 64);
        assert_int_equal(wide_extent, extent * 64);
    }
    assert_false(sbp_equal(width, cut_over(&mesh, 1, 12 * 64, 12 * 64)));
    assert_true(sbp_equal(cut_over(&mesh, 1, 16 * 64, 16), cut_over(&mesh, 1, 16 * 64, 16 * 64)));
    arena_free(&arena);
}

static void test_local_shape(void **state) {
    (void)state;
    Arena arena = {0};
    Mesh mesh = parse(&arena, "a=2,b=4");
    const int64_t dimensions[] = {16, 5, 3};
    IrShape shape = {.type = DTYPE_F32, .rank = 3, .dimensions = dimensions};
    SbpState states = {.axis = {sbp_split(0), sbp_split(1)}};
    IrShape local = sbp_local_shape(&arena, &mesh, states, 4, &shape);
    assert_int_equal(local.dimensions[0], 8);
    assert_int_equal(local.dimensions[1], 2); /* 5 over 4: 2, 1, 1, 1 */
    assert_int_equal(local.dimensions[2], 3);
    SbpState partial = {.axis = {sbp_partial(SBP_MAX)}};
    assert_true(sbp_has_partial(partial));
    assert_false(sbp_has_partial(states));
    assert_false(sbp_equal(partial, states));
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh_parse),       cmocka_unit_test(test_mesh_refuses),
        cmocka_unit_test(test_mesh_group),       cmocka_unit_test(test_states_print_and_parse),
        cmocka_unit_test(test_shards_partition), cmocka_unit_test(test_shares),
        cmocka_unit_test(test_local_shape),      cmocka_unit_test(test_cuts_fall_between_granules),
        cmocka_unit_test(test_heads_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
