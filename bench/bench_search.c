/* Benchmark of single_stage_search(): its time and the quality of its plan.
 *
 * For every model of datasets/models on built-in clusters, with the defaults of `automap search`: seconds by
 * the clock and of all processors together, priced plans and the seconds of one, the plan's step time, and
 * its ratio to the best baseline's (below 1: faster than data parallel and Megatron-like). Reading the
 * module is apart, under import.
 *
 * The column "paper s" has the seconds that Auto-MAP reports for operator partitioning of the
 * model on its clusters B and C (section 5, tables 3 to 5: VGG-19 30 s, T5 0.5 h,
 * T5-3B 0.94 h, T5-11B 1.45 h). Its space is one axis inside a server and its
 * goal a count of partitioned dimensions, so the column has the scale only.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "bench/zoo.h"
#include "planners/single_stage/single_stage_search.h"

#define MEMORY_FRACTION 0.9
#define SEED            0
#define PAPER_CLUSTER   "C"

static const char *const clusters[] = {"nominal:4", "A", "C"};
static const char *const quick_models[] = {"mlp_tiny", "vgg_tiny"};

static const struct {
    const char *model;
    double seconds;
} paper_times[] = {{"vgg19", 30}, {"t5_paper_6", 1800}, {"t5_paper_24_3b", 3384}, {"t5_paper_24_11b", 5220}};

/* True if `model` is one of `count` names, or if there are no names. */
static bool is_chosen(const char *model, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(model, names[i]) == 0) return true;
    return count == 0;
}

static double paper_seconds(const char *model, const char *cluster) {
    if (strcmp(cluster, PAPER_CLUSTER) != 0) return NAN;
    for (size_t i = 0; i < sizeof(paper_times) / sizeof(*paper_times); i++)
        if (strcmp(model, paper_times[i].model) == 0) return paper_times[i].seconds;
    return NAN;
}

/* The fastest baseline that fits; NULL where none does. */
static const BaselineResult *best_baseline(const SearchResult *result, const char **name) {
    const BaselineResult *best = NULL;
    for (Baseline baseline = 0; baseline < BASELINE_COUNT; baseline++) {
        const BaselineResult *candidate = &result->baselines[baseline];
        if (isnan(candidate->seconds) || (best && candidate->seconds >= best->seconds)) continue;
        best = candidate;
        *name = baseline_name(baseline);
    }
    return best;
}

static AmStatus search_one(const PlanContext *context, const char *model, const char *cluster_name,
                           double import_seconds, AmError *error) {
    Arena arena = {0};
    Cluster *cluster = NULL;
    SearchResult result = {0};
    const SearchRequest request = {.constraints.memory_fraction = MEMORY_FRACTION};
    const SearchScope scope = {.request = &request, .seed = SEED};
    AmStatus status = cluster_read(&cluster, &arena, cluster_name, error);
    if (status != AM_OK) goto fail;
    double cpu_begin = clock_cpu_seconds();
    status = single_stage_search(&result, &arena, context, cluster, &scope, error);
    double cpu_seconds = clock_cpu_seconds() - cpu_begin;
    printf("%-16s %-7s %9.3f ", model, cluster_name, import_seconds);
    if (status == AM_ERROR_INFEASIBLE) {
        printf("no plan fits\n");
        *error = (AmError){0};
        status = AM_OK;
    } else if (status == AM_OK) {
        const char *name = NULL;
        const BaselineResult *baseline = best_baseline(&result, &name);
        double step = result.plan->predicted_step_seconds, paper = paper_seconds(model, cluster_name);
        printf("%9.3f %7.3f %8lld %9.3f %10.3f ", result.search_seconds, cpu_seconds,
               (long long)result.evaluations, 1e3 * result.search_seconds / (double)result.evaluations,
               1e3 * step);
        if (baseline) printf("%10.3f %-14s", step / baseline->seconds, name);
        else printf("%10s %-14s", "", "none fits");
        if (!isnan(paper)) printf(" %8.0f", paper);
        printf("\n");
    }
fail:
    cluster_free(cluster);
    arena_free(&arena);
    return status;
}

static AmStatus search_model(const char *model, bool is_quick, AmError *error) {
    char binary[4096], roles[4096];
    if (!zoo_paths(model, binary, roles)) return AM_OK;
    PlanContext *context = NULL;
    double begin = clock_seconds();
    TRY(plan_context_read(&context, binary, roles, error));
    double import_seconds = clock_seconds() - begin;
    AmStatus status = AM_OK;
    for (size_t k = 0; k < sizeof(clusters) / sizeof(*clusters) && status == AM_OK; k++) {
        if (is_quick && k > 0) break;
        status = search_one(context, model, clusters[k], import_seconds, error);
        fflush(stdout);
    }
    plan_context_free(context);
    return status;
}

int main(int count, char **arguments) {
    bool is_quick = count > 1 && strcmp(arguments[1], "--quick") == 0;
    const char *const *chosen = is_quick ? quick_models : (const char *const *)arguments + 1;
    int chosen_count = is_quick ? (int)(sizeof(quick_models) / sizeof(*quick_models)) : count - 1;
    struct dirent **models;
    int model_count = zoo_list(&models);
    if (model_count < 0) {
        fprintf(stderr, "usage: bench_search [--quick | MODEL...], in the source folder\n");
        return AM_ERROR_USAGE;
    }
    printf("%-16s %-7s %9s %9s %7s %8s %9s %10s %10s %-14s %8s\n", "model", "cluster", "import s", "search s",
           "cpu s", "plans", "ms/plan", "step ms", "to baseline", "best baseline", "paper s");
    AmStatus status = AM_OK;
    for (int i = 0; i < model_count && status == AM_OK; i++) {
        const char *model = models[i]->d_name;
        if (!is_chosen(model, chosen, chosen_count)) continue;
        AmError error = {0};
        status = search_model(model, is_quick, &error);
        if (status != AM_OK) fprintf(stderr, "bench_search: %s: %s\n", model, error.text);
    }
    for (int i = 0; i < model_count; i++) free(models[i]);
    free(models);
    return (int)status;
}
