/* The bound of one-stage plans on devices of several types, compared with the best plan of an exhaustive
 * search and with plans of random axis priorities and random shares: random modules on random clusters, with
 * and without scarce memory. */
/* cost: 3 seconds */
#include "tests/support/search_case.h"

#include "cost/simulate/simulate.h"
#include "planners/bounds/bound_mixed.h"
#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/single_stage/searchers.h"
#include "tests/support/sample.h"

enum { MOST_DEVICES = 4, PLANS = 24 };

typedef struct MixedCase {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    const char *axes;
    Mesh mesh;
    int32_t devices[MOST_DEVICES];
    double bound, of_orders, of_work, of_launches, least; /* seconds; the least of all plans */
    int32_t fitting;
} MixedCase;

static json_t *make_type(Random *random, int64_t memory_bytes) {
    static const int64_t factors[] = {1, 2, 3, 8};
    double flops = 1e12 * (double)pick(random, factors, 4), bytes = 1e11 * (double)pick(random, factors, 4);
    json_t *type = json_pack("{s:I, s:f, s:{s:f}, s:f}", "memory_bytes", (json_int_t)memory_bytes,
                             "memory_bytes_per_second", bytes, "flops_per_second", "f32", flops,
                             "kernel_launch_seconds", 1e-7);
    if (random_below(random, 2))
        json_object_set_new(type, "efficiency",
                            json_pack("{s:[[f,f],[f,f]], s:[[f,f],[f,f]]}", "dot", 1e6, 0.3, 1e10, 0.9,
                                      "memory", 1e4, 0.2, 1e7, 0.8));
    return type;
}

/* Two to four devices on servers of one or two, of two types. */
static Cluster *make_mixed(Random *random, Arena *arena, int64_t memory_bytes) {
    static const int64_t speeds[] = {10000000, 100000000, 1000000000, 10000000000};
    static const char *const names[] = {"fast", "slow"};
    AmError error = {0};
    Cluster *cluster;
    int32_t per_server = 1 + (int32_t)random_below(random, 2);
    json_int_t of_network = (json_int_t)pick(random, speeds, 4);
    json_int_t of_link = (json_int_t)pick(random, speeds, 4);
    json_t *servers = json_array(), *types = json_object();
    for (int32_t k = 0; k < 2; k++) {
        json_object_set_new(types, names[k], make_type(random, memory_bytes));
        json_array_append_new(servers, json_pack("{s:s, s:i, s:s}", "device_type", names[k], "devices",
                                                 per_server, "link", "link"));
    }
    json_t *object =
        json_pack("{s:s, s:s, s:o, s:{s:{s:I, s:f}, s:{s:I, s:f}}, s:o, s:s}", "format", "automap-cluster-1",
                  "name", "generated", "device_types", types, "links", "link", "bytes_per_second", of_link,
                  "latency_seconds", 1e-6, "network", "bytes_per_second", of_network, "latency_seconds", 1e-6,
                  "servers", servers, "between_servers", "network");
    assert_non_null(object);
    if (cluster_from_json(&cluster, arena, object, "generated", &error) != AM_OK)
        fail_msg("%s: %s", error.source, error.text);
    json_decref(object);
    return cluster;
}

/* Random shares of an axis that add up to 1, in 32 units; each coordinate has at least one. */
static double *random_shares(Random *random, Arena *arena, int32_t size) {
    enum { UNITS = 32 };
    double *shares = ARENA_ARRAY(arena, double, size);
    for (int32_t k = 0; k < UNITS; k++)
        shares[k < size ? k : (int32_t)random_below(random, size)] += 1.0 / UNITS;
    return shares;
}

static Simulation *simulate(MixedCase *self, const Plan *plan) {
    AmError error = {0};
    Simulation *simulation;
    AmStatus status = simulate_plan(&simulation, &self->arena, self->context, plan, self->cluster,
                                    &(SimulationOptions){.memory_fraction = 0.9}, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) fail_msg("%s", error.text);
    return status == AM_OK ? simulation : NULL;
}

static void check_plan(MixedCase *self, const Plan *plan, const char *what) {
    const Simulation *simulation = simulate(self, plan);
    if (!simulation || !simulation->fit.fits) return;
    self->fitting++;
    self->least = fmin(self->least, simulation->step_seconds);
    if (self->bound > simulation->step_seconds * (1 + 1e-6))
        fail_msg("%s takes %g s, the bound is %g s", what, simulation->step_seconds, self->bound);
    if (self->of_launches > simulation->step_seconds * (1 + 1e-6))
        fail_msg("%s takes %g s, the bound with launches is %g s", what, simulation->step_seconds,
                 self->of_launches);
    if (self->of_orders > simulation->step_seconds * (1 + 1e-6))
        fail_msg("%s takes %g s, the bound of all orders is %g s", what, simulation->step_seconds,
                 self->of_orders);
}

/* Makes a plan of random axis priorities, with equal shares. */
static Plan *random_plan(MixedCase *self, const StageProblem *problem, Random *random) {
    PlanStage *stage = ARENA_ARRAY(&self->arena, PlanStage, 1);
    Plan *plan = ARENA_ARRAY(&self->arena, Plan, 1);
    AxisPlan axis_plan;
    random_axis_plan(problem, random, &axis_plan);
    problem_stage(problem, &axis_plan, &self->arena, stage);
    *plan = (Plan){.context = self->context, .micro_batches = 1, .stages = stage, .stage_count = 1};
    return plan;
}

static StageProblem *open_problem(MixedCase *self) {
    const ProblemSettings settings = {.constraints.memory_fraction = 0.9, .budget = {.limit = 1000}};
    AmError error = {0};
    StageProblem *problem;
    assert_int_equal(
        problem_create(&problem, self->context, self->cluster, &self->mesh, self->devices, &settings, &error),
        AM_OK);
    return problem;
}

/* Checks random axis priorities with equal and with random shares. */
static void check_random_plans(MixedCase *self, Random *random) {
    StageProblem *problem = open_problem(self);
    for (int32_t k = 0; k < PLANS; k++) {
        Plan *plan = random_plan(self, problem, random);
        check_plan(self, plan, "a random plan");
        for (int32_t axis = 0; axis < self->mesh.axis_count; axis++)
            if (self->mesh.axes[axis].size > 1)
                plan->stages->mesh.axes[axis].shares =
                    random_shares(random, &self->arena, self->mesh.axes[axis].size);
        check_plan(self, plan, "a random plan with random shares");
    }
    problem_free(problem);
}

/* The memory that the least of some random plans fills. */
static int64_t least_memory(MixedCase *self, Random *random) {
    StageProblem *problem = open_problem(self);
    int64_t least = INT64_MAX;
    for (int32_t k = 0; k < PLANS; k++) {
        const Simulation *simulation = simulate(self, random_plan(self, problem, random));
        int64_t most = 0;
        for (int32_t d = 0; simulation && d < self->mesh.device_count; d++)
            if (simulation->devices[d].memory.peak_bytes > most)
                most = simulation->devices[d].memory.peak_bytes;
        if (simulation && most < least) least = most;
    }
    problem_free(problem);
    return (int64_t)((double)least / 0.9) + 1;
}

static void open_mixed(MixedCase *self, int32_t number, int64_t memory_bytes) {
    static const char *const meshes[2][2] = {{"data=2", "model=2"}, {"data=4", "data=2,model=2"}};
    AmError error = {0};
    Random random;
    random_seed(&random, 700 + (uint64_t)number);
    self->cluster = make_mixed(&random, &self->arena, memory_bytes);
    self->axes = meshes[self->cluster->device_count == 4][number / 2 % 2];
    assert_int_equal(mesh_parse(&self->mesh, &self->arena, self->axes, &error), AM_OK);
}

static void check_case(int32_t number, MixedCase *self) {
    AmError error = {0};
    Random random;
    PlanBound work;
    SearchResult best;
    random_seed(&random, 900 + (uint64_t)number);
    *self = (MixedCase){.context = make_context(&random, 1 + number % 2), .least = INFINITY};
    for (int32_t d = 0; d < MOST_DEVICES; d++) self->devices[d] = d;
    open_mixed(self, number, LARGE_MEMORY);
    if (number % 3 == 2) {
        int64_t memory_bytes = least_memory(self, &random);
        cluster_free(self->cluster);
        open_mixed(self, number, memory_bytes);
    }
    const BoundMeshes meshes = {
        .of = &self->mesh, .count = 1, .devices = self->devices, .memory_fraction = 0.9};
    const BoundMixedSpace space = {self->context, self->cluster, &meshes, NULL, false};
    const BoundMemory memory = {.fraction = 0.9};
    assert_int_equal(plan_bound_mixed(&self->bound, &space, &error), AM_OK);
    assert_int_equal(
        plan_bound_mixed_orders(&self->of_orders, self->context, self->cluster, &memory, NULL, &error),
        AM_OK);
    assert_int_equal(plan_bound_of_work(&work, self->context, self->cluster, &error), AM_OK);
    self->of_work = work.seconds;
    assert_int_equal(plan_bound_alone(&self->of_launches, self->context, self->cluster, 1, &error), AM_OK);
    const SearchRequest request = {.space.mesh = self->axes, .constraints.memory_fraction = 0.9};
    const SearchScope scope = {.request = &request, .searcher = SEARCHER_EXHAUSTIVE, .skip_bound = true};
    if (single_stage_search(&best, &self->arena, self->context, self->cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    check_plan(self, best.plan, "the best plan");
    check_random_plans(self, &random);
}

static void test_no_plan_is_below(void **state) {
    (void)state;
    int32_t cases = sample_of(48, 8), above_work = 0, orders_above_work = 0, launches_above_work = 0,
            near = 0;
    for (int32_t number = 0; number < cases; number++) {
        MixedCase self;
        check_case(number, &self);
        if (getenv("AUTOMAP_PRINT"))
            printf("%d: work %g, bound %g, of all orders %g, least %g of %d\n", number, self.of_work,
                   self.bound, self.of_orders, self.least, self.fitting);
        above_work += self.bound > 1.1 * self.of_work;
        orders_above_work += self.of_orders > 1.1 * self.of_work;
        launches_above_work += self.of_launches > 1.1 * self.of_work;
        near += isfinite(self.least) && fmax(self.bound, self.of_work) > 0.7 * self.least;
        cluster_free(self.cluster);
        plan_context_free(self.context);
        arena_free(&self.arena);
    }
    assert_true(above_work > sample_of(6, 1));
    assert_true(launches_above_work > sample_of(4, 0));
    assert_true(orders_above_work > sample_of(4, 0));
    assert_true(near >= sample_of(12, 0));
}

/* The seconds of each operator on one device of a type, in the arena. */
static const double *seconds_of_type(MixedCase *self, int32_t type, int32_t *count) {
    AmError error = {0};
    LeastWork work;
    Cluster *part;
    for (int32_t d = 0; d < self->cluster->device_count; d++) {
        if (cluster_device_type(self->cluster, d) != &self->cluster->types[type]) continue;
        assert_int_equal(cluster_part(&part, &self->arena, self->cluster, &d, 1, &error), AM_OK);
        assert_int_equal(least_work_find(&work, &self->arena, self->context, part, &error), AM_OK);
        cluster_free(part);
        *count = work.count;
        return work.seconds;
    }
    fail_msg("no device of type %d", type);
    return NULL;
}

/* The greatest bound of work over a grid of the ratio of two types' weights, with equally many devices. */
static double bound_of_grid(MixedCase *self) {
    enum { POINTS = 8000 };
    int32_t count = 0;
    const double *first = seconds_of_type(self, 0, &count), *second = seconds_of_type(self, 1, &count);
    double best = 0;
    for (int32_t k = 0; k <= POINTS; k++) {
        double ratio = pow(10, 4.0 * k / POINTS - 2), sum = 0;
        for (int32_t n = 0; n < count; n++) sum += fmin(first[n], ratio * second[n]);
        best = fmax(best, sum / (1 + ratio) / (self->cluster->device_count / 2));
    }
    return best;
}

static void test_weights_of_types_are_the_best(void **state) {
    (void)state;
    for (int32_t number = 0; number < sample_of(32, 8); number++) {
        MixedCase self = {0};
        AmError error = {0};
        Random random;
        PlanBound work;
        random_seed(&random, 900 + (uint64_t)number);
        self.context = make_context(&random, 1 + number % 2);
        open_mixed(&self, number, LARGE_MEMORY);
        assert_int_equal(plan_bound_of_work(&work, self.context, self.cluster, &error), AM_OK);
        double best = bound_of_grid(&self);
        if (work.seconds < 0.999 * best || work.seconds > 1.002 * best)
            fail_msg("case %d: the bound is %g s, that of the best weights %g s", number, work.seconds, best);
        cluster_free(self.cluster);
        plan_context_free(self.context);
        arena_free(&self.arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_plan_is_below),
                                       cmocka_unit_test(test_weights_of_types_are_the_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
