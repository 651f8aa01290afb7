/* A SearchProgress that a mutex guards: meshes of a search are priced in several threads. */
#include "planners/problem/search_watch.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/system/clock.h"

struct SearchWatch {
    pthread_mutex_t mutex;
    SearchProgress progress;
    bool is_limited; /* by the user */
    int64_t first;   /* evaluations when the limit was set */
    double since;    /* clock_seconds() then */
};

const char *search_phase_name(SearchPhase phase) {
    static const char *const names[SEARCH_PHASE_COUNT] = {"start",     "baselines",    "tables",
                                                          "pipelines", "single stage", "overrides",
                                                          "changes",   "bound",        "measuring"};
    return names[phase];
}

SearchWatch *search_watch_create(int64_t limit) {
    SearchWatch *watch = calloc(1, sizeof *watch);
    if (!watch) return NULL;
    if (pthread_mutex_init(&watch->mutex, NULL) != 0) {
        free(watch);
        return NULL;
    }
    watch->is_limited = limit > 0;
    watch->since = clock_seconds();
    watch->progress = (SearchProgress){.limit = limit, .best_seconds = NAN, .bound_seconds = NAN};
    return watch;
}

void search_watch_free(SearchWatch *watch) {
    if (!watch) return;
    pthread_mutex_destroy(&watch->mutex);
    free(watch);
}

SearchProgress search_watch_read(SearchWatch *watch) {
    pthread_mutex_lock(&watch->mutex);
    SearchProgress progress = watch->progress;
    double done = (double)(progress.evaluations - watch->first), elapsed = clock_seconds() - watch->since;
    pthread_mutex_unlock(&watch->mutex);
    double left = (double)(progress.limit - progress.evaluations);
    progress.seconds_left = progress.limit > 0 && done > 0 && left >= 0 ? elapsed / done * left : NAN;
    return progress;
}

void search_watch_phase(SearchWatch *watch, SearchPhase phase) {
    if (!watch) return;
    pthread_mutex_lock(&watch->mutex);
    watch->progress.phase = phase;
    pthread_mutex_unlock(&watch->mutex);
}

void search_watch_count(SearchWatch *watch, int64_t evaluations, double seconds) {
    if (!watch) return;
    pthread_mutex_lock(&watch->mutex);
    watch->progress.evaluations += evaluations;
    if (!isnan(seconds) && !(seconds >= watch->progress.best_seconds)) watch->progress.best_seconds = seconds;
    pthread_mutex_unlock(&watch->mutex);
}

void search_watch_expect(SearchWatch *watch, int64_t evaluations) {
    if (!watch) return;
    pthread_mutex_lock(&watch->mutex);
    if (!watch->is_limited) {
        watch->first = watch->progress.evaluations;
        watch->since = clock_seconds();
        watch->progress.limit = watch->first + evaluations;
    }
    pthread_mutex_unlock(&watch->mutex);
}

void search_watch_bound(SearchWatch *watch, double seconds) {
    if (!watch) return;
    pthread_mutex_lock(&watch->mutex);
    watch->progress.bound_seconds = seconds;
    pthread_mutex_unlock(&watch->mutex);
}
