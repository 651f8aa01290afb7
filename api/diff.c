/* am_diff(): the differences of two plans of one module.
 *
 * Each side is a plan with its document (the JSON of its file) and the cluster that this document describes.
 * The planners compare both sides (planners/explain), and the result is text or JSON.
 */

#include "api/handles.h"
#include "planners/explain/plan_difference.h"

/* Opens one of the two plans, with its cluster and its document. */
static AmStatus open_side(DifferenceSide *side, Cluster **cluster, Arena *arena, const AmPlan *plan,
                          const char *name, AmError *error) {
    const char *source = plan->plan->source ? plan->plan->source : name;
    side->name = source;
    side->plan = plan->plan;
    side->primary = plan->primary;
    TRY(api_plan_document(&side->document, plan, error));
    TRY(cluster_from_json(cluster, arena, plan->plan->cluster_description, source, error));
    side->cluster = *cluster;
    return AM_OK;
}

static AmStatus append(Text *text, const PlanDifference *difference, AmFormat format, AmError *error) {
    if (format != AM_FORMAT_JSON) {
        plan_difference_print(text, difference);
        return AM_OK;
    }
    return api_append_json(text, plan_difference_to_json(difference), JSON_STYLE_COMPACT, error);
}

static AmStatus append_difference(Text *text, const AmPlan *first, const AmPlan *second, AmFormat format,
                                  const StopSignal *stop, AmError *error) {
    DifferenceSide sides[2] = {0};
    Cluster *clusters[2] = {NULL, NULL};
    Arena arena = {0};
    PlanDifference *difference;
    AmStatus status = open_side(&sides[0], &clusters[0], &arena, first, "the first plan", error);
    if (status == AM_OK)
        status = open_side(&sides[1], &clusters[1], &arena, second, "the second plan", error);
    if (status == AM_OK) status = plan_difference(&difference, &arena, sides, stop, error);
    if (status == AM_OK) status = append(text, difference, format, error);
    cluster_free(clusters[0]);
    cluster_free(clusters[1]);
    arena_free(&arena);
    return status;
}

AmStatus am_diff(const AmPlan *first, const AmPlan *second, AmFormat format, const AmCallbacks *callbacks,
                 char **text, size_t *bytes, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    Text all = {.is_styled = format == AM_FORMAT_TERMINAL};
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(first, "first", error));
    TRY(api_require(second, "second", error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    TRY(api_check_format(format, false, error));
    if (first->module != second->module)
        return am_fail(error, AM_ERROR_USAGE, "", "the plans are of different AmModule handles");
    const StopSignal stop = {.interrupted = own.cancel};
    API_IN_C_LOCALE(status, append_difference(&all, first, second, format, own.cancel ? &stop : NULL, error),
                    error);
    return api_end_text(status, text, bytes, &all, error);
}
