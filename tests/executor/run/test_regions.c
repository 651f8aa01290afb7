/* Programs inside of instructions: collectives in loops, branches and called
 * computations on ranks as threads, and where the values of regions lie. */
/* labels: threads */
#include "tests/support/module_case.h"
#include "tests/support/region_case.h"

static void test_collectives_in_regions(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks <= REGION_MOST_RANKS; ranks++)
        region_check(&kernels_cpu, &comm_local, ranks);
}

static void test_failure_in_a_loop(void **state) {
    (void)state;
    region_check_failure(&kernels_cpu, &comm_local);
}

/* x + x is carried on where it lies; x itself, which is read again, is not touched. */
static void test_loop_takes_over_what_it_carries(void **state) {
    (void)state;
    const char *text =
        "HloModule m\n"
        "condition { s = (s32[4], s32[4], s32[]) parameter(0)\n"
        "  n = s32[] get-tuple-element(s), index=2 zero = s32[] constant(0)\n"
        "  ROOT c = pred[] compare(n, zero), direction=GT }\n"
        "body { s = (s32[4], s32[4], s32[]) parameter(0)\n"
        "  a = s32[4] get-tuple-element(s), index=0 b = s32[4] get-tuple-element(s), index=1\n"
        "  n = s32[] get-tuple-element(s), index=2 one = s32[] constant(1)\n"
        "  c = s32[4] reverse(b), dimensions={0} d = s32[4] add(a, c) less = s32[] subtract(n, one)\n"
        "  ROOT r = (s32[4], s32[4], s32[]) tuple(d, b, less) }\n"
        "ENTRY e { x = s32[4] parameter(0) twice = s32[4] add(x, x) n = s32[] constant(3)\n"
        "  t = (s32[4], s32[4], s32[]) tuple(twice, x, n)\n"
        "  w = (s32[4], s32[4], s32[]) while(t), condition=condition, body=body\n"
        "  y = s32[4] get-tuple-element(w), index=0 ROOT r = s32[4] add(y, x) }\n";
    const int32_t x[] = {1, 2, 3, 4}, expected[] = {15, 15, 15, 15};
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    for (int run = 0; run < 2; run++) check_run(&c, (const void *[]){x}, expected, sizeof expected);
    const ProgramInstruction *loop = NULL;
    for (int32_t k = 0; k < c.program->instruction_count; k++)
        if (c.program->instructions[k].opcode == IR_WHILE) loop = &c.program->instructions[k];
    assert_non_null(loop);
    void *const *addresses = c.entry->addresses;
    assert_ptr_equal(addresses[loop->first_result], addresses[loop->operands[loop->loop.carried[0]]]);
    for (int32_t r = 1; r < loop->result_count; r++)
        if (c.program->values[loop->operands[loop->loop.carried[r]]].kind == PROGRAM_VALUE_PARAMETER)
            assert_ptr_not_equal(addresses[loop->first_result + r],
                                 addresses[loop->operands[loop->loop.carried[r]]]);
    module_close(&c);
}

/* a and b change places: one of them is copied aside first, in the caller's allocation. */
static void test_loop_swaps(void **state) {
    (void)state;
    const char *text =
        "HloModule m\n"
        "condition { s = (s32[2], s32[2], s32[]) parameter(0)\n"
        "  n = s32[] get-tuple-element(s), index=2 zero = s32[] constant(0)\n"
        "  ROOT c = pred[] compare(n, zero), direction=GT }\n"
        "body { s = (s32[2], s32[2], s32[]) parameter(0)\n"
        "  a = s32[2] get-tuple-element(s), index=0 b = s32[2] get-tuple-element(s), index=1\n"
        "  n = s32[] get-tuple-element(s), index=2 one = s32[] constant(1)\n"
        "  less = s32[] subtract(n, one) ROOT r = (s32[2], s32[2], s32[]) tuple(b, a, less) }\n"
        "ENTRY e { a = s32[2] parameter(0) b = s32[2] parameter(1) n = s32[] parameter(2)\n"
        "  t = (s32[2], s32[2], s32[]) tuple(a, b, n)\n"
        "  w = (s32[2], s32[2], s32[]) while(t), condition=condition, body=body\n"
        "  x = s32[2] get-tuple-element(w), index=0 y = s32[2] get-tuple-element(w), index=1\n"
        "  ROOT r = s32[4] concatenate(x, y), dimensions={0} }\n";
    const int32_t a[] = {1, 2}, b[] = {3, 4}, counts[] = {4, 5}, expected[][4] = {{1, 2, 3, 4}, {3, 4, 1, 2}};
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    for (int k = 0; k < 2; k++)
        check_run(&c, (const void *[]){a, b, &counts[k]}, expected[k], sizeof expected[k]);
    module_close(&c);
}

/* A called computation writes its output to the caller's result; a repeated output is copied. */
static void test_outputs_are_made_in_place(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "f { a = s32[2] parameter(0) b = s32[2] reverse(a), dimensions={0}\n"
                       "  c = s32[2] reverse(b), dimensions={0}\n"
                       "  ROOT r = (s32[2], s32[2], s32[2]) tuple(b, b, a) }\n"
                       "ENTRY e { x = s32[2] parameter(0)\n"
                       "  f = (s32[2], s32[2], s32[2]) fusion(x), kind=kCustom, calls=f\n"
                       "  u = s32[2] get-tuple-element(f), index=0 v = s32[2] get-tuple-element(f), index=1\n"
                       "  w = s32[2] get-tuple-element(f), index=2\n"
                       "  ROOT r = s32[6] concatenate(u, v, w), dimensions={0} }\n";
    const int32_t x[] = {1, 2}, expected[] = {2, 1, 2, 1, 1, 2};
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    check_run(&c, (const void *[]){x}, expected, sizeof expected);
    const ProgramInstruction *call = &c.program->instructions[0];
    assert_int_equal(call->opcode, IR_FUSION);
    assert_int_equal(call->regions.workspace_bytes, 0);
    module_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_in_regions),          cmocka_unit_test(test_failure_in_a_loop),
        cmocka_unit_test(test_loop_takes_over_what_it_carries), cmocka_unit_test(test_loop_swaps),
        cmocka_unit_test(test_outputs_are_made_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
