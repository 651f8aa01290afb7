/* The steps of a run.
 *
 * The first of this process's ranks leads: it runs in the caller's thread, so that on_step is
 * called there, and represents the process among the others; every other rank has a thread of its
 * own. The actors order their work (actor_schedule.h): when all ranks have ended a step, the leader
 * gathers its results, the leaders of all processes agree whether to continue, and process 0
 * reports; then the ranks begin the next step. A failing rank releases the others, in all
 * processes; the first failure is reported.
 */
#include "executor/run/run_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "base/system/clock.h"
#include "base/system/parallel.h"
#include "base/system/process.h"
#include "base/system/stop.h"

typedef struct RankThread {
    Run *run;
    Rank *rank;
    pthread_t thread;
    AmStatus status;
    AmError error;
} RankThread;

CheckpointPosition run_position_after(const Run *run, int64_t steps) {
    FeedPosition position = feeds_position(run->feeds, steps - run->first_step);
    return (CheckpointPosition){.seed = position.seed,
                                .epoch = position.epoch,
                                .batch = position.batch,
                                .batches = position.batches,
                                .shuffled = position.shuffled};
}

/* Called by process 0, with the collected results. */
static void report_step(Run *run, double seconds, const RunValidated *validated) {
    const Results *results = &run->results;
    double loss = results_loss(results);
    if (run->steps_done == 0) {
        run->first_loss = loss;
        run->first_step_seconds = seconds;
    }
    if (run->steps_done <= RUN_EARLY_STEP) run->resident_bytes_early = process_resident_bytes();
    if (results->loss_count > 0 && !isfinite(loss) && run->not_finite_steps++ == 0)
        run->first_not_finite = run_steps_in_all(run);
    run->last_loss = loss;
    run->total_seconds += seconds;
    RunStep step = {.step = run_steps_in_all(run),
                    .loss = loss,
                    .has_loss = results->loss_count > 0,
                    .seconds = seconds,
                    .examples = run->examples,
                    .tokens = run->tokens,
                    .planned_bytes = run->planned_bytes,
                    .watched = results->values + results->loss_count,
                    .watched_count = results->watched_count - results->loss_count,
                    .validated = validated};
    if (run->options->on_step) run->options->on_step(run->options->user, &step);
}

static AmStatus begin_step(void *user, Rank *rank, int64_t step, AmError *error) {
    Run *run = user;
    /* The previous step's loss was finite, so that its state may be saved. */
    checkpoint_take(run->checkpoint, rank->comm->rank - run->first, run->first_step + step);
    double start = timeline_start(rank->timeline);
    rank->step_begin = start;
    if (step == 0 && rank->comm->rank == run->first) run->step_begin = clock_seconds();
    TRY(feeds_take(run->feeds, rank->comm->rank - run->first, step, error));
    timeline_mark(rank->timeline, TIMELINE_FEED, run->first_step + step, start);
    return AM_OK;
}

/* Returns whether anybody's user asked to stop or the loss is not finite; the leading rank of every process
 * together.
 */
static AmStatus agree_to_end(Run *run, AmError *error) {
    const RunOptions *options = run->options;
    ProcessGroup *processes = run->processes;
    bool is_over = run_steps_in_all(run) >= options->steps;
    bool is_stopped = stop_flag_is_set(options->interrupted) || stop_flag_is_set(options->stopped);
    char end = is_stopped && !is_over ? RUN_INTERRUPTED : RUN_GOES_ON;
    if (run->not_finite_steps > 0 && options->on_nan == RUN_STOP_ON_NAN) end = RUN_NOT_FINITE;
    int collect = checkpoint_news(run->checkpoint);
    if (processes) {
        ProcessPart *parts = calloc((size_t)processes->count, sizeof *parts);
        if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * processes->count);
        char news[2] = {end, (char)collect};
        AmStatus status = process_group_gather(processes, news, sizeof news, sizeof news, parts, error);
        for (int32_t p = 0; p < processes->count && processes->process == 0 && status == AM_OK; p++) {
            const char *other = parts[p].bytes;
            if (parts[p].count == sizeof news && other[0] > news[0]) news[0] = other[0];
            if (parts[p].count == sizeof news) news[1] &= other[1];
        }
        process_group_release_parts(processes, parts);
        free(parts);
        TRY(status);
        TRY(process_group_broadcast(processes, news, sizeof news, error));
        end = news[0];
        if (news[1]) TRY(checkpoint_collect(run->checkpoint, error));
    }
    run->end = (RunEnd)end;
    return AM_OK;
}

/* The common actions of all ranks between two steps; called by the leader of a process. */
static AmStatus go_between(Run *run, int64_t next, AmError *error) {
    CheckpointPosition position = run_position_after(run, next);
    TRY(agree_to_end(run, error));
    if (run->end != RUN_GOES_ON && next > run->first_step)
        schedule_stop_after(run->schedule, next - 1 - run->first_step);
    return checkpoint_before(run->checkpoint, next, &position, error);
}

/* A rank's step ends when it has its results and its parameters have their new values. */
static AmStatus end_step(void *user, Rank *rank, int64_t step, AmError *error) {
    Run *run = user;
    int64_t number = run->first_step + step;
    TRY(rank_finish(rank, error));
    results_take(&run->results, rank->comm->rank - run->first);
    double start = timeline_start(rank->timeline);
    rank_update(rank);
    if (validation_is_due(run->validation, number + 1))
        validation_take(run->validation, rank->comm->rank - run->first);
    timeline_mark(rank->timeline, TIMELINE_UPDATE, number, start);
    timeline_mark(rank->timeline, TIMELINE_STEP, number, rank->step_begin);
    return AM_OK;
}

/* Called by the leader of every process; in process 0, *validated is the result of a due
 * validation. A loss that ends the run is not validated. */
static AmStatus validate_if_due(Run *run, const RunValidated **validated, AmError *error) {
    *validated = NULL;
    if (!validation_is_due(run->validation, run_steps_in_all(run) + 1)) return AM_OK;
    TRY(validation_gather(run->validation, error));
    if (run->processes && run->processes->process != 0) return AM_OK;
    bool is_lost = run->results.loss_count > 0 && !isfinite(results_loss(&run->results));
    if (is_lost && run->options->on_nan == RUN_STOP_ON_NAN) return AM_OK;
    return validation_run(run->validation, validated, error);
}

/* When all ranks of the process have ended a step, and before they begin the next. */
static AmStatus report_and_go_on(void *user, int64_t step, AmError *error) {
    Run *run = user;
    const RunValidated *validated;
    TRY(results_gather_step(&run->results, error));
    double seconds = clock_seconds() - run->step_begin;
    TRY(validate_if_due(run, &validated, error));
    if (!run->processes || run->processes->process == 0) report_step(run, seconds, validated);
    run->steps_done++;
    TRY(go_between(run, run->first_step + step + 1, error));
    run->step_begin = clock_seconds(); /* from here on any rank may begin the next one */
    return AM_OK;
}

static AmStatus run_steps(Run *run, Rank *rank, AmError *error) {
    TRY(rank_start(rank, error));
    if (rank->comm->rank == run->first) TRY(go_between(run, run->first_step, error));
    TRY(comm_barrier(rank->comm, error));
    if (run->end != RUN_GOES_ON || run->first_step >= run->options->steps) return AM_OK;
    return schedule_run(run->schedule, rank->comm->rank - run->first, error);
}

/* The other processes hear of a failure from the rank that failed, not from those that it stopped, so that
 * they hear of its cause. */
static void *run_rank(void *argument) {
    RankThread *thread = argument;
    Comm *comm = thread->rank->comm;
    char text[sizeof thread->error.text + 32];
    thread->status = run_steps(thread->run, thread->rank, &thread->error);
    if (thread->status == AM_OK) return NULL;
    snprintf(text, sizeof text, "rank %d: %s", comm->rank, thread->error.text);
    ProcessGroup *processes = thread->run->processes;
    bool is_cause = !strstr(thread->error.text, "because another");
    if (processes && is_cause && process_group_explain(processes, NULL) == AM_OK)
        process_group_abort(processes, text);
    comm_abort(comm);
    return NULL;
}

/* Another process has failed: in the process group's own thread. */
static void release_ranks(void *user) {
    Run *run = user;
    AmError elsewhere = {0};
    comm_abort(&run->comms[0]);
    am_fail(&elsewhere, AM_ERROR_RUNTIME, "", "another rank failed");
    schedule_abort(run->schedule, &elsewhere);
}

/* A rank of this process has failed. */
static void release_others(void *user) {
    const Run *run = user;
    comm_abort(&run->comms[0]);
}

AmStatus run_open_schedule(Run *run, AmError *error) {
    ScheduleOptions options = {.ranks = run->ranks,
                               .rank_count = run->rank_count,
                               .channels = run->channels,
                               .steps = run_steps_to_do(run),
                               .begin = begin_step,
                               .end = end_step,
                               .report = report_and_go_on,
                               .on_failure = release_others,
                               .user = run,
                               .load = feeds_load,
                               .load_user = run->feeds,
                               .load_places = feeds_depth(run->feeds),
                               .load_is_short = feeds_are_small(run->feeds)};
    return schedule_open(&run->schedule, &options, error);
}

AmStatus run_all_ranks(Run *run, AmError *error) {
    RankThread *threads = ARENA_ARRAY(run->arena, RankThread, run->rank_count);
    if (!threads) return am_fail_memory(error, (int64_t)sizeof(RankThread) * run->rank_count);
    int32_t started = 1;
    openblas_set_num_threads(1);
    for (int32_t r = 0; r < run->rank_count; r++)
        threads[r] = (RankThread){.run = run, .rank = &run->ranks[r]};
    for (; started < run->rank_count; started++) {
        RankThread *next = &threads[started];
        next->status = parallel_start_thread(&next->thread, run_rank, next, &next->error);
        if (next->status != AM_OK) break;
    }
    if (started < run->rank_count) comm_abort(&run->comms[0]);
    if (run->processes) process_group_on_failure(run->processes, release_ranks, run);
    run_rank(&threads[0]);
    for (int32_t r = 1; r < started; r++) pthread_join(threads[r].thread, NULL);
    if (run->processes) process_group_on_failure(run->processes, NULL, NULL);
    /* The failure that started it: that of the processes, where it is known, else one that is not "stopped
     * because another failed", if there is one. A lack of memory stays an internal error. */
    const RankThread *failed = NULL;
    for (int32_t r = 0; r < run->rank_count; r++) {
        if (threads[r].status == AM_OK) continue;
        if (!failed || strstr(failed->error.text, "because another")) failed = &threads[r];
    }
    if (!failed) return AM_OK;
    if (run->processes) TRY(process_group_check(run->processes, error));
    AmStatus code = failed->status == AM_ERROR_INTERNAL ? AM_ERROR_INTERNAL : AM_ERROR_RUNTIME;
    return am_fail(error, code, "", "rank %d: %s", run->first + (int)(failed - threads), failed->error.text);
}
