/* Hashes: SHA-256's published example, and few collisions in the table hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static void sha256_matches_fips_180(void **state) {
    (void)state;
    Sha256 hash;
    char hex[65];
    sha256_begin(&hash);
    sha256_add(&hash, "a", 1);
    sha256_add(&hash, "bc", 2);
    sha256_end(&hash, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_begin(&hash);
    sha256_end(&hash, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void table_hash_spreads(void **state) {
    (void)state;
    enum { COUNT = 50000 };
    static uint64_t values[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) values[i] = hash_bytes(&i, sizeof i, 0);
    int low_bits[16] = {0};
    for (int i = 0; i < COUNT; i++) low_bits[values[i] & 15]++;
    for (int i = 0; i < 16; i++) assert_true(low_bits[i] > 2800 && low_bits[i] < 3450);
    qsort(values, COUNT, sizeof *values, compare);
    for (int i = 1; i < COUNT; i++) assert_true(values[i] != values[i - 1]);
}

static void table_hash_sees_everything(void **state) {
    (void)state;
    const char text[] = "0123456789abcdef0";
    uint64_t whole = hash_bytes(text, 17, 1);
    assert_true(whole != hash_bytes(text, 16, 1));
    assert_true(whole != hash_bytes(text, 17, 2));
    for (size_t i = 0; i < 17; i++) {
        char changed[18];
        memcpy(changed, text, 18);
        changed[i] ^= 1;
        assert_true(hash_bytes(changed, 17, 1) != whole);
    }
    assert_true(hash_bytes("\0", 1, 0) != hash_bytes("\0\0", 2, 0));
    assert_true(hash_combine(hash_combine(0, 1), 2) != hash_combine(hash_combine(0, 2), 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_matches_fips_180),
        cmocka_unit_test(table_hash_spreads),
        cmocka_unit_test(table_hash_sees_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
