/* The report `propagate`: the module as HLO text with a sharding on every instruction.
 *
 * Shardings come from pins (--pin), from the module's own annotations (--keep-shardings), or from both. They
 * spread over canonical values (propagation/propagate) or over the module as read (propagation/spread), by
 * strict rules on request. Dimensions that two pins claim are conflicts, which the report lists.
 */
#include "api/reports/reports.h"
#include "propagation/propagate/incremental.h"
#include "propagation/propagate/propagate.h"
#include "propagation/spread/spread_states.h"

/* Finds the mesh of --mesh, or of the shardings that the module carries. */
static AmStatus find_mesh(const ReportCall *call, Mesh *mesh, Arena *arena, const KeptShardings *kept,
                          AmError *error) {
    const char *text = option_text(call->options, "mesh");
    if (kept && !text) return propagation_infer_mesh(mesh, arena, kept, error);
    if (!text)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "expected --mesh data=2,model=4, or --keep-shardings to start from the shardings of the module");
    return mesh_parse(mesh, arena, text, error);
}

/* Returns a conflict as JSON: the dimension kept, the one refused, and the bytes between both. */
static json_t *conflict_to_json(const PlanContext *context, const Mesh *mesh,
                                const IncrementalConflict *conflict) {
    static const char *const levels[] = {"seed", "pass_through", "any"};
    const IrInstruction *value = plan_context_instruction(context, conflict->instruction);
    return json_pack("{s:i, s:s, s:s, s:s, s:i, s:i, s:s, s:f}", "instruction", conflict->instruction, "name",
                     value->name, "op_name", value->op_name, "axis", mesh->axes[conflict->axis].name, "kept",
                     conflict->kept, "refused", conflict->refused, "reached_by", levels[conflict->level],
                     "bytes", conflict->bytes);
}

/* Spreads the pins, whatever their order, into the axis priorities of the stage; the conflicts
 * are noted, the dearest one by name, and listed in *conflicts. */
static AmStatus spread_pins(const ReportCall *call, PlanStage *stage, Arena *arena,
                            const PlanContext *context, const PropagationPin *pins, int32_t pin_count,
                            json_t **conflicts, AmError *error) {
    Incremental *incremental;
    IncrementalConflict *list;
    int32_t count, dearest = 0;
    TRY(incremental_create(&incremental, arena, context, &stage->mesh, error));
    TRY(propagation_pin_seeds(incremental, context, &stage->mesh, pins, pin_count, error));
    TRY(incremental_to_stage(stage, arena, incremental, error));
    TRY(incremental_conflicts(&list, &count, arena, incremental, error));
    *conflicts = json_array();
    for (int32_t k = 0; k < count; k++) {
        json_array_append_new(*conflicts, conflict_to_json(context, &stage->mesh, &list[k]));
        if (list[k].bytes > list[dearest].bytes) dearest = k;
    }
    if (count > 0)
        api_message(
            call->callbacks, AM_NOTE,
            "%d values are reached by pins of two dimensions on one axis; dearest %s, split by %d and "
            "not by %d (--json lists them)",
            count, plan_context_instruction(context, list[dearest].instruction)->name, list[dearest].kept,
            list[dearest].refused);
    return AM_OK;
}

/* Finds the states of canonical values from pins, by strict rules or beside given shardings. */
static AmStatus find_states(const ReportCall *call, SbpState **states, PlanStage *stage, Arena *arena,
                            const PlanContext *context, json_t **conflicts, AmError *error) {
    const char *const *texts;
    KeptShardings *kept = NULL;
    AmWarnings warnings = {.arena = arena};
    int32_t count = option_texts(call->options, "pin", &texts);
    PropagationPin *pins = ARENA_ARRAY(arena, PropagationPin, count + 1);
    if (!pins) return am_fail_memory(error, count);
    if (option_has(call->options, "keep-shardings"))
        TRY(propagation_read_shardings(&kept, arena, context, error));
    TRY(find_mesh(call, &stage->mesh, arena, kept, error));
    for (int32_t k = 0; k < count; k++) TRY(propagation_parse_pin(&pins[k], arena, texts[k], error));
    if (option_has(call->options, "strict"))
        return propagate_strictly(states, arena, context, &stage->mesh, pins, count, error);
    TRY(spread_pins(call, stage, arena, context, pins, count, conflicts, error));
    if (kept) TRY(propagation_keep_shardings(stage, arena, context, kept, &warnings, error));
    return propagate(states, arena, context, stage, error);
}

/* Propagates pinned states over the module as it was read. */
static AmStatus spread_from_pins(Text *text, const ReportCall *call, Arena *arena, PlanContext **context,
                                 json_t **conflicts, AmError *error) {
    PlanStage stage = {0};
    SbpState *states;
    Spread *spread;
    bool is_kept = option_has(call->options, "keep-shardings");
    TRY(report_read_module(context, call, 0, error));
    TRY(find_states(call, &states, &stage, arena, *context, conflicts, error));
    TRY(spread_create(&spread, arena, (*context)->module, is_kept, error));
    TRY(spread_give_states(spread, *context, &stage.mesh, states, is_kept, error));
    TRY(spread_run(spread, error));
    return spread_text(text, spread, error);
}

/* Spreads the shardings that the module carries; the mesh serves to check them. */
static AmStatus spread_kept(Text *text, const ReportCall *call, Arena *arena, IrModule **module,
                            AmError *error) {
    const char *mesh_text = option_text(call->options, "mesh");
    Spread *spread;
    Mesh mesh;
    if (mesh_text) TRY(mesh_parse(&mesh, arena, mesh_text, error));
    TRY(ir_read(module, call->files[0], error));
    api_warn(call->callbacks, &(*module)->warnings);
    TRY(spread_create(&spread, arena, *module, true, error));
    if (mesh_text) TRY(spread_check_mesh(spread, *module, &mesh, error));
    TRY(spread_run(spread, error));
    return spread_text(text, spread, error);
}

AmStatus report_propagate(Text *text, const ReportCall *call, AmError *error) {
    PlanContext *context = NULL;
    IrModule *module = NULL;
    json_t *conflicts = NULL;
    Arena arena = {0};
    Text printed = {0}, *to = call->format == AM_FORMAT_JSON ? &printed : text;
    AmStatus status;
    bool keeps = option_has(call->options, "keep-shardings");
    if (option_has(call->options, "strict") && keeps)
        return am_fail(error, AM_ERROR_USAGE, "", "--strict and --keep-shardings exclude each other");
    if (keeps && !option_has(call->options, "pin"))
        TRY_OR_FAIL(spread_kept(to, call, &arena, &module, error));
    else TRY_OR_FAIL(spread_from_pins(to, call, &arena, &context, &conflicts, error));
    if (call->format == AM_FORMAT_JSON) {
        if (!conflicts) conflicts = json_array();
        status = api_append_json(text,
                                 json_pack("{s:s, s:s, s:O}", "format", "automap-propagation-1", "text",
                                           printed.data, "conflicts", conflicts),
                                 JSON_STYLE_COMPACT, error);
    }
fail:
    json_decref(conflicts);
    text_free(&printed);
    arena_free(&arena);
    plan_context_free(context);
    ir_module_free(module);
    return status;
}
