/* Row groups: the same bits as step by step, from teams of any size and from a back end that cannot join the
 * steps. Values that a group alone uses have no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "executor/array/wide.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/interleave/interleave.h"
#include "lowering/spmd/lower.h"

enum { MOST_ARRAYS = 8 };

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
static const char shared_vector[] = "HloModule vector\n" ADD(
    "f32") "ENTRY main {\n"
           "x = f32[96,96] parameter(0) u = f32[96] parameter(1) o = f32[] constant(0)\n"
           "v = f32[96] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
           "vb = f32[96,96] broadcast(v), dimensions={1} a = f32[96,96] multiply(x, vb)\n"
           "s = f32[96] reduce(a, o), dimensions={1}, to_apply=add w = f32[96] add(v, s)\n"
           "wb = f32[96,96] broadcast(w), dimensions={0} b = f32[96,96] subtract(a, wb)\n"
           "ROOT r = (f32[96,96], f32[96]) tuple(b, w) }\n";

/* The sums of one operand are read by columns, so that they are no part of a group. */
static const char transposed[] = "HloModule transposed\n" ADD(
    "f32") "ENTRY main {\n"
           "x = f32[40,40] parameter(0) o = f32[] constant(0)\n"
           "a = f32[40,40] exponential(x) s = f32[40] reduce(a, o), dimensions={1}, to_apply=add\n"
           "sb = f32[40,40] broadcast(s), dimensions={1} ROOT b = f32[40,40] subtract(a, sb) }\n";

/* `m` depends on a parameter alone, and is read last. */
static const char late_pad[] =
    "HloModule late\nENTRY main {\n"
    "p = f32[150,150] parameter(0) x = f32[150,150] parameter(1) o = f32[] constant(0)\n"
    "q = f32[140,150] slice(p), slice={[0:140], [0:150]} m = f32[150,150] pad(q, o), padding=0_10x0_0\n"
    "a = f32[150,150] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "b = f32[150,150] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "c = f32[150,150] dot(b, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "ROOT r = f32[150,150] subtract(c, m) }\n";

typedef struct Case {
    Arena arena;
    IrModule *module, *canonical;
    Program *program;
    KernelDevice *device;
    Executable *entry;
    char *memory;
} Case;

static void set_number(void *memory, Dtype type, int64_t i, int64_t number) {
    Wide value = {.floating = (double)number / 8};
    if (!dtype_is_floating(type)) value.is_signed = number;
    wide_store((char *)memory + i * dtype_bytes(type), type, &value, wide_kind(type), 1, 1);
}

static void open_case(Case *self, const char *text, bool groups, KernelDevice *device) {
    AmError error = {0};
    *self = (Case){.device = device};
    bool made = ir_read_bytes(&self->module, "test", text, (int64_t)strlen(text), &error) == AM_OK &&
                ir_canonicalize(&self->canonical, self->module, &error) == AM_OK &&
                program_from_computation(&self->program, &self->arena, self->canonical,
                                         self->canonical->entry, false, &error) == AM_OK;
    if (!made) fail_msg("%s\n%s", error.text, text);
    self->program->fuses_rows = groups;
    assert_int_equal(program_finish_again(self->program, &error), AM_OK);
    if (executable_prepare(&self->entry, &self->arena, device, NULL, self->program, false, &error) != AM_OK ||
        executable_allocate(self->entry, &self->memory, &error) != AM_OK)
        fail_msg("%s", error.text);
    memset(self->memory, 0xff, (size_t)self->program->allocation_bytes);
    for (int32_t k = 0; k < self->program->roles->parameter_count; k++) {
        const IrShape *shape = &self->program->values[self->program->parameters[k]].shape;
        Random random;
        random_seed(&random, (uint64_t)k + 1);
        for (int64_t i = 0; i < ir_shape_elements(shape); i++)
            set_number(executable_parameter(self->entry, k), shape->type, i,
                       (int64_t)random_below(&random, 33) - 16);
    }
    assert_int_equal(executable_run(self->entry, &error), AM_OK);
}

static void close_case(Case *self) {
    self->device->back_end->release(self->device, self->memory);
    arena_free(&self->arena);
    ir_module_free(self->canonical);
    ir_module_free(self->module);
}

static void compare(const Case *a, const Case *b) {
    for (int32_t k = 0; k < a->program->roles->output_count; k++)
        assert_memory_equal(executable_output(a->entry, k), executable_output(b->entry, k),
                            (size_t)ir_shape_bytes(&a->program->values[a->program->outputs[k]].shape));
}

static KernelDevice *open_team(int32_t threads) {
    KernelDevice *device;
    AmError error = {0};
    assert_int_equal(kernels_cpu.open(&device, &(KernelOptions){.threads = threads}, &error), AM_OK);
    assert_int_equal(kernels_cpu.finish(device, &error), AM_OK);
    return device;
}

/* `steps` of the only group, `internal` values in it. */
static void check(const char *text, int32_t steps, int32_t internal) {
    Case alone;
    open_case(&alone, text, false, &kernel_device_cpu);
    for (int32_t way = 0; way < 3; way++) {
        Case together;
        KernelBackEnd apart = kernels_cpu;
        apart.join_rows = NULL;
        KernelDevice one_by_one = {.back_end = &apart};
        KernelDevice *device = way == 2 ? &one_by_one : open_team(way == 0 ? 1 : 3);
        open_case(&together, text, true, device);
        const Program *program = together.program;
        int32_t found = 0;
        assert_int_equal(program->row_group_count, steps > 0);
        if (steps > 0) assert_int_equal(program->row_groups[0].count, steps);
        for (int32_t s = 0; s < program->step_count; s++)
            for (int32_t k = 0; k < program_step_results(program, &program->steps[s]); k++)
                found += program->values[program_step_result(program, &program->steps[s], k)].kind ==
                         PROGRAM_VALUE_INTERNAL;
        assert_int_equal(found, internal);
        assert_true(program->allocation_bytes <= alone.program->allocation_bytes);
        compare(&alone, &together);
        close_case(&together);
        if (way < 2) kernels_cpu.close(device);
    }
    close_case(&alone);
}

static void test_norms(void **state) {
    (void)state;
    check(NORM("f32", "3", "37", "96"), 5, 3);
    check(NORM("f32", "2", "70", "1536"), 5, 3);
    check(NORM("f64", "5", "9", "7"), 5, 3);
    check(NORM("bf16", "4", "50", "130"), 5, 3);
    check(NORM("f32", "1", "64", "3072"), 5, 3);
}

static void test_softmax(void **state) {
    (void)state;
    check(SOFTMAX("45", "8", "100"), 5, 3);
    check(SOFTMAX("33", "8", "1029"), 5, 3);
    check(SOFTMAX("200", "4", "3"), 5, 3);
}

static void test_a_value_of_other_rows_is_kept(void **state) {
    (void)state;
    check(shared_vector, 4, 2);
}

static void test_other_rows_are_not_joined(void **state) {
    (void)state;
    check(transposed, 2, 0);
}

/* It takes no memory before: three arrays live at a time instead of four. */
static void test_large_constants_come_late(void **state) {
    (void)state;
    Case alone, late;
    open_case(&alone, late_pad, false, &kernel_device_cpu);
    open_case(&late, late_pad, true, &kernel_device_cpu);
    assert_true(late.program->allocation_bytes + 80000 < alone.program->allocation_bytes);
    compare(&alone, &late);
    close_case(&alone);
    close_case(&late);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_a_value_of_other_rows_is_kept),
        cmocka_unit_test(test_other_rows_are_not_joined),
        cmocka_unit_test(test_large_constants_come_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
