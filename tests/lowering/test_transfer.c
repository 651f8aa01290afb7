/* Transfers between two meshes: every pair of states on meshes of one and two
 * axes, shapes that divide and that do not. Disjoint sets are lowered on both
 * sides and run by threads, on integers; overlapping ones are put together from
 * their pieces on the host. Bytes moved are those of OneFlow's table 2. */
/* labels: threads */
/* cost: 23 seconds */
#include "tests/support/sample.h"
#include "tests/support/transfer_case.h"

#include <math.h>

static void test_one_axis(void **state) {
    static const char *const meshes[] = {"x=1", "x=2", "x=3", "x=4"};
    for (int k = 0; k < 16; k++) check_pair(*state, meshes[k / 4], meshes[k % 4], sample_of(1, 5));
}

static void test_two_axes(void **state) {
    int32_t stride = sample_of(1, 5);
    check_pair(*state, "x=2,y=2", "x=2,y=2", stride);
    check_pair(*state, "x=2,y=3", "x=2", stride);
    check_pair(*state, "x=4", "x=2,y=3", stride);
    check_pair(*state, "x=3", "x=2,y=2", stride);
}

/* On the same devices, with one axis: table 2's other column. */
static void test_same_devices(void **state) {
    Fixture *fixture = *state;
    Arena arena = {0};
    char what[256];
    for (int32_t p = 1; p <= 4; p++) {
        Mesh mesh;
        assert_int_equal(mesh_parse(&mesh, &arena, arena_format(&arena, "x=%d", p), NULL), AM_OK);
        for (int k = 0; k < 32; k++) {
            TransferEnd source = {&mesh, 0, state_number(&mesh, k % 4, 4)};
            TransferEnd target = {&mesh, 0, state_number(&mesh, k / 4 % 4, 4)};
            Sbp from = source.state.axis[0], to = target.state.axis[0];
            int32_t i = k / 16;
            name_case(what, sizeof what, &source, &target, i);
            double whole = (double)ir_shape_elements(&fixture->module->instructions[i].shape);
            double least = from == to || sbp_is_partial(to) || from == SBP_B ? 0
                           : sbp_is_partial(from) && to == SBP_B             ? 2 * (p - 1) * whole
                           : sbp_is_split(from) && sbp_is_split(to)          ? (p - 1) * whole / p
                                                                             : (p - 1) * whole;
            double sent = run_pair(fixture, &source, &target, i, what);
            bool is_even = i == 0 && 12 % p == 0;
            if (sbp_is_split(from) && sbp_is_split(to) && from != to && !is_even) continue; /* about that */
            if (fabs(sent - least) > 1e-6 * whole) fail_msg("%s: %g elements, not %g", what, sent, least);
        }
    }
    arena_free(&arena);
}

/* Every pair of states of two axes, including partial ones, gives the value. */
static void test_same_devices_on_two_axes(void **state) {
    Arena arena = {0};
    Mesh mesh;
    char what[256];
    assert_int_equal(mesh_parse(&mesh, &arena, "x=2,y=2", NULL), AM_OK);
    for (int k = 0; k < 512; k += sample_of(1, 7)) {
        TransferEnd source = {&mesh, 0, state_number(&mesh, k % 16, 4)};
        TransferEnd target = {&mesh, 0, state_number(&mesh, k / 16 % 16, 4)};
        name_case(what, sizeof what, &source, &target, k / 256);
        run_pair(*state, &source, &target, k / 256, what);
    }
    arena_free(&arena);
}

/* Dimensions split between granules, and in blocks with a piece of each per device. */
static void test_cuts(void **state) {
    static const struct {
        Sbp axis;
        SbpCut cut;
    } cuts[] = {{1, {0, 0}}, {1, {3, 4}}, {1, {1, 3}},    {1, {2, 3}},
                {2, {0, 0}}, {2, {2, 4}}, {SBP_B, {0, 0}}};
    enum { CUTS = sizeof cuts / sizeof *cuts };
    Fixture *fixture = *state;
    Arena arena = {0};
    Mesh meshes[3];
    char what[256];
    for (int k = 0; k < 3; k++)
        assert_int_equal(mesh_parse(&meshes[k], &arena, arena_format(&arena, "x=%d", k + 2), NULL), AM_OK);
    for (int k = 0; k < 9 * CUTS * CUTS; k += sample_of(1, 8)) {
        const Mesh *a = &meshes[k % 3], *b = &meshes[k / 3 % 3];
        int s = k / 9 % CUTS, t = k / 9 / CUTS;
        TransferEnd source = {a, 0, {{0}, {{0}}}}, target = {b, a->device_count, {{0}, {{0}}}};
        source.state.axis[0] = cuts[s].axis;
        source.state.cut[0] = cuts[s].cut;
        target.state.axis[0] = cuts[t].axis;
        target.state.cut[0] = cuts[t].cut;
        name_case(what, sizeof what, &source, &target, 0);
        double sent = run_pair(fixture, &source, &target, 0, what);
        double wanted = 12 * 8 * (cuts[t].axis == SBP_B ? b->device_count : 1);
        if (sent != wanted) fail_msg("%s: %g elements, not %g", what, sent, wanted);
    }
    arena_free(&arena);
}

/* A mesh of devices of unequal shares. */
static void test_shares(void **state) {
    static const double shares[] = {0.5, 0.125, 0.375};
    Fixture *fixture = *state;
    Arena arena = {0};
    Mesh a, b;
    char what[256];
    assert_int_equal(mesh_parse(&a, &arena, "x=3", NULL), AM_OK);
    assert_int_equal(mesh_parse(&b, &arena, "x=2", NULL), AM_OK);
    a.axes[0].shares = shares;
    for (int32_t s = 0; s < 4; s++)
        for (int32_t t = 0; t < 3; t++)
            for (int turned = 0; turned < 2; turned++) {
                if (turned && s == 3) continue;
                TransferEnd source = {&a, turned ? 2 : 0, state_number(&a, s, 4)};
                TransferEnd target = {&b, turned ? 0 : 3, state_number(&b, t, 3)};
                name_case(what, sizeof what, &source, &target, 1);
                if (turned) run_pair(fixture, &target, &source, 1, what);
                else run_pair(fixture, &source, &target, 1, what);
            }
    arena_free(&arena);
}

/* A scalar: summed, and sent to everyone. */
static void test_scalar(void **state) {
    Arena arena = {0};
    Mesh a, b;
    assert_int_equal(mesh_parse(&a, &arena, "x=3", NULL), AM_OK);
    assert_int_equal(mesh_parse(&b, &arena, "x=2", NULL), AM_OK);
    TransferEnd source = {&a, 0, {{sbp_partial(SBP_ADD)}, {{0}}}}, target = {&b, 3, {{0}, {{0}}}};
    double sent = run_pair(*state, &source, &target, 2, "a scalar");
    assert_true(sent > 5.999 && sent < 6.001); /* 2 * (3 - 1) + 2 */
    arena_free(&arena);
}

/* The result of a rank of overlapping sets, combined on the host from the pieces of all. */
static void check_overlap(Fixture *fixture, const Mesh *a, const Mesh *b, int32_t offset, int32_t s,
                          int32_t t, int32_t i) {
    Arena arena = {0};
    AmError error = {0};
    TransferEnd source = {a, 0, state_number(a, s, 3)}, target = {b, offset, state_number(b, t, 3)};
    const IrShape *shape = &fixture->module->instructions[i].shape;
    TransferRoute route;
    const ProgramTransfer *transfers[MOST_RANKS];
    char what[256];
    name_case(what, sizeof what, &source, &target, i);
    if (transfer_route(&route, shape, &source, &target, &error) != AM_OK) fail_msg("%s", error.text);
    int32_t ranks = offset + b->device_count > a->device_count ? offset + b->device_count : a->device_count;
    for (int32_t r = 0; r < ranks; r++)
        if (transfer_pieces(&transfers[r], &arena, shape, &route, r, &error) != AM_OK)
            fail_msg("%s", error.text);
    double moved = reshard_weight(b, shape, route.target.state, target.state) * b->device_count *
                   (double)ir_shape_bytes(shape);
    for (int32_t r = offset; r < offset + b->device_count; r++) {
        int32_t expected[256], held[256], result[256], taken[MOST_RANKS] = {0};
        int64_t count = fill_shard(expected, &route.target, r - offset, shape), filled = 0;
        int64_t width, start;
        memset(result, 0x5a, sizeof result);
        sbp_shard(b, route.target.state, r - offset, 1, shape->dimensions[1], &start, &width);
        for (int32_t k = 0; k < transfers[r]->receive_count; k++) {
            const ProgramPiece *to = &transfers[r]->receives[k], *from = NULL;
            const ProgramTransfer *sender = transfers[to->peer];
            int64_t sender_width;
            for (int32_t j = 0, n = taken[to->peer]++; j < sender->send_count && !from; j++)
                if (sender->sends[j].peer == r && n-- == 0) from = &sender->sends[j];
            assert_non_null(from);
            fill_shard(held, &route.source, to->peer, shape);
            sbp_shard(a, route.source.state, to->peer, 1, shape->dimensions[1], &start, &sender_width);
            for (int64_t y = 0; y < to->extent[0]; y++)
                for (int64_t x = 0; x < to->extent[1]; x++)
                    result[(to->start[0] + y) * width + to->start[1] + x] =
                        held[(from->start[0] + y) * sender_width + from->start[1] + x];
            filled += to->extent[0] * to->extent[1];
            if (to->peer != r) moved += (double)(to->extent[0] * to->extent[1] * 4);
        }
        if (filled != count || memcmp(expected, result, sizeof *expected * (size_t)count) != 0)
            fail_msg("%s: rank %d gets something else", what, r);
    }
    if (moved > route.bytes * 1.000001 || moved < route.bytes * 0.999999)
        fail_msg("%s: %g bytes moved, the route says %g", what, moved, route.bytes);
    if (route.bytes > table_weight(&source, &target) * (double)ir_shape_bytes(shape) * 1.000001 &&
        !is_jointly_cut(&target, false))
        fail_msg("%s: more than between disjoint sets", what);
    arena_free(&arena);
    /* On the same devices: what table 2 says of them. */
    if (offset > 0 || a->axis_count > 1 || b->axis_count > 1 || a->device_count != b->device_count) return;
    double p = a->device_count, whole = (double)ir_shape_bytes(shape);
    bool from_split = sbp_is_split(source.state.axis[0]), to_split = sbp_is_split(target.state.axis[0]);
    double most = !from_split || sbp_equal(source.state, target.state) ? 0
                  : to_split                                           ? whole
                                                                       : (p - 1) * whole;
    if (route.bytes > most * 1.000001) fail_msg("%s: %g bytes on the same devices", what, route.bytes);
}

static void test_overlapping_sets(void **state) {
    static const char *const meshes[] = {"x=1", "x=2", "x=3", "x=4", "x=2,y=2", "x=2,y=3"};
    Arena arena = {0};
    Mesh mesh[6];
    for (int k = 0; k < 6; k++) assert_int_equal(mesh_parse(&mesh[k], &arena, meshes[k], NULL), AM_OK);
    for (int k = 0; k < 36; k++) {
        const Mesh *a = &mesh[k / 6], *b = &mesh[k % 6];
        for (int32_t s = 0; s < power(3, a->axis_count); s++)
            for (int32_t t = 0; t < power(3, b->axis_count); t++)
                for (int32_t offset = 0; offset < a->device_count; offset++)
                    check_overlap(*state, a, b, offset, s, t, (s + t + offset) % 2);
    }
    arena_free(&arena);
}

/* Copies send alternately: each sends at most its share. */
static void test_copies_share_the_load(void **state) {
    Fixture *fixture = *state;
    Arena arena = {0};
    Mesh a, b;
    assert_int_equal(mesh_parse(&a, &arena, "x=2,y=2", NULL), AM_OK);
    assert_int_equal(mesh_parse(&b, &arena, "x=2,y=2", NULL), AM_OK);
    for (int32_t s = 0; s < 9; s++) {
        TransferEnd source = {&a, 0, state_number(&a, s, 3)};
        TransferEnd target = {&b, 4, {{sbp_split(1), sbp_split(0)}, {{0}}}};
        const IrShape *shape = &fixture->module->instructions[0].shape;
        TransferRoute route;
        assert_int_equal(transfer_route(&route, shape, &source, &target, NULL), AM_OK);
        for (int32_t r = 0; r < 4; r++) {
            const ProgramTransfer *transfer;
            double sent = 0;
            assert_int_equal(transfer_pieces(&transfer, &arena, shape, &route, r, NULL), AM_OK);
            for (int32_t k = 0; k < transfer->send_count; k++)
                sent += (double)(transfer->sends[k].extent[0] * transfer->sends[k].extent[1]);
            assert_true(sent == 24);
        }
    }
    arena_free(&arena);
}

/* A rank that fails releases those that wait for it. */
static void test_failure_releases_the_others(void **state) {
    Fixture *fixture = *state;
    Arena arena = {0};
    Mesh mesh;
    AmError error = {0};
    Comm comms[2];
    KernelDevice *devices[] = {&kernel_device_cpu, &kernel_device_cpu};
    assert_int_equal(mesh_parse(&mesh, &arena, "x=1", NULL), AM_OK);
    TransferEnd source = {&mesh, 0, {{0}, {{0}}}}, target = {&mesh, 1, {{0}, {{0}}}};
    assert_int_equal(comm_local.open(comms, 0, 2, 2, devices, NULL, &error), AM_OK);
    RankRun receiver = {.fixture = fixture, .source = &source, .target = &target, .comm = &comms[1]};
    pthread_t thread;
    pthread_create(&thread, NULL, rank_thread, &receiver);
    comm_local.abort(&comms[0]);
    pthread_join(thread, NULL);
    close_rank(&receiver);
    comm_local.close(comms);
    assert_int_equal(receiver.error.code, AM_ERROR_RUNTIME);
    assert_false(receiver.is_right);
    arena_free(&arena);
}

static int setup(void **state) {
    return setup_on(state, &kernels_cpu, &comm_local);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_axis),
        cmocka_unit_test(test_two_axes),
        cmocka_unit_test(test_same_devices),
        cmocka_unit_test(test_same_devices_on_two_axes),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_scalar),
        cmocka_unit_test(test_overlapping_sets),
        cmocka_unit_test(test_copies_share_the_load),
        cmocka_unit_test(test_failure_releases_the_others),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
