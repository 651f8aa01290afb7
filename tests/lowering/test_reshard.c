/* Resharding on one set of devices: every pair of states on meshes of one and two axes, shapes that
 * divide and that do not, and cuts between granules and in blocks. Threads run the program on
 * integers. Its bytes are those of OneFlow's table 2, and of the cheapest sequence of collectives,
 * which this test searches by the elements on each device, not by names of states. */
/* cost: 28 seconds */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower_internal.h"
#include "propagation/sharding/shard.h"
#include "tests/support/sample.h"

enum { MOST_RANKS = 8, RANK = 2, MOST_STATES = 16, STRIDE = 7, MOST_ELEMENTS = 512 };

static const char module_text[] =
    "HloModule m\n\nENTRY e {\n  a = s32[24,12] parameter(0)\n  b = s32[7,5] parameter(1)\n"
    "  ROOT r = (s32[24,12], s32[7,5]) tuple(a, b)\n}\n";

typedef struct Fixture {
    IrModule *read, *module;
    Rules rules;
    IrRoles roles;
    int64_t cases;
} Fixture;

static int setup(void **state) {
    Fixture *self = calloc(1, sizeof *self);
    AmError error = {0};
    if (ir_read_bytes(&self->read, "test", module_text, (int64_t)strlen(module_text), &error) != AM_OK ||
        ir_canonicalize(&self->module, self->read, &error) != AM_OK)
        fail_msg("%s", error.text);
    self->rules.count = self->module->instruction_count;
    self->rules.on_demand = calloc((size_t)self->rules.count + 1, sizeof *self->rules.on_demand);
    self->roles = (IrRoles){.parameter_count = 1, .output_count = 1, .loss = -1};
    *state = self;
    return 0;
}

static int teardown(void **state) {
    Fixture *self = *state;
    printf("%lld cases\n", (long long)self->cases);
    free((void *)self->rules.on_demand);
    ir_module_free(self->module);
    ir_module_free(self->read);
    free(self);
    return 0;
}

/* ---- elements on the devices ---- */

/* The box of elements that a device has in a state. */
typedef struct Held {
    int64_t start[RANK], extent[RANK];
} Held;

static Held held_by(const Mesh *mesh, SbpState state, int32_t device, const IrShape *shape) {
    Held held;
    for (int32_t d = 0; d < RANK; d++)
        sbp_shard(mesh, state, device, d, shape->dimensions[d], &held.start[d], &held.extent[d]);
    return held;
}

static double elements_of(const Held *held) {
    return (double)(held->extent[0] * held->extent[1]);
}

static double common_elements(const Held *a, const Held *b) {
    double product = 1;
    for (int32_t d = 0; d < RANK; d++) {
        int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t a_end = a->start[d] + a->extent[d], b_end = b->start[d] + b->extent[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        product *= end > start ? (double)(end - start) : 0;
    }
    return product;
}

static int32_t value_at(int64_t index) {
    return (int32_t)(index * 7 % 23);
}

/* Which of how many partial values a device has. */
static int32_t partial_number(const Mesh *mesh, SbpState state, int32_t device, int32_t *count,
                              SbpReduction *reduction) {
    int32_t number = 0;
    *count = 1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        if (!sbp_is_partial(state.axis[axis])) continue;
        *reduction = sbp_reduction(state.axis[axis]);
        number = number * mesh->axes[axis].size + mesh_coordinate(mesh, device, axis);
        *count *= mesh->axes[axis].size;
    }
    return number;
}

/* Returns a device's part `index` of the value, which has `parts` parts. */
static int32_t part_at(int64_t index, int32_t part, int32_t parts, SbpReduction reduction) {
    int32_t value = value_at(index);
    if (reduction == SBP_MAX) return index % parts == part ? value : value - 1 - (part + (int32_t)index) % 5;
    if (part > 0) return (int32_t)((part * 31 + index * 5) % 11);
    for (int32_t p = 1; p < parts; p++) value -= (int32_t)((p * 31 + index * 5) % 11);
    return value;
}

/* A device's shard, row-major, as its state says; returns the number of elements. */
static int64_t fill_shard(int32_t *out, const Mesh *mesh, SbpState state, int32_t device,
                          const IrShape *shape) {
    int32_t whole[MOST_ELEMENTS], parts;
    SbpReduction reduction = SBP_ADD;
    int32_t part = partial_number(mesh, state, device, &parts, &reduction);
    for (int64_t k = 0; k < ir_shape_elements(shape); k++)
        whole[k] = parts == 1 ? value_at(k) : part_at(k, part, parts, reduction);
    ShardLayout layout;
    assert_true(shard_layout(&layout, mesh, state, device, shape));
    shard_copy_out(&layout, out, whole, sizeof *out);
    return shard_elements(&layout);
}

/* ---- running ---- */

typedef struct RankRun {
    Fixture *fixture;
    const Mesh *mesh;
    SbpState from, to;
    bool is_finished; /* a partial result is reduced again, and so checked */
    int32_t instruction;
    Comm *comm;
    bool is_right;
    double received; /* elements from other ranks; of an all_reduce as a ring does it */
    AmError error;
} RankRun;

static AmStatus lower_reshard(const RankRun *self, Arena *arena, Program **program, AmError *error) {
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    Assignment *assignment = ARENA_ARRAY(arena, Assignment, 1);
    stage->mesh = *self->mesh;
    assignment->stage = stage;
    Lowering lowering = {.arena = arena,
                         .scratch = arena,
                         .module = self->fixture->module,
                         .rules = &self->fixture->rules,
                         .assignment = assignment,
                         .device = self->comm->rank,
                         .newest = ARENA_ARRAY(arena, int32_t, self->fixture->rules.count + 1)};
    for (int32_t i = 0; i < self->fixture->rules.count; i++) lowering.newest[i] = -1;
    TRY(lower_begin(&lowering, &self->fixture->roles, 4, error));
    *program = lowering.program;
    (*program)->parameters = ARENA_ARRAY(arena, int32_t, 1);
    (*program)->outputs = ARENA_ARRAY(arena, int32_t, 1);
    const IrShape *shape = &self->fixture->module->instructions[self->instruction].shape;
    int32_t value = lower_add_value(&lowering, self->instruction, 0, shape, self->from);
    (*program)->values[value].kind = PROGRAM_VALUE_PARAMETER;
    (*program)->values[value].instruction = -1;
    (*program)->parameters[0] = value;
    const LoweredResult result = {self->instruction, 0, shape};
    TRY(reshard_value(&lowering, result, value, self->to, &value, error));
    if (self->is_finished)
        TRY(reshard_value(&lowering, result, value, (SbpState){.axis = {SBP_B}}, &value, error));
    (*program)->outputs[0] = value;
    return lower_finish(&lowering, error);
}

static double received_elements(const Program *program) {
    double received = 0;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        const ProgramCollective *collective = instruction->collective;
        if (!collective) continue;
        double n = collective->group_count;
        double operand = (double)ir_shape_elements(&program->values[instruction->operands[0]].shape);
        double result = (double)ir_shape_elements(&program->values[instruction->first_result].shape);
        const ProgramMovement *movement = collective->movements;
        int32_t self = 0;
        while (collective->group[self] != program->device) self++;
        switch (collective->kind) {
        case PROGRAM_ALL_REDUCE: received += 2 * (n - 1) / n * operand; break;
        case PROGRAM_REDUCE_SCATTER: received += (n - 1) * result; break;
        case PROGRAM_ALL_GATHER: received += result - operand; break;
        case PROGRAM_ALL_TO_ALL: {
            double whole = 0;
            for (int32_t k = 0; k < collective->group_count; k++) whole += (double)movement->parts[k];
            received += result * (1 - (double)movement->parts[self] / whole);
            break;
        }
        case PROGRAM_HALO_EXCHANGE: {
            int64_t start, part_start;
            int64_t range = movement->range_extent[self];
            if (range == 0) break;
            int64_t own = program_halo_piece(movement, self, self, &start, &part_start);
            received += result * (1 - (double)own / (double)range);
            break;
        }
        default: fail();
        }
    }
    return received;
}

static AmStatus run_rank(RankRun *self, Arena *arena, char **memory) {
    Program *program;
    Executable *ready;
    int32_t expected[MOST_ELEMENTS];
    const IrShape *shape = &self->fixture->module->instructions[self->instruction].shape;
    TRY(lower_reshard(self, arena, &program, &self->error));
    TRY(executable_prepare(&ready, arena, &kernel_device_cpu, self->comm, program, false, &self->error));
    TRY(executable_allocate(ready, memory, NULL, &self->error));
    fill_shard(executable_parameter(ready, 0), self->mesh, self->from, self->comm->rank, shape);
    TRY(executable_run(ready, &self->error));
    self->received = received_elements(program);
    SbpState made = self->is_finished ? (SbpState){.axis = {SBP_B}} : self->to;
    int64_t count = fill_shard(expected, self->mesh, made, self->comm->rank, shape);
    const int32_t *got = executable_output(ready, 0);
    self->is_right = sbp_has_partial(made) || /* any parts will do */
                     memcmp(expected, got, sizeof *expected * (size_t)count) == 0;
    return AM_OK;
}

static void *rank_thread(void *argument) {
    RankRun *self = argument;
    Arena arena = {0};
    char *memory = NULL;
    if (run_rank(self, &arena, &memory) != AM_OK) self->comm->back_end->abort(self->comm);
    if (memory) kernel_device_cpu.back_end->release(&kernel_device_cpu, memory);
    arena_free(&arena);
    return NULL;
}

/* Elements that all devices together receive. */
static double run_and(bool is_finished, Fixture *fixture, const Mesh *mesh, Comm *comms, SbpState from,
                      SbpState to, int32_t instruction, const char *what) {
    RankRun runs[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    double received = 0;
    for (int32_t r = 0; r < mesh->device_count; r++) {
        runs[r] = (RankRun){.fixture = fixture,
                            .mesh = mesh,
                            .from = from,
                            .to = to,
                            .is_finished = is_finished,
                            .instruction = instruction,
                            .comm = &comms[r]};
        pthread_create(&threads[r], NULL, rank_thread, &runs[r]);
    }
    for (int32_t r = 0; r < mesh->device_count; r++) pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < mesh->device_count; r++) {
        if (!runs[r].is_right) fail_msg("%s: rank %d: wrong %s", what, r, runs[r].error.text);
        received += runs[r].received;
    }
    return received;
}

static double run(Fixture *fixture, const Mesh *mesh, Comm *comms, SbpState from, SbpState to,
                  int32_t instruction, const char *what) {
    return run_and(false, fixture, mesh, comms, from, to, instruction, what);
}

/* ---- the cheapest sequence ---- */

static SbpState state_number(const Mesh *mesh, int32_t k, SbpReduction reduction) {
    const Sbp values[] = {SBP_B, sbp_split(0), sbp_split(1), sbp_partial(reduction)};
    SbpState state = {.axis = {SBP_B}};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++, k /= 4) state.axis[axis] = values[k % 4];
    return state;
}

static int32_t state_count(const Mesh *mesh) {
    int32_t count = 1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) count *= 4;
    return count;
}

/* One device among those with which it exchanges: its elements before and after. */
typedef struct Members {
    int32_t count;
    Held before[MOST_RANKS], after[MOST_RANKS];
} Members;

static Members members_of(const Mesh *mesh, SbpState from, SbpState to, int32_t device, uint32_t axes,
                          const IrShape *shape) {
    Members members;
    int32_t group[MOST_RANKS];
    members.count = mesh_group(mesh, device, axes, group);
    for (int32_t k = 0; k < members.count; k++) {
        members.before[k] = held_by(mesh, from, group[k], shape);
        members.after[k] = held_by(mesh, to, group[k], shape);
    }
    return members;
}

static bool is_equal_but(const Held *a, const Held *b, int32_t dimension) {
    for (int32_t d = 0; d < RANK; d++)
        if (d != dimension && (a->start[d] != b->start[d] || a->extent[d] != b->extent[d])) return false;
    return true;
}

/* Returns whether the boxes follow one another along a dimension and are equal in the other. */
static bool is_in_line(const Held *boxes, int32_t count, int32_t dimension) {
    for (int32_t k = 1; k < count; k++)
        if (!is_equal_but(&boxes[k], &boxes[0], dimension) ||
            boxes[k].start[dimension] != boxes[k - 1].start[dimension] + boxes[k - 1].extent[dimension])
            return false;
    return true;
}

static bool is_same(const Held *boxes, int32_t count) {
    for (int32_t k = 1; k < count; k++)
        if (!is_equal_but(&boxes[k], &boxes[0], -1)) return false;
    return true;
}

/* Returns whether the boxes, which are adjacent, cover `inner`. */
static bool is_covered(const Held *inner, const Held *boxes, int32_t count, int32_t dimension) {
    int64_t start = boxes[0].start[dimension];
    int64_t end = boxes[count - 1].start[dimension] + boxes[count - 1].extent[dimension];
    return is_equal_but(inner, &boxes[0], dimension) && inner->start[dimension] >= start &&
           inner->start[dimension] + inner->extent[dimension] <= end;
}

/* Elements that a device receives in one collective over `axes` that takes all from one state to the
 * other; INFINITY: none does. */
static double received_in_one(const Mesh *mesh, SbpState from, SbpState to, uint32_t axes, int32_t device,
                              const IrShape *shape) {
    Members members = members_of(mesh, from, to, device, axes, shape);
    const Held *before = members.before, *after = members.after;
    Held mine = held_by(mesh, from, device, shape), wanted = held_by(mesh, to, device, shape);
    int32_t n = members.count;
    bool reduces = true, moves = true;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        bool is_in = axes >> axis & 1, partial = sbp_is_partial(from.axis[axis]);
        reduces &= is_in ? partial && !sbp_is_partial(to.axis[axis]) : from.axis[axis] == to.axis[axis];
        moves &=
            is_in ? !partial && !sbp_is_partial(to.axis[axis]) : partial == sbp_is_partial(to.axis[axis]);
    }
    double least = INFINITY;
    if (reduces && is_same(before, n) && is_same(after, n) && is_equal_but(&mine, &wanted, -1))
        least = 2.0 * (n - 1) / n * elements_of(&mine);
    for (int32_t d = 0; d < RANK; d++) {
        if (reduces && is_same(before, n) && is_in_line(after, n, d) && is_covered(&mine, after, n, d) &&
            is_covered(&after[0], &mine, 1, d) && is_covered(&after[n - 1], &mine, 1, d))
            least = fmin(least, (n - 1) * elements_of(&wanted));
        double missing = elements_of(&wanted) - common_elements(&mine, &wanted);
        if (moves && is_in_line(before, n, d) && is_covered(&wanted, before, n, d))
            least = fmin(least, missing);
        bool is_exchange =
            moves && is_in_line(before, n, d) && is_in_line(after, n, 1 - d) &&
            wanted.start[d] == before[0].start[d] &&
            wanted.extent[d] == before[n - 1].start[d] + before[n - 1].extent[d] - before[0].start[d] &&
            mine.start[1 - d] == after[0].start[1 - d] &&
            mine.extent[1 - d] ==
                after[n - 1].start[1 - d] + after[n - 1].extent[1 - d] - after[0].start[1 - d];
        if (is_exchange) least = fmin(least, missing);
    }
    return least;
}

/* Elements that all devices receive in one collective or local slice; INFINITY: no such step. */
static double one_step(const Mesh *mesh, SbpState from, SbpState to, const IrShape *shape) {
    double least = INFINITY;
    for (uint32_t axes = 0; axes < 1u << mesh->axis_count; axes++) {
        double total = 0;
        for (int32_t device = 0; device < mesh->device_count; device++)
            total += received_in_one(mesh, from, to, axes, device, shape);
        least = fmin(least, total);
    }
    return least;
}

/* least[a][b] over any number of steps between states in which the axes `whole` are B (Floyd and
 * Warshall). */
static void find_least(double least[MOST_STATES][MOST_STATES], const Mesh *mesh, uint32_t whole,
                       SbpReduction reduction, const IrShape *shape) {
    int32_t count = state_count(mesh);
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = 0; b < count; b++) {
            SbpState from = state_number(mesh, a, reduction), to = state_number(mesh, b, reduction);
            bool is_kept = true;
            for (int32_t axis = 0; axis < mesh->axis_count; axis++)
                if (whole >> axis & 1) is_kept &= from.axis[axis] == SBP_B && to.axis[axis] == SBP_B;
            least[a][b] = !is_kept ? INFINITY : a == b ? 0 : one_step(mesh, from, to, shape);
        }
    for (int32_t k = 0; k < count; k++)
        for (int32_t a = 0; a < count; a++)
            for (int32_t b = 0; b < count; b++) least[a][b] = fmin(least[a][b], least[a][k] + least[k][b]);
}

/* Axes that are whole before and after: they stay so, and table 2 counts what moves on the others once
 * for each of their devices. */
static uint32_t whole_axes(const Mesh *mesh, SbpState from, SbpState to) {
    uint32_t axes = 0;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (from.axis[axis] == SBP_B && to.axis[axis] == SBP_B) axes |= 1u << axis;
    return axes;
}

static void check_mesh(Fixture *fixture, const char *text, SbpReduction reduction) {
    static double least[4][MOST_STATES][MOST_STATES];
    Arena arena = {0};
    AmError error = {0};
    Mesh mesh;
    KernelDevice *devices[MOST_RANKS];
    Comm comms[MOST_RANKS];
    int32_t dear = 0;
    assert_int_equal(mesh_parse(&mesh, &arena, text, NULL), AM_OK);
    for (int32_t r = 0; r < mesh.device_count; r++) devices[r] = &kernel_device_cpu;
    if (comm_local.open(comms, 0, mesh.device_count, mesh.device_count, devices, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    for (int32_t i = 0; i < 2; i++) {
        const IrShape *shape = &fixture->module->instructions[i].shape;
        for (uint32_t whole = 0; whole < 1u << mesh.axis_count; whole++)
            find_least(least[whole], &mesh, whole, reduction, shape);
        for (int32_t a = 0; a < state_count(&mesh); a++)
            for (int32_t b = 0; b < state_count(&mesh); b++) {
                SbpState from = state_number(&mesh, a, reduction), to = state_number(&mesh, b, reduction);
                Text what = {0};
                double cheapest = least[whole_axes(&mesh, from, to)][a][b];
                if (isinf(cheapest)) continue;
                text_append(&what, "%s, %lld by %lld: ", text, (long long)shape->dimensions[0],
                            (long long)shape->dimensions[1]);
                sbp_print(&what, &mesh, from);
                text_append_string(&what, " to ");
                sbp_print(&what, &mesh, to);
                double received = run(fixture, &mesh, comms, from, to, i, what.data);
                fixture->cases++;
                if (i == 0 && fabs(received - cheapest) > 1e-6 * (1 + cheapest))
                    printf("DEAR %s: %g elements, the cheapest are %g (%d)\n", what.data, received, cheapest,
                           ++dear);
                text_free(&what);
            }
    }
    assert_int_equal(dear, 0);
    comm_local.close(comms);
    arena_free(&arena);
}

static void test_one_axis(void **state) {
    static const char *const meshes[] = {"x=2", "x=3", "x=4"};
    for (int k = 0; k < 3; k++) {
        check_mesh(*state, meshes[k], SBP_ADD);
        check_mesh(*state, meshes[k], SBP_MAX);
    }
}

static void test_two_axes(void **state) {
    check_mesh(*state, "x=2,y=2", SBP_ADD);
    check_mesh(*state, "x=2,y=3", SBP_ADD);
    check_mesh(*state, "x=3,y=2", SBP_MAX);
}

/* Every seventh pair of states on three axes; AUTOMAP_FULL=1: all. Only the results are checked. */
static void test_three_axes(void **state) {
    Fixture *fixture = *state;
    const char *full = getenv("AUTOMAP_FULL");
    int32_t stride = full && strcmp(full, "1") == 0 ? 1 : STRIDE;
    Mesh mesh = {.axis_count = 3,
                 .axes = {{.name = "x", .size = 2}, {.name = "y", .size = 2}, {.name = "z", .size = 2}},
                 .device_count = 8};
    KernelDevice *devices[MOST_RANKS];
    Comm comms[MOST_RANKS];
    for (int32_t r = 0; r < 8; r++) devices[r] = &kernel_device_cpu;
    assert_int_equal(comm_local.open(comms, 0, 8, 8, devices, NULL, NULL), AM_OK);
    for (int32_t pair = 0; pair < 64 * 64; pair += stride) {
        SbpState from = state_number(&mesh, pair / 64, SBP_ADD), to = state_number(&mesh, pair % 64, SBP_ADD);
        Text what = {0};
        if (reshard_weight(&mesh, &fixture->module->instructions[0].shape, from, to) < 0) continue;
        sbp_print(&what, &mesh, from);
        text_append_string(&what, " to ");
        sbp_print(&what, &mesh, to);
        run(fixture, &mesh, comms, from, to, pair / stride % 2, what.data);
        fixture->cases++;
        text_free(&what);
    }
    comm_local.close(comms);
}

enum { CUT_OPTIONS = 7 };

/* State number k among those whose axes are B, P, or S(0) and S(1) between elements, granules or in
 * blocks; false if invalid: all axes that split a dimension split the same blocks. */
static bool cut_state_number(SbpState *state, const Mesh *mesh, int32_t k, const IrShape *shape) {
    static const struct {
        int8_t dimension;
        int32_t outer, count;
    } cuts[CUT_OPTIONS] = {{-1, 0, 0}, {-2, 0, 0}, {0, 1, 24}, {0, 1, 8}, {0, 4, 6}, {1, 1, 12}, {1, 3, 4}};
    *state = (SbpState){.axis = {SBP_B}};
    int32_t blocks[RANK] = {0};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++, k /= CUT_OPTIONS) {
        int32_t option = k % CUT_OPTIONS, d = cuts[option].dimension;
        if (d == -2) sbp_set(state, axis, sbp_partial(SBP_ADD));
        if (d < 0) continue;
        if (blocks[d] && blocks[d] != cuts[option].outer) return false;
        blocks[d] = cuts[option].outer;
        SbpCut cut =
            sbp_cut(mesh, *state, axis, d, shape->dimensions[d], cuts[option].outer, cuts[option].count);
        sbp_set_split(state, axis, d, cut);
    }
    return true;
}

/* There is a way between any two states however they cut, and it is right. */
static void check_cuts(Fixture *fixture, const char *text) {
    Arena arena = {0};
    Mesh mesh;
    KernelDevice *devices[MOST_RANKS];
    Comm comms[MOST_RANKS];
    const IrShape *shape = &fixture->module->instructions[0].shape;
    assert_int_equal(mesh_parse(&mesh, &arena, text, NULL), AM_OK);
    for (int32_t r = 0; r < mesh.device_count; r++) devices[r] = &kernel_device_cpu;
    assert_int_equal(comm_local.open(comms, 0, mesh.device_count, mesh.device_count, devices, NULL, NULL),
                     AM_OK);
    int32_t count = 1;
    for (int32_t axis = 0; axis < mesh.axis_count; axis++) count *= CUT_OPTIONS;
    int32_t stride = count > CUT_OPTIONS * CUT_OPTIONS ? 997 : sample_of(1, 5);
    for (int32_t pair = 0; pair < count * count; pair += stride) {
        SbpState from, to;
        if (!cut_state_number(&from, &mesh, pair / count, shape) ||
            !cut_state_number(&to, &mesh, pair % count, shape))
            continue;
        Text what = {0};
        text_append(&what, "%s: ", text);
        sbp_print(&what, &mesh, from);
        text_append_string(&what, " to ");
        sbp_print(&what, &mesh, to);
        run_and(sbp_has_partial(to), fixture, &mesh, comms, from, to, 0, what.data);
        fixture->cases++;
        text_free(&what);
    }
    comm_local.close(comms);
    arena_free(&arena);
}

static void test_cuts(void **state) {
    static const char *const meshes[] = {"x=2", "x=3", "x=2,y=2", "x=3,y=2", "x=2,y=3", "x=2,y=2,z=2"};
    for (size_t k = 0; k < sizeof meshes / sizeof *meshes; k++) check_cuts(*state, meshes[k]);
}

/* OneFlow's table 2 for devices that are the same before and after, in whole tensors. */
static void test_table(void **state) {
    Fixture *fixture = *state;
    static const struct {
        int32_t from, to;                   /* B, S(0), S(1), P */
        double fixed, per_other, per_share; /* x + y (p - 1) + z (p - 1) / p */
    } rows[] = {
        {1, 1, 0, 0, 0}, {1, 2, 0, 0, 1}, {2, 1, 0, 0, 1}, {1, 0, 0, 1, 0}, {2, 0, 0, 1, 0}, {0, 1, 0, 0, 0},
        {0, 2, 0, 0, 0}, {0, 0, 0, 0, 0}, {3, 1, 0, 1, 0}, {3, 2, 0, 1, 0}, {3, 0, 0, 2, 0}, {3, 3, 0, 0, 0},
    };
    for (int32_t p = 2; p <= 4; p++) {
        Mesh mesh = {.axis_count = 1, .axes = {{.name = "x", .size = p}}, .device_count = p};
        KernelDevice *devices[MOST_RANKS] = {NULL};
        Comm comms[MOST_RANKS];
        for (int32_t r = 0; r < p; r++) devices[r] = &kernel_device_cpu;
        assert_int_equal(comm_local.open(comms, 0, p, p, devices, NULL, NULL), AM_OK);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            SbpState from = state_number(&mesh, rows[k].from, SBP_ADD),
                     to = state_number(&mesh, rows[k].to, SBP_ADD);
            double whole = (double)ir_shape_elements(&fixture->module->instructions[0].shape);
            double expected =
                whole * (rows[k].fixed + rows[k].per_other * (p - 1) + rows[k].per_share * (p - 1) / p);
            double received = run(fixture, &mesh, comms, from, to, 0, "table 2");
            if (fabs(received - expected) > 1e-6 * (1 + expected))
                fail_msg("row %d on %d devices: %g elements, the table has %g", (int)k, p, received,
                         expected);
            fixture->cases++;
        }
        comm_local.close(comms);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_axis), cmocka_unit_test(test_two_axes), cmocka_unit_test(test_three_axes),
        cmocka_unit_test(test_cuts),     cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
