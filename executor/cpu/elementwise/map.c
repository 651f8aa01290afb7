/* map: a computation of scalars on the elements of equally shaped arrays, run as
 * an element program, tile by tile.
 */
#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"

typedef struct MapKernel {
    ElementProgram *program;
    int64_t elements, program_at;
} MapKernel;

static void run_map(const KernelCall *call) {
    const MapKernel *kernel = call->compiled;
    const void **inputs = call->scratch;
    char *work = (char *)call->scratch + kernel->program_at;
    element_program_begin(kernel->program, ELEMENT_TILE, work);
    for (int64_t first = 0; first < kernel->elements; first += ELEMENT_TILE) {
        int64_t left = kernel->elements - first, count = left < ELEMENT_TILE ? left : ELEMENT_TILE;
        for (int32_t k = 0; k < call->operand_count; k++)
            inputs[k] = (const char *)call->operands[k] + first * dtype_bytes(call->operand_shapes[k]->type);
        void *output = (char *)call->results[0] + first * dtype_bytes(call->result_shapes[0]->type);
        element_program_run(kernel->program, inputs, &output, count, NULL, work);
    }
}

AmStatus cpu_prepare_map(KernelCall *call, Arena *arena, AmError *error) {
    MapKernel *kernel = ARENA_ARRAY(arena, MapKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    TRY(element_program_from_computation(&kernel->program, arena, call->program->module,
                                         call->instruction->compute.called, error));
    kernel->elements = ir_shape_elements(call->result_shapes[0]);
    bool fits = call->result_count == 1 && element_program_outputs(kernel->program) == 1 &&
                element_program_inputs(kernel->program) == call->operand_count &&
                element_program_output_type(kernel->program, 0) == call->result_shapes[0]->type;
    for (int32_t k = 0; fits && k < call->operand_count; k++)
        fits = ir_shape_elements(call->operand_shapes[k]) == kernel->elements &&
               element_program_input_type(kernel->program, k) == call->operand_shapes[k]->type;
    if (!fits) return kernel_call_refuse(call, "its computation has other operands", error);
    kernel->program_at = kernel_align((int64_t)sizeof(void *) * (call->operand_count + 1));
    call->scratch_bytes = kernel->program_at + element_program_scratch(kernel->program);
    call->compiled = kernel;
    call->run = run_map;
    return AM_OK;
}
