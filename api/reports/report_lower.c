/* The report `lower`: the local program of one device, as text. */
#include <stdio.h>
#include <string.h>

#include "api/reports/reports.h"
#include "cost/simulate/simulate.h"
#include "lowering/spmd/ranks.h"

static AmStatus lower_plan(Program **program, Arena *arena, json_t **root, PlanContext *context,
                           const ReportCall *call, AmError *error) {
    const char *text = option_text(call->options, "device");
    Plan *plan;
    PlanRanks ranks;
    int64_t device = 0;
    char name[16];
    TRY(plan_read(&plan, root, arena, context, option_text(call->options, "plan"), error));
    TRY(plan_check_own_devices(plan, error));
    TRY(plan_ranks(&ranks, arena, context, plan, error));
    if (text) {
        snprintf(name, sizeof name, "%sdevice", call->options->dashes);
        TRY(option_parse_integer(name, text, 0, ranks.rank_count - 1, &device, error));
    }
    return plan_ranks_lower(program, arena, &ranks, (int32_t)device, error);
}

AmStatus report_lower(Text *text, const ReportCall *call, AmError *error) {
    const char *plan = option_text(call->options, "plan");
    PlanContext *context = NULL;
    Program *program;
    Arena arena = {0};
    json_t *root = NULL;
    Text printed = {0};
    AmStatus status;
    if (!plan) return am_fail(error, AM_ERROR_USAGE, "", "plan: not set (expected a plan file or none)");
    TRY(report_read_module(&context, call, 0, error));
    if (strcmp(plan, "none") == 0) TRY_OR_FAIL(plan_lower_one_device(&program, &arena, context, error));
    else TRY_OR_FAIL(lower_plan(&program, &arena, &root, context, call, error));
    if (call->format != AM_FORMAT_JSON) {
        program_print(text, program);
        goto fail;
    }
    program_print(&printed, program);
    status = api_append_json(
        text,
        json_pack("{s:s, s:i, s:i, s:I, s:I, s:s}", "format", "automap-program-1", "device",
                  program->first_rank + program->device, "steps", program->execution.step_count,
                  "allocation_bytes", (json_int_t)program->allocation.bytes, "parameter_bytes",
                  (json_int_t)program->allocation.parameter_bytes, "text", printed.data ? printed.data : ""),
        JSON_STYLE_COMPACT, error);
fail:
    text_free(&printed);
    json_decref(root);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}
