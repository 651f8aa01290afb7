/* Runs a module: opens resources before the first step and closes them after the last; run_steps.c
 * runs the steps.
 */
#include "executor/run/run_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "base/files/file.h"
#include "base/files/json.h"
#include "base/hash.h"
#include "base/system/memory_limit.h"
#include "base/system/process.h"
#include "base/text.h"
#include "executor/report/timeline_trace.h"
#include "executor/run/throughput.h"
#include "lowering/spmd/ranks.h"

enum { MAX_RANKS = 1024 };

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
    const RunOptions *options = run->options;
    char plan[65];
    Arena *arena = run->arena;
    Text watch = {0};
    TRY(hash_plan(run, plan, error));
    for (int32_t k = 0; k < options->watch_count; k++) text_append(&watch, "output[%d] ", options->watch[k]);
    text_append_string(&watch, options->outputs_path ? "all " : "");
    text_append_string(&watch, options->save_path ? "state " : "");
    text_append_string(&watch, options->trace.path ? "trace" : "");
    const ProcessFact facts[] = {
        {"module", run->context->sha256},
        {"plan", plan},
        {"number of steps", arena_format(arena, "%lld", (long long)options->steps)},
        {"seed", arena_format(arena, "%llu", (unsigned long long)options->seed)},
        {"order of the data", options->shuffle ? "shuffled" : "in order"},
        {"device", options->device ? options->device : "cpu"},
        {"collectives", options->comm ? options->comm : "default"},
        {"precision", options->tf32 ? "tf32" : "f32"},
        {"checkpoints",
         arena_format(arena, "%s, every %lld steps, %d kept%s",
                      options->checkpoints.path ? "written" : "none", (long long)options->checkpoints.every,
                      (int)options->checkpoints.keep, options->checkpoints.resumes ? ", resumed" : "")},
        {"validation",
         arena_format(arena, "%s, every %lld steps",
                      options->validation.context ? options->validation.context->sha256 : "none",
                      (long long)options->validation.every)},
        {"list of results", arena_copy_string(arena, watch.data ? watch.data : "")},
    };
    bool failed = watch.failed || arena->failed;
    text_free(&watch);
    if (failed) return am_fail_memory(error, 64);
    return process_group_agree(run->processes, facts, sizeof facts / sizeof *facts, error);
}

/* Checks the memory of the ranks together: ranks that fit one by one may exceed the machine. Counts
 * the open ranks, and if all are equal the others too. On the host only: other devices refuse
 * allocations. */
static AmStatus check_memory(const Run *run, int32_t opened, AmError *error) {
    const Plan *plan = run->options->plan;
    MemoryLimit limit = memory_limit("");
    double present = (double)limit.bytes, needed = 0;
    bool are_alike = !plan || plan->stage_count == 1;
    int32_t processes = run->processes ? run->processes->local_count : 1;
    for (int32_t r = 0; r < opened; r++) needed += (double)run->ranks[r].memory_bytes;
    if (are_alike) needed += (double)run->ranks[opened - 1].memory_bytes * (run->rank_count - opened);
    needed = needed * processes + (double)validation_bytes(run->validation);
    bool on_host = run->kernels == &kernels_cpu;
    if (!on_host || present <= 0 || needed <= present) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "%d ranks%s need %.3g GB of memory and %s has %.3g GB",
                   run->rank_count * processes, run->validation ? " and the validation" : "", needed / 1e9,
                   limit.name, present / 1e9);
}

/* Several processes need collectives that reach from one to another. */
static AmStatus choose_back_ends(Run *run, AmError *error) {
    const RunOptions *options = run->options;
    TRY(kernel_back_end_find(&run->kernels, options->device ? options->device : "cpu", error));
    if (options->tf32 && run->kernels == &kernels_cpu)
        am_warn(options->warnings, "device cpu multiplies f32 in f32: tf32 is for device 'cuda'");
    run->collectives = options->collectives;
    if (run->collectives) return AM_OK;
    return comm_back_end_choose(&run->collectives, options->comm, run->kernels, run->processes, error);
}

static AmStatus open_devices(Run *run, AmError *error) {
    const RunOptions *options = run->options;
    int32_t first_here = run->processes ? run->processes->local_process * run->rank_count : 0;
    for (int32_t r = 0; r < run->rank_count; r++) {
        KernelOptions of_rank = {.index = first_here + r,
                                 .threads = options->threads,
                                 .ranks_here =
                                     run->rank_count * (run->processes ? run->processes->local_count : 1),
                                 .tf32 = options->tf32,
                                 .warnings = options->warnings};
        TRY(run->kernels->open(&run->devices[r], &of_rank, error));
    }
    TRY(run->collectives->open(run->comms, run->first, run->rank_count, run->device_count, run->devices,
                               run->processes, error));
    run->has_comm = true;
    if (!run->collectives->has_channels) return AM_OK;
    run->streams = ARENA_ARRAY(run->arena, StreamList, run->rank_count);
    if (!run->streams) return am_fail_memory(error, run->rank_count);
    TRY(channels_open(&run->channels, run->first, run->rank_count, run->collectives->channels,
                      run->comms[0].shared, error));
    for (int32_t r = 0; r < run->rank_count; r++) {
        run->streams[r].channels = run->channels;
        run->comms[r].streams = &run->streams[r];
    }
    return AM_OK;
}

/* Finds the devices of the plan that are ranks of this process. */
static AmStatus deal_ranks(Run *run, AmError *error) {
    const Plan *plan = run->options->plan;
    int32_t processes = run->processes ? run->processes->count : 1;
    run->device_count = plan ? 0 : 1;
    for (int32_t s = 0; plan && s < plan->stage_count; s++)
        run->device_count += plan->stages[s].mesh.device_count;
    if (run->device_count % processes != 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "this plan has %d device%s, which %d processes cannot share evenly", run->device_count,
                       run->device_count == 1 ? "" : "s", processes);
    run->rank_count = run->device_count / processes;
    run->first = run->processes ? run->processes->process * run->rank_count : 0;
    if (run->processes) process_group_name_ranks(run->processes, run->rank_count);
    if (run->rank_count <= MAX_RANKS) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "this plan has %d devices for each process, each of them a thread: at most %d can be run",
                   run->rank_count, MAX_RANKS);
}

static int64_t trace_steps(const RunOptions *options) {
    return options->trace.steps > 0 ? options->trace.steps : 3;
}

/* Steps that are recorded; 0: none. */
static int64_t watched_steps(const RunOptions *options) {
    int64_t steps = options->trace.path ? trace_steps(options) : 0;
    return options->medians.on_median && options->medians.steps > steps ? options->medians.steps : steps;
}

/* Opens devices, lowers the program of each rank of this process, and prepares it. */
static AmStatus lower_ranks(Run *run, AmError *error) {
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
        else TRY(plan_lower_one_device(&program, &rank->arena, context, error));
        TRY(rank_open(rank, run->devices[r], &run->comms[r], program, error));
        TRY(check_memory(run, r + 1, error));
        if (watched_steps(run->options) > 0)
            TRY(rank_watch(rank, watched_steps(run->options), plan ? plan->micro_batches : 1, error));
        run->planned_bytes += rank->memory_bytes;
    }
    return AM_OK;
}

/* Opens the checkpoint; resumed values precede those of the files of state and data. */
static AmStatus open_checkpoint(Run *run, AmError *error) {
    char *plan = ARENA_ARRAY(run->arena, char, 65);
    if (!plan) return am_fail_memory(error, 65);
    if (run->options->checkpoints.path) TRY(hash_plan(run, plan, error));
    CheckpointOwner owner = {.context = run->context,
                             .options = run->options,
                             .plan = plan,
                             .processes = run->processes,
                             .ranks = run->ranks,
                             .rank_count = run->rank_count,
                             .first = run->first,
                             .device_count = run->device_count};
    TRY(checkpoint_open(&run->checkpoint, &owner, error));
    run->first_step = checkpoint_first_step(run->checkpoint);
    return AM_OK;
}

/* Opens state and data; resumed parameters are not read from their files, and the data continues at
 * its position. */
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
    return run_steps_to_do(run) > 0 ? feeds_start(run->feeds, error) : AM_OK;
}

static AmStatus fill_report(const Run *run, RunReport *report, AmError *error) {
    int64_t warm = run->steps_done - 1;
    *report = (RunReport){.steps = run->steps_done,
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
    for (int32_t r = 0; r < run->rank_count; r++) {
        const KernelDevice *device = run->devices[r];
        report->compile_seconds += device->compile_seconds;
        report->graphs += device->graphs;
        report->graph_nodes += device->graph_nodes;
    }
    /* allocation and scratch memory of every rank, in process 0 */
    ProcessGroup *processes = run->processes;
    int64_t bytes = (int64_t)sizeof(int64_t) * run->rank_count;
    int64_t *peak = report->peak_bytes, *scratch = report->scratch_bytes;
    ProcessPart *parts = ARENA_ARRAY(run->arena, ProcessPart, processes ? processes->count : 1);
    if (!parts) return am_fail_memory(error, bytes);
    for (int32_t r = 0; r < run->rank_count; r++) {
        scratch[r] = run->ranks[r].scratch_bytes;
        peak[r] = run->ranks[r].memory_bytes - scratch[r];
    }
    for (int k = 0; k < 2 && processes; k++) {
        int64_t *figures = k == 0 ? peak : scratch;
        TRY(process_group_gather(processes, figures, bytes, bytes, parts, error));
        if (processes->process != 0) continue;
        for (int32_t p = 1; p < processes->count; p++)
            if (parts[p].count == bytes)
                memcpy(figures + (int64_t)p * run->rank_count, parts[p].bytes, (size_t)bytes);
        process_group_release_parts(processes, parts);
    }
    return AM_OK;
}

static AmStatus check_writable(const Run *run, AmError *error) {
    const RunOptions *options = run->options;
    if (run->processes && run->processes->process != 0) return AM_OK;
    if (options->outputs_path) TRY(array_file_check_writable(options->outputs_path, error));
    if (options->save_path) TRY(array_file_check_writable(options->save_path, error));
    if (options->trace.path) TRY(file_check_writable(options->trace.path, error));
    return AM_OK;
}

/* Only process 0 has seen the loss, but every process did the same steps. */
static AmStatus fail_not_finite(const Run *run, AmError *error) {
    double loss = run->last_loss;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "the loss of step %lld is %s: the run ends there and nothing of the state is saved "
                   "(--on-nan warn goes on)",
                   (long long)run_steps_in_all(run) - 1,
                   run->processes && run->processes->process != 0 ? "not finite"
                   : isnan(loss)                                  ? "not a number"
                   : loss > 0                                     ? "infinite"
                                                                  : "minus infinity");
}

static AmStatus write_trace(const Run *run, AmError *error) {
    const TimelineTrace trace = {.path = run->options->trace.path,
                                 .steps = trace_steps(run->options),
                                 .plan = run->options->plan,
                                 .context = run->context,
                                 .ranks = run->ranks,
                                 .rank_count = run->rank_count,
                                 .channels = run->channels,
                                 .processes = run->processes,
                                 .warnings = run->options->warnings};
    return timeline_write_trace(&trace, error);
}

/* The rank whose medians are reported. */
typedef struct MedianRank {
    const RunOptions *options;
    int32_t rank;
} MedianRank;

static AmStatus report_median(void *user, const Program *program, int32_t step, double seconds,
                              AmError *error) {
    const MedianRank *of = user;
    return of->options->medians.on_median(of->options->medians.user, of->rank, program, step, seconds, error);
}

static AmStatus run_plan(Run *run, RunReport *report, AmError *error) {
    const RunOptions *options = run->options;
    if (options->steps < 1)
        return am_fail(error, AM_ERROR_USAGE, "", "the number of steps must be at least 1");
    TRY(check_writable(run, error));
    TRY(deal_ranks(run, error));
    if (run->processes) TRY(agree(run, error));
    TRY(choose_back_ends(run, error));
    TRY(lower_ranks(run, error));
    ShardOwner owner = {.ranks = run->ranks, .rank_count = run->rank_count, .processes = run->processes};
    TRY(results_open(&run->results, run->context, options, &owner, run->arena, error));
    TRY(validation_open(&run->validation, run->context, options, &owner, error));
    if (run->validation) TRY(check_memory(run, run->rank_count, error));
    TRY(open_checkpoint(run, error));
    TRY(open_feeds(run, error));
    throughput_of_batch(plan_context_primary(run->context), &run->examples, &run->tokens);
    TRY(run_open_schedule(run, error));
    TRY(schedule_start(run->schedule, error));
    TRY(run_all_ranks(run, error));
    TRY(fill_report(run, report, error));
    AmError not_saved = {0};
    if (run->end != RUN_NOT_FINITE) {
        /* Results are saved before anything else that may fail. The state is saved even if the checkpoint is
         * `not_saved`. */
        CheckpointPosition position = run_position_after(run, run_steps_in_all(run));
        checkpoint_finish(run->checkpoint, run_steps_in_all(run), &position, &not_saved);
        if (run->options->save_path) TRY(results_save_state(&run->results, run->feeds, error));
        if (run->options->outputs_path && run->steps_done > 0)
            TRY(results_save_outputs(&run->results, error));
    }
    if (options->trace.path) TRY(write_trace(run, error));
    if (options->medians.on_median) {
        for (int32_t r = 0; r < run->rank_count; r++) {
            MedianRank of = {run->options, run->first + r};
            TRY(timeline_medians(run->ranks[r].timeline, report_median, &of, error));
        }
    }
    if (run->end == RUN_NOT_FINITE) return fail_not_finite(run, error);
    if (not_saved.code != AM_OK) {
        *error = not_saved;
        return not_saved.code;
    }
    if (run->end == RUN_GOES_ON) return AM_OK;
    return am_fail(error, AM_INTERRUPTED, "", "interrupted after %lld steps",
                   (long long)run_steps_in_all(run));
}

AmStatus run_module(const PlanContext *context, const RunOptions *options, Arena *arena, RunReport *report,
                    AmError *error) {
    ProcessGroup *processes = options->processes && options->processes->count > 1 ? options->processes : NULL;
    context = plan_context_used(options->plan, context);
    Run run = {.context = context,
               .options = options,
               .arena = arena,
               .processes = processes,
               .first_loss = NAN,
               .last_loss = NAN};
    AmError own = {0};
    AmStatus status = run_plan(&run, report, &own);
    checkpoint_close(run.checkpoint);
    if (processes && status != AM_OK && status != AM_INTERRUPTED) process_group_abort_for(processes, &own);
    if (status != AM_OK && error && error->code == AM_OK) *error = own;
    if (run.results.context) results_close(&run.results);
    /* No memory goes while another rank's device may still read it. */
    for (int32_t r = 0; run.devices && r < run.rank_count; r++)
        if (run.devices[r]) device_synchronize(run.devices[r], NULL);
    schedule_close(run.schedule);
    validation_close(run.validation);
    feeds_close(run.feeds);
    channels_close(run.channels);
    for (int32_t r = 0; run.ranks && r < run.rank_count; r++) rank_close(&run.ranks[r]);
    if (run.has_comm) run.comms[0].back_end->close(run.comms);
    for (int32_t r = 0; run.devices && r < run.rank_count; r++)
        if (run.devices[r]) run.devices[r]->back_end->close(run.devices[r]);
    return status;
}
