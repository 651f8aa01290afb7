/* A fusion's result that a later fusion reads: recomputed there if that is cheaper than keeping and
 * reading it, and kept otherwise. Values are compared with JAX by the zoo's tests; here the values
 * in memory are checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lowering/spmd/lower.h"

#define SUM "add { l = f32[] parameter(0) r = f32[] parameter(1) ROOT s = f32[] add(l, r) }\n"
/* `c` is computed from a 16-bit product, read by a sum, and again by a user of the sum. */
#define AROUND(MADE, READ)                                                              \
    "HloModule test\n" SUM "ENTRY main {\n"                                             \
    "p = bf16[32,64] parameter(0) q = bf16[64,64] parameter(1) o = f32[] constant(0)\n" \
    "d = bf16[32,64] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"   \
    "h = f32[32,64] convert(d)\n" MADE "x = f32[32,64] multiply(c, c)\n"                \
    "s = f32[32] reduce(x, o), dimensions={1}, to_apply=add\n"                          \
    "b = f32[32,64] broadcast(s), dimensions={0}\n" READ "ROOT y = f32[32,64] add(t, b)\n}\n"

typedef struct Case {
    Arena arena;
    PlanContext *context;
    Program *program;
} Case;

static void open_case(Case *self, const char *text) {
    AmError error = {0};
    char path[] = "/tmp/automap-fusion-XXXXXX.txt";
    int file = mkstemps(path, 4);
    *self = (Case){0};
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    AmStatus status = plan_context_read(&self->context, path, NULL, &error);
    unlink(path);
    if (status != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(plan_lower_one_device(&self->program, &self->arena, self->context, &error), AM_OK);
}

static void close_case(Case *self) {
    plan_context_free(self->context);
    arena_free(&self->arena);
}

/* The last fusion. */
static const ProgramFusion *reader(const Case *self) {
    return &self->program->execution.fusions[self->program->execution.fusion_count - 1];
}

static bool reads(const Case *self, Dtype type, int64_t elements) {
    const ProgramFusion *fusion = reader(self);
    for (int32_t k = 0; k < fusion->input_count; k++) {
        const IrShape *shape = &self->program->values[fusion->inputs[k].value].shape;
        if (shape->type == type && ir_shape_elements(shape) == elements) return true;
    }
    return false;
}

static bool has_operator(const ProgramFusion *fusion, IrOpcode opcode) {
    for (int32_t k = 0; k < fusion->op_count; k++)
        if (fusion->ops[k].opcode == opcode) return true;
    return false;
}

/* The reader converts the product again: half the bytes, and the conversion is in no memory. */
static void test_a_conversion_is_recomputed(void **state) {
    (void)state;
    Case self;
    open_case(&self, AROUND("c = f32[32,64] negate(h)\n", "t = f32[32,64] negate(c)\n"));
    assert_true(reads(&self, DTYPE_BF16, 32 * 64));
    assert_false(reads(&self, DTYPE_F32, 32 * 64));
    assert_true(has_operator(reader(&self), IR_CONVERT));
    /* Only the operand of the sum leaves the first fusion. */
    for (int32_t f = 0; f + 1 < self.program->execution.fusion_count; f++)
        assert_true(self.program->execution.fusions[f].output_count <= 1);
    close_case(&self);
}

/* Expensive values are not recomputed. */
static void test_an_exponential_is_kept(void **state) {
    (void)state;
    Case self;
    open_case(&self, AROUND("c = f32[32,64] exponential(h)\n", "t = f32[32,64] negate(c)\n"));
    assert_true(reads(&self, DTYPE_F32, 32 * 64));
    assert_false(has_operator(reader(&self), IR_EXPONENTIAL));
    close_case(&self);
}

/* A value that only the later fusion reads moves there: one fusion has no other work, and
 * disappears. */
static void test_what_one_reader_takes_moves_to_it(void **state) {
    (void)state;
    Case self;
    open_case(&self, AROUND("c = f32[32,64] exponential(h)\n", "t = f32[32,64] negate(h)\n"));
    assert_true(reads(&self, DTYPE_BF16, 32 * 64));
    assert_false(reads(&self, DTYPE_F32, 32 * 64));
    close_case(&self);
}

/* Parameters may be overwritten meanwhile: values computed from them are kept. */
static void test_parameters_are_read_once(void **state) {
    (void)state;
    Case self;
    open_case(&self, "HloModule test\n" SUM "ENTRY main {\n"
                     "p = bf16[32,64] parameter(0) o = f32[] constant(0)\n"
                     "c = f32[32,64] convert(p) x = f32[32,64] multiply(c, c)\n"
                     "s = f32[32] reduce(x, o), dimensions={1}, to_apply=add\n"
                     "b = f32[32,64] broadcast(s), dimensions={0}\n"
                     "ROOT y = f32[32,64] add(c, b)\n}\n");
    assert_true(reads(&self, DTYPE_F32, 32 * 64));
    close_case(&self);
}

/* With 3 rows the first device has two, so that recomputing `c` reads less than keeping it, the
 * second one, for which it would read more: both decide equally. */
static void test_devices_decide_alike(void **state) {
    (void)state;
    Case self;
    AmError error = {0};
    Assignment *assignment;
    int32_t inputs[2];
    open_case(&self, "HloModule test\n" SUM "ENTRY main {\n"
                     "p = bf16[3,64] parameter(0) q = bf16[64,8] parameter(1) r = f32[4,8] parameter(2)\n"
                     "v = f32[4,8] parameter(3) o = f32[] constant(0)\n"
                     "d = bf16[3,8] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                     "m = f32[8] reduce(r, o), dimensions={0}, to_apply=add\n"
                     "n = f32[8] reduce(v, o), dimensions={0}, to_apply=add\n"
                     "h = f32[3,8] convert(d) e = f32[3,8] broadcast(m), dimensions={1}\n"
                     "f = f32[3,8] broadcast(n), dimensions={1} g = f32[3,8] add(h, e)\n"
                     "c = f32[3,8] add(g, f) x = f32[3,8] multiply(c, c)\n"
                     "s = f32[3] reduce(x, o), dimensions={1}, to_apply=add\n"
                     "b = f32[3,8] broadcast(s), dimensions={0} t = f32[3,8] negate(c)\n"
                     "ROOT y = f32[3,8] add(t, b)\n}\n");
    const PlanContext *context = self.context;
    PlanEntry rows = {.class_index = classes_of(context->classes, context->rules,
                                                context->roles->parameters[0].instruction, 0)};
    PlanStage stage = {.mesh = {.axis_count = 1, .axes = {{.name = "a", .size = 2}}, .device_count = 2},
                       .axis_priorities = {{.count = 1, .entries = &rows}}};
    assert_true(rows.class_index >= 0);
    assert_int_equal(plan_assign(&assignment, &self.arena, context, &stage, &error), AM_OK);
    for (int32_t device = 0; device < 2; device++) {
        assert_int_equal(plan_lower(&self.program, &self.arena, context, assignment, device, &error), AM_OK);
        inputs[device] = reader(&self)->input_count;
    }
    assert_int_equal(inputs[0], inputs[1]);
    close_case(&self);
}

/* A sum of two 16-bit products has as many bytes as they have: recomputed instead of written and
 * read, but read if it is in memory anyway, since it leaves the program. */
static void test_what_leaves_is_read(void **state) {
    (void)state;
#define TWO(ROOT)                                                                            \
    "HloModule test\n" SUM "ENTRY main {\n"                                                  \
    "p = bf16[32,64] parameter(0) q = bf16[64,64] parameter(1) o = f32[] constant(0)\n"      \
    "r = bf16[64,64] parameter(2)\n"                                                         \
    "d = bf16[32,64] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"        \
    "e = bf16[32,64] dot(p, r), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"        \
    "h = f32[32,64] convert(d) g = f32[32,64] convert(e) c = f32[32,64] add(h, g)\n"         \
    "x = f32[32,64] multiply(c, c) s = f32[32] reduce(x, o), dimensions={1}, to_apply=add\n" \
    "b = f32[32,64] broadcast(s), dimensions={0} t = f32[32,64] negate(c)\n" ROOT "\n}\n"
    Case self;
    open_case(&self, TWO("ROOT y = f32[32,64] add(t, b)"));
    assert_true(reads(&self, DTYPE_BF16, 32 * 64));
    assert_false(reads(&self, DTYPE_F32, 32 * 64));
    close_case(&self);
    open_case(&self, TWO("y = f32[32,64] add(t, b) ROOT z = (f32[32,64], f32[32,64]) tuple(y, c)"));
    assert_false(reads(&self, DTYPE_BF16, 32 * 64));
    assert_true(reads(&self, DTYPE_F32, 32 * 64));
    close_case(&self);
#undef TWO
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_conversion_is_recomputed),
        cmocka_unit_test(test_what_leaves_is_read),
        cmocka_unit_test(test_an_exponential_is_kept),
        cmocka_unit_test(test_what_one_reader_takes_moves_to_it),
        cmocka_unit_test(test_parameters_are_read_once),
        cmocka_unit_test(test_devices_decide_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
