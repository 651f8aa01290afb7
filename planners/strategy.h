/* A given strategy as a plan, without a search.
 *
 * Stages have equal numbers of layers, as in Megatron-LM: where the layers do not divide, the first and the
 * last parts have one less. With counts_tables, the table in front of the layers, the norm and the table
 * after them count as layers, and the first parts have one more. Each stage is a mesh data x context x
 * tensor with the tensor axis innermost. The batch is split over the first axis, Megatron-LM's classes
 * (baseline.h) over the second, and the sequence over the second where activations are split by it. ZeRO's
 * level applies to the first axis.
 */
#ifndef PLANNERS_STRATEGY_H
#define PLANNERS_STRATEGY_H

#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/problem/candidate_pool.h"
#include "planners/single_stage/single_stage_search.h"

typedef struct Strategy {
    /* -- degrees -- */
    int32_t data, tensor, stages;
    int32_t context; /* devices that share a sequence in every operator, whose keys and values are gathered; 0
                        as 1 */
    int32_t chunks;  /* of each stage; 1 but for interleaved_1f1b */
    int32_t micro_batches;
    ScheduleKind schedule; /* of several stages */
    int32_t zero;          /* 0 to 3 */
    bool splits_sequence;  /* over the tensor axis, between the split operators */
    /* -- cuts and recomputation -- */
    bool counts_tables;          /* cuts count tables, the last norm and the loss as layers */
    int32_t recomputed_layers;   /* the first layers of each part, which are recomputed one by one; 0: none */
    uint32_t recomputed_modules; /* LayerModule: parts of layers that alone are recomputed, in these layers;
                                    0: all of them */
    /* -- sums -- */
    bool rounds_parts;          /* sums over devices are in the type of products */
    bool rounds_sums;           /* sums over micro-batches are in the type of products */
    bool all_reduces_gradients; /* gradients are all-reduced, also where the optimizer's state is stored in
                                   shards */
    bool reduces_in_f32;        /* 16-bit gradients are summed over devices in f32 */
    /* -- memory -- */
    int64_t gathered_size;   /* > 0: values with a last dimension of this size, the logits, are replicated on
                                the tensor axis after their product */
    bool offloads_optimizer; /* optimizer state is in the host's memory */
    int64_t kept_bytes;      /* that the training system holds on each device outside of the step */
    int64_t kept_outputs;    /* the same on each device of the last stage, in addition */
    bool is_for_jax;         /* the plan's memory is that of automap_jax.run */
} Strategy;

enum { STRATEGY_ALL_LAYERS = INT32_MAX };

/* Returns the rewriting of the module that the strategy needs, without its recomputation. */
MicroBatchSettings strategy_batching(const Strategy *strategy);

/* Finds the recomputation of the strategy's layers, in instructions of `primary`, the module as read. The
 * arena owns it. AM_ERROR_INFEASIBLE: the module has no such layers, or they lack one of the modules. */
AmStatus strategy_recomputation(PlanRecomputation *recomputed, Arena *arena, const PlanContext *primary,
                                const Strategy *strategy, AmError *error);

/* Finds the context of the module in the strategy's micro-batches and with its recomputation, made on first
 * use and owned by `primary`, the module as read. Strategies with equal rewritings share it.
 * AM_ERROR_INFEASIBLE: the module does not allow the strategy; the message has the reason. */
AmStatus strategy_context(const PlanContext **context, PlanContext *primary, const Strategy *strategy,
                          AmError *error);

/* Makes the plan and simulates it, also where it does not fit. `context` is of the module
 * in the strategy's micro-batches and with its recomputation; several strategies may use it. The plan is in
 * the arena and has predictions; the candidate is one of the baselines, without a note. AM_ERROR_INFEASIBLE:
 * the module does not allow the strategy; the message has the reason. */
AmStatus strategy_simulate(PlanCandidate *candidate, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, const Strategy *strategy, double memory_fraction,
                           AmError *error);

#endif
