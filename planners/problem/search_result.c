/* The best candidate of a result, the merge of two results, and the order of the prices of a baseline. */
#include "planners/problem/search_result.h"

#include <math.h>

bool baseline_is_faster(double seconds, const BaselineResult *best) {
    return seconds < best->seconds || (isnan(best->seconds) && !isnan(seconds));
}

bool baseline_lacks_less(const BaselineResult *baseline, const BaselineResult *other) {
    int64_t needed = baseline->needed_bytes;
    return needed > 0 && (other->needed_bytes == 0 || needed < other->needed_bytes);
}

void search_result_clear(SearchResult *result) {
    *result = (SearchResult){.model_gap = NAN};
}

void search_result_choose(SearchResult *result) {
    const PlanCandidate *nearest = pool_nearest(&result->pool);
    result->plan = pool_best(&result->pool);
    result->nearest = nearest ? nearest->plan : NULL;
    if (nearest) result->nearest_fit = nearest->fit;
}

void search_result_add(SearchResult *result, Plan *plan, PlanOrigin origin, const char *note) {
    const MemoryFit fits = {.fits = true};
    pool_add(&result->pool, plan, &fits, origin, note);
    search_result_choose(result);
}

static bool has_baselines(const SearchResult *result) {
    return result->baselines[0].seconds != 0 || result->baselines[0].reason;
}

void search_result_add_form(SearchResult *result, const SearchResult *other) {
    for (int32_t e = 0; e < BASELINE_COUNT && has_baselines(other); e++) {
        const BaselineResult *old = &result->baselines[e], *now = &other->baselines[e];
        bool lacks_less = isnan(old->seconds) && baseline_lacks_less(now, old);
        if (has_baselines(result) && !baseline_is_faster(now->seconds, old) && !lacks_less) continue;
        result->baselines[e] = *now;
        result->baselines[e].is_of_other_form = true;
    }
}

void search_result_merge(SearchResult *result, const SearchResult *found) {
    const SearchResult kept = *result;
    if (candidate_is_better(&found->pool.best, &kept.pool.best)) *result = *found;
    result->pool = kept.pool;
    pool_merge(&result->pool, &found->pool);
    search_result_choose(result);
    result->evaluations = kept.evaluations + found->evaluations;
    result->search_seconds = kept.search_seconds + found->search_seconds;
    result->interrupted = kept.interrupted || found->interrupted;
    result->is_cut = kept.is_cut || found->is_cut;
    result->has_baselines = kept.has_baselines || found->has_baselines;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *old = &kept.baselines[e], *now = &found->baselines[e];
        bool is_faster = baseline_is_faster(now->seconds, old);
        bool is_reason = isnan(old->seconds) && isnan(now->seconds) && now->reason;
        bool is_new = !has_baselines(&kept) || is_faster || is_reason;
        result->baselines[e] = has_baselines(found) && is_new ? *now : *old;
        bool has_estimate = found->estimates[e].micro_batches > 0;
        result->estimates[e] = has_estimate ? found->estimates[e] : kept.estimates[e];
    }
}
