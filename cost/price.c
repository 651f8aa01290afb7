/* Price of a step: the sum of its operators and collectives.
 *
 *     step = sum of operator seconds + sum of collective seconds + copies of updates
 *
 * Nothing overlaps: a device computes or communicates, as the executor does,
 * which runs the steps in order. Where devices of several types run equal
 * programs the slowest type's sum counts, because every collective waits for
 * it; where the groups of a collective lie differently in the cluster, the
 * slowest group does. What a loop runs counts as often as it runs. Memory is the
 * program's allocation, which the buffer planner has already packed by
 * lifetimes, and what a loop's body holds.
 */
#include "cost/price.h"

#include "cost/memory.h"

/* What one pricing derives from mesh, cluster and devices. */
typedef struct Pricer {
    const Program *program;
    const Cluster *cluster;
    const int32_t *devices;
    Arena *arena;
    const ClusterDeviceType **types; /* the different types that run the program */
    double *seconds;                 /* [type_count] of computing */
    int32_t type_count;
    CollectivePartition partitions[1 << MESH_MAX_AXES]; /* by axes; built when first met */
} Pricer;

static bool has_equal_shares(const Mesh *mesh) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].shares) return false;
    return true;
}

static AmStatus begin(Pricer *self, const Program *program, const Cluster *cluster, const int32_t *devices,
                      Arena *arena, AmError *error) {
    *self = (Pricer){.program = program, .cluster = cluster, .devices = devices, .arena = arena};
    const Mesh *mesh = program->mesh;
    self->types = ARENA_ARRAY(arena, const ClusterDeviceType *, cluster->type_count);
    self->seconds = ARENA_ARRAY(arena, double, cluster->type_count);
    if (arena->failed) return am_fail_memory(error, cluster->type_count);
    if (!has_equal_shares(mesh)) {
        self->types[self->type_count++] = cluster_device_type(cluster, devices[program->device]);
        return AM_OK;
    }
    for (int32_t k = 0; k < mesh->device_count; k++) {
        const ClusterDeviceType *type = cluster_device_type(cluster, devices[k]);
        int32_t known = 0;
        while (known < self->type_count && self->types[known] != type) known++;
        if (known == self->type_count) self->types[self->type_count++] = type;
    }
    return AM_OK;
}

/* Seconds of a collective in the slowest group of its partition. */
static AmStatus price_collective(Pricer *self, const ProgramInstruction *instruction, double bytes,
                                 double *seconds, AmError *error) {
    const ProgramCollective *collective = instruction->collective;
    CollectivePartition *partition = &self->partitions[collective->axes];
    *seconds = 0;
    if (partition->group_count == 0)
        TRY(collective_partition(partition, self->arena, self->cluster, self->program->mesh, self->devices,
                                 collective->axes, error));
    for (int32_t k = 0; k < partition->distinct_count; k++) {
        double group = collective_seconds(collective->kind, bytes, &partition->distinct[k], self->cluster);
        if (group > *seconds) *seconds = group;
    }
    return AM_OK;
}

double price_updates(const Program *program, const ClusterDeviceType *type) {
    double seconds = 0;
    for (int32_t k = 0; k < program->update_count; k++) {
        if (program->updates[k].in_place) continue;
        double bytes = 2 * (double)ir_shape_bytes(&program->values[program->updates[k].value].shape);
        OperatorWork copy = {.unit = OPERATOR_VECTOR, .bytes = bytes, .is_run = true};
        seconds += operator_seconds(&copy, type);
    }
    return seconds;
}

static AmStatus price_all(Pricer *self, StepPrice *price, AmError *error) {
    const Program *program = self->program;
    ExecutedStep *steps;
    int32_t count;
    TRY(executed_steps(&steps, &count, self->arena, program, self->types[0], error));
    for (int32_t s = 0; s < count; s++) {
        const ExecutedStep *step = &steps[s];
        const ProgramInstruction *instruction = executed_collective(step);
        if (instruction) {
            CollectivePrice *kind = &price->collectives[instruction->collective->kind];
            double bytes = collective_tensor_bytes(step->program, instruction), seconds;
            TRY(price_collective(self, instruction, bytes, &seconds, error));
            kind->count += (int64_t)step->times;
            kind->tensor_bytes += step->times * bytes;
            kind->sent_bytes += step->times * collective_sent_bytes(instruction->collective->kind, bytes,
                                                                    instruction->collective->group_count);
            kind->seconds += step->times * seconds;
            price->communication_seconds += step->times * seconds;
            continue;
        }
        if (step->step < step->program->step_count) {
            OperatorWork work;
            operator_work(&work, step->program, &step->program->steps[step->step]);
            price->flops += step->times * work.flops;
            price->bytes += step->times * work.bytes;
            for (int32_t t = 0; t < self->type_count; t++)
                self->seconds[t] += step->times * operator_seconds(&work, self->types[t]);
        } else {
            for (int32_t t = 0; t < self->type_count; t++)
                self->seconds[t] += step->times * price_updates(step->program, self->types[t]);
        }
    }
    for (int32_t t = 0; t < self->type_count; t++) {
        double seconds = self->seconds[t] + price_updates(program, self->types[t]);
        if (seconds > price->compute_seconds) price->compute_seconds = seconds;
    }
    price->step_seconds = price->compute_seconds + price->communication_seconds;
    price->peak_bytes = memory_peak(program);
    price->memory_bytes = cluster_least_memory(self->cluster, self->devices, program->mesh->device_count);
    return AM_OK;
}

AmStatus price_program(StepPrice *price, const Program *program, const Cluster *cluster,
                       const int32_t *devices, AmError *error) {
    ArenaMark mark = arena_mark(program->arena);
    Pricer pricer;
    *price = (StepPrice){0};
    AmStatus status = begin(&pricer, program, cluster, devices, program->arena, error);
    if (status == AM_OK) status = price_all(&pricer, price, error);
    arena_release(program->arena, mark);
    return status;
}

AmStatus price_steps(StepCost **costs, int32_t *count, Arena *arena, const Program *program,
                     const Cluster *cluster, const int32_t *devices, AmError *error) {
    Pricer pricer;
    ExecutedStep *steps;
    TRY(begin(&pricer, program, cluster, devices, arena, error));
    TRY(executed_steps(&steps, count, arena, program, pricer.types[0], error));
    *costs = ARENA_ARRAY(arena, StepCost, *count + 1);
    if (!*costs) return am_fail_memory(error, *count);
    for (int32_t s = 0; s < *count; s++) {
        const ProgramInstruction *instruction = executed_collective(&steps[s]);
        StepCost *cost = &(*costs)[s];
        *cost = (StepCost){.executed = steps[s]};
        if (instruction) {
            cost->is_collective = true;
            cost->kind = instruction->collective->kind;
            cost->axes = instruction->collective->axes;
            cost->bytes = collective_tensor_bytes(steps[s].program, instruction);
            TRY(price_collective(&pricer, instruction, cost->bytes, &cost->seconds, error));
            continue;
        }
        for (int32_t t = 0; t < pricer.type_count; t++) {
            double seconds = executed_seconds(&steps[s], pricer.types[t]);
            if (seconds > cost->seconds) cost->seconds = seconds;
        }
        if (steps[s].step == steps[s].program->step_count) continue;
        OperatorWork work;
        operator_work(&work, steps[s].program, &steps[s].program->steps[steps[s].step]);
        cost->flops = work.flops;
        cost->bytes = work.bytes;
    }
    return AM_OK;
}

static void warn_type(AmWarnings *warnings, const OperatorWork *work, const Cluster *cluster) {
    if (!work->is_run || work->unit == OPERATOR_VECTOR) return;
    for (int32_t t = 0; t < cluster->type_count; t++)
        if (!cluster->types[t].named[work->type])
            am_warn(warnings, "cluster %s: device type %s names no FLOP/s for %s; a wider type's is used",
                    cluster->name, cluster->types[t].name, dtype_name(work->type));
}

void price_warn_types(AmWarnings *warnings, const Program *program, const Cluster *cluster) {
    for (int32_t s = 0; s < program->step_count; s++) {
        const ProgramStep *step = &program->steps[s];
        OperatorWork work;
        operator_work(&work, program, step);
        warn_type(warnings, &work, cluster);
        if (step->fusion >= 0) continue;
        const ProgramInstruction *instruction = &program->instructions[step->instruction];
        for (int32_t k = 0; k < instruction->region_count; k++)
            price_warn_types(warnings, instruction->regions[k], cluster);
    }
}
