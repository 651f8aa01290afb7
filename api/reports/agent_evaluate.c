/* The report `agent evaluate`. Files are arrays ("automap-arrays-1", or the
 * sets of agent generate, one row each), profile graphs or modules; graphs and modules run on
 * --cluster, one stage per server unless --stages is given. The agent cuts a graph in its linear
 * order and is compared with the optimum of that order, and with the optimum over the graph's
 * downsets if they can be listed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/reports/clusters.h"
#include "api/reports/reports.h"
#include "base/files/file.h"
#include "base/system/clock.h"
#include "planners/cut_agent/chain_cluster.h"
#include "planners/cut_agent/cut_agent_file.h"
#include "planners/cut_agent/cut_agent_grade.h"
#include "planners/cut_agent/profile_graph.h"
#include "planners/pipeline/cut_agent_guess.h"

#define DEFAULT_CLUSTER       "C"
#define DEFAULT_MICRO_BATCHES 16
#define MODEL_MICRO_BATCHES   8 /* that the batches of most modules have */
#define DEFAULT_SETS          10000
#define EVALUATION_SEED       2000003 /* added to the seed: no training has seen these sets */
#define WEIGHT_FACTOR         4       /* weights, gradients and Adam's two moments */

/* The settings of an evaluation, and the rows so far. */
typedef struct Evaluation {
    const ReportCall *call;
    Agent *agent;
    int64_t stages, micro_batches; /* 0: by default */
    int64_t width;
    Text rows;
    json_t *list;
} Evaluation;

/* A file's chain and the properties of its graph. */
typedef struct Subject {
    const char *name, *space; /* NULL: arrays */
    Chain chain;
    ChainProblem problem;
    double graph_exact, graph_seconds; /* over the downsets; NAN: not listed */
} Subject;

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *places_to_json(const int32_t *places, int32_t stages) {
    json_t *list = json_array();
    for (int32_t s = 1; s < stages; s++) json_array_append_new(list, json_integer(places[s]));
    return list;
}

static void add_percent(Text *rows, double length, double exact) {
    if (isfinite(length / exact)) text_append(rows, "%.2f %%\t", 100 * (length / exact - 1));
    else text_append_string(rows, "-\t");
}

static AmStatus apply_options(Evaluation *evaluation, ChainProblem *problem, AmError *error) {
    if (evaluation->stages > 0) problem->stages = (int32_t)evaluation->stages;
    if (evaluation->micro_batches > 0) problem->micro_batches = (int32_t)evaluation->micro_batches;
    return chain_problem_prepare(problem, error);
}

static AmStatus read_cluster(const Evaluation *evaluation, Cluster **cluster, Arena *arena, AmError *error) {
    const ReportCall *call = evaluation->call;
    const ClusterCall settings = {call->options, call->callbacks};
    const char *name = option_text(call->options, "cluster");
    return report_read_cluster(cluster, arena, &settings, name ? name : DEFAULT_CLUSTER, error);
}

static AmStatus read_graph(Evaluation *evaluation, Subject *subject, Arena *arena, const FileBytes *bytes,
                           AmError *error) {
    ProfileGraph graph;
    Cluster *cluster;
    ChainExact exact;
    double fraction = CLUSTER_DEFAULT_MEMORY_FRACTION;
    ChainProblem *problem = &subject->problem;
    TRY(profile_graph_parse(&graph, arena, bytes->name, bytes->data, bytes->length, error));
    TRY(read_cluster(evaluation, &cluster, arena, error));
    *problem = (ChainProblem){.chain = &subject->chain,
                              .stages = cluster->server_count,
                              .micro_batches = DEFAULT_MICRO_BATCHES,
                              .weight_factor = WEIGHT_FACTOR};
    AmStatus status = chain_cluster_units(problem, cluster, CUT_AGENT_MOST_UNITS, fraction, error);
    cluster_free(cluster);
    TRY(status);
    TRY(profile_graph_chain(&subject->chain, &subject->space, arena, &graph, false, error));
    TRY(apply_options(evaluation, problem, error));
    if (!subject->chain.sets) return AM_OK;
    double start = clock_seconds();
    TRY(chain_exact(&exact, problem, false, error));
    subject->graph_exact = exact.length;
    subject->graph_seconds = clock_seconds() - start;
    const char *space;
    TRY(profile_graph_chain(&subject->chain, &space, arena, &graph, true, error));
    return chain_problem_prepare(problem, error);
}

/* Reads the layers of a module, by its tables for stages of equal width on the cluster. */
static AmStatus read_model(Evaluation *evaluation, Subject *subject, Arena *arena, int32_t argument,
                           AmError *error) {
    int32_t micro_batches =
        evaluation->micro_batches ? (int32_t)evaluation->micro_batches : MODEL_MICRO_BATCHES;
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    AmStatus status;
    TRY_OR_FAIL(report_read_module(&context, evaluation->call, argument, error));
    TRY_OR_FAIL(read_cluster(evaluation, &cluster, arena, error));
    int32_t stages = evaluation->stages ? (int32_t)evaluation->stages : cluster->server_count;
    AmError refusal = {0};
    status = cut_agent_module(&subject->chain, &subject->problem, arena, context, cluster, micro_batches,
                              stages, &refusal);
    if (status == AM_ERROR_INFEASIBLE) status = refusal.code = AM_ERROR_USAGE; /* other --stages may do */
    am_pass_error(status, &refusal, error);
fail:
    cluster_free(cluster);
    plan_context_free(context);
    return status;
}

/* Returns whether the file has arrays. A module as JSON is an object, too, and has none. */
static bool is_arrays(const FileBytes *bytes) {
    return bytes->data[strspn(bytes->data, " \t\r\n")] == '{' && strstr(bytes->data, "automap-arrays-");
}

/* Returns whether a text begins as profile graphs do: a name, a kind, its figures. */
static bool is_graph(const FileBytes *bytes) {
    const char *line = bytes->data + strspn(bytes->data, "\r\n");
    const char *end = line + strcspn(line, "\n");
    const char *separator = strstr(line, " -- ");
    return separator && separator < end;
}

/* Returns whether the file is an output of agent generate: an archive, or a header whose length has
 * no high bytes. */
static bool is_sets(const FileBytes *bytes) {
    if (bytes->length < 9) return false;
    return memcmp(bytes->data, "PK\x03\x04", 4) == 0 || memcmp(bytes->data + 4, "\0\0\0\0{", 5) == 0;
}

static AmStatus evaluate_subject(Evaluation *evaluation, const Subject *subject, AmError *error) {
    CutAgentCase result;
    TRY(cut_agent_grade_case(&result, &subject->problem, evaluation->agent, (int32_t)evaluation->width,
                             error));
    const ChainProblem *problem = &subject->problem;
    Text *rows = &evaluation->rows;
    json_array_append_new(
        evaluation->list,
        json_pack(
            "{s:s, s:s, s:i, s:i, s:i, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:f, s:o}",
            "file", subject->name, "space", subject->space ? subject->space : "chain", "layers",
            subject->chain.count, "stages", problem->stages, "micro_batches", problem->micro_batches, "valid",
            result.is_valid, "exact", number_or_null(result.exact), "agent", number_or_null(result.agent),
            "greedy", number_or_null(result.greedy), "even", number_or_null(result.even), "exact_by_events",
            number_or_null(result.exact_by_events), "agent_by_events", number_or_null(result.agent_by_events),
            "graph_exact", number_or_null(subject->graph_exact), "cuts",
            places_to_json(result.plan.places, problem->stages), "unit_cuts",
            places_to_json(result.plan.units, problem->stages), "exact_cuts",
            places_to_json(result.exact_plan.places, problem->stages), "agent_seconds", result.seconds,
            "exact_seconds", result.exact_seconds, "graph_seconds", number_or_null(subject->graph_seconds)));
    text_append(rows, "%s\t%d\t%d\t%d\t%.4g\t", subject->name, subject->chain.count, problem->stages,
                problem->micro_batches, result.exact);
    add_percent(rows, result.agent, result.exact);
    add_percent(rows, result.greedy, result.exact);
    add_percent(rows, result.even, result.exact);
    add_percent(rows, result.agent_by_events, result.exact_by_events);
    add_percent(rows, subject->graph_exact, result.exact);
    text_append(rows, "%.1f\t%.1f\n", 1e3 * result.seconds, 1e3 * result.exact_seconds);
    return AM_OK;
}

/* Evaluates each set of a file as a subject, named FILE[0], FILE[1] and so on. */
static AmStatus evaluate_set(Evaluation *evaluation, Subject *subject, CutAgentSet *set,
                             const CutAgentFile *file, int32_t row, AmError *error) {
    char name[512];
    snprintf(name, sizeof(name), "%.490s[%d]", file->path, row);
    TRY(cut_agent_file_set(set, file, row, error));
    subject->name = name;
    subject->chain = set->chain;
    subject->problem = set->problem;
    TRY(apply_options(evaluation, &subject->problem, error));
    return evaluate_subject(evaluation, subject, error);
}

static AmStatus evaluate_set_file(Evaluation *evaluation, Subject *subject, Arena *arena, const char *path,
                                  AmError *error) {
    CutAgentFile file;
    CutAgentSet *set = ARENA_ARRAY(arena, CutAgentSet, 1);
    if (!set) return am_fail_memory(error, sizeof(*set));
    TRY(cut_agent_file_read(&file, arena, path, error));
    for (int32_t row = 0; row < file.count; row++) {
        AmStatus status = evaluate_set(evaluation, subject, set, &file, row, error);
        if (status == AM_OK) continue;
        am_error_prefix(error, "set %d: ", row);
        return status;
    }
    return AM_OK;
}

/* Reads the one subject of a file that is no file of sets. */
static AmStatus read_subject(Evaluation *evaluation, Subject *subject, Arena *arena, const FileBytes *bytes,
                             int32_t argument, AmError *error) {
    if (strspn(bytes->data, " \t\r\n") == (size_t)bytes->length)
        return am_fail(error, AM_ERROR_INPUT, subject->name,
                       "is empty; expected a profile graph, arrays, sets of agent generate, or a module");
    if (is_graph(bytes)) return read_graph(evaluation, subject, arena, bytes, error);
    if (!is_arrays(bytes)) return read_model(evaluation, subject, arena, argument, error);
    TRY(chain_arrays_parse(&subject->chain, &subject->problem, arena, subject->name, bytes->data,
                           bytes->length, error));
    return apply_options(evaluation, &subject->problem, error);
}

static AmStatus evaluate_file(Evaluation *evaluation, Arena *arena, int32_t argument, AmError *error) {
    const char *path = evaluation->call->files[argument];
    FileBytes bytes;
    Subject *subject = ARENA_ARRAY(arena, Subject, 1);
    if (!subject) return am_fail_memory(error, sizeof(*subject));
    TRY(file_read(&bytes, path, error));
    subject->name = arena_copy_string(arena, bytes.name);
    subject->graph_exact = subject->graph_seconds = NAN;
    AmStatus status;
    if (is_sets(&bytes)) {
        status = evaluate_set_file(evaluation, subject, arena, path, error);
    } else {
        status = read_subject(evaluation, subject, arena, &bytes, argument, error);
        if (status == AM_OK) status = evaluate_subject(evaluation, subject, error);
    }
    file_release(&bytes);
    return status;
}

static AmStatus evaluate_files(Text *text, Evaluation *evaluation, AmError *error) {
    const ReportCall *call = evaluation->call;
    AmStatus status = AM_OK;
    option_integer(call->options, "stages", &evaluation->stages);
    option_integer(call->options, "micro-batches", &evaluation->micro_batches);
    evaluation->list = json_array();
    text_append_string(&evaluation->rows,
                       "file\tlayers\tstages\tmicro-batches\texact s\tagent\tgreedy\teven\tby "
                       "events\tgraph\tagent ms\texact ms\n");
    for (int32_t k = 1; k < call->file_count && status == AM_OK; k++) {
        Arena arena = {0};
        status = evaluate_file(evaluation, &arena, k, error);
        arena_free(&arena);
    }
    if (status == AM_OK && call->format == AM_FORMAT_JSON)
        status = api_append_json(
            text, json_pack("{s:s, s:O}", "format", "automap-cuts-1", "files", evaluation->list),
            JSON_STYLE_COMPACT, error);
    else if (status == AM_OK) text_append_table(text, evaluation->rows.data);
    json_decref(evaluation->list);
    text_free(&evaluation->rows);
    return status;
}

static AmStatus evaluate_sets(Text *text, const Evaluation *evaluation, AmError *error) {
    const ReportCall *call = evaluation->call;
    int64_t seed = 0, count = DEFAULT_SETS;
    CutAgentGrade grade;
    option_integer(call->options, "seed", &seed);
    option_integer(call->options, "count", &count);
    TRY(cut_agent_grade(&grade, evaluation->agent, (int32_t)evaluation->width,
                        (uint64_t)seed + EVALUATION_SEED, (int32_t)count, call->callbacks->cancel, error));
    if (call->format == AM_FORMAT_JSON)
        return api_append_json(text,
                               json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:i, s:f, s:f}",
                                         "format", "automap-cut-grade-1", "sets", grade.count, "invalid",
                                         grade.invalid, "mean_gap", grade.mean, "percentile_95_gap",
                                         grade.percentile_95, "worst_gap", grade.worst, "mean_gap_by_events",
                                         grade.by_events, "greedy_mean_gap", grade.greedy_mean,
                                         "greedy_invalid", grade.greedy_invalid, "even_mean_gap",
                                         grade.even_mean, "even_invalid", grade.even_invalid, "mean_seconds",
                                         grade.mean_seconds, "most_seconds", grade.most_seconds),
                               JSON_STYLE_COMPACT, error);
    text_append(text, "%d unseen sets, over the exact optimum\n", grade.count);
    text_append(text, "agent    mean %.3f %%, 95th percentile %.3f %%, worst %.2f %%, invalid %d\n",
                100 * grade.mean, 100 * grade.percentile_95, 100 * grade.worst, grade.invalid);
    text_append(text, "         by events, over the optimum's plan: mean %.3f %%\n", 100 * grade.by_events);
    text_append(text, "greedy   mean %.2f %%, without %d that do not fit\n", 100 * grade.greedy_mean,
                grade.greedy_invalid);
    text_append(text, "even     mean %.2f %%, without %d that do not fit\n", 100 * grade.even_mean,
                grade.even_invalid);
    text_append(text, "seconds  mean %.2g, most %.2g a plan\n", grade.mean_seconds, grade.most_seconds);
    return AM_OK;
}

AmStatus report_agent(Text *text, const ReportCall *call, AmError *error) {
    Evaluation evaluation = {.call = call, .width = CUT_AGENT_WIDTH};
    option_integer(call->options, "width", &evaluation.width);
    TRY(cut_agent_read(&evaluation.agent, call->files[0], error));
    AmStatus status = call->file_count > 1 ? evaluate_files(text, &evaluation, error)
                                           : evaluate_sets(text, &evaluation, error);
    agent_free(evaluation.agent);
    return status;
}
