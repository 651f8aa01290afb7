/* Fusions: a chain of element-wise operators over one index space, tile by tile.
 *
 * Inputs are read where they lie or packed from their strides (tile_input.h);
 * tiles are whole rows where a row fits, so that biases repeat. The operators
 * then run on packed tiles as an element program. Results larger than a cache
 * holds are made in tiles of their own and written past the caches. The team's
 * members take stretches of neighbouring tiles. An element-wise instruction that
 * stands alone is a fusion of one operator. A fusion of a row group is computed
 * range by range (executor/cpu/rows/).
 */
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"
#include "executor/cpu/elementwise/tile_input.h"
#include "executor/cpu/team.h"

/* Results from this size on are out of the caches before anything reads them. */
enum { STREAMED_BYTES = 32 << 20 };

typedef struct FusionKernel {
    ElementProgram *program;
    TileInput *inputs;
    int64_t *staging; /* [input] offset in a part's scratch memory */
    int64_t *made_at; /* [result] the same of a tile that is then streamed; -1: made in place */
    bool streams;     /* one of them is */
    const VectorLoops *loops;
    int64_t elements, tile;
    int64_t pointers_at, program_at, part_bytes; /* of the scratch memory of one part */
    int32_t parts, rank;
    const int64_t *dimensions;
} FusionKernel;

static char *result_at(const KernelCall *call, int32_t k, int64_t element) {
    return (char *)call->results[k] + element * dtype_bytes(call->result_shapes[k]->type);
}

void cpu_fusion_begin(const KernelCall *call, int64_t most, void *memory) {
    const FusionKernel *kernel = call->compiled;
    char *scratch = memory;
    if (most > kernel->tile) most = kernel->tile;
    element_program_begin(kernel->program, most, scratch + kernel->program_at);
    for (int32_t k = 0; k < call->operand_count; k++)
        tile_input_begin(&kernel->inputs[k], call->operands[k], most, scratch + kernel->staging[k]);
}

void cpu_fusion_run(const KernelCall *call, int64_t begin, int64_t end, void *memory) {
    const FusionKernel *kernel = call->compiled;
    char *scratch = memory;
    const void **tiles = (const void **)(scratch + kernel->pointers_at);
    void **outputs = (void **)(tiles + call->operand_count);
    void *work = scratch + kernel->program_at;
    for (int64_t first = begin; first < end; first += kernel->tile) {
        int64_t count = end - first < kernel->tile ? end - first : kernel->tile;
        for (int32_t k = 0; k < call->operand_count; k++)
            tiles[k] = tile_input_at(&kernel->inputs[k], call->operands[k], first, count,
                                     scratch + kernel->staging[k], kernel->loops);
        for (int32_t k = 0; k < call->result_count; k++)
            outputs[k] = kernel->made_at[k] >= 0 ? scratch + kernel->made_at[k] : result_at(call, k, first);
        ElementTile tile = {first, kernel->rank, kernel->dimensions};
        element_program_run(kernel->program, tiles, outputs, count, &tile, work);
        for (int32_t k = 0; k < call->result_count && kernel->streams; k++)
            if (kernel->made_at[k] >= 0)
                kernel->loops->stream(result_at(call, k, first), outputs[k],
                                      count * dtype_bytes(call->result_shapes[k]->type));
    }
    if (kernel->streams) kernel->loops->stream_end();
}

int64_t cpu_fusion_scratch(const KernelCall *call) {
    return ((const FusionKernel *)call->compiled)->part_bytes;
}

static void run_part(void *user, int32_t part, int32_t parts) {
    const KernelCall *call = user;
    const FusionKernel *kernel = call->compiled;
    char *scratch = (char *)call->scratch + part * kernel->part_bytes;
    int64_t begin, end;
    team_stretch(kernel->elements, kernel->tile, part, parts, &begin, &end);
    cpu_fusion_begin(call, end - begin, scratch);
    cpu_fusion_run(call, begin, end, scratch);
}

static void run_fusion(const KernelCall *call) {
    const FusionKernel *kernel = call->compiled;
    team_run(call->device, run_part, (void *)call, kernel->parts);
}

/* Nanoseconds on one thread, roughly: 0.1 for an operator on an element of a tile or for one in memory. */
static double estimate(const KernelCall *call, const ProgramFusionOp *ops, int32_t op_count,
                       int64_t elements) {
    double each = 0.1 * (call->operand_count + call->result_count + op_count);
    for (int32_t k = 0; k < op_count; k++)
        each += ir_opcode_has(ops[k].opcode, FACT_TRANSCENDENTAL) ? 0.5 : 0;
    return each * (double)elements;
}

double cpu_fusion_nanoseconds(const KernelCall *call) {
    return estimate(call, call->fusion->ops, call->fusion->op_count, call->fusion->elements);
}

/* Returns whether a step of the call's row group reads the value or a view of it. */
static bool is_read_by_rows(const KernelCall *call, int32_t value) {
    const Program *program = call->program;
    for (int32_t s = 0; call->rows && s < call->rows->count; s++) {
        const ProgramStep *step = &program->execution.steps[call->rows->first + s];
        for (int32_t k = 0; k < program_step_operands(program, step); k++)
            if (program->values[program_step_operand(program, step, k)].storage == value) return true;
    }
    return false;
}

/* Prepares the common part of both: `strides` of every input, the operators without inputs, and their index
 * space. */
static AmStatus prepare_operators(KernelCall *call, Arena *arena, const int64_t *const *strides,
                                  const int64_t *dimensions, int32_t rank, ElementComputation operators,
                                  AmError *error) {
    const ProgramFusionOp *ops = operators.ops;
    int32_t op_count = operators.op_count;
    FusionKernel *kernel = ARENA_ARRAY(arena, FusionKernel, 1);
    TileInput *inputs = ARENA_ARRAY(arena, TileInput, call->operand_count + 1);
    int64_t *staging = ARENA_ARRAY(arena, int64_t, call->operand_count + 1);
    int64_t *made_at = ARENA_ARRAY(arena, int64_t, call->result_count + 1);
    Dtype *types = ARENA_ARRAY(arena, Dtype, call->operand_count + 1);
    if (arena->failed) return am_fail_memory(error, 256 * call->operand_count);
    int64_t scratch = 0;
    kernel->elements = strided_elements(dimensions, rank);
    /* Elements per tile: whole rows of the innermost dimension, if one fits. */
    int64_t row = 1;
    for (int32_t d = rank - 1; d >= 0 && row == 1; d--) row = dimensions[d];
    kernel->tile = row > 0 && row <= ELEMENT_TILE ? ELEMENT_TILE / row * row : ELEMENT_TILE;
    int64_t unit = call->rows ? call->rows->block * (kernel->elements / call->rows->rows) : kernel->tile;
    for (int32_t k = 0; k < call->operand_count; k++) {
        types[k] = call->operand_shapes[k]->type;
        tile_input_prepare(&inputs[k], types[k], strides[k], dimensions, rank, kernel->tile, unit);
        staging[k] = scratch;
        if (tile_is_staged(&inputs[k])) scratch += kernel_align(tile_staging_bytes(&inputs[k]));
    }
    for (int32_t k = 0; k < call->result_count; k++) {
        made_at[k] = -1;
        if (ir_shape_bytes(call->result_shapes[k]) < STREAMED_BYTES) continue;
        if (call->rows && is_read_by_rows(call, call->fusion->output_values[k])) continue;
        made_at[k] = scratch;
        scratch += kernel_align(ELEMENT_TILE * dtype_bytes(call->result_shapes[k]->type));
        kernel->streams = true;
    }
    int32_t refused = -1;
    operators.input_types = types;
    operators.input_count = call->operand_count;
    operators.output_count = call->result_count;
    AmStatus status = element_program_build(&kernel->program, arena, &operators, &refused, NULL);
    if (status != AM_OK) {
        IrOpcode opcode = op_count > 0 ? ops[refused < 0 ? 0 : refused].opcode : IR_UNKNOWN;
        int32_t origin = op_count > 0 ? ops[refused < 0 ? 0 : refused].origin : -1;
        return kernel_refuse(call->program, origin, opcode, "not on this element type", error);
    }
    kernel->inputs = inputs;
    kernel->staging = staging;
    kernel->made_at = made_at;
    kernel->loops = vector_loops();
    kernel->rank = rank;
    kernel->dimensions = dimensions;
    kernel->parts = team_parts(call->device, estimate(call, ops, op_count, kernel->elements));
    kernel->pointers_at = scratch;
    kernel->program_at =
        scratch + kernel_align((int64_t)sizeof(void *) * (call->operand_count + call->result_count));
    kernel->part_bytes = kernel_align(kernel->program_at + element_program_scratch(kernel->program));
    call->scratch_bytes = kernel->parts * kernel->part_bytes;
    call->compiled = kernel;
    call->run = run_fusion;
    return AM_OK;
}

AmStatus cpu_prepare_fusion(KernelCall *call, Arena *arena, AmError *error) {
    const ProgramFusion *fusion = call->fusion;
    const int64_t **strides = ARENA_ARRAY(arena, const int64_t *, fusion->input_count + 1);
    if (!strides) return am_fail_memory(error, fusion->input_count * 8);
    for (int32_t k = 0; k < fusion->input_count; k++) strides[k] = fusion->inputs[k].strides;
    const ElementComputation operators = {
        .ops = fusion->ops, .op_count = fusion->op_count, .output_slots = fusion->output_slots};
    return prepare_operators(call, arena, strides, fusion->dimensions, fusion->rank, operators, error);
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
                            .literal = instruction->compute.literal,
                            .origin = instruction->origin};
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        op->operands[k] = k;
        /* A scalar beside an array (clamp's bounds, select's predicate) is the same everywhere. */
        strides[k] = call->operand_shapes[k]->rank == shape->rank ? dense : dense + IR_MAX_RANK;
    }
    *slot = instruction->operand_count;
    const ElementComputation operators = {.ops = op, .op_count = 1, .output_slots = slot};
    return prepare_operators(call, arena, strides, shape->dimensions, shape->rank, operators, error);
}
