/* Fusions: a chain of element-wise operators over one index space, tile by tile.
 *
 * An input that is read in the order of the index space is read where it lies;
 * one that is the same in every tile (a scalar, a bias) is packed once; any
 * other (a broadcast along inner dimensions) is packed tile by tile from its
 * strides. Tiles are whole rows where a row fits, so that biases repeat.
 * The operators then run on packed tiles as an element program. An element-wise
 * instruction that stands alone is a fusion of one operator.
 */
#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"
#include "executor/cpu/strided.h"

typedef enum InputAccess { INPUT_PACKED, INPUT_REPEATED, INPUT_STRIDED } InputAccess;

typedef struct FusionInput {
    InputAccess access;
    int64_t element_bytes;
    int64_t staging; /* offset of its tile in the scratch memory, unless packed */
    int32_t rank;    /* of the strides after joining */
    int64_t dimensions[IR_MAX_RANK], strides[IR_MAX_RANK];
} FusionInput;

typedef struct FusionKernel {
    ElementProgram *program;
    FusionInput *inputs;
    int64_t elements, tile, pointers_at, program_at; /* the last two: offsets in the scratch memory */
    int32_t rank;
    const int64_t *dimensions;
} FusionKernel;

/* Elements per tile: whole rows of the innermost dimension, if one fits. */
static int64_t tile_of(const int64_t *dimensions, int32_t rank) {
    int64_t row = 1;
    for (int32_t d = rank - 1; d >= 0 && row == 1; d--) row = dimensions[d];
    return row > 0 && row <= ELEMENT_TILE ? ELEMENT_TILE / row * row : ELEMENT_TILE;
}

static void classify(FusionInput *input, const int64_t *strides, const int64_t *dimensions, int32_t rank,
                     int64_t tile) {
    for (int32_t d = 0; d < rank; d++) {
        input->dimensions[d] = dimensions[d];
        input->strides[d] = strides[d];
    }
    input->rank = strided_coalesce(input->dimensions, input->strides, NULL, rank);
    bool repeats = input->rank == 0;
    if (!repeats && input->strides[0] == 0) {
        int64_t period = strided_elements(input->dimensions + 1, input->rank - 1);
        repeats = period > 0 && tile % period == 0;
    }
    bool packed = input->rank == 1 && input->strides[0] == 1;
    input->access = repeats ? INPUT_REPEATED : packed ? INPUT_PACKED : INPUT_STRIDED;
}

static void run_fusion(const KernelCall *call) {
    const FusionKernel *kernel = call->compiled;
    char *scratch = call->scratch;
    const void **tiles = (const void **)(scratch + kernel->pointers_at);
    void **outputs = (void **)(tiles + call->operand_count);
    void *work = scratch + kernel->program_at;
    int64_t most = kernel->elements < kernel->tile ? kernel->elements : kernel->tile;
    element_program_begin(kernel->program, most, work);
    for (int32_t k = 0; k < call->operand_count && most > 0; k++) {
        const FusionInput *input = &kernel->inputs[k];
        if (input->access != INPUT_REPEATED) continue;
        strided_load(scratch + input->staging, call->operands[k], input->strides, input->dimensions,
                     input->rank, 0, most, input->element_bytes);
        tiles[k] = scratch + input->staging;
    }
    for (int64_t first = 0; first < kernel->elements; first += kernel->tile) {
        int64_t count = kernel->elements - first < kernel->tile ? kernel->elements - first : kernel->tile;
        for (int32_t k = 0; k < call->operand_count; k++) {
            const FusionInput *input = &kernel->inputs[k];
            if (input->access == INPUT_PACKED) {
                tiles[k] = (const char *)call->operands[k] + first * input->element_bytes;
            } else if (input->access == INPUT_STRIDED) {
                strided_load(scratch + input->staging, call->operands[k], input->strides, input->dimensions,
                             input->rank, first, count, input->element_bytes);
                tiles[k] = scratch + input->staging;
            }
        }
        for (int32_t k = 0; k < call->result_count; k++)
            outputs[k] = (char *)call->results[k] + first * dtype_bytes(call->result_shapes[k]->type);
        ElementTile tile = {first, kernel->rank, kernel->dimensions};
        element_program_run(kernel->program, tiles, outputs, count, &tile, work);
    }
}

/* Shared by both: `strides` of every input, the operators and their index space. */
static AmStatus prepare(KernelCall *call, Arena *arena, const int64_t *const *strides,
                        const int64_t *dimensions, int32_t rank, const ProgramFusionOp *ops, int32_t op_count,
                        const int32_t *output_slots, AmError *error) {
    FusionKernel *kernel = ARENA_ARRAY(arena, FusionKernel, 1);
    FusionInput *inputs = ARENA_ARRAY(arena, FusionInput, call->operand_count + 1);
    Dtype *types = ARENA_ARRAY(arena, Dtype, call->operand_count + 1);
    if (arena->failed) return am_fail_memory(error, 256 * call->operand_count);
    int64_t scratch = 0;
    kernel->tile = tile_of(dimensions, rank);
    for (int32_t k = 0; k < call->operand_count; k++) {
        types[k] = call->operand_shapes[k]->type;
        inputs[k].element_bytes = dtype_bytes(types[k]);
        classify(&inputs[k], strides[k], dimensions, rank, kernel->tile);
        inputs[k].staging = scratch;
        if (inputs[k].access != INPUT_PACKED) scratch += kernel_align(ELEMENT_TILE * inputs[k].element_bytes);
    }
    int32_t refused = -1;
    AmStatus status = element_program_build(&kernel->program, arena, types, call->operand_count, ops,
                                            op_count, output_slots, call->result_count, &refused, NULL);
    if (status != AM_OK) {
        IrOpcode opcode = op_count > 0 ? ops[refused < 0 ? 0 : refused].opcode : IR_UNKNOWN;
        int32_t origin = op_count > 0 ? ops[refused < 0 ? 0 : refused].origin : -1;
        return kernel_refuse(call->program, origin, opcode, "not on this element type", error);
    }
    kernel->inputs = inputs;
    kernel->rank = rank;
    kernel->dimensions = dimensions;
    kernel->elements = strided_elements(dimensions, rank);
    kernel->pointers_at = scratch;
    kernel->program_at =
        scratch + kernel_align((int64_t)sizeof(void *) * (call->operand_count + call->result_count));
    call->scratch_bytes = kernel->program_at + element_program_scratch(kernel->program);
    call->compiled = kernel;
    call->run = run_fusion;
    return AM_OK;
}

AmStatus cpu_prepare_fusion(KernelCall *call, Arena *arena, AmError *error) {
    const ProgramFusion *fusion = call->fusion;
    const int64_t **strides = ARENA_ARRAY(arena, const int64_t *, fusion->input_count + 1);
    if (!strides) return am_fail_memory(error, fusion->input_count * 8);
    for (int32_t k = 0; k < fusion->input_count; k++) strides[k] = fusion->inputs[k].strides;
    return prepare(call, arena, strides, fusion->dimensions, fusion->rank, fusion->ops, fusion->op_count,
                   fusion->output_slots, error);
}

AmStatus cpu_prepare_single(KernelCall *call, Arena *arena, AmError *error) {
    const ProgramInstruction *instruction = call->instruction;
    const IrShape *shape = call->result_shapes[0];
    if (instruction->operand_count > 3) return kernel_call_refuse(call, "more than three operands", error);
    ProgramFusionOp *op = ARENA_ARRAY(arena, ProgramFusionOp, 1);
    int32_t *slot = ARENA_ARRAY(arena, int32_t, 1);
    const int64_t **strides = ARENA_ARRAY(arena, const int64_t *, 4);
    int64_t *dense = ARENA_ARRAY(arena, int64_t, 2 * IR_MAX_RANK);
    if (arena->failed) return am_fail_memory(error, 512);
    strided_row_major(dense, shape->dimensions, shape->rank);
    *op = (ProgramFusionOp){.opcode = instruction->opcode,
                            .type = shape->type,
                            .operand_count = instruction->operand_count,
                            .attributes = instruction->attributes,
                            .literal = instruction->literal,
                            .origin = instruction->origin};
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        op->operands[k] = k;
        /* A scalar beside an array (clamp's bounds, select's predicate) is the same everywhere. */
        strides[k] = call->operand_shapes[k]->rank == shape->rank ? dense : dense + IR_MAX_RANK;
    }
    *slot = instruction->operand_count;
    return prepare(call, arena, strides, shape->dimensions, shape->rank, op, 1, slot, error);
}
