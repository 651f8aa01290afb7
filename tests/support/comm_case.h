/* Collectives of any back end against their definition, computed on the host from whole arrays.
 * Every rank is a thread; it prepares all cases, starts once and runs them one after the other
 * without waiting on the host in between. Directly after the wait for a collective its results are
 * saved and its operands overwritten, which is wrong while a member still reads them. Values are
 * small integers, so that every sum is exact in every type. */
#ifndef TESTS_SUPPORT_COMM_CASE_H
#define TESTS_SUPPORT_COMM_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/comm/comm.h"

enum { CASE_MOST_RANKS = 8, CASE_MOST_OPERANDS = 3, CASE_RANK = 3, CASE_MOST = 256 };

typedef struct CommCase {
    ProgramCollectiveKind kind;
    SbpReduction reduction;
    Dtype type;
    int32_t operand_count, dimension, other;
    bool uneven;        /* parts of 1, 2, 0, 1, 2, ... elements; else of 2 each */
    bool in_place;      /* all_reduce: results are the operands' memory */
    int32_t group_size; /* 0: all ranks are one group; else ranks r, r + n / size, ... are */
} CommCase;

/* One rank's share of a case. */
typedef struct CaseCall {
    const CommCase *its;
    ProgramCollective collective;
    ProgramMovement movements[CASE_MOST_OPERANDS];
    int32_t group[CASE_MOST_RANKS];
    int64_t parts[CASE_MOST_RANKS], others[CASE_MOST_RANKS];
    int64_t range_start[CASE_MOST_RANKS], range_extent[CASE_MOST_RANKS]; /* halo_exchange */
    int64_t whole[CASE_MOST_OPERANDS][CASE_RANK];                        /* of the arrays that are cut */
    int64_t dimensions[2 * CASE_MOST_OPERANDS][CASE_RANK];
    IrShape shapes[2 * CASE_MOST_OPERANDS];
    const IrShape *shape_places[2 * CASE_MOST_OPERANDS];
    void *addresses[2 * CASE_MOST_OPERANDS];
    void *given[CASE_MOST_OPERANDS], *taken[CASE_MOST_OPERANDS], *rubbish; /* device memory */
    CommCall call;
} CaseCall;

/* Memory of a rank under construction: the device's, and on the host its contents. */
typedef struct CaseMemory {
    char *base, *host; /* NULL: bytes are counted only */
    int64_t bytes;
} CaseMemory;

typedef struct CaseRank {
    Comm *comm;
    const CommCase *cases;
    int32_t case_count, repeats, failing_case; /* a case before which this rank gives up; or -1 */
    CaseCall *calls;
    CaseMemory memory; /* for everything */
    void *record;
    int32_t wrong; /* the first case with a wrong result; or -1 */
    AmStatus status;
    AmError error;
} CaseRank;

static inline int64_t case_sum(const int64_t *parts, int32_t count) {
    int64_t sum = 0;
    for (int32_t k = 0; k < count; k++) sum += parts[k];
    return sum;
}

/* Value number `index` of the whole operand k that rank `rank` has; rank -1: all have the same. */
static inline int64_t case_value(const CommCase *its, int32_t rank, int32_t k, int64_t index) {
    int64_t mixed = (index * 31 + (rank + 1) * 17 + k * 7) % 101;
    if (its->type == DTYPE_PRED) return mixed % 2;
    return its->reduction == SBP_MULTIPLY ? 1 + mixed % 2 : mixed % 5;
}

/* Element `local` of a slab that begins at `start` along `dimension`: its number in the whole. */
static inline int64_t case_number(const int64_t *whole, const int64_t *slab, int32_t dimension, int64_t start,
                                  int64_t local) {
    int64_t number = 0, scale = 1;
    for (int32_t d = CASE_RANK - 1; d >= 0; d--) {
        number += (local % slab[d] + (d == dimension ? start : 0)) * scale;
        local /= slab[d];
        scale *= whole[d];
    }
    return number;
}

static inline Scalar64 case_wide(Dtype type, int64_t value) {
    return scalar64_kind(type) == SCALAR64_FLOATING ? (Scalar64){.floating = (double)value}
                                                    : (Scalar64){.as_signed = value};
}

/* Element i of rank's operand k (`result` false) or of the result that it is to have. */
static inline void case_element(const CaseCall *self, int32_t k, bool result, int64_t i, void *out) {
    const CommCase *its = self->its;
    const IrShape *shape = &self->shapes[result ? CASE_MOST_OPERANDS + k : k];
    int32_t position = self->call.position, rank = self->group[position], size = self->collective.group_count;
    bool reduces = its->kind == PROGRAM_ALL_REDUCE || its->kind == PROGRAM_REDUCE_SCATTER;
    int64_t start = case_sum(self->parts, position), number = i;
    if (its->kind == PROGRAM_ALL_TO_ALL && result)
        number =
            case_number(self->whole[k], shape->dimensions, its->other, case_sum(self->others, position), i);
    else if (its->kind == PROGRAM_HALO_EXCHANGE && result)
        number =
            case_number(self->whole[k], shape->dimensions, its->dimension, self->range_start[position], i);
    else if ((its->kind == PROGRAM_REDUCE_SCATTER) == result && its->kind != PROGRAM_ALL_REDUCE)
        number = case_number(self->whole[k], shape->dimensions, its->dimension, start, i);
    Scalar64 value =
        case_wide(its->type, case_value(its, reduces ? (result ? self->group[0] : rank) : -1, k, number));
    for (int32_t m = 1; reduces && result && m < size; m++) {
        Scalar64 next = case_wide(its->type, case_value(its, self->group[m], k, number));
        scalar64_fold(&value, &next, scalar64_kind(its->type), its->reduction, 1);
    }
    scalar64_store(out, its->type, &value, scalar64_kind(its->type), 1, 1);
}

/* The whole array, or the part along `dimension` that this rank has. */
static inline void case_shape(CaseCall *self, int32_t place, int32_t k, int32_t dimension,
                              const int64_t *parts) {
    memcpy(self->dimensions[place], self->whole[k], sizeof self->whole[k]);
    if (dimension >= 0) self->dimensions[place][dimension] = parts[self->call.position];
    self->shapes[place] =
        (IrShape){.type = self->its->type, .rank = CASE_RANK, .dimensions = self->dimensions[place]};
}

/* The own part and its neighbours' nearest elements; `its->other` turns the members round instead, so that
 * each has what another had, and leaves the first one without anything. */
static inline void case_ranges(CaseCall *self, int32_t size) {
    int64_t total = case_sum(self->parts, size), end = total;
    for (int32_t m = 0; m < size; m++) {
        int64_t start = case_sum(self->parts, m) - 1, stop = start + self->parts[m] + 2;
        if (self->its->other != self->its->dimension) {
            stop = end;
            end = start = m == 0 ? end : end - self->parts[m];
        }
        self->range_start[m] = start < 0 ? 0 : start;
        self->range_extent[m] = (stop > total ? total : stop) - self->range_start[m];
    }
}

static inline void case_describe(CaseCall *self, const CommCase *its, int32_t rank, int32_t ranks) {
    int32_t size = its->group_size > 0 ? its->group_size : ranks, stride = ranks / size;
    *self = (CaseCall){.its = its};
    self->call.position = rank / stride;
    for (int32_t m = 0; m < size; m++) {
        self->group[m] = rank % stride + m * stride;
        self->parts[m] = its->uneven ? (m + 1) % 3 : 2;
        self->others[m] = its->uneven ? m % 3 : 1;
    }
    bool scatters = its->kind == PROGRAM_REDUCE_SCATTER, exchanges = its->kind == PROGRAM_ALL_TO_ALL;
    case_ranges(self, size);
    for (int32_t k = 0; k < its->operand_count; k++) {
        for (int32_t d = 0; d < CASE_RANK; d++) self->whole[k][d] = d == CASE_RANK - 1 ? 4 + k : 3;
        self->whole[k][its->dimension] = case_sum(self->parts, size);
        if (exchanges) self->whole[k][its->other] = case_sum(self->others, size);
        bool whole = its->kind == PROGRAM_ALL_REDUCE;
        case_shape(self, k, k, whole || scatters ? -1 : its->dimension, self->parts);
        bool halo = its->kind == PROGRAM_HALO_EXCHANGE;
        int32_t cut = exchanges ? its->other : scatters || halo ? its->dimension : -1;
        case_shape(self, CASE_MOST_OPERANDS + k, k, cut,
                   exchanges ? self->others
                   : halo    ? self->range_extent
                             : self->parts);
        self->movements[k] = (ProgramMovement){its->dimension, its->other,        self->parts,
                                               self->others,   self->range_start, self->range_extent};
    }
    for (int32_t p = 0; p < 2 * CASE_MOST_OPERANDS; p++) self->shape_places[p] = &self->shapes[p];
    self->collective = (ProgramCollective){.kind = its->kind,
                                           .reduction = its->reduction,
                                           .group_count = size,
                                           .group = self->group,
                                           .movements = self->movements};
    self->call.collective = &self->collective;
    self->call.ranks = self->group;
    self->call.rank_count = size;
    self->call.operand_count = self->call.result_count = its->operand_count;
    self->call.operand_shapes = self->shape_places;
    self->call.result_shapes = self->shape_places + CASE_MOST_OPERANDS;
    self->call.operands = self->addresses;
    self->call.results = self->addresses + CASE_MOST_OPERANDS;
}

/* Takes memory for an array of this shape, with operand k's elements in it (k < 0: 0x5a). */
static inline void *case_take(const CaseCall *self, CaseMemory *memory, const IrShape *shape, int32_t k) {
    int64_t element = dtype_bytes(shape->type), at = memory->bytes;
    memory->bytes += kernel_align(ir_shape_bytes(shape)) + 64;
    if (!memory->base) return NULL;
    for (int64_t i = 0; k >= 0 && i < ir_shape_elements(shape); i++)
        case_element(self, k, false, i, memory->host + at + i * element);
    return memory->base + at;
}

static inline void case_place(CaseCall *self, CaseMemory *memory) {
    for (int32_t k = 0; k < self->its->operand_count; k++) {
        const IrShape *operand = &self->shapes[k], *result = &self->shapes[CASE_MOST_OPERANDS + k];
        self->given[k] = case_take(self, memory, operand, k);
        self->call.operands[k] = case_take(self, memory, operand, -1);
        self->taken[k] = case_take(self, memory, result, -1);
        self->call.results[k] =
            self->its->in_place ? self->call.operands[k] : case_take(self, memory, result, -1);
    }
    self->rubbish = case_take(self, memory, &self->shapes[self->its->operand_count - 1], -1);
}

static inline AmStatus case_prepare(CaseCall *self, Comm *comm, AmError *error) {
    const CommBackEnd *back_end = comm->back_end;
    TRY(back_end->join(comm, self->group, self->collective.group_count, &self->call.group, error));
    return back_end->prepare ? back_end->prepare(comm, &self->call, error) : AM_OK;
}

static inline AmStatus case_run(CaseCall *self, Comm *comm, AmError *error) {
    const KernelBackEnd *kernels = comm->device->back_end;
    int64_t rubbish = ir_shape_bytes(&self->shapes[self->its->operand_count - 1]);
    for (int32_t k = 0; k < self->its->operand_count; k++)
        kernels->copy_within(comm->device, self->addresses[k], self->given[k],
                             ir_shape_bytes(&self->shapes[k]));
    TRY(comm->back_end->run(comm, &self->call, error));
    if (comm->back_end->wait) comm->back_end->wait(comm, &self->call);
    for (int32_t k = 0; k < self->its->operand_count; k++) {
        int64_t bytes = ir_shape_bytes(&self->shapes[k]);
        kernels->copy_within(comm->device, self->taken[k], self->call.results[k],
                             ir_shape_bytes(&self->shapes[CASE_MOST_OPERANDS + k]));
        kernels->copy_within(comm->device, self->addresses[k], self->rubbish,
                             bytes < rubbish ? bytes : rubbish);
    }
    return AM_OK;
}

/* `host` is a copy of the rank's memory, which is at `base` on the device. */
static inline bool case_is_right(const CaseCall *self, const char *base, const char *host) {
    for (int32_t k = 0; k < self->its->operand_count; k++) {
        const IrShape *shape = &self->shapes[CASE_MOST_OPERANDS + k];
        const char *taken = host + ((char *)self->taken[k] - base);
        size_t element = (size_t)dtype_bytes(shape->type);
        char expected[16];
        for (int64_t i = 0; i < ir_shape_elements(shape); i++) {
            case_element(self, k, true, i, expected);
            if (memcmp(expected, taken + (size_t)i * element, element) != 0) return false;
        }
    }
    return true;
}

static inline AmStatus case_run_all(CaseRank *self) {
    Comm *comm = self->comm;
    for (int32_t c = 0; c < self->case_count; c++) {
        if (c == self->failing_case) return am_fail(&self->error, AM_ERROR_RUNTIME, "", "this rank gives up");
        TRY(case_run(&self->calls[c], comm, &self->error));
    }
    return AM_OK;
}

/* Prepares, starts and runs all cases; without meetings on the host, as a recorded stretch. */
static inline AmStatus case_work(CaseRank *self) {
    Comm *comm = self->comm;
    const KernelBackEnd *kernels = comm->device->back_end;
    CaseMemory *memory = &self->memory;
    int64_t scratch = 1;
    for (int32_t c = 0; c < self->case_count; c++) {
        case_describe(&self->calls[c], &self->cases[c], comm->rank, comm->size);
        TRY(case_prepare(&self->calls[c], comm, &self->error));
        case_place(&self->calls[c], memory);
        if (self->calls[c].call.scratch_bytes > scratch) scratch = self->calls[c].call.scratch_bytes;
    }
    int64_t bytes = memory->bytes;
    memory->host = malloc((size_t)bytes);
    memset(memory->host, 0x5a, (size_t)bytes);
    TRY(kernels->allocate(comm->device, (void **)&memory->base, bytes + scratch, &self->error));
    memory->bytes = 0;
    for (int32_t c = 0; c < self->case_count; c++) {
        case_place(&self->calls[c], memory);
        self->calls[c].call.scratch = memory->base + bytes;
    }
    kernels->copy_in(comm->device, memory->base, memory->host, bytes);
    if (comm->back_end->start) TRY(comm->back_end->start(comm, &self->error));
    bool records = kernels->begin && !comm->back_end->waits_on_ranks;
    for (int32_t k = 0; k < self->repeats; k++) {
        bool done = records && kernels->begin(comm->device, &self->record);
        while (!done) {
            AmStatus status = case_run_all(self);
            done = !records || kernels->end(comm->device, &self->record);
            TRY(status);
        }
        if (comm->back_end->await) TRY(comm->back_end->await(comm, &self->error));
        TRY(kernels->synchronize(comm->device, &self->error));
        kernels->copy_out(comm->device, memory->host, memory->base, bytes);
        for (int32_t c = 0; c < self->case_count; c++)
            if (self->wrong < 0 && !case_is_right(&self->calls[c], memory->base, memory->host))
                self->wrong = c;
    }
    return AM_OK;
}

static inline void *case_thread(void *argument) {
    CaseRank *self = argument;
    self->wrong = -1;
    self->calls = calloc((size_t)self->case_count, sizeof *self->calls);
    self->status = case_work(self);
    if (self->status != AM_OK) self->comm->back_end->abort(self->comm);
    return NULL;
}

static inline void case_release(CaseRank *self) {
    KernelDevice *device = self->comm->device;
    if (self->memory.base) device->back_end->release(device, self->memory.base);
    free(self->memory.host);
    free(self->calls);
}

/* The place of a run of cases: ranks first .. first + count - 1 of `size` belong to this process. */
typedef struct CasePlace {
    const KernelBackEnd *kernels;
    const CommBackEnd *collectives;
    int32_t first, count, size;
    ProcessGroup *processes; /* NULL: this one alone */
} CasePlace;

/* Opens the devices, runs the cases `repeats` times, and closes everything. Each of this process's
 * ranks' outcome is left in all[]; rank `failing` (-1: none) gives up half-way. */
static inline AmStatus case_run_part(const CasePlace *place, const CommCase *cases, int32_t case_count,
                                     int32_t repeats, int32_t failing, CaseRank *all, AmError *error) {
    const KernelBackEnd *kernels = place->kernels;
    KernelDevice *devices[CASE_MOST_RANKS] = {NULL};
    Comm comms[CASE_MOST_RANKS];
    pthread_t threads[CASE_MOST_RANKS];
    AmStatus status = AM_OK;
    for (int32_t r = 0; r < place->count && status == AM_OK; r++)
        status = kernels->open(&devices[r], &(KernelOptions){.index = r}, error);
    if (status == AM_OK)
        status = place->collectives->open(comms, place->first, place->count, place->size, devices,
                                          place->processes, error);
    if (status == AM_OK) {
        for (int32_t r = 0; r < place->count; r++) {
            all[r] = (CaseRank){.comm = &comms[r],
                                .cases = cases,
                                .case_count = case_count,
                                .repeats = repeats,
                                .failing_case = place->first + r == failing ? case_count / 2 : -1};
            pthread_create(&threads[r], NULL, case_thread, &all[r]);
        }
        for (int32_t r = 0; r < place->count; r++) pthread_join(threads[r], NULL);
        for (int32_t r = 0; r < place->count; r++) case_release(&all[r]);
        place->collectives->close(comms);
    }
    for (int32_t r = 0; r < place->count; r++)
        if (devices[r]) kernels->close(devices[r]);
    return status;
}

static inline AmStatus case_run_ranks(const KernelBackEnd *kernels, const CommBackEnd *collectives,
                                      int32_t ranks, const CommCase *cases, int32_t case_count,
                                      int32_t repeats, int32_t failing, CaseRank *all, AmError *error) {
    const CasePlace place = {kernels, collectives, 0, ranks, ranks, NULL};
    return case_run_part(&place, cases, case_count, repeats, failing, all, error);
}

/* Every kind along every dimension, even and uneven, and every type and reduction
 * that `supports` (on more than four ranks: the sums). */
static inline int32_t case_list(CommCase *cases, bool (*supports)(SbpReduction reduction, Dtype type),
                                int32_t ranks) {
    static const Dtype types[] = {DTYPE_PRED, DTYPE_S8,  DTYPE_S16, DTYPE_S32, DTYPE_S64,
                                  DTYPE_U8,   DTYPE_U16, DTYPE_U32, DTYPE_U64, DTYPE_F16,
                                  DTYPE_BF16, DTYPE_F32, DTYPE_F64};
    int32_t n = 0, t = 0, type_count = sizeof types / sizeof *types;
    for (int32_t d = 0; d < CASE_RANK; d++)
        for (int uneven = 0; uneven < 2; uneven++) {
            CommCase one = {.dimension = d,
                            .other = (d + 1) % CASE_RANK,
                            .uneven = uneven,
                            .operand_count = 1 + 2 * uneven};
            one.type = types[t++ % type_count];
            one.kind = PROGRAM_ALL_GATHER;
            cases[n++] = one;
            one.type = types[t++ % type_count];
            one.kind = PROGRAM_ALL_TO_ALL;
            cases[n++] = one;
            one.other = (d + 2) % CASE_RANK;
            cases[n++] = one;
            one.kind = PROGRAM_HALO_EXCHANGE;
            cases[n++] = one;
            one.type = types[t++ % type_count];
            one.other = d;
            cases[n++] = one;
            one.kind = PROGRAM_REDUCE_SCATTER;
            one.type = d == 1 ? DTYPE_BF16 : DTYPE_F32;
            cases[n++] = one;
        }
    for (t = 0; t < type_count; t++)
        for (SbpReduction reduction = SBP_ADD; reduction < SBP_REDUCTION_COUNT; reduction++)
            if (supports(reduction, types[t]) && (ranks <= 4 || reduction == SBP_ADD))
                cases[n++] = (CommCase){.kind = t % 2 ? PROGRAM_REDUCE_SCATTER : PROGRAM_ALL_REDUCE,
                                        .reduction = reduction,
                                        .type = types[t],
                                        .operand_count = 1 + (int32_t)reduction % 3,
                                        .dimension = t % 3,
                                        .uneven = t % 4 < 2,
                                        .in_place = t % 2 == 0 && reduction == SBP_ADD};
    if (ranks % 2 == 0) {
        cases[n++] = (CommCase){
            .kind = PROGRAM_ALL_REDUCE, .type = DTYPE_F32, .operand_count = 2, .group_size = ranks / 2};
        cases[n++] = (CommCase){.kind = PROGRAM_ALL_GATHER,
                                .type = DTYPE_S32,
                                .operand_count = 2,
                                .dimension = 1,
                                .group_size = 2};
    }
    return n;
}

static inline void case_check_all(const KernelBackEnd *kernels, const CommBackEnd *collectives,
                                  bool (*supports)(SbpReduction reduction, Dtype type), int32_t ranks) {
    CommCase cases[CASE_MOST];
    CaseRank all[CASE_MOST_RANKS];
    AmError error = {0};
    int32_t count = case_list(cases, supports, ranks);
    int32_t repeats = collectives->waits_on_ranks ? 2 : 4; /* plainly, while recording, replayed */
    assert_in_range(count, 1, CASE_MOST);
    if (case_run_ranks(kernels, collectives, ranks, cases, count, repeats, -1, all, &error) != AM_OK)
        fail_msg("%d ranks: %s", ranks, error.text);
    for (int32_t r = 0; r < ranks; r++) {
        if (all[r].status != AM_OK) fail_msg("rank %d of %d: %s", r, ranks, all[r].error.text);
        if (all[r].wrong >= 0) {
            const CommCase *its = &cases[all[r].wrong];
            fail_msg("rank %d of %d: case %d is wrong: %s '%s' of %s along %d%s", r, ranks, all[r].wrong,
                     program_collective_name(its->kind), sbp_reduction_name(its->reduction),
                     dtype_name(its->type), its->dimension, its->uneven ? ", uneven" : "");
        }
    }
}

/* One rank fails half-way: it reports the reason, and the others are released. */
static inline void case_check_failure(const KernelBackEnd *kernels, const CommBackEnd *collectives) {
    CommCase cases[8];
    CaseRank all[CASE_MOST_RANKS];
    AmError error = {0};
    for (int c = 0; c < 8; c++)
        cases[c] = (CommCase){.kind = PROGRAM_ALL_REDUCE, .type = DTYPE_F32, .operand_count = 1};
    if (case_run_ranks(kernels, collectives, 3, cases, 8, 3, 1, all, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_non_null(strstr(all[1].error.text, "gives up"));
    for (int32_t r = 0; r < 3; r += 2) {
        assert_int_equal(all[r].status, AM_ERROR_RUNTIME);
        assert_non_null(strstr(all[r].error.text, r == 0 ? "rank 0" : "rank 2"));
    }
}

#endif
