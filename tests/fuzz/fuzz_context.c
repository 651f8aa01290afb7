/* From a module to all that planning derives from it: the shardings that it carries, roles, factor rules,
 * classes.
 */
#include "propagation/plan/plan.h"
#include "propagation/spread/spread.h"
#include "tests/fuzz/fuzz.h"

static AmStatus spread_shardings(Text *text, Arena *arena, const IrModule *module, AmError *error) {
    Spread *spread;
    TRY(spread_create(&spread, arena, module, true, error));
    TRY(spread_run(spread, error));
    return spread_text(text, spread, error);
}

static void check_shardings(const char *path) {
    IrModule *module = NULL;
    Arena arena = {0};
    Text text = {0};
    AmError error = {0};
    if (ir_read(&module, path, &error) != AM_OK) return;
    AmStatus status = spread_shardings(&text, &arena, module, &error);
    fuzz_check(status == AM_OK || error.text[0], "a refused sharding without words", NULL);
    text_free(&text);
    arena_free(&arena);
    ir_module_free(module);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    PlanContext *context;
    AmError error = {0};
    const char *path = fuzz_path(data, size);
    check_shardings(path);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) {
        fuzz_check(error.text[0], "a refusal without words", NULL);
        return 0;
    }
    plan_context_free(context);
    return 0;
}
