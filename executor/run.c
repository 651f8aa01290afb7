/* Running a module: lowering for every rank, feeding, the step loop.
 *
 * The first of this process's ranks leads: it runs in the caller's thread, so
 * that on_step is called there, and speaks for the process among the others;
 * every other rank has a thread of its own. What they do when is the actors'
 * business (schedule.h): when all ranks have ended a step the leading one gathers
 * what is told of it, the leaders of all processes agree whether to go on, and
 * process 0 reports; then the ranks begin the next step. A
 * rank that fails releases the others, of all processes; the first failure is
 * what is reported.
 */
#include "executor/run.h"

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array_file.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/process.h"
#include "base/text.h"
#include "executor/checkpoint.h"
#include "executor/feed.h"
#include "executor/results.h"
#include "executor/schedule.h"
#include "executor/throughput.h"
#include "executor/timeline_trace.h"
#include "propagation/ranks.h"

enum { MAX_RANKS = 1024 };

/* Why no further step is made; of several reasons the greatest counts. */
typedef enum RunEnd { RUN_GOES_ON, RUN_INTERRUPTED, RUN_NOT_FINITE } RunEnd;

typedef struct Run {
    const PlanContext *context;
    const AmRunOptions *options;
    Arena *arena;
    World *world;              /* NULL: one process */
    int32_t device_count;      /* of the plan */
    int32_t first, rank_count; /* this process's ranks are first .. first + rank_count - 1 */
    Rank *ranks;
    const KernelBackEnd *kernels;
    const CommBackEnd *collectives;
    KernelDevice **devices; /* [rank_count], opened */
    Comm *comms;
    bool has_comm;
    Feeds *feeds;
    ChannelSet *channels; /* of transfers with slots; or NULL */
    StreamList *streams;  /* [rank_count] */
    Schedule *schedule;
    double step_begin;      /* by the leading rank */
    Checkpoint *checkpoint; /* or NULL */
    int64_t first_step;     /* those before it were done by the run that is resumed */
    Results results;
    RunEnd end;               /* set by the leading rank between two steps */
    int64_t examples, tokens; /* of a step */
    int64_t planned_bytes;    /* of all ranks here */
    int64_t steps_done;       /* by this run */
    int64_t not_finite_steps, first_not_finite;
    int64_t resident_bytes_early;
    double first_step_seconds, total_seconds, first_loss, last_loss;
} Run;

typedef struct RankThread {
    Run *run;
    Rank *rank;
    pthread_t thread;
    AmStatus status;
    AmError error;
} RankThread;

/* The plan's hash, or "none". */
static AmStatus hash_plan(const Run *run, char hex[65], AmError *error) {
    json_t *root;
    Text text = {0};
    Sha256 hash;
    snprintf(hex, 65, "none");
    if (!run->options->plan) return AM_OK;
    TRY(plan_to_json(&root, run->options->plan, run->context, error));
    json_write(&text, root, JSON_STYLE_COMPACT);
    json_decref(root);
    bool failed = text.failed;
    sha256_begin(&hash);
    sha256_add(&hash, text.data, text.length);
    sha256_end(&hash, hex);
    text_free(&text);
    return failed ? am_fail_memory(error, 0) : AM_OK;
}

/* Processes that would not do the same would wait for one another, or compute nonsense. */
static AmStatus agree(const Run *run, AmError *error) {
    const AmRunOptions *options = run->options;
    char plan[65];
    Arena *arena = run->arena;
    Text watch = {0};
    TRY(hash_plan(run, plan, error));
    for (int32_t k = 0; k < options->watch_count; k++) text_append(&watch, "output[%d] ", options->watch[k]);
    text_append_string(&watch, options->outputs_path ? "all " : "");
    text_append_string(&watch, options->save_path ? "state " : "");
    text_append_string(&watch, options->trace_path ? "trace" : "");
    const WorldFact facts[] = {
        {"module", run->context->sha256},
        {"plan", plan},
        {"number of steps", arena_format(arena, "%lld", (long long)options->steps)},
        {"seed", arena_format(arena, "%llu", (unsigned long long)options->seed)},
        {"order of the data", options->shuffle ? "shuffled" : "in order"},
        {"device", options->device ? options->device : "cpu"},
        {"collectives", options->comm ? options->comm : "default"},
        {"precision", options->tf32 ? "tf32" : "f32"},
        {"checkpoints",
         arena_format(arena, "%s, every %lld steps, %d kept%s", options->checkpoint_path ? "written" : "none",
                      (long long)options->checkpoint_every, (int)options->checkpoint_keep,
                      options->resume ? ", resumed" : "")},
        {"list of results", arena_copy_string(arena, watch.data ? watch.data : "")},
    };
    bool failed = watch.failed || arena->failed;
    text_free(&watch);
    if (failed) return am_fail_memory(error, 64);
    return world_agree(run->world, facts, sizeof facts / sizeof *facts, error);
}

/* Ranks that fit one by one may still be too many for the machine together: those that are open, and
 * if all are alike the others too. On the host only: other devices refuse what they lack. */
static AmStatus check_memory(const Run *run, int32_t opened, AmError *error) {
    const Plan *plan = run->options->plan;
    double present = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), needed = 0;
    bool are_alike = !plan || plan->stage_count == 1;
    int32_t processes = run->world ? run->world->local_count : 1;
    for (int32_t r = 0; r < opened; r++) needed += (double)run->ranks[r].memory_bytes;
    if (are_alike) needed += (double)run->ranks[opened - 1].memory_bytes * (run->rank_count - opened);
    bool on_host = run->kernels == &kernels_cpu;
    if (!on_host || present <= 0 || needed * processes <= present) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "%d ranks need %.1f GB of memory and this machine has %.1f GB",
                   run->rank_count * processes, needed * processes / 1e9, present / 1e9);
}

/* Several processes need collectives that reach from one to another. */
static AmStatus choose_back_ends(Run *run, AmError *error) {
    const AmRunOptions *options = run->options;
    TRY(kernel_back_end_find(&run->kernels, options->device ? options->device : "cpu", error));
    if (options->tf32 && run->kernels == &kernels_cpu)
        am_warn(options->warnings, "device cpu multiplies f32 in f32: tf32 is for device 'cuda'");
    run->collectives = options->collectives;
    if (run->collectives) return AM_OK;
    return comm_back_end_choose(&run->collectives, options->comm, run->kernels, run->world, error);
}

static AmStatus open_channels(Run *run, AmError *error) {
    if (!run->collectives->has_channels) return AM_OK;
    run->streams = ARENA_ARRAY(run->arena, StreamList, run->rank_count);
    if (!run->streams) return am_fail_memory(error, run->rank_count);
    TRY(channels_open(&run->channels, run->first, run->rank_count, run->collectives->channels,
                      run->comms[0].world, error));
    for (int32_t r = 0; r < run->rank_count; r++) {
        run->streams[r].channels = run->channels;
        run->comms[r].streams = &run->streams[r];
    }
    return AM_OK;
}

static AmStatus open_devices(Run *run, AmError *error) {
    const AmRunOptions *options = run->options;
    int32_t first_here = run->world ? run->world->local_process * run->rank_count : 0;
    for (int32_t r = 0; r < run->rank_count; r++) {
        KernelOptions of_rank = {.index = first_here + r,
                                 .threads = options->threads,
                                 .ranks_here = run->rank_count * (run->world ? run->world->local_count : 1),
                                 .tf32 = options->tf32,
                                 .warnings = options->warnings};
        TRY(run->kernels->open(&run->devices[r], &of_rank, error));
    }
    TRY(run->collectives->open(run->comms, run->first, run->rank_count, run->device_count, run->devices,
                               run->world, error));
    run->has_comm = true;
    return open_channels(run, error);
}

/* Which devices of the plan are this process's ranks. */
static AmStatus deal_ranks(Run *run, AmError *error) {
    const Plan *plan = run->options->plan;
    int32_t processes = run->world ? run->world->count : 1;
    run->device_count = plan ? 0 : 1;
    for (int32_t s = 0; plan && s < plan->stage_count; s++)
        run->device_count += plan->stages[s].mesh.device_count;
    if (run->device_count % processes != 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "this plan has %d device%s, which %d processes cannot share evenly", run->device_count,
                       run->device_count == 1 ? "" : "s", processes);
    run->rank_count = run->device_count / processes;
    run->first = run->world ? run->world->process * run->rank_count : 0;
    if (run->world) world_name_ranks(run->world, run->rank_count);
    if (run->rank_count <= MAX_RANKS) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "this plan has %d devices for each process, each of them a thread: at most %d can be run",
                   run->rank_count, MAX_RANKS);
}

static int64_t trace_steps(const AmRunOptions *options) {
    return options->trace_steps > 0 ? options->trace_steps : 3;
}

static AmStatus lower(Run *run, AmError *error) {
    const PlanContext *context = run->context;
    const Plan *plan = run->options->plan;
    PlanRanks ranks = {0};
    run->ranks = ARENA_ARRAY(run->arena, Rank, run->rank_count);
    run->comms = ARENA_ARRAY(run->arena, Comm, run->rank_count);
    run->devices = ARENA_ARRAY(run->arena, KernelDevice *, run->rank_count);
    if (run->arena->failed) return am_fail_memory(error, (int64_t)sizeof(Rank) * run->rank_count);
    TRY(open_devices(run, error));
    if (plan) TRY(plan_ranks(&ranks, run->arena, context, plan, error));
    for (int32_t r = 0; r < run->rank_count; r++) {
        Rank *rank = &run->ranks[r];
        Program *program;
        if (plan) TRY(plan_ranks_lower(&program, &rank->arena, &ranks, run->first + r, error));
        else TRY(plan_lower_whole(&program, &rank->arena, context, error));
        TRY(rank_open(rank, run->devices[r], &run->comms[r], program, error));
        TRY(check_memory(run, r + 1, error));
        if (run->options->trace_path) TRY(rank_watch(rank, trace_steps(run->options), error));
        run->planned_bytes += rank->memory_bytes;
    }
    return AM_OK;
}

/* What is resumed comes before what the files of state and data say. */
static AmStatus open_checkpoint(Run *run, AmError *error) {
    char *plan = ARENA_ARRAY(run->arena, char, 65);
    if (!plan) return am_fail_memory(error, 65);
    if (run->options->checkpoint_path) TRY(hash_plan(run, plan, error));
    CheckpointOwner owner = {.context = run->context,
                             .options = run->options,
                             .plan = plan,
                             .world = run->world,
                             .ranks = run->ranks,
                             .rank_count = run->rank_count,
                             .first = run->first,
                             .device_count = run->device_count};
    TRY(checkpoint_open(&run->checkpoint, &owner, error));
    run->first_step = checkpoint_first_step(run->checkpoint);
    return AM_OK;
}

/* 0 where the run that is resumed has done them all. */
static int64_t steps_to_do(const Run *run) {
    int64_t steps = run->options->steps - run->first_step;
    return steps > 0 ? steps : 0;
}

/* State and data; what is resumed is not read from their files, and the data goes on where it was. */
static AmStatus open_feeds(Run *run, AmError *error) {
    int32_t count = run->context->roles->parameter_count;
    bool *is_resumed = ARENA_ARRAY(run->arena, bool, count + 1),
         *is_fed = ARENA_ARRAY(run->arena, bool, count + 1);
    if (!is_resumed || !is_fed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) is_resumed[k] = checkpoint_holds(run->checkpoint, k);
    TRY(feeds_open(&run->feeds, run->context, run->options, run->ranks, run->rank_count, is_resumed, error));
    for (int32_t k = 0; k < count; k++) is_fed[k] = feeds_has_batches(run->feeds, k);
    TRY(checkpoint_start(run->checkpoint, is_fed, error));
    if (run->first_step > 0) {
        CheckpointPosition saved = checkpoint_position(run->checkpoint);
        FeedPosition position = {.seed = saved.seed,
                                 .shuffled = saved.shuffled,
                                 .epoch = saved.epoch,
                                 .batch = saved.batch,
                                 .batches = saved.batches};
        TRY(feeds_seek(run->feeds, &position, error));
    }
    return steps_to_do(run) > 0 ? feeds_start(run->feeds, error) : AM_OK;
}

/* Steps that are done, those of the run that was resumed included. */
static int64_t steps_in_all(const Run *run) {
    return run->first_step + run->steps_done;
}

/* Where in the data the step after `steps` begins. */
static CheckpointPosition position_after(const Run *run, int64_t steps) {
    FeedPosition position = feeds_position(run->feeds, steps - run->first_step);
    return (CheckpointPosition){.seed = position.seed,
                                .epoch = position.epoch,
                                .batch = position.batch,
                                .batches = position.batches,
                                .shuffled = position.shuffled};
}

/* By process 0, with what has come together there. */
static void report_step(Run *run, double seconds) {
    const Results *results = &run->results;
    double loss = results_loss(results);
    if (run->steps_done == 0) {
        run->first_loss = loss;
        run->first_step_seconds = seconds;
    }
    if (run->steps_done <= RUN_EARLY_STEP) run->resident_bytes_early = process_resident_bytes();
    if (results->loss_count > 0 && !isfinite(loss) && run->not_finite_steps++ == 0)
        run->first_not_finite = steps_in_all(run);
    run->last_loss = loss;
    run->total_seconds += seconds;
    AmRunStep step = {.step = steps_in_all(run),
                      .loss = loss,
                      .has_loss = results->loss_count > 0,
                      .seconds = seconds,
                      .examples = run->examples,
                      .tokens = run->tokens,
                      .planned_bytes = run->planned_bytes,
                      .watched = results->values + results->loss_count,
                      .watched_count = results->watched_count - results->loss_count};
    if (run->options->on_step) run->options->on_step(run->options->user, &step);
}

static AmStatus begin_step(void *user, Rank *rank, int64_t step, AmError *error) {
    Run *run = user;
    /* The loss of the step before is known to be fit for what is to be kept of it. */
    checkpoint_take(run->checkpoint, rank->comm->rank - run->first, run->first_step + step);
    double start = timeline_start(rank->timeline);
    rank->step_begin = start;
    if (rank->comm->rank == run->first) run->step_begin = clock_seconds();
    TRY(feeds_take(run->feeds, rank->comm->rank - run->first, step, error));
    timeline_mark(rank->timeline, TIMELINE_FEED, run->first_step + step, start);
    return AM_OK;
}

/* Whether anybody's user asked to stop or the loss is not finite; the leading rank of every process together.
 */
static AmStatus agree_to_end(Run *run, AmError *error) {
    const volatile sig_atomic_t *interrupted = run->options->interrupted;
    World *world = run->world;
    bool is_over = steps_in_all(run) >= run->options->steps;
    char end = interrupted && *interrupted && !is_over ? RUN_INTERRUPTED : RUN_GOES_ON;
    if (run->not_finite_steps > 0 && run->options->on_nan == AM_RUN_STOP_ON_NAN) end = RUN_NOT_FINITE;
    int collect = checkpoint_news(run->checkpoint);
    if (world) {
        WorldPart *parts = calloc((size_t)world->count, sizeof *parts);
        if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * world->count);
        char news[2] = {end, (char)collect};
        AmStatus status = world_gather(world, news, sizeof news, sizeof news, parts, error);
        for (int32_t p = 0; p < world->count && world->process == 0 && status == AM_OK; p++) {
            const char *other = parts[p].bytes;
            if (parts[p].count == sizeof news && other[0] > news[0]) news[0] = other[0];
            if (parts[p].count == sizeof news) news[1] &= other[1];
        }
        world_release_parts(world, parts);
        free(parts);
        TRY(status);
        TRY(world_broadcast(world, news, sizeof news, error));
        end = news[0];
        if (news[1]) TRY(checkpoint_collect(run->checkpoint, error));
    }
    run->end = (RunEnd)end;
    return AM_OK;
}

/* What all ranks have in common between two steps; by the leading one of a process. */
static AmStatus go_between(Run *run, int64_t next, AmError *error) {
    CheckpointPosition position = position_after(run, next);
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
    timeline_mark(rank->timeline, TIMELINE_UPDATE, number, start);
    timeline_mark(rank->timeline, TIMELINE_STEP, number, rank->step_begin);
    return AM_OK;
}

/* When all ranks of the process have ended a step, and before they begin the next. */
static AmStatus report_and_go_on(void *user, int64_t step, AmError *error) {
    Run *run = user;
    TRY(results_gather_step(&run->results, error));
    if (!run->world || run->world->process == 0) report_step(run, clock_seconds() - run->step_begin);
    run->steps_done++;
    return go_between(run, run->first_step + step + 1, error);
}

static AmStatus run_steps(Run *run, Rank *rank, AmError *error) {
    TRY(rank_start(rank, error));
    if (rank->comm->rank == run->first) TRY(go_between(run, run->first_step, error));
    TRY(rank->comm->back_end->barrier(rank->comm, error));
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
    World *world = thread->run->world;
    bool is_cause = !strstr(thread->error.text, "because another");
    if (world && is_cause && world_explain(world, NULL) == AM_OK) world_abort(world, text);
    comm->back_end->abort(comm);
    return NULL;
}

/* Another process has failed: in the world's own thread. */
static void release_ranks(void *user) {
    Run *run = user;
    AmError elsewhere = {0};
    run->comms[0].back_end->abort(&run->comms[0]);
    am_fail(&elsewhere, AM_ERROR_RUNTIME, "", "another rank failed");
    schedule_abort(run->schedule, &elsewhere);
}

/* A rank of this process has failed. */
static void release_others(void *user) {
    const Run *run = user;
    run->comms[0].back_end->abort(&run->comms[0]);
}

/* The failure that started it: that of the processes, where it is known, else one
 * that is not "stopped because another failed", if there is one. */
static AmStatus first_failure(const Run *run, const RankThread *threads, AmError *error) {
    const RankThread *failed = NULL;
    for (int32_t r = 0; r < run->rank_count; r++) {
        if (threads[r].status == AM_OK) continue;
        if (!failed || strstr(failed->error.text, "because another")) failed = &threads[r];
    }
    if (!failed) return AM_OK;
    if (run->world) TRY(world_check(run->world, error));
    return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d: %s", run->first + (int)(failed - threads),
                   failed->error.text);
}

static AmStatus open_schedule(Run *run, AmError *error) {
    ScheduleOptions options = {.ranks = run->ranks,
                               .rank_count = run->rank_count,
                               .channels = run->channels,
                               .steps = steps_to_do(run),
                               .begin = begin_step,
                               .end = end_step,
                               .report = report_and_go_on,
                               .on_failure = release_others,
                               .user = run,
                               .load = feeds_load,
                               .load_user = run->feeds,
                               .load_places = feeds_depth(run->feeds)};
    return schedule_open(&run->schedule, &options, error);
}

static AmStatus run_all(Run *run, AmError *error) {
    RankThread *threads = ARENA_ARRAY(run->arena, RankThread, run->rank_count);
    if (!threads) return am_fail_memory(error, (int64_t)sizeof(RankThread) * run->rank_count);
    int32_t started = 1;
    openblas_set_num_threads(1);
    for (int32_t r = 0; r < run->rank_count; r++)
        threads[r] = (RankThread){.run = run, .rank = &run->ranks[r]};
    for (; started < run->rank_count; started++)
        if (pthread_create(&threads[started].thread, NULL, run_rank, &threads[started]) != 0) break;
    if (started < run->rank_count) {
        threads[started].status =
            am_fail(&threads[started].error, AM_ERROR_RUNTIME, "", "cannot start a thread");
        run->comms[0].back_end->abort(&run->comms[0]);
    }
    if (run->world) world_on_failure(run->world, release_ranks, run);
    run_rank(&threads[0]);
    for (int32_t r = 1; r < started; r++) pthread_join(threads[r].thread, NULL);
    if (run->world) world_on_failure(run->world, NULL, NULL);
    return first_failure(run, threads, error);
}

/* Allocation and scratch memory of every rank, in process 0. */
static AmStatus gather_memory(const Run *run, AmRunReport *report, AmError *error) {
    World *world = run->world;
    int64_t bytes = (int64_t)sizeof(int64_t) * run->rank_count;
    int64_t *peak = report->peak_bytes, *scratch = report->scratch_bytes;
    WorldPart *parts = ARENA_ARRAY(run->arena, WorldPart, world ? world->count : 1);
    if (!parts) return am_fail_memory(error, bytes);
    for (int32_t r = 0; r < run->rank_count; r++) {
        scratch[r] = run->ranks[r].scratch_bytes;
        peak[r] = run->ranks[r].memory_bytes - scratch[r];
    }
    for (int k = 0; k < 2 && world; k++) {
        int64_t *figures = k == 0 ? peak : scratch;
        TRY(world_gather(world, figures, bytes, bytes, parts, error));
        if (world->process != 0) continue;
        for (int32_t p = 1; p < world->count; p++)
            if (parts[p].count == bytes)
                memcpy(figures + (int64_t)p * run->rank_count, parts[p].bytes, (size_t)bytes);
        world_release_parts(world, parts);
    }
    return AM_OK;
}

static AmStatus fill_report(const Run *run, AmRunReport *report, AmError *error) {
    int64_t warm = run->steps_done - 1;
    *report = (AmRunReport){.steps = run->steps_done,
                            .seconds_per_step =
                                warm > 0 ? (run->total_seconds - run->first_step_seconds) / (double)warm
                                         : run->total_seconds,
                            .first_loss = run->first_loss,
                            .last_loss = run->last_loss,
                            .not_finite_steps = run->not_finite_steps,
                            .first_not_finite = run->first_not_finite,
                            .resident_bytes_early = run->resident_bytes_early,
                            .resident_bytes = process_resident_bytes(),
                            .peak_resident_bytes = process_peak_resident_bytes(),
                            .channel_bytes = run->channels ? run->channels->memory_bytes : 0,
                            .device_count = run->device_count,
                            .peak_bytes = ARENA_ARRAY(run->arena, int64_t, run->device_count),
                            .scratch_bytes = ARENA_ARRAY(run->arena, int64_t, run->device_count)};
    if (!report->peak_bytes || !report->scratch_bytes) return am_fail_memory(error, run->device_count * 16);
    return gather_memory(run, report, error);
}

static AmStatus check_writable(const Run *run, AmError *error) {
    const AmRunOptions *options = run->options;
    if (run->world && run->world->process != 0) return AM_OK;
    if (options->outputs_path) TRY(array_file_check_writable(options->outputs_path, error));
    if (options->save_path) TRY(array_file_check_writable(options->save_path, error));
    if (options->trace_path) TRY(file_check_writable(options->trace_path, error));
    return AM_OK;
}

/* Only process 0 has seen the loss, but every process did the same steps. */
static AmStatus fail_not_finite(const Run *run, AmError *error) {
    double loss = run->last_loss;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "the loss of step %lld is %s: the run ends there and nothing of the state is saved "
                   "(--on-nan warn goes on)",
                   (long long)steps_in_all(run) - 1,
                   run->world && run->world->process != 0 ? "not finite"
                   : isnan(loss)                          ? "not a number"
                   : loss > 0                             ? "infinite"
                                                          : "minus infinity");
}

static AmStatus write_trace(const Run *run, AmError *error) {
    const TimelineTrace trace = {.path = run->options->trace_path,
                                 .steps = trace_steps(run->options),
                                 .context = run->context,
                                 .ranks = run->ranks,
                                 .rank_count = run->rank_count,
                                 .world = run->world,
                                 .warnings = run->options->warnings};
    return timeline_write_trace(&trace, error);
}

static AmStatus run_plan(Run *run, AmRunReport *report, AmError *error) {
    const AmRunOptions *options = run->options;
    if (options->steps < 1)
        return am_fail(error, AM_ERROR_USAGE, "", "the number of steps must be at least 1");
    TRY(check_writable(run, error));
    TRY(deal_ranks(run, error));
    if (run->world) TRY(agree(run, error));
    TRY(choose_back_ends(run, error));
    TRY(lower(run, error));
    WholeOwner owner = {.ranks = run->ranks, .rank_count = run->rank_count, .world = run->world};
    TRY(results_open(&run->results, run->context, options, &owner, run->arena, error));
    TRY(open_checkpoint(run, error));
    TRY(open_feeds(run, error));
    throughput_of_batch(plan_context_whole(run->context), &run->examples, &run->tokens);
    TRY(open_schedule(run, error));
    TRY(schedule_start(run->schedule, error));
    TRY(run_all(run, error));
    TRY(fill_report(run, report, error));
    if (options->trace_path) TRY(write_trace(run, error));
    if (run->end == RUN_NOT_FINITE) return fail_not_finite(run, error);
    CheckpointPosition position = position_after(run, steps_in_all(run));
    AmError not_saved = {0};
    checkpoint_finish(run->checkpoint, steps_in_all(run), &position, &not_saved);
    if (options->save_path) TRY(results_save_state(&run->results, run->feeds, error));
    if (options->outputs_path && run->steps_done > 0) TRY(results_save_outputs(&run->results, error));
    if (not_saved.code != AM_OK) {
        *error = not_saved;
        return not_saved.code;
    }
    if (run->end == RUN_GOES_ON) return AM_OK;
    return am_fail(error, AM_INTERRUPTED, "", "interrupted after %lld steps", (long long)steps_in_all(run));
}

AmStatus am_run(const PlanContext *context, const AmRunOptions *options, Arena *arena, AmRunReport *report,
                AmError *error) {
    World *world = options->world && options->world->count > 1 ? options->world : NULL;
    context = plan_context_used(options->plan, context);
    Run run = {.context = context,
               .options = options,
               .arena = arena,
               .world = world,
               .first_loss = NAN,
               .last_loss = NAN};
    AmError own = {0};
    AmStatus status = run_plan(&run, report, &own);
    checkpoint_close(run.checkpoint);
    if (world && status != AM_OK && status != AM_INTERRUPTED) world_abort_for(world, &own);
    if (status != AM_OK && error && error->code == AM_OK) *error = own;
    if (run.results.context) results_close(&run.results);
    /* No memory goes while another rank's device may still read it. */
    for (int32_t r = 0; run.devices && r < run.rank_count; r++)
        if (run.devices[r]) run.devices[r]->back_end->synchronize(run.devices[r], NULL);
    schedule_close(run.schedule);
    feeds_close(run.feeds);
    channels_close(run.channels);
    for (int32_t r = 0; run.ranks && r < run.rank_count; r++) rank_close(&run.ranks[r]);
    if (run.has_comm) run.comms[0].back_end->close(run.comms);
    for (int32_t r = 0; run.devices && r < run.rank_count; r++)
        if (run.devices[r]) run.devices[r]->back_end->close(run.devices[r]);
    return status;
}
