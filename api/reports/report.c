/* Calls that need no handle.
 *
 * am_report() runs the report of a command on files: `kinds` has a function for each. am_convert() writes a
 * module in another encoding, am_roles_path() finds the file of roles beside a module,
 * and am_features() lists the parts of this build.
 */
#define _XOPEN_SOURCE 700
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/reports/reports.h"
#include "automap_features.h"
#include "base/files/file.h"
#include "executor/checkpoint/checkpoint_export.h"
#include "executor/processes/mpi_wire.h"
#include "ir/precision/mixed_precision.h"
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

AmStatus am_report(AmCommand command, const char *const *files, int32_t file_count, AmFormat format,
                   const AmOptions *options, const AmCallbacks *callbacks, char **text, size_t *bytes,
                   AmError *error) {
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
    return api_end_text(status, text, bytes, &job.text, error);
}

/* ---- am_convert ---- */

/* Copies the roles of a module to the folder of `output`, where they are found beside it. Other roles there
 * are an error. */
static AmStatus carry_roles(const char *roles, const char *output, AmError *error) {
    Arena arena = {0};
    FileBytes bytes = {0}, old = {0};
    const char *beside = plan_context_roles_path(&arena, output);
    AmStatus status = arena.failed ? am_fail_memory(error, 0) : AM_OK;
    if (status == AM_OK && beside) status = file_read(&bytes, roles, error);
    bool is_there = status == AM_OK && beside && access(beside, F_OK) == 0;
    if (is_there) status = file_read(&old, beside, error);
    bool is_same = is_there && status == AM_OK && old.length == bytes.length &&
                   memcmp(old.data, bytes.data, (size_t)bytes.length) == 0;
    if (status == AM_OK && is_there && !is_same)
        status = am_fail(error, AM_ERROR_USAGE, beside,
                         "this file has roles of another module (expected OUT in another folder)");
    if (status == AM_OK && beside && !is_there)
        status = file_write(beside, bytes.data, (size_t)bytes.length, error);
    file_release(&bytes);
    file_release(&old);
    arena_free(&arena);
    return status;
}

static AmStatus write_mixed(const PlanContext *context, const char *output, const ReportCall *call,
                            AmError *error) {
    IrModule *mixed;
    IrPrecisionCounts counts;
    char note[200];
    TRY(ir_mixed_precision(&mixed, &counts, context->module, context->canonical, context->roles, error));
    AmStatus status = ir_write(mixed, output, error);
    ir_module_free(mixed);
    snprintf(note, sizeof note,
             "mixed precision: %d products and %d other operators in bf16, %d conversions; %d products stay",
             (int)counts.products, (int)counts.computed, (int)counts.casts, (int)counts.kept);
    if (status == AM_OK && call->callbacks->on_message)
        call->callbacks->on_message(call->callbacks->user, AM_NOTE, note);
    return status;
}

/* Writes a module in mixed precision, and its file of roles. */
static AmStatus convert_mixed(const char *input, const char *output, const ReportCall *call, AmError *error) {
    PlanContext *context;
    Arena arena = {0};
    TRY(report_read_module(&context, call, 0, error));
    const char *roles = option_text(call->options, "roles");
    AmStatus status = AM_OK;
    if (!roles) roles = plan_context_roles(&arena, input);
    if (roles) status = carry_roles(roles, output, error);
    if (status == AM_OK) status = write_mixed(context, output, call, error);
    plan_context_free(context);
    arena_free(&arena);
    return status;
}

/* Writes a checkpoint as one file of arrays, or a module in another encoding or in mixed precision. */
static AmStatus convert(const char *input, const char *output, const ReportCall *call, AmError *error) {
    struct stat facts;
    bool is_folder = stat(input, &facts) == 0 && S_ISDIR(facts.st_mode);
    bool is_mixed = option_has(call->options, "mixed-precision");
    if (is_mixed && is_folder)
        return am_fail(error, AM_ERROR_USAGE, input, "mixed-precision: this is a folder (expected a module)");
    if (!is_mixed && option_has(call->options, "roles"))
        return am_fail(error, AM_ERROR_USAGE, "",
                       "roles: no effect on this conversion (expected mixed-precision, too)");
    if (is_mixed) return convert_mixed(input, output, call, error);
    if (is_folder) {
        /* A checkpoint becomes one file of arrays. */
        Arena arena = {0};
        AmWarnings warnings = {.arena = &arena};
        AmStatus status = checkpoint_export(input, output, &warnings, error);
        api_warn(call->callbacks, &warnings);
        arena_free(&arena);
        return status;
    }
    IrModule *module;
    TRY(ir_read(&module, input, error));
    api_warn(call->callbacks, &module->warnings);
    AmStatus status = ir_write(module, output, error);
    ir_module_free(module);
    return status;
}

AmStatus am_convert(const char *input, const char *output, const AmOptions *options,
                    const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(input, "input", error));
    TRY(api_require(output, "output", error));
    TRY(api_check_options(options, AM_COMMAND_CONVERT, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    const ReportCall call = {.files = &input, .file_count = 1, .options = options, .callbacks = &own};
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
