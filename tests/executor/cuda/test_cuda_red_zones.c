/* Red zones around values on a CUDA device: planted accesses are found, and small models train with
 * the losses and states that JAX computed. With the stand-in libraries it needs no GPU.
 * AUTOMAP_FULL: more models. Skipped (77) in a build without CUDA and where there is
 * neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "tests/support/gpu_present.h"
#include "tests/support/red_zone_case.h"

static void test_planted_accesses(void **state) {
    (void)state;
    red_zone_check_device("cuda");
}

static void test_models(void **state) {
    (void)state;
    red_zone_check_models("cuda");
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planted_accesses),
                                       cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
