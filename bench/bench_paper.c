/* Auto-MAP's tables 4 to 7 in its own mode, a row each beside the paper's figures and the limits on time.
 *
 *     bench_paper [RUNS]    (in the source folder; default 1)
 *
 * A head comes first. Rows are tab-separated: what, ours, the paper's (or the limit), ok or no. Seconds are
 * from the module's file on: import and search, the median of RUNS runs. The plan's price by the simulator
 * comes after that and has a row of its own where it takes long (a pipeline's context in micro-batches is
 * made for it).
 *
 * A pivot of a pipeline is between the layers of the weights next to it; it is near the paper's where one of
 * these is within two layers of it. Otherwise the simulator prices both pipelines, and ours must be faster.
 * T5 here has sequences of one length, as the paper's layers imply.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "bench/zoo.h"
#include "planners/automap_paper/paper_pipeline_plan.h"
#include "planners/automap_paper/paper_search.h"

#define MOST_RUNS  9
#define NEAR       2
#define MOST_CUTS  3
#define LAYER_NONE (-1)

static void row(const char *name, const char *ours, const char *paper, bool ok) {
    printf("%s\t%s\t%s\t%s\n", name, ours, paper, ok ? "ok" : "no");
    fflush(stdout);
}

/* A case's module on its cluster, and one search. */
typedef struct Run {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    SearchScope scope;
    SearchResult result;
    AmStatus status;
    AmError error;
    double seconds; /* import and search, pricing apart */
    double pricing; /* the plan's */
} Run;

static void run_free(Run *run) {
    cluster_free(run->cluster);
    plan_context_free(run->context);
    arena_free(&run->arena);
    *run = (Run){0};
}

static void run_case(Run *run, const char *model, const char *cluster, PlanSpace space) {
    char binary[4096], roles[4096];
    static const SearchRequest request = {.objective = OBJECTIVE_PAPER,
                                          .constraints.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    *run = (Run){.scope = {.request = &request,
                           .kind = space,
                           .searcher = SEARCHER_DQN,
                           .micro_batches = space == SPACE_PIPELINE ? 0 : 1,
                           .limits.evaluations = SEARCH_PAPER_EPISODES}};
    double start = clock_seconds();
    if (!zoo_paths(model, binary, roles)) {
        run->status = am_fail(&run->error, AM_ERROR_INPUT, "", "no model %s in " ZOO_FOLDER, model);
        return;
    }
    run->status = plan_context_read(&run->context, binary, roles, &run->error);
    if (run->status == AM_OK) run->status = cluster_read(&run->cluster, &run->arena, cluster, &run->error);
    if (run->status == AM_OK)
        run->status =
            paper_search(&run->result, &run->arena, run->context, run->cluster, &run->scope, &run->error);
    run->pricing = run->result.paper ? run->result.paper->pricing_seconds : 0;
    run->seconds = clock_seconds() - start - run->pricing;
}

/* The last of `runs` runs, with the median of all seconds. */
static void run_often(Run *run, const char *model, const char *cluster, PlanSpace space, int runs) {
    double seconds[MOST_RUNS], pricing[MOST_RUNS];
    for (int k = 0; k < runs; k++) {
        if (k > 0) run_free(run);
        run_case(run, model, cluster, space);
        seconds[k] = run->seconds;
        pricing[k] = run->pricing;
    }
    run->seconds = zoo_median(seconds, runs);
    run->pricing = zoo_median(pricing, runs);
}

static void seconds_row(const char *name, const Run *run, double limit) {
    char what[128], ours[32], paper[32];
    snprintf(what, sizeof what, "%s: seconds", name);
    snprintf(ours, sizeof ours, "%.3f", run->seconds);
    snprintf(paper, sizeof paper, "at most %.1f", limit);
    row(what, ours, paper, run->seconds <= limit);
    snprintf(what, sizeof what, "%s: seconds with the plan priced", name);
    snprintf(ours, sizeof ours, "%.3f", run->seconds + run->pricing);
    row(what, ours, paper, run->seconds + run->pricing <= limit);
}

/* ---- tables 4 to 6 ---- */

typedef struct PartitionCase {
    const char *name, *model;
    PlanSpace space;
    int32_t partitioned; /* 0: the first dimension of every data input */
    double limit;
    const char *time; /* the paper's */
} PartitionCase;

static const PartitionCase partitions[] = {
    {"VGG-19, operator partitioning", "vgg19", SPACE_OPERATOR, 5, 0.2, "30 s"},
    {"T5 6+6, operator partitioning", "t5_paper_6", SPACE_OPERATOR, 111, 0.3, "0.5 h"},
    {"T5-3B, operator partitioning", "t5_paper_24_3b", SPACE_OPERATOR, 432, 2, "0.94 h"},
    {"T5-11B, operator partitioning", "t5_paper_24_11b", SPACE_OPERATOR, 432, 2, "1.45 h"},
    {"VGG-19, auto data parallelism", "vgg19", SPACE_DATA, 0, 0.5, "70 s"},
    {"T5 6+6, auto data parallelism", "t5_paper_6", SPACE_DATA, 0, 0.5, "0.27 h"},
};

/* Weights of VGG-19 that are split; all belong to the fully connected head. */
static bool is_head_only(const Run *run) {
    const PaperReport *report = run->result.paper;
    for (int32_t k = 0; k < report->partition.partitioned; k++) {
        const char *path = run->context->roles->parameters[report->partition.dimensions[k].parameter].path;
        if (!strstr(path, "['fc") && !strstr(path, "['predictions']")) return false;
    }
    return true;
}

static bool is_first_of_all_inputs(const Run *run) {
    const PaperReport *report = run->result.paper;
    for (int32_t k = 0; k < report->partition.partitioned; k++)
        if (report->partition.dimensions[k].dimension != 0) return false;
    return report->partition.partitioned == report->partition.variable_count;
}

static void bench_partition(const PartitionCase *entry, int runs) {
    char ours[128], paper[64];
    Run run;
    run_often(&run, entry->model, "C", entry->space, runs);
    const PaperReport *report = run.result.paper;
    if (run.status != AM_OK) {
        row(entry->name, run.error.text, "a plan", false);
    } else if (entry->space == SPACE_DATA) {
        snprintf(ours, sizeof ours, "%d of %d inputs, %s", report->partition.partitioned,
                 report->partition.variable_count,
                 is_first_of_all_inputs(&run) ? "first dimensions" : "others");
        row(entry->name, ours, "first dimension of every input", is_first_of_all_inputs(&run));
    } else {
        bool is_vgg = strcmp(entry->model, "vgg19") == 0, head = is_vgg && is_head_only(&run);
        snprintf(ours, sizeof ours, "%d of at most %d%s", report->partition.partitioned,
                 report->partition.maximum, head ? ", the head only" : "");
        snprintf(paper, sizeof paper, "%d%s in %s", entry->partitioned, is_vgg ? ", the head only" : "",
                 entry->time);
        bool ok = report->partition.partitioned == entry->partitioned &&
                  report->partition.maximum == entry->partitioned && report->partition.is_exact &&
                  head == is_vgg;
        row(entry->name, ours, paper, ok);
    }
    if (run.status == AM_OK) seconds_row(entry->name, &run, entry->limit);
    run_free(&run);
}

/* ---- table 7 ---- */

/* Layers are counted through the encoder and then the decoder; the softmax is after them. */
typedef struct PipelineCase {
    const char *name, *model, *cluster;
    int32_t cuts, layers[MOST_CUTS]; /* 0: out of memory */
    int32_t last_device;             /* of the last cut; the earlier ones are before devices 8 and 16 */
} PipelineCase;

#define DECODER_6  6
#define DECODER_24 24
static const PipelineCase pipelines[] = {
    {"BERT-48 on A", "bert48", "A", 1, {23}, 8},
    {"BERT-48 on B", "bert48", "B", 2, {17, 32}, 16},
    {"BERT-48 on C", "bert48", "C", 3, {14, 27, 40}, 24},
    {"T5 6+6 on A", "t5_pipeline_6", "A", 1, {DECODER_6 + 2}, 8},
    {"T5 6+6 on B", "t5_pipeline_6", "B", 2, {5, DECODER_6 + 5}, 16},
    {"T5 6+6 on C", "t5_pipeline_6", "C", 3, {4, DECODER_6 + 3, DECODER_6 + 6}, 22},
    {"T5-3B on A", "t5_pipeline_24_3b", "A", 1, {DECODER_24 + 2}, 8},
    {"T5-3B on B", "t5_pipeline_24_3b", "B", 2, {19, DECODER_24 + 11}, 16},
    {"T5-3B on C", "t5_pipeline_24_3b", "C", 3, {14, DECODER_24 + 5, DECODER_24 + 17}, 24},
    {"T5-11B on A", "t5_pipeline_24_11b", "A", 0, {0}, 0},
    {"T5-11B on B", "t5_pipeline_24_11b", "B", 0, {0}, 0},
    {"T5-11B on C", "t5_pipeline_24_11b", "C", 3, {13, DECODER_24 + 3, DECODER_24 + 15}, 24},
};

static int32_t layers_of(const char *model) {
    return strcmp(model, "bert48") == 0 ? 48 : strcmp(model, "t5_pipeline_6") == 0 ? 12 : 48;
}

/* The layer of a weight's path; the number of layers for later weights, LAYER_NONE for embeddings. */
static int32_t layer_of(const char *path, int32_t layers) {
    static const char *const stacks[] = {"['layers'][", "['encoder'][", "['decoder']["};
    if (!path) return layers; /* the loss */
    for (int32_t k = 0; k < 3; k++) {
        const char *found = strstr(path, stacks[k]);
        if (found) return atoi(found + strlen(stacks[k])) + (k == 2 ? layers / 2 : 0);
    }
    if (strstr(path, "encoder_norm")) return layers / 2;
    return strstr(path, "softmax") || strstr(path, "norm") ? layers : LAYER_NONE;
}

static bool is_near(const PaperCutReport *cut, int32_t layer, int32_t layers) {
    int32_t before = layer_of(cut->before, layers), after = layer_of(cut->after, layers);
    return abs(before - layer) <= NEAR || abs(after - layer) <= NEAR;
}

/* The pivot where a layer begins: of the last one before its first weight and the first one after that of
 * the layer before, the one at which less crosses. -1: there is none. */
static int32_t find_boundary(const PaperChain *chain, const PlanContext *context, int32_t layer,
                             int32_t layers) {
    int32_t last = -1;
    for (int32_t k = 0; k < chain->count; k++) {
        const char *before, *after;
        paper_chain_layers(&before, &after, context, chain->pivots[k].instruction);
        const char *other = layer > layers / 2 ? "['encoder']" : "['decoder']";
        if ((before && strstr(before, other)) || layer_of(before, layers) + 1 < layer) continue;
        if (layer_of(after, layers) < layer) last = k;
        if (layer_of(after, layers) < layer) continue;
        return last >= 0 && chain->pivots[last].crossing <= chain->pivots[k].crossing ? last : k;
    }
    return last;
}

/* The step time of the pipeline that is cut before the paper's layers, with our device cuts; NAN: no plan. */
static double price_paper(const Run *run, const PipelineCase *entry) {
    const PaperReport *report = run->result.paper;
    int32_t layers = layers_of(entry->model), instructions[MOST_CUTS], devices[MOST_CUTS], found = 0;
    MicroBatchSettings settings = {.micro_batches = report->pipeline.micro_batches,
                                   .separate_backward = true};
    PaperStageCuts cuts = {entry->cuts, instructions, devices, report->pipeline.storage};
    const PlanContext *context;
    PaperChain *chain;
    MemoryFit fit;
    Plan *plan;
    Arena arena = {0};
    AmError error = {0};
    AmStatus status =
        paper_chain_build(&chain, &arena, run->context, run->cluster, report->pipeline.micro_batches,
                          run->cluster->servers[0].device_count, &error);
    for (; status == AM_OK && found < entry->cuts; found++) {
        int32_t pivot = find_boundary(chain, run->context, entry->layers[found], layers);
        if (pivot < 0) break;
        instructions[found] = chain->pivots[pivot].instruction;
        devices[found] = report->pipeline.cuts[found].device;
    }
    if (status == AM_OK && found < entry->cuts)
        status = am_fail(&error, AM_ERROR_INPUT, "", "a layer is missing");
    if (status == AM_OK) status = plan_context_for(&context, run->context, &settings, &error);
    if (status == AM_OK)
        status = paper_pipeline_plan(&plan, &fit, &arena, context, run->cluster, &run->scope, &cuts, &error);
    double seconds = status == AM_OK ? plan->predicted_step_seconds : NAN;
    if (status != AM_OK) fprintf(stderr, "bench_paper: %s: %s\n", entry->name, error.text);
    arena_free(&arena);
    return seconds;
}

static void append_layer(char *text, size_t size, int32_t layer, int32_t layers, bool has_stacks) {
    size_t used = strlen(text);
    const char *comma = used > 0 ? ", " : "";
    if (layer >= layers) snprintf(text + used, size - used, "%ssoftmax", comma);
    else if (!has_stacks) snprintf(text + used, size - used, "%s%d", comma, layer);
    else if (layer < layers / 2) snprintf(text + used, size - used, "%senc %d", comma, layer);
    else snprintf(text + used, size - used, "%sdec %d", comma, layer - layers / 2);
}

static void device_row(const PipelineCase *entry, const PaperReport *report) {
    char name[64], ours[64] = "(", paper[64] = "(";
    bool same = report->pipeline.cut_count == entry->cuts;
    for (int32_t k = 0; k < report->pipeline.cut_count; k++) {
        size_t used = strlen(ours), after = strlen(paper);
        snprintf(ours + used, sizeof ours - used, "%s%d", k ? ", " : "", report->pipeline.cuts[k].device);
        int32_t device = k + 1 == entry->cuts ? entry->last_device : 8 * (k + 1);
        snprintf(paper + after, sizeof paper - after, "%s%d", k ? ", " : "", device);
        same = same && report->pipeline.cuts[k].device == device;
    }
    snprintf(ours + strlen(ours), sizeof ours - strlen(ours), ")");
    snprintf(paper + strlen(paper), sizeof paper - strlen(paper), ")");
    snprintf(name, sizeof name, "%s: device cuts", entry->name);
    row(name, ours, paper, same);
}

/* Near layers, or both priced. */
static void layer_rows(const PipelineCase *entry, const Run *run) {
    const PaperReport *report = run->result.paper;
    char name[64], ours[128] = "", paper[128] = "";
    int32_t layers = layers_of(entry->model);
    bool near = true, has_stacks = strcmp(entry->model, "bert48") != 0;
    for (int32_t k = 0; k < entry->cuts; k++) {
        append_layer(ours, sizeof ours, layer_of(report->pipeline.cuts[k].after, layers), layers, has_stacks);
        append_layer(paper, sizeof paper, entry->layers[k], layers, has_stacks);
        near = near && is_near(&report->pipeline.cuts[k], entry->layers[k], layers);
    }
    double theirs = price_paper(run, entry), step = run->result.plan->predicted_step_seconds;
    bool is_faster = step <= theirs;
    snprintf(name, sizeof name, "%s: near layers%s", entry->name, near ? "" : " (farther: see the prices)");
    row(name, ours, paper, near || is_faster);
    snprintf(name, sizeof name, "%s: simulated step, ours and the paper's", entry->name);
    snprintf(ours, sizeof ours, "%.1f ms", 1e3 * step);
    snprintf(paper, sizeof paper, "%.1f ms", 1e3 * theirs);
    row(name, ours, paper, near || is_faster);
}

static void bench_pipeline(const PipelineCase *entry, int runs) {
    Run run;
    run_often(&run, entry->model, entry->cluster, SPACE_PIPELINE, runs);
    if (entry->cuts == 0) {
        row(entry->name, run.status == AM_ERROR_INFEASIBLE ? "out of memory" : "a plan", "out of memory",
            run.status == AM_ERROR_INFEASIBLE);
    } else if (run.status != AM_OK) {
        row(entry->name, run.error.text, "a plan", false);
    } else {
        device_row(entry, run.result.paper);
        layer_rows(entry, &run);
    }
    seconds_row(entry->name, &run, 1);
    run_free(&run);
}

int main(int count, char **arguments) {
    int runs = count > 1 ? atoi(arguments[1]) : 1;
    if (runs < 1 || runs > MOST_RUNS) {
        fprintf(stderr, "bench_paper: expected 1 to %d runs\n", MOST_RUNS);
        return 2;
    }
    printf("model and cluster\there\tpaper\tmet\n");
    for (size_t k = 0; k < sizeof partitions / sizeof *partitions; k++) bench_partition(&partitions[k], runs);
    for (size_t k = 0; k < sizeof pipelines / sizeof *pipelines; k++) bench_pipeline(&pipelines[k], runs);
    return 0;
}
