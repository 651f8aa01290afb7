/* rng-bit-generator: the published answers of the two generators, and state. */
#include "tests/support/module_case.h"

/* Threefry-2x32 with 20 rounds, key and counter 0, then counter 1; the state counts the blocks. */
static void test_threefry(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "ENTRY e { s = u64[2] parameter(0)\n"
                       "  t = (u64[2], u32[4]) rng-bit-generator(s), algorithm=rng_three_fry\n"
                       "  ROOT r = u32[4] get-tuple-element(t), index=1 }\n";
    const uint64_t zero[] = {0, 0}, ones[] = {UINT64_MAX, UINT64_MAX};
    const uint32_t first[] = {0x6b200159, 0x99ba4efe}, last[] = {0x1cb996fc, 0xbb002be7};
    check_module(text, (const void *[]){zero}, first, sizeof first);
    check_module(text, (const void *[]){ones}, last, sizeof last);
}

/* Philox-4x32 with 10 rounds and a counter of 128 bits. */
static void test_philox(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "ENTRY e { s = u64[3] parameter(0)\n"
                       "  t = (u64[3], u32[4]) rng-bit-generator(s), algorithm=rng_philox\n"
                       "  ROOT r = u32[4] get-tuple-element(t), index=1 }\n";
    const uint64_t zero[] = {0, 0, 0}, ones[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    const uint32_t first[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t last[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    check_module(text, (const void *[]){zero}, first, sizeof first);
    check_module(text, (const void *[]){ones}, last, sizeof last);
}

/* Five elements of 8 bits take two blocks of Philox, and the counter carries. */
static void test_state(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "ENTRY e { s = u64[3] parameter(0)\n"
                       "  t = (u64[3], u8[5]) rng-bit-generator(s), algorithm=rng_default\n"
                       "  ROOT r = u64[3] get-tuple-element(t), index=0 }\n";
    const uint64_t before[] = {7, UINT64_MAX, 4}, after[] = {7, 1, 5};
    check_module(text, (const void *[]){before}, after, sizeof after);
}

/* Between widths a bitcast keeps the bytes. */
static void test_bitcast_of_another_width(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "ENTRY e { s = u64[] parameter(0)\n"
                       "  b = u16[4] bitcast-convert(s)\n"
                       "  ROOT r = u16[4] add(b, b) }\n";
    const uint64_t bits = 0x0004000300020001;
    const uint16_t expected[] = {2, 4, 6, 8};
    check_module(text, (const void *[]){&bits}, expected, sizeof expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threefry),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_bitcast_of_another_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
