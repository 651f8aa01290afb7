/* Hill climbing and annealing over points of a line: orders of moves, batches, budgets and continuation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "planners/local_search/anneal.h"
#include "planners/local_search/climb.h"

enum { MOVES = 4, MOST_LOG = 256, GOAL = 40 };
static const int32_t moves[MOVES] = {-1, 1, 5, 3};

/* A climb to GOAL by the steps of `moves`; the score of a point is its distance. */
typedef struct Line {
    int32_t point, best; /* the best: since list() */
    int32_t batch[MOVES], waiting;
    int32_t log[MOST_LOG], log_count; /* points that were priced */
    int32_t budget, most_waiting;
    bool is_full; /* batches respect the budget */
} Line;

static int32_t distance(int32_t point) {
    return abs(point - GOAL);
}

static bool is_over(void *user) {
    const Line *self = user;
    return self->log_count >= self->budget;
}

static AmStatus list(void *user, int32_t *count, AmError *error) {
    Line *self = user;
    (void)error;
    self->best = self->point;
    *count = MOVES;
    return AM_OK;
}

static AmStatus make(void *user, int32_t move, ClimbMove *made, AmError *error) {
    Line *self = user;
    (void)error;
    assert_in_range(move, 0, MOVES - 1);
    if (self->is_full && self->log_count + self->waiting >= self->budget) {
        *made = CLIMB_FULL;
        return AM_OK;
    }
    self->batch[self->waiting++] = self->point + moves[move];
    if (self->waiting > self->most_waiting) self->most_waiting = self->waiting;
    *made = CLIMB_ADDED;
    return AM_OK;
}

static AmStatus price(void *user, bool *is_better, AmError *error) {
    Line *self = user;
    (void)error;
    assert_true(self->waiting > 0);
    for (int32_t k = 0; k < self->waiting; k++) {
        self->log[self->log_count++] = self->batch[k];
        if (distance(self->batch[k]) >= distance(self->best)) continue;
        self->best = self->batch[k];
        *is_better = true;
    }
    self->waiting = 0;
    return AM_OK;
}

static AmStatus take(void *user, AmError *error) {
    Line *self = user;
    (void)error;
    self->point = self->best;
    return AM_OK;
}

static Climb climb_of(Line *line, ClimbOrder order, int32_t batch) {
    return (Climb){order, batch, line, is_over, list, make, price, take};
}

static void test_orders(void **state) {
    (void)state;
    static const int32_t first[] = {-1, 1, 0, 2}, onward[] = {-1, 1, 6, 9, 8}, steepest[] = {-1, 1, 5, 3, 4};
    static const struct {
        ClimbOrder order;
        const int32_t *points;
        int32_t count;
    } cases[] = {{CLIMB_FROM_FIRST, first, 4}, {CLIMB_ONWARD, onward, 5}, {CLIMB_STEEPEST, steepest, 5}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Line line = {.budget = MOST_LOG - MOVES};
        const Climb climb = climb_of(&line, cases[k].order, 1);
        ClimbPlace place = {0};
        assert_int_equal(climb_run(&climb, &place, NULL), AM_OK);
        assert_memory_equal(line.log, cases[k].points, sizeof(int32_t) * (size_t)cases[k].count);
        assert_int_equal(line.point, GOAL);
        assert_true(place.is_end);
        assert_int_equal(line.most_waiting, 1);
    }
}

/* A climb with a budget of n prices the first n points of a climb without one, in one call or in several. */
static void test_budgets(void **state) {
    (void)state;
    for (ClimbOrder order = CLIMB_FROM_FIRST; order <= CLIMB_STEEPEST; order++) {
        Line all = {.budget = MOST_LOG - MOVES};
        const Climb climb = climb_of(&all, order, 3);
        ClimbPlace place = {0};
        assert_int_equal(climb_run(&climb, &place, NULL), AM_OK);
        assert_int_equal(all.most_waiting, 3);
        for (int32_t budget = 0; budget < all.log_count; budget++) {
            Line part = {.budget = budget, .is_full = true};
            const Climb of_part = climb_of(&part, order, 3);
            ClimbPlace at = {0};
            assert_int_equal(climb_run(&of_part, &at, NULL), AM_OK);
            assert_int_equal(part.log_count, budget);
            assert_false(at.is_end);
            assert_memory_equal(part.log, all.log, sizeof(int32_t) * (size_t)budget);
        }
    }
    Line steps = {0};
    const Climb climb = climb_of(&steps, CLIMB_ONWARD, 1);
    ClimbPlace place = {0};
    for (; !place.is_end && steps.budget < MOST_LOG - MOVES; steps.budget++)
        assert_int_equal(climb_run(&climb, &place, NULL), AM_OK);
    Line whole = {.budget = MOST_LOG - MOVES};
    const Climb at_once = climb_of(&whole, CLIMB_ONWARD, 1);
    ClimbPlace end = {0};
    assert_int_equal(climb_run(&at_once, &end, NULL), AM_OK);
    assert_int_equal(steps.log_count, whole.log_count);
    assert_memory_equal(steps.log, whole.log, sizeof(int32_t) * (size_t)whole.log_count);
}

/* ---- annealing on the values of a table with a local minimum ---- */

static const double values[] = {5, 3, 4, 4.5, 4, 2, 1, 2};
enum { VALUES = sizeof values / sizeof *values };

typedef struct Table {
    int32_t at, changed, drawn, steps, least;
} Table;

static bool table_is_over(void *user) {
    const Table *self = user;
    return self->drawn >= self->steps;
}

static double table_progress(void *user) {
    const Table *self = user;
    return (double)(self->drawn - 1) / self->steps;
}

static bool table_change(void *user, Random *random) {
    Table *self = user;
    self->drawn++;
    self->changed = self->at + (random_below(random, 2) ? 1 : -1);
    return self->changed >= 0 && self->changed < VALUES;
}

static AmStatus table_score(void *user, double *score, AmError *error) {
    const Table *self = user;
    (void)error;
    *score = values[self->changed];
    return AM_OK;
}

static void table_take(void *user) {
    Table *self = user;
    self->at = self->changed;
    if (values[self->at] < values[self->least]) self->least = self->at;
}

static int32_t anneal_table(bool is_climb, double hot) {
    Random random;
    random_seed(&random, 7);
    Table table = {.steps = 400};
    const Anneal anneal = {hot,           1e-3,           is_climb,     &random,     &table,
                           table_is_over, table_progress, table_change, table_score, table_take};
    assert_int_equal(anneal_run(&anneal, values[0], NULL), AM_OK);
    assert_int_equal(table.drawn, 400);
    return table.least;
}

static void test_anneal(void **state) {
    (void)state;
    assert_int_equal(anneal_table(true, 1), 1);     /* the local minimum */
    assert_int_equal(anneal_table(false, 1), 6);    /* the global one */
    assert_int_equal(anneal_table(false, 2e-3), 1); /* too cold to leave the local one */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders), cmocka_unit_test(test_budgets),
                                       cmocka_unit_test(test_anneal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
