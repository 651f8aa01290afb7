/* Price of a step: the time of a device for its operators and collectives, one stream of each
 * (device_streams.h).
 *
 * On devices without overlap it is the sum of all operators, collectives and copies of updates. If
 * devices of several types run equal programs, the slowest type counts, because every collective
 * waits for it. If the groups of a collective differ in their position in the cluster, the slowest
 * group counts. Steps in a loop count once per trip. With equal devices the price equals the
 * simulated time, to the last bit. Memory is the program's allocation, packed by the buffer planner
 * by lifetimes, and the allocation of loop bodies.
 */
#include "cost/step/price.h"

#include "cost/step/device_streams.h"
#include "cost/step/memory.h"

/* State derived from mesh, cluster and devices for one pricing. */
typedef struct Pricer {
    const Program *program;
    const Cluster *cluster;
    const int32_t *devices;
    Arena *arena;
    const ClusterDeviceType **types; /* the different types that run the program */
    DeviceStreams *streams;          /* [type_count] */
    int32_t type_count;
    CollectivePartition partitions[1 << MESH_MAX_AXES]; /* by axes; built at the first use */
} Pricer;

/* Lists the types of the devices that run the program: each has streams of its own. */
static AmStatus list_types(Pricer *self, const Program *program, const Cluster *cluster,
                           const int32_t *devices, Arena *arena, AmError *error) {
    *self = (Pricer){.program = program, .cluster = cluster, .devices = devices, .arena = arena};
    const Mesh *mesh = program->mesh;
    self->types = ARENA_ARRAY(arena, const ClusterDeviceType *, cluster->type_count);
    self->streams = ARENA_ARRAY(arena, DeviceStreams, cluster->type_count);
    if (arena->failed) return am_fail_memory(error, cluster->type_count);
    if (!mesh_has_equal_shares(mesh)) {
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

/* Finds the seconds of a collective in the slowest group of its partition. */
static AmStatus price_collective(Pricer *self, const ProgramInstruction *instruction, double bytes,
                                 double *seconds, AmError *error) {
    const ProgramCollective *collective = instruction->collective;
    ProgramCollectiveKind kind = collective_priced_kind(instruction);
    CollectivePartition *partition = &self->partitions[collective->axes];
    if (program_is_host_copy(collective)) {
        int32_t count = self->program->mesh->device_count;
        *seconds = host_copy_seconds(bytes, self->cluster, self->devices, count);
        return memory_check_host(self->cluster, self->devices, count, error);
    }
    *seconds = 0;
    if (partition->group_count == 0)
        TRY(collective_partition(partition, self->arena, self->cluster, self->program->mesh, self->devices,
                                 collective->axes, error));
    for (int32_t k = 0; k < partition->distinct_count; k++) {
        double group = collective_seconds(kind, bytes, &partition->distinct[k], self->cluster);
        if (group > *seconds) *seconds = group;
    }
    return AM_OK;
}

double price_updates(const Program *program, const ClusterDeviceType *type) {
    double seconds = 0;
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        if (program->execution.updates[k].in_place) continue;
        double bytes =
            2 * (double)ir_shape_bytes(&program->values[program->execution.updates[k].value].shape);
        OperatorWork copy = {.unit = OPERATOR_VECTOR, .bytes = bytes, .is_run = true};
        seconds += operator_seconds(&copy, type);
    }
    return seconds;
}

/* Puts the collective on the streams of every type. */
static AmStatus communicate(Pricer *self, StepPrice *price, const ExecutedStep *steps, int32_t s,
                            AmError *error) {
    const ProgramInstruction *instruction = executed_collective(&steps[s]);
    double bytes = collective_tensor_bytes(steps[s].program, instruction), seconds;
    TRY(price_collective(self, instruction, bytes, &seconds, error));
    const ProgramCollective *collective = instruction->collective;
    CollectivePrice *kind = &price->collectives[collective->kind];
    kind->count += (int64_t)steps[s].times;
    kind->tensor_bytes += steps[s].times * bytes;
    kind->sent_bytes += steps[s].times * collective_sent_bytes(collective_priced_kind(instruction), bytes,
                                                               collective->group_count);
    kind->seconds += steps[s].times * seconds;
    Ticks ticks = ticks_of_seconds(steps[s].times * seconds);
    StreamLayers layers = executed_layers_beside(&steps[s]);
    for (int32_t t = 0; t < self->type_count; t++)
        streams_communicate(&self->streams[t], s, streams_ready_for_layers(&self->streams[t], ticks, layers),
                            ticks, layers, -1);
    return AM_OK;
}

/* Operators and copies of updates on the streams of every type. */
static void compute_step(Pricer *self, StepPrice *price, const ExecutedStep *steps, int32_t s) {
    const ExecutedStep *step = &steps[s];
    OperatorWork work;
    executed_work(&work, step);
    price->flops += step->times * work.flops;
    price->bytes += step->times * work.bytes;
    for (int32_t t = 0; t < self->type_count; t++) {
        double seconds = executed_work_seconds(step, &work, self->types[t]);
        executed_set_layers(&self->streams[t], step);
        Moment start = streams_ready(&self->streams[t], step->wait > 0 ? s - step->wait : -1);
        streams_compute(&self->streams[t], start, ticks_of_seconds(step->times * seconds), -1);
    }
}

static void join_streams(Pricer *self) {
    for (int32_t t = 0; t < self->type_count; t++) streams_join(&self->streams[t]);
}

AmStatus price_program(StepPrice *price, const Program *program, const Cluster *cluster,
                       const int32_t *devices, AmError *error) {
    ArenaMark mark = arena_mark(program->arena);
    Pricer pricer;
    *price = (StepPrice){0};
    AmStatus status;
    TRY_OR_FAIL(list_types(&pricer, program, cluster, devices, program->arena, error));
    ExecutedStep *steps;
    int32_t count, collectives = 0;
    TRY_OR_FAIL(executed_steps(&steps, &count, program->arena, program, pricer.types[0], error));
    for (int32_t s = 0; s < count; s++) collectives += executed_collective(&steps[s]) != NULL;
    for (int32_t t = 0; t < pricer.type_count; t++)
        TRY_OR_FAIL(streams_open(&pricer.streams[t], program->arena, collectives,
                                 pricer.types[t]->overlaps_communication, error));
    for (int32_t s = 0; s < count; s++) {
        if (s > 0 && steps[s].program != steps[s - 1].program) join_streams(&pricer);
        if (executed_collective(&steps[s])) TRY_OR_FAIL(communicate(&pricer, price, steps, s, error));
        else compute_step(&pricer, price, steps, s);
    }
    const ExecutedStep updates = {.program = program, .step = program->execution.step_count, .times = 1};
    compute_step(&pricer, price, &updates, 0);
    join_streams(&pricer);
    for (int32_t t = 0; t < pricer.type_count; t++) {
        const DeviceStreams *streams = &pricer.streams[t];
        price->step_seconds = fmax(price->step_seconds, seconds_of_ticks(streams->compute.at));
        price->compute_seconds = fmax(price->compute_seconds, seconds_of_ticks(streams->totals.computed));
        price->communication_seconds = seconds_of_ticks(streams->totals.communicated);
    }
    price->peak_bytes = program->allocation.bytes;
    price->memory_bytes = cluster_least_memory(cluster, devices, program->mesh->device_count);
fail:
    arena_release(program->arena, mark);
    return status;
}

AmStatus price_steps(StepCost **costs, int32_t *count, Arena *arena, const Program *program,
                     const Cluster *cluster, const int32_t *devices, AmError *error) {
    Pricer pricer;
    ExecutedStep *steps;
    TRY(list_types(&pricer, program, cluster, devices, arena, error));
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
        if (steps[s].step == steps[s].program->execution.step_count) continue;
        OperatorWork work;
        operator_work(&work, steps[s].program, &steps[s].program->execution.steps[steps[s].step]);
        cost->flops = work.flops;
        cost->bytes = work.bytes;
    }
    return AM_OK;
}

void price_warn_types(AmWarnings *warnings, const Program *program, const Cluster *cluster) {
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        if (step->fusion >= 0) continue; /* a vector operator, as most others */
        const ProgramInstruction *instruction = &program->instructions[step->instruction];
        OperatorWork work = {.unit = operator_unit(instruction->opcode)};
        if (work.unit != OPERATOR_VECTOR || instruction->regions.in_blocks)
            operator_work(&work, program, step);
        if (work.is_run && work.unit != OPERATOR_VECTOR) {
            for (int32_t t = 0; t < cluster->type_count; t++)
                if (!cluster->types[t].named[work.type])
                    am_warn(warnings,
                            "cluster %s: device type %s has no FLOP/s for %s; those of another type are used "
                            "(flops_per_second of the cluster file sets them)",
                            cluster->name, cluster->types[t].name, dtype_name(work.type));
        }
        for (int32_t k = 0; k < instruction->regions.count; k++)
            price_warn_types(warnings, instruction->regions.programs[k], cluster);
    }
}
