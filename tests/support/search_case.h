/* Small searches: training steps of multi-layer perceptrons of random widths, and clusters of random speeds,
 * small enough to enumerate every plan. */
#ifndef TESTS_SEARCH_CASE_H
#define TESTS_SEARCH_CASE_H

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
#include "planners/single_stage/single_stage_search.h"
#include "tests/support/model_case.h"

#define LARGE_MEMORY 64000000000 /* bytes: everything fits */

static inline int64_t pick(Random *random, const int64_t *values, int32_t count) {
    return values[random_below(random, count)];
}

/* A training step: relu layers, a sum loss, plain gradient descent. */
static inline void write_layers(Text *text, int64_t batch, const int64_t *width, int32_t layers) {
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

static inline void write_module(Text *text, Random *random, int32_t layers) {
    static const int64_t widths[] = {8, 64, 512, 2048, 8192}, batches[] = {8, 64, 512, 4096};
    int64_t width[4], batch = pick(random, batches, 4);
    for (int32_t k = 0; k <= layers; k++) width[k] = pick(random, widths, 5);
    write_layers(text, batch, width, layers);
}

/* Four devices on links of a random speed. */
static inline Cluster *make_cluster(Random *random, Arena *arena, int64_t memory_bytes) {
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

static inline PlanContext *make_context(Random *random, int32_t layers) {
    Text text = {0};
    write_module(&text, random, layers);
    PlanContext *context = read_model_text(text.data);
    text_free(&text);
    return context;
}

static inline double searched(const PlanContext *context, const Cluster *cluster, SearchScope scope) {
    AmError error = {0};
    Arena arena = {0};
    SearchResult result;
    SearchRequest request = *scope.request;
    request.constraints.memory_fraction = 0.9;
    scope.request = &request;
    AmStatus status = single_stage_search(&result, &arena, context, cluster, &scope, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    double seconds = result.plan->predicted_step_seconds;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (!isnan(result.baselines[e].seconds) && !scope.request->method.no_seeds &&
            scope.searcher != SEARCHER_RANDOM)
            if (seconds > result.baselines[e].seconds)
                fail_msg("%.17g is slower than %s, %.17g", seconds, baseline_name((Baseline)e),
                         result.baselines[e].seconds);
    arena_free(&arena);
    return seconds;
}

#endif
