/* The memory of each rank if the shards of a stage differ in size.
 *
 * Two rounds run side by side on all threads: the first lowers the first rank of every stage; the second
 * lowers the other ranks of stages whose shards differ. Other ranks take the memory of their stage's first
 * one. All ranks do if the second round would take more than about 20 s.
 */
#include "cost/memory/rank_memory.h"

#include "base/system/parallel.h"
#include "cost/memory/jax_memory.h"
#include "cost/operator/fused_kernels.h"

/* Instructions of all ranks together that are lowered at most, which takes some 20 s. */
#define MOST_LOWERED 1000000

typedef struct RankTask {
    int32_t rank;
    bool is_uneven;
    AmStatus status;
    AmError error;
} RankTask;

typedef struct RankLowering {
    const PlanRanks *ranks;
    const Cluster *cluster;
    const StopSignal *stop; /* or NULL */
    const uint8_t *gradients;
    MemoryUse *uses;
    RankTask *tasks;
} RankLowering;

static void lower_rank(void *user, int32_t k) {
    RankLowering *self = user;
    RankTask *task = &self->tasks[k];
    Arena arena = {0};
    Program *program;
    if (self->stop && stop_wanted(self->stop)) return;
    task->status = plan_ranks_lower(&program, &arena, self->ranks, task->rank, &task->error);
    if (task->status == AM_OK)
        task->status = fused_kernels_find(program, self->ranks->plan->is_for_jax, &task->error);
    if (task->status == AM_OK) {
        int32_t stage = plan_ranks_stage(self->ranks, task->rank);
        const int32_t *devices = self->ranks->plan->stages[stage].devices;
        task->status = jax_memory(
            program, self->ranks->plan,
            cluster_device_type(self->cluster, devices[task->rank - self->ranks->first_rank[stage]]),
            &task->error);
    }
    if (task->status == AM_OK) {
        task->is_uneven = program->is_uneven;
        task->status = memory_use(&self->uses[task->rank], program, self->gradients, &task->error);
    }
    arena_free(&arena);
}

static AmStatus lower_ranks(RankLowering *self, int32_t count, AmError *error) {
    parallel_for(count, 0, lower_rank, self);
    for (int32_t k = 0; k < count; k++)
        TRY(am_pass_error(self->tasks[k].status, &self->tasks[k].error, error));
    return AM_OK;
}

/* Returns whether the second round is quick even if it lowers all ranks. */
static bool is_quick_to_lower(const PlanContext *context, int32_t rank_count) {
    return (int64_t)rank_count * context->rules->count <= MOST_LOWERED;
}

AmStatus rank_memory(MemoryUse **uses, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                     const StopSignal *stop, AmError *error) {
    const PlanContext *context = ranks->context;
    int32_t stages = ranks->stage_count, count = 0;
    RankLowering self = {.ranks = ranks,
                         .cluster = cluster,
                         .gradients = memory_find_gradients(arena, context->canonical, context->roles),
                         .uses = *uses = ARENA_ARRAY(arena, MemoryUse, ranks->rank_count),
                         .tasks = ARENA_ARRAY(arena, RankTask, ranks->rank_count)};
    RankTask *firsts = ARENA_ARRAY(arena, RankTask, stages);
    if (arena->failed) return am_fail_memory(error, ranks->rank_count);
    for (int32_t s = 0; s < stages; s++) self.tasks[s].rank = ranks->first_rank[s];
    TRY(lower_ranks(&self, stages, error));
    for (int32_t s = 0; s < stages; s++) firsts[s] = self.tasks[s];
    bool is_quick = is_quick_to_lower(context, ranks->rank_count);
    for (int32_t s = 0; s < stages; s++) {
        bool differ = firsts[s].is_uneven || !mesh_has_equal_shares(&ranks->plan->stages[s].mesh);
        for (int32_t rank = ranks->first_rank[s] + 1; rank < ranks->first_rank[s + 1]; rank++)
            if (differ && is_quick) self.tasks[count++] = (RankTask){.rank = rank};
            else self.uses[rank] = self.uses[firsts[s].rank];
    }
    self.stop = stop;
    return lower_ranks(&self, count, error);
}

/* Returns whether a simulation found the memory that rank_memory() gives every rank. A simulation gives
 * devices of equal shares the memory of their stage's first rank. */
static bool is_predicted(const Plan *plan, const PlanContext *context) {
    bool is_quick = is_quick_to_lower(context, plan->device_count), is_found = true;
    for (int32_t s = 0, rank = 0; s < plan->stage_count; rank += plan->stages[s++].mesh.device_count)
        is_found &=
            plan->predicted[rank].is_even || (!is_quick && mesh_has_equal_shares(&plan->stages[s].mesh));
    return is_found;
}

AmStatus rank_memory_predict(Plan *plan, Arena *arena, const PlanContext *primary, const Cluster *cluster,
                             const StopSignal *stop, AmError *error) {
    Arena scratch = {0};
    PlanRanks ranks;
    MemoryUse *uses;
    if (is_predicted(plan, plan_context_used(plan, primary))) return AM_OK;
    PlanDevicePrediction *predicted = ARENA_ARRAY(arena, PlanDevicePrediction, plan->device_count);
    if (!predicted) return am_fail_memory(error, plan->device_count);
    AmStatus status = plan_ranks(&ranks, &scratch, plan_context_used(plan, primary), plan, error);
    if (status == AM_OK) status = rank_memory(&uses, &scratch, &ranks, cluster, stop, error);
    for (int32_t d = 0; d < plan->device_count && status == AM_OK; d++) {
        predicted[d] = plan->predicted[d];
        if (uses[d].peak_bytes == 0) continue; /* not lowered */
        if (plan->is_for_jax) memory_use_drop_spare(&uses[d]);
        predicted[d].peak_bytes = uses[d].peak_bytes;
        predicted[d].weights_bytes = uses[d].weights_bytes;
        predicted[d].gradients_bytes = uses[d].gradients_bytes;
        predicted[d].optimizer_bytes = uses[d].optimizer_bytes;
        predicted[d].activation_bytes = uses[d].activation_bytes;
        predicted[d].host_bytes = uses[d].host_bytes;
    }
    if (status == AM_OK) plan->predicted = predicted;
    arena_free(&scratch);
    return status;
}
