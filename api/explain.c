/* am_explain() and am_explanation_print(): the reasons for a plan's decisions, as text, JSON or HTML.
 *
 * The first call computes an explanation, which takes many simulations; the second prints it in any form.
 * The page of HTML has the date of SOURCE_DATE_EPOCH, if that is set, so that builds can repeat it.
 */
#include <stdlib.h>
#include <time.h>

#include "api/options.h"
#include "api/work.h"

typedef struct ExplainJob {
    AmExplanation *explanation;
    const AmOptions *options;
} ExplainJob;

static AmStatus run_explain(ApiWork *work, AmError *error) {
    ExplainJob *job = work->user;
    AmExplanation *self = job->explanation;
    const AmPlan *plan = self->plan;
    const StopSignal stop = {.interrupted = api_work_flag(work)};
    ExplainOptions settings = {.with_timeline = option_has(job->options, "timeline"),
                               .watch = work->watch,
                               .stop = stop.interrupted ? &stop : NULL};
    json_t *document = plan->root;
    const char *command = option_text(job->options, "command");
    if (command) self->command = arena_copy_string(&self->arena, command);
    option_integer(job->options, "evaluations", &settings.simulations);
    if (plan->is_searched) TRY(api_plan_document(&document, plan, error));
    TRY(cluster_from_json(&self->cluster, &self->arena, plan->plan->cluster_description,
                          plan->plan->source ? plan->plan->source : "the plan", error));
    TRY(explain_plan(&self->explanation, &self->arena, plan->primary, plan->plan, document, self->cluster,
                     &settings, error));
    self->title =
        arena_format(&self->arena, "%s on cluster %s", plan->plan->module_name, plan->plan->cluster_name);
    return self->title ? AM_OK : am_fail_memory(error, 0);
}

AmStatus am_explain(AmExplanation **explanation, const AmPlan *plan, const AmOptions *options,
                    const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    api_begin(error);
    TRY(api_require(explanation, "explanation", error));
    *explanation = NULL;
    TRY(api_require(plan, "plan", error));
    TRY(api_check_options(options, AM_COMMAND_EXPLAIN, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    AmExplanation *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->plan = plan;
    ExplainJob job = {self, options};
    ApiWork work = {.callbacks = &own, .run = run_explain, .user = &job};
    AmStatus status = api_work_run(&work, 0, error);
    if (status == AM_INTERRUPTED) am_fail(error, AM_INTERRUPTED, "", "interrupted");
    if (status == AM_OK) api_note_carried(&own, plan);
    if (status == AM_OK) *explanation = self;
    else am_explanation_free(self);
    return status;
}

void am_explanation_free(AmExplanation *explanation) {
    if (!explanation) return;
    cluster_free(explanation->cluster);
    arena_free(&explanation->arena);
    free(explanation);
}

static AmStatus append_explanation(Text *text, const AmExplanation *self, AmFormat format, AmError *error) {
    const PlanContext *context = plan_context_used(self->plan->plan, self->plan->primary);
    if (format ==
        AM_FORMAT_HTML) { /* dated in UTC: today, or that of SOURCE_DATE_EPOCH (seconds since 1970) */
        char date[32];
        const char *epoch = getenv("SOURCE_DATE_EPOCH");
        time_t now = epoch && *epoch ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
        struct tm parts;
        if (!gmtime_r(&now, &parts) || strftime(date, sizeof date, "%Y-%m-%d", &parts) == 0) date[0] = '\0';
        const ExplainPage page = {.title = self->title,
                                  .date = date,
                                  .command = self->command,
                                  .plan = self->plan->plan,
                                  .context = context};
        return explanation_print_html(text, self->explanation, &page, error);
    }
    if (format == AM_FORMAT_JSON) {
        json_t *json = explanation_to_json(self->explanation, context->classes);
        json_t *carried = api_carried_to_json(self->plan);
        if (carried) json_object_set_new(json, "carried", carried);
        return api_append_json(text, json, JSON_STYLE_COMPACT, error);
    }
    text_append(text, "%s\n", self->title);
    explanation_print(text, self->explanation);
    return AM_OK;
}

AmStatus am_explanation_print(const AmExplanation *explanation, AmFormat format, char **text, size_t *bytes,
                              AmError *error) {
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(explanation, "explanation", error));
    TRY(api_check_format(format, true, error));
    AmStatus status;
    Text all = {.is_styled = format == AM_FORMAT_TERMINAL};
    API_IN_C_LOCALE(status, append_explanation(&all, explanation, format, error), error);
    return api_end_text(status, text, bytes, &all, error);
}
