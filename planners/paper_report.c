/* What a search in Auto-MAP's own mode found, as JSON and as text; see paper_search.h. */
#include <math.h>

#include "planners/paper_search.h"

static const char *path_of(const PlanContext *context, LinkageMember member) {
    return context->roles->parameters[member.parameter].path;
}

static json_t *learning_to_json(const PaperReport *report) {
    const PaperLearning *learning = &report->learning;
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:s, s:f}", "episodes", (json_int_t)learning->episodes,
                     "steps", (json_int_t)learning->steps, "failures", (json_int_t)report->failures,
                     "best_reward", learning->best, "seconds", learning->seconds, "end",
                     paper_end_name(learning->end), "pricing_seconds", report->pricing_seconds);
}

json_t *paper_report_to_json(const PaperReport *report, const PlanContext *context) {
    json_t *object = json_pack("{s:s, s:o}", "space", plan_space_name(report->space), "learning",
                               learning_to_json(report));
    if (!object) return NULL;
    json_t *members = json_array();
    for (int32_t k = 0; k < report->partitioned; k++) {
        const char *path = path_of(context, report->dimensions[k]);
        json_t *text = json_string(path);
        json_array_append_new(
            members, json_pack("[o, i]", text ? text : json_string(""), report->dimensions[k].dimension));
    }
    json_t *counts = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:b, s:o}", "axis_size", report->axis_size, "variables",
        report->variable_count, "dimensions", report->dimension_count, "decisions", report->decision_count,
        "partitioned", report->partitioned, "replicated", report->replicated, "reward", report->reward,
        "maximum", report->maximum, "maximum_is_exact", report->is_exact, "partition", members);
    if (counts) json_object_update(object, counts);
    json_decref(counts);
    return object;
}

void paper_report_print(Text *text, const PaperReport *report, const PlanContext *context) {
    (void)context;
    const PaperLearning *learning = &report->learning;
    const char *what = report->space == SPACE_DATA ? "data inputs" : "weights";
    text_append(text, "paper   %d of %d dimensions of %d %s partitioned over %d devices, reward %.1f\n",
                report->partitioned, report->dimension_count, report->variable_count, what, report->axis_size,
                report->reward);
    text_append(text, "maximum %s%d, found without the search\n", report->is_exact ? "" : "at least ",
                report->maximum);
    text_append(text, "dqn     %lld episodes, %lld steps, %lld conflicts, in ", (long long)learning->episodes,
                (long long)learning->steps, (long long)report->failures);
    text_append_seconds(text, learning->seconds);
    text_append(text, " (%s), priced in ", paper_end_name(learning->end));
    text_append_seconds(text, report->pricing_seconds);
    text_append_string(text, "\n");
}
