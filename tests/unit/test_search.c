/* Searchers against exhaustive search on generated training steps: multi-layer
 * perceptrons of random widths on clusters of random speeds, small enough to
 * enumerate every plan. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"
#include "base/text.h"
#include "ir/canonical.h"
#include "planners/search.h"
#include "propagation/lower.h"
#include "sample.h"

#define LARGE_MEMORY 64000000000 /* bytes: everything fits */

static int64_t pick(Random *random, const int64_t *values, int32_t count) {
    return values[random_below(random, count)];
}

/* A training step: relu layers, a sum loss, plain gradient descent. */
static void write_layers(Text *text, int64_t batch, const int64_t *width, int32_t layers) {
#define MATRIX(rows, columns) (long long)(rows), (long long)(columns)
    text_append_string(text,
                       "HloModule generated\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                       "  ROOT s = f32[] add(a, b)\n}\n\nENTRY main {\n");
    for (int32_t k = 0; k < layers; k++)
        text_append(text, "  w%d = f32[%lld,%lld] parameter(%d)\n", k, MATRIX(width[k], width[k + 1]), k);
    text_append(text, "  h0 = f32[%lld,%lld] parameter(%d)\n", MATRIX(batch, width[0]), layers);
    text_append_string(
        text, "  zero = f32[] constant(0)\n  one = f32[] constant(1)\n  rate = f32[] constant(0.5)\n");
    for (int32_t k = 0; k < layers; k++) {
        text_append(
            text,
            "  z%d = f32[%lld,%lld] dot(h%d, w%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n", k,
            MATRIX(batch, width[k + 1]), k, k);
        text_append(text, "  zeros%d = f32[%lld,%lld] broadcast(zero), dimensions={}\n", k,
                    MATRIX(batch, width[k + 1]));
        text_append(text, "  h%d = f32[%lld,%lld] maximum(z%d, zeros%d)\n", k + 1,
                    MATRIX(batch, width[k + 1]), k, k);
    }
    text_append(text, "  loss = f32[] reduce(h%d, zero), dimensions={0,1}, to_apply=sum\n", layers);
    text_append(text, "  g%d = f32[%lld,%lld] broadcast(one), dimensions={}\n", layers,
                MATRIX(batch, width[layers]));
    for (int32_t k = layers - 1; k >= 0; k--) {
        text_append(text, "  m%d = pred[%lld,%lld] compare(z%d, zeros%d), direction=GT\n", k,
                    MATRIX(batch, width[k + 1]), k, k);
        text_append(text, "  d%d = f32[%lld,%lld] select(m%d, g%d, zeros%d)\n", k,
                    MATRIX(batch, width[k + 1]), k, k + 1, k);
        text_append(
            text,
            "  dw%d = f32[%lld,%lld] dot(h%d, d%d), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n", k,
            MATRIX(width[k], width[k + 1]), k, k);
        if (k > 0)
            text_append(
                text,
                "  g%d = f32[%lld,%lld] dot(d%d, w%d), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n",
                k, MATRIX(batch, width[k]), k, k);
        text_append(text, "  r%d = f32[%lld,%lld] broadcast(rate), dimensions={}\n", k,
                    MATRIX(width[k], width[k + 1]));
        text_append(text, "  u%d = f32[%lld,%lld] multiply(dw%d, r%d)\n", k, MATRIX(width[k], width[k + 1]),
                    k, k);
        text_append(text, "  n%d = f32[%lld,%lld] subtract(w%d, u%d)\n", k, MATRIX(width[k], width[k + 1]), k,
                    k);
    }
    text_append_string(text, "  ROOT out = (");
    for (int32_t k = 0; k < layers; k++)
        text_append(text, "f32[%lld,%lld], ", MATRIX(width[k], width[k + 1]));
    text_append_string(text, "f32[]) tuple(");
    for (int32_t k = 0; k < layers; k++) text_append(text, "n%d, ", k);
    text_append_string(text, "loss)\n}\n");
}

static void write_module(Text *text, Random *random, int32_t layers) {
    static const int64_t widths[] = {8, 64, 512, 2048, 8192}, batches[] = {8, 64, 512, 4096};
    int64_t width[4], batch = pick(random, batches, 4);
    for (int32_t k = 0; k <= layers; k++) width[k] = pick(random, widths, 5);
    write_layers(text, batch, width, layers);
}

/* Four devices on links of a random speed. */
static Cluster *make_cluster(Random *random, Arena *arena, int64_t memory_bytes) {
    AmError error = {0};
    static const int64_t speeds[] = {100000000, 1000000000, 10000000000, 100000000000};
    json_t *object =
        json_pack("{s:s, s:s, s:{s:{s:I, s:f, s:{s:f}, s:f}}, s:{s:{s:I, s:f}}, s:[{s:i, s:s, s:i, s:s}]}",
                  "format", "automap-cluster-1", "name", "generated", "device_types", "device",
                  "memory_bytes", (json_int_t)memory_bytes, "memory_bytes_per_second", 900e9,
                  "flops_per_second", "f32", 15e12, "kernel_launch_seconds", 5e-6, "links", "link",
                  "bytes_per_second", (json_int_t)pick(random, speeds, 4), "latency_seconds", 5e-6, "servers",
                  "count", 1, "device_type", "device", "devices", 4, "link", "link");
    assert_non_null(object);
    Cluster *cluster;
    AmStatus status = cluster_from_json(&cluster, arena, object, "generated", &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    json_decref(object);
    return cluster;
}

static PlanContext *read_text(Text text) {
    AmError error = {0};
    char path[] = "/tmp/automap-search-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    FILE *stream = fdopen(file, "w");
    assert_non_null(stream);
    fputs(text.data, stream);
    fclose(stream);
    PlanContext *context;
    AmStatus status = plan_context_read(&context, path, NULL, &error);
    remove(path);
    if (status != AM_OK) fail_msg("%s:%lld: %s", error.source, (long long)error.line, error.text);
    text_free(&text);
    return context;
}

static PlanContext *make_context(Random *random, int32_t layers) {
    Text text = {0};
    write_module(&text, random, layers);
    return read_text(text);
}

static double searched(const PlanContext *context, const Cluster *cluster, SearchOptions options) {
    AmError error = {0};
    Arena arena = {0};
    SearchResult result;
    options.memory_fraction = 0.9;
    AmStatus status = search(&result, &arena, context, cluster, &options, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    double seconds = result.plan->predicted_step_seconds;
    for (int32_t e = 0; e < EXPERT_COUNT; e++)
        if (!isnan(result.experts[e].seconds) && !options.no_seeds && options.searcher != SEARCHER_RANDOM)
            if (seconds > result.experts[e].seconds)
                fail_msg("%.17g is slower than %s, %.17g", seconds, expert_name((Expert)e),
                         result.experts[e].seconds);
    arena_free(&arena);
    return seconds;
}

/* The default search finds the optimum of the space, with and without the
 * expert plans to start from. */
static void test_dqn_equals_exhaustive(void **state) {
    (void)state;
    int32_t random_was_worse = 0, cases = sample_of(24, 6);
    for (int32_t number = 0; number < cases; number++) {
        Random random;
        random_seed(&random, 1000 + (uint64_t)number);
        Arena arena = {0};
        int32_t layers = 1 + number % 2;
        PlanContext *context = make_context(&random, layers);
        Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
        SearchOptions options = {.mesh = layers == 1 ? "data=2,model=2" : "data=4", .seed = (uint64_t)number};
        options.searcher = SEARCHER_EXHAUSTIVE;
        double best = searched(context, cluster, options);
        options.searcher = SEARCHER_DQN;
        double seeded = searched(context, cluster, options);
        options.no_seeds = true;
        double unseeded = searched(context, cluster, options);
        if (fabs(seeded / best - 1) > 1e-12 || fabs(unseeded / best - 1) > 1e-12)
            fail_msg("case %d: exhaustive %g, dqn %g, without expert plans %g", number, best, seeded,
                     unseeded);
        options.searcher = SEARCHER_RANDOM;
        random_was_worse += searched(context, cluster, options) > best * 1.01;
        cluster_free(cluster);
        arena_free(&arena);
        plan_context_free(context);
    }
    /* The cases decide something: a random plan is usually not the best. */
    assert_true(random_was_worse > cases / 2);
}

static void check_kept(const PlanContext *context, Arena *arena, const Plan *plan, const char *path, Sbp data,
                       Sbp model) {
    AmError error = {0};
    Completion *completion;
    assert_int_equal(plan_complete(&completion, arena, context, &plan->stages[0], &error), AM_OK);
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (strcmp(context->roles->parameters[p].path, path) != 0) continue;
        SbpState found = completion->stored[context->roles->parameters[p].instruction];
        assert_int_equal(found.axis[0], data);
        assert_int_equal(found.axis[1], model);
        return;
    }
    fail_msg("no parameter %s", path);
}

/* Every searcher's plan keeps the pins, on a mesh where they hold, and none is
 * better than the best of all that keep them. */
static void test_pins_are_kept(void **state) {
    (void)state;
    static const PropagationPin pins[] = {{"w0", "-,model"}, {"w1", "-,-"}, {"h*", "data,-"}};
    static const Searcher searchers[] = {SEARCHER_EXHAUSTIVE, SEARCHER_DQN, SEARCHER_RANDOM};
    for (uint64_t number = 0; number < 6; number++) {
        Random random;
        random_seed(&random, 2000 + number);
        Arena arena = {0};
        PlanContext *context = make_context(&random, 2);
        Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
        double best = 0;
        for (int32_t count = 1; count <= 3; count += 2) {
            for (size_t k = 0; k < sizeof searchers / sizeof *searchers; k++) {
                AmError error = {0};
                SearchResult result;
                SearchOptions options = {.searcher = searchers[k],
                                         .seed = number,
                                         .memory_fraction = 0.9,
                                         .mesh = count == 3 ? NULL : "data=2,model=2",
                                         .pins = pins,
                                         .pin_count = count,
                                         .evaluations = 200};
                AmStatus status = search(&result, &arena, context, cluster, &options, &error);
                /* w1's rows are w0's columns: whole and split at once. */
                if (count == 3) {
                    assert_int_equal(status, AM_ERROR_INFEASIBLE);
                    assert_non_null(strstr(error.text, "pin \"w"));
                    continue;
                }
                if (status != AM_OK) fail_msg("%s", error.text);
                check_kept(context, &arena, result.plan, "w0", SBP_B, sbp_split(1));
                if (k == 0) best = result.plan->predicted_step_seconds;
                assert_true(result.plan->predicted_step_seconds >= best * (1 - 1e-12));
            }
        }
        cluster_free(cluster);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Where weights do not fit beside their gradients, data parallelism needs them in shards, and the search
 * finds that with and without being shown. */
static void test_storage_makes_plans_fit(void **state) {
    (void)state;
    static const int64_t width[] = {3, 8192, 8192, 8192}; /* two weights of 268 MB */
    Random random;
    random_seed(&random, 4000);
    Arena arena = {0};
    Text text = {0};
    write_layers(&text, 64, width, 3);
    PlanContext *context = read_text(text);
    Cluster *cluster = make_cluster(&random, &arena, 830000000);
    for (int32_t seeds = 0; seeds < 2; seeds++) {
        AmError error = {0};
        SearchResult result;
        SearchOptions options = {.memory_fraction = 0.9,
                                 .space = SPACE_DATA,
                                 .mesh = "data=4",
                                 .no_seeds = seeds == 0,
                                 .evaluations = 100};
        if (search(&result, &arena, context, cluster, &options, &error) != AM_OK) fail_msg("%s", error.text);
        assert_true(isnan(result.experts[EXPERT_DATA_PARALLEL].seconds));
        assert_true(isnan(result.experts[EXPERT_ZERO2].seconds));
        assert_false(isnan(result.experts[EXPERT_ZERO3].seconds));
        const PlanList *list = &result.plan->stages[0].lists[0];
        assert_true(list->count > 0 && list->entries[list->count - 1].kind == PLAN_WEIGHTS);
    }
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

/* All ordered meshes, a data input pinned as well, and the expert plans. */
static void test_pins_leave_meshes_out(void **state) {
    (void)state;
    static const PropagationPin pins[] = {{"w0", "-,model"}, {"h*", "data,-"}, {"w0", "model,-"}};
    Random random;
    random_seed(&random, 3000);
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    PlanContext *context = make_context(&random, 2);
    Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
    SearchOptions options = {.memory_fraction = 0.9, .pins = pins, .pin_count = 2, .evaluations = 50};
    if (search(&result, &arena, context, cluster, &options, &error) != AM_OK) fail_msg("%s", error.text);
    /* data=4 and model=4 would leave an axis of one device. */
    assert_int_equal(result.plan->stages[0].mesh.axes[0].size, 2);
    check_kept(context, &arena, result.plan, "w0", SBP_B, sbp_split(1));
    check_kept(context, &arena, result.plan, "h0", sbp_split(0), SBP_B);
    for (int32_t e = 0; e < EXPERT_COUNT; e++)
        assert_true(isnan(result.experts[e].seconds) ||
                    result.plan->predicted_step_seconds <= result.experts[e].seconds);
    options.pin_count = 3; /* w0 in two ways */
    assert_int_equal(search(&result, &arena, context, cluster, &options, &error), AM_ERROR_INFEASIBLE);
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dqn_equals_exhaustive), cmocka_unit_test(test_storage_makes_plans_fit),
        cmocka_unit_test(test_pins_are_kept), cmocka_unit_test(test_pins_leave_meshes_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
