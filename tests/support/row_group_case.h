/* Modules with row groups (lowering/passes/row_groups.c), run once on a device: on the CPU step by step and
 * in blocks of rows, and on CUDA. */
#ifndef TESTS_SUPPORT_ROW_GROUP_CASE_H
#define TESTS_SUPPORT_ROW_GROUP_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "executor/array/scalar64.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/interleave/interleave.h"
#include "lowering/spmd/lower.h"

#define ADD(T) "add { l = " T "[] parameter(0) r = " T "[] parameter(1) ROOT s = " T "[] add(l, r) }\n"
#define MOST   "most { l = f32[] parameter(0) r = f32[] parameter(1) ROOT s = f32[] maximum(l, r) }\n"

/* Root mean square norm with a scale, its gradient by rows, and a residual before it. */
#define NORM(T, B, S, D)                                                                                  \
    "HloModule norm\n" ADD(                                                                               \
        T) "ENTRY main {\n"                                                                               \
           "a = " T "[" B "," S "," D "] parameter(0) b = " T "[" B "," S "," D "] parameter(1)\n"        \
           "g = " T "[" D "] parameter(2) p = " T "[" S "," D "] parameter(3) o = " T "[] constant(0)\n"  \
           "e = " T "[] constant(1) pb = " T "[" B "," S "," D "] broadcast(p), dimensions={1,2}\n"       \
           "x0 = " T "[" B "," S "," D "] add(a, b) x = " T "[" B "," S "," D "] add(x0, pb)\n"           \
           "q = " T "[" B "," S "," D "] multiply(x, x)\n"                                                \
           "s = " T "[" B "," S "] reduce(q, o), dimensions={2}, to_apply=add\n"                          \
           "s1 = " T "[" B "," S ",1] reshape(s) eb = " T "[" B "," S ",1] broadcast(e), dimensions={}\n" \
           "v = " T "[" B "," S ",1] add(s1, eb) w = " T "[" B "," S "] reshape(v)\n"                     \
           "wb = " T "[" B "," S "," D "] broadcast(w), dimensions={0,1}\n"                               \
           "gb = " T "[" B "," S "," D "] broadcast(g), dimensions={2}\n"                                 \
           "n = " T "[" B "," S "," D "] divide(x, wb) y = " T "[" B "," S "," D "] multiply(n, gb)\n"    \
           "z = " T "[" B "," S "] reduce(y, o), dimensions={2}, to_apply=add\n"                          \
           "ROOT r = (" T "[" B "," S "," D "], " T "[" B "," S "," D "], " T "[" B "," S                 \
           "]) tuple(x, y, z) }\n"

/* softmax(x w), whose rows are overwritten in place, and the logarithm of its sums. */
#define SOFTMAX(R, K, L)                                                                                  \
    "HloModule softmax\n" ADD("f32") MOST                                                                 \
        "ENTRY main {\n"                                                                                  \
        "x = f32[" R "," K "] parameter(0) w = f32[" K "," L "] parameter(1)\n"                           \
        "o = f32[] constant(0) f = f32[] constant(-inf)\n"                                                \
        "d = f32[" R "," L "] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"            \
        "m = f32[" R "] reduce(d, f), dimensions={1}, to_apply=most\n"                                    \
        "mb = f32[" R "," L "] broadcast(m), dimensions={0} c = f32[" R "," L "] subtract(d, mb)\n"       \
        "e = f32[" R "," L "] exponential(c) s = f32[" R "] reduce(e, o), dimensions={1}, to_apply=add\n" \
        "sb = f32[" R "," L "] broadcast(s), dimensions={0} p = f32[" R "," L "] divide(e, sb)\n"         \
        "l = f32[" R "] log(s) ROOT r = (f32[" R "," L "], f32[" R "]) tuple(p, l) }\n"

/* `v` is read whole by every row, and added to the rows' sums, which must not overwrite it before. */
static const char row_group_shared_vector[] = "HloModule vector\n" ADD(
    "f32") "ENTRY main {\n"
           "x = f32[96,96] parameter(0) u = f32[96] parameter(1) o = f32[] constant(0)\n"
           "v = f32[96] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
           "vb = f32[96,96] broadcast(v), dimensions={1} a = f32[96,96] multiply(x, vb)\n"
           "s = f32[96] reduce(a, o), dimensions={1}, to_apply=add w = f32[96] add(v, s)\n"
           "wb = f32[96,96] broadcast(w), dimensions={0} b = f32[96,96] subtract(a, wb)\n"
           "ROOT r = (f32[96,96], f32[96]) tuple(b, w) }\n";

/* The sums of one operand are read by columns, so that they are no part of a group. */
static const char row_group_transposed[] = "HloModule transposed\n" ADD(
    "f32") "ENTRY main {\n"
           "x = f32[40,40] parameter(0) o = f32[] constant(0)\n"
           "a = f32[40,40] exponential(x) s = f32[40] reduce(a, o), dimensions={1}, to_apply=add\n"
           "sb = f32[40,40] broadcast(s), dimensions={1} ROOT b = f32[40,40] subtract(a, sb) }\n";

typedef struct RowGroupCase {
    Arena arena;
    IrModule *module, *canonical;
    Program *program;
    KernelDevice *device;
    Executable *entry;
    char *memory;
} RowGroupCase;

static inline void row_group_check(AmStatus status, const AmError *error) {
    if (status != AM_OK) fail_msg("%s", error->text);
}

/* Multiples of 1/8, so that sums of products are exact in f64. */
static inline void row_group_set(RowGroupCase *self, int32_t parameter) {
    const IrShape *shape = &self->program->values[self->program->parameters[parameter]].shape;
    char *numbers = malloc((size_t)ir_shape_bytes(shape));
    Random random;
    random_seed(&random, (uint64_t)parameter + 1);
    for (int64_t i = 0; i < ir_shape_elements(shape); i++) {
        int64_t number = (int64_t)random_below(&random, 33) - 16;
        Scalar64 value = {.floating = (double)number / 8};
        if (!dtype_is_floating(shape->type)) value.as_signed = number;
        scalar64_store(numbers + i * dtype_bytes(shape->type), shape->type, &value,
                       scalar64_kind(shape->type), 1, 1);
    }
    self->device->back_end->copy_in(self->device, executable_parameter(self->entry, parameter), numbers,
                                    ir_shape_bytes(shape));
    free(numbers);
}

/* Runs the module on memory full of NaN. `groups`: with row groups. */
static inline void row_group_open(RowGroupCase *self, const char *text, bool groups, KernelDevice *device) {
    const KernelBackEnd *back_end = device->back_end;
    AmError error = {0};
    *self = (RowGroupCase){.device = device};
    bool made = ir_read_bytes(&self->module, "test", text, (int64_t)strlen(text), &error) == AM_OK &&
                ir_canonicalize(&self->canonical, self->module, &error) == AM_OK &&
                program_from_computation(&self->program, &self->arena, self->canonical,
                                         self->canonical->entry, false, &error) == AM_OK;
    if (!made) fail_msg("%s\n%s", error.text, text);
    self->program->execution.fuses_rows = groups;
    row_group_check(program_finish_again(self->program, &error), &error);
    row_group_check(
        executable_prepare(&self->entry, &self->arena, device, NULL, self->program, false, &error), &error);
    row_group_check(executable_allocate(self->entry, &self->memory, NULL, &error), &error);
    if (back_end->finish) row_group_check(back_end->finish(device, &error), &error);
    char *filled = malloc((size_t)self->program->allocation.bytes);
    memset(filled, 0xff, (size_t)self->program->allocation.bytes);
    back_end->copy_in(device, self->memory, filled, self->program->allocation.bytes);
    free(filled);
    for (int32_t k = 0; k < self->program->roles->parameter_count; k++) row_group_set(self, k);
    row_group_check(executable_run(self->entry, &error), &error);
    if (back_end->synchronize) row_group_check(back_end->synchronize(device, &error), &error);
}

static inline void row_group_close(RowGroupCase *self) {
    self->device->back_end->release(self->device, self->memory);
    arena_free(&self->arena);
    ir_module_free(self->canonical);
    ir_module_free(self->module);
}

/* The bytes of output k on the host, which the caller frees. */
static inline char *row_group_output(const RowGroupCase *self, int32_t k) {
    int64_t bytes = ir_shape_bytes(&self->program->values[self->program->outputs[k]].shape);
    char *data = malloc((size_t)bytes);
    self->device->back_end->copy_out(self->device, data, executable_output(self->entry, k), bytes);
    return data;
}

/* All outputs have the same bits. */
static inline void row_group_compare(const RowGroupCase *a, const RowGroupCase *b) {
    for (int32_t k = 0; k < a->program->roles->output_count; k++) {
        char *left = row_group_output(a, k), *right = row_group_output(b, k);
        assert_memory_equal(left, right,
                            (size_t)ir_shape_bytes(&a->program->values[a->program->outputs[k]].shape));
        free(left);
        free(right);
    }
}

/* Values that have no memory. */
static inline int32_t row_group_internal(const Program *program) {
    int32_t found = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++)
        for (int32_t k = 0; k < program_step_results(program, &program->execution.steps[s]); k++)
            found += program->values[program_step_result(program, &program->execution.steps[s], k)].kind ==
                     PROGRAM_VALUE_INTERNAL;
    return found;
}

#endif
