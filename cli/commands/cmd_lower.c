/* automap lower: the local program of one device, as text. */
#include <string.h>

#include "cli/common.h"
#include "lowering/spmd/ranks.h"

static AmStatus lower_plan(const Cli *cli, Program **program, Arena *arena, PlanContext *context,
                           json_t **root, AmError *error) {
    Plan *plan;
    PlanRanks ranks;
    int64_t device = 0;
    TRY(plan_read(&plan, root, arena, context, cli_text(cli, "--plan"), error));
    TRY(plan_ranks(&ranks, arena, context, plan, error));
    TRY(cli_integer(cli, "--device", 0, ranks.rank_count - 1, &device, error));
    return plan_ranks_lower(program, arena, &ranks, (int32_t)device, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    PlanContext *context = NULL;
    Program *program;
    Arena arena = {0};
    json_t *root = NULL;
    const char *plan;
    Text text = {0};
    AmStatus status;
    TRY_OR_FAIL(cli_need(cli, "--plan", &plan, error));
    TRY_OR_FAIL(cli_read_model(cli, 0, &context, error));
    if (strcmp(plan, "none") == 0) TRY_OR_FAIL(plan_lower_whole(&program, &arena, context, error));
    else TRY_OR_FAIL(lower_plan(cli, &program, &arena, context, &root, error));
    program_print(&text, program);
    if (cli_has(cli, "--json"))
        status = cli_output_json(
            cli,
            json_pack("{s:s, s:i, s:i, s:I, s:I, s:s}", "format", "automap-program-1", "device",
                      program->first_rank + program->device, "steps", program->step_count, "allocation_bytes",
                      (json_int_t)program->allocation_bytes, "parameter_bytes",
                      (json_int_t)program->parameter_bytes, "text", text.data ? text.data : ""),
            JSON_STYLE_COMPACT, error);
    else status = cli_output(cli, &text, error);
fail:
    text_free(&text);
    json_decref(root);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("program"),
    {"--plan", "PLAN", "plan; none: the module on one device; required", false},
    {"--device", "D", "device of the plan, counted over its stages (default 0)", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_LOWER = {.name = "lower",
                              .arguments = "MODEL",
                              .summary = "program of one device: local shapes and explicit collectives",
                              .least_arguments = 1,
                              .most_arguments = 1,
                              .options = options,
                              .examples = "lower model.hlo.pb --plan plan.json --device 3",
                              .run = run};
