/* Prices of the events of a stage.
 *
 * With equal shares all devices run the program of the stage's first device, which is lowered once.
 * With unequal ones, devices whose shards have equal sizes run the program of the first of them. Each program
 * is priced when it is lowered, and dropped afterwards unless it is read again: 256 devices have some 30
 * programs. Steps inside a loop without transfers are counted for all trips at once: iterations take equally
 * long, and the device waits at the loop's borders, so that the time of an iteration times the trips is
 * exact.
 */
#include "cost/simulate/stage_costs.h"

#include <math.h>

#include "cost/memory/jax_memory.h"
#include "cost/operator/fused_kernels.h"
#include "cost/step/memory.h"

/* Prices a program on a device type: [step]. Each distinct work is priced once; measured curves and
 * profiles distinguish more than works do and are evaluated step by step. */
static AmStatus price_program_on(Ticks *ticks, const ProgramEvents *events, Arena *arena,
                                 const ClusterDeviceType *type, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    bool is_measured = type->profile || type->operators;
    double *of_works = ARENA_ARRAY(arena, double, events->work_count + 1);
    if (!of_works) return am_fail_memory(error, events->work_count);
    for (int32_t w = 0; w < events->work_count && !is_measured; w++)
        of_works[w] = executed_work_seconds(&events->steps[events->first_step[w]], &events->works[w], type);
    for (int32_t s = 0; s < events->step_count; s++) {
        int32_t work = events->work_of[s];
        if (work < 0) continue;
        double seconds = is_measured ? executed_seconds(&events->steps[s], type) : of_works[work];
        ticks[s] = ticks_of_seconds(events->steps[s].times * seconds);
    }
    arena_release(arena, mark);
    return AM_OK;
}

/* Returns whether a transfer has something of every device of the stage. */
static bool has_all_devices(const StageCosts *self, const ProgramTransfer *transfer) {
    int32_t count = 0, end = self->first_rank + self->stage->mesh.device_count;
    for (int32_t k = 0; k < transfer->rank_count; k++)
        count += transfer->ranks[k] >= self->first_rank && transfer->ranks[k] < end;
    return count == self->stage->mesh.device_count;
}

/* Returns whether a stage has equal programs and device types, groups that lie alike in the cluster, and
 * transfers of all devices. */
static bool is_uniform(const StageCosts *self) {
    if (self->program_count > 1) return false;
    for (int32_t p = 0; p < self->of_all.piece_count; p++)
        if (self->of_all.pieces[p].transfer && !has_all_devices(self, self->of_all.pieces[p].transfer))
            return false;
    const int32_t *devices = self->stage->devices;
    for (int32_t d = 1; d < self->stage->mesh.device_count; d++)
        if (cluster_device_type(self->cluster, devices[d]) != cluster_device_type(self->cluster, devices[0]))
            return false;
    for (int32_t k = 0; k < self->axes_count; k++)
        if (self->partitions[self->axes_used[k]].distinct_count > 1) return false;
    return true;
}

static AmStatus price_collectives(StageCosts *self, Arena *arena, AmError *error) {
    const ProgramEvents *costs = &self->programs[0];
    size_t type =
        (size_t)(cluster_device_type(self->cluster, self->stage->devices[0]) - self->cluster->types);
    Ticks *of_only = &self->ticks[0][type * (size_t)costs->step_count];
    self->collectives = ARENA_ARRAY(arena, Ticks *, costs->step_count + 1);
    if (!self->collectives) return am_fail_memory(error, costs->step_count);
    for (int32_t s = 0; s < costs->step_count; s++) {
        if (costs->work_of[s] != EVENT_COLLECTIVE) continue;
        const ProgramCollective *collective = costs->steps[s].instruction->collective;
        const CollectivePartition *partition = &self->partitions[collective->axes];
        int32_t groups = self->is_uniform ? 1 : partition->group_count;
        Ticks *ticks = self->collectives[s] = ARENA_ARRAY(arena, Ticks, groups);
        if (!ticks) return am_fail_memory(error, groups);
        ProgramCollectiveKind kind = collective_priced_kind(costs->steps[s].instruction);
        if (program_is_host_copy(collective))
            TRY(memory_check_host(self->cluster, self->stage->devices, self->stage->mesh.device_count,
                                  error));
        for (int32_t g = 0; g < groups; g++) {
            /* The most that a member of the group moves. */
            const int32_t *members = &partition->members[g * partition->group_size];
            double bytes = 0;
            for (int32_t k = 0; k < (self->program_count == 1 ? 1 : partition->group_size); k++) {
                double wanted = stage_costs_of(self, members[k])->tensor_bytes[s];
                if (wanted > bytes) bytes = wanted;
            }
            /* A host copy is one of each device: of all of them where they are alike. */
            const int32_t *devices = &self->stage->devices[self->is_uniform ? 0 : partition->members[g]];
            int32_t copies = self->is_uniform ? self->stage->mesh.device_count : 1;
            double seconds = program_is_host_copy(collective)
                                 ? host_copy_seconds(bytes, self->cluster, devices, copies)
                                 : collective_seconds(kind, bytes, &partition->topologies[g], self->cluster);
            ticks[g] = ticks_of_seconds(costs->steps[s].times * seconds);
        }
        if (self->is_uniform) of_only[s] = ticks[0];
    }
    return AM_OK;
}

/* Lowers the program of a device, unless that was done, lists its events and prices its operators. `own`: the
 * arena of the program, which may be freed afterwards. */
static AmStatus lower_program(StageCosts *self, Arena *arena, Arena *own, const PlanRanks *ranks,
                              int32_t device, const uint8_t *gradients, AmError *error) {
    const ClusterDeviceType *type = cluster_device_type(self->cluster, self->stage->devices[0]);
    int32_t program = self->program_of[device];
    if (self->lowered[program]) return AM_OK;
    TRY(plan_ranks_lower(&self->lowered[program], own, ranks, self->first_rank + device, error));
    TRY(fused_kernels_find(self->lowered[program], ranks->plan->is_for_jax, error));
    TRY(jax_memory(self->lowered[program], ranks->plan, type, error));
    TRY(stage_events_list(&self->programs[program], program == 0 ? &self->of_all : NULL, arena,
                          self->lowered[program], type, gradients, error));
    const ProgramEvents *events = &self->programs[program];
    const Cluster *cluster = self->cluster;
    size_t row = (size_t)events->step_count;
    Ticks *ticks = self->ticks[program] = ARENA_ARRAY(arena, Ticks, row * (size_t)cluster->type_count + 1);
    bool *used = ARENA_ARRAY(arena, bool, cluster->type_count);
    if (arena->failed) return am_fail_memory(error, (int64_t)row);
    for (int32_t d = 0; d < self->stage->mesh.device_count; d++)
        used[cluster_device_type(cluster, self->stage->devices[d]) - cluster->types] = true;
    for (int32_t t = 0; t < cluster->type_count; t++)
        if (used[t]) TRY(price_program_on(&ticks[(size_t)t * row], events, arena, &cluster->types[t], error));
    return AM_OK;
}

/* Returns the device of a type with the largest shares; -1: the stage has none of the type. */
static int32_t most_loaded(const StageCosts *self, const ClusterDeviceType *type) {
    const Mesh *mesh = &self->stage->mesh;
    int32_t found = -1;
    double most = 0;
    for (int32_t d = 0; d < mesh->device_count; d++) {
        double load = 1;
        if (cluster_device_type(self->cluster, self->stage->devices[d]) != type) continue;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (mesh->axes[axis].shares) load *= mesh->axes[axis].shares[mesh_coordinate(mesh, d, axis)];
        if (found >= 0 && load <= most) continue;
        most = load;
        found = d;
    }
    return found;
}

AmStatus stage_costs_lower(StageCosts *self, Arena *arena, const PlanRanks *ranks, int32_t stage,
                           const Cluster *cluster, const uint8_t *gradients, const SimulationOptions *options,
                           AmError *error) {
    const PlanStage *of_plan = &ranks->plan->stages[stage];
    const bool keeps_programs = options->with_details || options->observer;
    const double most = options->most_seconds > 0 ? options->most_seconds : INFINITY;
    int32_t count = 1;
    *self = (StageCosts){.stage = of_plan, .cluster = cluster, .first_rank = ranks->first_rank[stage]};
    if (mesh_has_equal_shares(&of_plan->mesh))
        self->program_of = ARENA_ARRAY(arena, int32_t, of_plan->mesh.device_count);
    else TRY(plan_ranks_group(&self->program_of, &count, arena, ranks, stage, error));
    self->program_count = count;
    self->lowered = ARENA_ARRAY(arena, Program *, count);
    self->programs = ARENA_ARRAY(arena, ProgramEvents, count);
    self->ticks = ARENA_ARRAY(arena, Ticks *, count);
    if (arena->failed) return am_fail_memory(error, count);
    AmStatus status = AM_OK;
    Arena scratch = {0}; /* of one program after the other */
    /* With several programs, those of the busiest devices come first. */
    for (int32_t k = count > 1 && !isinf(most) ? -cluster->type_count : 0;
         k < of_plan->mesh.device_count && self->busy <= most && status == AM_OK; k++) {
        int32_t device = k < 0 ? most_loaded(self, &cluster->types[-k - 1]) : k;
        if (device < 0) continue;
        bool keeps = keeps_programs || self->program_of[device] == 0;
        status = lower_program(self, arena, keeps ? arena : &scratch, ranks, device, gradients, error);
        if (status == AM_OK && k < 0) self->busy = fmax(self->busy, stage_costs_busy(self, device));
        arena_release(&scratch, (ArenaMark){0});
    }
    arena_free(&scratch);
    return status;
}

/* Adds the time in which the device waits for the host, which enqueues kernels ahead of it. A kernel of steps
 * [first, end) of one program begins when it is enqueued and the kernel before it has ended. The host begins
 * when the device is idle, as at a transfer or at the input of a micro-batch, which a framework waits for.
 * It also waits in front of a kernel for which it reads a value of the device. The last operator takes all of
 * the waiting. A collective is a kernel, too. */
static void wait_for_host(Ticks *ticks, const StageCosts *self, const ProgramEvents *events,
                          const ClusterDeviceType *type, int32_t first, int32_t end) {
    double host = 0, finish = 0, device = 0;
    int32_t last = -1;
    for (int32_t s = first; s < end; s++) {
        int32_t work = events->work_of[s];
        bool is_operator = work >= 0 && events->works[work].is_run;
        if (!is_operator && work != EVENT_COLLECTIVE) continue;
        bool is_continued = is_operator && events->works[work].is_continued;
        if (is_operator && events->works[work].waits && !is_continued && host < finish) host = finish;
        if (!is_continued) host += events->steps[s].times * type->host_kernel_seconds;
        double seconds = seconds_of_ticks(is_operator ? ticks[s] : self->collectives[s][0]);
        finish = (finish > host ? finish : host) + seconds;
        device += seconds;
        if (is_operator) last = s;
    }
    if (last >= 0) ticks[last] += ticks_of_seconds(finish - device);
}

static void count_host(StageCosts *self, int32_t program) {
    const ProgramEvents *events = &self->programs[program];
    for (int32_t t = 0; t < self->cluster->type_count; t++) {
        const ClusterDeviceType *type = &self->cluster->types[t];
        Ticks *ticks = &self->ticks[program][(size_t)t * (size_t)events->step_count];
        if (type->host_kernel_seconds <= 0) continue;
        for (int32_t p = 0; p < self->of_all.piece_count; p++) {
            const StagePiece *piece = &self->of_all.pieces[p];
            for (int32_t s = piece->first, first = s; s < piece->end && !piece->transfer; s++) {
                bool is_last =
                    s + 1 == piece->end || events->steps[s + 1].program != events->steps[s].program;
                if (!is_last) continue;
                wait_for_host(ticks, self, events, type, first, s + 1);
                first = s + 1;
            }
        }
    }
}

AmStatus stage_costs_price(StageCosts *self, Arena *arena, AmError *error) {
    for (int32_t program = 1; program < self->program_count; program++)
        if (self->programs[program].step_count != self->programs[0].step_count)
            return am_fail(error, AM_ERROR_INTERNAL, "", "devices of a stage have different programs");
    /* The groups of every set of axes that a collective spans. */
    const ProgramEvents *costs = &self->programs[0];
    for (int32_t s = 0; s < costs->step_count; s++) {
        if (costs->work_of[s] != EVENT_COLLECTIVE) continue;
        uint32_t axes = costs->steps[s].instruction->collective->axes;
        if (self->partitions[axes].group_count > 0) continue;
        TRY(collective_partition(&self->partitions[axes], arena, self->cluster, &self->stage->mesh,
                                 self->stage->devices, axes, error));
        self->axes_used[self->axes_count++] = axes;
    }
    self->is_uniform = is_uniform(self);
    TRY(price_collectives(self, arena, error));
    for (int32_t program = 0; program < self->program_count; program++) count_host(self, program);
    return AM_OK;
}

double stage_costs_busy(const StageCosts *self, int32_t device) {
    const ProgramEvents *events = stage_costs_of(self, device);
    const Ticks *ticks = stage_costs_ticks(self, device);
    double computed = 0, communicated = 0;
    for (int32_t s = 0; s < events->step_count; s++)
        if (events->work_of[s] == EVENT_COLLECTIVE) communicated += events->iterations[s] * ticks[s];
        else computed += events->iterations[s] * ticks[s];
    return seconds_of_ticks(computed > communicated ? computed : communicated);
}

void stage_costs_add_collectives(const StageCosts *self, CollectivePrice *by_kind) {
    const ProgramEvents *costs = &self->programs[0];
    for (int32_t s = 0; s < costs->step_count; s++) {
        if (costs->work_of[s] != EVENT_COLLECTIVE) continue;
        const ProgramCollective *collective = costs->steps[s].instruction->collective;
        const CollectivePartition *partition = &self->partitions[collective->axes];
        CollectivePrice *price = &by_kind[collective->kind];
        double times = costs->iterations[s] * costs->steps[s].times;
        Ticks slowest = 0;
        for (int32_t g = 0; g < (self->is_uniform ? 1 : partition->group_count); g++)
            if (self->collectives[s][g] > slowest) slowest = self->collectives[s][g];
        price->count += (int64_t)rint(times);
        price->tensor_bytes += times * costs->tensor_bytes[s];
        price->sent_bytes +=
            times * collective_sent_bytes(collective_priced_kind(costs->steps[s].instruction),
                                          costs->tensor_bytes[s], partition->group_size);
        price->seconds += costs->iterations[s] * seconds_of_ticks(slowest);
    }
}
