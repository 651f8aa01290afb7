/* Runs long work in a second thread, so that the caller's thread can report progress at even intervals.
 *
 * The work puts its messages and its infeasible plan into a queue, which the caller's thread delivers in
 * order. on_episode alone is called in the thread of the work. Signals are left to the caller's thread. */
#define _POSIX_C_SOURCE 200809L
#include "api/work.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/system/clock.h"
#include "base/system/stop.h"

/* The caller's flag is read four times as often as progress is reported. */
static const long PERIOD_NANOSECONDS = 50000000;
enum { PERIODS_PER_REPORT = 4 };

/* A message or an infeasible plan that waits for the caller's thread. */
typedef struct Report {
    struct Report *next;
    bool is_message;
    AmMessage kind;
    char text[];
} Report;

typedef struct Worker {
    ApiWork *work;
    AmError *error;
    AmStatus status;
    AmCallbacks caller; /* as the caller gave them */
    pthread_mutex_t mutex;
    pthread_cond_t over;
    /* guarded by the mutex */
    bool is_over, has_lost; /* has_lost: no memory for a report */
    Report *first, **end;   /* in the order of the work; `end` is where the next one is linked */
} Worker;

const volatile sig_atomic_t *api_work_flag(const ApiWork *work) {
    return work->callbacks->on_progress ? &work->stop : work->callbacks->cancel;
}

/* ---- reports of the work ---- */

static void queue(Worker *self, bool is_message, AmMessage kind, const char *text) {
    size_t bytes = strlen(text) + 1;
    Report *report = malloc(sizeof *report + bytes);
    if (report) {
        *report = (Report){.is_message = is_message, .kind = kind};
        memcpy(report->text, text, bytes);
    }
    pthread_mutex_lock(&self->mutex);
    if (report) {
        *self->end = report;
        self->end = &report->next;
    } else {
        self->has_lost = true;
    }
    pthread_mutex_unlock(&self->mutex);
}

static void queue_message(void *user, AmMessage kind, const char *text) {
    queue(user, true, kind, text);
}

static void queue_infeasible(void *user, const char *json) {
    queue(user, false, AM_NOTE, json);
}

static void pass_episode(void *user, const char *json) {
    const Worker *self = user;
    self->caller.on_episode(self->caller.user, json);
}

/* Calls the caller's functions with the reports so far, without the mutex. */
static void deliver(Worker *self) {
    const AmCallbacks *caller = &self->caller;
    pthread_mutex_lock(&self->mutex);
    Report *report = self->first;
    self->first = NULL;
    self->end = &self->first;
    pthread_mutex_unlock(&self->mutex);
    while (report) {
        Report *next = report->next;
        if (report->is_message) caller->on_message(caller->user, report->kind, report->text);
        else caller->on_infeasible(caller->user, report->text);
        free(report);
        report = next;
    }
}

/* ---- the threads ---- */

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
static void report(Worker *self, double started, bool is_last) {
    ApiWork *work = self->work;
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
    if (self->caller.on_progress(self->caller.user, &progress) != 0) stop_flag_set(&work->stop);
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
        deliver(self);
        if (waited != 0 && period % PERIODS_PER_REPORT == 0) report(self, started, false);
        pthread_mutex_lock(&self->mutex);
    }
    pthread_mutex_unlock(&self->mutex);
}

static AmStatus run_with_reports(ApiWork *work, AmError *error) {
    Worker self = {.work = work, .error = error, .caller = *work->callbacks};
    sigset_t all, before;
    pthread_t thread;
    double started = clock_seconds();
    self.end = &self.first;
    work->callbacks->user = &self;
    if (self.caller.on_message) work->callbacks->on_message = queue_message;
    if (self.caller.on_infeasible) work->callbacks->on_infeasible = queue_infeasible;
    if (self.caller.on_episode) work->callbacks->on_episode = pass_episode;
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
    deliver(&self);
    report(&self, started, true);
    *work->callbacks = self.caller;
    pthread_cond_destroy(&self.over);
    pthread_mutex_destroy(&self.mutex);
    return self.has_lost && self.status == AM_OK ? am_fail_memory(error, 0) : self.status;
}

/* Runs the work in the caller's thread, or with reports in a thread of its own. */
static AmStatus run_watched(ApiWork *work, int64_t limit, AmError *error) {
    AmStatus status;
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

AmStatus api_work_run(ApiWork *work, int64_t limit, AmError *error) {
    work->stop = 0;
    work->watch = NULL;
    AmStatus status = run_watched(work, limit, error);
    arena_free_cache(); /* large after long work */
    return status;
}
