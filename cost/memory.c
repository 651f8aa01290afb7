/* Memory by kind, from the lifetimes of the buffer plan.
 *
 * Parameters count by their role. A temporary lives from the step that makes
 * its storage to the last step that reads it. It is a gradient if it comes from
 * a backward instruction whose value goes to an update: one with a user in the
 * optimizer's phase, and, upwards, what reaches such an instruction only
 * through operators that keep its elements (element-wise, transpose, reshape,
 * convert). A gradient's partial sums and shards have its origin and count too.
 * What the update itself makes on the way counts with the activations.
 */
#include "cost/memory.h"

#include <math.h>

enum { USED_BY_UPDATE = 1, USED_BY_OTHERS = 2 };

/* Operators that pass a gradient on without taking it apart. */
static bool keeps_elements(const IrModule *module, int32_t producer, int32_t user) {
    const IrInstruction *instruction = &module->instructions[user];
    if (instruction->opcode == IR_DOT || instruction->opcode == IR_CONVOLUTION) return false;
    const IrShape *from = &module->instructions[producer].shape, *to = &instruction->shape;
    return from->type != DTYPE_TUPLE && to->type != DTYPE_TUPLE &&
           ir_shape_elements(from) == ir_shape_elements(to);
}

/* flags[i]: who uses entry instruction i; a gradient is used by updates alone. */
static uint8_t *find_gradients(Arena *arena, const IrModule *module, const IrRoles *roles) {
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

/* First and last step at which each storage is needed; -1 where never. */
static void find_lifetimes(const Program *program, int32_t *made, int32_t *last) {
    for (int32_t v = 0; v < program->value_count; v++) made[v] = last[v] = -1;
    for (int32_t place = 0; place < program->step_count; place++) {
        const ProgramStep *step = &program->steps[place];
        /* Joined loops are one moment, the first one's. */
        int32_t s = program_first_together(program, place);
        bool fused = step->fusion >= 0;
        const ProgramFusion *fusion = fused ? &program->fusions[step->fusion] : NULL;
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
            last[program->values[program->outputs[k]].storage] = program->step_count;
}

/* Whether a result of the peak step works in the place of the operand at `offset`. */
static bool is_taken_over(const Program *program, int64_t offset) {
    const ProgramStep *step = &program->steps[program->peak_step];
    if (step->fusion < 0) return false;
    const ProgramFusion *fusion = &program->fusions[step->fusion];
    for (int32_t k = 0; k < fusion->output_count; k++)
        if (program->values[fusion->output_values[k]].offset == offset) return true;
    return false;
}

static void add_parameters(MemoryUse *use, const Program *program) {
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        if (program->parameters[k] < 0) continue;
        int64_t bytes = program->values[program->parameters[k]].bytes;
        IrRole role = program->roles->parameters[k].role;
        if (role == IR_ROLE_WEIGHT) use->weights_bytes += bytes;
        else if (role == IR_ROLE_OPTIMIZER) use->optimizer_bytes += bytes;
    }
}

int64_t memory_peak(const Program *program) {
    return program->allocation_bytes;
}

AmStatus memory_use(MemoryUse *use, const Program *program, AmError *error) {
    Arena *arena = program->arena;
    ArenaMark mark = arena_mark(arena);
    *use = (MemoryUse){.peak_bytes = memory_peak(program)};
    uint8_t *uses = find_gradients(arena, program->module, program->roles);
    int32_t *made = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    int32_t *last = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    if (arena->failed) {
        arena_release(arena, mark);
        return am_fail_memory(error, program->value_count);
    }
    find_lifetimes(program, made, last);
    add_parameters(use, program);
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *value = &program->values[v];
        bool in_memory = value->instruction >= 0 && value->kind != PROGRAM_VALUE_INTERNAL;
        if (!in_memory || value->storage != v || made[v] < 0) continue;
        if (made[v] > program->peak_step || last[v] < program->peak_step) continue;
        if (made[v] < program->peak_step && is_taken_over(program, value->offset)) continue;
        IrPhase phase = program->roles->phases[value->origin];
        if (phase == IR_PHASE_BACKWARD && (uses[value->origin] & USED_BY_UPDATE))
            use->gradients_bytes += value->bytes;
    }
    use->activation_bytes =
        use->peak_bytes - use->weights_bytes - use->optimizer_bytes - use->gradients_bytes;
    arena_release(arena, mark);
    return AM_OK;
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
    fit.limit_bytes = (int64_t)(fraction * (double)least);
    fit.needed_fraction = (double)peak_bytes / (double)least;
    fit.fits = peak_bytes <= fit.limit_bytes;
    return fit;
}

/* The least number of bytes at which `needed` fit, rounded up to the three digits that are printed. */
static double enough_bytes(int64_t needed, double fraction) {
    double bytes = (double)needed / fraction + 1, digit = 1;
    while (bytes / digit >= 1000) digit *= 10;
    return ceil(bytes / digit) * digit;
}

AmStatus memory_fail(const MemoryFit *fit, const Cluster *cluster, double fraction, AmError *error) {
    const ClusterDeviceType *type = cluster_device_type(cluster, fit->device);
    Text text = {0};
    text_append(&text, "no plan fits: device %d (%s, server %d) needs ", fit->device, type->name,
                cluster->server_of[fit->device]);
    text_append_bytes_size(&text, (double)fit->needed_bytes);
    text_append_string(&text, " and may use ");
    text_append_bytes_size(&text, (double)fit->limit_bytes);
    text_append(&text, " (memory fraction %g of ", fraction);
    text_append_bytes_size(&text, (double)type->memory_bytes);
    text_append_string(&text, "); ");
    if (fit->needed_fraction <= 1) {
        text_append(&text, "a memory fraction of %.3g would be enough", fit->needed_fraction + 0.0005);
    } else {
        text_append_string(&text, "devices of ");
        text_append_bytes_size(&text, enough_bytes(fit->needed_bytes, fraction));
        text_append_string(&text, " would be enough");
    }
    AmStatus status = am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", text.data ? text.data : "no plan fits");
    text_free(&text);
    return status;
}
