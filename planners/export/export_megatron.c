/* A plan as arguments of Megatron-LM (trainer_plan.h).
 *
 * Optimizer state in shards over the data axis is its distributed optimizer. Stages have as many layers each,
 * but for the first and the last one; chunks have as many each.
 */
#include "planners/export/export_megatron.h"

#include "planners/export/trainer_plan.h"

static void set_number(json_t *arguments, const char *name, int64_t value) {
    json_object_set_new(arguments, name, json_integer((json_int_t)value));
}

/* Sets the layers of each part: equal numbers, which may differ for the first and the last part. */
static AmStatus set_layers(json_t *arguments, const TrainerPlan *degrees, AmError *error) {
    const int32_t *layers = degrees->layers, parts = degrees->parts, stages = degrees->stages;
    int32_t total = 0, middle = layers[parts > 2 ? 1 : parts - 1];
    for (int32_t p = 0; p < parts; p++) total += layers[p];
    bool is_even = true;
    for (int32_t p = 1; p + 1 < parts; p++) is_even = is_even && layers[p] == middle;
    bool first_differs = layers[0] != middle, last_differs = layers[parts - 1] != middle;
    if (!is_even || (parts > stages && (first_differs || last_differs)))
        return am_fail(
            error, AM_ERROR_INFEASIBLE, "",
            "Megatron-LM deals layers evenly%s, and the plan's stages have %d, %d, ..., %d; search "
            "--for megatron finds plans that can be exported",
            parts > stages ? " to chunks" : " but to the first and the last stage", layers[0], layers[1],
            layers[parts - 1]);
    set_number(arguments, "--num-layers", total);
    if (parts > stages) set_number(arguments, "--num-layers-per-virtual-pipeline-stage", middle);
    else if (first_differs) set_number(arguments, "--decoder-first-pipeline-num-layers", layers[0]);
    if (parts == stages && last_differs)
        set_number(arguments, "--decoder-last-pipeline-num-layers", layers[parts - 1]);
    return AM_OK;
}

/* Sets the recomputation: of all layers, of the first ones of each stage or chunk, or of modules of all
 * layers. */
static void set_recomputation(json_t *arguments, const TrainerPlan *degrees) {
    static const char *const names[] = {"core_attn", "layernorm", "mlp"};
    if (degrees->recomputed == 0) return;
    bool is_all = degrees->recomputes_all, is_full = degrees->recomputed_modules == 0;
    json_object_set_new(arguments, "--recompute-granularity", json_string(is_full ? "full" : "selective"));
    if (is_full) {
        json_object_set_new(arguments, "--recompute-method", json_string(is_all ? "uniform" : "block"));
        set_number(arguments, "--recompute-num-layers", is_all ? 1 : degrees->recomputed);
        return;
    }
    json_t *modules = json_array();
    for (int32_t k = 0; k < 3; k++)
        if (degrees->recomputed_modules >> k & 1) json_array_append_new(modules, json_string(names[k]));
    json_object_set_new(arguments, "--recompute-modules", modules);
}

/* Sets the offloading of optimizer state, which Megatron-LM has for its distributed optimizer alone. */
static AmStatus set_offload(json_t *arguments, const TrainerPlan *degrees, AmError *error) {
    if (!degrees->offloads_optimizer) return AM_OK;
    if (degrees->zero_level == 0)
        return am_fail(
            error, AM_ERROR_INFEASIBLE, "",
            "Megatron-LM offloads the state of its distributed optimizer, and the plan has no ZeRO 1; "
            "search --for megatron finds plans that can be exported");
    json_object_set_new(arguments, "--use-precision-aware-optimizer", json_true());
    json_object_set_new(arguments, "--optimizer-cpu-offload", json_true());
    return AM_OK;
}

AmStatus export_megatron(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    Arena arena = {0};
    TrainerPlan degrees;
    json_t *arguments = json_object();
    AmStatus status;
    TRY_OR_FAIL(trainer_plan_read(&degrees, &arena, TARGET_MEGATRON, context, plan, error));
    set_number(arguments, "--tensor-model-parallel-size", degrees.tensor);
    set_number(arguments, "--pipeline-model-parallel-size", degrees.stages);
    if (degrees.layers) TRY_OR_FAIL(set_layers(arguments, &degrees, error));
    set_number(arguments, "--micro-batch-size", degrees.examples);
    set_number(arguments, "--global-batch-size", degrees.batch);
    if (degrees.splits_sequence) json_object_set_new(arguments, "--sequence-parallel", json_true());
    if (degrees.zero_level > 0) json_object_set_new(arguments, "--use-distributed-optimizer", json_true());
    TRY_OR_FAIL(set_offload(arguments, &degrees, error));
    set_recomputation(arguments, &degrees);
    *root = json_pack("{s:s, s:i, s:O, s:o}", "format", "automap-megatron-1", "world_size", degrees.ranks,
                      "arguments", arguments, "layers", trainer_plan_layers(&degrees));
    if (!*root) status = am_fail_memory(error, 0);
fail:
    json_decref(arguments);
    arena_free(&arena);
    return status;
}

void export_megatron_print(Text *text, const json_t *root) {
    const char *name;
    const json_t *value, *word;
    size_t k;
    json_object_foreach(json_object_get(root, "arguments"), name, value) {
        text_append_string(text, name);
        if (json_is_integer(value)) text_append(text, " %lld", (long long)json_integer_value(value));
        if (json_is_string(value)) text_append(text, " %s", json_string_value(value));
        json_array_foreach(value, k, word) text_append(text, " %s", json_string_value(word));
        text_append_string(text, "\n");
    }
}
