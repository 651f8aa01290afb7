/* Row groups: one kernel for several steps (lowering/passes/row_groups.c).
 *
 * A block of threads takes some rows and runs the steps in order, each over these rows, with a barrier after
 * each:
 *
 *     for each element of rows first .. end: fusion       __syncthreads()
 *     for each row first .. end: fold in lanes            __syncthreads()
 *
 * Values inside the group have room for these rows only, in shared memory as far as that suffices. Longer
 * values, such as the logits of a large vocabulary, are in scratch memory, which a limited number of blocks
 * uses repeatedly. Their address is shifted so that it begins with the first row of the block. A fold adds in
 * the order of a separate launch that has one part.
 */
#include "executor/cuda/codegen/source_text.h"

enum {
    NEAR_BYTES = 44 << 10,    /* shared memory of a block for values, beside the lanes of a fold */
    BLOCK_ELEMENTS = 1024,    /* of the longest rows, where there are blocks enough */
    ENOUGH_BLOCKS = 512,      /* that fill a large device */
    MOST_SCRATCH_BLOCKS = 264 /* two on each processor of a large device */
};

typedef enum RowsPlace { ROWS_GLOBAL, ROWS_NEAR, ROWS_SCRATCH } RowsPlace;

typedef struct RowsValue {
    RowsPlace place;
    int32_t number; /* of its parameter, from 1; 0: none yet */
    int64_t at;     /* its first byte in shared or scratch memory */
    int64_t row_bytes;
} RowsValue;

typedef struct RowsWriter {
    KernelCall *const *calls;
    const ProgramRowGroup *rows;
    Arena *arena;
    RowsValue *values; /* [value of the program] */
    void ***slots;     /* [parameter]: the operand or result that has its address */
    int32_t parameters;
    int64_t block, near_bytes, scratch_bytes;
} RowsWriter;

static int32_t arrays_of(const KernelCall *call) {
    return call->operand_count + call->result_count;
}

static const ProgramValue *storage_of(const KernelCall *call, int32_t value) {
    return &call->program->values[call->program->values[value].storage];
}

/* Gives every value its place; all members are of one program. */
static AmStatus place_values(RowsWriter *self, AmError *error) {
    const Program *program = self->calls[0]->program;
    int32_t most = 0;
    for (int32_t m = 0; m < self->rows->count; m++) most += arrays_of(self->calls[m]);
    self->values = ARENA_ARRAY(self->arena, RowsValue, program->value_count + 1);
    self->slots = ARENA_ARRAY(self->arena, void **, most + 1);
    if (self->arena->failed) return am_fail_memory(error, program->value_count * (int64_t)sizeof(RowsValue));
    for (int32_t m = 0; m < self->rows->count; m++)
        for (int32_t k = 0; k < arrays_of(self->calls[m]); k++) {
            const KernelCall *call = self->calls[m];
            int32_t number = kernel_call_value(call, k);
            const ProgramValue *value = storage_of(call, number);
            bool is_inside = value->kind == PROGRAM_VALUE_INTERNAL, is_result = k >= call->operand_count;
            RowsValue *place = &self->values[is_inside ? program->values[number].storage : number];
            if (!is_inside && place->number == 0) {
                self->slots[self->parameters++] =
                    is_result ? &call->results[k - call->operand_count] : &call->operands[k];
                place->number = self->parameters;
            }
            if (!is_inside || !is_result) continue;
            place->row_bytes = ir_shape_bytes(&value->shape) / self->rows->rows;
            int64_t bytes = kernel_align(self->block * place->row_bytes);
            bool is_near = self->near_bytes + bytes <= NEAR_BYTES;
            int64_t *end = is_near ? &self->near_bytes : &self->scratch_bytes;
            place->place = is_near ? ROWS_NEAR : ROWS_SCRATCH;
            place->at = *end;
            *end += bytes;
        }
    return AM_OK;
}

/* Appends "const f32 *const in0 = (const f32 *)p3;" for all arrays of a step. */
static void append_arrays(Text *out, const RowsWriter *self, const KernelCall *call) {
    for (int32_t k = 0; k < arrays_of(call); k++) {
        bool is_result = k >= call->operand_count;
        int32_t number = kernel_call_value(call, k), at = is_result ? k - call->operand_count : k;
        const ProgramValue *storage = storage_of(call, number);
        bool is_inside = storage->kind == PROGRAM_VALUE_INTERNAL;
        const RowsValue *value = &self->values[is_inside ? call->program->values[number].storage : number];
        const char *constant = is_result ? "" : "const ";
        const char *type =
            cuda_memory_type((is_result ? call->result_shapes : call->operand_shapes)[at]->type);
        text_append(out, "    %s%s *const %s%d = (%s%s *)", constant, type, is_result ? "out" : "in", at,
                    constant, type);
        if (is_inside)
            text_append(out, "((u64)%s + %lldull - (u64)first * %lldull);\n",
                        value->place == ROWS_NEAR ? "near" : "far", (long long)value->at,
                        (long long)value->row_bytes);
        else text_append(out, "p%d;\n", value->number - 1);
    }
}

static AmStatus append_steps(Text *out, const RowsWriter *self, AmError *error) {
    for (int32_t m = 0; m < self->rows->count; m++) {
        const KernelCall *call = self->calls[m];
        text_append_string(out, "    {\n");
        append_arrays(out, self, call);
        if (call->fusion) TRY(cuda_append_fusion_rows(out, self->arena, call, self->rows->rows, error));
        else TRY(cuda_append_reduce_rows(out, call, error));
        text_append_string(out, "    }\n    __syncthreads();\n");
    }
    return AM_OK;
}

AmStatus cuda_source_rows(CudaSource *source, void ****slots, Arena *arena, KernelCall *const *calls,
                          AmError *error) {
    const ProgramRowGroup *rows = calls[0]->rows;
    RowsWriter self = {.calls = calls, .rows = rows, .arena = arena};
    Text body = {0};
    /* Rows of a block: enough for all threads, but not so many that blocks are missing. */
    int64_t row = 1, row_count = rows->rows;
    for (int32_t m = 0; m < rows->count; m++)
        for (int32_t k = 0; k < arrays_of(self.calls[m]); k++) {
            const ProgramValue *value = storage_of(self.calls[m], kernel_call_value(self.calls[m], k));
            int64_t elements = ir_shape_elements(&value->shape);
            if (elements % row_count == 0 && elements / row_count > row) row = elements / row_count;
        }
    int64_t block = BLOCK_ELEMENTS / row, most_rows = row_count / ENOUGH_BLOCKS;
    if (block > most_rows) block = most_rows;
    self.block = block < 1 ? 1 : block;
    TRY(place_values(&self, error));
    if (self.parameters > CUDA_MOST_PARAMETERS)
        return kernel_call_refuse(calls[0], "its row group uses more than 512 arrays", error);
    int64_t blocks = (rows->rows + self.block - 1) / self.block, grid = blocks;
    int64_t most = self.scratch_bytes > 0 ? MOST_SCRATCH_BLOCKS : CUDA_MOST_BLOCKS;
    if (grid > most) grid = most;
    *source = (CudaSource){
        .arena = arena, .parameters = self.parameters, .scratch_bytes = grid * self.scratch_bytes};
    for (int32_t k = 0; k < self.parameters; k++) text_append(&body, "%su8 *p%d", k == 0 ? "(" : ", ", k);
    text_append_string(&body, self.scratch_bytes > 0 ? ", u8 *scratch) {\n" : ") {\n");
    text_append(&body, "    __shared__ u64 lanes[%d];\n", CUDA_THREADS);
    if (self.near_bytes > 0)
        text_append(&body, "    __shared__ b128 near[%lld];\n", (long long)self.near_bytes / 16);
    if (self.scratch_bytes > 0)
        text_append(&body, "    u8 *const far = scratch + (u64)blockIdx.x * %lldull;\n",
                    (long long)self.scratch_bytes);
    text_append(&body,
                "    for (s64 block = blockIdx.x; block < %lldll; block += %lldll) {\n"
                "    const s64 first = block * %lldll, end = least_of(first + %lldll, %lldll);\n",
                (long long)blocks, (long long)grid, (long long)self.block, (long long)self.block,
                (long long)rows->rows);
    AmStatus status = append_steps(&body, &self, error);
    text_append_string(&body, "    }\n}\n");
    *slots = self.slots;
    if (status == AM_OK) return cuda_source_launch_long(source, "rows", &body, grid, CUDA_THREADS, error);
    text_free(&body);
    return status;
}
