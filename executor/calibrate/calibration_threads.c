/* Times collectives and transfers between ranks, each of them a thread, as `automap run` runs them.
 *
 * All ranks go through the cases together. A case is a program of one instruction (prepare_case()). The
 * first rank plans series of iterations (plan_next()); run_series() runs one in every thread. Barriers
 * separate series, also for a rank that has failed.
 */
#include "executor/calibrate/calibration_threads.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/integers.h"
#include "base/system/clock.h"
#include "base/system/clock_cost.h"
#include "base/system/parallel.h"
#include "executor/calibrate/probe_pace.h"
#include "executor/calibrate/probe_samples.h"

enum {
    LEAST_SERIES = 3,
    MOST_SERIES = 12,
    MOST_ITERATIONS = 48,
    LEAST_ITERATIONS = 8,
    LEAST_QUEUED_ITERATIONS = 1
};
enum { WALK_BYTES = 1 << 14 };
enum {
    MOST_IN_A_ROW = 20,
    LEAST_IN_A_ROW = 4,
    WARM_RUNS = 3
};                                         /* the third replays the recording of the second */
static const int64_t long_bytes = 1 << 20; /* above this size LEAST_IN_A_ROW suffices */
static const double agreement = 1.05;

typedef struct Member Member;

typedef struct CaseTimer {
    const ProbeRanks *ranks;
    int32_t group_size;
    ProbeCase *cases;
    int32_t case_count;
    Comm comms[PROBE_MOST_RANKS];
    KernelDevice *devices[PROBE_MOST_RANKS];
    Member *members;        /* [ranks->count] */
    pthread_mutex_t gate;   /* closed until all threads are there */
    bool is_off;            /* not all could be started */
    _Atomic int32_t failed; /* the rank that failed first; -1 */
    pthread_barrier_t barrier;
    /* Written by the first rank, while the others wait. */
    int32_t current;        /* case */
    int32_t iterations;     /* of the next series; 0: no more of this case */
    int32_t series;         /* of this case, that are done */
    double begun, patience; /* of this case */
    double end, clock_seconds;
    const ProbeCaseListener *listener; /* or NULL */
} CaseTimer;

/* One rank with its calls, one for each case. */
struct Member {
    CaseTimer *timer;
    int32_t rank;
    pthread_t thread;
    Arena arena;
    CommCall **calls; /* [case_count] */
    void **records;   /* [case_count] of calls in a row (KernelBackEnd.begin) */
    char *memory;     /* of the device; shared by the calls */
    void *watch;
    ProbeWalk walk;                                              /* of the host; none with a stopwatch */
    double last, begins[MOST_ITERATIONS], ends[MOST_ITERATIONS]; /* of the series' iterations */
    double queued;                                               /* seconds of one, by the stopwatch */
    AmStatus status;
    AmError error;
};

/* Local shapes of operand and result, and how they are cut. */
typedef struct Shapes {
    int64_t operand[2], result[2];
    int32_t rank;
    int64_t parts[PROBE_MOST_RANKS];
} Shapes;

static void find_shapes(Shapes *shapes, const ProbeCase *of, int32_t n) {
    int64_t part = of->bytes / 4 / n > 0 ? of->bytes / 4 / n : 1, whole = part * n;
    *shapes = (Shapes){.operand = {whole, 1}, .result = {whole, 1}, .rank = 1};
    for (int32_t k = 0; k < n; k++) shapes->parts[k] = part;
    if (of->is_transfer) return;
    if (of->kind == PROGRAM_ALL_GATHER) shapes->operand[0] = part;
    if (of->kind == PROGRAM_REDUCE_SCATTER) shapes->result[0] = part;
    if (of->kind != PROGRAM_ALL_TO_ALL) return;
    int64_t side = (int64_t)sqrt((double)whole) / n;
    side = side > 0 ? side : 1;
    *shapes = (Shapes){.operand = {side, side * n}, .result = {side * n, side}, .rank = 2};
    for (int32_t k = 0; k < n; k++) shapes->parts[k] = side;
}

static void add_collective(ProgramInstruction *instruction, Arena *arena, const ProbeCase *of,
                           const Shapes *shapes, const int32_t *group, int32_t n) {
    ProgramMovement *movement = ARENA_ARRAY(arena, ProgramMovement, 1);
    ProgramCollective *collective = ARENA_ARRAY(arena, ProgramCollective, 1);
    if (arena->failed) return;
    *movement = (ProgramMovement){.other = 1, .parts = shapes->parts, .other_parts = shapes->parts};
    *collective = (ProgramCollective){.kind = of->kind,
                                      .reduction = SBP_ADD,
                                      .axes = 1,
                                      .group_count = n,
                                      .group = group,
                                      .movements = movement};
    instruction->kind = PROGRAM_COLLECTIVE;
    instruction->collective = collective;
}

/* Makes the instruction a transfer of the global array from the first rank of the group to the second. */
static void add_transfer(ProgramInstruction *instruction, Arena *arena, const Shapes *shapes,
                         const int32_t *group, int32_t own) {
    ProgramPiece *piece = ARENA_ARRAY(arena, ProgramPiece, 1);
    ProgramTransfer *transfer = ARENA_ARRAY(arena, ProgramTransfer, 1);
    int64_t *start = ARENA_ARRAY(arena, int64_t, 1);
    if (arena->failed) return;
    bool is_sender = own == group[0], is_receiver = own == group[1];
    *piece =
        (ProgramPiece){.peer = is_sender ? group[1] : group[0], .start = start, .extent = shapes->operand};
    *transfer = (ProgramTransfer){.send_count = is_sender,
                                  .receive_count = is_receiver,
                                  .sends = piece,
                                  .receives = piece,
                                  .rank_count = 2,
                                  .ranks = group,
                                  .sender = 0,
                                  .receiver = 1};
    instruction->kind = PROGRAM_TRANSFER;
    instruction->transfer = transfer;
    instruction->operand_count = is_sender;
    instruction->result_count = is_receiver;
}

/* The memory of a rank for the cases. */
typedef struct Needs {
    int64_t operand, result, scratch;
} Needs;

/* Prepares the call of one case: a program of one instruction, from value 0 to value 1. */
static AmStatus prepare_case(Member *member, int32_t c, const ProgramInstruction **result, Needs *needs) {
    Arena *arena = &member->arena;
    const ProbeCase *of = &member->timer->cases[c];
    int32_t n = member->timer->group_size;
    Program *program = ARENA_ARRAY(arena, Program, 1);
    Shapes *shapes = ARENA_ARRAY(arena, Shapes, 1);
    ProgramValue *values = ARENA_ARRAY(arena, ProgramValue, 2);
    ProgramInstruction *instruction = ARENA_ARRAY(arena, ProgramInstruction, 1);
    int32_t *group = ARENA_ARRAY(arena, int32_t, n), *operand = ARENA_ARRAY(arena, int32_t, 1);
    if (arena->failed) return am_fail_memory(&member->error, 4096);
    for (int32_t k = 0; k < n; k++) group[k] = member->rank / n * n + k;
    find_shapes(shapes, of, n);
    for (int32_t v = 0; v < 2; v++) {
        const int64_t *dimensions = v == 0 ? shapes->operand : shapes->result;
        values[v].shape = (IrShape){.type = DTYPE_F32, .rank = shapes->rank, .dimensions = dimensions};
    }
    *instruction = (ProgramInstruction){
        .operand_count = 1, .result_count = 1, .operands = operand, .first_result = 1, .compute.called = -1};
    if (of->is_transfer) add_transfer(instruction, arena, shapes, group, member->rank);
    else add_collective(instruction, arena, of, shapes, group, n);
    if (arena->failed) return am_fail_memory(&member->error, 4096);
    *program = (Program){.arena = arena, .values = values, .value_count = 2};
    TRY(comm_prepare(&member->calls[c], arena, &member->timer->comms[member->rank], program, instruction,
                     &member->error));
    needs->operand = larger_integer(needs->operand, kernel_align(ir_shape_bytes(&values[0].shape)));
    needs->result = larger_integer(needs->result, kernel_align(ir_shape_bytes(&values[1].shape)));
    needs->scratch = larger_integer(needs->scratch, kernel_align(member->calls[c]->scratch_bytes + 1));
    *result = instruction;
    return AM_OK;
}

static AmStatus open_member(Member *member) {
    const CaseTimer *timer = member->timer;
    KernelDevice *device = timer->devices[member->rank];
    /* All cases have the same memory. */
    int32_t count = member->timer->case_count;
    const ProgramInstruction **instructions =
        ARENA_ARRAY(&member->arena, const ProgramInstruction *, count + 1);
    Needs needs = {0};
    member->calls = ARENA_ARRAY(&member->arena, CommCall *, count + 1);
    member->records = ARENA_ARRAY(&member->arena, void *, count + 1);
    if (member->arena.failed) return am_fail_memory(&member->error, count);
    for (int32_t c = 0; c < count; c++) TRY(prepare_case(member, c, &instructions[c], &needs));
    TRY(device->back_end->allocate(device, (void **)&member->memory,
                                   needs.operand + needs.result + needs.scratch, &member->error));
    void *const values[] = {member->memory, member->memory + needs.operand};
    for (int32_t c = 0; c < count; c++)
        comm_bind(member->calls[c], instructions[c], values, member->memory + needs.operand + needs.result);
    if (timer->ranks->stopwatch) return timer->ranks->stopwatch->open(&member->watch, device, &member->error);
    return probe_walk_open(&member->walk, &member->error);
}

static void close_member(Member *member) {
    const CaseTimer *timer = member->timer;
    KernelDevice *device = timer->devices[member->rank];
    if (timer->ranks->stopwatch) timer->ranks->stopwatch->close(member->watch);
    if (member->memory) device->back_end->release(device, member->memory);
    probe_walk_close(&member->walk);
    arena_free(&member->arena);
}

/* Starts the back ends in the rank's thread, before the first case. */
static AmStatus start_back_ends(Member *member) {
    KernelDevice *device = member->timer->devices[member->rank];
    Comm *comm = &member->timer->comms[member->rank];
    TRY(device_finish(device, &member->error));
    return comm_start(comm, &member->error);
}

/* Times by the host's clock. */
static AmStatus run_iterations(Member *member, const CommCall *call, int32_t iterations) {
    Comm *comm = &member->timer->comms[member->rank];
    member->last = clock_seconds();
    for (int32_t k = 0; k < iterations; k++) {
        /* A rank computes before a collective, and so replaces the contents of its caches. */
        int64_t bytes = ir_shape_bytes(call->operand_shapes[0]);
        for (int64_t n = 0; n < bytes; n += PROBE_CACHE_LINE) member->memory[n] = 0;
        probe_walk(&member->walk, WALK_BYTES);
        member->begins[k] = clock_seconds();
        TRY(comm_run(comm, call, &member->error));
        member->ends[k] = clock_seconds();
    }
    return AM_OK;
}

static AmStatus finish_queue(Member *member) {
    KernelDevice *device = member->timer->devices[member->rank];
    Comm *comm = &member->timer->comms[member->rank];
    TRY(comm_await(comm, &member->error));
    return device_synchronize(device, &member->error);
}

static int32_t in_a_row(const CaseTimer *timer) {
    return timer->cases[timer->current].bytes > long_bytes ? LEAST_IN_A_ROW : MOST_IN_A_ROW;
}

/* Issues some calls in a row, or their record, as executable_run() does. */
static AmStatus issue_row(Member *member, const CommCall *call) {
    Comm *comm = &member->timer->comms[member->rank];
    const KernelBackEnd *kernels = comm->device->back_end;
    void **record = &member->records[member->timer->current];
    bool done = false, recordable = kernels->begin && !comm->back_end->waits_on_ranks;
    while (!done) {
        AmStatus status = AM_OK;
        if (recordable && kernels->begin(comm->device, record)) return AM_OK;
        for (int32_t k = 0; k < in_a_row(member->timer) && status == AM_OK; k++)
            status = comm_run(comm, call, &member->error);
        comm_wait(comm, call);
        done = !recordable || kernels->end(comm->device, record);
        TRY(status);
    }
    return AM_OK;
}

/* Times by the stopwatch of the device, after a sequence has been recorded. */
static AmStatus run_queued(Member *member, const CommCall *call, int32_t iterations) {
    const ProbeStopwatch *stopwatch = member->timer->ranks->stopwatch;
    double seconds = 0;
    for (int32_t k = 0; k < WARM_RUNS && member->timer->series == 0; k++) TRY(issue_row(member, call));
    TRY(finish_queue(member));
    stopwatch->begin(member->watch);
    for (int32_t k = 0; k < iterations; k++) TRY(issue_row(member, call));
    stopwatch->end(member->watch);
    TRY(finish_queue(member));
    TRY(stopwatch->read(member->watch, &seconds, &member->error));
    member->queued = seconds / iterations / in_a_row(member->timer);
    return AM_OK;
}

/* Returns the time of a group that begins at that rank, in which each rank has its own processor. */
static double time_in_step(const CaseTimer *timer, int32_t first, int32_t iterations) {
    double samples[MOST_ITERATIONS];
    for (int32_t k = 0; k < iterations; k++) {
        double begin = 0, end = 0;
        for (int32_t r = first; r < first + timer->group_size; r++) {
            begin = fmax(begin, timer->members[r].begins[k]);
            end = fmax(end, timer->members[r].ends[k]);
        }
        samples[k] = end - begin;
    }
    return probe_median(samples, iterations) - timer->clock_seconds;
}

/* Returns the time of one rank that shares its processor: a mean, since some iterations pass before the
 * others are scheduled. */
static double time_shared(const CaseTimer *timer, const Member *member, int32_t iterations) {
    double computing = 0, last = member->last;
    for (int32_t k = 0; k < iterations; k++) {
        computing += member->begins[k] - last;
        last = member->ends[k];
    }
    return (last - member->last - timer->ranks->sharing * computing) / iterations;
}

/* Returns the time of one, by the series that all have ended: the mean of the groups. */
static double time_series(const CaseTimer *timer) {
    int32_t n = timer->group_size, count = timer->ranks->count;
    double sum = 0;
    for (int32_t first = 0; first < count; first += n) {
        double of_group = INFINITY, shared = 0;
        for (int32_t r = first; r < first + n; r++) {
            of_group = fmin(of_group, timer->members[r].queued);
            if (timer->ranks->sharing > 1)
                shared += time_shared(timer, &timer->members[r], timer->iterations) / n;
        }
        if (timer->ranks->sharing > 1) of_group = shared;
        else if (!timer->ranks->stopwatch) of_group = time_in_step(timer, first, timer->iterations);
        sum += of_group;
    }
    return fmax(sum * n / count, 1e-8);
}

/* Records a failure and releases the others from waiting. */
static void note_failure(Member *member) {
    CaseTimer *timer = member->timer;
    Comm *comm = &timer->comms[member->rank];
    int32_t no_rank = -1;
    if (member->status == AM_OK) return;
    atomic_compare_exchange_strong(&timer->failed, &no_rank, member->rank);
    comm_abort(comm);
}

static bool any_failed(const CaseTimer *timer) {
    return atomic_load(&timer->failed) >= 0;
}

static int32_t least_iterations(const CaseTimer *timer) {
    return timer->ranks->stopwatch ? LEAST_QUEUED_ITERATIONS : LEAST_ITERATIONS;
}

/* Begins a case: the first rank calls it before the first series. */
static void begin_case(CaseTimer *timer) {
    double now = clock_seconds(), left = timer->end - now;
    timer->cases[timer->current].seconds = -1;
    timer->begun = now;
    timer->series = 0;
    timer->iterations = left > 0 && !any_failed(timer) ? least_iterations(timer) : 0;
    double patience = timer->ranks->patience;
    if (patience <= 0) patience = probe_full_pace.collective_seconds;
    timer->patience = fmin(patience, left / (timer->case_count - timer->current));
}

/* Decides on the next series and its length: the first rank calls it when all have ended one. */
static void plan_next(CaseTimer *timer) {
    double seconds = time_series(timer), spent = clock_seconds() - timer->begun;
    double *least = &timer->cases[timer->current].seconds;
    bool is_first = timer->series++ == 0, agrees = false;
    int32_t iterations = timer->iterations;
    if (is_first) *least = seconds;
    else agrees = fmax(seconds, *least) < agreement * fmin(seconds, *least);
    *least = fmin(*least, seconds);
    double wanted = iterations * timer->patience / LEAST_SERIES / fmax(spent / timer->series, 1e-9);
    timer->iterations = (int32_t)fmax(least_iterations(timer), fmin(MOST_ITERATIONS, wanted));
    if (any_failed(timer) || clock_seconds() > timer->end ||
        (timer->series >= LEAST_SERIES &&
         (agrees || spent > timer->patience || timer->series >= MOST_SERIES)))
        timer->iterations = 0;
}

/* Runs a rank's thread. Every thread waits at every barrier, even after a failure. */
static void *run_member(void *argument) {
    Member *member = argument;
    CaseTimer *timer = member->timer;
    pthread_mutex_lock(&timer->gate);
    pthread_mutex_unlock(&timer->gate);
    if (timer->is_off) return NULL;
    member->status = start_back_ends(member);
    note_failure(member);
    for (int32_t c = 0; c < timer->case_count; c++) {
        pthread_barrier_wait(&timer->barrier);
        if (member->rank == 0) {
            timer->current = c;
            begin_case(timer);
        }
        pthread_barrier_wait(&timer->barrier);
        while (timer->iterations > 0) {
            const CommCall *call = member->calls[timer->current];
            if (member->status == AM_OK)
                member->status = timer->ranks->stopwatch ? run_queued(member, call, timer->iterations)
                                                         : run_iterations(member, call, timer->iterations);
            note_failure(member);
            pthread_barrier_wait(&timer->barrier);
            if (member->rank == 0) plan_next(timer);
            pthread_barrier_wait(&timer->barrier);
        }
        if (member->rank == 0 && timer->listener) timer->listener->on_case(timer->listener->user, c + 1);
    }
    return NULL;
}

/* Runs the threads of all ranks, or none if one of them cannot be started. */
static AmStatus run_threads(CaseTimer *timer, AmError *error) {
    int32_t count = timer->ranks->count, started = 1;
    AmStatus status = AM_OK;
    pthread_mutex_lock(&timer->gate);
    for (; started < count; started++)
        if ((status = parallel_start_thread(&timer->members[started].thread, run_member,
                                            &timer->members[started], error)) != AM_OK)
            break;
    timer->is_off = started < count;
    pthread_mutex_unlock(&timer->gate);
    run_member(&timer->members[0]);
    for (int32_t r = 1; r < started; r++) pthread_join(timer->members[r].thread, NULL);
    return status;
}

static AmStatus run_members(CaseTimer *timer, AmError *error) {
    for (int32_t r = 0; r < timer->ranks->count; r++) {
        AmStatus status = open_member(&timer->members[r]);
        if (status == AM_OK) continue;
        return am_pass_error(status, &timer->members[r].error, error);
    }
    pthread_mutex_init(&timer->gate, NULL);
    pthread_barrier_init(&timer->barrier, NULL, (unsigned)timer->ranks->count);
    AmStatus status = run_threads(timer, error);
    pthread_barrier_destroy(&timer->barrier);
    pthread_mutex_destroy(&timer->gate);
    if (status != AM_OK || !any_failed(timer)) return status;
    const Member *failed = &timer->members[atomic_load(&timer->failed)];
    return am_pass_error(failed->status, &failed->error, error);
}

static AmStatus open_ranks(CaseTimer *timer, AmError *error) {
    const ProbeRanks *ranks = timer->ranks;
    for (int32_t r = 0; r < ranks->count; r++) {
        const KernelOptions options = {.index = r, .threads = 1, .ranks_here = ranks->count};
        TRY(ranks->kernels->open(&timer->devices[r], &options, error));
    }
    return ranks->comm->open(timer->comms, 0, ranks->count, ranks->count, timer->devices, NULL, error);
}

AmStatus probe_time_cases(const ProbeRanks *ranks, int32_t group_size, ProbeCase *cases, int32_t count,
                          double end, const ProbeCaseListener *listener, AmError *error) {
    CaseTimer *timer = calloc(1, sizeof *timer);
    Member *members = calloc((size_t)ranks->count, sizeof *members);
    AmStatus status =
        timer && members ? AM_OK : am_fail_memory(error, (int64_t)sizeof *members * ranks->count);
    if (status == AM_OK) {
        *timer = (CaseTimer){.ranks = ranks,
                             .group_size = group_size,
                             .cases = cases,
                             .case_count = count,
                             .members = members,
                             .end = end,
                             .clock_seconds = clock_cost(),
                             .listener = listener};
        atomic_store(&timer->failed, -1);
        for (int32_t r = 0; r < ranks->count; r++)
            members[r] = (Member){.timer = timer, .rank = r, .queued = INFINITY};
        status = open_ranks(timer, error);
        if (status == AM_OK) {
            status = run_members(timer, error);
            for (int32_t r = 0; r < ranks->count; r++) close_member(&members[r]);
            ranks->comm->close(timer->comms);
        }
    }
    for (int32_t r = 0; timer && r < ranks->count; r++)
        if (timer->devices[r]) ranks->kernels->close(timer->devices[r]);
    free(members);
    free(timer);
    return status;
}
