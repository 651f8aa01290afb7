/* From a program's step to a kernel call: shapes, addresses, refusals.
 *
 * Nothing here knows a back end.
 */
#include "executor/kernels.h"

#include <stdio.h>
#include <string.h>

#include "automap_features.h"
#include "base/suggest.h"

AmStatus kernel_back_end_find(const KernelBackEnd **result, const char *name, AmError *error) {
    static const KernelBackEnd *const back_ends[] = {
        &kernels_cpu,
#ifdef AUTOMAP_HAVE_CUDA
        &kernels_cuda,
#endif
    };
    for (size_t k = 0; k < sizeof back_ends / sizeof *back_ends; k++)
        if (strcmp(back_ends[k]->name, name) == 0) {
            *result = back_ends[k];
            return AM_OK;
        }
    if (strcmp(name, "cuda") != 0) {
        static const char *const names[] = {"cpu", "cuda"};
        char hint[SUGGEST_HINT_BYTES];
        suggest_hint(hint, name, names, sizeof names / sizeof *names);
        return am_fail(error, AM_ERROR_USAGE, "", "there is no device '%.60s': cpu or cuda%s", name, hint);
    }
    return am_fail(error, AM_ERROR_USAGE, "",
                   "this build has no kernels for device 'cuda' (configure it with -DAUTOMAP_CUDA=ON)");
}

AmStatus kernel_refuse(const Program *program, int32_t origin, IrOpcode opcode, const char *reason,
                       AmError *error) {
    const IrModule *module = program->module;
    const char *name = ir_opcode_name(opcode), *source = "";
    char place[400] = "";
    if (module && origin >= 0 && origin < module->instruction_count) {
        const IrInstruction *instruction = &module->instructions[origin];
        if (instruction->opcode == opcode && instruction->opcode_name) name = instruction->opcode_name;
        if (module->source) source = module->source;
        const char *op_name = instruction->op_name ? instruction->op_name : "";
        if (instruction->source_file && instruction->source_file[0])
            snprintf(place, sizeof place, " (instruction %s at %s:%d)", instruction->name,
                     instruction->source_file, instruction->source_line);
        else if (op_name[0])
            snprintf(place, sizeof place, " (instruction %s, %s)", instruction->name, op_name);
        else snprintf(place, sizeof place, " (instruction %s)", instruction->name);
    }
    return am_fail(error, AM_ERROR_INPUT, source, "no kernel for '%s'%s: %s", name, place, reason);
}

AmStatus kernel_call_refuse(const KernelCall *call, const char *reason, AmError *error) {
    const ProgramFusionOp *op = call->fusion && call->fusion->op_count > 0 ? &call->fusion->ops[0] : NULL;
    if (call->instruction)
        return kernel_refuse(call->program, call->instruction->origin, call->instruction->opcode, reason,
                             error);
    return kernel_refuse(call->program, op ? op->origin : -1, op ? op->opcode : IR_FUSION, reason, error);
}

/* Returns the value that operand (or result) k of a call stands for. */
static int32_t operand_value(const KernelCall *call, int32_t k) {
    return call->fusion ? call->fusion->inputs[k].value : call->instruction->operands[k];
}

static int32_t result_value(const KernelCall *call, int32_t k) {
    return call->fusion ? call->fusion->output_values[k] : call->instruction->first_result + k;
}

AmStatus kernel_prepare(KernelCall **result, Arena *arena, KernelDevice *device, const Program *program,
                        const ProgramStep *step, AmError *error) {
    KernelCall *call = ARENA_ARRAY(arena, KernelCall, 1);
    if (!call) return am_fail_memory(error, (int64_t)sizeof *call);
    call->device = device;
    call->program = program;
    call->rows = step->row_group > 0 ? &program->execution.row_groups[step->row_group - 1] : NULL;
    if (step->fusion >= 0) {
        call->fusion = &program->execution.fusions[step->fusion];
        call->operand_count = call->fusion->input_count;
        call->result_count = call->fusion->output_count;
    } else {
        call->instruction = &program->instructions[step->instruction];
        call->attributes = call->instruction->attributes;
        call->operand_count = call->instruction->operand_count;
        call->result_count = call->instruction->result_count;
    }
    int32_t count = call->operand_count + call->result_count;
    const IrShape **shapes = ARENA_ARRAY(arena, const IrShape *, count + 1);
    void **addresses = ARENA_ARRAY(arena, void *, count + 1);
    if (!shapes || !addresses) return am_fail_memory(error, count * 16);
    call->operand_shapes = shapes;
    call->result_shapes = shapes + call->operand_count;
    call->operands = addresses;
    call->results = addresses + call->operand_count;
    for (int32_t k = 0; k < call->operand_count; k++)
        call->operand_shapes[k] = &program->values[operand_value(call, k)].shape;
    for (int32_t k = 0; k < call->result_count; k++)
        call->result_shapes[k] = &program->values[result_value(call, k)].shape;
    *result = call;
    return device->back_end->prepare(call, arena, error);
}

void kernel_bind(KernelCall *call, void *const *addresses, void *scratch) {
    for (int32_t k = 0; k < call->operand_count; k++) call->operands[k] = addresses[operand_value(call, k)];
    for (int32_t k = 0; k < call->result_count; k++) call->results[k] = addresses[result_value(call, k)];
    call->scratch = scratch;
    if (call->bind) call->bind(call);
}

int32_t kernel_call_value(const KernelCall *call, int32_t k) {
    return k < call->operand_count ? operand_value(call, k) : result_value(call, k - call->operand_count);
}
