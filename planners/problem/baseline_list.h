/* The baselines: well-known plans, with which every search compares its own. */
#ifndef PLANNERS_PROBLEM_BASELINE_LIST_H
#define PLANNERS_PROBLEM_BASELINE_LIST_H

#include <stdbool.h>
#include <stdint.h>

#define BASELINE_LIST(X)                                                                                  \
    X(DATA_PARALLEL, "data_parallel", "the batch over all devices")                                       \
    X(MEGATRON, "megatron", "heads, MLP width and vocabulary inside a server, the batch between")         \
    X(MEGATRON_SEQUENCE, "megatron_sequence", "megatron, and the sequence where it splits nothing")       \
    X(ZERO1, "zero1", "data_parallel, each device with its part of the optimizer state")                  \
    X(ZERO2, "zero2", "zero1, and with its part of the gradients")                                        \
    X(ZERO3, "zero3", "zero2, and with its part of the weights")                                          \
    X(HSDP, "hsdp", "zero3 in groups of servers, replicated between them")                                \
    X(HSDP_ZERO2, "hsdp_zero2", "hsdp, and zero2 between groups")                                         \
    X(MEGATRON_ZERO1, "megatron_zero1", "megatron, and zero1 between servers")                            \
    X(MEGATRON_ZERO2, "megatron_zero2", "megatron, and zero2 between servers")                            \
    X(MEGATRON_ZERO3, "megatron_zero3", "megatron, and zero3 between servers")                            \
    X(CONTEXT_ZERO3, "context_zero3", "the sequence inside a server, the batch between, zero3 over both") \
    X(EVEN_PIPELINE, "even_pipeline", "stages of equal FLOPs, the batch over the devices of each")        \
    X(MEGATRON_3D, "megatron_3d", "even_pipeline with megatron inside a server, the batch between")       \
    X(ZERO3_FULL, "zero3_full", "zero3, every layer recomputed")                                          \
    X(MEGATRON_FULL, "megatron_full", "megatron, every layer recomputed")                                 \
    X(MEGATRON_SELECTIVE, "megatron_selective", "megatron_sequence, core attention recomputed")           \
    X(EVEN_PIPELINE_FULL, "even_pipeline_full", "stages of whole layers, every layer recomputed")         \
    X(MEGATRON_3D_FULL, "megatron_3d_full", "even_pipeline_full with megatron inside a server")           \
    X(MEGATRON_3D_SELECTIVE, "megatron_3d_selective", "megatron_3d_full, core attention recomputed alone")
typedef enum Baseline {
#define BASELINE_ENUM(name, text, help) BASELINE_##name,
    BASELINE_LIST(BASELINE_ENUM)
#undef BASELINE_ENUM
        BASELINE_COUNT
} Baseline;
const char *baseline_name(Baseline baseline);

/* What a baseline recomputes of each layer (Korthikanti et al. 2022). */
typedef enum BaselineRecompute {
    BASELINE_RECOMPUTES_NOTHING,
    BASELINE_RECOMPUTES_ATTENTION, /* selective: from the scores to the weighted values */
    BASELINE_RECOMPUTES_LAYERS,    /* full */
    BASELINE_RECOMPUTES_COUNT
} BaselineRecompute;
BaselineRecompute baseline_recompute(Baseline baseline);
/* Returns the baseline that differs in its recomputation alone: without any. */
Baseline baseline_without_recompute(Baseline baseline);
/* Returns whether its plans have several stages. */
bool baseline_has_stages(Baseline baseline);
/* Returns whether its weights are in shards in groups of servers. Walks do not start from such a baseline:
 * it is priced with its best group. */
bool baseline_has_groups(Baseline baseline);

/* Other names that users know a baseline by. Fully sharded data parallelism is zero3: weights, gradients and
 * optimizer state in shards, a weight gathered before its layer and again for the backward pass. */
#define BASELINE_ALIAS_LIST(X) X(ZERO3, "fsdp")
#define BASELINE_ALIAS_COUNT   1
const char *baseline_alias(int32_t k, Baseline *baseline);

#endif
