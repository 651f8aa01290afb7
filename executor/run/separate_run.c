/* Runs a plan for some steps in a child process, for measurements during a search.
 *
 * The child runs the plan as any run, and writes the seconds of each step to a pipe. The parent reads the
 * pipe, and kills the child if its time is up, so that a plan that fails or hangs does not end the search.
 */
#define _GNU_SOURCE
#include "executor/run/separate_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/clock.h"
#include "base/system/stop.h"
#include "executor/run/run.h"

/* Flags are read so often. */
enum { POLL_MILLISECONDS = 50 };

/* A message of the child; shorter than PIPE_BUF, so that it arrives as a whole. */
typedef struct Message {
    double seconds; /* of a step; below 0: the end */
    AmStatus status;
    char text[1024];
} Message;

/* ---- the child ---- */

typedef struct Child {
    const SeparateRun *settings;
    int pipe;
    int32_t steps; /* timed so far */
    double total;
    volatile sig_atomic_t stopped;
} Child;

static void send_message(const Child *self, const Message *message) {
    ssize_t written = write(self->pipe, message, sizeof *message);
    if (written != (ssize_t)sizeof *message) _exit(1);
}

static void send_step(void *user, const RunStep *step) {
    Child *self = user;
    if (step->step == 0) return;
    send_message(self, &(Message){.seconds = step->seconds});
    self->steps++;
    self->total += step->seconds;
    if (self->steps >= self->settings->least_steps && self->total >= self->settings->enough_seconds)
        stop_flag_set(&self->stopped);
}

/* Leaves interrupts to the parent, and ends with it. */
static void prepare_child(pid_t parent) {
    sigset_t none;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
}

static void run_child(int pipe, const SeparateRun *settings, const PlanContext *context, const Plan *plan) {
    Child self = {.settings = settings, .pipe = pipe};
    Arena arena = {0};
    RunReport report;
    AmError error = {0};
    const RunOptions options = {.plan = plan,
                                .steps = settings->most_steps + 1,
                                .state_path = "random",
                                .seed = settings->seed,
                                .on_nan = RUN_GO_ON_AFTER_NAN,
                                .stopped = &self.stopped,
                                .on_step = send_step,
                                .user = &self};
    Message end = {.seconds = -1};
    end.status = run_module(context, &options, &arena, &report, &error);
    snprintf(end.text, sizeof end.text, "%s", error.text);
    send_message(&self, &end);
    _exit(0);
}

/* ---- the parent ---- */

typedef struct Parent {
    const SeparateRun *settings;
    pid_t child;
    int pipe;
    double *seconds;
    int32_t count;
    double deadline;
    Message end; /* seconds 0: the child has not written it */
} Parent;

/* Reads messages until the child has ended. AM_INTERRUPTED, or AM_ERROR_RUNTIME when its time is up. */
static AmStatus read_messages(Parent *self, AmError *error) {
    for (;;) {
        struct pollfd ready = {.fd = self->pipe, .events = POLLIN};
        Message message;
        if (stop_flag_is_set(self->settings->interrupted))
            return am_fail(error, AM_INTERRUPTED, "", "interrupted");
        double left = self->deadline - clock_seconds();
        if (left <= 0)
            return am_fail(error, AM_ERROR_RUNTIME, "", "no end within %.3g s",
                           self->settings->patience_seconds);
        int wait = left * 1000 < POLL_MILLISECONDS ? (int)(left * 1000) + 1 : POLL_MILLISECONDS;
        int found = poll(&ready, 1, wait);
        if (found <= 0) continue;
        ssize_t bytes = read(self->pipe, &message, sizeof message);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes != (ssize_t)sizeof message) return AM_OK; /* the end of the pipe */
        if (message.seconds < 0) self->end = message;
        else if (self->count < self->settings->most_steps) self->seconds[self->count++] = message.seconds;
    }
}

/* The reason of a child without a timed step. */
static AmStatus fail_child(const Parent *self, int state, AmError *error) {
    if (self->end.seconds < 0 && self->end.status != AM_OK)
        return am_fail(error, AM_ERROR_RUNTIME, "", "%s", self->end.text);
    if (WIFSIGNALED(state))
        return am_fail(error, AM_ERROR_RUNTIME, "", "its process was ended by signal %d", WTERMSIG(state));
    return am_fail(error, AM_ERROR_RUNTIME, "", "its process ended without a step");
}

AmStatus separate_run(double *seconds, int32_t *count, const SeparateRun *settings,
                      const PlanContext *context, const Plan *plan, AmError *error) {
    Parent self = {
        .settings = settings, .seconds = seconds, .deadline = clock_seconds() + settings->patience_seconds};
    AmError own = {0};
    int ends[2], state = 0;
    pid_t parent = getpid();
    *count = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return am_fail_system(error, AM_ERROR_RUNTIME, "", errno, "cannot open a pipe");
    self.child = fork();
    if (self.child == 0) {
        prepare_child(parent);
        run_child(ends[1], settings, context, plan);
    }
    close(ends[1]);
    if (self.child < 0) {
        AmStatus status = am_fail_system(error, AM_ERROR_RUNTIME, "", errno, "cannot start a process");
        close(ends[0]);
        return status;
    }
    self.pipe = ends[0];
    AmStatus status = read_messages(&self, &own);
    if (status != AM_OK) kill(self.child, SIGKILL);
    close(ends[0]);
    while (waitpid(self.child, &state, 0) < 0 && errno == EINTR) continue;
    *count = self.count;
    if (status == AM_INTERRUPTED || (status != AM_OK && self.count == 0))
        return am_pass_error(status, &own, error);
    return self.count > 0 ? AM_OK : fail_child(&self, state, error);
}
