/* The order of iterations that devices in several processes compute themselves: the usual 1F1B, for
 * every stage and number of micro-batches, and deadlocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "executor/run/iteration_order.h"

enum { BEGIN, FORWARD, BACKWARD, END, ACTORS };

/* The step of a stage that keeps `kept` forward iterations: its order as letters, a forward
 * iteration F, a backward one B, the parts before and after [ and ]. */
static void write_order(char *text, int32_t iterations, int32_t kept) {
    const IterationActor actors[ACTORS] = {{1, 2}, {iterations, 1}, {iterations, 0}, {1, 2}};
    const IterationEdge edges[] = {{BEGIN, FORWARD, 1, 0},
                                   {FORWARD, BACKWARD, kept, 0},
                                   {BACKWARD, END, iterations, 0},
                                   {END, BEGIN, 1, 1}};
    Arena arena = {0};
    IterationOrder order;
    AmError error = {0};
    if (iteration_order_find(&order, &arena, actors, ACTORS, edges, sizeof edges / sizeof *edges, &error) !=
        AM_OK)
        fail_msg("%s", error.text);
    assert_int_equal(order.count, 2 * iterations + 2);
    for (int32_t k = 0; k < order.count; k++) text[k] = "[FB]"[order.actors[k]];
    text[order.count] = '\0';
    arena_free(&arena);
}

static void test_one_forward_one_backward(void **state) {
    (void)state;
    char text[64];
    write_order(text, 4, 1);
    assert_string_equal(text, "[FBFBFBFB]");
    write_order(text, 4, 2);
    assert_string_equal(text, "[FFBFBFBB]");
    write_order(text, 4, 3);
    assert_string_equal(text, "[FFFBFBBB]");
    write_order(text, 4, 4);
    assert_string_equal(text, "[FFFFBBBB]");
    write_order(text, 2, 4);
    assert_string_equal(text, "[FFBB]");
    write_order(text, 1, 1);
    assert_string_equal(text, "[FB]");
}

/* The backward pass of each of S stages waits for the next stage's, the forward pass for the one before:
 * whatever the number of stages and iterations, the orders together reach the end. */
static void test_stages_do_not_block_one_another(void **state) {
    (void)state;
    enum { STAGES = 5, MOST = 64 };
    for (int32_t iterations = 1; iterations <= 12; iterations++) {
        char orders[STAGES][MOST];
        int32_t at[STAGES] = {0}, forward[STAGES] = {0}, backward[STAGES] = {0},
                left = STAGES * (2 * iterations + 2);
        for (int32_t s = 0; s < STAGES; s++) write_order(orders[s], iterations, STAGES - s);
        for (bool moved = true; moved;) {
            moved = false;
            for (int32_t s = 0; s < STAGES; s++) {
                char next = orders[s][at[s]];
                if (!next) continue;
                if (next == 'F' && s > 0 && forward[s - 1] <= forward[s]) continue;
                /* One message is on its way at most. */
                if (next == 'F' && s < STAGES - 1 && forward[s] > forward[s + 1]) continue;
                if (next == 'B' && s < STAGES - 1 && backward[s + 1] <= backward[s]) continue;
                forward[s] += next == 'F';
                backward[s] += next == 'B';
                at[s]++;
                left--;
                moved = true;
            }
        }
        assert_int_equal(left, 0);
    }
}

static void test_cycle(void **state) {
    (void)state;
    const IterationActor actors[] = {{1, 0}, {1, 0}};
    const IterationEdge edges[] = {{0, 1, 1, 0}, {1, 0, 1, 0}};
    Arena arena = {0};
    IterationOrder order;
    assert_int_equal(iteration_order_find(&order, &arena, actors, 2, edges, 2, NULL), AM_ERROR_USAGE);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_forward_one_backward),
                                       cmocka_unit_test(test_stages_do_not_block_one_another),
                                       cmocka_unit_test(test_cycle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
