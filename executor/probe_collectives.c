/* Each kind of collective is run again and again by all ranks, as in a training step: before each every
 * rank writes its operand anew and goes through other memory. What that takes, once for every rank of a
 * processor, is taken off the time from one end to the next,
 *
 *   seconds = median(turn) - ranks / processors * median(work in between),
 *
 * so that waiting for one another, and being woken where ranks share a processor, is in the figure. The
 * least of some series counts. Tensors are vectors of f32, cut along their only dimension; an
 * all_to_all cuts a square.
 */
#include "executor/probe_collectives.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "executor/comm.h"

enum { MOST_RANKS = 64, LEAST_SERIES = 3, MOST_SERIES = 12, MOST_TURNS = 48, LEAST_TURNS = 8, SIZES = 6 };
enum { CACHE_LINE = 64, WALK_BYTES = 1 << 14, WALKED_BYTES = 1 << 22 };
static const double patience = 0.1, agreement = 1.05;
static const int64_t sizes[SIZES] = {256, 4096, 32768, 262144, 2097152, 8388608};

typedef struct Meeting {
    ProgramCollectiveKind kind;
    int32_t ranks, group_size;
    int64_t bytes; /* of the whole tensor */
    Comm comms[MOST_RANKS];
    KernelDevice *devices[MOST_RANKS];
    double sharing; /* ranks of a processor */
    pthread_barrier_t together;
    _Atomic int32_t turns; /* of the next series; 0: there is none */
    double seconds[MOST_RANKS], begun;
    double least;
} Meeting;

/* One rank's collective: a program of one instruction. */
typedef struct Member {
    Meeting *meeting;
    int32_t rank;
    pthread_t thread;
    Arena arena;
    CommCall *call;
    void *memory[3]; /* operand, result, scratch */
    int64_t operand_bytes;
    char *walked; /* [WALKED_BYTES] */
    int64_t walk; /* where the next walk begins */
    AmStatus status;
    AmError error;
} Member;

/* Local shapes of operand and result, and how they are cut. */
typedef struct Shapes {
    int64_t operand[2], result[2];
    int32_t rank;
    int64_t parts[MOST_RANKS];
} Shapes;

static void find_shapes(Shapes *shapes, ProgramCollectiveKind kind, int64_t bytes, int32_t n) {
    int64_t part = bytes / 4 / n > 0 ? bytes / 4 / n : 1, whole = part * n;
    *shapes = (Shapes){.operand = {whole, 1}, .result = {whole, 1}, .rank = 1};
    for (int32_t k = 0; k < n; k++) shapes->parts[k] = part;
    if (kind == PROGRAM_ALL_GATHER) shapes->operand[0] = part;
    if (kind == PROGRAM_REDUCE_SCATTER) shapes->result[0] = part;
    if (kind != PROGRAM_ALL_TO_ALL) return;
    int64_t side = (int64_t)sqrt((double)whole) / n;
    side = side > 0 ? side : 1;
    for (int32_t k = 0; k < n; k++) shapes->parts[k] = side;
    *shapes = (Shapes){.operand = {side, side * n}, .result = {side * n, side}, .rank = 2};
    for (int32_t k = 0; k < n; k++) shapes->parts[k] = side;
}

static AmStatus open_member(Member *member) {
    const Meeting *meeting = member->meeting;
    Arena *arena = &member->arena;
    int32_t n = meeting->group_size;
    Shapes *shapes = ARENA_ARRAY(arena, Shapes, 1);
    ProgramValue *values = ARENA_ARRAY(arena, ProgramValue, 2);
    ProgramMovement *movement = ARENA_ARRAY(arena, ProgramMovement, 1);
    ProgramCollective *collective = ARENA_ARRAY(arena, ProgramCollective, 1);
    ProgramInstruction *instruction = ARENA_ARRAY(arena, ProgramInstruction, 1);
    Program *program = ARENA_ARRAY(arena, Program, 1);
    int32_t *group = ARENA_ARRAY(arena, int32_t, n), *operand = ARENA_ARRAY(arena, int32_t, 1);
    if (arena->failed) return am_fail_memory(&member->error, 4096);
    find_shapes(shapes, meeting->kind, meeting->bytes, n);
    for (int32_t k = 0; k < n; k++) group[k] = member->rank / n * n + k;
    *movement = (ProgramMovement){.other = 1, .parts = shapes->parts, .other_parts = shapes->parts};
    *collective = (ProgramCollective){.kind = meeting->kind,
                                      .reduction = SBP_ADD,
                                      .axes = 1,
                                      .group_count = n,
                                      .group = group,
                                      .movements = movement};
    for (int32_t v = 0; v < 2; v++) {
        const int64_t *dimensions = v == 0 ? shapes->operand : shapes->result;
        values[v].shape = (IrShape){.type = DTYPE_F32, .rank = shapes->rank, .dimensions = dimensions};
        size_t bytes = (size_t)kernel_align(ir_shape_bytes(&values[v].shape));
        member->memory[v] = aligned_alloc(64, bytes);
        if (!member->memory[v]) return am_fail_memory(&member->error, (int64_t)bytes);
        memset(member->memory[v], 0, bytes);
        if (v == 0) member->operand_bytes = (int64_t)bytes;
    }
    member->walked = calloc(1, WALKED_BYTES);
    if (!member->walked) return am_fail_memory(&member->error, WALKED_BYTES);
    *instruction = (ProgramInstruction){.kind = PROGRAM_COLLECTIVE,
                                        .operand_count = 1,
                                        .result_count = 1,
                                        .operands = operand,
                                        .first_result = 1,
                                        .collective = collective};
    *program = (Program){.arena = arena, .values = values, .value_count = 2};
    TRY(comm_prepare(&member->call, arena, &member->meeting->comms[member->rank], program, instruction,
                     &member->error));
    size_t scratch = (size_t)kernel_align(member->call->scratch_bytes + 1);
    member->memory[2] = aligned_alloc(64, scratch);
    if (!member->memory[2]) return am_fail_memory(&member->error, (int64_t)scratch);
    comm_bind(member->call, instruction, member->memory, member->memory[2]);
    return AM_OK;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *samples, int32_t count) {
    qsort(samples, (size_t)count, sizeof *samples, compare);
    return samples[count / 2];
}

/* By the first rank, when all have ended a series: whether, and how long, the next one is. */
static void plan_next(Meeting *meeting, int32_t turns, int32_t done) {
    double seconds = 0, spent = clock_seconds() - meeting->begun;
    for (int32_t r = 0; r < meeting->ranks; r++) seconds += meeting->seconds[r] / meeting->ranks;
    seconds = fmax(seconds, 1e-8);
    bool agrees = fmax(seconds, meeting->least) < agreement * fmin(seconds, meeting->least);
    meeting->least = fmin(meeting->least, seconds);
    double wanted = turns * patience / LEAST_SERIES / fmax(spent / done, 1e-9);
    int32_t next = wanted < LEAST_TURNS ? LEAST_TURNS : wanted > MOST_TURNS ? MOST_TURNS : (int32_t)wanted;
    bool is_done = done >= LEAST_SERIES && (agrees || spent > patience || done >= MOST_SERIES);
    atomic_store(&meeting->turns, is_done ? 0 : next);
}

/* What a rank computes before it meets the others. */
static void compute(Member *member) {
    char *operand = member->memory[0];
    for (int64_t k = 0; k < member->operand_bytes; k += CACHE_LINE) operand[k] = 0;
    for (int64_t k = 0; k < WALK_BYTES; k += CACHE_LINE) {
        member->walked[member->walk]++;
        member->walk = (member->walk + CACHE_LINE) % WALKED_BYTES;
    }
}

/* What a collective takes of a turn, as this rank sees it. */
static double run_series(Member *member, int32_t turns) {
    Comm *comm = &member->meeting->comms[member->rank];
    double works[MOST_TURNS], all[MOST_TURNS], last = clock_seconds();
    for (int32_t k = 0; k < turns; k++) {
        compute(member);
        double computed = clock_seconds();
        if (member->status == AM_OK) member->status = comm->back_end->run(comm, member->call, &member->error);
        double end = clock_seconds();
        works[k] = computed - last;
        all[k] = end - last;
        last = end;
    }
    return median(all, turns) - member->meeting->sharing * median(works, turns);
}

static void *work(void *argument) {
    Member *member = argument;
    Meeting *meeting = member->meeting;
    if (kernels_cpu.finish) kernels_cpu.finish(meeting->devices[member->rank], NULL);
    for (int32_t k = 1;; k++) {
        pthread_barrier_wait(&meeting->together);
        int32_t turns = atomic_load(&meeting->turns);
        if (turns == 0) return NULL;
        meeting->seconds[member->rank] = run_series(member, turns);
        pthread_barrier_wait(&meeting->together);
        if (member->rank == 0) plan_next(meeting, turns, k);
    }
}

/* All members exist before the first one runs. */
static AmStatus run_members(Member *members, Meeting *meeting, AmError *error) {
    AmStatus status = AM_OK;
    int32_t started = 1;
    for (int32_t r = 0; r < meeting->ranks && status == AM_OK; r++) {
        status = open_member(&members[r]);
        if (status != AM_OK && error) *error = members[r].error;
    }
    if (status != AM_OK) return status;
    pthread_barrier_init(&meeting->together, NULL, (unsigned)meeting->ranks);
    for (; started < meeting->ranks; started++)
        if (pthread_create(&members[started].thread, NULL, work, &members[started]) != 0) break;
    if (started < meeting->ranks)
        return am_fail(error, AM_ERROR_RUNTIME, "", "cannot start a thread to measure with");
    work(&members[0]);
    for (int32_t r = 1; r < meeting->ranks; r++) pthread_join(members[r].thread, NULL);
    pthread_barrier_destroy(&meeting->together);
    for (int32_t r = 0; r < meeting->ranks && status == AM_OK; r++) {
        status = members[r].status;
        if (status != AM_OK && error) *error = members[r].error;
    }
    return status;
}

static AmStatus measure(Meeting *meeting, AmError *error) {
    Member *members = calloc((size_t)meeting->ranks, sizeof *members);
    if (!members) return am_fail_memory(error, (int64_t)sizeof *members * meeting->ranks);
    meeting->least = INFINITY;
    meeting->begun = clock_seconds();
    atomic_store(&meeting->turns, LEAST_TURNS);
    for (int32_t r = 0; r < meeting->ranks; r++) members[r] = (Member){.meeting = meeting, .rank = r};
    AmStatus status =
        comm_local.open(meeting->comms, 0, meeting->ranks, meeting->ranks, meeting->devices, NULL, error);
    if (status == AM_OK) {
        status = run_members(members, meeting, error);
        comm_local.close(meeting->comms);
    }
    for (int32_t r = 0; r < meeting->ranks; r++) {
        for (int32_t k = 0; k < 3; k++) free(members[r].memory[k]);
        free(members[r].walked);
        arena_free(&members[r].arena);
    }
    free(members);
    return status;
}

/* Groups of 2, of 4, and so on up to all ranks. */
static int32_t next_group(int32_t size, int32_t ranks) {
    for (int32_t next = size + 1; next <= ranks; next++)
        if (ranks % next == 0) return next;
    return ranks + 1;
}

static json_t *number(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return json_real(strtod(text, NULL));
}

static AmStatus measure_kind(json_t **curve, Meeting *meeting, const ProbeListener *listener,
                             AmError *error) {
    json_t *groups = json_array(), *bytes = json_array(), *seconds = json_array();
    *curve = json_pack("{s:[o, o], s:o}", "sizes", groups, bytes, "seconds", seconds);
    for (int32_t k = 0; k < SIZES; k++) json_array_append_new(bytes, json_integer(sizes[k]));
    for (int32_t n = 2; n <= meeting->ranks; n = next_group(n, meeting->ranks)) {
        double least[SIZES];
        if (meeting->ranks % n != 0) continue;
        json_array_append_new(groups, json_integer(n));
        for (int32_t k = 0; k < SIZES; k++) {
            meeting->group_size = n;
            meeting->bytes = sizes[k];
            TRY(measure(meeting, error));
            least[k] = meeting->least;
        }
        for (int32_t k = SIZES - 2; k >= 0; k--) least[k] = fmin(least[k], least[k + 1]);
        for (int32_t k = 0; k < SIZES; k++) {
            json_array_append_new(seconds, number(least[k]));
            if (listener->collective)
                TRY(listener->collective(listener->user, listener->type, meeting->kind, n, (double)sizes[k],
                                         least[k], error));
        }
    }
    return AM_OK;
}

AmStatus probe_collectives(json_t **collectives, int32_t ranks, int32_t processors,
                           const ProbeListener *listener, AmError *error) {
    static const ProgramCollectiveKind kinds[] = {PROGRAM_ALL_REDUCE, PROGRAM_ALL_GATHER,
                                                  PROGRAM_REDUCE_SCATTER, PROGRAM_ALL_TO_ALL};
    const KernelOptions options = {.threads = 1, .ranks_here = ranks};
    Meeting *meeting = calloc(1, sizeof *meeting);
    AmStatus status = meeting ? AM_OK : am_fail_memory(error, (int64_t)sizeof *meeting);
    *collectives = json_object();
    if (meeting) meeting->ranks = ranks < MOST_RANKS ? ranks : MOST_RANKS;
    if (meeting) meeting->sharing = fmax(1, (double)meeting->ranks / processors);
    for (int32_t r = 0; status == AM_OK && r < meeting->ranks; r++)
        status = kernels_cpu.open(&meeting->devices[r], &options, error);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && status == AM_OK; k++) {
        json_t *curve;
        meeting->kind = kinds[k];
        status = measure_kind(&curve, meeting, listener, error);
        json_object_set_new(*collectives, program_collective_name(kinds[k]), curve);
    }
    for (int32_t r = 0; meeting && r < meeting->ranks; r++)
        if (meeting->devices[r]) kernels_cpu.close(meeting->devices[r]);
    free(meeting);
    return status;
}
