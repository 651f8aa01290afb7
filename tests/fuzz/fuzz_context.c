/* From a module to all that planning derives from it: roles, factor rules, classes. */
#include "propagation/plan/plan.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    PlanContext *context;
    AmError error = {0};
    if (plan_context_read(&context, fuzz_path(data, size), NULL, &error) != AM_OK) {
        fuzz_check(error.text[0], "a refusal without words", NULL);
        return 0;
    }
    plan_context_free(context);
    return 0;
}
