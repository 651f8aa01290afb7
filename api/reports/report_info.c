/* The report `info`: instructions, parameters, outputs, loops and work of a module.
 *
 * gather() collects the facts once, and info_to_json() or print_info() writes them. For loops over layers
 * and for attention the report gives the rewriting that a search can apply, or the reason against it. A
 * module with an operator outside of the planner's set has a short report (try_unplanned()).
 */
#include <stdlib.h>
#include <string.h>

#include "api/reports/parameters.h"
#include "api/reports/reports.h"
#include "cost/operator/model_flops.h"
#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"
#include "ir/layers/layers.h"
#include "lowering/plan_file/plan_parts.h"
#include "propagation/groups/groups.h"

#define PHASE_COUNT (IR_PHASE_OTHER + 1)

typedef struct Opcode {
    const char *name;
    int32_t count;
    int32_t phases[PHASE_COUNT];
} Opcode;

/* The layers of stacked parameters [layers, ...]. */
typedef struct InfoLayers {
    int32_t count, stacks; /* layers of the deepest stack; parameters. 0: they stay stacked */
    const char *reason;    /* why they do; NULL: there are none, or they are split */
} InfoLayers;

/* Counts over the canonical module. A loop's work counts once per trip, as in prices; XLA's cost
 * analysis counts a body once. */
typedef struct Info {
    Opcode *opcodes; /* by number, most first */
    int32_t opcode_count;
    int32_t phases[PHASE_COUNT];
    ModelFlops work;
    IrWork cost_analysis; /* of the module as read, as XLA counts it */
    const LinkageGroups *groups;
    InfoLayers layers;
    const PlanContext *split; /* the module with separate layers, where attention is a near miss in their
                                 loop; or NULL */
} Info;

/* Devices on the axis that groups are counted for, as `automap groups` does. */
enum { GROUPS_AXIS_SIZE = 8 };

static Opcode *find_opcode(Info *info, Arena *arena, int32_t *capacity, const char *name) {
    for (int32_t k = 0; k < info->opcode_count; k++)
        if (strcmp(info->opcodes[k].name, name) == 0) return &info->opcodes[k];
    ARENA_RESERVE(arena, info->opcodes, info->opcode_count, *capacity);
    if (!info->opcodes) return NULL;
    info->opcodes[info->opcode_count] = (Opcode){.name = name};
    return &info->opcodes[info->opcode_count++];
}

/* Orders the most frequent first, then by name. */
static int compare_opcodes(const void *left, const void *right) {
    const Opcode *a = left, *b = right;
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Counts opcodes by phase, and computes work and linkage groups. */
static AmStatus gather(Info *info, Arena *arena, const PlanContext *context, AmError *error) {
    const IrModule *module = context->canonical;
    int32_t capacity = 0;
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        Opcode *opcode = find_opcode(info, arena, &capacity, instruction->opcode_name);
        if (!opcode) return am_fail_memory(error, 0);
        opcode->count++;
        IrPhase phase = context->roles->phases[i];
        opcode->phases[phase]++;
        info->phases[phase]++;
    }
    if (info->opcode_count > 0)
        qsort(info->opcodes, (size_t)info->opcode_count, sizeof *info->opcodes, compare_opcodes);
    TRY(model_flops(&info->work, context->rules, error));
    TRY(ir_module_work(&info->cost_analysis, context->module, error));
    LinkageGroups *groups;
    TRY(groups_of_classes(&groups, arena, context, GROUPS_AXIS_SIZE, error));
    info->groups = groups;
    return AM_OK;
}

static json_t *parameters_to_json(const PlanContext *context) {
    json_t *list = json_array();
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
        json_t *dimensions = json_array();
        for (int32_t d = 0; shape->type != DTYPE_TUPLE && d < shape->rank; d++)
            json_array_append_new(dimensions, json_integer(shape->dimensions[d]));
        json_array_append_new(
            list,
            json_pack("{s:i, s:o, s:s, s:o, s:s, s:o, s:o}", "number", p, "path",
                      plan_string_to_json(parameter->path), "type", dtype_name(shape->type), "shape",
                      dimensions, "role", ir_role_name(parameter->role), "output",
                      parameter->output < 0 ? json_null() : json_integer(parameter->output), "paired_by",
                      parameter->output < 0 ? json_null() : json_string(parameter->paired_by)));
    }
    return list;
}

static json_t *outputs_to_json(const PlanContext *context) {
    json_t *list = json_array();
    for (int32_t k = 0; k < context->roles->output_count; k++) {
        Text shape = {0};
        ir_shape_append(&shape, &plan_context_instruction(context, context->roles->outputs[k])->shape);
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:b}", "index", k, "shape", shape.data ? shape.data : "",
                                        "loss", (int)(k == context->roles->loss)));
        text_free(&shape);
    }
    return list;
}

static json_t *loops_to_json(const IrModule *module) {
    json_t *list = json_array();
    for (int32_t k = 0; k < module->loops->loop_count; k++) {
        const IrLoop *loop = &module->loops->loops[k];
        const IrInstruction *instruction = &module->instructions[loop->instruction];
        json_array_append_new(list, json_pack("{s:o, s:o, s:o, s:i, s:o}", "instruction",
                                              plan_string_to_json(instruction->name), "op_name",
                                              plan_string_to_json(instruction->op_name), "source_file",
                                              plan_string_to_json(instruction->source_file), "source_line",
                                              instruction->source_line, "trips",
                                              loop->trips < 0 ? json_null() : json_integer(loop->trips)));
    }
    return list;
}

static const char *attention_kind(const IrAttention *row) {
    if (row->reason) return "near miss";
    return row->is_backward ? "backward" : "forward";
}

static json_t *attention_to_json(const PlanContext *context) {
    json_t *list = json_array();
    for (int32_t r = 0; r < context->attention->count; r++) {
        const IrAttention *row = &context->attention->rows[r];
        const IrInstruction *scores = plan_context_instruction(context, row->scores);
        Text shape = {0};
        ir_shape_append(&shape, &scores->shape);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:o, s:i, s:i, s:o}", "kind", attention_kind(row), "scores",
                            shape.data ? shape.data : "", "instruction", plan_string_to_json(scores->name),
                            "op_name", plan_string_to_json(scores->op_name), "operands",
                            row->operand_count + row->repeat_count, "results", row->result_count, "reason",
                            row->reason ? plan_string_to_json(row->reason) : json_null()));
        text_free(&shape);
    }
    return list;
}

/* Finds the layers that `search --layers split` would plan one by one: those of weights. The words of a
 * random key become parameters, too, and are no layers. */
static AmStatus find_layers(InfoLayers *layers, Arena *arena, const PlanContext *context, AmError *error) {
    IrModule *split = NULL;
    IrLayerMap *map;
    *layers = (InfoLayers){0};
    TRY(ir_split_layers(&split, &map, &layers->reason, arena, context->canonical, context->roles, error));
    for (int32_t p = 0; split && p < map->parameter_count; p++) {
        const IrLayerPart *part = &map->parameters[p];
        bool is_weight = context->roles->parameters[part->original].role == IR_ROLE_WEIGHT;
        layers->stacks += part->layer == 0;
        if (is_weight && part->layer >= layers->count) layers->count = part->layer + 1;
    }
    if (layers->count == 0) layers->stacks = 0;
    ir_module_free(split);
    return AM_OK;
}

/* Finds attention in the module with separate layers, if it is a near miss in their loop. */
static AmStatus find_split_attention(Info *info, PlanContext *context, AmError *error) {
    PlanContext *split;
    AmError refusal = {0};
    bool is_missed = false;
    for (int32_t r = 0; r < context->attention->count; r++)
        is_missed |= context->attention->rows[r].reason != NULL;
    if (!is_missed || info->layers.count == 0) return AM_OK;
    AmStatus status = plan_context_rewrite(&split, context, (PlanRewrites){.splits_layers = true}, &refusal);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    TRY(am_pass_error(status, &refusal, error));
    TRY(plan_context_find_attention(split, error));
    if (ir_count_attention(split->attention) > 0) info->split = split;
    return AM_OK;
}

static void append_warnings(json_t *list, const AmWarnings *warnings) {
    for (int32_t k = 0; k < warnings->count; k++)
        json_array_append_new(list, plan_string_to_json(warnings->texts[k]));
}

static json_t *info_to_json(const Info *info, const PlanContext *context) {
    json_t *opcodes = json_object(), *phases = json_object(), *warnings = json_array();
    for (int32_t k = 0; k < info->opcode_count; k++)
        json_object_set_new(opcodes, info->opcodes[k].name, json_integer(info->opcodes[k].count));
    for (int32_t p = 0; p < PHASE_COUNT; p++)
        json_object_set_new(phases, ir_phase_name((IrPhase)p), json_integer(info->phases[p]));
    append_warnings(warnings, &context->module->warnings);
    append_warnings(warnings, &context->canonical->warnings);
    const IrWork *work = &info->cost_analysis;
    json_t *analysis = json_pack("{s:f, s:f, s:f}", "flops", work->flops, "transcendentals",
                                 work->transcendentals, "bytes_accessed", work->bytes);
    json_t *reason = info->layers.reason ? plan_string_to_json(info->layers.reason) : json_null();
    json_t *layers = json_pack("{s:i, s:i, s:o}", "count", info->layers.count, "stacked_parameters",
                               info->layers.stacks, "reason", reason);
    json_t *of_layers = info->split ? attention_to_json(info->split) : NULL;
    return json_pack("{s:s, s:o, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o*, s:f, s:f, s:o, s:i, s:o}",
                     "format", "automap-info-1", "name", plan_string_to_json(context->canonical->name),
                     "sha256", context->sha256, "instructions", context->canonical->instruction_count,
                     "opcodes", opcodes, "parameters", parameters_to_json(context), "outputs",
                     outputs_to_json(context), "phases", phases, "loops", loops_to_json(context->canonical),
                     "layers", layers, "attention", attention_to_json(context), "attention_in_split_layers",
                     of_layers, "flops", info->work.flops, "bytes", info->work.bytes, "cost_analysis",
                     analysis, "groups", info->groups->group_count, "warnings", warnings);
}

enum { MOST_LOOPS = 5 };

typedef struct LoopRow {
    const IrLoop *loop;
    double work; /* FLOPs and bytes of all trips; an unknown number of trips is one */
} LoopRow;

static int compare_loops(const void *left, const void *right) {
    const LoopRow *a = left, *b = right;
    if (a->work != b->work) return a->work > b->work ? -1 : 1;
    return (a->loop > b->loop) - (a->loop < b->loop);
}

static void append_loop(Text *rows, const IrModule *module, const IrLoop *loop) {
    const IrInstruction *instruction = &module->instructions[loop->instruction];
    text_append(rows, "%s\t", instruction->name);
    if (loop->trips < 0) text_append_string(rows, "unknown");
    else text_append(rows, "%lld", (long long)loop->trips);
    text_append(rows, "\t%s\t", *instruction->op_name ? instruction->op_name : "-");
    if (*instruction->source_file)
        text_append(rows, "%s:%d\n", instruction->source_file, (int)instruction->source_line);
    else text_append_string(rows, "-\n");
}

/* Prints the loops of most work, or all of them in the order of the module. */
static void print_loops(Text *text, const IrModule *module, bool is_verbose) {
    Arena scratch = {0};
    Text rows = {0};
    int32_t count = module->loops->loop_count;
    int32_t shown = is_verbose || count <= MOST_LOOPS ? count : MOST_LOOPS;
    LoopRow *loops = ARENA_ARRAY(&scratch, LoopRow, count + 1);
    if (count > 0 && loops) {
        for (int32_t k = 0; k < count; k++) { /* with the work of its body in all trips */
            const IrLoop *loop = &module->loops->loops[k];
            const IrInstruction *instruction = &module->instructions[loop->instruction];
            const IrWork *work = &module->called_work[instruction->called[0]].work;
            double trips = loop->trips < 0 ? 1 : (double)loop->trips;
            loops[k] = (LoopRow){loop, (work->flops + work->transcendentals + work->bytes) * trips};
        }
        if (shown < count) qsort(loops, (size_t)count, sizeof *loops, compare_loops);
        text_append_string(&rows, "loop\ttrips\top_name\tsource\n");
        for (int32_t k = 0; k < shown; k++) append_loop(&rows, module, loops[k].loop);
        text_append_table(text, rows.data);
        if (shown < count) text_append(text, "and %d more with less work (--verbose: all)\n", count - shown);
        text_append_string(text, "\n");
    }
    if (scratch.failed || rows.failed) text->failed = true;
    text_free(&rows);
    arena_free(&scratch);
}

static bool is_like(const IrModule *module, const IrAttention *a, const IrAttention *b) {
    return strcmp(attention_kind(a), attention_kind(b)) == 0 &&
           ir_shape_equal(&module->instructions[a->scores].shape, &module->instructions[b->scores].shape) &&
           strcmp(a->reason ? a->reason : "", b->reason ? b->reason : "") == 0;
}

/* Prints the attention operators that plans may fuse, and near misses with their reasons. `title`: of the
 * table. */
static void print_attention(Text *text, const PlanContext *context, const char *title) {
    const IrAttentions *found = context->attention;
    Text rows = {0};
    text_append(&rows, "%s\tnumber\tscores\tfirst\n", title);
    for (int32_t r = 0; r < found->count; r++) {
        const IrAttention *row = &found->rows[r];
        const IrInstruction *scores = plan_context_instruction(context, row->scores);
        int32_t first = 0, count = 0;
        while (!is_like(context->canonical, &found->rows[first], row)) first++;
        for (int32_t k = 0; first == r && k < found->count; k++)
            count += is_like(context->canonical, &found->rows[k], row);
        if (first < r) continue;
        text_append(&rows, "%s\t%d\t", attention_kind(row), count);
        ir_shape_append(&rows, &scores->shape);
        text_append(&rows, "\t%s%s%s\n", *scores->op_name ? scores->op_name : scores->name,
                    row->reason ? ": " : "", row->reason ? row->reason : "");
    }
    if (found->count > 0) {
        text_append_table(text, rows.data);
        text_append_string(text, "\n");
    }
    if (rows.failed) text->failed = true;
    text_free(&rows);
}

static void print_info(Text *text, const Info *info, const PlanContext *context, bool is_verbose) {
    text_append(text, "module        %s\nsha256        %s\ninstructions  %d\nFLOPs         ",
                context->canonical->name, context->sha256, context->canonical->instruction_count);
    text_append_count(text, info->work.flops);
    text_append_string(text, "\nbytes moved   ");
    text_append_bytes_size(text, info->work.bytes);
    text_append(text,
                "\ngroups        %d linkage groups of weights, for an axis of %d devices\nloss          ",
                info->groups->group_count, info->groups->axis_size);
    if (context->roles->loss < 0) text_append_string(text, "none");
    else text_append(text, "output %d of %d", context->roles->loss, context->roles->output_count);
    if (info->layers.count > 0)
        text_append(text, "\nlayers        %d, in %d stacked parameters; pipelines are cut between them",
                    info->layers.count, info->layers.stacks);
    else if (info->layers.reason)
        text_append(text, "\nlayers        stacked; pipelines are not cut between them: %s",
                    info->layers.reason);
    /* Parameters and the outputs that update them are paired so: "12 by data flow, 1 by order". */
    static const char *const ways[] = {"roles file", "data flow", "order", "alias"};
    const char *separator = "";
    text_append_string(text, "\npairs         ");
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        int32_t count = 0;
        for (int32_t p = 0; p < context->roles->parameter_count; p++)
            count += strcmp(context->roles->parameters[p].paired_by, ways[k]) == 0;
        if (count == 0) continue;
        text_append(text, "%s%d by %s", separator, count, ways[k]);
        separator = ", ";
    }
    text_append_string(text, *separator ? "\n\n" : "none\n\n");
    parameters_print(text, context, NULL, is_verbose);
    text_append_string(text, "\n");
    print_loops(text, context->canonical, is_verbose);
    print_attention(text, context, "attention");
    if (info->split) print_attention(text, info->split, "in split layers");
    Text rows = {0};
    text_append_string(&rows, "opcode\tall");
    for (int32_t p = 0; p < PHASE_COUNT; p++) text_append(&rows, "\t%s", ir_phase_name((IrPhase)p));
    text_append_string(&rows, "\n");
    for (int32_t k = 0; k < info->opcode_count; k++) {
        text_append(&rows, "%s\t%d", info->opcodes[k].name, info->opcodes[k].count);
        for (int32_t p = 0; p < PHASE_COUNT; p++) text_append(&rows, "\t%d", info->opcodes[k].phases[p]);
        text_append_string(&rows, "\n");
    }
    text_append_table(text, rows.data);
    text_free(&rows);
}

/* ------------------------------------------------ Modules that cannot be planned */

static json_t *unplanned_to_json(const IrModule *module) {
    json_t *list = json_array();
    const IrComputation *entry = &module->computations[module->entry];
    for (int32_t p = 0; p < entry->parameter_count; p++) {
        const IrInstruction *parameter = &module->instructions[entry->parameters[p]];
        Text shape = {0};
        ir_shape_append(&shape, &parameter->shape);
        json_array_append_new(list, json_pack("{s:i, s:o, s:s}", "number", p, "name",
                                              plan_string_to_json(parameter->name), "shape",
                                              shape.data ? shape.data : ""));
        text_free(&shape);
    }
    return json_pack("{s:s, s:o, s:i, s:o, s:o*, s:o*}", "format", "automap-info-1", "name",
                     plan_string_to_json(module->name), "instructions", module->instruction_count,
                     "parameters", list, "unbounded",
                     module->unbounded ? plan_string_to_json(module->unbounded) : NULL, "unplanned",
                     module->unplanned ? plan_string_to_json(module->unplanned->text) : NULL);
}

/* Prints instructions and parameters of a module that cannot be planned: it has neither work nor groups. */
static void print_unplanned(Text *text, const IrModule *module) {
    const IrComputation *entry = &module->computations[module->entry];
    text_append(text, "module        %s\ninstructions  %d\n", module->name, module->instruction_count);
    if (module->unbounded)
        text_append(text, "unbounded     instruction %s has a dimension of no size; no plan can be made\n",
                    module->unbounded);
    if (module->unplanned) text_append(text, "no plan       %s\n", module->unplanned->text);
    text_append_string(text, "\n");
    for (int32_t p = 0; p < entry->parameter_count; p++) {
        const IrInstruction *parameter = &module->instructions[entry->parameters[p]];
        text_append(text, "parameter %-3d %s ", p, parameter->name);
        ir_shape_append(text, &parameter->shape);
        text_append_string(text, "\n");
    }
}

/* Describes a module with operators that only XLA accepts, and sets *is_done. */
static AmStatus try_unplanned(Text *text, bool *is_done, const ReportCall *call, AmError *error) {
    IrModule *module;
    AmError again = {0};
    AmStatus status = ir_read(&module, call->files[0], &again);
    *is_done = status == AM_ERROR_INTERNAL; /* no memory */
    if (*is_done && error) *error = again;
    if (status != AM_OK) return status;
    *is_done = module->unbounded || module->unplanned;
    if (*is_done) {
        if (error) *error = (AmError){0};
        api_warn(call->callbacks, &module->warnings);
        if (call->format == AM_FORMAT_JSON)
            status = api_append_json(text, unplanned_to_json(module), JSON_STYLE_COMPACT, error);
        else print_unplanned(text, module);
    }
    ir_module_free(module);
    return status;
}

AmStatus report_info(Text *text, const ReportCall *call, AmError *error) {
    PlanContext *context = NULL;
    Arena arena = {0};
    Info info = {0};
    bool is_done = false;
    AmStatus status = plan_context_read(&context, call->files[0], option_text(call->options, "roles"), error);
    if (status == AM_ERROR_INPUT) {
        AmStatus described = try_unplanned(text, &is_done, call, error);
        if (is_done) return described;
    }
    if (status != AM_OK) return status;
    api_warn(call->callbacks, &context->canonical->warnings);
    TRY_OR_FAIL(plan_context_find_attention(context, error));
    TRY_OR_FAIL(gather(&info, &arena, context, error));
    TRY_OR_FAIL(find_layers(&info.layers, &arena, context, error));
    TRY_OR_FAIL(find_split_attention(&info, context, error));
    if (call->format == AM_FORMAT_JSON)
        status = api_append_json(text, info_to_json(&info, context), JSON_STYLE_COMPACT, error);
    else print_info(text, &info, context, option_has(call->options, "verbose"));
fail:
    arena_free(&arena);
    plan_context_free(context);
    return status;
}
