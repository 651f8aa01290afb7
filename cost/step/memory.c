/* Memory by kind, from the lifetimes of the buffer plan.
 *
 * Parameters count by their role. A temporary lives from the step that allocates it to the last
 * step that reads it. It is a gradient if it comes from a backward instruction whose value reaches
 * an update: an instruction with a user in the optimizer's phase, or, upwards, one that reaches
 * such an instruction only through operators that keep its elements (element-wise, transpose,
 * reshape, convert). Partial sums and shards of a gradient have its origin and count as gradients.
 * Temporaries of the update itself count as activations.
 */
#include "cost/step/memory.h"

#include <math.h>
#include <stdlib.h>

#include "cost/step/xla_memory.h"

const char *memory_kind_name(MemoryKind kind) {
    static const char *const names[MEMORY_KINDS] = {"weight",    "optimizer",  "parameter", "gradient",
                                                    "in flight", "collective", "activation"};
    return names[kind];
}

enum { USED_BY_UPDATE = 1, USED_BY_OTHERS = 2 };

/* Operators that pass a gradient on without taking it apart. */
static bool keeps_elements(const IrModule *module, int32_t producer, int32_t user) {
    const IrInstruction *instruction = &module->instructions[user];
    if (ir_is_product(instruction->opcode)) return false;
    const IrShape *from = &module->instructions[producer].shape, *to = &instruction->shape;
    return from->type != DTYPE_TUPLE && to->type != DTYPE_TUPLE &&
           ir_shape_elements(from) == ir_shape_elements(to);
}

/* flags[i]: who uses entry instruction i; a gradient is used by updates alone. */
uint8_t *memory_find_gradients(Arena *arena, const IrModule *module, const IrRoles *roles) {
    int32_t count = module->computations[module->entry].count;
    uint8_t *uses = ARENA_ARRAY(arena, uint8_t, count + 1);
    for (int32_t i = count - 1; uses && i >= 0; i--) {
        const IrInstruction *user = &module->instructions[i];
        bool passes_on = roles->phases[i] == IR_PHASE_BACKWARD && uses[i] == USED_BY_UPDATE;
        for (int32_t k = 0; k < user->operand_count; k++) {
            int32_t producer = user->operands[k];
            bool towards_update =
                roles->phases[i] == IR_PHASE_OPTIMIZER || (passes_on && keeps_elements(module, producer, i));
            uses[producer] |= towards_update ? USED_BY_UPDATE : USED_BY_OTHERS;
        }
    }
    return uses;
}

/* A storage that is there at the peak step. */
typedef struct LiveStorage {
    int32_t value, made;
    int64_t offset;
} LiveStorage;

/* Orders by offset; at one offset the latest allocation comes first. */
static int by_offset(const void *a, const void *b) {
    const LiveStorage *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->made != y->made) return x->made > y->made ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

/* Lists the live values at the peak step besides parameters, in the program's arena: a result that
 * overwrites an operand replaces it. */
static AmStatus find_live(LiveStorage **live, int32_t *count, const Program *program, AmError *error) {
    Arena *arena = program->arena;
    int32_t *made = ARENA_ARRAY(arena, int32_t, program->value_count + 1), kept = 0;
    int32_t *last = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    *live = ARENA_ARRAY(arena, LiveStorage, program->value_count + 1);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, program->value_count);
    if (program->allocation.xla) {
        const XlaMemory *xla = program->allocation.xla;
        for (int32_t k = 0; k < xla->alive_count; k++)
            (*live)[(*count)++] = (LiveStorage){.value = xla->alive[k]};
        return AM_OK;
    }
    /* The first and the last step at which each storage is needed; -1 where never. */
    for (int32_t v = 0; v < program->value_count; v++) made[v] = last[v] = -1;
    for (int32_t place = 0; place < program->execution.step_count; place++) {
        const ProgramStep *step = &program->execution.steps[place];
        /* Joined loops are one moment, the first one's. */
        int32_t s = program_first_together(program, place);
        bool fused = step->fusion >= 0;
        const ProgramFusion *fusion = fused ? &program->execution.fusions[step->fusion] : NULL;
        const ProgramInstruction *instruction = fused ? NULL : &program->instructions[step->instruction];
        int32_t operands = fused ? fusion->input_count : instruction->operand_count;
        int32_t results = fused ? fusion->output_count : instruction->result_count;
        for (int32_t k = 0; k < results; k++) {
            int32_t value = fused ? fusion->output_values[k] : instruction->first_result + k;
            int32_t storage = program->values[value].storage;
            if (made[storage] < 0) made[storage] = s;
            last[storage] = s;
        }
        for (int32_t k = 0; k < operands; k++)
            last[program->values[fused ? fusion->inputs[k].value : instruction->operands[k]].storage] = s;
    }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0)
            last[program->values[program->outputs[k]].storage] = program->execution.step_count;
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *value = &program->values[v];
        bool in_memory =
            value->instruction >= 0 && value->kind != PROGRAM_VALUE_INTERNAL && value->offset >= 0;
        if (!in_memory || value->storage != v || made[v] < 0) continue;
        if (made[v] > program->allocation.peak_step || last[v] < program->allocation.peak_step) continue;
        (*live)[(*count)++] = (LiveStorage){v, made[v], value->offset};
    }
    qsort(*live, (size_t)*count, sizeof **live, by_offset);
    for (int32_t k = 0; k < *count; k++)
        if (kept == 0 || (*live)[kept - 1].offset != (*live)[k].offset) (*live)[kept++] = (*live)[k];
    *count = kept;
    return AM_OK;
}

/* Returns whether one loop made it and another one takes it. */
static bool is_in_flight(const Program *program, int32_t storage) {
    const ProgramInstruction *producer = &program->instructions[program->values[storage].instruction];
    if (producer->opcode != IR_WHILE) return false;
    for (int32_t s = program->values[storage].instruction + 1; s < program->instruction_count; s++) {
        const ProgramInstruction *user = &program->instructions[s];
        for (int32_t k = 0; user->opcode == IR_WHILE && k < user->operand_count; k++)
            if (program->values[user->operands[k]].storage == storage) return true;
    }
    return false;
}

/* Returns the kind of a value. `gradients`: NULL in a loop's body, whose instructions have no phase. */
static MemoryKind kind_of(const Program *program, int32_t storage, const uint8_t *gradients) {
    const ProgramValue *value = &program->values[storage];
    if (value->instruction < 0) return MEMORY_ACTIVATION; /* the copy of a parameter */
    if (gradients && program->roles->phases[value->origin] == IR_PHASE_BACKWARD &&
        (gradients[value->origin] & USED_BY_UPDATE))
        return MEMORY_GRADIENT;
    if (program->instructions[value->instruction].kind == PROGRAM_COLLECTIVE) return MEMORY_COLLECTIVE;
    return is_in_flight(program, storage) ? MEMORY_IN_FLIGHT : MEMORY_ACTIVATION;
}

static AmStatus add_live(MemoryUse *use, const Program *program, const uint8_t *gradients, AmError *error) {
    LiveStorage *live;
    int32_t count;
    if (!gradients) gradients = memory_find_gradients(program->arena, program->module, program->roles);
    if (!gradients) return am_fail_memory(error, 0);
    TRY(find_live(&live, &count, program, error));
    int64_t bytes[MEMORY_KINDS] = {0};
    for (int32_t k = 0; k < count; k++)
        bytes[kind_of(program, live[k].value, gradients)] += program->values[live[k].value].bytes;
    use->gradients_bytes = bytes[MEMORY_GRADIENT];
    use->in_flight_bytes = bytes[MEMORY_IN_FLIGHT];
    use->collective_bytes = bytes[MEMORY_COLLECTIVE];
    return AM_OK;
}

AmStatus memory_use(MemoryUse *use, const Program *program, const uint8_t *gradients, AmError *error) {
    ArenaMark mark = arena_mark(program->arena);
    const XlaMemory *xla = program->allocation.xla;
    *use = (MemoryUse){.peak_bytes = xla ? xla->peak_bytes : program->allocation.bytes,
                       .host_bytes = program->allocation.host_bytes};
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        if (program->parameters[k] < 0 || program->values[program->parameters[k]].is_on_host) continue;
        int64_t bytes = program->values[program->parameters[k]].bytes;
        IrRole role = program->roles->parameters[k].role;
        if (role == IR_ROLE_WEIGHT) use->weights_bytes += bytes;
        else if (role == IR_ROLE_OPTIMIZER) use->optimizer_bytes += bytes;
    }
    AmStatus status = AM_OK;
    if (xla && xla->has_functions) {
        use->gradients_bytes = xla->gradients_bytes;
        use->in_flight_bytes = xla->kept_bytes;
    } else {
        status = add_live(use, program, gradients, error);
    }
    use->activation_bytes =
        use->peak_bytes - use->weights_bytes - use->optimizer_bytes - use->gradients_bytes;
    int64_t spare_bytes = xla ? 0 : program->spare_bytes; /* XLA's figure has none */
    use->spare_bytes = spare_bytes < use->activation_bytes ? spare_bytes : use->activation_bytes;
    arena_release(program->arena, mark);
    return status;
}

/* Keeps the largest. */
static void add_tensor(MemoryPeak *peak, const Program *program, int32_t value, MemoryKind kind) {
    const MemoryTensor tensor = {program, value, kind, program->values[value].bytes};
    int32_t at = peak->tensor_count;
    while (at > 0 && peak->tensors[at - 1].bytes < tensor.bytes) at--;
    if (at == MEMORY_MOST_TENSORS) return;
    if (peak->tensor_count < MEMORY_MOST_TENSORS) peak->tensor_count++;
    for (int32_t k = peak->tensor_count - 1; k > at; k--) peak->tensors[k] = peak->tensors[k - 1];
    peak->tensors[at] = tensor;
}

static int64_t own_bytes(const Program *region) {
    return region->allocation.bytes - region->allocation.parameter_bytes;
}

/* Returns the region with most values of its own, which decides the workspace; NULL: none has any. */
static const Program *fullest_region(const ProgramInstruction *instruction) {
    const Program *fullest = NULL;
    int64_t most = 0;
    for (int32_t k = 0; k < instruction->regions.count && !instruction->regions.in_blocks; k++) {
        const Program *region = instruction->regions.programs[k];
        int64_t own = own_bytes(region);
        if (own <= most) continue;
        most = own;
        fullest = region;
    }
    return fullest;
}

/* Adds the live values of a program at its peak, and of the loops that run then; the instant is
 * that of the last and innermost one. */
static AmStatus add_program(MemoryPeak *peak, const Program *program, const uint8_t *gradients,
                            AmError *error) {
    LiveStorage *live;
    int32_t count;
    TRY(find_live(&live, &count, program, error));
    for (int32_t k = 0; k < count; k++)
        add_tensor(peak, program, live[k].value, kind_of(program, live[k].value, gradients));
    peak->program = program;
    peak->step = program->allocation.xla ? program->allocation.xla->step : program->allocation.peak_step;
    if (program->allocation.xla || peak->step >= program->execution.step_count) return AM_OK;
    int32_t first = program_first_together(program, program->allocation.peak_step);
    const Program *fullest = NULL;
    for (int32_t s = first; s < first + program_steps_together(program, first); s++) {
        if (program->execution.steps[s].fusion >= 0) continue;
        const Program *region =
            fullest_region(&program->instructions[program->execution.steps[s].instruction]);
        if (region && program->allocation.shares_workspaces) {
            if (!fullest || own_bytes(region) > own_bytes(fullest)) fullest = region;
        } else if (region) {
            TRY(add_program(peak, region, NULL, error));
        }
    }
    return fullest ? add_program(peak, fullest, NULL, error) : AM_OK;
}

AmStatus memory_find_peak(MemoryPeak *peak, const Program *program, AmError *error) {
    ArenaMark mark = arena_mark(program->arena);
    *peak = (MemoryPeak){.program = program, .step = program->allocation.peak_step};
    const uint8_t *gradients = memory_find_gradients(program->arena, program->module, program->roles);
    AmStatus status = gradients ? AM_OK : am_fail_memory(error, 0);
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        IrRole role = program->roles->parameters[k].role;
        MemoryKind kind = role == IR_ROLE_WEIGHT      ? MEMORY_WEIGHT
                          : role == IR_ROLE_OPTIMIZER ? MEMORY_OPTIMIZER
                                                      : MEMORY_PARAMETER;
        bool is_here = program->parameters[k] >= 0 && !program->values[program->parameters[k]].is_on_host;
        if (is_here) add_tensor(peak, program, program->parameters[k], kind);
    }
    if (status == AM_OK) status = add_program(peak, program, gradients, error);
    arena_release(program->arena, mark);
    return status;
}

double memory_usable(const Cluster *cluster, const int32_t *devices, int32_t count, double fraction) {
    return fraction * (double)cluster_least_memory(cluster, devices, count);
}

MemoryFit memory_fit(int64_t peak_bytes, const Cluster *cluster, const int32_t *devices, int32_t count,
                     double fraction) {
    MemoryFit fit = {.needed_bytes = peak_bytes, .device = devices[0]};
    int64_t least = cluster_device_type(cluster, fit.device)->memory_bytes;
    for (int32_t k = 1; k < count; k++) {
        int64_t bytes = cluster_device_type(cluster, devices[k])->memory_bytes;
        if (bytes >= least) continue;
        least = bytes;
        fit.device = devices[k];
    }
    fit.limit_bytes = (int64_t)memory_usable(cluster, &fit.device, 1, fraction);
    fit.needed_fraction = (double)peak_bytes / (double)least;
    fit.fits = peak_bytes <= fit.limit_bytes;
    return fit;
}

AmStatus memory_host_fit(HostFit *fit, Arena *arena, const int64_t *bytes, const int32_t *devices,
                         int32_t count, const Cluster *cluster, double fraction, AmError *error) {
    *fit = (HostFit){.fits = true};
    int64_t *of_server = ARENA_ARRAY(arena, int64_t, cluster->server_count);
    if (!of_server) return am_fail_memory(error, cluster->server_count);
    for (int32_t k = 0; k < count; k++) of_server[cluster->server_of[devices[k]]] += bytes[k];
    double fullest = 0;
    for (int32_t s = 0; s < cluster->server_count; s++) {
        int64_t memory = cluster->servers[s].host_memory_bytes;
        double share = of_server[s] == 0 ? 0 : memory > 0 ? (double)of_server[s] / (double)memory : INFINITY;
        if (share <= fullest) continue;
        fullest = share;
        *fit = (HostFit){.fits = share <= fraction,
                         .server = s,
                         .needed_bytes = of_server[s],
                         .limit_bytes = (int64_t)(fraction * (double)memory),
                         .memory_bytes = memory};
    }
    return AM_OK;
}

double memory_host_excess(const HostFit *fit) {
    if (fit->fits) return 0;
    return fmin((double)fit->needed_bytes / fmax((double)fit->limit_bytes, 1) - 1, 1e6);
}

AmStatus memory_check_host(const Cluster *cluster, const int32_t *devices, int32_t count, AmError *error) {
    for (int32_t k = 0; k < count; k++)
        if (cluster->servers[cluster->server_of[devices[k]]].host_bytes_per_second <= 0)
            return am_fail(
                error, AM_ERROR_INPUT, "",
                "cluster %.100s: device type %.100s has no host_bytes_per_second, and the plan has "
                "optimizer state in the host's memory",
                cluster->name, cluster_device_type(cluster, devices[k])->name);
    return AM_OK;
}

void memory_append_use(Text *text, int64_t needed, int64_t limit, int64_t memory) {
    double fraction = memory > 0 ? (double)limit / (double)memory : 0;
    text_append_bytes_size(text, (double)needed);
    text_append_string(text, " of ");
    text_append_bytes_size(text, (double)limit);
    text_append(text, " (%.3g of ", fraction);
    text_append_bytes_size(text, (double)memory);
    text_append_string(text, ")");
}

double memory_enough_fraction(const MemoryFit *fit, const Cluster *cluster) {
    double memory = (double)cluster_device_type(cluster, fit->device)->memory_bytes, scale = 1, digits;
    while (fit->needed_fraction * scale < 100 && scale < 1e15) scale *= 10;
    digits = floor(fit->needed_fraction * scale);
    while ((int64_t)(digits / scale * memory) < fit->needed_bytes) digits++;
    return digits / scale;
}

AmStatus memory_fail(const MemoryFit *fit, const Cluster *cluster, double fraction, AmError *error) {
    const ClusterDeviceType *type = cluster_device_type(cluster, fit->device);
    Text text = {0};
    if (fit->needed_bytes <= fit->limit_bytes && fit->host.needed_bytes > 0) {
        text_append(&text, "no plan fits: the optimizer state of the devices of server %d needs ",
                    fit->host.server);
        memory_append_use(&text, fit->host.needed_bytes, fit->host.limit_bytes, fit->host.memory_bytes);
        text_append_string(&text, " in the memory of their host");
        AmStatus lacks =
            am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", text.data ? text.data : "no plan fits");
        text_free(&text);
        return lacks;
    }
    text_append(&text, "no plan fits: device %d (%s, server %d) needs ", fit->device, type->name,
                cluster->server_of[fit->device]);
    text_append_bytes_size(&text, (double)fit->needed_bytes);
    text_append_string(&text, " and may use ");
    text_append_bytes_size(&text, (double)fit->limit_bytes);
    text_append(&text, " (memory fraction %g of ", fraction);
    text_append_bytes_size(&text, (double)type->memory_bytes);
    text_append_string(&text, "); ");
    double enough = memory_enough_fraction(fit, cluster);
    if (enough <= 1) {
        text_append(&text, "a memory fraction of %.3g would be enough", enough);
    } else {
        text_append_string(&text, "devices of ");
        /* The least number of bytes that is enough, rounded up to the three digits that are printed. */
        double bytes = (double)fit->needed_bytes / fraction + 1, digit = 1;
        while (bytes / digit >= 1000) digit *= 10;
        text_append_bytes_size(&text, ceil(bytes / digit) * digit);
        text_append_string(&text, " would be enough");
    }
    AmStatus status = am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", text.data ? text.data : "no plan fits");
    text_free(&text);
    return status;
}
