/* Splits a module given as HLO text over a mesh by chosen factors and runs it by ranks as threads:
 * every shard of every output equals, bit for bit, the corresponding part of one device's result.
 * Parameters contain small integers. */
#ifndef TESTS_SUPPORT_SPLIT_CASE_H
#define TESTS_SUPPORT_SPLIT_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/ranks.h"
#include "propagation/sharding/shard.h"

enum { SPLIT_MOST_RANKS = 8, SPLIT_MOST_ARRAYS = 16 };

typedef struct SplitArrays {
    void *data[SPLIT_MOST_ARRAYS];
} SplitArrays;

/* The parameters, and the results of one device. */
typedef struct SplitCase {
    PlanContext context;
    SplitArrays parameters, expected;
} SplitCase;

typedef struct SplitRank {
    const SplitCase *test;
    Comm *comm;
    Arena arena;
    Program *program;
    AmStatus status;
    AmError error;
    int32_t wrong; /* output, or -1 */
    pthread_t thread;
} SplitRank;

/* -3..3, and 0 or 1 for pred; unsigned ones from 0. */
static inline void split_fill(void *out, const IrShape *shape, uint64_t seed) {
    Dtype part = dtype_real_part(shape->type);
    int64_t count = ir_shape_elements(shape) * (dtype_is_complex(shape->type) ? 2 : 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t number = (int64_t)(random_at(seed, 17, (uint64_t)i) % 7) - 3;
        if (scalar64_kind(part) == SCALAR64_UNSIGNED) number = part == DTYPE_PRED ? number > 0 : number + 3;
        Scalar64 value = {.as_signed = number};
        scalar64_store((char *)out + i * dtype_bytes(part), part, &value, SCALAR64_SIGNED, 1, 1);
    }
}

/* Copies the shard that `value` is between its place in the whole and `local`. */
static inline void split_copy(const Program *program, int32_t value, const IrShape *whole, char *whole_data,
                              char *local, bool into_whole) {
    ShardLayout part;
    int64_t bytes = dtype_bytes(whole->type);
    assert_true(shard_layout(&part, program->mesh, program->values[value].state, program->device, whole));
    char *place = whole_data + part.start_offset * bytes;
    if (into_whole)
        strided_copy(place, part.global_strides, local, part.local_strides, part.dimensions, part.rank,
                     bytes);
    else
        strided_copy(local, part.local_strides, place, part.global_strides, part.dimensions, part.rank,
                     bytes);
}

static inline const IrShape *split_output_shape(const SplitCase *self, int32_t k) {
    const Rules *rules = self->context.rules;
    int32_t output = self->context.roles->outputs[k];
    return rules_leaf(&self->context.canonical->instructions[rules->alias[output]].shape,
                      rules->leaf[output]);
}

static inline const IrShape *split_parameter_shape(const SplitCase *self, int32_t k) {
    return &self->context.canonical->instructions[self->context.roles->parameters[k].instruction].shape;
}

/* Runs a program once on the shards of the parameters; compares with `expected`, or fills it. */
static inline AmStatus split_run(SplitCase *self, Arena *arena, const Program *program, Comm *comm,
                                 int32_t *wrong, AmError *error) {
    Executable *ready;
    char *memory;
    TRY(executable_prepare(&ready, arena, &kernel_device_cpu, comm, program, false, error));
    TRY(executable_allocate(ready, &memory, NULL, error));
    for (int32_t k = 0; k < self->context.roles->parameter_count; k++)
        if (program->parameters[k] >= 0) /* another stage's */
            split_copy(program, program->parameters[k], split_parameter_shape(self, k),
                       self->parameters.data[k], executable_parameter(ready, k), false);
    AmStatus status = executable_run(ready, error);
    for (int32_t k = 0; status == AM_OK && k < self->context.roles->output_count; k++) {
        const IrShape *whole = split_output_shape(self, k);
        int32_t value = program->outputs[k];
        if (value < 0) continue;
        int64_t bytes = ir_shape_bytes(&program->values[value].shape);
        if (!comm) {
            split_copy(program, value, whole, self->expected.data[k], executable_output(ready, k), true);
            continue;
        }
        char *part = malloc((size_t)bytes + 1);
        assert_non_null(part);
        split_copy(program, value, whole, self->expected.data[k], part, false);
        if (*wrong < 0 && memcmp(part, executable_output(ready, k), (size_t)bytes) != 0) *wrong = k;
        free(part);
    }
    free(memory);
    return status;
}

static inline void split_open(SplitCase *self, const char *text, uint64_t seed) {
    AmError error = {0};
    PlanContext *context = &self->context;
    *self = (SplitCase){0};
    AmStatus status = ir_read_bytes(&context->module, "test", text, (int64_t)strlen(text), &error);
    if (status == AM_OK) status = ir_canonicalize(&context->canonical, context->module, &error);
    if (status == AM_OK)
        status = ir_find_roles(&context->roles, &context->arena, context->canonical, NULL, &error);
    if (status == AM_OK) status = rules_build(&context->rules, &context->arena, context->canonical, &error);
    if (status == AM_OK)
        status = classes_build(&context->classes, &context->arena, context->rules, context->roles, &error);
    if (status == AM_OK)
        status = split_options_build(&context->split_options, &context->arena, context->rules,
                                     context->classes, context->roles, &error);
    if (status != AM_OK) fail_msg("%s: line %d\n%s", error.text, (int)error.line, text);
    assert_true(context->roles->parameter_count <= SPLIT_MOST_ARRAYS &&
                context->roles->output_count <= SPLIT_MOST_ARRAYS);
    for (int32_t k = 0; k < context->roles->parameter_count; k++) {
        const IrShape *shape = split_parameter_shape(self, k);
        self->parameters.data[k] = calloc(1, (size_t)ir_shape_bytes(shape) + 1);
        assert_non_null(self->parameters.data[k]);
        split_fill(self->parameters.data[k], shape, seed + (uint64_t)k);
    }
    for (int32_t k = 0; k < context->roles->output_count; k++) {
        self->expected.data[k] = calloc(1, (size_t)ir_shape_bytes(split_output_shape(self, k)) + 1);
        assert_non_null(self->expected.data[k]);
    }
    Arena arena = {0};
    Program *program;
    status = plan_lower_one_device(&program, &arena, context, &error);
    if (status == AM_OK) status = split_run(self, &arena, program, NULL, NULL, &error);
    if (status != AM_OK) fail_msg("%s\n%s", error.text, text);
    arena_free(&arena);
}

static inline void split_close(SplitCase *self) {
    for (int32_t k = 0; k < SPLIT_MOST_ARRAYS; k++) {
        free(self->parameters.data[k]);
        free(self->expected.data[k]);
    }
    ir_module_free(self->context.canonical);
    ir_module_free(self->context.module);
    arena_free(&self->context.arena);
}

static inline void *split_thread(void *argument) {
    SplitRank *self = argument;
    self->status = split_run((SplitCase *)self->test, &self->arena, self->program, self->comm, &self->wrong,
                             &self->error);
    if (self->status != AM_OK) self->comm->back_end->abort(self->comm);
    return NULL;
}

static inline int32_t split_instruction(const SplitCase *self, const char *name) {
    for (int32_t i = 0; i < self->context.canonical->instruction_count; i++)
        if (strcmp(self->context.canonical->instructions[i].name, name) == 0) return i;
    fail_msg("no instruction %s", name);
    return -1;
}

/* Runs a plan, whose stages have their meshes and decisions; a failure reports `what`. `watch`: a
 * check of rank 0's program, or NULL. */
static inline void split_check_plan(SplitCase *self, const Plan *plan, const char *what,
                                    void (*watch)(const Program *)) {
    SplitRank all[SPLIT_MOST_RANKS];
    Comm comms[SPLIT_MOST_RANKS];
    KernelDevice *devices[SPLIT_MOST_RANKS];
    AmError error = {0};
    Arena arena = {0};
    PlanRanks lowered;
    if (plan_ranks(&lowered, &arena, &self->context, plan, &error) != AM_OK)
        fail_msg("%s: %s", what, error.text);
    int32_t ranks = lowered.rank_count;
    assert_true(ranks <= SPLIT_MOST_RANKS);
    for (int32_t r = 0; r < ranks; r++) devices[r] = &kernel_device_cpu;
    if (comm_local.open(comms, 0, ranks, ranks, devices, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t r = 0; r < ranks; r++) {
        all[r] = (SplitRank){.test = self, .comm = &comms[r], .wrong = -1};
        if (plan_ranks_lower(&all[r].program, &all[r].arena, &lowered, r, &error) != AM_OK)
            fail_msg("%s: %s", what, error.text);
    }
    if (watch) watch(all[0].program);
    for (int32_t r = 0; r < ranks; r++) pthread_create(&all[r].thread, NULL, split_thread, &all[r]);
    for (int32_t r = 0; r < ranks; r++) pthread_join(all[r].thread, NULL);
    for (int32_t r = 0; r < ranks; r++)
        if (all[r].status != AM_OK && !strstr(all[r].error.text, "another rank failed"))
            fail_msg("%s: rank %d: %s", what, r, all[r].error.text);
    for (int32_t r = 0; r < ranks; r++) {
        if (all[r].wrong >= 0) {
            Text text = {0};
            program_print(&text, all[r].program);
            fail_msg("%s: rank %d: output %d is wrong\n%s", what, r, all[r].wrong, text.data);
        }
    }
    for (int32_t r = 0; r < ranks; r++) arena_free(&all[r].arena);
    comm_local.close(comms);
    arena_free(&arena);
}

/* The same for one stage. */
static inline void split_check_stage(SplitCase *self, PlanStage *stage, const char *what,
                                     void (*watch)(const Program *)) {
    split_check_plan(self, &(Plan){.micro_batches = 1, .stages = stage, .stage_count = 1}, what, watch);
}

/* The same with factor `factor` of the named instruction split on the first axis
 * of `mesh`, and `second` (-1: none) on the second. */
static inline void split_check_factors(SplitCase *self, const char *mesh, const char *name, int32_t factor,
                                       int32_t second) {
    Arena arena = {0};
    AmError error = {0};
    char what[256];
    PlanOverride override = {.instruction = split_instruction(self, name),
                             .has_factors = true,
                             .factors = {factor, second, -1, -1}};
    PlanStage stage = {.overrides = &override, .override_count = 1};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, mesh, &error), AM_OK);
    snprintf(what, sizeof what, "%s of %s, factors %d and %d", name, mesh, factor, second);
    split_check_stage(self, &stage, what, NULL);
    arena_free(&arena);
}

/* With the classes that the bits of `chosen` name split over every axis of `mesh`, in order. */
static inline void split_check_classes(SplitCase *self, const char *mesh, uint64_t chosen,
                                       void (*watch)(const Program *)) {
    Arena arena = {0};
    AmError error = {0};
    char what[256];
    const Classes *classes = self->context.classes;
    PlanStage stage = {.range_count = 0};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, mesh, &error), AM_OK);
    for (int32_t axis = 0; axis < stage.mesh.axis_count; axis++) {
        PlanAxisPriority *priority = &stage.axis_priorities[axis];
        priority->entries = ARENA_ARRAY(&arena, PlanEntry, classes->count + 1);
        for (int32_t c = 0; c < classes->count; c++)
            if (chosen >> c & 1) priority->entries[priority->count++].class_index = c;
    }
    snprintf(what, sizeof what, "%s, classes %llx", mesh, (unsigned long long)chosen);
    split_check_stage(self, &stage, what, watch);
    arena_free(&arena);
}

/* Every factor of the named instruction that may be split and has at least as many elements as the mesh
 * has devices, alone; returns how many there are. */
static inline int32_t split_check_each(SplitCase *self, const char *mesh, int32_t ways, const char *name) {
    int32_t i = split_instruction(self, name), count = 0;
    const FactorRule *rule = &self->context.rules->rules[i];
    for (int32_t f = 0; f < rule->factor_count; f++) {
        bool may_split =
            rule->factors[f].kind == FACTOR_PARALLEL || rule->factors[f].kind == FACTOR_REDUCTION;
        if (!may_split || rule->factors[f].size < ways) continue;
        split_check_factors(self, mesh, name, f, -1);
        count++;
    }
    return count;
}

#endif
