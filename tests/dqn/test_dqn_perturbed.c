/* The limits of twin_case.h, by which a device's learner is compared with the CPU's. Two CPU learners stay
 * within them where the products of one err like those of another library. They leave them where a product is
 * wrong. Linked with --wrap=dqn_product. */
#include "dqn/cpu/product_cpu.h"
#include "tests/support/sample.h"
#include "tests/support/twin_case.h"

/* Units of rounding of the sum of a product's terms' sizes: f32 sums of depth 16 in any order err by at
 * most 16. */
#define AMPLITUDE 16

typedef enum Fault { FAULT_NONE, FAULT_SCALE, FAULT_BIAS, FAULT_LAST_TERM } Fault;

/* The change of the products of the learner. */
static struct {
    bool perturbs;
    Fault fault;
    uint64_t seed, calls;
} wrapped;

void __real_dqn_product(const DqnProduct *product);
void __wrap_dqn_product(const DqnProduct *product);

static void perturb(const DqnProduct *it) {
    for (int32_t r = 0; r < it->rows; r++)
        for (int32_t c = 0; c < it->columns; c++) {
            double size = 0;
            for (int32_t k = 0; k < it->depth; k++)
                size += fabs((double)it->a[r * it->a_row + k * it->a_depth] *
                             it->b[k * it->b_depth + c * it->b_column]);
            double noise =
                2 * random_uniform_at(wrapped.seed, wrapped.calls, (uint64_t)(r * it->columns + c)) - 1;
            it->out[(int64_t)r * it->columns + c] += (Real)(AMPLITUDE * 0x1p-24 * size * noise);
        }
}

/* One product in seven is wrong. */
void __wrap_dqn_product(const DqnProduct *product) {
    DqnProduct it = *product;
    bool wrong = wrapped.perturbs && ++wrapped.calls % 7 == 3;
    if (wrong && wrapped.fault == FAULT_BIAS) it.start = NULL;
    if (wrong && wrapped.fault == FAULT_LAST_TERM && it.depth > 1) it.depth--;
    __real_dqn_product(&it);
    if (wrapped.perturbs && wrapped.fault == FAULT_NONE) perturb(&it);
    if (wrong && wrapped.fault == FAULT_SCALE)
        for (int64_t i = 0; i < (int64_t)it.rows * it.columns; i++) it.out[i] *= (Real)1.001;
}

static void enter(int32_t learner) {
    wrapped.perturbs = learner == 1;
}

static Twins twins_with(Fault fault, uint64_t seed) {
    wrapped.fault = fault;
    wrapped.seed = seed;
    wrapped.calls = 0;
    return (Twins){.devices = {DQN_CPU, DQN_CPU}, .enter = enter};
}

static void rounding_stays_within_the_limits(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    TwinDistance worst = {0};
    for (uint64_t seed = 1; seed <= (uint64_t)sample_of(30, 3); seed++) {
        Twins twins = twins_with(FAULT_NONE, seed);
        TwinDistance now = twins_follow(&twins, &settings, 1000, 20);
        if (!twin_is_near(&now))
            fail_msg("seed %d: loss %.2g, parameters %.2g, moments %.2g and %.2g, priorities %.2g", (int)seed,
                     now.loss, now.online, now.first, now.second, now.mass);
        if (now.online > worst.online) worst = now;
    }
    assert_true(worst.loss > 0 && worst.online > 0);
}

/* Those of test_cuda_dqn.c. */
static void other_shapes_stay_within_the_limits(void **state) {
    (void)state;
    LearnerSettings settings[3] = {small_settings(), small_settings(), small_settings()};
    settings[0].shape.dueling = settings[0].double_q = false;
    settings[0].huber = 0;
    settings[0].shape.hidden_count = 3;
    settings[0].shape.hidden[0] = 7;
    settings[0].shape.hidden[1] = 130;
    settings[0].shape.hidden[2] = 5;
    settings[1].shape.hidden_count = 0;
    settings[1].batch = 5;
    settings[1].shape.observation_size = 3;
    settings[1].replay_capacity = 64;
    settings[2].shape.observation_size = 24;
    settings[2].shape.channels = 2;
    settings[2].shape.length = 10;
    settings[2].shape.convolution_count = 2;
    settings[2].shape.convolutions[0] = (NetworkConvolution){4, 3, 1};
    settings[2].shape.convolutions[1] = (NetworkConvolution){3, 2, 2};
    for (int32_t k = 0; k < 3; k++)
        for (uint64_t seed = 1; seed <= (uint64_t)sample_of(20, 2); seed++) {
            Twins twins = twins_with(FAULT_NONE, seed);
            TwinDistance now = twins_follow(&twins, &settings[k], 60, 6);
            if (!twin_is_near(&now))
                fail_msg(
                    "shape %d, seed %d: loss %.2g, parameters %.2g, moments %.2g and %.2g, priorities %.2g",
                    (int)k, (int)seed, now.loss, now.online, now.first, now.second, now.mass);
        }
}

static void rounding_leaves_what_is_learned(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    for (uint64_t seed = 1; seed <= (uint64_t)sample_of(30, 5); seed++) {
        Twins twins = twins_with(FAULT_NONE, seed);
        TwinResult results[2];
        twins_learn_alone(&twins, &settings, 1000, results);
        if (!twin_has_learned(results))
            fail_msg("seed %d: loss %.3g and %.3g, regret %.3g and %.3g", (int)seed, results[0].loss,
                     results[1].loss, results[0].regret, results[1].regret);
    }
}

static void wrong_products_exceed_the_limits(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    for (int32_t fault = FAULT_SCALE; fault <= FAULT_LAST_TERM; fault++) {
        Twins twins = twins_with((Fault)fault, 1);
        TwinDistance now = twins_follow(&twins, &settings, 1000, 20);
        if (twin_is_near(&now)) fail_msg("fault %d is within the limits", (int)fault);
    }
}

/* A learner that does not learn has another regret. */
static void learning_shows_in_the_regret(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    Twins twins = twins_with(FAULT_NONE, 1);
    TwinResult results[2];
    twins_learn_alone(&twins, &settings, 1000, results);
    Learner *fresh = make_learner(DQN_CPU, &settings);
    results[1].regret = twin_regret(fresh);
    assert_false(twin_has_learned(results));
    learner_free(fresh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_stays_within_the_limits),
        cmocka_unit_test(other_shapes_stay_within_the_limits),
        cmocka_unit_test(rounding_leaves_what_is_learned),
        cmocka_unit_test(wrong_products_exceed_the_limits),
        cmocka_unit_test(learning_shows_in_the_regret),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
