/* Runs long work in a second thread, so that callbacks are called in the caller's thread at even
 * intervals, whatever the work does. Signals are left to the caller's thread. */
#define _POSIX_C_SOURCE 200809L
#include "api/work.h"

#include <math.h>
#include <time.h>

#include "base/system/clock.h"
#include "base/system/stop.h"

/* The caller's flag is read four times as often as progress is reported. */
static const long PERIOD_NANOSECONDS = 50000000;
enum { PERIODS_PER_REPORT = 4 };

typedef struct Worker {
    ApiWork *work;
    AmError *error;
    AmStatus status;
    bool is_over;
    pthread_mutex_t mutex;
    pthread_cond_t over;
} Worker;

const volatile sig_atomic_t *api_work_flag(const ApiWork *work) {
    return work->callbacks->on_progress ? &work->stop : work->callbacks->cancel;
}

static void *run_in_thread(void *user) {
    Worker *self = user;
    AmStatus status;
    API_IN_C_LOCALE(status, self->work->run(self->work, self->error), self->error);
    pthread_mutex_lock(&self->mutex);
    self->status = status;
    self->is_over = true;
    pthread_cond_signal(&self->over);
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* Reports the progress; the flag is set if the caller's function cancels. */
static void report(ApiWork *work, double started, bool is_last) {
    SearchProgress now = search_watch_read(work->watch);
    const AmProgress progress = {.size = sizeof progress,
                                 .is_last = is_last,
                                 .elapsed_seconds = clock_seconds() - started,
                                 .phase = search_phase_name(now.phase),
                                 .evaluations = now.evaluations,
                                 .limit = now.limit,
                                 .best_seconds = now.best_seconds,
                                 .bound_seconds = now.bound_seconds,
                                 .seconds_left = now.seconds_left};
    const AmCallbacks *callbacks = work->callbacks;
    if (callbacks->on_progress(callbacks->user, &progress) != 0) stop_flag_set(&work->stop);
}

/* Reports until the work is over; callbacks are called without the mutex. */
static void wait_and_report(Worker *self, double started) {
    ApiWork *work = self->work;
    pthread_mutex_lock(&self->mutex);
    for (int32_t period = 1; !self->is_over; period++) {
        struct timespec next;
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_nsec += PERIOD_NANOSECONDS;
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        int waited = 0;
        while (waited == 0 && !self->is_over)
            waited = pthread_cond_timedwait(&self->over, &self->mutex, &next);
        pthread_mutex_unlock(&self->mutex);
        if (stop_flag_is_set(work->callbacks->cancel)) stop_flag_set(&work->stop);
        if (waited != 0 && period % PERIODS_PER_REPORT == 0) report(work, started, false);
        pthread_mutex_lock(&self->mutex);
    }
    pthread_mutex_unlock(&self->mutex);
}

static AmStatus run_with_reports(ApiWork *work, AmError *error) {
    Worker self = {.work = work, .error = error};
    sigset_t all, before;
    pthread_t thread;
    double started = clock_seconds();
    pthread_mutex_init(&self.mutex, NULL);
    pthread_cond_init(&self.over, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool has_started = pthread_create(&thread, NULL, run_in_thread, &self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (has_started) {
        wait_and_report(&self, started);
        pthread_join(thread, NULL);
    } else {
        run_in_thread(&self);
    }
    report(work, started, true);
    pthread_cond_destroy(&self.over);
    pthread_mutex_destroy(&self.mutex);
    return self.status;
}

AmStatus api_work_run(ApiWork *work, int64_t limit, AmError *error) {
    AmStatus status;
    work->stop = 0;
    work->watch = NULL;
    if (!work->callbacks->on_progress) {
        API_IN_C_LOCALE(status, work->run(work, error), error);
        return status;
    }
    work->watch = search_watch_create(limit);
    if (!work->watch) return am_fail_memory(error, 0);
    status = run_with_reports(work, error);
    search_watch_free(work->watch);
    work->watch = NULL;
    return status;
}
