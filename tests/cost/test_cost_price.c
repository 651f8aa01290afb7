/* Prices of whole steps, memory by kind, and the simulation of plans of small models. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/files/json.h"
#include "cost/simulate/simulate.h"
#include "lowering/spmd/lower.h"

#define MODELS SOURCE_DIR "/datasets/models/"

/* Two servers of two devices; the second one's are half as fast and have half the memory. */
static const char two_speeds[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"two speeds\", \"device_types\": {"
    "\"fast\": {\"memory_bytes\": 2000000, \"memory_bytes_per_second\": 1e9,"
    "  \"flops_per_second\": {\"f32\": 1e10}, \"kernel_launch_seconds\": 2e-6},"
    "\"slow\": {\"memory_bytes\": 1000000, \"memory_bytes_per_second\": 5e8,"
    "  \"flops_per_second\": {\"f32\": 5e9}, \"kernel_launch_seconds\": 4e-6}},"
    "\"links\": {\"in\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 1e-6},"
    "\"out\": {\"bytes_per_second\": 1e8, \"latency_seconds\": 1e-5}},"
    "\"servers\": [{\"device_type\": \"fast\", \"devices\": 2, \"link\": \"in\"},"
    "{\"device_type\": \"slow\", \"devices\": 2, \"link\": \"in\"}], \"between_servers\": \"out\"}";

typedef struct Fixture {
    Arena arena;
    Cluster *cluster;     /* two_speeds */
    PlanContext *context; /* mlp_tiny */
    Mesh mesh;
    PlanStage stage; /* the batch over `mesh` */
    Plan plan;
} Fixture;

static void assert_close(double value, double expected) {
    if (fabs(value - expected) > 1e-9 * fabs(expected)) fail_msg("%.17g is not %.17g", value, expected);
}

static int32_t devices_in_order[] = {0, 1, 2, 3};

static int set_up(void **state) {
    static Fixture fixture;
    AmError error = {0};
    json_t *root;
    fixture = (Fixture){0};
    assert_int_equal(json_parse(&root, "two_speeds", two_speeds, strlen(two_speeds), &error), AM_OK);
    assert_int_equal(cluster_from_json(&fixture.cluster, &fixture.arena, root, "two_speeds", &error), AM_OK);
    json_decref(root);
    AmStatus status = plan_context_read(&fixture.context, MODELS "mlp_tiny/model.hlo.pb", NULL, &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state) {
    Fixture *fixture = *state;
    cluster_free(fixture->cluster);
    plan_context_free(fixture->context);
    arena_free(&fixture->arena);
    return 0;
}

/* The plan [batch] on the first axis of a mesh. */
static void plan_batch(Fixture *fixture, const char *mesh) {
    AmError error = {0};
    const PlanContext *context = fixture->context;
    PlanStage *stage = &fixture->stage;
    *stage = (PlanStage){.devices = devices_in_order};
    assert_int_equal(mesh_parse(&stage->mesh, &fixture->arena, mesh, &error), AM_OK);
    stage->axis_priorities[0].entries = ARENA_ARRAY(&fixture->arena, PlanEntry, 1);
    for (int32_t k = 0; k < context->roles->parameter_count; k++) {
        const IrParameter *parameter = &context->roles->parameters[k];
        if (parameter->role != IR_ROLE_DATA) continue;
        stage->axis_priorities[0].entries[0].class_index =
            classes_of(context->classes, context->rules, parameter->instruction, 0);
        stage->axis_priorities[0].count = 1;
        break;
    }
    assert_int_equal(stage->axis_priorities[0].count, 1);
    fixture->plan = (Plan){.module_name = "mlp_tiny", .stages = stage, .stage_count = 1};
}

static Program *lower(Fixture *fixture) {
    AmError error = {0};
    Assignment *assignment;
    Program *program;
    AmStatus status = plan_assign(&assignment, &fixture->arena, fixture->context, &fixture->stage, &error);
    if (status == AM_OK)
        status = plan_lower(&program, &fixture->arena, fixture->context, assignment, 0, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    return program;
}

static Simulation *simulate(Fixture *fixture) {
    AmError error = {0};
    Simulation *simulation;
    AmStatus status = simulate_plan(&simulation, &fixture->arena, fixture->context, &fixture->plan,
                                    fixture->cluster, &(SimulationOptions){.memory_fraction = 0.9}, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    return simulation;
}

static void a_step_is_the_sum_of_its_parts(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    StepPrice price;
    StepCost *costs;
    int32_t count;
    plan_batch(fixture, "data=2");
    Program *program = lower(fixture);
    size_t used = fixture->arena.used;
    assert_int_equal(price_program(&price, program, fixture->cluster, devices_in_order, &error), AM_OK);
    assert_int_equal(fixture->arena.used, used);
    assert_int_equal(
        price_steps(&costs, &count, &fixture->arena, program, fixture->cluster, devices_in_order, &error),
        AM_OK);
    double compute = price_updates(program, cluster_device_type(fixture->cluster, 0)), communication = 0;
    int32_t collectives = 0;
    assert_int_equal(count, program->execution.step_count);
    for (int32_t s = 0; s < count; s++) {
        *(costs[s].is_collective ? &communication : &compute) += costs[s].seconds;
        collectives += costs[s].is_collective;
        assert_true(costs[s].seconds > 0);
        assert_int_equal(costs[s].executed.step, s);
        assert_float_equal(costs[s].executed.times, 1, 0);
    }
    assert_close(price.compute_seconds, compute);
    assert_close(price.communication_seconds, communication);
    assert_close(price.step_seconds, compute + communication);
    assert_int_equal(price.collectives[PROGRAM_ALL_REDUCE].count, collectives);
    assert_true(collectives > 0);
    assert_int_equal(price.peak_bytes, program->allocation.bytes);
    assert_int_equal(price.memory_bytes, 2000000);
}

/* Weights and the loss are reduced: S is their bytes, each device sends 2 (n-1)/n S. */
static void data_parallelism_sends_the_gradients(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    StepPrice price;
    plan_batch(fixture, "data=4");
    assert_int_equal(price_program(&price, lower(fixture), fixture->cluster, devices_in_order, &error),
                     AM_OK);
    double weights = 0;
    const IrRoles *roles = fixture->context->roles;
    for (int32_t k = 0; k < roles->parameter_count; k++)
        if (roles->parameters[k].role == IR_ROLE_WEIGHT)
            weights += (double)ir_shape_bytes(
                &fixture->context->canonical->instructions[roles->parameters[k].instruction].shape);
    const CollectivePrice *all_reduce = &price.collectives[PROGRAM_ALL_REDUCE];
    assert_close(all_reduce->tensor_bytes, weights + 4);
    assert_close(all_reduce->sent_bytes, 1.5 * (weights + 4));
}

static void the_slowest_type_decides(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    StepPrice fast, slow, both;
    static const int32_t fast_devices[] = {0, 1}, slow_devices[] = {2, 3}, mixed_devices[] = {1, 2};
    plan_batch(fixture, "data=2");
    Program *program = lower(fixture);
    assert_int_equal(price_program(&fast, program, fixture->cluster, fast_devices, &error), AM_OK);
    assert_int_equal(price_program(&slow, program, fixture->cluster, slow_devices, &error), AM_OK);
    assert_int_equal(price_program(&both, program, fixture->cluster, mixed_devices, &error), AM_OK);
    assert_close(slow.compute_seconds, 2 * fast.compute_seconds);
    assert_close(both.compute_seconds, slow.compute_seconds);
    assert_true(both.communication_seconds > slow.communication_seconds);
    assert_int_equal(both.memory_bytes, 1000000);
}

static void equal_devices_never_wait(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    StepPrice price;
    plan_batch(fixture, "data=2");
    assert_int_equal(price_program(&price, lower(fixture), fixture->cluster, devices_in_order, &error),
                     AM_OK);
    Simulation *simulation = simulate(fixture);
    assert_close(simulation->step_seconds, price.step_seconds);
    assert_int_equal(simulation->device_count, 2);
    for (int32_t d = 0; d < 2; d++) {
        assert_true(fabs(simulation->devices[d].idle_seconds) < 1e-12);
        assert_close(simulation->devices[d].compute_seconds, price.compute_seconds);
    }
    assert_close(simulation->executed_flops, 2 * price.flops);
    assert_close(simulation->collectives[PROGRAM_ALL_REDUCE].seconds, price.communication_seconds);
}

/* A fast device computes half as long as a slow one and waits for it the rest. */
static void fast_devices_wait_for_slow_ones(void **state) {
    Fixture *fixture = *state;
    plan_batch(fixture, "data=4");
    Simulation *simulation = simulate(fixture);
    const SimulatedDevice *fast = &simulation->devices[0], *slow = &simulation->devices[3];
    assert_string_equal(fast->name, "server0/fast-0");
    assert_string_equal(slow->name, "server1/slow-1");
    assert_close(slow->compute_seconds, 2 * fast->compute_seconds);
    assert_close(fast->idle_seconds, fast->compute_seconds);
    assert_true(fabs(slow->idle_seconds) < 1e-12);
    for (int32_t d = 0; d < 4; d++) {
        const SimulatedDevice *device = &simulation->devices[d];
        assert_close(device->compute_seconds + device->communication_seconds + device->idle_seconds,
                     simulation->step_seconds);
    }
}

static void memory_kinds_add_up(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    MemoryUse use;
    plan_batch(fixture, "data=4");
    Program *program = lower(fixture);
    int64_t weights = 0, optimizer = 0;
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        IrRole role = program->roles->parameters[k].role;
        int64_t bytes = program->values[program->parameters[k]].bytes;
        if (role == IR_ROLE_WEIGHT) weights += bytes;
        if (role == IR_ROLE_OPTIMIZER) optimizer += bytes;
    }
    bool any_gradient = false;
    for (program->allocation.peak_step = 0; program->allocation.peak_step < program->execution.step_count;
         program->allocation.peak_step++) {
        assert_int_equal(memory_use(&use, program, NULL, &error), AM_OK);
        assert_int_equal(use.weights_bytes, weights);
        assert_int_equal(use.optimizer_bytes, optimizer);
        assert_int_equal(use.peak_bytes, program->allocation.bytes);
        assert_int_equal(use.weights_bytes + use.gradients_bytes + use.optimizer_bytes + use.activation_bytes,
                         use.peak_bytes);
        assert_true(use.activation_bytes >= 0);
        assert_true(use.gradients_bytes <= 2 * weights);
        any_gradient = any_gradient || use.gradients_bytes > 0;
        if (program->allocation.peak_step == 0) assert_int_equal(use.gradients_bytes, 0);
    }
    assert_true(any_gradient);
}

static void too_little_memory_is_one_line(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    MemoryFit fit = memory_fit(1200000, fixture->cluster, devices_in_order, 4, 0.9);
    assert_false(fit.fits);
    assert_int_equal(fit.device, 2);
    assert_int_equal(fit.limit_bytes, 900000);
    assert_int_equal(memory_fail(&fit, fixture->cluster, 0.9, &error), AM_ERROR_INFEASIBLE);
    assert_string_equal(error.text, "no plan fits: device 2 (slow, server 1) needs 1.2 MB and may use 900 kB "
                                    "(memory fraction 0.9 of 1 MB); devices of 1.34 MB would be enough");
    fit = memory_fit(304600, fixture->cluster, devices_in_order, 4, 0.1);
    error = (AmError){0};
    assert_int_equal(memory_fail(&fit, fixture->cluster, 0.1, &error), AM_ERROR_INFEASIBLE);
    assert_non_null(strstr(error.text, "a memory fraction of 0.305 would be enough"));
    assert_true(memory_fit(304600, fixture->cluster, devices_in_order, 4, 0.305).fits);
    fit = memory_fit(341, fixture->cluster, devices_in_order, 4, 0.0001); /* three digits of any size */
    error = (AmError){0};
    assert_int_equal(memory_fail(&fit, fixture->cluster, 0.0001, &error), AM_ERROR_INFEASIBLE);
    assert_non_null(strstr(error.text, "a memory fraction of 0.000341 would be enough"));
    assert_true(memory_enough_fraction(&fit, fixture->cluster) == 0.000341);
    fit = memory_fit(1000400, fixture->cluster, devices_in_order, 4, 1);
    error = (AmError){0};
    assert_int_equal(memory_fail(&fit, fixture->cluster, 1, &error), AM_ERROR_INFEASIBLE);
    assert_non_null(strstr(error.text, "devices of 1.01 MB would be enough"));
    fit = memory_fit(950000, fixture->cluster, devices_in_order, 4, 0.9);
    error = (AmError){0};
    assert_int_equal(memory_fail(&fit, fixture->cluster, 0.9, &error), AM_ERROR_INFEASIBLE);
    assert_non_null(strstr(error.text, "a memory fraction of 0.95 would be enough"));
    assert_true(memory_fit(950000, fixture->cluster, devices_in_order, 2, 0.9).fits);
}

/* Repeated work on devices is executed, not achieved: the rate is that of the module's own work. */
static void the_rate_counts_useful_work(void **state) {
    Fixture *fixture = *state;
    plan_batch(fixture, "data=4");
    Simulation *split = simulate(fixture);
    fixture->stage.axis_priorities[0].count = 0; /* every device does everything */
    Simulation *repeated = simulate(fixture);
    assert_true(split->flops > 0);
    assert_true(repeated->flops == split->flops);
    /* Fusions recompute a few values of others. */
    assert_true(repeated->executed_flops >= 4 * repeated->flops);
    assert_true(repeated->executed_flops < 4.01 * repeated->flops);
    assert_true(split->executed_flops < repeated->executed_flops);
    json_t *root = simulation_to_json(repeated);
    assert_close(json_real_value(json_object_get(root, "flops_per_second")),
                 repeated->flops / repeated->step_seconds);
    json_decref(root);
}

static void a_simulation_is_written_and_predicted(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    plan_batch(fixture, "data=4");
    Simulation *simulation = simulate(fixture);
    assert_int_equal(simulation_predict(&fixture->plan, &fixture->arena, simulation, &error), AM_OK);
    assert_int_equal(fixture->plan.device_count, 4);
    assert_true(fixture->plan.predicted_step_seconds == simulation->step_seconds);
    assert_int_equal(fixture->plan.predicted[3].peak_bytes, simulation->devices[3].memory.peak_bytes);
    json_t *root = simulation_to_json(simulation);
    assert_non_null(root);
    assert_true(json_real_value(json_object_get(root, "step_seconds")) == simulation->step_seconds);
    assert_int_equal(json_array_size(json_object_get(root, "devices")), 4);
    json_decref(root);
    Text text = {0};
    simulation_print(&text, simulation);
    assert_non_null(strstr(text.data, "all_reduce"));
    assert_non_null(strstr(text.data, "server0/fast-0 and 1 alike"));
    text_free(&text);
}

static void a_plan_for_more_devices_is_refused(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    Simulation *simulation;
    static int32_t beyond[] = {0, 4};
    plan_batch(fixture, "data=2");
    fixture->stage.devices = beyond;
    assert_int_equal(simulate_plan(&simulation, &fixture->arena, fixture->context, &fixture->plan,
                                   fixture->cluster, &(SimulationOptions){.memory_fraction = 0.9}, &error),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "4 is not a device of cluster"));
}

/* tanh(h w[0]) ... tanh(h w[layers - 1]) as JAX's scan, or one layer of it. */
static const char scan_text[] =
    "HloModule scan\n\n"
    "body {\n"
    "  p = (s32[], f32[512,256]{1,0}, f32[12,256,256]{2,1,0}) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0\n"
    "  one = s32[] constant(1)\n"
    "  zero = s32[] constant(0)\n"
    "  next = s32[] add(i, one)\n"
    "  h = f32[512,256]{1,0} get-tuple-element(p), index=1\n"
    "  w = f32[12,256,256]{2,1,0} get-tuple-element(p), index=2\n"
    "  slice = f32[1,256,256]{2,1,0} dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,256,256}\n"
    "  layer = f32[256,256]{1,0} reshape(slice)\n"
    "  product = f32[512,256]{1,0} dot(h, layer), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  new = f32[512,256]{1,0} tanh(product)\n"
    "  ROOT r = (s32[], f32[512,256]{1,0}, f32[12,256,256]{2,1,0}) tuple(next, new, w)\n"
    "}\n\n"
    "condition {\n"
    "  p = (s32[], f32[512,256]{1,0}, f32[12,256,256]{2,1,0}) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0\n"
    "  layers = s32[] constant(12)\n"
    "  ROOT more = pred[] compare(i, layers), direction=LT\n"
    "}\n\n"
    "ENTRY main {\n"
    "  h = f32[512,256]{1,0} parameter(0)\n"
    "  w = f32[12,256,256]{2,1,0} parameter(1)\n"
    "  zero = s32[] constant(0)\n"
    "  carry = (s32[], f32[512,256]{1,0}, f32[12,256,256]{2,1,0}) tuple(zero, h, w)\n"
    "  loop = (s32[], f32[512,256]{1,0}, f32[12,256,256]{2,1,0}) while(carry), condition=condition, "
    "body=body\n"
    "  ROOT out = f32[512,256]{1,0} get-tuple-element(loop), index=1\n"
    "}\n";
static const char layer_text[] =
    "HloModule layer\n\n"
    "ENTRY main {\n"
    "  h = f32[512,256]{1,0} parameter(0)\n"
    "  w = f32[256,256]{1,0} parameter(1)\n"
    "  ROOT product = f32[512,256]{1,0} dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "}\n";

/* A device whose memory is fast for its arithmetic, so that the products decide. */
static const char balanced[] = "{\"format\": \"automap-cluster-1\", \"name\": \"one\", \"device_types\": {"
                               "\"d\": {\"memory_bytes\": 1e9, \"memory_bytes_per_second\": 1e11,"
                               "  \"flops_per_second\": {\"f32\": 1e11}, \"kernel_launch_seconds\": 1e-6}},"
                               "\"links\": {\"in\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 1e-6}},"
                               "\"servers\": [{\"device_type\": \"d\", \"devices\": 1, \"link\": \"in\"}], "
                               "\"between_servers\": \"in\"}";

/* The price of a whole module on the one device of `balanced`, and how many
 * warnings of types without a rate there were. */
static StepPrice price_text(const char *text, int32_t *warnings) {
    AmError error = {0};
    Arena arena = {0};
    Cluster *cluster;
    json_t *root;
    char path[] = "/tmp/automap-price-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), (int64_t)strlen(text));
    close(file);
    assert_int_equal(json_parse(&root, "balanced", balanced, strlen(balanced), &error), AM_OK);
    assert_int_equal(cluster_from_json(&cluster, &arena, root, "balanced", &error), AM_OK);
    json_decref(root);
    PlanContext *context;
    AmStatus status = plan_context_read(&context, path, NULL, &error);
    unlink(path);
    if (status != AM_OK) fail_msg("%s", error.text);
    PlanStage stage = {.devices = devices_in_order};
    Assignment *assignment;
    Program *program;
    StepPrice price;
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=1", &error), AM_OK);
    assert_int_equal(plan_assign(&assignment, &arena, context, &stage, &error), AM_OK);
    assert_int_equal(plan_lower(&program, &arena, context, assignment, 0, &error), AM_OK);
    assert_int_equal(price_program(&price, program, cluster, devices_in_order, &error), AM_OK);
    AmWarnings types = {.arena = &arena};
    price_warn_types(&types, program, cluster);
    *warnings = types.count;
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
    return price;
}

static void a_scan_costs_its_layers(void **state) {
    (void)state;
    int32_t warnings;
    StepPrice scan = price_text(scan_text, &warnings), layer = price_text(layer_text, &warnings);
    assert_int_equal(warnings, 0);
    const double product = 2. * 512 * 256 * 256;
    assert_close(layer.flops, product);
    assert_close(scan.flops, 12 * (product + 512 * 256 + 1) + 13); /* tanh, the counter, the comparison */
    /* Weights, once, and the state, which the loop changes in place; in the body a product. A layer's slice
     * is read where it lies. */
    const int64_t values = 4 * 512 * 256, weights = 4 * 256 * 256, all = 12 * weights + values;
    assert_true(scan.peak_bytes >= all + values);
    assert_true(scan.peak_bytes < all + values + 4096);
    double ratio = scan.step_seconds / (12 * layer.step_seconds);
    if (ratio < 1 || ratio > 1.05) fail_msg("a scan of 12 layers costs %g times its layers", ratio);
}

/* The scan in f16: the one product's rate is not named. */
static void types_inside_loops_are_warned_of(void **state) {
    (void)state;
    char text[sizeof scan_text];
    int32_t warnings;
    memcpy(text, scan_text, sizeof text);
    for (char *at = strstr(text, "f32["); at; at = strstr(at, "f32[")) memcpy(at, "f16[", 4);
    price_text(text, &warnings);
    assert_int_equal(warnings, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_sum_of_its_parts),
        cmocka_unit_test(data_parallelism_sends_the_gradients),
        cmocka_unit_test(the_slowest_type_decides),
        cmocka_unit_test(equal_devices_never_wait),
        cmocka_unit_test(fast_devices_wait_for_slow_ones),
        cmocka_unit_test(memory_kinds_add_up),
        cmocka_unit_test(too_little_memory_is_one_line),
        cmocka_unit_test(the_rate_counts_useful_work),
        cmocka_unit_test(a_simulation_is_written_and_predicted),
        cmocka_unit_test(a_plan_for_more_devices_is_refused),
        cmocka_unit_test(a_scan_costs_its_layers),
        cmocka_unit_test(types_inside_loops_are_warned_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
