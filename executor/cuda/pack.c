/* The kernel that lays an operand out: one thread per element of the packed
 * array finds its place in the other. See pack.h. */
#include "executor/cuda/pack.h"

#include "executor/cpu/strided.h"
#include "executor/cuda/cuda.h"
#include "executor/cuda/source_text.h"

void cuda_pack_add(CudaPack *pack, int64_t size, int64_t stride) {
    int32_t d = pack->rank++;
    pack->sizes[d] = pack->limits[d] = size;
    pack->strides[d] = stride;
    pack->low[d] = 0;
}

int64_t cuda_pack_elements(const CudaPack *pack) {
    return strided_elements(pack->sizes, pack->rank);
}

static bool reads_outside(const CudaPack *pack, int32_t d) {
    return pack->low[d] > 0 || pack->sizes[d] - pack->low[d] > pack->limits[d];
}

AmStatus cuda_source_pack(CudaSource *source, Arena *arena, const CudaPack *pack, Dtype type,
                          AmError *error) {
    static const char *const words[] = {[1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64"};
    int64_t strides[CUDA_PACK_RANK], elements = cuda_pack_elements(pack);
    const char *word = dtype_bytes(type) == 16 ? "b128" : words[dtype_bytes(type)];
    *source = (CudaSource){.parameters = 2};
    strided_row_major(strides, pack->sizes, pack->rank);
    Text body = {0};
    text_append(&body, "(const %s *in0, %s *out0) {\n", word, word);
    text_append(&body, "    const s64 i = (s64)blockIdx.x * %d + threadIdx.x;\n", CUDA_THREADS);
    text_append(&body, "    if (i >= %lldll) return;\n    %s value = {};\n", (long long)elements, word);
    for (int32_t d = 0; d < pack->rank && elements > 0; d++)
        text_append(&body, "    const s64 p%d = i / %lldll %% %lldll - (%lldll);\n", d, (long long)strides[d],
                    (long long)pack->sizes[d], (long long)pack->low[d]);
    text_append_string(&body, "    if (true");
    for (int32_t d = 0; d < pack->rank; d++)
        if (reads_outside(pack, d))
            text_append(&body, " && p%d >= 0 && p%d < %lldll", d, d, (long long)pack->limits[d]);
    text_append_string(&body, ") value = in0[0");
    for (int32_t d = 0; d < pack->rank; d++)
        text_append(&body, " + p%d * %lldll", d, (long long)pack->strides[d]);
    text_append_string(&body, "];\n    out0[i] = value;\n}\n");
    return cuda_source_launch(source, arena, "pack", &body, cuda_blocks(elements), CUDA_THREADS, error);
}

AmStatus cuda_prepare_pack(KernelCall *pack, Arena *arena, const KernelCall *call, const CudaPack *shape,
                           Dtype type, AmError *error) {
    CudaSource source;
    *pack = (KernelCall){.device = call->device,
                         .program = call->program,
                         .instruction = call->instruction,
                         .operand_count = 1,
                         .result_count = 1,
                         .operands = ARENA_ARRAY(arena, void *, 1),
                         .results = ARENA_ARRAY(arena, void *, 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(void *));
    TRY(cuda_source_pack(&source, arena, shape, type, error));
    return cuda_prepare_source(pack, arena, &source, error);
}
