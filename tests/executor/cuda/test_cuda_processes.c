/* Several processes, each with GPUs of its own, that train under one plan by NCCL:
 * JAX's losses and final state; one that dies ends the others, naming it. Skipped
 * (77) in a build without NCCL and where there are not four GPUs, or a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_NCCL
#include "base/cuda/driver.h"
#include "tests/support/training_case.h"

static void prepare(const char *model, const char *mesh, Choose *choose, uint64_t seed) {
    training_prepare(model, mesh, choose, seed);
    training.device = "cuda";
    training.comm = "nccl";
    training.tolerance = 1e-5;
}

static void test_training(void **state) {
    (void)state;
    prepare("mlp_tiny", "data=2", choose_batch, 0);
    training_check(2);
    prepare("exact_linear", "data=2,model=2", choose_some, 2);
    training_check(2);
    prepare("exact_gather", "data=2,model=2", choose_some, 1);
    training_check(4);
}

/* Process 1 dies after a while. */
static AmStatus train_and_die(ProcessGroup *processes, AmError *error) {
    if (processes->process == 1) alarm(2); /* its default action is to end the process */
    return training_run(processes, error);
}

static void test_death(void **state) {
    (void)state;
    Child children[MOST];
    prepare("exact_linear", "data=2,model=2", choose_some, 2);
    training.steps = 1000000;
    make_children(children, 2, train_and_die);
    start(children, 2);
    finish(children, 2);
    assert_true(children[0].seconds < 20);
    assert_int_equal(children[1].status, -1);
    expect(&children[0], AM_ERROR_RUNTIME, "process 1");
}

/* The driver must not be open in a process that forks, so a child counts. */
static int count_devices(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(cuda_device_count());
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_death),
    };
    setenv("STAND_IN_DEVICES", "4", 0);
    if (count_devices() < 4) {
        puts("skipped: there are not four GPUs");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: this build has no NCCL");
    return SKIPPED;
}
#endif
