/* Long work with progress and cancellation. */
#ifndef API_WORK_H
#define API_WORK_H

#include <signal.h>

#include "api/handles.h"
#include "planners/problem/search_watch.h"

typedef struct ApiWork {
    AmCallbacks
        *callbacks;     /* a copy of api_copy_callbacks(), which may be called in any thread of the work */
    SearchWatch *watch; /* that the work writes to; or NULL */
    volatile sig_atomic_t stop; /* the caller asked to stop */
    AmStatus (*run)(struct ApiWork *work, AmError *error);
    void *user;
} ApiWork;

/* Returns the flag that stops the work: the caller's, or `stop` where callbacks are called. */
const volatile sig_atomic_t *api_work_flag(const ApiWork *work);

/* Runs the work with numbers in the format of the C locale. With on_progress the work runs in a thread of its
 * own, and the caller's thread calls all functions but on_episode: meanwhile `callbacks` has functions that
 * queue the reports of the work. The cache of arenas is empty afterwards. AM_ERROR_INTERNAL: no memory, also
 * for a report. `limit`: evaluations that the user permits, 0: none. */
AmStatus api_work_run(ApiWork *work, int64_t limit, AmError *error);

#endif
