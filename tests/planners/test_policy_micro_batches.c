/* The number of micro-batches as a decision of the policy, on clusters with little and with much memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "planners/plan_search.h"
#include "planners/single_stage/single_stage_search.h"

enum { EVALUATIONS = 40, FEW = 6, SCARCE = 30000000 /* bytes */ };
#define LARGE 64000000000 /* bytes */

/* Two layers of 2,048 on a batch of 4,096: activations of the whole batch take some 200 MB, and weights with
 * their gradients 32 MB. */
static const char module[] =
    "HloModule layers\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT s = f32[] add(a, b)\n}\n\nENTRY main {\n"
    "  w0 = f32[1024,2048] parameter(0)\n  w1 = f32[2048,1024] parameter(1)\n"
    "  h0 = f32[4096,1024] parameter(2)\n  zero = f32[] constant(0)\n  one = f32[] constant(1)\n"
    "  z0 = f32[4096,2048] dot(h0, w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  zeros = f32[4096,2048] broadcast(zero), dimensions={}\n"
    "  h1 = f32[4096,2048] maximum(z0, zeros)\n"
    "  z1 = f32[4096,1024] dot(h1, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  loss = f32[] reduce(z1, zero), dimensions={0,1}, to_apply=sum\n"
    "  g1 = f32[4096,1024] broadcast(one), dimensions={}\n"
    "  dw1 = f32[2048,1024] dot(h1, g1), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  g0 = f32[4096,2048] dot(g1, w1), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
    "  m0 = pred[4096,2048] compare(z0, zeros), direction=GT\n"
    "  d0 = f32[4096,2048] select(m0, g0, zeros)\n"
    "  dw0 = f32[1024,2048] dot(h0, d0), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  n0 = f32[1024,2048] subtract(w0, dw0)\n  n1 = f32[2048,1024] subtract(w1, dw1)\n"
    "  ROOT out = (f32[1024,2048], f32[2048,1024], f32[]) tuple(n0, n1, loss)\n}\n";

static PlanContext *make_module(void) {
    PlanContext *context;
    AmError error = {0};
    if (plan_context_parse(&context, "layers", module, (int64_t)strlen(module), &error) != AM_OK)
        fail_msg("%s", error.text);
    return context;
}

typedef struct Found {
    AmStatus status;
    int32_t micro_batches;
    int64_t evaluations;
    double seconds;
} Found;

/* Searches without baselines and polish. `chooses`: the policy chooses the number. */
static Found search_bare(PlanContext *context, const Cluster *cluster, bool chooses, int64_t evaluations) {
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    const SearchRequest request = {.constraints.memory_fraction = 0.9,
                                   .method.no_seeds = true,
                                   .method.no_polish = true,
                                   .space.no_overrides = true};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_SINGLE_STAGE,
                               .searcher = SEARCHER_DQN,
                               .skip_bound = true,
                               .splits = chooses ? context : NULL,
                               .limits.evaluations = evaluations,
                               .limits.cap = evaluations,
                               .limits.has_cap = true};
    Found found = {.status = single_stage_search(&result, &arena, context, cluster, &scope, &error)};
    if (found.status != AM_OK && found.status != AM_ERROR_INFEASIBLE) fail_msg("%s", error.text);
    found.evaluations = result.evaluations;
    if (found.status == AM_OK) {
        found.micro_batches = result.plan->micro_batches;
        found.seconds = result.plan->predicted_step_seconds;
    }
    arena_free(&arena);
    return found;
}

/* Four devices on a fast link. */
static Cluster *make_cluster(Arena *arena, int64_t memory_bytes) {
    AmError error = {0};
    Cluster *cluster;
    json_t *object = json_pack(
        "{s:s, s:s, s:{s:{s:I, s:f, s:{s:f}, s:f}}, s:{s:{s:f, s:f}}, s:[{s:i, s:s, s:i, s:s}]}", "format",
        "automap-cluster-1", "name", "generated", "device_types", "device", "memory_bytes",
        (json_int_t)memory_bytes, "memory_bytes_per_second", 900e9, "flops_per_second", "f32", 15e12,
        "kernel_launch_seconds", 5e-6, "links", "link", "bytes_per_second", 1e11, "latency_seconds", 5e-6,
        "servers", "count", 1, "device_type", "device", "devices", 4, "link", "link");
    assert_non_null(object);
    if (cluster_from_json(&cluster, arena, object, "generated", &error) != AM_OK) fail_msg("%s", error.text);
    json_decref(object);
    return cluster;
}

/* No plan fits with the whole batch at once. The policy finds one in micro-batches, with the evaluations of
 * one search. */
static void test_splits_where_nothing_fits(void **state) {
    (void)state;
    Arena arena = {0};
    Cluster *cluster = make_cluster(&arena, SCARCE);
    PlanContext *context = make_module();
    Found whole = search_bare(context, cluster, false, EVALUATIONS);
    Found split = search_bare(context, cluster, true, EVALUATIONS);
    assert_int_equal(whole.status, AM_ERROR_INFEASIBLE);
    assert_int_equal(split.status, AM_OK);
    assert_true(split.micro_batches > 1);
    assert_true(split.evaluations <= EVALUATIONS);
    plan_context_free(context);
    cluster_free(cluster);
    arena_free(&arena);
}

/* With memory for every plan the action is masked: the search is that without it. */
static void test_whole_where_all_fits(void **state) {
    (void)state;
    Arena arena = {0};
    Cluster *cluster = make_cluster(&arena, LARGE);
    PlanContext *context = make_module();
    Found whole = search_bare(context, cluster, false, FEW);
    Found split = search_bare(context, cluster, true, FEW);
    assert_int_equal(split.micro_batches, 1);
    assert_true(split.seconds == whole.seconds);
    assert_int_equal(split.evaluations, whole.evaluations);
    plan_context_free(context);
    cluster_free(cluster);
    arena_free(&arena);
}

/* A whole search has baselines and polish with the chosen number, and a bound over all numbers. */
static void test_whole_search(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    Cluster *cluster = make_cluster(&arena, SCARCE);
    PlanContext *context = make_module();
    const SearchRequest request = {.constraints.memory_fraction = 0.9, .space.may_add_micro_batches = true};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_SINGLE_STAGE,
                               .searcher = SEARCHER_DQN,
                               .micro_batches = 1,
                               .limits.evaluations = EVALUATIONS};
    if (plan_search(&result, &arena, context, cluster, &scope, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(result.plan->micro_batches > 1);
    assert_true(result.evaluations <= EVALUATIONS);
    assert_true(result.plan->bound_seconds > 0);
    assert_true(result.plan->bound_seconds <= result.plan->predicted_step_seconds);
    plan_context_free(context);
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits_where_nothing_fits),
        cmocka_unit_test(test_whole_where_all_fits),
        cmocka_unit_test(test_whole_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
