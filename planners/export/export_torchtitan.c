/* A plan as a configuration of torchtitan (trainer_plan.h).
 *
 * ZeRO 2 and 3 are its fully sharded data parallelism, with weights that are kept or dropped after the
 * forward pass. The modules of each stage have the names of torchtitan's decoders: a table of tokens, layers,
 * a norm and a head.
 */
#include "planners/export/export_torchtitan.h"

#include "planners/export/export_dtensor.h"
#include "planners/export/trainer_plan.h"

#define VERSION "0.2.2"

/* ---- fields ---- */

static void set_number(json_t *fields, const char *name, int64_t value) {
    json_object_set_new(fields, name, json_integer((json_int_t)value));
}

/* Returns [part][module]: the names of the modules of each stage or chunk. */
static json_t *modules_of_parts(const TrainerPlan *degrees) {
    json_t *parts = json_array();
    for (int32_t p = 0, layer = 0; p < degrees->parts; p++) {
        json_t *modules = json_array();
        if (p == 0) json_array_append_new(modules, json_string("tok_embeddings"));
        for (int32_t k = 0; k < degrees->layers[p]; k++, layer++)
            json_array_append_new(modules, json_sprintf("layers.%d", layer));
        if (p == degrees->parts - 1) {
            json_array_append_new(modules, json_string("norm"));
            json_array_append_new(modules, json_string("lm_head"));
        }
        json_array_append_new(parts, modules);
    }
    return parts;
}

static json_t *fields_of(const TrainerPlan *degrees) {
    json_t *fields = json_object();
    bool is_sharded = degrees->zero_level > 0;
    set_number(fields, "data_parallel_replicate_degree", is_sharded ? 1 : degrees->data);
    set_number(fields, "data_parallel_shard_degree", is_sharded ? degrees->data : 1);
    if (is_sharded)
        json_object_set_new(fields, "fsdp_reshard_after_forward",
                            json_string(degrees->zero_level == 3 ? "always" : "never"));
    set_number(fields, "tensor_parallel_degree", degrees->tensor);
    json_object_set_new(fields, "enable_sequence_parallel", json_boolean(degrees->splits_sequence));
    set_number(fields, "pipeline_parallel_degree", degrees->stages);
    if (degrees->stages == 1) return fields;
    json_object_set_new(fields, "pipeline_parallel_schedule",
                        json_string(export_torch_schedule(degrees->schedule)));
    set_number(fields, "num_pp_microbatches", degrees->micro_batches);
    json_object_set_new(fields, "module_fqns_per_model_part", modules_of_parts(degrees));
    return fields;
}

AmStatus export_torchtitan(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    Arena arena = {0};
    TrainerPlan degrees;
    AmStatus status = trainer_plan_read(&degrees, &arena, TARGET_TORCHTITAN, context, plan, error);
    if (status == AM_OK) {
        const char *checkpoint = degrees.recomputed_modules == 0 ? "full" : "selective";
        if (degrees.recomputed == 0) checkpoint = "none";
        *root = json_pack("{s:s, s:s, s:i, s:o, s:{s:I, s:I}, s:s, s:o}", "format", "automap-torchtitan-1",
                          "torchtitan", VERSION, "world_size", degrees.ranks, "parallelism",
                          fields_of(&degrees), "examples", "micro_batch", (json_int_t)degrees.examples,
                          "step", (json_int_t)degrees.batch, "activation_checkpoint", checkpoint, "layers",
                          trainer_plan_layers(&degrees));
        if (!*root) status = am_fail_memory(error, 0);
    }
    arena_free(&arena);
    return status;
}

/* ---- a Python module ---- */

/* Prints a value as Python writes it, with a line for the modules of each stage. */
static void print_value(Text *text, const json_t *value) {
    size_t k;
    json_t *part;
    if (json_is_boolean(value)) text_append_string(text, json_is_true(value) ? "True" : "False");
    if (json_is_integer(value)) text_append(text, "%lld", (long long)json_integer_value(value));
    if (json_is_string(value)) text_append(text, "\"%s\"", json_string_value(value));
    if (!json_is_array(value)) return;
    text_append_string(text, "[\n");
    json_array_foreach(value, k, part) {
        char *row = json_dumps(part, 0);
        text_append(text, "        %s,\n", row ? row : "");
        free(row);
    }
    text_append_string(text, "    ]");
}

static long long number_at(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

void export_torchtitan_print(Text *text, const json_t *root) {
    const json_t *fields = json_object_get(root, "parallelism"),
                 *examples = json_object_get(root, "examples");
    bool has_stages = number_at(fields, "pipeline_parallel_degree") > 1;
    const char *name;
    json_t *value;
    const char *checkpoint = json_string_value(json_object_get(root, "activation_checkpoint"));
    const char *policy = strcmp(checkpoint, "full") == 0        ? "FullAC"
                         : strcmp(checkpoint, "selective") == 0 ? "SelectiveAC"
                                                                : NULL;
    text_append(text, "\"\"\"Settings of torchtitan %s on %lld devices.\"\"\"\n\n",
                json_string_value(json_object_get(root, "torchtitan")), number_at(root, "world_size"));
    if (policy) text_append(text, "from torchtitan.distributed.activation_checkpoint import %s\n\n", policy);
    text_append_string(text, "\n");
    text_append_string(
        text, "def configure(config):\n"
              "    \"\"\"Sets the fields of a Trainer.Config that the plan decides, and returns it.\"\"\"\n");
    json_object_foreach((json_t *)fields, name, value) {
        text_append(text, "    config.parallelism.%s = ", name);
        print_value(text, value);
        text_append_string(text, "\n");
    }
    text_append(text,
                "    length = config.training.max_context_length\n"
                "    config.training.num_tokens_per_microbatch_per_dp_rank = %lld * length\n"
                "    config.training.num_tokens_per_train_step = %lld * length\n",
                number_at(examples, "micro_batch"), number_at(examples, "step"));
    if (has_stages) text_append_string(text, "    config.training.disable_cuda_graphs = True\n");
    text_append(text, "    config.activation_checkpoint = %s%s\n    return config\n",
                policy ? policy : "None", policy ? ".Config()" : "");
}
