/* Patience: how long a thread looks before it sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "executor/patience.h"

/* The first look is at once: nothing is waited for that is there already. */
static void test_first_look(void **state) {
    (void)state;
    Patience patience = patience_begin(0);
    assert_true(patience_lasts(&patience));
    assert_int_equal(patience.rounds, 1);
    assert_true(patience.end == 0);
}

/* It ends, with spins and without, after PATIENCE_SECONDS and not much sooner. */
static void test_ends(void **state) {
    (void)state;
    for (int32_t spins = 0; spins <= 1000; spins += 1000) {
        double begun = clock_seconds();
        int32_t looks = 0;
        for (Patience patience = patience_begin(spins); patience_lasts(&patience);) looks++;
        assert_true(clock_seconds() - begun >= PATIENCE_SECONDS);
        assert_true(looks > spins);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_look),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
