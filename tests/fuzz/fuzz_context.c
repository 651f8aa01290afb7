/* From a module to all that planning derives from it: the shardings that it carries, roles, factor rules,
 * classes. The module in mixed precision is made, too.
 */
#include <string.h>

#include "ir/precision/mixed_precision.h"
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

/* A module in mixed precision is verified as it is read; it also has the same parameters and result. */
static void check_mixed_precision(const PlanContext *context) {
    IrModule *mixed;
    IrPrecisionCounts counts;
    AmError error = {0};
    if (context->module->is_optimized) return;
    AmStatus status =
        ir_mixed_precision(&mixed, &counts, context->module, context->canonical, context->roles, &error);
    bool is_refused = status == AM_ERROR_INPUT && strstr(error.text, "nothing to do");
    fuzz_check(status == AM_OK || is_refused, "no module in mixed precision", &error);
    if (status != AM_OK) return;
    const IrComputation *from = &context->canonical->computations[context->canonical->entry];
    const IrComputation *to = &mixed->computations[mixed->entry];
    fuzz_check(!mixed->unplanned && from->parameter_count == to->parameter_count,
               "mixed precision changed what can be planned", NULL);
    for (int32_t p = 0; p < from->parameter_count; p++)
        fuzz_check(ir_shape_equal(&context->canonical->instructions[from->parameters[p]].shape,
                                  &mixed->instructions[to->parameters[p]].shape),
                   "mixed precision changed a parameter", NULL);
    fuzz_check(ir_shape_equal(&context->canonical->instructions[from->root].shape,
                              &mixed->instructions[to->root].shape),
               "mixed precision changed the result", NULL);
    ir_module_free(mixed);
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
    check_mixed_precision(context);
    plan_context_free(context);
    return 0;
}
