/* Undone recomputation: which instructions are replaced by their forward twins, and which stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/text.h"
#include "propagation/plan/plan.h"

/* A step that computes exp(x @ w) twice; the gradient reads the second one. */
typedef struct Step {
    const char *second;   /* the operands of the second product, and its attributes */
    const char *backward; /* instructions before the gradient; define `factor` */
    int32_t products;     /* that are left; 0: nothing is undone */
    int32_t exponentials;
    int32_t comparisons;
} Step;

#define PLAIN_DOT ", lhs_contracting_dims={1}, rhs_contracting_dims={0}"
#define PASS_ON   "factor = f32[4,4] copy(again)"

static PlanContext *read_step(const Step *step) {
    Text text = {0};
    AmError error = {0};
    PlanContext *context = NULL;
    text_append(&text,
                "HloModule step\n"
                "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"
                "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[4,4] parameter(1)\n"
                " y = f32[4,4] dot(x, w)" PLAIN_DOT "\n h = f32[4,4] exponential(y)\n"
                " zero = f32[] constant(0)\n"
                " loss = f32[] reduce(h, zero), dimensions={0,1}, to_apply=sum\n"
                " inputs = (f32[4,4], f32[4,4]) tuple(x, w)\n"
                " barrier = (f32[4,4], f32[4,4]) opt-barrier(inputs)\n"
                " x2 = f32[4,4] get-tuple-element(barrier), index=0\n"
                " w2 = f32[4,4] get-tuple-element(barrier), index=1\n"
                " y2 = f32[4,4] dot(%s\n again = f32[4,4] exponential(y2)\n %s\n"
                " gradient = f32[4,4] dot(x2, factor), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                " new = f32[4,4] subtract(w, gradient)\n"
                " ROOT out = (f32[4,4], f32[]) tuple(new, loss)\n}\n",
                step->second, step->backward);
    if (plan_context_parse(&context, "step.hlo.txt", text.data, (int64_t)text.length, &error) != AM_OK)
        fail_msg("line %d: %s\n%s", (int)error.line, error.text, text.data);
    text_free(&text);
    return context;
}

static int32_t count(const PlanContext *context, IrOpcode opcode) {
    int32_t found = 0;
    for (int32_t i = 0; i < context->canonical->instruction_count; i++)
        found += context->canonical->instructions[i].opcode == opcode;
    return found;
}

static void check_step(const Step *step) {
    AmError error = {0};
    PlanContext *context = read_step(step), *undone;
    AmStatus status =
        plan_context_rewrite(&undone, context, (PlanRewrites){.undoes_recomputation = true}, &error);
    if (step->products == 0) {
        assert_int_equal(status, AM_ERROR_INFEASIBLE);
        assert_non_null(strstr(error.text, "recomputes no forward value"));
    } else {
        assert_int_equal(status, AM_OK);
        assert_int_equal(count(undone, IR_DOT), step->products);
        assert_int_equal(count(undone, IR_EXPONENTIAL), step->exponentials);
        assert_int_equal(count(undone, IR_COMPARE), step->comparisons);
        assert_int_equal(undone->roles->parameter_count, context->roles->parameter_count);
        assert_int_equal(undone->roles->output_count, context->roles->output_count);
        for (int32_t i = 0; i < undone->canonical->instruction_count; i++)
            assert_int_not_equal(undone->roles->phases[i], IR_PHASE_RECOMPUTED);
        assert_string_equal(undone->sha256, context->sha256);
    }
    plan_context_free(context);
}

static void test_twins(void **state) {
    (void)state;
    const Step steps[] = {
        {"x2, w2)" PLAIN_DOT, PASS_ON, 2, 1, 0},
        /* without the barrier */
        {"x, w)" PLAIN_DOT, PASS_ON, 2, 1, 0},
        /* a factor that repeats nothing stays */
        {"x2, w2)" PLAIN_DOT, "factor = f32[4,4] multiply(again, again)", 2, 1, 0},
        {"x2, w2)" PLAIN_DOT, "factor = f32[4,4] exponential(again)", 2, 2, 0},
    };
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) check_step(&steps[k]);
}

static void test_others_stay(void **state) {
    (void)state;
    const Step steps[] = {
        /* other dimensions, other operands, operands exchanged */
        {"x2, w2), lhs_contracting_dims={0}, rhs_contracting_dims={0}", PASS_ON, 0, 0, 0},
        {"x2, x2)" PLAIN_DOT, PASS_ON, 0, 0, 0},
        {"w2, x2)" PLAIN_DOT, PASS_ON, 0, 0, 0},
        /* control dependencies and side effects */
        {"x2, w2)" PLAIN_DOT, "factor = f32[4,4] negate(again), control-predecessors={loss}", 0, 0, 0},
        {"x2, w2)" PLAIN_DOT,
         "token = f32[] custom-call(loss), custom_call_target=\"print\", "
         "custom_call_has_side_effect=true\n " PASS_ON,
         0, 0, 0},
    };
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) check_step(&steps[k]);
}

#define MASK(name, bound)                                                                                   \
    name "_rows = s32[4,4] iota(), iota_dimension=0\n " name "_bound = s32[] constant(" bound ")\n " name   \
         "_bounds = s32[4,4] broadcast(" name "_bound), dimensions={}\n " name " = pred[4,4] compare(" name \
         "_rows, " name "_bounds), direction=LT\n "
#define PAIR(first, second)                                                                  \
    "negated = f32[4,4] negate(again)\n one = f32[4,4] select(" first ", again, negated)\n " \
    "factor = f32[4,4] select(" second ", one, negated)"

/* Equal values that follow from positions become one, others do not. */
static void test_masks(void **state) {
    (void)state;
    const Step steps[] = {
        {"x2, w2)" PLAIN_DOT, MASK("m", "2") MASK("n", "2") PAIR("m", "n"), 2, 1, 1},
        {"x2, w2)" PLAIN_DOT, MASK("m", "2") MASK("n", "3") PAIR("m", "n"), 2, 1, 2},
        /* they follow from data */
        {"x2, w2)" PLAIN_DOT,
         "m = pred[4,4] compare(x, w), direction=LT\n n = pred[4,4] compare(x, w), direction=LT\n " PAIR("m",
                                                                                                         "n"),
         2, 1, 2},
    };
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) check_step(&steps[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_others_stay),
        cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
