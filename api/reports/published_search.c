/* The plan that automap would choose for a row of published.
 *
 * A row is searched as `search` does: over all spaces and numbers of micro-batches, by annealing, without a
 * bound. The row's module and cluster are those of its prediction. Rows that have both in common, as
 * strategies of one table do, have the plan of the first. A row without a plan has the reason, and does not
 * end the command.
 */
#include <math.h>
#include <string.h>

#include "api/reports/published_rows.h"
#include "base/text.h"
#include "planners/plan_search.h"

static AmStatus search_row(PublishedRow *row, Arena *arena, const PublishedSearch *settings, AmError *error) {
    const SearchRequest request = {.constraints.memory_fraction = settings->memory_fraction};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_AUTO,
                               .searcher = SEARCHER_ANNEAL,
                               .limits.evaluations = search_default_evaluations(SEARCHER_ANNEAL),
                               .limits.is_default = true,
                               .limits.seconds = settings->seconds,
                               .skip_bound = true};
    SearchResult result = {0};
    PlanContext *primary = NULL;
    Cluster *cluster = NULL;
    Text text = {0};
    AmStatus status = published_open(&primary, &cluster, arena, row, error);
    if (status == AM_OK) status = plan_search(&result, arena, primary, cluster, &scope, error);
    if (status == AM_OK && result.plan) {
        /* "2 stages, data=4 model=2; 8 micro-batches" */
        text_append(&text, "%d %s, ", (int)result.plan->stage_count,
                    result.plan->stage_count == 1 ? "stage" : "stages");
        mesh_append(&text, &result.plan->stages[0].mesh, " ");
        text_append(&text, "; %d micro-batches", (int)result.plan->micro_batches);
        if (result.plan->stage_count > 1) text_append(&text, ", %s", result.plan->schedule);
        row->search.seconds = result.plan->predicted_step_seconds;
        row->search.plan = arena_copy_bytes(settings->arena, text.data, text.length);
        if (!row->search.plan) status = am_fail_memory(error, (int64_t)text.length);
    }
    text_free(&text);
    cluster_free(cluster);
    plan_context_free(primary);
    return status;
}

/* Returns the first row of the same model and cluster: k itself, or one before it. */
static int32_t find_searched(const PublishedRow *rows, int32_t k) {
    int32_t first = 0;
    while (first < k && !published_is_same_problem(rows[first].run, rows[k].run)) first++;
    return first;
}

AmStatus published_search(PublishedRow *rows, int32_t count, const PublishedSearch *settings,
                          AmError *error) {
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < count && status == AM_OK; k++) {
        Arena arena = {0};
        AmError own = {0};
        int32_t searched = find_searched(rows, k);
        rows[k].search = searched < k ? rows[searched].search : (PublishedChoice){.seconds = NAN};
        if (searched == k) status = search_row(&rows[k], &arena, settings, &own);
        bool is_rows = status == AM_ERROR_INPUT || status == AM_ERROR_INFEASIBLE;
        if (is_rows) {
            rows[k].search.error = arena_copy_bytes(settings->arena, own.text, strlen(own.text));
            status = AM_OK;
        } else if (status != AM_OK && error) {
            *error = own;
        }
        arena_free(&arena);
        search_watch_count(settings->watch, 1, NAN);
    }
    return status;
}
