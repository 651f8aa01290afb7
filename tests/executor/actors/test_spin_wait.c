/* SpinWait: how long a thread looks before it sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/system/clock.h"
#include "executor/actors/spin_wait.h"

/* The first look is at once: nothing is waited for that is there already. */
static void test_first_look(void **state) {
    (void)state;
    SpinWait wait = spin_wait_begin(0);
    assert_true(spin_wait_lasts(&wait));
    assert_int_equal(wait.rounds, 1);
    assert_true(wait.end == 0);
}

/* It ends, with spins and without, after SPIN_WAIT_SECONDS and not much sooner. */
static void test_ends(void **state) {
    (void)state;
    for (int32_t spins = 0; spins <= 1000; spins += 1000) {
        double begun = clock_seconds();
        int32_t looks = 0;
        for (SpinWait wait = spin_wait_begin(spins); spin_wait_lasts(&wait);) looks++;
        assert_true(clock_seconds() - begun >= SPIN_WAIT_SECONDS);
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
