/* Collectives by MPI, on 2 to 8 ranks in one or two per process: on integers against their
 * definition, on floating and complex numbers against comm_local bit for bit, transfers between two
 * meshes, and arrays of many chunks. */
#include "tests/support/mpi_case.h"

#include "tests/support/comm_case.h"
#include "tests/support/transfer_case.h"

#include <math.h>

static ProcessGroup *group;

static bool supports(SbpReduction reduction, Dtype type) {
    (void)reduction;
    return scalar64_supports(type);
}

static CasePlace place_of(int32_t ranks_here) {
    return (CasePlace){
        &kernels_cpu, &comm_mpi, group->process * ranks_here, ranks_here, group->count * ranks_here, group};
}

static AmStatus check_integers(int32_t ranks_here, AmError *error) {
    CasePlace place = place_of(ranks_here);
    CommCase cases[CASE_MOST];
    CaseRank all[CASE_MOST_RANKS];
    int32_t count = case_list(cases, supports, place.size);
    TRY(case_run_part(&place, cases, count, 2, -1, all, error));
    for (int32_t r = 0; r < ranks_here; r++) {
        if (all[r].status != AM_OK) return am_fail(error, all[r].status, "", "%s", all[r].error.text);
        if (all[r].wrong < 0) continue;
        const CommCase *its = &cases[all[r].wrong];
        return am_fail(error, AM_ERROR_INTERNAL, "",
                       "rank %d of %d: case %d is wrong: %s '%s' of %s along %d%s", place.first + r,
                       place.size, all[r].wrong, program_collective_name(its->kind),
                       sbp_reduction_name(its->reduction), dtype_name(its->type), its->dimension,
                       its->uneven ? ", uneven" : "");
    }
    return AM_OK;
}

/* ---- the same bits as comm_local ---- */

enum { BIT_ARRAYS = 4, BIT_MOST_RANKS = 8 };

static const struct {
    Dtype type;
    int64_t elements;
} bit_arrays[BIT_ARRAYS] = {{DTYPE_F32, 700001}, {DTYPE_BF16, 3}, {DTYPE_C64, 1021}, {DTYPE_F16, 66000}};

/* One rank's call: an all_reduce of all arrays, or a reduce_scatter along the only dimension. */
typedef struct BitRank {
    Comm *comm;
    bool scatters, small;
    ProgramCollective collective;
    ProgramMovement movements[BIT_ARRAYS];
    int64_t parts[BIT_ARRAYS][BIT_MOST_RANKS];
    int32_t group[BIT_MOST_RANKS];
    IrShape operand_shapes[BIT_ARRAYS], result_shapes[BIT_ARRAYS];
    const IrShape *operand_places[BIT_ARRAYS], *result_places[BIT_ARRAYS];
    int64_t operand_sizes[BIT_ARRAYS], result_sizes[BIT_ARRAYS];
    void *operands[BIT_ARRAYS], *results[BIT_ARRAYS];
    CommCall call;
    AmStatus status;
    AmError error;
} BitRank;

/* Numbers of very different sizes, so that the order of sums shows. */
static void fill(void *out, Dtype type, int64_t elements, int32_t rank, int32_t array) {
    Dtype part = dtype_is_complex(type) ? dtype_real_part(type) : type;
    int64_t count = elements * (dtype_bytes(type) / dtype_bytes(part));
    uint64_t state = (uint64_t)rank * 7919 + (uint64_t)array * 104729 + 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double value = (double)((int64_t)(state >> 33) - (1 << 30)) * 0x1p-30;
        Scalar64 wide = {.floating = ldexp(value, (int)(state >> 20) % 12)};
        scalar64_store((char *)out + i * dtype_bytes(part), part, &wide, SCALAR64_FLOATING, 1, 1);
    }
}

static void describe(BitRank *self, int32_t size) {
    int32_t rank = self->comm->rank;
    for (int32_t m = 0; m < size; m++) self->group[m] = m;
    for (int32_t k = 0; k < BIT_ARRAYS; k++) {
        int64_t elements = self->small ? bit_arrays[k].elements % 61 : bit_arrays[k].elements;
        Dtype type = bit_arrays[k].type;
        for (int32_t m = 0; m < size; m++) self->parts[k][m] = elements / size + (m < elements % size);
        self->movements[k] = (ProgramMovement){.dimension = 0, .parts = self->parts[k]};
        self->operand_sizes[k] = elements;
        self->result_sizes[k] = self->scatters ? self->parts[k][rank] : elements;
        self->operand_shapes[k] = (IrShape){.type = type, .rank = 1, .dimensions = &self->operand_sizes[k]};
        self->result_shapes[k] = (IrShape){.type = type, .rank = 1, .dimensions = &self->result_sizes[k]};
        self->operand_places[k] = &self->operand_shapes[k];
        self->result_places[k] = &self->result_shapes[k];
        self->operands[k] = calloc((size_t)elements + 1, (size_t)dtype_bytes(type));
        self->results[k] =
            self->scatters ? calloc((size_t)elements + 1, (size_t)dtype_bytes(type)) : self->operands[k];
        fill(self->operands[k], type, elements, rank, k);
    }
    self->collective = (ProgramCollective){
        .kind = self->scatters ? PROGRAM_REDUCE_SCATTER : PROGRAM_ALL_REDUCE,
        .group_count = size,
        .group = self->group,
        .movements = self->scatters ? self->movements : NULL,
    };
    self->call = (CommCall){.collective = &self->collective,
                            .ranks = self->group,
                            .rank_count = size,
                            .position = rank,
                            .operand_count = BIT_ARRAYS,
                            .result_count = BIT_ARRAYS,
                            .operand_shapes = self->operand_places,
                            .result_shapes = self->result_places,
                            .operands = self->operands,
                            .results = self->results};
}

static void *run_bits(void *argument) {
    BitRank *self = argument;
    Comm *comm = self->comm;
    const CommBackEnd *back_end = comm->back_end;
    describe(self, comm->size);
    self->status = back_end->join(comm, self->group, comm->size, &self->call.group, &self->error);
    if (self->status == AM_OK && back_end->prepare)
        self->status = back_end->prepare(comm, &self->call, &self->error);
    if (self->call.scratch_bytes > 0)
        self->call.scratch = aligned_alloc(64, (size_t)self->call.scratch_bytes);
    if (self->status == AM_OK) self->status = back_end->run(comm, &self->call, &self->error);
    if (self->status == AM_OK) self->status = back_end->barrier(comm, &self->error);
    free(self->call.scratch);
    return NULL;
}

static AmStatus run_bit_ranks(const CasePlace *place, bool scatters, bool small, BitRank *all,
                              AmError *error) {
    KernelDevice *devices[BIT_MOST_RANKS];
    Comm comms[BIT_MOST_RANKS];
    pthread_t threads[BIT_MOST_RANKS];
    for (int32_t r = 0; r < place->count; r++) devices[r] = &kernel_device_cpu;
    TRY(place->collectives->open(comms, place->first, place->count, place->size, devices, place->processes,
                                 error));
    for (int32_t r = 0; r < place->count; r++) {
        all[r] = (BitRank){.comm = &comms[r], .scatters = scatters, .small = small};
        pthread_create(&threads[r], NULL, run_bits, &all[r]);
    }
    for (int32_t r = 0; r < place->count; r++) pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < place->count; r++)
        if (all[r].status != AM_OK) return am_fail(error, all[r].status, "", "%s", all[r].error.text);
    place->collectives->close(comms);
    return AM_OK;
}

static void free_bits(BitRank *self) {
    for (int32_t k = 0; k < BIT_ARRAYS; k++) {
        if (self->results[k] != self->operands[k]) free(self->results[k]);
        free(self->operands[k]);
    }
}

static AmStatus check_bits(int32_t ranks_here, bool scatters, bool small, AmError *error) {
    CasePlace place = place_of(ranks_here),
              local = {&kernels_cpu, &comm_local, 0, place.size, place.size, NULL};
    BitRank *own = calloc(BIT_MOST_RANKS, sizeof *own), *reference = calloc(BIT_MOST_RANKS, sizeof *own);
    TRY(run_bit_ranks(&place, scatters, small, own, error));
    TRY(run_bit_ranks(&local, scatters, small, reference, error));
    AmStatus status = AM_OK;
    for (int32_t r = 0; r < place.count; r++)
        for (int32_t k = 0; k < BIT_ARRAYS; k++)
            if (memcmp(own[r].results[k], reference[place.first + r].results[k],
                       (size_t)ir_shape_bytes(&own[r].result_shapes[k])) != 0)
                status = am_fail(error, AM_ERROR_INTERNAL, "",
                                 "rank %d of %d: array %d of the %s %s is not comm_local's", place.first + r,
                                 place.size, k, small ? "small" : "large",
                                 scatters ? "reduce_scatter" : "all_reduce");
    for (int32_t r = 0; r < place.count; r++) free_bits(&own[r]);
    for (int32_t r = 0; r < place.size; r++) free_bits(&reference[r]);
    free(own);
    free(reference);
    return status;
}

/* ---- transfers ---- */

typedef struct TransferRank {
    RankRun run;
    const TransferEnd *source, *target;
    Fixture *fixture;
    int32_t given, count; /* devices of the source; pairs */
} TransferRank;

/* Every pair of states, one after the other: a finished rank starts the next. */
static void *run_transfers(void *argument) {
    TransferRank *self = argument;
    RankRun *run = &self->run;
    Comm *comm = run->comm;
    for (int32_t k = 0; k < 24; k++) {
        TransferEnd source = *self->source, target = *self->target;
        source.state = state_number(source.mesh, k % 4, 4);
        target.state = state_number(target.mesh, k / 4 % 3, 3);
        *run = (RankRun){.fixture = self->fixture,
                         .source = &source,
                         .target = &target,
                         .instruction = k / 12,
                         .gives = comm->rank < self->given,
                         .comm = comm};
        rank_thread(run);
        close_rank(run);
        if (run->error.code != AM_OK) return NULL;
        if (run->is_right) continue;
        am_fail(&run->error, AM_ERROR_INTERNAL, "", "rank %d: transfer %d is wrong", comm->rank, k);
        return NULL;
    }
    return NULL;
}

static AmStatus check_transfers(int32_t ranks_here, AmError *error) {
    CasePlace place = place_of(ranks_here);
    void *fixture;
    Arena arena = {0};
    Mesh meshes[2];
    KernelDevice *devices[CASE_MOST_RANKS];
    Comm comms[CASE_MOST_RANKS];
    TransferRank ranks[CASE_MOST_RANKS];
    pthread_t threads[CASE_MOST_RANKS];
    int32_t given = place.size / 2;
    setup_on(&fixture, &kernels_cpu, &comm_mpi);
    TRY(mesh_parse(&meshes[0], &arena, arena_format(&arena, "x=%d", given), error));
    TRY(mesh_parse(&meshes[1], &arena, arena_format(&arena, "x=%d", place.size - given), error));
    TransferEnd source = {&meshes[0], 0, {{0}, {{0}}}}, target = {&meshes[1], given, {{0}, {{0}}}};
    for (int32_t r = 0; r < place.count; r++) devices[r] = &kernel_device_cpu;
    TRY(comm_mpi.open(comms, place.first, place.count, place.size, devices, group, error));
    for (int32_t r = 0; r < place.count; r++) {
        ranks[r] = (TransferRank){.run = {.comm = &comms[r]},
                                  .source = &source,
                                  .target = &target,
                                  .fixture = fixture,
                                  .given = given};
        pthread_create(&threads[r], NULL, run_transfers, &ranks[r]);
    }
    for (int32_t r = 0; r < place.count; r++) pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < place.count; r++)
        if (ranks[r].run.error.code != AM_OK)
            return am_fail(error, ranks[r].run.error.code, "", "%s", ranks[r].run.error.text);
    comm_mpi.close(comms);
    teardown(&fixture);
    arena_free(&arena);
    return AM_OK;
}

/* ---- processes ---- */

static AmStatus be_process(ProcessGroup *processes, AmError *error) {
    group = processes;
    for (int32_t here = 1; here <= 2 && here * group->count <= CASE_MOST_RANKS; here++) {
        TRY(check_integers(here, error));
        TRY(check_transfers(here, error));
        for (int k = 0; k < 4; k++) TRY(check_bits(here, k % 2, k / 2, error));
    }
    return AM_OK;
}

static void test_processes(void **state) {
    (void)state;
    for (int processes = 2; processes <= 8; processes += processes < 4 ? 1 : 4) mpi_case_run(processes);
}

int main(void) {
    if (bootstrap_mpi_is_present()) return mpi_case_process(be_process);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
