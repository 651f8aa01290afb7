/* automap search: from a module and a cluster to a plan file.
 *
 * check_options() checks everything that is known before files are read, am_search() searches, and the plan
 * goes to -o or to MODEL.plan.json. --also TARGET=FILE writes the plans of other targets. The report is
 * am_plan_print()'s; --json adds the paths of the files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/option_rows.h"
#include "base/files/file.h"
#include "base/system/clock.h"
#include "cli/commands/search_progress.h"
#include "cli/common.h"
#include "cli/files.h"
#include "cli/open_cluster.h"
#include "cli/terminal.h"

/* The inputs and results of the command. */
typedef struct SearchCommand {
    AmModule *module;
    AmCluster *cluster;
    AmOptions *options;
    AmPlan *plan;
    Text own_file; /* the path of the plan without -o */
    const char *plan_file;
    double import_seconds, search_seconds;
    Text log;
    SearchProgressLine progress;
    const Cli *cli;
} SearchCommand;

/* Appends MODEL's stem in its folder and ".plan.json": model.hlo.pb.zst gives model.plan.json. */
static void append_plan_file(Text *text, const char *model) {
    static const char *const suffixes[] = {".gz", ".zst", ".pb", ".json", ".txt", ".hlo"};
    size_t length = strlen(model);
    for (size_t k = 0; k < sizeof suffixes / sizeof suffixes[0]; k++) {
        size_t tail = strlen(suffixes[k]);
        if (length > tail && model[length - tail - 1] != '/' &&
            strncmp(model + length - tail, suffixes[k], tail) == 0)
            length -= tail;
    }
    if (strcmp(model, "-") == 0) text_append_string(text, "model");
    else text_append_bytes(text, model, length);
    text_append_string(text, ".plan.json");
}

static void log_episode(void *user, const char *line) {
    text_append(&((SearchCommand *)user)->log, "%s\n", line);
}

static int show_progress(void *user, const AmProgress *progress) {
    return search_progress_show(&((SearchCommand *)user)->progress, progress);
}

static void on_message(void *user, AmMessage kind, const char *text) {
    cli_on_message((void *)((SearchCommand *)user)->cli, kind, text);
}

/* Keeps the changes with which a plan would fit, for the error of --json. */
static void keep_details(void *user, const char *json) {
    (void)user;
    cli_explain_error(json_loads(json, 0, NULL));
}

/* Returns a path as JSON; bytes that are not UTF-8 become '?'. */
static json_t *path_to_json(const char *path) {
    Text clean = {0};
    json_t *value = json_string(path);
    if (value) return value;
    for (const char *c = path; *c; c++) text_append_bytes(&clean, *c >= ' ' && *c < 0x7f ? c : "?", 1);
    if (!clean.failed) value = json_stringn(clean.data, clean.length);
    text_free(&clean);
    return value;
}

/* Adds the members that the library does not know to the report, and prints it. */
static AmStatus print_json(const SearchCommand *self, const char *report, FILE *stream, AmError *error) {
    Text text = {0};
    json_t *rest = json_loads(report, 0, NULL);
    json_t *root = json_pack("{s:O?, s:o}", "format", json_object_get(rest, "format"), "plan_file",
                             path_to_json(self->plan_file));
    bool made = rest && root && json_object_update(root, rest) == 0;
    json_decref(rest);
    if (!made) {
        json_decref(root);
        return am_fail_memory(error, 0);
    }
    json_object_set_new(root, "import_seconds", json_real(self->import_seconds));
    json_write(&text, root, JSON_STYLE_COMPACT);
    json_decref(root);
    if (!text.failed) fprintf(stream, "%s\n", text.data);
    AmStatus status = text.failed ? am_fail_memory(error, 0) : AM_OK;
    text_free(&text);
    return status;
}

/* Prints the report to stdout, unless the plan is there. */
static AmStatus report(const Cli *cli, const SearchCommand *self, AmError *error) {
    bool to_stdout = strcmp(self->plan_file, "-") == 0, is_json = cli_has(cli, "--json");
    FILE *stream = to_stdout ? stderr : stdout;
    AmFormat format = is_json                           ? AM_FORMAT_JSON
                      : terminal_is_styled(cli, stream) ? AM_FORMAT_TERMINAL
                                                        : AM_FORMAT_TEXT;
    Text text = {0};
    char *summary;
    AmStatus status = am_plan_print(self->plan, format, cli_has(cli, "--verbose"), &summary, NULL, error);
    cli_release_notes(cli);
    TRY(status);
    if (is_json) {
        status = print_json(self, summary, stream, error);
    } else if (!cli_has(cli, "--quiet")) {
        int64_t evaluations = am_plan_evaluations(self->plan);
        text_append(&text, "%ssearch  %lld evaluation%s in ", summary, (long long)evaluations,
                    evaluations == 1 ? "" : "s");
        text_append_seconds(&text, self->search_seconds);
        text_append_string(&text, ", import ");
        text_append_seconds(&text, self->import_seconds);
        text_append(&text, "\nplan    %s\n", to_stdout ? "on standard output" : self->plan_file);
        if (text.failed) status = am_fail_memory(error, 0);
        else fputs(text.data, stream);
    }
    text_free(&text);
    am_free(summary);
    return status;
}

/* ---- --also ---- */

enum { TARGET_BYTES = 32 };

/* Splits TARGET=FILE; the option "for" of a search knows the names of targets. */
static AmStatus split_also(const char *text, char name[TARGET_BYTES], const char **file, AmError *error) {
    const char *equals = strchr(text, '=');
    AmOptions *options = NULL;
    AmError refusal = {0};
    if (!equals || equals == text || !equals[1])
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--also %.100s: expected TARGET=FILE, such as jax=plan.json", text);
    snprintf(name, TARGET_BYTES, "%.*s", (int)(equals - text), text);
    *file = equals + 1;
    TRY(am_options_new(&options, AM_COMMAND_SEARCH, error));
    AmStatus status = am_options_set(options, "for", name, &refusal);
    am_options_free(options);
    if (status != AM_ERROR_USAGE) return am_pass_error(status, &refusal, error);
    const char *expected = strstr(refusal.text, "expected ");
    return am_fail(error, AM_ERROR_USAGE, "", "--also %.100s: %s is no target (%s)", text, name,
                   expected ? expected : refusal.text);
}

/* Writes the plans of other targets. Targets without a plan do not stop the others: AM_ERROR_INFEASIBLE then
 * names the first one, and the files that exist. */
static AmStatus write_also(const Cli *cli, const SearchCommand *self, AmError *error) {
    const char *const *texts, *file;
    char name[TARGET_BYTES];
    AmStatus result = AM_OK;
    int32_t count = cli_texts(cli, "--also", &texts);
    for (int32_t k = 0; k < count; k++) {
        AmError refusal = {0};
        AmStatus status = split_also(texts[k], name, &file, &refusal);
        if (status == AM_OK) status = am_plan_write_for(self->plan, name, file, &refusal);
        bool is_first = result == AM_OK, is_lack = status == AM_ERROR_INFEASIBLE;
        if (status == AM_OK || (is_lack && !is_first)) continue;
        *error = refusal;
        if (!is_lack) return status;
        am_error_prefix(error, "the plan is in %s, but --also %s: ", self->plan_file, texts[k]);
        result = status;
    }
    return result;
}

/* ---- the command ---- */

/* Checks the options and files before any file is read. */
static AmStatus check_options(const Cli *cli, SearchCommand *self, AmError *error) {
    const char *log = cli_text(cli, "--log"), *seconds = cli_text(cli, "--seconds");
    TRY(cli_api_options(cli, AM_COMMAND_SEARCH, &self->options, error));
    TRY(am_options_check(self->options, error));
    TRY(file_check_exists(cli->arguments[0], error)); /* before a cluster is measured */
    self->plan_file = cli_text(cli, "-o");
    if (!self->plan_file) {
        append_plan_file(&self->own_file, cli->arguments[0]);
        if (self->own_file.failed) return am_fail_memory(error, 0);
        self->plan_file = self->own_file.data;
    }
    TRY(cli_check_files(cli, self->plan_file, error));
    TRY(file_check_writable(self->plan_file, error));
    if (log) TRY(file_check_writable(log, error));
    const char *const *texts, *file;
    char name[TARGET_BYTES];
    int32_t count = cli_texts(cli, "--also", &texts);
    bool reports = (cli_has(cli, "--json") || !cli_has(cli, "--quiet")) && strcmp(self->plan_file, "-") != 0;
    for (int32_t k = 0; k < count; k++) {
        TRY(split_also(texts[k], name, &file, error));
        TRY(file_check_writable(file, error));
        if (strcmp(file, "-") == 0 && reports)
            return am_fail(error, AM_ERROR_USAGE, "",
                           "--also %.100s: the report is on stdout (expected a FILE)", texts[k]);
    }
    if (count > 0 && cli_has(cli, "--for"))
        return am_fail(error, AM_ERROR_USAGE, "", "--also is for searches without --for");
    search_progress_open(&self->progress, cli, PROGRESS_SEARCH, seconds ? strtod(seconds, NULL) : 0);
    return AM_OK;
}

static AmStatus search_and_write(const Cli *cli, SearchCommand *self, AmError *error) {
    const char *cluster, *log = cli_text(cli, "--log");
    const volatile sig_atomic_t *interrupted = cli_catch_interrupts(); /* reading, too, ends in a plan */
    TRY(cli_need(cli, "--cluster", &cluster, error));
    TRY(check_options(cli, self, error));
    double started = clock_seconds();
    TRY(cli_open_cluster(cli, &self->cluster, cluster, NULL, error));
    TRY(cli_read_module(cli, 0, &self->module, error));
    /* Checks that the targets can run plans of the module, before the search. */
    const char *const *texts, *file;
    char name[TARGET_BYTES];
    int32_t count = cli_texts(cli, "--also", &texts);
    for (int32_t k = 0; k < count; k++) {
        TRY(split_also(texts[k], name, &file, error));
        AmStatus status = am_module_check_target(self->module, name, error);
        if (status != AM_OK && error) am_error_prefix(error, "--also %s: ", texts[k]);
        TRY(status);
    }
    self->import_seconds = clock_seconds() - started;
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .user = self,
                                   .on_progress = self->progress.line.is_shown ? show_progress : NULL,
                                   .on_message = on_message,
                                   .on_episode = log ? log_episode : NULL,
                                   .on_infeasible = keep_details,
                                   .cancel = interrupted};
    started = self->progress.started = clock_seconds();
    AmStatus status = am_search(&self->plan, self->module, self->cluster, self->options, &callbacks, error);
    self->search_seconds = clock_seconds() - started;
    search_progress_close(&self->progress);
    if (!self->plan) return status;
    if (error) *error = (AmError){0}; /* an interrupted search has a plan */
    TRY(am_plan_write(self->plan, self->plan_file, error));
    if (log) TRY(file_write(log, self->log.data ? self->log.data : "", self->log.length, error));
    AmError lack = {0};
    AmStatus also = write_also(cli, self, &lack);
    if (also == AM_OK || also == AM_ERROR_INFEASIBLE) TRY(report(cli, self, error));
    if (also != AM_OK && status == AM_OK) return am_pass_error(also, &lack, error);
    if (status == AM_INTERRUPTED)
        cli_note(cli, "interrupted; the best plan so far is in %s%s", self->plan_file,
                 also == AM_OK ? "" : ", plans of --also are missing");
    return status;
}

static AmStatus run_search(const Cli *cli, AmError *error) {
    SearchCommand self = {.cli = cli};
    AmStatus status = search_and_write(cli, &self, error);
    text_free(&self.log);
    text_free(&self.own_file);
    am_plan_free(self.plan);
    am_options_free(self.options);
    am_cluster_free(self.cluster);
    am_module_free(self.module);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("space"),
    {"--cluster", "CLUSTER", "cluster file or built-in name (automap cluster lists them); required", false},
    CLI_OPTION_NO_PROBE SEARCH_SPACE_ROWS(CLI_ROW) CLI_GROUP("search"),
    SEARCH_METHOD_ROWS(CLI_ROW) CLI_GROUP("memory"),
    OPTION_ROW_MEMORY_FRACTION(CLI_ROW) CLI_GROUP("pipeline"),
    SEARCH_ATTENTION_ROWS(CLI_ROW) SEARCH_PIPELINE_ROWS(CLI_ROW) CLI_GROUP("input"),
    SEARCH_INPUT_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW) OPTION_ROW_INFERENCE(CLI_ROW) CLI_GROUP("output"),
    {"--also", "TARGET=FILE", "fastest plan found that the target can run, as a plan file", true},
    {"--log", "LOG.jsonl", "line per episode: evaluations, reward, best, epsilon, loss", false},
    {"--verbose", NULL, "a row per parameter group, optimizer state included", false},
    {0}};

const CliCommand CLI_SEARCH = {
    .name = "search",
    .arguments = "MODEL",
    .summary = "finds a plan for a module on a cluster",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .notes = "The plan is written to -o (default: MODEL's stem + .plan.json).\n"
             "--baseline: data_parallel, megatron, megatron_sequence, zero1, zero2, zero3 (or fsdp), hsdp,\n"
             "hsdp_zero2, megatron_zero1, megatron_zero2, megatron_zero3, context_zero3, even_pipeline,\n"
             "megatron_3d;\n"
             "zero3_full, megatron_full, megatron_selective, even_pipeline_full, megatron_3d_full,\n"
             "megatron_3d_selective with recomputation.\n"
             "--evaluations: 500 for a single stage, fewer for large modules; 5000 for --searcher exact.\n"
             "--micro-batches: auto where several stages are searched, else 1.\n"
             "An interrupt ends the search: the best plan so far is written, the exit code is 130.",
    .examples = "search model.hlo.pb --cluster h100:4 -o plan.json\n"
                "search model.hlo.pb --cluster nominal:8 --space single_stage --evaluations 200",
    .run = run_search};
