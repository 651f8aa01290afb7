/* automap propagate: the module as HLO text with a sharding on every instruction. */
#include "cli/common.h"
#include "propagation/propagate.h"

static AmStatus find_states(const Cli *cli, SbpState **states, PlanStage *stage, Arena *arena,
                            const PlanContext *context, AmError *error) {
    const char *mesh;
    const char *const *texts;
    PropagationPin pins[CLI_MAX_REPEATS];
    int32_t count = cli_texts(cli, "--pin", &texts);
    TRY(cli_need(cli, "--mesh", &mesh, error));
    TRY(mesh_parse(&stage->mesh, arena, mesh, error));
    for (int32_t k = 0; k < count; k++) TRY(propagation_parse_pin(&pins[k], arena, texts[k], error));
    if (cli_has(cli, "--strict"))
        return propagate_strictly(states, arena, context, &stage->mesh, pins, count, error);
    TRY(propagation_pin_lists(stage, arena, context, pins, count, error));
    return propagate(states, arena, context, stage, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    PlanContext *context = NULL;
    PlanStage stage = {0};
    SbpState *states;
    Arena arena = {0};
    Text text = {0};
    AmStatus status;
    TRY_OR_FAIL(cli_read_model(cli, 0, &context, error));
    TRY_OR_FAIL(find_states(cli, &states, &stage, &arena, context, error));
    TRY_OR_FAIL(propagation_module_text(&text, context, &stage.mesh, states, error));
    if (cli_has(cli, "--json"))
        status = cli_output_json(cli, json_pack("{s:s}", "text", text.data), JSON_STYLE_COMPACT, error);
    else status = cli_output(cli, &text, error);
fail:
    text_free(&text);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static const CliOption options[] = {
    {"--mesh", "data=2,model=4", "the axes and their sizes", false},
    {"--pin", "PATTERN=SHARDING",
     "how parameters lie whose path matches, per dimension - or axes joined by +: '*kernel=-,model'", true},
    {"--strict", NULL, "Auto-MAP's own mode: one axis, no conversions between states", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_PROPAGATE = {
    .name = "propagate",
    .arguments = "MODEL",
    .summary = "the module as HLO text with a sharding on every instruction, from pins",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .run = run};
