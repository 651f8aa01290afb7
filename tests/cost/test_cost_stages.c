/* Simulation of plans of multiple stages: waiting, fill and drain of a pipeline, the price of a
 * transfer, and devices of unequal shares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/json.h"
#include "cost/collective/transfer_price.h"
#include "cost/memory/rank_memory.h"
#include "cost/simulate/simulate.h"
#include "lowering/spmd/transfer.h"

/* Two servers of two devices; the second one's are half as fast. */
static const char two_speeds[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"two speeds\", \"device_types\": {"
    "\"fast\": {\"memory_bytes\": 1e9, \"memory_bytes_per_second\": 1e11,"
    "  \"flops_per_second\": {\"f32\": 1e11}, \"kernel_launch_seconds\": 1e-7},"
    "\"slow\": {\"memory_bytes\": 1e9, \"memory_bytes_per_second\": 5e10,"
    "  \"flops_per_second\": {\"f32\": 5e10}, \"kernel_launch_seconds\": 2e-7}},"
    "\"links\": {\"in\": {\"bytes_per_second\": 1e10, \"latency_seconds\": 1e-6},"
    "\"out\": {\"bytes_per_second\": 1e8, \"latency_seconds\": 1e-5}},"
    "\"servers\": [{\"device_type\": \"fast\", \"devices\": 2, \"link\": \"in\"},"
    "{\"device_type\": \"slow\", \"devices\": 2, \"link\": \"in\"}], \"between_servers\": \"out\"}";

/* Eight iterations of two equal products, divided over two stages; and a product over a batch. */
static const char pipeline_text[] =
    "HloModule pipeline\n\n"
    "body {\n"
    "  p = (s32[], f32[256,256], f32[256,256], f32[256,256], f32[256,256]) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0\n"
    "  x = f32[256,256] get-tuple-element(p), index=1\n"
    "  v = f32[256,256] get-tuple-element(p), index=2\n"
    "  w = f32[256,256] get-tuple-element(p), index=3\n"
    "  sum = f32[256,256] get-tuple-element(p), index=4\n"
    "  one = s32[] constant(1)\n"
    "  next = s32[] add(i, one)\n"
    "  turn = f32[] convert(i)\n"
    "  turns = f32[256,256] broadcast(turn), dimensions={}\n"
    "  now = f32[256,256] add(x, turns)\n"
    "  first = f32[256,256] dot(now, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  second = f32[256,256] dot(first, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  new = f32[256,256] add(sum, second)\n"
    "  ROOT r = (s32[], f32[256,256], f32[256,256], f32[256,256], f32[256,256]) tuple(next, x, v, w, new)\n"
    "}\n\n"
    "condition {\n"
    "  p = (s32[], f32[256,256], f32[256,256], f32[256,256], f32[256,256]) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0\n"
    "  all = s32[] constant(8)\n"
    "  ROOT more = pred[] compare(i, all), direction=LT\n"
    "}\n\n"
    "ENTRY main {\n"
    "  x = f32[256,256] parameter(0)\n"
    "  v = f32[256,256] parameter(1)\n"
    "  w = f32[256,256] parameter(2)\n"
    "  none = f32[] constant(0)\n"
    "  zeros = f32[256,256] broadcast(none), dimensions={}\n"
    "  zero = s32[] constant(0)\n"
    "  carry = (s32[], f32[256,256], f32[256,256], f32[256,256], f32[256,256]) tuple(zero, x, v, w, zeros)\n"
    "  loop = (s32[], f32[256,256], f32[256,256], f32[256,256], f32[256,256]) while(carry), "
    "condition=condition, body=body\n"
    "  ROOT out = f32[256,256] get-tuple-element(loop), index=4\n"
    "}\n";

typedef struct Fixture {
    Arena arena;
    Cluster *cluster;
    PlanContext *context; /* pipeline_text */
    PlanStage stages[2];
    Plan plan;
} Fixture;

static void assert_close(double value, double expected) {
    if (fabs(value - expected) > 1e-9 * fabs(expected)) fail_msg("%.17g is not %.17g", value, expected);
}

static int set_up(void **state) {
    Fixture *self = calloc(1, sizeof *self);
    AmError error = {0};
    json_t *root;
    char path[] = "/tmp/automap-stages-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, pipeline_text, strlen(pipeline_text)), (int64_t)strlen(pipeline_text));
    close(file);
    assert_int_equal(json_parse(&root, "two_speeds", two_speeds, strlen(two_speeds), &error), AM_OK);
    assert_int_equal(cluster_from_json(&self->cluster, &self->arena, root, "two_speeds", &error), AM_OK);
    json_decref(root);
    AmStatus status = plan_context_read(&self->context, path, NULL, &error);
    unlink(path);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    *state = self;
    return 0;
}

static int tear_down(void **state) {
    Fixture *self = *state;
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
    free(self);
    return 0;
}

static void use_stages(Fixture *self, const char *mesh, int32_t *first, int32_t *second) {
    for (int s = 0; s < 2; s++) {
        self->stages[s] = (PlanStage){.devices = s == 0 ? first : second};
        assert_int_equal(mesh_parse(&self->stages[s].mesh, &self->arena, mesh, NULL), AM_OK);
    }
    self->plan =
        (Plan){.module_name = "pipeline", .micro_batches = 1, .stages = self->stages, .stage_count = 2};
}

/* The first product of every iteration, and its operands, on stage 0, the second and the sum on
 * stage 1. */
static Simulation *simulate_halves_as(Fixture *self, const SimulationOptions *options) {
    const PlanContext *context = self->context;
    const IrModule *module = context->canonical;
    Arena *arena = &self->arena;
    AmError error = {0};
    int32_t count = context->rules->count, parameters = context->roles->parameter_count;
    int32_t products = 0, sums = 0;
    StageSeeds seeds = {.held = ARENA_ARRAY(arena, StageSet, count + 1),
                        .allowed = ARENA_ARRAY(arena, StageSet, count + 1),
                        .is_cheap = ARENA_ARRAY(arena, bool, count + 1),
                        .owner = ARENA_ARRAY(arena, int32_t, parameters + 1)};
    for (int32_t i = 0; i < count; i++) {
        seeds.is_cheap[i] = true;
        const IrInstruction *instruction = &module->instructions[i];
        if (instruction->opcode == IR_DOT) seeds.held[i] = stage_bit(products++);
        if (instruction->opcode == IR_ADD && instruction->shape.rank == 2) seeds.held[i] = stage_bit(sums++);
    }
    assert_true(products == 2 && sums == 2);
    for (int32_t k = 0; k < parameters; k++) seeds.owner[k] = k == 2;
    PlanRanks ranks = {.context = context,
                       .plan = &self->plan,
                       .assignments = ARENA_ARRAY(arena, Assignment *, 2),
                       .first_rank = ARENA_ARRAY(arena, int32_t, 3),
                       .stage_count = 2};
    assert_int_equal(stages_spread(&ranks.map, arena, context, &seeds, 2, &error), AM_OK);
    for (int s = 0; s < 2; s++) {
        if (plan_assign_stage(&ranks.assignments[s], arena, context, &self->stages[s], ranks.map, &error) !=
            AM_OK)
            fail_msg("%s", error.text);
        ranks.first_rank[s + 1] = ranks.first_rank[s] + self->stages[s].mesh.device_count;
    }
    ranks.rank_count = ranks.first_rank[2];
    ranks.map->first_rank = ranks.first_rank;
    Simulation *simulation;
    if (simulate_ranks(&simulation, arena, &ranks, self->cluster, options, &error) != AM_OK)
        fail_msg("%s", error.text);
    return simulation;
}

/* Leaves a step if a stage is busy for more than `most` seconds (0: none is). */
static Simulation *simulate_halves_within(Fixture *self, double most) {
    return simulate_halves_as(self, &(SimulationOptions){.memory_fraction = 0.9, .most_seconds = most});
}

static Simulation *simulate_halves(Fixture *self) {
    return simulate_halves_within(self, 0);
}

static void check_sums(const Simulation *simulation) {
    for (int32_t d = 0; d < simulation->device_count; d++) {
        const SimulatedDevice *device = &simulation->devices[d];
        double sum = device->compute_seconds + device->communication_seconds - device->hidden_seconds +
                     device->idle_seconds;
        assert_close(sum, simulation->step_seconds);
    }
}

/* A stage that is busy for longer than a limit bounds the step from below; other steps stay exact. */
static void a_limit_leaves_slow_stages(void **state) {
    Fixture *self = *state;
    static int32_t fast[] = {0}, slow[] = {3};
    use_stages(self, "data=1", fast, slow);
    const Simulation *exact = simulate_halves(self);
    double busy[] = {exact->devices[0].compute_seconds, exact->devices[1].compute_seconds};
    assert_true(!exact->is_left && busy[0] < busy[1] && busy[1] < exact->step_seconds);
    const Simulation *within = simulate_halves_within(self, 1.001 * busy[1]);
    assert_false(within->is_left);
    assert_close(within->step_seconds, exact->step_seconds);
    for (int s = 0; s < 2; s++) {
        const Simulation *left = simulate_halves_within(self, 0.999 * busy[s]);
        assert_true(left->is_left);
        assert_close(left->step_seconds, busy[s]);
    }
}

/* Stages that are lowered side by side cost the same. */
static void stages_cost_the_same_in_parallel(void **state) {
    Fixture *self = *state;
    static int32_t fast[] = {0}, slow[] = {3};
    use_stages(self, "data=1", fast, slow);
    const Simulation *exact = simulate_halves(self);
    const Simulation *beside =
        simulate_halves_as(self, &(SimulationOptions){.memory_fraction = 0.9, .in_parallel = true});
    assert_true(beside->step_seconds == exact->step_seconds);
    assert_int_equal(beside->device_count, exact->device_count);
    for (int32_t d = 0; d < exact->device_count; d++) {
        const SimulatedDevice *a = &beside->devices[d], *b = &exact->devices[d];
        assert_true(a->compute_seconds == b->compute_seconds && a->idle_seconds == b->idle_seconds);
        assert_int_equal(a->needed_bytes, b->needed_bytes);
    }
}

/* M micro-batches on two equal stages take M + 1 times one, not 2 M. */
static void a_pipeline_fills_and_drains(void **state) {
    Fixture *self = *state;
    static int32_t first[] = {0}, second[] = {1};
    use_stages(self, "data=1", first, second);
    Simulation *simulation = simulate_halves(self);
    check_sums(simulation);
    assert_int_equal(simulation->transfers.count, 8);
    assert_close(simulation->transfers.bytes, 8. * 256 * 256 * 4);
    double seconds = 1e-6 + 256 * 256 * 4 / 1e10;
    assert_close(simulation->transfers.seconds, 8 * seconds);
    double a = simulation->devices[0].compute_seconds / 8, b = simulation->devices[1].compute_seconds / 8;
    double one = (a > b ? a : b) + seconds, all = simulation->step_seconds;
    if (all < 8 * one || all > 9.2 * one) fail_msg("%g iterations, expected about 9", all / one);
    assert_true(simulation->devices[0].idle_seconds > 0.5 * one);
    assert_true(simulation->devices[1].idle_seconds > 0.5 * one);
}

/* The slower stage sets the pace, the other one waits. */
static void the_slower_stage_sets_the_pace(void **state) {
    Fixture *self = *state;
    static int32_t first[] = {2}, second[] = {3}, fast[] = {0};
    use_stages(self, "data=1", first, second);
    double both_slow = simulate_halves(self)->step_seconds;
    use_stages(self, "data=1", fast, second);
    Simulation *simulation = simulate_halves(self);
    check_sums(simulation);
    const SimulatedDevice *device = simulation->devices;
    assert_true(device[0].compute_seconds < 0.6 * device[1].compute_seconds);
    assert_true(device[0].idle_seconds > device[1].idle_seconds);
    assert_int_equal(device[1].device, 3);
    assert_true(both_slow > 0);
    Text text = {0};
    simulation_print(&text, simulation);
    assert_non_null(strstr(text.data, "8 transfers between stages"));
    text_free(&text);
    json_t *root = simulation_to_json(simulation);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "transfers"), "count")), 8);
    json_t *devices = json_object_get(root, "devices");
    assert_int_equal(json_array_size(devices), 2);
    assert_close(json_number_value(json_object_get(json_array_get(devices, 0), "idle_seconds")),
                 device[0].idle_seconds);
    json_decref(root);
}

/* A value of 1 MB that both devices of the first set have, wanted in halves, on this cluster. */
static TransferPrice price_of(Fixture *self, const int32_t *device_of, Sbp from, Sbp to) {
    static const int64_t dimensions[] = {512, 512};
    static const IrShape shape = {.type = DTYPE_F32, .rank = 2, .dimensions = dimensions};
    Mesh mesh;
    const ProgramTransfer *transfer;
    TransferRoute route;
    TransferPrice price;
    AmError error = {0};
    assert_int_equal(mesh_parse(&mesh, &self->arena, "x=2", NULL), AM_OK);
    TransferEnd source = {.mesh = &mesh, .first_rank = 0}, target = {.mesh = &mesh, .first_rank = 2};
    sbp_set(&source.state, 0, from);
    sbp_set(&target.state, 0, to);
    assert_int_equal(transfer_route(&route, &shape, &source, &target, &error), AM_OK);
    assert_int_equal(transfer_pieces(&transfer, &self->arena, &shape, &route, 0, &error), AM_OK);
    size_t used = self->arena.used;
    assert_int_equal(transfer_price(&price, &self->arena, self->cluster, transfer, device_of, &error), AM_OK);
    assert_int_equal(self->arena.used, used);
    return price;
}

static void a_transfer_costs_its_slowest_link(void **state) {
    Fixture *self = *state;
    const double bytes = 512 * 512 * 4;
    static const int32_t apart[] = {0, 1, 2, 3}, crossed[] = {0, 2, 1, 3}, together[] = {0, 1, 0, 1};
    /* Each device sends halves alternately, both through their servers' one link. */
    TransferPrice price = price_of(self, apart, SBP_B, sbp_split(0));
    assert_close(price.bytes, bytes);
    assert_close(price.seconds, 1e-5 + bytes / 1e8);
    /* Server by server, each device on a link of its own. */
    price = price_of(self, crossed, sbp_split(0), sbp_split(0));
    assert_close(price.seconds, 1e-6 + bytes / 2 / 1e10);
    /* Quarters from each to each: two messages a device. */
    price = price_of(self, apart, sbp_split(1), sbp_split(0));
    assert_close(price.seconds, 2e-5 + bytes / 1e8);
    /* On the same devices of the cluster nothing goes over a link. */
    price = price_of(self, together, sbp_split(0), sbp_split(0));
    assert_close(price.seconds, 0);
}

/* Splits the first parameter's rows, all in one stage of these shares. */
static void use_shares(Fixture *self, const char *mesh, int32_t *devices, const double *shares) {
    const PlanContext *context = self->context;
    use_stages(self, mesh, devices, devices);
    self->plan.stage_count = 1;
    PlanStage *stage = &self->stages[0];
    stage->axis_priorities[0].entries = ARENA_ARRAY(&self->arena, PlanEntry, 1);
    stage->axis_priorities[0].count = 1;
    stage->axis_priorities[0].entries[0].class_index =
        classes_of(context->classes, context->rules, context->roles->parameters[0].instruction, 0);
    stage->mesh.axes[0].shares = shares;
}

/* 256 rows in shares of 3 : 3 : 1 : 1 are two sizes; other shares round to four. Each device has the memory
 * of its own program, whichever is simulated for it. */
static void devices_of_equal_shards_share_a_program(void **state) {
    Fixture *self = *state;
    AmError error = {0};
    static int32_t devices[] = {0, 1, 2, 3};
    static const double shares[][4] = {{0.375, 0.375, 0.125, 0.125}, {0.302, 0.302, 0.198, 0.198}};
    static const int32_t groups[][4] = {{0, 0, 1, 1}, {0, 1, 2, 3}};
    for (int32_t k = 0; k < 2; k++) {
        PlanRanks ranks;
        int32_t *group_of, count;
        MemoryUse *uses;
        Simulation *simulation;
        use_shares(self, "data=4", devices, shares[k]);
        assert_int_equal(plan_ranks(&ranks, &self->arena, self->context, &self->plan, &error), AM_OK);
        assert_int_equal(plan_ranks_group(&group_of, &count, &self->arena, &ranks, 0, &error), AM_OK);
        assert_int_equal(count, groups[k][3] + 1);
        assert_memory_equal(group_of, groups[k], sizeof groups[k]);
        assert_int_equal(simulate_plan(&simulation, &self->arena, self->context, &self->plan, self->cluster,
                                       &(SimulationOptions){.memory_fraction = 0.9}, &error),
                         AM_OK);
        assert_int_equal(rank_memory(&uses, &self->arena, &ranks, self->cluster, NULL, &error), AM_OK);
        for (int32_t d = 0; d < 4; d++)
            assert_int_equal(simulation->devices[d].memory.peak_bytes, uses[d].peak_bytes);
    }
}

/* Whale's mixed devices: shares by speed make both finish together. */
static void shares_by_speed_save_waiting(void **state) {
    Fixture *self = *state;
    AmError error = {0};
    static int32_t devices[] = {0, 2};
    static const double by_speed[] = {2. / 3, 1. / 3};
    Simulation *equal, *shared;
    const PlanContext *context = self->context;
    use_shares(self, "data=2", devices, NULL);
    assert_int_equal(simulate_plan(&equal, &self->arena, context, &self->plan, self->cluster,
                                   &(SimulationOptions){.memory_fraction = 0.9}, &error),
                     AM_OK);
    self->stages[0].mesh.axes[0].shares = by_speed;
    if (simulate_plan(&shared, &self->arena, context, &self->plan, self->cluster,
                      &(SimulationOptions){.memory_fraction = 0.9}, &error) != AM_OK)
        fail_msg("%s", error.text);
    check_sums(equal);
    check_sums(shared);
    double gain = equal->step_seconds / shared->step_seconds;
    if (gain < 1.2 || gain > 1.5) fail_msg("shares by speed are %g times as fast", gain);
    assert_true(shared->devices[0].memory.peak_bytes > shared->devices[1].memory.peak_bytes);
    assert_true(shared->devices[0].idle_seconds < 0.1 * shared->step_seconds);
}

/* The slower device with twice the share bounds the step alone. A simulation that drops the program of a
 * device once it is priced equals one that keeps it. */
static void a_limit_leaves_unequal_shares(void **state) {
    Fixture *self = *state;
    AmError error = {0};
    static int32_t devices[] = {0, 2};
    static const double against_speed[] = {1. / 3, 2. / 3};
    use_shares(self, "data=2", devices, against_speed);
    SimulationOptions options = {.memory_fraction = 0.9, .with_details = true};
    Simulation *simulations[4]; /* programs are kept; dropped; a limit above the step; below the busy time */
    for (int32_t k = 0; k < 4; k++) {
        const Simulation *exact = k > 0 ? simulations[0] : NULL;
        options.with_details = k == 0;
        if (k == 2) options.most_seconds = 1.001 * exact->step_seconds;
        if (k == 3) options.most_seconds = 0.999 * exact->devices[1].compute_seconds;
        assert_int_equal(simulate_plan(&simulations[k], &self->arena, self->context, &self->plan,
                                       self->cluster, &options, &error),
                         AM_OK);
        assert_int_equal(simulations[k]->is_left, k == 3);
        for (int32_t d = 0; d < 2 && (k == 1 || k == 2); d++)
            assert_int_equal(simulations[k]->devices[d].memory.peak_bytes,
                             exact->devices[d].memory.peak_bytes);
        if (k == 1 || k == 2) assert_close(simulations[k]->step_seconds, exact->step_seconds);
    }
    assert_true(simulations[0]->devices[0].compute_seconds <
                0.5 * simulations[0]->devices[1].compute_seconds);
    assert_close(simulations[3]->step_seconds, simulations[0]->devices[1].compute_seconds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_leaves_slow_stages),
        cmocka_unit_test(stages_cost_the_same_in_parallel),
        cmocka_unit_test(a_pipeline_fills_and_drains),
        cmocka_unit_test(the_slower_stage_sets_the_pace),
        cmocka_unit_test(a_transfer_costs_its_slowest_link),
        cmocka_unit_test(devices_of_equal_shards_share_a_program),
        cmocka_unit_test(shares_by_speed_save_waiting),
        cmocka_unit_test(a_limit_leaves_unequal_shares),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
