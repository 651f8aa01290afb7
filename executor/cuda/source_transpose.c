/* transpose by tiles in shared memory, where operand and result run fastest along
 * different dimensions: a block reads TILE rows of TILE neighbours of the operand
 * and writes them as columns, so that both sides are read and written in whole
 * lines. One more column than there is keeps the threads of a column in different
 * banks. Other transposes are element-wise moves (source_elements.c).
 */
#include "executor/cpu/strided.h"
#include "executor/cuda/source_text.h"

enum { TILE = 32, ROWS = CUDA_THREADS / TILE };

/* The result's dimensions, neighbours joined, and both sides' strides along them. */
typedef struct Transpose {
    int32_t rank, fast; /* dimension along which the operand's stride is 1 */
    int64_t dimensions[IR_MAX_RANK], from[IR_MAX_RANK], to[IR_MAX_RANK];
} Transpose;

static void describe(Transpose *self, const KernelCall *call) {
    const IrShape *operand = call->operand_shapes[0], *result = call->result_shapes[0];
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, operand->dimensions, operand->rank);
    strided_row_major(self->to, result->dimensions, result->rank);
    for (int32_t d = 0; d < result->rank; d++) {
        self->dimensions[d] = result->dimensions[d];
        self->from[d] = strides[call->instruction->attributes->dimensions[d]];
    }
    self->rank = strided_coalesce(self->dimensions, self->from, self->to, result->rank);
    self->fast = 0;
    for (int32_t d = 0; d < self->rank; d++)
        if (self->from[d] == 1) self->fast = d;
}

static int64_t tiles_of(int64_t size) {
    return size / TILE + (size % TILE > 0);
}

/* The block's number is that of its tile among the tiles of both dimensions and the other dimensions. */
static void append_tile(Text *out, const Transpose *self) {
    int32_t last = self->rank - 1;
    long long across = (long long)tiles_of(self->dimensions[last]);
    long long along = (long long)tiles_of(self->dimensions[self->fast]);
    text_append(
        out,
        "    const u32 column = threadIdx.x %% %du, row = threadIdx.x / %du;\n"
        "    const s64 across = blockIdx.x %% %lldu * %d, along = blockIdx.x / %lldu %% %lldu * %d;\n",
        TILE, TILE, across, TILE, across, along, TILE);
    if (self->rank > 2) text_append(out, "    const s64 rest = blockIdx.x / %lldu;\n", across * along);
    text_append_string(out, "    s64 from = 0, to = 0;\n");
    int64_t inner = 1;
    for (int32_t d = last - 1; d >= 0; d--) {
        if (d == self->fast) continue;
        text_append(out, "    from += rest / %lldll %% %lldll * %lldll;\n", (long long)inner,
                    (long long)self->dimensions[d], (long long)self->from[d]);
        text_append(out, "    to += rest / %lldll %% %lldll * %lldll;\n", (long long)inner,
                    (long long)self->dimensions[d], (long long)self->to[d]);
        inner *= self->dimensions[d];
    }
}

AmStatus cuda_source_transpose(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    Transpose self;
    Text body = {0};
    int64_t elements = ir_shape_elements(call->result_shapes[0]);
    if (elements == 0) return AM_OK;
    describe(&self, call);
    int32_t last = self.rank - 1;
    if (self.rank < 2 || self.fast == last || self.dimensions[last] < ROWS ||
        self.dimensions[self.fast] < ROWS)
        return cuda_source_elements(source, arena, call, error);
    long long width = (long long)self.dimensions[last], height = (long long)self.dimensions[self.fast];
    const char *type = cuda_memory_type(call->result_shapes[0]->type);
    cuda_append_signature(&body, call, source, NULL, false);
    text_append(&body, "    __shared__ %s tile[%d][%d];\n", type, TILE, TILE + 1);
    append_tile(&body, &self);
    text_append(&body,
                "    for (u32 k = row; k < %d; k += %d)\n"
                "        if (across + k < %lldll && along + column < %lldll)\n"
                "            tile[k][column] = in0[from + (across + k) * %lldll + along + column];\n"
                "    __syncthreads();\n"
                "    for (u32 k = row; k < %d; k += %d)\n"
                "        if (along + k < %lldll && across + column < %lldll)\n"
                "            out0[to + (along + k) * %lldll + across + column] = tile[column][k];\n"
                "}\n",
                TILE, ROWS, width, height, (long long)self.from[last], TILE, ROWS, height, width,
                (long long)self.to[self.fast]);
    int64_t blocks = elements / (width * height) * tiles_of(width) * tiles_of(height);
    return cuda_source_launch(source, arena, "transpose_tiles", &body, blocks, CUDA_THREADS, error);
}
