/* The state of a search, for an observer in another thread.
 *
 * The searchers write through the functions below, which all accept NULL; the observer polls
 * search_watch_read(). A search does not depend on the watch.
 */
#ifndef PLANNERS_PROBLEM_SEARCH_WATCH_H
#define PLANNERS_PROBLEM_SEARCH_WATCH_H

#include <stdint.h>

typedef enum SearchPhase {
    SEARCH_PHASE_START,
    SEARCH_PHASE_BASELINES,
    SEARCH_PHASE_TABLES,
    SEARCH_PHASE_PIPELINES,
    SEARCH_PHASE_SINGLE_STAGE,
    SEARCH_PHASE_OVERRIDES,
    SEARCH_PHASE_CHANGES,
    SEARCH_PHASE_BOUND,
    SEARCH_PHASE_MEASURING,
    SEARCH_PHASE_COUNT
} SearchPhase;
const char *search_phase_name(SearchPhase phase); /* "baselines", "single stage" */

typedef struct SearchProgress {
    SearchPhase phase;
    int64_t evaluations;  /* priced plans and tables so far */
    int64_t limit;        /* expected number of evaluations, 0: unknown */
    double best_seconds;  /* step time of the best plan that fits; NAN: none yet */
    double bound_seconds; /* lower bound of the step time; NAN: unknown */
    double seconds_left;  /* to the limit, at the rate since it was set; NAN: unknown */
} SearchProgress;

typedef struct SearchWatch SearchWatch;

/* Creates a watch. `limit`: evaluations that the user permits, 0: none. NULL where memory ran out. */
SearchWatch *search_watch_create(int64_t limit);
void search_watch_free(SearchWatch *watch);
SearchProgress search_watch_read(SearchWatch *watch);

void search_watch_phase(SearchWatch *watch, SearchPhase phase);
/* Adds evaluations; `seconds`: step time of a plan that fits, or NAN. */
void search_watch_count(SearchWatch *watch, int64_t evaluations, double seconds);
/* Expects so many more evaluations, where the user has set no limit. */
void search_watch_expect(SearchWatch *watch, int64_t evaluations);
void search_watch_bound(SearchWatch *watch, double seconds);

#endif
