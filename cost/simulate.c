/* Simulation: every device has a clock; steps advance it.
 *
 * A step that computes adds its seconds on the device's type. A collective
 * starts when the last device of its group arrives and ends for all of them
 * together; what a device waited is idle time, and so is what is left at the
 * end of the step, which is over when the last device is done. On equal devices
 * nobody waits and the step is the sum that price_program() gives. What a loop
 * runs is taken step by step, each with all its times at once.
 *
 * With equal shares all devices run the program of the stage's first device, so
 * it is lowered once; unequal shares are lowered for each device.
 */
#include "cost/simulate.h"

#include <string.h>

#include "cost/useful.h"
#include "propagation/lower.h"

/* One distinct program: seconds of its steps on each device type. */
typedef struct LoweredCosts {
    ExecutedStep *steps;
    int32_t step_count;
    double *seconds; /* [cluster type * (step_count + 1) + step]: all times; the last entry is the updates */
    double *tensor_bytes; /* [step] of collectives, each time */
    MemoryUse memory;
    double flops;
} LoweredCosts;

typedef struct Simulator {
    Arena *arena;
    const PlanContext *context;
    const Cluster *cluster;
    const PlanStage *stage;
    Simulation *simulation;
    const Program *program; /* of the first device: the steps that all share */
    LoweredCosts *costs;    /* [1] or [device] */
    bool is_equal;          /* one program for all */
    double *clock;          /* [device] */
} Simulator;

static AmStatus cost_program(Simulator *self, LoweredCosts *costs, const Program *program, AmError *error) {
    const Cluster *cluster = self->cluster;
    ExecutedStep *steps;
    int32_t count;
    const ClusterDeviceType *type = cluster_device_type(cluster, self->stage->devices[0]);
    TRY(executed_steps(&steps, &count, self->arena, program, type, error));
    size_t row = (size_t)count + 1;
    costs->steps = steps;
    costs->step_count = count;
    costs->seconds = ARENA_ARRAY(self->arena, double, row *(size_t)cluster->type_count);
    costs->tensor_bytes = ARENA_ARRAY(self->arena, double, row);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)row);
    for (int32_t s = 0; s < count; s++) {
        const ProgramInstruction *collective = executed_collective(&steps[s]);
        if (collective) {
            costs->tensor_bytes[s] = collective_tensor_bytes(steps[s].program, collective);
            continue;
        }
        for (int32_t t = 0; t < cluster->type_count; t++)
            costs->seconds[(size_t)t * row + (size_t)s] =
                steps[s].times * executed_seconds(&steps[s], &cluster->types[t]);
        if (steps[s].step == steps[s].program->step_count) continue;
        OperatorWork work;
        operator_work(&work, steps[s].program, &steps[s].program->steps[steps[s].step]);
        costs->flops += steps[s].times * work.flops;
    }
    for (int32_t t = 0; t < cluster->type_count; t++)
        costs->seconds[(size_t)t * row + row - 1] = price_updates(program, &cluster->types[t]);
    return memory_use(&costs->memory, program, error);
}

static AmStatus lower_all(Simulator *self, AmError *error) {
    const Mesh *mesh = &self->stage->mesh;
    Completion *completion;
    self->is_equal = true;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].shares) self->is_equal = false;
    int32_t count = self->is_equal ? 1 : mesh->device_count;
    self->costs = ARENA_ARRAY(self->arena, LoweredCosts, count);
    if (!self->costs) return am_fail_memory(error, count);
    TRY(plan_complete(&completion, self->arena, self->context, self->stage, error));
    for (int32_t device = 0; device < count; device++) {
        Program *program;
        TRY(plan_lower(&program, self->arena, self->context, completion, device, error));
        TRY(cost_program(self, &self->costs[device], program, error));
        if (device == 0) self->program = program;
        if (self->costs[device].step_count != self->costs[0].step_count)
            return am_fail(error, AM_ERROR_INTERNAL, "", "devices 0 and %d have different programs", device);
    }
    price_warn_types(&self->simulation->warnings, self->program, self->cluster);
    return AM_OK;
}

static const LoweredCosts *costs_of(const Simulator *self, int32_t device) {
    return &self->costs[self->is_equal ? 0 : device];
}

static void compute(Simulator *self, int32_t step) {
    size_t row = (size_t)self->costs[0].step_count + 1;
    for (int32_t d = 0; d < self->stage->mesh.device_count; d++) {
        const ClusterDeviceType *type = cluster_device_type(self->cluster, self->stage->devices[d]);
        size_t t = (size_t)(type - self->cluster->types);
        double seconds = costs_of(self, d)->seconds[t * row + (size_t)step];
        self->clock[d] += seconds;
        self->simulation->devices[d].compute_seconds += seconds;
    }
}

/* All groups of the partition meet and move their tensors. */
static void communicate(Simulator *self, int32_t step, const CollectivePartition *partition) {
    const ExecutedStep *executed = &self->costs[0].steps[step];
    ProgramCollectiveKind kind = executed_collective(executed)->collective->kind;
    CollectivePrice *total = &self->simulation->collectives[kind];
    double slowest = 0, first_bytes = costs_of(self, 0)->tensor_bytes[step];
    for (int32_t g = 0; g < partition->group_count; g++) {
        const int32_t *members = &partition->members[g * partition->group_size];
        double start = 0, bytes = 0;
        for (int32_t k = 0; k < partition->group_size; k++) {
            double wanted = costs_of(self, members[k])->tensor_bytes[step];
            if (self->clock[members[k]] > start) start = self->clock[members[k]];
            if (wanted > bytes) bytes = wanted;
        }
        double seconds =
            executed->times * collective_seconds(kind, bytes, &partition->topologies[g], self->cluster);
        if (seconds > slowest) slowest = seconds;
        for (int32_t k = 0; k < partition->group_size; k++) {
            SimulatedDevice *device = &self->simulation->devices[members[k]];
            device->idle_seconds += start - self->clock[members[k]];
            device->communication_seconds += seconds;
            self->clock[members[k]] = start + seconds;
        }
    }
    total->count += (int64_t)executed->times;
    total->tensor_bytes += executed->times * first_bytes;
    total->sent_bytes += executed->times * collective_sent_bytes(kind, first_bytes, partition->group_size);
    total->seconds += slowest;
}

static AmStatus run(Simulator *self, AmError *error) {
    const LoweredCosts *costs = &self->costs[0];
    const Mesh *mesh = &self->stage->mesh;
    CollectivePartition partitions[1 << MESH_MAX_AXES] = {{0}};
    for (int32_t s = 0; s < costs->step_count; s++) {
        const ProgramInstruction *collective = executed_collective(&costs->steps[s]);
        if (!collective) {
            compute(self, s);
            continue;
        }
        CollectivePartition *partition = &partitions[collective->collective->axes];
        if (partition->group_count == 0)
            TRY(collective_partition(partition, self->arena, self->cluster, mesh, self->stage->devices,
                                     collective->collective->axes, error));
        communicate(self, s, partition);
    }
    compute(self, costs->step_count);
    for (int32_t d = 0; d < mesh->device_count; d++)
        if (self->clock[d] > self->simulation->step_seconds) self->simulation->step_seconds = self->clock[d];
    for (int32_t d = 0; d < mesh->device_count; d++)
        self->simulation->devices[d].idle_seconds += self->simulation->step_seconds - self->clock[d];
    return AM_OK;
}

static AmStatus check_devices(const Plan *plan, const Cluster *cluster, AmError *error) {
    if (plan->stage_count != 1)
        return am_fail(error, AM_ERROR_INPUT, "", "the plan has %d stages; plans of one stage are simulated",
                       plan->stage_count);
    const PlanStage *stage = &plan->stages[0];
    for (int32_t d = 0; d < stage->mesh.device_count; d++)
        if (stage->devices[d] < 0 || stage->devices[d] >= cluster->device_count)
            return am_fail(error, AM_ERROR_INPUT, "", "the plan uses device %d; cluster %s has %d devices",
                           stage->devices[d], cluster->name, cluster->device_count);
    return AM_OK;
}

static void describe_devices(Simulator *self) {
    Simulation *simulation = self->simulation;
    double fullest = -1;
    for (int32_t d = 0; d < simulation->device_count; d++) {
        SimulatedDevice *device = &simulation->devices[d];
        device->device = self->stage->devices[d];
        device->name = cluster_device_name(self->cluster, self->arena, device->device);
        device->memory = costs_of(self, d)->memory;
        device->memory_bytes = cluster_device_type(self->cluster, device->device)->memory_bytes;
        simulation->executed_flops += costs_of(self, d)->flops;
        double fullness = (double)device->memory.peak_bytes / (double)device->memory_bytes;
        if (fullness <= fullest) continue;
        fullest = fullness;
        simulation->fit = memory_fit(device->memory.peak_bytes, self->cluster, &device->device, 1,
                                     simulation->memory_fraction);
    }
}

AmStatus simulate_plan(Simulation **simulation, Arena *arena, const PlanContext *context, const Plan *plan,
                       const Cluster *cluster, double memory_fraction, AmError *error) {
    TRY(check_devices(plan, cluster, error));
    const PlanStage *stage = &plan->stages[0];
    int32_t count = stage->mesh.device_count;
    Simulation *result = ARENA_ARRAY(arena, Simulation, 1);
    SimulatedDevice *devices = ARENA_ARRAY(arena, SimulatedDevice, count);
    Simulator self = {.arena = arena,
                      .context = context,
                      .cluster = cluster,
                      .stage = stage,
                      .simulation = result,
                      .clock = ARENA_ARRAY(arena, double, count)};
    if (arena->failed) return am_fail_memory(error, count);
    *result = (Simulation){.module_name = plan->module_name,
                           .cluster_name = cluster->name,
                           .device_count = count,
                           .devices = devices,
                           .memory_fraction = memory_fraction,
                           .warnings = {.arena = arena}};
    TRY(lower_all(&self, error));
    TRY(run(&self, error));
    UsefulWork work;
    TRY(useful_work(&work, context->rules, error));
    result->flops = work.flops;
    describe_devices(&self);
    *simulation = result;
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

AmStatus simulation_predict(Plan *plan, Arena *arena, const Simulation *simulation, AmError *error) {
    plan->predicted = ARENA_ARRAY(arena, PlanDevicePrediction, simulation->device_count);
    if (!plan->predicted) return am_fail_memory(error, simulation->device_count);
    plan->predicted_step_seconds = simulation->step_seconds;
    plan->device_count = simulation->device_count;
    for (int32_t d = 0; d < simulation->device_count; d++) {
        const SimulatedDevice *device = &simulation->devices[d];
        plan->predicted[d] = (PlanDevicePrediction){.peak_bytes = device->memory.peak_bytes,
                                                    .weights_bytes = device->memory.weights_bytes,
                                                    .gradients_bytes = device->memory.gradients_bytes,
                                                    .optimizer_bytes = device->memory.optimizer_bytes,
                                                    .activation_bytes = device->memory.activation_bytes,
                                                    .compute_seconds = device->compute_seconds,
                                                    .communication_seconds = device->communication_seconds,
                                                    .idle_seconds = device->idle_seconds};
    }
    return AM_OK;
}
