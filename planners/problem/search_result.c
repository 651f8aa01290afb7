/* The best candidate of a result, and the order of the prices of a baseline. */
#include "planners/problem/search_result.h"

#include <math.h>

bool baseline_is_faster(double seconds, const BaselineResult *best) {
    return seconds < best->seconds || (isnan(best->seconds) && !isnan(seconds));
}

bool baseline_lacks_less(const BaselineResult *baseline, const BaselineResult *other) {
    int64_t needed = baseline->needed_bytes;
    return needed > 0 && (other->needed_bytes == 0 || needed < other->needed_bytes);
}

void search_result_choose(SearchResult *result) {
    const PlanCandidate *nearest = pool_nearest(&result->pool);
    result->plan = pool_best(&result->pool);
    result->nearest = nearest ? nearest->plan : NULL;
    if (nearest) result->nearest_fit = nearest->fit;
}
