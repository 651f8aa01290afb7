/* Running a module: lowering for every rank, feeding, the step loop, results.
 *
 * Rank 0 runs in the caller's thread, so that on_step is called there; every
 * other rank has a thread of its own. A step begins and ends at a barrier of
 * all ranks: before the first rank 0 decides whether to go on, after the second
 * it reports, while the others already wait for the next step. A rank that
 * fails releases the others; the first failure is what is reported.
 */
#include "executor/run.h"

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array_file.h"
#include "base/clock.h"
#include "executor/cpu/wide.h"
#include "executor/feed.h"
#include "executor/rank.h"
#include "propagation/lower.h"

enum { MAX_RANKS = 1024 };

/* An output on its way to the host: whole, in its own type and as doubles. */
typedef struct Watch {
    int32_t output;
    char *whole;
    double *values;
    int64_t count;
} Watch;

typedef struct Run {
    const PlanContext *context;
    const AmRunOptions *options;
    Arena *arena;
    int32_t rank_count;
    Rank *ranks;
    KernelDevice **devices; /* [rank_count], opened */
    Comm *comms;
    bool has_comm;
    Feed *feeds;    /* [parameter_count] */
    Watch *watches; /* the loss first, if there is one, then options->watch */
    AmRunWatched *watched;
    int32_t watch_count, loss_count; /* loss_count: 0 or 1 */
    char **outputs;                  /* [output_count] whole, of the last step; NULL where not wanted */
    bool stop;                       /* set by rank 0 before a barrier, read after it */
    int64_t steps_done;
    double first_step_seconds, total_seconds, first_loss, last_loss;
} Run;

typedef struct RankThread {
    Run *run;
    Rank *rank;
    pthread_t thread;
    AmStatus status;
    AmError error;
} RankThread;

/* Ranks that fit one by one may still be too many for the machine together; the
 * first speaks for all. On the host only: other devices refuse what they lack. */
static AmStatus check_memory(const Run *run, AmError *error) {
    double present = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double needed = (double)run->ranks[0].memory_bytes;
    bool on_host = run->devices[0] == &kernel_device_cpu;
    if (!on_host || present <= 0 || needed * run->rank_count <= present) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "%d ranks need %.1f GB of memory each and this machine has %.1f GB in all",
                   run->rank_count, needed / 1e9, present / 1e9);
}

static AmStatus open_devices(Run *run, AmError *error) {
    const AmRunOptions *options = run->options;
    const KernelBackEnd *kernels;
    const CommBackEnd *collectives;
    TRY(kernel_back_end_find(&kernels, options->device ? options->device : "cpu", error));
    TRY(comm_back_end_find(&collectives, options->comm ? options->comm : "local", kernels, error));
    for (int32_t r = 0; r < run->rank_count; r++) {
        KernelOptions of_rank = {.index = r, .tf32 = options->tf32};
        TRY(kernels->open(&run->devices[r], &of_rank, error));
    }
    TRY(collectives->open(run->comms, 0, run->rank_count, run->rank_count, run->devices, NULL, error));
    run->has_comm = true;
    return AM_OK;
}

static AmStatus lower(Run *run, AmError *error) {
    const PlanContext *context = run->context;
    const Plan *plan = run->options->plan;
    Completion *completion = NULL;
    if (plan && plan->stage_count != 1)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "this plan has %d stages: only plans of one stage can be run", plan->stage_count);
    if (plan && plan->micro_batches > 1)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "this plan has %d micro-batches: only plans of one can be run", plan->micro_batches);
    run->rank_count = plan ? plan->stages[0].mesh.device_count : 1;
    if (run->rank_count > MAX_RANKS)
        return am_fail(error, AM_ERROR_RUNTIME, "",
                       "this plan has %d devices, each of them a thread: at most %d can be run",
                       run->rank_count, MAX_RANKS);
    run->ranks = ARENA_ARRAY(run->arena, Rank, run->rank_count);
    run->comms = ARENA_ARRAY(run->arena, Comm, run->rank_count);
    run->devices = ARENA_ARRAY(run->arena, KernelDevice *, run->rank_count);
    if (run->arena->failed) return am_fail_memory(error, (int64_t)sizeof(Rank) * run->rank_count);
    TRY(open_devices(run, error));
    if (plan) TRY(plan_complete(&completion, run->arena, context, &plan->stages[0], error));
    for (int32_t r = 0; r < run->rank_count; r++) {
        Rank *rank = &run->ranks[r];
        Program *program;
        if (plan) TRY(plan_lower(&program, &rank->arena, context, completion, r, error));
        else TRY(plan_lower_whole(&program, &rank->arena, context, error));
        TRY(rank_open(rank, run->devices[r], &run->comms[r], program, error));
        if (r == 0) TRY(check_memory(run, error));
    }
    return AM_OK;
}

static AmStatus load(Run *run, AmError *error) {
    const IrRoles *roles = run->context->roles;
    FeedSource source;
    run->feeds = ARENA_ARRAY(run->arena, Feed, roles->parameter_count + 1);
    if (!run->feeds) return am_fail_memory(error, (int64_t)sizeof(Feed) * roles->parameter_count);
    TRY(feed_open(&source, run->context, run->options, error));
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < roles->parameter_count && status == AM_OK; k++) {
        Feed *feed = &run->feeds[k];
        status = feed_read(feed, &source, k, error);
        if (status != AM_OK) break;
        for (int32_t r = 0; r < run->rank_count; r++) rank_set_parameter(&run->ranks[r], k, feed->data);
        if (feed->batches == 1) feed_release(feed);
    }
    if (status == AM_OK) status = feed_align(run->feeds, run->context, run->options->warnings, error);
    feed_close(&source);
    return status;
}

static const IrShape *output_shape(const Run *run, int32_t output) {
    return &run->context->canonical->instructions[run->context->roles->outputs[output]].shape;
}

static AmStatus add_watch(Run *run, int32_t output, AmError *error) {
    Watch *watch = &run->watches[run->watch_count];
    const IrShape *shape = output_shape(run, output);
    watch->output = output;
    watch->count = ir_shape_elements(shape);
    watch->whole = arena_alloc(run->arena, (size_t)ir_shape_bytes(shape) + 1);
    watch->values = ARENA_ARRAY(run->arena, double, watch->count + 1);
    if (run->arena->failed) return am_fail_memory(error, watch->count * 8);
    run->watched[run->watch_count++] = (AmRunWatched){output, watch->count, watch->values};
    return AM_OK;
}

static AmStatus prepare_outputs(Run *run, AmError *error) {
    const IrRoles *roles = run->context->roles;
    int32_t count = run->options->watch_count;
    run->watches = ARENA_ARRAY(run->arena, Watch, count + 1);
    run->watched = ARENA_ARRAY(run->arena, AmRunWatched, count + 1);
    run->outputs = ARENA_ARRAY(run->arena, char *, roles->output_count + 1);
    if (run->arena->failed) return am_fail_memory(error, count * 32);
    run->loss_count = roles->loss >= 0 ? 1 : 0;
    if (run->loss_count) TRY(add_watch(run, roles->loss, error));
    for (int32_t k = 0; k < count; k++) {
        int32_t output = run->options->watch[k];
        if (output < 0 || output >= roles->output_count)
            return am_fail(error, AM_ERROR_USAGE, "", "there is no output[%d]: the module has %d outputs",
                           output, roles->output_count);
        if (!wide_supports(output_shape(run, output)->type))
            return am_fail(error, AM_ERROR_USAGE, "", "output[%d] is %s and cannot be watched", output,
                           dtype_name(output_shape(run, output)->type));
        TRY(add_watch(run, output, error));
    }
    for (int32_t k = 0; k < roles->output_count && run->options->outputs_path; k++) {
        int64_t bytes = ir_shape_bytes(output_shape(run, k));
        run->outputs[k] = malloc((size_t)bytes + 1);
        if (!run->outputs[k]) return am_fail_memory(error, bytes);
    }
    return AM_OK;
}

/* A whole output as doubles; by rank 0 after the barrier. */
static void read_watches(Run *run) {
    for (int32_t k = 0; k < run->watch_count; k++) {
        Watch *watch = &run->watches[k];
        Dtype type = output_shape(run, watch->output)->type;
        for (int64_t i = 0; i < watch->count; i++) {
            Wide value;
            wide_load(&value, watch->whole + i * dtype_bytes(type), type, 1, 1);
            wide_store(&watch->values[i], DTYPE_F64, &value, wide_kind(type), 1, 1);
        }
    }
}

static void report_step(Run *run, double seconds) {
    read_watches(run);
    double loss = run->loss_count ? run->watches[0].values[0] : NAN;
    if (run->steps_done == 0) {
        run->first_loss = loss;
        run->first_step_seconds = seconds;
    }
    run->last_loss = loss;
    run->total_seconds += seconds;
    AmRunStep step = {.step = run->steps_done,
                      .loss = loss,
                      .seconds = seconds,
                      .watched = run->watched + run->loss_count,
                      .watched_count = run->watch_count - run->loss_count};
    run->steps_done++;
    if (run->options->on_step) run->options->on_step(run->options->user, &step);
}

/* One step of one rank, between the two barriers. */
static AmStatus run_step(Run *run, Rank *rank, int64_t step, AmError *error) {
    const IrRoles *roles = run->context->roles;
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const Feed *feed = &run->feeds[k];
        if (feed->batches > 1)
            rank_set_parameter(rank, k, feed->data + step % feed->batches * feed->batch_bytes);
    }
    TRY(rank_run(rank, error));
    for (int32_t k = 0; k < run->watch_count; k++)
        rank_get_output(rank, run->watches[k].output, run->watches[k].whole);
    for (int32_t k = 0; k < roles->output_count; k++)
        if (run->outputs[k]) rank_get_output(rank, k, run->outputs[k]);
    rank_update(rank);
    return AM_OK;
}

static AmStatus run_steps(Run *run, Rank *rank, AmError *error) {
    const CommBackEnd *back_end = rank->comm->back_end;
    bool leads = rank->comm->rank == 0;
    TRY(rank_start(rank, error));
    for (int64_t step = 0; step < run->options->steps; step++) {
        if (leads && run->options->interrupted && *run->options->interrupted) run->stop = true;
        TRY(back_end->barrier(rank->comm, error));
        if (run->stop) return AM_OK;
        double start = clock_seconds();
        TRY(run_step(run, rank, step, error));
        TRY(back_end->barrier(rank->comm, error));
        if (leads) report_step(run, clock_seconds() - start);
    }
    return AM_OK;
}

static void *run_rank(void *argument) {
    RankThread *thread = argument;
    thread->status = run_steps(thread->run, thread->rank, &thread->error);
    if (thread->status != AM_OK) thread->rank->comm->back_end->abort(thread->rank->comm);
    return NULL;
}

/* The failure that started it: one that is not "stopped because another failed", if there is one. */
static AmStatus first_failure(const RankThread *threads, int32_t count, AmError *error) {
    const RankThread *failed = NULL;
    for (int32_t r = 0; r < count; r++) {
        if (threads[r].status == AM_OK) continue;
        if (!failed || strstr(failed->error.text, "another rank failed")) failed = &threads[r];
    }
    if (!failed) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d: %s", (int)(failed - threads), failed->error.text);
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
    run_rank(&threads[0]);
    for (int32_t r = 1; r < started; r++) pthread_join(threads[r].thread, NULL);
    return first_failure(threads, run->rank_count, error);
}

static AmStatus save_outputs(Run *run, AmError *error) {
    const IrRoles *roles = run->context->roles;
    ArrayToWrite *arrays = ARENA_ARRAY(run->arena, ArrayToWrite, roles->output_count + 1);
    if (!arrays) return am_fail_memory(error, roles->output_count * 64);
    for (int32_t k = 0; k < roles->output_count; k++) {
        const IrShape *shape = output_shape(run, k);
        arrays[k] = (ArrayToWrite){.name = arena_format(run->arena, "output[%d]", k),
                                   .type = shape->type,
                                   .rank = shape->rank,
                                   .dimensions = shape->dimensions,
                                   .data = run->outputs[k]};
    }
    if (run->arena->failed) return am_fail_memory(error, roles->output_count * 16);
    return array_file_write(run->options->outputs_path, arrays, roles->output_count, NULL, error);
}

/* Everything but the data, whole, by path: a state that the next run can start from. */
static AmStatus save_state(Run *run, AmError *error) {
    const IrRoles *roles = run->context->roles;
    ArrayToWrite *arrays = ARENA_ARRAY(run->arena, ArrayToWrite, roles->parameter_count + 1);
    if (!arrays) return am_fail_memory(error, roles->parameter_count * 64);
    int32_t count = 0;
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < roles->parameter_count && status == AM_OK; k++) {
        const IrParameter *parameter = &roles->parameters[k];
        const IrShape *shape = &run->context->canonical->instructions[parameter->instruction].shape;
        if (parameter->role == IR_ROLE_DATA || run->feeds[k].batches > 1) continue;
        char *whole = malloc((size_t)ir_shape_bytes(shape) + 1);
        if (!whole) {
            status = am_fail_memory(error, ir_shape_bytes(shape));
            break;
        }
        for (int32_t r = 0; r < run->rank_count; r++) rank_get_parameter(&run->ranks[r], k, whole);
        arrays[count++] = (ArrayToWrite){.name = parameter->path,
                                         .type = shape->type,
                                         .rank = shape->rank,
                                         .dimensions = shape->dimensions,
                                         .data = whole};
    }
    const char *metadata[] = {"format", "automap-state-1", NULL};
    if (status == AM_OK) status = array_file_write(run->options->save_path, arrays, count, metadata, error);
    for (int32_t k = 0; k < count; k++) free((void *)arrays[k].data);
    return status;
}

static AmStatus fill_report(const Run *run, AmRunReport *report, AmError *error) {
    int64_t warm = run->steps_done - 1;
    *report = (AmRunReport){.steps = run->steps_done,
                            .seconds_per_step =
                                warm > 0 ? (run->total_seconds - run->first_step_seconds) / (double)warm
                                         : run->total_seconds,
                            .first_loss = run->first_loss,
                            .last_loss = run->last_loss,
                            .device_count = run->rank_count,
                            .peak_bytes = ARENA_ARRAY(run->arena, int64_t, run->rank_count),
                            .scratch_bytes = ARENA_ARRAY(run->arena, int64_t, run->rank_count)};
    if (!report->peak_bytes || !report->scratch_bytes) return am_fail_memory(error, run->rank_count * 16);
    for (int32_t r = 0; r < run->rank_count; r++) {
        report->scratch_bytes[r] = run->ranks[r].scratch_bytes;
        report->peak_bytes[r] = run->ranks[r].memory_bytes - run->ranks[r].scratch_bytes;
    }
    return AM_OK;
}

AmStatus am_run(const PlanContext *context, const AmRunOptions *options, Arena *arena, AmRunReport *report,
                AmError *error) {
    Run run = {.context = context, .options = options, .arena = arena, .first_loss = NAN, .last_loss = NAN};
    AmStatus status;
    if (options->steps < 1)
        return am_fail(error, AM_ERROR_USAGE, "", "the number of steps must be at least 1");
    if (options->outputs_path) TRY(array_file_check_writable(options->outputs_path, error));
    if (options->save_path) TRY(array_file_check_writable(options->save_path, error));
    TRY_OR_FAIL(lower(&run, error));
    TRY_OR_FAIL(prepare_outputs(&run, error));
    TRY_OR_FAIL(load(&run, error));
    TRY_OR_FAIL(run_all(&run, error));
    TRY_OR_FAIL(fill_report(&run, report, error));
    if (options->save_path) TRY_OR_FAIL(save_state(&run, error));
    if (options->outputs_path && run.steps_done > 0) TRY_OR_FAIL(save_outputs(&run, error));
    if (run.stop)
        status =
            am_fail(error, AM_INTERRUPTED, "", "interrupted after %lld steps", (long long)run.steps_done);
fail:
    for (int32_t r = 0; run.ranks && r < run.rank_count; r++) rank_close(&run.ranks[r]);
    if (run.has_comm) run.comms[0].back_end->close(run.comms);
    for (int32_t r = 0; run.devices && r < run.rank_count; r++)
        if (run.devices[r]) run.devices[r]->back_end->close(run.devices[r]);
    for (int32_t k = 0; run.feeds && k < context->roles->parameter_count; k++) feed_release(&run.feeds[k]);
    for (int32_t k = 0; run.outputs && k < context->roles->output_count; k++) free(run.outputs[k]);
    return status;
}
