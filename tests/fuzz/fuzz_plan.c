/* Plan files for mlp_tiny. */
#include "propagation/plan/plan.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static PlanContext *context;
    AmError error = {0};
    Arena arena = {0};
    Plan *plan;
    json_t *root = NULL;
    if (!context)
        fuzz_check(plan_context_read(&context, SOURCE_DIR "/datasets/models/mlp_tiny/model.hlo.pb", NULL,
                                     &error) == AM_OK,
                   "mlp_tiny", &error);
    if (plan_read(&plan, &root, &arena, context, fuzz_path(data, size), &error) == AM_OK) json_decref(root);
    arena_free(&arena);
    return 0;
}
