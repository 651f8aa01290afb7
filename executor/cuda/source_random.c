/* rng-bit-generator: the bits of executor/cpu/random_bits.c, one thread per block
 * of a counter (Threefry-2x32: two words, Philox-4x32: four; Salmon et al.,
 * "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). The first thread also
 * writes the new state, which counts the blocks that were used.
 */
#include "executor/cpu/random_bits.h"
#include "executor/cuda/source_text.h"

static AmStatus launch(CudaSource *source, Arena *arena, const char *kind, Text *body, int64_t count,
                       AmError *error) {
    text_append_string(body, "}\n");
    return cuda_source_launch(source, arena, kind, body, count > 0 ? cuda_blocks(count) : 1, CUDA_THREADS,
                              error);
}

/* The new state, by one thread; then the threads past `count` leave. */
static void append_state(Text *out, const KernelCall *call, const CudaSource *source, int64_t count,
                         bool long_counter) {
    cuda_append_signature(out, call, source, NULL, false);
    text_append(out,
                "    const s64 i = (s64)blockIdx.x * %d + threadIdx.x;\n"
                "    const u64 key = in0[0];\n"
                "    if (i == 0) {\n"
                "        out0[0] = key;\n"
                "        out0[1] = in0[1] + %lluull;\n",
                CUDA_THREADS, (unsigned long long)count);
    if (long_counter)
        text_append(out, "        out0[2] = in0[2] + (in0[1] + %lluull < in0[1] ? 1ull : 0ull);\n",
                    (unsigned long long)count);
    text_append(out, "    }\n    if (i >= %lldll) return;\n", (long long)count);
}

static AmStatus write_philox(CudaSource *source, Arena *arena, const KernelCall *call, const RandomBits *bits,
                             AmError *error) {
    const char *type = cuda_memory_type(call->result_shapes[1]->type);
    bool wide = bits->bytes == 8;
    int64_t elements = bits->elements, per_block = wide ? 2 : 4;
    int64_t count = elements / per_block + (elements % per_block > 0);
    Text body = {0};
    append_state(&body, call, source, count, bits->long_counter);
    text_append(&body,
                "    u32 words[4];\n"
                "    const u64 low = in0[1] + (u64)i;\n"
                "    philox(words, key, low, %s + (low < (u64)i ? 1ull : 0ull));\n",
                bits->long_counter ? "in0[2]" : "key");
    for (int32_t k = 0; k < per_block; k++) {
        text_append(&body, "    if (i * %lldll + %d < %lldll) ", (long long)per_block, k,
                    (long long)elements);
        text_append(&body, "out1[i * %lldll + %d] = (%s)", (long long)per_block, k, type);
        if (wide) text_append(&body, "((u64)words[%d] << 32 | words[%d]);\n", 2 * k + 1, 2 * k);
        else text_append(&body, "words[%d];\n", k);
    }
    return launch(source, arena, "philox", &body, count, error);
}

static AmStatus write_threefry(CudaSource *source, Arena *arena, const KernelCall *call,
                               const RandomBits *bits, AmError *error) {
    const char *type = cuda_memory_type(call->result_shapes[1]->type);
    bool wide = bits->bytes == 8, empty = bits->elements == 0;
    int64_t split = empty ? 1 : bits->split, inner = empty ? 1 : bits->inner;
    int64_t count = wide ? bits->elements : bits->elements / split * ((split + 1) / 2);
    Text body = {0};
    append_state(&body, call, source, count, false);
    text_append_string(&body, "    u32 words[2];\n    threefry(words, key, in0[1] + (u64)i);\n");
    if (wide) {
        text_append(&body, "    out1[i] = (%s)((u64)words[1] << 32 | words[0]);\n", type);
    } else {
        long long pairs = (long long)(split + 1) / 2, step = (long long)inner;
        text_append(&body,
                    "    const s64 outer = i / %lldll, pair = i / %lldll %% %lldll * 2, rest = i %% %lldll;\n"
                    "    const s64 at = (outer * %lldll + pair) * %lldll + rest;\n"
                    "    out1[at] = (%s)words[0];\n"
                    "    if (pair + 1 < %lldll) out1[at + %lldll] = (%s)words[1];\n",
                    pairs * step, step, pairs, step, (long long)split, step, type, (long long)split, step,
                    type);
    }
    return launch(source, arena, "threefry", &body, count, error);
}

AmStatus cuda_source_random_bits(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    RandomBits bits;
    TRY(random_bits_read(&bits, call, error));
    return bits.philox ? write_philox(source, arena, call, &bits, error)
                       : write_threefry(source, arena, call, &bits, error);
}
