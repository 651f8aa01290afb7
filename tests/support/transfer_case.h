/* Transfers between two meshes, lowered on both sides and run by threads on any back
 * end, on integers; and the bytes that OneFlow's table 2 gives them. */
#ifndef TESTS_SUPPORT_TRANSFER_CASE_H
#define TESTS_SUPPORT_TRANSFER_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/transfer.h"
#include "propagation/sharding/shard.h"

enum { MOST_RANKS = 12 };

static const char transfer_module[] = "HloModule m\n\nENTRY e {\n"
                                      "  a = s32[12,8] parameter(0)\n  b = s32[5,7] parameter(1)\n"
                                      "  c = s32[] parameter(2)\n"
                                      "  ROOT r = (s32[12,8], s32[5,7], s32[]) tuple(a, b, c)\n}\n";

typedef struct Fixture {
    const KernelBackEnd *kernels;
    const CommBackEnd *collectives;
    IrModule *read, *module;
    Rules rules;
    IrRoles source_roles, target_roles, box_roles;
} Fixture;

static inline int setup_on(void **state, const KernelBackEnd *kernels, const CommBackEnd *collectives) {
    Fixture *self = calloc(1, sizeof *self);
    AmError error = {0};
    if (ir_read_bytes(&self->read, "test", transfer_module, (int64_t)strlen(transfer_module), &error) !=
            AM_OK ||
        ir_canonicalize(&self->module, self->read, &error) != AM_OK)
        fail_msg("%s", error.text);
    self->rules.count = self->module->instruction_count;
    self->rules.on_demand = calloc((size_t)self->rules.count + 1, sizeof *self->rules.on_demand);
    self->source_roles = (IrRoles){.parameter_count = 1, .loss = -1};
    self->target_roles = (IrRoles){.output_count = 1, .loss = -1};
    self->box_roles = (IrRoles){.parameter_count = 1, .output_count = 1, .loss = -1};
    self->kernels = kernels;
    self->collectives = collectives;
    *state = self;
    return 0;
}

static inline int teardown(void **state) {
    Fixture *self = *state;
    free((void *)self->rules.on_demand);
    ir_module_free(self->module);
    ir_module_free(self->read);
    free(self);
    return 0;
}

static inline int32_t value_at(int64_t index) {
    return (int32_t)(index * 7 % 23);
}

/* A device's addition to the sum of partial values; the first device subtracts it again. */
static inline int32_t noise(int32_t part, int64_t index) {
    return (int32_t)((part * 31 + index * 5) % 11);
}

/* Which of how many partial values a device has. */
static inline int32_t partial_number(const TransferEnd *end, int32_t device, int32_t *count) {
    int32_t number = 0;
    *count = 1;
    for (int32_t axis = 0; axis < end->mesh->axis_count; axis++) {
        if (!sbp_is_partial(end->state.axis[axis])) continue;
        number = number * end->mesh->axes[axis].size + mesh_coordinate(end->mesh, device, axis);
        *count *= end->mesh->axes[axis].size;
    }
    return number;
}

/* A device's shard, row-major, as its state says; returns the number of elements. */
static inline int64_t fill_shard(int32_t *out, const TransferEnd *end, int32_t device, const IrShape *shape) {
    ShardLayout layout;
    int32_t parts, part = partial_number(end, device, &parts);
    int64_t index[IR_MAX_RANK] = {0}, n = 0, count = 1;
    assert_true(shard_layout(&layout, end->mesh, end->state, device, shape));
    for (int32_t d = 0; d < layout.rank; d++) count *= layout.dimensions[d];
    for (; n < count; n++) {
        int64_t at = layout.start_offset;
        for (int32_t d = 0; d < layout.rank; d++) at += index[d] * layout.global_strides[d];
        out[n] = part == 0 ? value_at(at) : noise(part, at);
        for (int32_t p = 1; p < parts && part == 0; p++) out[n] -= noise(p, at);
        for (int32_t d = layout.rank - 1; d >= 0 && ++index[d] == layout.dimensions[d]; d--) index[d] = 0;
    }
    return n;
}

/* One rank of a run. */
typedef struct RankRun {
    Fixture *fixture;
    const TransferEnd *source, *target;
    int32_t instruction;
    bool gives, boxes; /* `boxes`: both ends are the same devices, nothing is sent */
    Comm *comm;
    bool is_right;
    double sent; /* elements that went to other ranks, collectives included */
    int32_t result[256];
    Arena arena;
    char *memory;
    AmError error;
} RankRun;

static inline AmStatus lower_side(RankRun *self, Arena *arena, Program **program) {
    const TransferEnd *end = self->gives || self->boxes ? self->source : self->target;
    PlanStage stage = {.mesh = *end->mesh};
    PlanStage *kept = ARENA_ARRAY(arena, PlanStage, 1);
    Assignment *assignment = ARENA_ARRAY(arena, Assignment, 1);
    *kept = stage;
    *assignment =
        (Assignment){.stage = kept, .regathered = ARENA_ARRAY(arena, bool, self->fixture->rules.count + 1)};
    Lowering lowering = {.arena = arena,
                         .scratch = arena,
                         .module = self->fixture->module,
                         .rules = &self->fixture->rules,
                         .assignment = assignment,
                         .device = self->comm->rank - end->first_rank,
                         .newest = ARENA_ARRAY(arena, int32_t, self->fixture->rules.count + 1)};
    const IrRoles *roles = self->boxes   ? &self->fixture->box_roles
                           : self->gives ? &self->fixture->source_roles
                                         : &self->fixture->target_roles;
    for (int32_t i = 0; i < self->fixture->rules.count; i++) lowering.newest[i] = -1;
    TRY(lower_begin(&lowering, roles, 4, &self->error));
    *program = lowering.program;
    lowering.program->first_rank = end->first_rank;
    lowering.program->parameters = ARENA_ARRAY(arena, int32_t, 1);
    lowering.program->outputs = ARENA_ARRAY(arena, int32_t, 1);
    if (self->gives || self->boxes) {
        const IrShape *shape = &self->fixture->module->instructions[self->instruction].shape;
        int32_t value = lower_add_value(&lowering, self->instruction, 0, shape, end->state);
        lowering.program->values[value].kind = PROGRAM_VALUE_PARAMETER;
        lowering.program->values[value].instruction = -1;
        lowering.program->parameters[0] = value;
        if (self->boxes)
            TRY(reshard_value(&lowering, (LoweredResult){self->instruction, 0, shape}, value,
                              self->target->state, &lowering.program->outputs[0], &self->error));
        else TRY(lower_send(&lowering, self->instruction, 0, end->state, self->target, &self->error));
    } else {
        TRY(lower_receive(&lowering, self->instruction, 0, self->source, end->state, &self->error));
        TRY(lower_operand_in_state(&lowering, self->instruction, 0, end->state, &lowering.program->outputs[0],
                                   &self->error));
    }
    return lower_finish(&lowering, &self->error);
}

static inline double sent_elements(const Program *program) {
    double sent = 0;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        const ProgramTransfer *transfer = instruction->transfer;
        for (int32_t k = 0; transfer && k < transfer->send_count; k++) {
            double elements = 1;
            int32_t rank = program->values[instruction->operands[0]].shape.rank;
            for (int32_t d = 0; d < rank; d++) elements *= (double)transfer->sends[k].extent[d];
            sent += elements;
        }
        const ProgramCollective *collective = instruction->collective;
        if (!collective) continue;
        double n = collective->group_count;
        const IrShape *operand = &program->values[instruction->operands[0]].shape;
        const IrShape *result = &program->values[instruction->first_result].shape;
        if (collective->kind == PROGRAM_ALL_REDUCE)
            sent += 2 * (n - 1) / n * (double)ir_shape_elements(operand);
        else if (collective->kind == PROGRAM_REDUCE_SCATTER)
            sent += (double)(ir_shape_elements(operand) - ir_shape_elements(result));
        else if (collective->kind == PROGRAM_ALL_TO_ALL)
            sent += (n - 1) / n * (double)ir_shape_elements(operand);
        else sent += (double)(ir_shape_elements(result) - ir_shape_elements(operand));
    }
    return sent;
}

static inline AmStatus run_rank(RankRun *self, Arena *arena, char **memory) {
    Program *program;
    Executable *ready;
    int32_t expected[256], *result = self->result;
    const IrShape *shape = &self->fixture->module->instructions[self->instruction].shape;
    TRY(lower_side(self, arena, &program));
    KernelDevice *device = self->comm->device;
    const KernelBackEnd *kernels = device->back_end;
    const CommBackEnd *collectives = self->comm->back_end;
    TRY(executable_prepare(&ready, arena, device, self->comm, program, false, &self->error));
    TRY(executable_allocate(ready, memory, NULL, &self->error));
    if (kernels->finish) TRY(kernels->finish(device, &self->error));
    if (collectives->start) TRY(collectives->start(self->comm, &self->error));
    if (self->gives || self->boxes) {
        int64_t given =
            fill_shard(expected, self->source, self->comm->rank - self->source->first_rank, shape);
        kernels->copy_in(device, executable_parameter(ready, 0), expected, given * (int64_t)sizeof *expected);
    }
    TRY(executable_run(ready, &self->error));
    if (collectives->await) TRY(collectives->await(self->comm, &self->error));
    TRY(kernels->synchronize(device, &self->error));
    self->sent = sent_elements(program);
    self->is_right = true;
    if (self->gives) return AM_OK;
    int64_t count = fill_shard(expected, self->target, self->comm->rank - self->target->first_rank, shape);
    kernels->copy_out(device, result, executable_output(ready, 0), count * (int64_t)sizeof *result);
    if (sbp_has_partial(self->target->state)) return AM_OK; /* sums_are_right() */
    self->is_right = memcmp(expected, result, sizeof *expected * (size_t)count) == 0;
    return AM_OK;
}

static inline void *rank_thread(void *argument) {
    RankRun *self = argument;
    if (run_rank(self, &self->arena, &self->memory) != AM_OK) self->comm->back_end->abort(self->comm);
    return NULL;
}

static inline void close_rank(RankRun *self) {
    KernelDevice *device = self->comm->device;
    if (self->memory) device->back_end->release(device, self->memory);
    arena_free(&self->arena);
}

/* Returns whether the parts on the devices of a partial target add up; runs[0] is its first. */
static inline bool sums_are_right(const RankRun *runs, const TransferEnd *target, const IrShape *shape) {
    TransferEnd whole = *target;
    uint32_t axes = 0;
    for (int32_t axis = 0; axis < target->mesh->axis_count; axis++)
        if (sbp_is_partial(target->state.axis[axis])) {
            sbp_set(&whole.state, axis, SBP_B);
            axes |= 1u << axis;
        }
    for (int32_t d = 0; d < target->mesh->device_count; d++) {
        int32_t group[MOST_RANKS], expected[256], count = mesh_group(target->mesh, d, axes, group);
        int64_t elements = fill_shard(expected, &whole, d, shape);
        for (int64_t e = 0; e < elements; e++) {
            for (int32_t k = 0; k < count; k++) expected[e] -= runs[group[k]].result[e];
            if (expected[e] != 0) return false;
        }
    }
    return true;
}

/* Runs a transfer between disjoint sets, or boxes on one mesh; returns the elements moved in all. */
static inline double run_pair(Fixture *fixture, const TransferEnd *source, const TransferEnd *target,
                              int32_t instruction, const char *what) {
    bool boxes = source->first_rank == target->first_rank;
    int32_t count = source->mesh->device_count + (boxes ? 0 : target->mesh->device_count);
    KernelDevice *devices[MOST_RANKS] = {NULL};
    Comm comms[MOST_RANKS];
    RankRun runs[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    AmError error = {0};
    double sent = 0;
    for (int32_t r = 0; r < count; r++)
        if (fixture->kernels->open(&devices[r], &(KernelOptions){.index = r}, &error) != AM_OK)
            fail_msg("%s", error.text);
    if (fixture->collectives->open(comms, 0, count, count, devices, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    for (int32_t r = 0; r < count; r++) {
        int32_t offset = r - source->first_rank;
        runs[r] = (RankRun){.fixture = fixture,
                            .source = source,
                            .target = target,
                            .instruction = instruction,
                            .gives = !boxes && offset >= 0 && offset < source->mesh->device_count,
                            .boxes = boxes,
                            .comm = &comms[r]};
        pthread_create(&threads[r], NULL, rank_thread, &runs[r]);
    }
    for (int32_t r = 0; r < count; r++) pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < count; r++) close_rank(&runs[r]);
    fixture->collectives->close(comms);
    for (int32_t r = 0; r < count; r++) fixture->kernels->close(devices[r]);
    for (int32_t r = 0; r < count; r++) {
        if (!runs[r].is_right) fail_msg("%s: rank %d: %s", what, r, runs[r].error.text);
        sent += runs[r].sent;
    }
    const IrShape *shape = &fixture->module->instructions[instruction].shape;
    if (sbp_has_partial(target->state) && !sums_are_right(&runs[target->first_rank], target, shape))
        fail_msg("%s: the partial values add up to something else", what);
    return sent;
}

static inline void name_case(char *text, size_t size, const TransferEnd *source, const TransferEnd *target,
                             int32_t instruction) {
    Text names = {0};
    text_append(&names, "parameter %d, ranks %d..: ", instruction, source->first_rank);
    sbp_print(&names, source->mesh, source->state);
    text_append(&names, " to ranks %d..: ", target->first_rank);
    sbp_print(&names, target->mesh, target->state);
    snprintf(text, size, "%s", names.data);
    text_free(&names);
}

/* Number k of the states of a mesh, each axis one of `split_options` (the last is partial). */
static inline SbpState state_number(const Mesh *mesh, int32_t k, int32_t split_options) {
    static const Sbp values[] = {1, 2, SBP_B, -1};
    SbpState state = {{0}, {{0}}};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++, k /= split_options)
        state.axis[axis] = values[k % split_options];
    return state;
}

static inline int32_t power(int32_t base, int32_t exponent) {
    int32_t result = 1;
    while (exponent-- > 0) result *= base;
    return result;
}

/* Table 2, in whole tensors: partial values are reduced to shards among those that have them, every copy
 * of the target's costs a whole tensor. With more axes than one, copies of partial values are reduced
 * side by side. */
static inline double table_weight(const TransferEnd *source, const TransferEnd *target) {
    double parts = 1, copies = 1, wanted = 1;
    for (int32_t axis = 0; axis < source->mesh->axis_count; axis++)
        if (sbp_is_partial(source->state.axis[axis])) parts *= source->mesh->axes[axis].size;
        else if (source->state.axis[axis] == SBP_B) copies *= source->mesh->axes[axis].size;
    for (int32_t axis = 0; axis < target->mesh->axis_count; axis++)
        if (target->state.axis[axis] == SBP_B) wanted *= target->mesh->axes[axis].size;
    return (parts > 1 ? copies * (parts - 1) : 0) + wanted;
}

/* Devices along two axes that cut one dimension, the partial or whole one in front: cutting it after the
 * other costs more than the table says. */
static inline bool is_jointly_cut(const TransferEnd *end, bool is_source) {
    if (end->mesh->axis_count > 1 && !is_source && end->state.axis[0] == SBP_B &&
        sbp_is_partial(end->state.axis[1]))
        return true;
    return end->mesh->axis_count > 1 && sbp_is_split(end->state.axis[1]) &&
           (is_source ? sbp_is_partial(end->state.axis[0]) : !sbp_is_split(end->state.axis[0]));
}

/* All pairs of states, or every `stride`-th. */
static inline void check_pair(Fixture *fixture, const char *source_mesh, const char *target_mesh,
                              int32_t stride) {
    Arena arena = {0};
    Mesh a, b;
    char what[256];
    assert_int_equal(mesh_parse(&a, &arena, source_mesh, NULL), AM_OK);
    assert_int_equal(mesh_parse(&b, &arena, target_mesh, NULL), AM_OK);
    for (int32_t s = 0; s < power(4, a.axis_count); s++)
        for (int32_t t = 0; t < power(4, b.axis_count); t++)
            for (int32_t i = 0; i < 2; i++) {
                if ((s * 7 + t * 2 + i) % stride != 0) continue;
                bool turned = (s + t + i) % 2; /* the target's ranks first */
                TransferEnd source = {&a, turned ? b.device_count : 0, state_number(&a, s, 4)};
                TransferEnd target = {&b, turned ? 0 : a.device_count, state_number(&b, t, 4)};
                name_case(what, sizeof what, &source, &target, i);
                double sent = run_pair(fixture, &source, &target, i, what);
                double whole = (double)ir_shape_elements(&fixture->module->instructions[i].shape);
                double wanted = table_weight(&source, &target) * whole;
                bool is_dear = is_jointly_cut(&source, true) || is_jointly_cut(&target, false);
                if (sent > wanted * 1.000001 && !is_dear)
                    fail_msg("%s: %g elements moved, the table has %g", what, sent, wanted);
                if (sent < wanted * 0.999999) fail_msg("%s: only %g elements, not %g", what, sent, wanted);
            }
    arena_free(&arena);
}

#endif
