/* Calls that need no handle.
 *
 * am_report() runs the report of a command on files: `kinds` has a function for each. am_convert() writes a
 * module in another encoding, am_roles_path() finds the file of roles beside a module, and am_features()
 * lists the parts of this build.
 */
#define _XOPEN_SOURCE 700
#include <sys/stat.h>

#include "api/reports/reports.h"
#include "automap_features.h"
#include "executor/checkpoint/checkpoint_export.h"
#include "executor/processes/mpi_wire.h"
#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/versions.h"
#endif

/* ---- parts of all reports ---- */

AmStatus report_read_module(PlanContext **context, const ReportCall *call, int32_t k, AmError *error) {
    TRY(plan_context_read(context, call->files[k], option_text(call->options, "roles"), error));
    const IrModule *module = (*context)->module;
    if (module->is_optimized) {
        am_fail(error, AM_ERROR_INPUT, module->source, "%s", IR_OPTIMIZED_TEXT);
        plan_context_free(*context);
        *context = NULL;
        return AM_ERROR_INPUT;
    }
    api_warn(call->callbacks, &(*context)->canonical->warnings); /* with those of the module as read */
    return AM_OK;
}

/* ---- am_report ---- */

typedef struct ReportKind {
    AmStatus (*run)(Text *text, const ReportCall *call, AmError *error); /* NULL: no report */
    int32_t least_files, most_files;
} ReportKind;

static const ReportKind kinds[] = {[AM_COMMAND_INFO] = {report_info, 1, 1},
                                   [AM_COMMAND_GROUPS] = {report_groups, 1, 1},
                                   [AM_COMMAND_PROPAGATE] = {report_propagate, 1, 1},
                                   [AM_COMMAND_LOWER] = {report_lower, 1, 1},
                                   [AM_COMMAND_CLUSTER] = {report_clusters, 0, 0},
                                   [AM_COMMAND_PUBLISHED] = {report_published, 1, 1},
                                   [AM_COMMAND_AGENT_EVALUATE] = {report_agent, 1, INT32_MAX}};

typedef struct ReportJob {
    const ReportKind *kind;
    ReportCall call;
    Text text;
} ReportJob;

static AmStatus run_report(ApiWork *work, AmError *error) {
    ReportJob *job = work->user;
    job->call.watch = work->watch;
    return job->kind->run(&job->text, &job->call, error);
}

AmStatus am_report(AmCommand command, const char *const *files, int32_t file_count, const AmOptions *options,
                   AmFormat format, const AmCallbacks *callbacks, char **text, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    bool is_known = (int)command >= 0 && (size_t)command < sizeof kinds / sizeof *kinds;
    if (!is_known || !kinds[command].run)
        return am_fail(error, AM_ERROR_USAGE, "", "command %d: has no report of files", (int)command);
    const ReportKind *kind = &kinds[command];
    if (file_count < kind->least_files || file_count > kind->most_files)
        return am_fail(error, AM_ERROR_USAGE, "", "file_count %d: expected %d to %d", (int)file_count,
                       (int)kind->least_files, (int)kind->most_files);
    for (int32_t k = 0; k < file_count; k++) TRY(api_require(files ? files[k] : NULL, "files", error));
    TRY(api_check_options(options, command, error));
    TRY(api_check_format(format, false, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    ReportJob job = {.kind = kind,
                     .call = {files, file_count, options, format, &own, NULL},
                     .text = {.is_styled = format == AM_FORMAT_TERMINAL}};
    ApiWork work = {.callbacks = &own, .run = run_report, .user = &job};
    status = api_work_run(&work, 0, error);
    return api_end_text(status, text, NULL, &job.text, error);
}

/* ---- am_convert ---- */

/* Writes a checkpoint as one file of arrays, or a module in another encoding. */
static AmStatus convert(const char *input, const char *output, const ReportCall *call, AmError *error) {
    struct stat facts;
    AmStatus status;
    if (stat(input, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        Arena arena = {0};
        AmWarnings warnings = {.arena = &arena};
        status = checkpoint_export(input, output, &warnings, error);
        api_warn(call->callbacks, &warnings);
        arena_free(&arena);
        return status;
    }
    IrModule *module;
    TRY(ir_read(&module, input, error));
    api_warn(call->callbacks, &module->warnings);
    status = ir_write(module, output, error);
    ir_module_free(module);
    return status;
}

AmStatus am_convert(const char *input, const char *output, const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(input, "input", error));
    TRY(api_require(output, "output", error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    const ReportCall call = {.callbacks = &own};
    API_IN_C_LOCALE(status, convert(input, output, &call, error), error);
    return status;
}

/* ---- facts ---- */

AmStatus am_roles_path(const char *module_path, char **path, AmError *error) {
    Arena arena = {0};
    Text text = {0};
    api_begin(error);
    TRY(api_require(path, "path", error));
    *path = NULL;
    TRY(api_require(module_path, "module_path", error));
    const char *found = plan_context_roles(&arena, module_path);
    if (found) text_append_string(&text, found);
    arena_free(&arena);
    return found ? api_give_text(path, NULL, &text, error) : AM_OK;
}

AmStatus am_features(char **text, size_t *bytes, AmError *error) {
    const char *mpi = mpi_wire_name();
    Text all = {0};
    api_begin(error);
    TRY(api_require(text, "text", error));
    text_append(&all, "%s%s%s\n", AUTOMAP_FEATURES, mpi ? ", " : "", mpi ? mpi : "");
#ifdef AUTOMAP_HAVE_CUDA
    text_append_string(&all, "found on this machine: ");
    cuda_versions(&all);
    text_append_string(&all, "\n");
#endif
    return api_give_text(text, bytes, &all, error);
}
