/* automap propagate: the module as HLO text with a sharding on every instruction. */
#include "cli/common.h"
#include "propagation/propagate/incremental.h"
#include "propagation/propagate/propagate.h"
#include "propagation/spread/spread_states.h"

/* The mesh of --mesh, or of the shardings that the module carries. */
static AmStatus find_mesh(const Cli *cli, Mesh *mesh, Arena *arena, const KeptShardings *kept,
                          AmError *error) {
    const char *text = cli_text(cli, "--mesh");
    if (kept && !text) return propagation_infer_mesh(mesh, arena, kept, error);
    if (!text)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "expected --mesh data=2,model=4, or --keep-shardings to start from the shardings of the "
            "module");
    return mesh_parse(mesh, arena, text, error);
}

/* Returns a conflict as JSON: the dimension kept, the one refused, and the bytes between both. */
static json_t *conflict_to_json(const PlanContext *context, const Mesh *mesh,
                                const IncrementalConflict *conflict) {
    static const char *const levels[] = {"seed", "pass_through", "any"};
    const IrInstruction *value = &context->canonical->instructions[conflict->instruction];
    return json_pack("{s:i, s:s, s:s, s:s, s:i, s:i, s:s, s:f}", "instruction", conflict->instruction, "name",
                     value->name, "op_name", value->op_name, "axis", mesh->axes[conflict->axis].name, "kept",
                     conflict->kept, "refused", conflict->refused, "reached_by", levels[conflict->level],
                     "bytes", conflict->bytes);
}

/* Spreads the pins, whatever their order, into the lists of the stage; the conflicts
 * are noted, the dearest one by name, and listed in *conflicts. */
static AmStatus spread_pins(const Cli *cli, PlanStage *stage, Arena *arena, const PlanContext *context,
                            const PropagationPin *pins, int32_t pin_count, json_t **conflicts,
                            AmError *error) {
    Incremental *incremental = NULL;
    IncrementalConflict *list;
    int32_t count, dearest = 0;
    AmStatus status;
    TRY_OR_FAIL(incremental_create(&incremental, arena, context, &stage->mesh, error));
    TRY_OR_FAIL(propagation_pin_seeds(incremental, context, &stage->mesh, pins, pin_count, error));
    TRY_OR_FAIL(incremental_to_stage(stage, arena, incremental, error));
    TRY_OR_FAIL(incremental_conflicts(&list, &count, arena, incremental, error));
    *conflicts = json_array();
    for (int32_t k = 0; k < count; k++) {
        json_array_append_new(*conflicts, conflict_to_json(context, &stage->mesh, &list[k]));
        if (list[k].bytes > list[dearest].bytes) dearest = k;
    }
    if (count > 0)
        cli_note(
            cli,
            "note: %d values are reached by pins of two dimensions on one axis; dearest %s, split by %d and "
            "not by %d (--json lists them)",
            count, context->canonical->instructions[list[dearest].instruction].name, list[dearest].kept,
            list[dearest].refused);
fail:
    incremental_free(incremental);
    return status;
}

/* Finds the states of canonical values from pins, by strict rules or beside given shardings. */
static AmStatus find_states(const Cli *cli, SbpState **states, PlanStage *stage, Arena *arena,
                            const PlanContext *context, json_t **conflicts, AmError *error) {
    const char *const *texts;
    PropagationPin pins[CLI_MAX_REPEATS];
    KeptShardings *kept = NULL;
    AmWarnings warnings = {.arena = arena};
    int32_t count = cli_texts(cli, "--pin", &texts);
    if (cli_has(cli, "--keep-shardings")) TRY(propagation_read_shardings(&kept, arena, context, error));
    TRY(find_mesh(cli, &stage->mesh, arena, kept, error));
    for (int32_t k = 0; k < count; k++) TRY(propagation_parse_pin(&pins[k], arena, texts[k], error));
    if (cli_has(cli, "--strict"))
        return propagate_strictly(states, arena, context, &stage->mesh, pins, count, error);
    TRY(spread_pins(cli, stage, arena, context, pins, count, conflicts, error));
    if (kept) TRY(propagation_keep_shardings(stage, arena, context, kept, &warnings, error));
    return propagate(states, arena, context, stage, error);
}

/* Propagates pinned states over the module as it was read. */
static AmStatus spread_from_pins(const Cli *cli, Text *text, Arena *arena, PlanContext **context,
                                 json_t **conflicts, AmError *error) {
    PlanStage stage = {0};
    SbpState *states;
    Spread *spread;
    bool is_kept = cli_has(cli, "--keep-shardings");
    TRY(cli_read_model(cli, 0, context, error));
    TRY(find_states(cli, &states, &stage, arena, *context, conflicts, error));
    TRY(spread_create(&spread, arena, (*context)->module, is_kept, error));
    TRY(spread_give_states(spread, *context, &stage.mesh, states, is_kept, error));
    TRY(spread_run(spread, error));
    return spread_text(text, spread, error);
}

/* Spreads the shardings that the module carries; the mesh serves to check them. */
static AmStatus spread_kept(const Cli *cli, Text *text, Arena *arena, IrModule **module, AmError *error) {
    const char *mesh_text = cli_text(cli, "--mesh");
    Spread *spread;
    Mesh mesh;
    if (mesh_text) TRY(mesh_parse(&mesh, arena, mesh_text, error));
    TRY(ir_read(module, cli->arguments[0], error));
    cli_warn(cli, &(*module)->warnings);
    TRY(spread_create(&spread, arena, *module, true, error));
    if (mesh_text) TRY(spread_check_mesh(spread, *module, &mesh, error));
    TRY(spread_run(spread, error));
    return spread_text(text, spread, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    PlanContext *context = NULL;
    IrModule *module = NULL;
    json_t *conflicts = NULL;
    Arena arena = {0};
    Text text = {0};
    AmStatus status;
    if (cli_has(cli, "--strict") && cli_has(cli, "--keep-shardings"))
        return am_fail(error, AM_ERROR_USAGE, "", "--strict and --keep-shardings exclude each other");
    if (cli_has(cli, "--keep-shardings") && !cli_has(cli, "--pin"))
        TRY_OR_FAIL(spread_kept(cli, &text, &arena, &module, error));
    else TRY_OR_FAIL(spread_from_pins(cli, &text, &arena, &context, &conflicts, error));
    if (cli_has(cli, "--json"))
        status =
            cli_output_json(cli,
                            json_pack("{s:s, s:s, s:O}", "format", "automap-propagation-1", "text", text.data,
                                      "conflicts", conflicts ? conflicts : (conflicts = json_array())),
                            JSON_STYLE_COMPACT, error);
    else status = cli_output(cli, &text, error);
fail:
    json_decref(conflicts);
    text_free(&text);
    arena_free(&arena);
    plan_context_free(context);
    ir_module_free(module);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("shardings"),
    {"--mesh", "data=2,model=4", "axes of the mesh and their sizes", false},
    {"--pin", "PATTERN=SHARDING", "sharding of parameters: 'layers/*/mlp_in/kernel=-,model'", true},
    {"--keep-shardings", NULL, "start from the shardings of the module; --mesh is optional", false},
    {"--strict", NULL, "Auto-MAP's mode: one axis, no reshards", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_PROPAGATE = {
    .name = "propagate",
    .arguments = "MODEL",
    .summary = "HLO text with a sharding on every instruction, from pins",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .notes = "A sharding lists each dimension: - is replicated, axes of one dimension are joined by +.",
    .examples = "propagate model.hlo.pb --mesh data=2,model=4 --pin '*kernel=-,model'",
    .run = run};
