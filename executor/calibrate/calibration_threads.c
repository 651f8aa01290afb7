/* Times collectives and transfers between ranks, each of them a thread, as `automap run` runs them. */
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

typedef struct Meeting {
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
    pthread_barrier_t together;
    /* Written by the first rank, while the others wait. */
    int32_t current;        /* case */
    int32_t iterations;     /* of the next series; 0: no more of this case */
    int32_t series;         /* of this case, that are done */
    double begun, patience; /* of this case */
    double end, clock_seconds;
    void (*on_case)(void *user, int32_t done);
    void *user;
} Meeting;

/* One rank with its calls, one for each case. */
struct Member {
    Meeting *meeting;
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

/* All of it from the first rank of the group to the second, the only ones that have to do with it. */
static void add_transfer(ProgramInstruction *instruction, Arena *arena, const Shapes *shapes,
                         const int32_t *group, int32_t own) {
    ProgramPiece *piece = ARENA_ARRAY(arena, ProgramPiece, 1);
    ProgramTransfer *transfer = ARENA_ARRAY(arena, ProgramTransfer, 1);
    int64_t *start = ARENA_ARRAY(arena, int64_t, 1);
    if (arena->failed) return;
    bool gives = own == group[0], takes = own == group[1];
    *piece = (ProgramPiece){.peer = gives ? group[1] : group[0], .start = start, .extent = shapes->operand};
    *transfer = (ProgramTransfer){.send_count = gives,
                                  .receive_count = takes,
                                  .sends = piece,
                                  .receives = piece,
                                  .rank_count = 2,
                                  .ranks = group,
                                  .sender = 0,
                                  .receiver = 1};
    instruction->kind = PROGRAM_TRANSFER;
    instruction->transfer = transfer;
    instruction->operand_count = gives;
    instruction->result_count = takes;
}

/* The memory of a rank for the cases. */
typedef struct Needs {
    int64_t operand, result, scratch;
} Needs;

/* The call of one case: a program of one instruction, from value 0 to value 1. */
static AmStatus prepare_case(Member *member, int32_t c, const ProgramInstruction **result, Needs *needs) {
    Arena *arena = &member->arena;
    const ProbeCase *of = &member->meeting->cases[c];
    int32_t n = member->meeting->group_size;
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
        .operand_count = 1, .result_count = 1, .operands = operand, .first_result = 1, .called = -1};
    if (of->is_transfer) add_transfer(instruction, arena, shapes, group, member->rank);
    else add_collective(instruction, arena, of, shapes, group, n);
    if (arena->failed) return am_fail_memory(&member->error, 4096);
    *program = (Program){.arena = arena, .values = values, .value_count = 2};
    TRY(comm_prepare(&member->calls[c], arena, &member->meeting->comms[member->rank], program, instruction,
                     &member->error));
    needs->operand = larger_integer(needs->operand, kernel_align(ir_shape_bytes(&values[0].shape)));
    needs->result = larger_integer(needs->result, kernel_align(ir_shape_bytes(&values[1].shape)));
    needs->scratch = larger_integer(needs->scratch, kernel_align(member->calls[c]->scratch_bytes + 1));
    *result = instruction;
    return AM_OK;
}

/* Prepares all cases, which have the same memory, and binds them. */
static AmStatus prepare_cases(Member *member) {
    int32_t count = member->meeting->case_count;
    KernelDevice *device = member->meeting->devices[member->rank];
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
    return AM_OK;
}

static AmStatus open_member(Member *member) {
    const Meeting *meeting = member->meeting;
    KernelDevice *device = meeting->devices[member->rank];
    TRY(prepare_cases(member));
    if (meeting->ranks->stopwatch)
        return meeting->ranks->stopwatch->open(&member->watch, device, &member->error);
    return probe_walk_open(&member->walk, &member->error);
}

static void close_member(Member *member) {
    const Meeting *meeting = member->meeting;
    KernelDevice *device = meeting->devices[member->rank];
    if (meeting->ranks->stopwatch) meeting->ranks->stopwatch->close(member->watch);
    if (member->memory) device->back_end->release(device, member->memory);
    probe_walk_close(&member->walk);
    arena_free(&member->arena);
}

/* In the rank's thread, as a run begins. */
static AmStatus start(Member *member) {
    KernelDevice *device = member->meeting->devices[member->rank];
    Comm *comm = &member->meeting->comms[member->rank];
    if (device->back_end->finish) TRY(device->back_end->finish(device, &member->error));
    return comm->back_end->start ? comm->back_end->start(comm, &member->error) : AM_OK;
}

/* Times by the host's clock. */
static AmStatus run_iterations(Member *member, const CommCall *call, int32_t iterations) {
    Comm *comm = &member->meeting->comms[member->rank];
    member->last = clock_seconds();
    for (int32_t k = 0; k < iterations; k++) {
        /* A rank computes before it meets the others, and so replaces the contents of its caches. */
        int64_t bytes = ir_shape_bytes(call->operand_shapes[0]);
        for (int64_t n = 0; n < bytes; n += PROBE_CACHE_LINE) member->memory[n] = 0;
        probe_walk(&member->walk, WALK_BYTES);
        member->begins[k] = clock_seconds();
        TRY(comm->back_end->run(comm, call, &member->error));
        member->ends[k] = clock_seconds();
    }
    return AM_OK;
}

static AmStatus finish_queue(Member *member) {
    KernelDevice *device = member->meeting->devices[member->rank];
    Comm *comm = &member->meeting->comms[member->rank];
    if (comm->back_end->await) TRY(comm->back_end->await(comm, &member->error));
    return device->back_end->synchronize(device, &member->error);
}

static int32_t in_a_row(const Meeting *meeting) {
    return meeting->cases[meeting->current].bytes > long_bytes ? LEAST_IN_A_ROW : MOST_IN_A_ROW;
}

/* Some calls in a row, or their record, as executable_run() does it. */
static AmStatus issue_row(Member *member, const CommCall *call) {
    Comm *comm = &member->meeting->comms[member->rank];
    const KernelBackEnd *kernels = comm->device->back_end;
    void **record = &member->records[member->meeting->current];
    bool done = false, recordable = kernels->begin && !comm->back_end->meets_on_host;
    while (!done) {
        AmStatus status = AM_OK;
        if (recordable && kernels->begin(comm->device, record)) return AM_OK;
        for (int32_t k = 0; k < in_a_row(member->meeting) && status == AM_OK; k++)
            status = comm->back_end->run(comm, call, &member->error);
        if (comm->back_end->wait) comm->back_end->wait(comm, call);
        done = !recordable || kernels->end(comm->device, record);
        TRY(status);
    }
    return AM_OK;
}

/* Times by the stopwatch of the device, after a sequence has been recorded. */
static AmStatus run_queued(Member *member, const CommCall *call, int32_t iterations) {
    const ProbeStopwatch *stopwatch = member->meeting->ranks->stopwatch;
    double seconds = 0;
    for (int32_t k = 0; k < WARM_RUNS && member->meeting->series == 0; k++) TRY(issue_row(member, call));
    TRY(finish_queue(member));
    stopwatch->begin(member->watch);
    for (int32_t k = 0; k < iterations; k++) TRY(issue_row(member, call));
    stopwatch->end(member->watch);
    TRY(finish_queue(member));
    TRY(stopwatch->read(member->watch, &seconds, &member->error));
    member->queued = seconds / iterations / in_a_row(member->meeting);
    return AM_OK;
}

/* The time of a group that begins at that rank, in which each rank has its own processor. */
static double time_in_step(const Meeting *meeting, int32_t first, int32_t iterations) {
    double samples[MOST_ITERATIONS];
    for (int32_t k = 0; k < iterations; k++) {
        double begin = 0, end = 0;
        for (int32_t r = first; r < first + meeting->group_size; r++) {
            begin = fmax(begin, meeting->members[r].begins[k]);
            end = fmax(end, meeting->members[r].ends[k]);
        }
        samples[k] = end - begin;
    }
    return probe_median(samples, iterations) - meeting->clock_seconds;
}

/* The time of one rank that shares its processor: a mean, since some iterations pass before the
 * others are scheduled.
 */
static double time_shared(const Meeting *meeting, const Member *member, int32_t iterations) {
    double computing = 0, last = member->last;
    for (int32_t k = 0; k < iterations; k++) {
        computing += member->begins[k] - last;
        last = member->ends[k];
    }
    return (last - member->last - meeting->ranks->sharing * computing) / iterations;
}

/* The time of one, by the series that all have ended: the mean of the groups. */
static double time_series(const Meeting *meeting) {
    int32_t n = meeting->group_size, count = meeting->ranks->count;
    double sum = 0;
    for (int32_t first = 0; first < count; first += n) {
        double of_group = INFINITY, shared = 0;
        for (int32_t r = first; r < first + n; r++) {
            of_group = fmin(of_group, meeting->members[r].queued);
            if (meeting->ranks->sharing > 1)
                shared += time_shared(meeting, &meeting->members[r], meeting->iterations) / n;
        }
        if (meeting->ranks->sharing > 1) of_group = shared;
        else if (!meeting->ranks->stopwatch) of_group = time_in_step(meeting, first, meeting->iterations);
        sum += of_group;
    }
    return fmax(sum * n / count, 1e-8);
}

/* Records a failure and releases the others from waiting. */
static void note_failure(Member *member) {
    Meeting *meeting = member->meeting;
    Comm *comm = &meeting->comms[member->rank];
    int32_t nobody = -1;
    if (member->status == AM_OK) return;
    atomic_compare_exchange_strong(&meeting->failed, &nobody, member->rank);
    comm->back_end->abort(comm);
}

static bool any_failed(const Meeting *meeting) {
    return atomic_load(&meeting->failed) >= 0;
}

static int32_t least_iterations(const Meeting *meeting) {
    return meeting->ranks->stopwatch ? LEAST_QUEUED_ITERATIONS : LEAST_ITERATIONS;
}

/* Called by the first rank, before the first series of a case. */
static void begin_case(Meeting *meeting) {
    double now = clock_seconds(), left = meeting->end - now;
    meeting->cases[meeting->current].seconds = -1;
    meeting->begun = now;
    meeting->series = 0;
    meeting->iterations = left > 0 && !any_failed(meeting) ? least_iterations(meeting) : 0;
    double patience = meeting->ranks->patience;
    if (patience <= 0) patience = probe_full_pace.collective_seconds;
    meeting->patience = fmin(patience, left / (meeting->case_count - meeting->current));
}

/* Called by the first rank, when all have ended a series: decides on the next one and its length. */
static void plan_next(Meeting *meeting) {
    double seconds = time_series(meeting), spent = clock_seconds() - meeting->begun;
    double *least = &meeting->cases[meeting->current].seconds;
    bool is_first = meeting->series++ == 0, agrees = false;
    int32_t iterations = meeting->iterations;
    if (is_first) *least = seconds;
    else agrees = fmax(seconds, *least) < agreement * fmin(seconds, *least);
    *least = fmin(*least, seconds);
    double wanted = iterations * meeting->patience / LEAST_SERIES / fmax(spent / meeting->series, 1e-9);
    meeting->iterations = (int32_t)fmax(least_iterations(meeting), fmin(MOST_ITERATIONS, wanted));
    if (any_failed(meeting) || clock_seconds() > meeting->end ||
        (meeting->series >= LEAST_SERIES &&
         (agrees || spent > meeting->patience || meeting->series >= MOST_SERIES)))
        meeting->iterations = 0;
}

static void run_series(Member *member) {
    Meeting *meeting = member->meeting;
    const CommCall *call = member->calls[meeting->current];
    if (member->status == AM_OK)
        member->status = meeting->ranks->stopwatch ? run_queued(member, call, meeting->iterations)
                                                   : run_iterations(member, call, meeting->iterations);
    note_failure(member);
}

/* Every thread comes to every barrier, also one that failed. */
static void *attend(void *argument) {
    Member *member = argument;
    Meeting *meeting = member->meeting;
    pthread_mutex_lock(&meeting->gate);
    pthread_mutex_unlock(&meeting->gate);
    if (meeting->is_off) return NULL;
    member->status = start(member);
    note_failure(member);
    for (int32_t c = 0; c < meeting->case_count; c++) {
        pthread_barrier_wait(&meeting->together);
        if (member->rank == 0) {
            meeting->current = c;
            begin_case(meeting);
        }
        pthread_barrier_wait(&meeting->together);
        while (meeting->iterations > 0) {
            run_series(member);
            pthread_barrier_wait(&meeting->together);
            if (member->rank == 0) plan_next(meeting);
            pthread_barrier_wait(&meeting->together);
        }
        if (member->rank == 0 && meeting->on_case) meeting->on_case(meeting->user, c + 1);
    }
    return NULL;
}

/* All begin together; where one cannot be started none does. */
static AmStatus run_threads(Meeting *meeting, AmError *error) {
    int32_t count = meeting->ranks->count, started = 1;
    AmStatus status = AM_OK;
    pthread_mutex_lock(&meeting->gate);
    for (; started < count; started++)
        if ((status = parallel_start_thread(&meeting->members[started].thread, attend,
                                            &meeting->members[started], error)) != AM_OK)
            break;
    meeting->is_off = started < count;
    pthread_mutex_unlock(&meeting->gate);
    attend(&meeting->members[0]);
    for (int32_t r = 1; r < started; r++) pthread_join(meeting->members[r].thread, NULL);
    return status;
}

static AmStatus run_members(Meeting *meeting, AmError *error) {
    for (int32_t r = 0; r < meeting->ranks->count; r++) {
        AmStatus status = open_member(&meeting->members[r]);
        if (status == AM_OK) continue;
        return am_pass_error(status, &meeting->members[r].error, error);
    }
    pthread_mutex_init(&meeting->gate, NULL);
    pthread_barrier_init(&meeting->together, NULL, (unsigned)meeting->ranks->count);
    AmStatus status = run_threads(meeting, error);
    pthread_barrier_destroy(&meeting->together);
    pthread_mutex_destroy(&meeting->gate);
    if (status != AM_OK || !any_failed(meeting)) return status;
    const Member *failed = &meeting->members[atomic_load(&meeting->failed)];
    return am_pass_error(failed->status, &failed->error, error);
}

static AmStatus open_ranks(Meeting *meeting, AmError *error) {
    const ProbeRanks *ranks = meeting->ranks;
    for (int32_t r = 0; r < ranks->count; r++) {
        const KernelOptions options = {.index = r, .threads = 1, .ranks_here = ranks->count};
        TRY(ranks->kernels->open(&meeting->devices[r], &options, error));
    }
    return ranks->comm->open(meeting->comms, 0, ranks->count, ranks->count, meeting->devices, NULL, error);
}

AmStatus probe_meet(const ProbeRanks *ranks, int32_t group_size, ProbeCase *cases, int32_t count, double end,
                    void (*on_case)(void *user, int32_t done), void *user, AmError *error) {
    Meeting *meeting = calloc(1, sizeof *meeting);
    Member *members = calloc((size_t)ranks->count, sizeof *members);
    AmStatus status =
        meeting && members ? AM_OK : am_fail_memory(error, (int64_t)sizeof *members * ranks->count);
    if (status == AM_OK) {
        *meeting = (Meeting){.ranks = ranks,
                             .group_size = group_size,
                             .cases = cases,
                             .case_count = count,
                             .members = members,
                             .end = end,
                             .clock_seconds = clock_cost(),
                             .on_case = on_case,
                             .user = user};
        atomic_store(&meeting->failed, -1);
        for (int32_t r = 0; r < ranks->count; r++)
            members[r] = (Member){.meeting = meeting, .rank = r, .queued = INFINITY};
        status = open_ranks(meeting, error);
        if (status == AM_OK) {
            status = run_members(meeting, error);
            for (int32_t r = 0; r < ranks->count; r++) close_member(&members[r]);
            ranks->comm->close(meeting->comms);
        }
    }
    for (int32_t r = 0; meeting && r < ranks->count; r++)
        if (meeting->devices[r]) ranks->kernels->close(meeting->devices[r]);
    free(members);
    free(meeting);
    return status;
}
