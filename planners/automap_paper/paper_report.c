/* The result of a search in Auto-MAP's own mode (`search --objective paper`), as JSON and as text. */
#include <math.h>

#include "planners/automap_paper/paper_search.h"

static json_t *text_or_null(const char *text) {
    json_t *value = text ? json_string(text) : NULL;
    return value ? value : json_null();
}

static json_t *partition_to_json(const PaperPartitionReport *report, const PlanContext *context) {
    json_t *members = json_array();
    for (int32_t k = 0; k < report->partitioned; k++) {
        const LinkageMember *member = &report->dimensions[k];
        const char *path = context->roles->parameters[member->parameter].path;
        json_array_append_new(members, json_pack("[o, i]", text_or_null(path), member->dimension));
    }
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:b, s:o}", "axis_size", report->axis_size,
                     "variables", report->variable_count, "dimensions", report->dimension_count, "decisions",
                     report->decision_count, "partitioned", report->partitioned, "replicated",
                     report->replicated, "reward", report->reward, "maximum", report->maximum,
                     "maximum_is_exact", report->is_exact, "partition", members);
}

static json_t *pipeline_to_json(const PaperPipelineReport *report) {
    json_t *cuts = json_array();
    for (int32_t k = 0; k < report->cut_count; k++) {
        const PaperCutReport *cut = &report->cuts[k];
        json_array_append_new(
            cuts, json_pack("{s:i, s:i, s:f, s:f, s:o, s:o, s:o, s:o}", "instruction", cut->instruction,
                            "device", cut->device, "part", cut->part, "crossing_bytes", cut->crossing, "name",
                            text_or_null(cut->name), "op_name", text_or_null(cut->op_name), "before",
                            text_or_null(cut->before), "behind", text_or_null(cut->after)));
    }
    bool is_known = isfinite(report->shortest_seconds);
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:o, s:o}", "micro_batches", report->micro_batches, "storage",
                     report->storage, "pivots", report->candidate_count, "pivots_near_boundaries",
                     report->pivot_count, "pipeline_seconds", report->seconds, "shortest_seconds",
                     is_known ? json_real(report->shortest_seconds) : json_null(), "cuts", cuts);
}

json_t *paper_report_to_json(const PaperReport *report, const PlanContext *context) {
    const PaperLearning *learning = &report->learning;
    json_t *learned =
        json_pack("{s:I, s:I, s:I, s:f, s:f, s:s, s:f}", "episodes", (json_int_t)learning->episodes, "steps",
                  (json_int_t)learning->steps, "failures", (json_int_t)report->failures, "best_reward",
                  learning->best, "seconds", learning->seconds, "end", paper_end_name(learning->end),
                  "pricing_seconds", report->pricing_seconds);
    json_t *object = json_pack("{s:s, s:o}", "space", plan_space_name(report->space), "learning", learned);
    json_t *found = report->space == SPACE_PIPELINE ? pipeline_to_json(&report->pipeline)
                                                    : partition_to_json(&report->partition, context);
    if (object && found) json_object_update(object, found);
    json_decref(found);
    return object;
}

static void print_pipeline(Text *text, const PaperPipelineReport *report) {
    text_append(text, "paper   device cuts (");
    for (int32_t k = 0; k < report->cut_count; k++)
        text_append(text, "%s%d", k ? ", " : "", report->cuts[k].device);
    text_append(text, "), %d micro-batches, pipeline length ", report->micro_batches);
    text_append_seconds(text, report->seconds);
    if (isfinite(report->shortest_seconds))
        text_append(text, " (%.2f %% over the shortest, found without the search)",
                    100 * (report->seconds / report->shortest_seconds - 1));
    text_append_string(text, report->storage > 0 ? ", gradients and state in shards\n" : "\n");
    for (int32_t k = 0; k < report->cut_count; k++) {
        const PaperCutReport *cut = &report->cuts[k];
        text_append(text, "cut %-3d before %s, after %.1f %% of the arithmetic, ", k + 1, cut->name,
                    100 * cut->part);
        text_append_bytes_size(text, cut->crossing);
        text_append(text, " cross it, between %s and %s\n", cut->before ? cut->before : "the inputs",
                    cut->after ? cut->after : "the loss");
    }
    text_append(text, "pivots  %d of %d are near a server's boundary\n", report->pivot_count,
                report->candidate_count);
}

void paper_report_print(Text *text, const PaperReport *report) {
    const PaperLearning *learning = &report->learning;
    if (report->space == SPACE_PIPELINE) print_pipeline(text, &report->pipeline);
    else {
        const char *what = report->space == SPACE_DATA ? "data inputs" : "weights";
        text_append(text, "paper   %d of %d dimensions of %d %s partitioned over %d devices, reward %.1f\n",
                    report->partition.partitioned, report->partition.dimension_count,
                    report->partition.variable_count, what, report->partition.axis_size,
                    report->partition.reward);
        text_append(text, "maximum %s%d, found without the search\n",
                    report->partition.is_exact ? "" : "at least ", report->partition.maximum);
    }
    text_append(text, "dqn     %lld episodes, %lld steps, %lld %s, in ", (long long)learning->episodes,
                (long long)learning->steps, (long long)report->failures,
                report->space == SPACE_PIPELINE ? "out of memory" : "conflicts");
    text_append_seconds(text, learning->seconds);
    text_append(text, " (%s), priced in ", paper_end_name(learning->end));
    text_append_seconds(text, report->pricing_seconds);
    text_append_string(text, "\n");
}
