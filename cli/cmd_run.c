/* automap run: trains a module under a plan, or runs it on one device. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/common.h"
#include "executor/run.h"
#include "executor/world.h"

/* Where the steps go, as they happen. */
typedef struct Stream {
    FileWriter writer;
    bool is_json;
    AmStatus status;
    AmError *error;
} Stream;

static void write_text(Stream *stream, const Text *text) {
    if (stream->status != AM_OK) return;
    stream->status = text->failed ? am_fail_memory(stream->error, 0)
                                  : file_writer_add(&stream->writer, text->data, text->length, stream->error);
    if (stream->status == AM_OK) fflush(stream->writer.stream);
}

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *watched_to_json(const AmRunWatched *watched) {
    if (watched->count == 1) return number_or_null(watched->values[0]);
    json_t *values = json_array();
    for (int64_t k = 0; k < watched->count; k++)
        json_array_append_new(values, number_or_null(watched->values[k]));
    return values;
}

static void write_json_line(Stream *stream, json_t *object) {
    Text text = {0};
    if (object) json_write(&text, object, JSON_STYLE_COMPACT);
    else text.failed = true;
    json_decref(object);
    text_append_string(&text, "\n");
    write_text(stream, &text);
    text_free(&text);
}

static void on_step(void *user, const AmRunStep *step) {
    Stream *stream = user;
    if (stream->is_json) {
        json_t *object = json_pack("{s:I, s:o, s:f}", "step", (json_int_t)step->step, "loss",
                                   number_or_null(step->loss), "seconds", step->seconds);
        for (int32_t k = 0; k < step->watched_count; k++) {
            char name[32];
            snprintf(name, sizeof name, "output[%d]", step->watched[k].output);
            json_object_set_new(object, name, watched_to_json(&step->watched[k]));
        }
        write_json_line(stream, object);
        return;
    }
    Text text = {0};
    text_append(&text, "step %6lld", (long long)step->step);
    if (!isnan(step->loss)) text_append(&text, "   loss %-14.9g", step->loss);
    text_append_string(&text, "   ");
    text_append_seconds(&text, step->seconds);
    for (int32_t k = 0; k < step->watched_count; k++) {
        text_append(&text, "   output[%d]", step->watched[k].output);
        for (int64_t i = 0; i < step->watched[k].count && i < 8; i++)
            text_append(&text, " %.9g", step->watched[k].values[i]);
        if (step->watched[k].count > 8) text_append_string(&text, " ...");
    }
    text_append_string(&text, "\n");
    write_text(stream, &text);
    text_free(&text);
}

/* Measured next to predicted, in the form of the stream. */
static void write_report_json(Stream *stream, const AmRunReport *report, const Plan *plan) {
    json_t *measured = json_array(), *predicted = json_null();
    for (int32_t d = 0; d < report->device_count; d++)
        json_array_append_new(measured,
                              json_pack("{s:I, s:I}", "peak_bytes", (json_int_t)report->peak_bytes[d],
                                        "scratch_bytes", (json_int_t)report->scratch_bytes[d]));
    if (plan) {
        json_t *devices = json_array();
        for (int32_t d = 0; d < plan->device_count; d++)
            json_array_append_new(
                devices, json_pack("{s:I}", "peak_bytes", (json_int_t)plan->predicted[d].peak_bytes));
        predicted = json_pack("{s:f, s:o}", "step_seconds", plan->predicted_step_seconds, "devices", devices);
    }
    write_json_line(stream, json_pack("{s:I, s:{s:f, s:o}, s:o}", "steps", (json_int_t)report->steps,
                                      "measured", "step_seconds", report->seconds_per_step, "devices",
                                      measured, "predicted", predicted));
}

/* Scratch memory is not predicted: it depends on the kernels, so it stands beside the table. */
static void append_scratch(Text *text, const AmRunReport *report) {
    int64_t most = 0;
    for (int32_t d = 0; d < report->device_count; d++)
        if (report->scratch_bytes[d] > most) most = report->scratch_bytes[d];
    if (most == 0) return;
    text_append_string(text, "kernels took ");
    text_append_bytes_size(text, (double)most);
    text_append_string(text, report->device_count > 1
                                 ? " of scratch memory beside it, on the device that took most\n"
                                 : " of scratch memory beside it\n");
}

static void write_report_text(Stream *stream, const AmRunReport *report, const Plan *plan) {
    Text text = {0}, rows = {0};
    text_append_string(&rows, plan ? "\tmeasured\tpredicted\nstep time\t" : "\tmeasured\nstep time\t");
    text_append_seconds(&rows, report->seconds_per_step);
    if (plan) text_append_string(&rows, "\t");
    if (plan) text_append_seconds(&rows, plan->predicted_step_seconds);
    text_append_string(&rows, "\n");
    for (int32_t d = 0; d < report->device_count; d++) {
        text_append(&rows, "peak of device %d\t", d);
        text_append_bytes_size(&rows, (double)report->peak_bytes[d]);
        if (plan && d < plan->device_count) {
            text_append_string(&rows, "\t");
            text_append_bytes_size(&rows, (double)plan->predicted[d].peak_bytes);
        }
        text_append_string(&rows, "\n");
    }
    text_append_table(&text, rows.data);
    append_scratch(&text, report);
    write_text(stream, &text);
    text_free(&rows);
    text_free(&text);
}

/* --watch 'output[2]'. */
static AmStatus read_watch(const Cli *cli, const PlanContext *context, int32_t *watch, int32_t *count,
                           AmError *error) {
    const char *const *values;
    *count = cli_texts(cli, "--watch", &values);
    for (int32_t k = 0; k < *count; k++) {
        char *end = NULL;
        long output = strncmp(values[k], "output[", 7) == 0 ? strtol(values[k] + 7, &end, 10) : -1;
        if (!end || end == values[k] + 7 || strcmp(end, "]") != 0 || output < 0 ||
            output >= context->roles->output_count)
            return am_fail(error, AM_ERROR_USAGE, "", "--watch %.60s: expected output[0] to output[%d]",
                           values[k], context->roles->output_count - 1);
        watch[k] = (int32_t)output;
    }
    return AM_OK;
}

typedef struct Running {
    Arena arena, warnings_arena;
    World *world; /* process 0 alone prints and writes */
    PlanContext *context;
    json_t *root;
    Stream stream;
    AmWarnings warnings;
} Running;

static AmStatus open_world(const Cli *cli, Running *self, AmError *error) {
    WorldOptions options = {0};
    TRY(cli_number(cli, "--join-seconds", 0.1, 1e6, &options.join_seconds, error));
    return world_open(&self->world, &options, error);
}

static AmStatus read_inputs(const Cli *cli, Running *self, Plan **plan, AmError *error) {
    const char *plan_path;
    TRY(cli_need(cli, "--plan", &plan_path, error));
    if (self->world->process == 0) TRY(cli_read_model(cli, 0, &self->context, error));
    else TRY(plan_context_read(&self->context, cli->arguments[0], cli_text(cli, "--roles"), error));
    if (strcmp(plan_path, "none") != 0)
        TRY(plan_read(plan, &self->root, &self->arena, self->context, plan_path, error));
    return AM_OK;
}

static AmStatus write_results(const Cli *cli, Running *self, const AmRunReport *report, const Plan *plan,
                              AmError *error) {
    if (self->stream.is_json) write_report_json(&self->stream, report, plan);
    else if (!cli_has(cli, "--quiet")) write_report_text(&self->stream, report, plan);
    TRY(self->stream.status);
    return file_writer_commit(&self->stream.writer, error);
}

static AmStatus run_all(const Cli *cli, Running *self, AmError *error) {
    Plan *plan = NULL;
    const char *out = cli_text(cli, "-o");
    int32_t watch[CLI_MAX_REPEATS];
    int64_t steps = 1, seed = 0, threads = 0;
    AmRunReport report = {0};
    TRY(cli_integer(cli, "--steps", 1, INT64_MAX, &steps, error));
    TRY(cli_integer(cli, "--seed", 0, INT64_MAX, &seed, error));
    TRY(cli_integer(cli, "--threads", 1, 256, &threads, error));
    TRY(read_inputs(cli, self, &plan, error));
    bool writes = self->world->process == 0;
    AmRunOptions options = {.plan = plan,
                            .steps = steps,
                            .device = cli_text(cli, "--device"),
                            .comm = cli_text(cli, "--comm"),
                            .tf32 = cli_has(cli, "--tf32"),
                            .threads = (int32_t)threads,
                            .world = self->world,
                            .state_path = cli_text(cli, "--state"),
                            .data_path = cli_text(cli, "--data"),
                            .seed = (uint64_t)seed,
                            .watch = watch,
                            .outputs_path = cli_text(cli, "--outputs"),
                            .save_path = cli_text(cli, "--save"),
                            .interrupted = cli_catch_interrupts(),
                            .on_step = on_step,
                            .user = &self->stream,
                            .warnings = &self->warnings};
    TRY(read_watch(cli, self->context, watch, &options.watch_count, error));
    if (writes) TRY(file_writer_begin(&self->stream.writer, out ? out : "-", error));
    AmStatus status = am_run(self->context, &options, &self->arena, &report, error);
    if (writes) cli_warn(cli, &self->warnings);
    if (status != AM_OK && status != AM_INTERRUPTED) return status;
    if (writes) TRY(write_results(cli, self, &report, plan, error));
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Running self = {.stream = {.is_json = cli_has(cli, "--json"), .error = error}};
    self.warnings.arena = &self.warnings_arena;
    AmStatus status = open_world(cli, &self, error);
    if (status == AM_OK) status = run_all(cli, &self, error);
    if (self.world && status != AM_OK && status != AM_INTERRUPTED) world_abort_for(self.world, error);
    file_writer_abandon(&self.stream.writer);
    world_close(self.world);
    json_decref(self.root);
    plan_context_free(self.context);
    arena_free(&self.warnings_arena);
    arena_free(&self.arena);
    return status;
}

static const CliOption options[] = {
    {"--plan", "PLAN", "the plan; none: the whole module on one device", false},
    {"--state", "FILE", "initial values by path, .safetensors or .npz; random: drawn by --seed", false},
    {"--data", "FILE", "examples by path, .safetensors or .npz, cut into consecutive batches", false},
    {"--steps", "N", "steps to run (default 1)", false},
    {"--watch", "'output[K]'", "report output K at every step too", true},
    {"--outputs", "OUT.npz", "write every output of the last step", false},
    {"--save", "FILE", "write the final state, .safetensors or .npz", false},
    {"--device", "cpu|cuda", "what the ranks compute on (default cpu)", false},
    {"--threads", "N", "threads of a rank on the host (default: its processors over its ranks)", false},
    {"--comm", "local|nccl", "how ranks talk: as threads of one process (default), or by NCCL", false},
    {"--join-seconds", "S", "how long processes wait for one another at the start (default 60)", false},
    {"--tf32", NULL, "matrix products of f32 may round their operands to tf32 (--device cuda)", false},
    CLI_OPTION_SEED,
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_RUN = {
    .name = "run",
    .arguments = "MODEL",
    .summary = "trains under a plan: a line per step, then measured next to predicted",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .notes =
        "Each device of the plan is a thread. An interrupt ends the run after the step in work: what\n"
        "was asked to be saved is saved, the exit code is 130.\n"
        "\n"
        "Started by torchrun (--no-python), srun or mpirun, the processes share the plan's devices evenly\n"
        "and need --device cuda; process 0 prints and writes. When one fails, all others end with exit\n"
        "code 5 and a line that names it. Where others can reach the network, set AUTOMAP_SECRET to the\n"
        "same words for all; AUTOMAP_PORT replaces the port on which process 0 waits for them.",
    .run = run};
