/* rng-bit-generator: the bits of executor/cpu/other/random_bits.c, one thread per block
 * of a counter (Threefry-2x32: two words, Philox-4x32: four; Salmon et al.,
 * "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). The first thread also
 * writes the new state, which counts the blocks that were used.
 */
#include "executor/cpu/other/random_bits.h"
#include "executor/cpu/other/rng.h"
#include "executor/cuda/codegen/source_text.h"

static AmStatus launch(CudaSource *source, const char *kind, Text *body, int64_t count, AmError *error) {
    text_append_string(body, "}\n");
    return cuda_source_launch(source, kind, body, count > 0 ? cuda_blocks(count) : 1, CUDA_THREADS, error);
}

/* Appends the new state, written by one thread; then the threads past `threads` return. */
static void append_state(Text *out, const KernelCall *call, const CudaSource *source, const RandomBits *bits,
                         int64_t threads) {
    cuda_append_signature(out, call, source, NULL, false);
    text_append(out,
                "    const s64 i = (s64)blockIdx.x * %d + threadIdx.x;\n"
                "    const u64 key = in0[0];\n"
                "    if (i == 0) {\n"
                "        out0[0] = key;\n"
                "        out0[1] = in0[1] + %lluull;\n",
                CUDA_THREADS, (unsigned long long)bits->blocks);
    if (bits->long_counter)
        text_append(out, "        out0[2] = in0[2] + (in0[1] + %lluull < in0[1] ? 1ull : 0ull);\n",
                    (unsigned long long)bits->blocks);
    text_append(out, "    }\n    if (i >= %lldll) return;\n", (long long)threads);
}

/* Appends "words", Philox's or Threefry's, of the block that a counter names. */
static void append_block(Text *out, const RandomBits *bits, const char *block) {
    if (!bits->philox) {
        text_append(out, "    u32 words[2];\n    threefry(words, key, in0[1] + (u64)%s);\n", block);
        return;
    }
    text_append(out,
                "    u32 words[4];\n"
                "    const u64 low = in0[1] + (u64)%s;\n"
                "    philox(words, key, low, %s + (low < (u64)%s ? 1ull : 0ull));\n",
                block, bits->long_counter ? "in0[2]" : "key", block);
}

static AmStatus write_philox(CudaSource *source, const KernelCall *call, const RandomBits *bits,
                             AmError *error) {
    const char *type = cuda_memory_type(call->result_shapes[1]->type);
    bool wide = bits->bytes == 8;
    int64_t elements = bits->elements, per_block = wide ? 2 : 4, count = bits->blocks;
    Text body = {0};
    append_state(&body, call, source, bits, count);
    append_block(&body, bits, "i");
    for (int32_t k = 0; k < per_block; k++) {
        text_append(&body, "    if (i * %lldll + %d < %lldll) ", (long long)per_block, k,
                    (long long)elements);
        text_append(&body, "out1[i * %lldll + %d] = (%s)", (long long)per_block, k, type);
        if (wide) text_append(&body, "((u64)words[%d] << 32 | words[%d]);\n", 2 * k + 1, 2 * k);
        else text_append(&body, "words[%d];\n", k);
    }
    return launch(source, "philox", &body, count, error);
}

static AmStatus write_threefry(CudaSource *source, const KernelCall *call, const RandomBits *bits,
                               AmError *error) {
    const char *type = cuda_memory_type(call->result_shapes[1]->type);
    bool wide = bits->bytes == 8, empty = bits->elements == 0;
    int64_t split = empty ? 1 : bits->split, inner = empty ? 1 : bits->inner;
    int64_t count = bits->blocks;
    Text body = {0};
    append_state(&body, call, source, bits, count);
    append_block(&body, bits, "i");
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
    return launch(source, "threefry", &body, count, error);
}

/* Stores the element that begins with words[word]. Every index is a literal, which keeps the array in
 * registers. */
static void append_word(Text *out, const RandomBits *bits, const char *type) {
    int32_t count = bits->philox ? 4 : 2;
    if (bits->bytes < 8) {
        text_append(out, "    out1[i] = (%s)(", type);
        for (int32_t k = 0; k < count - 1; k++) text_append(out, "word == %d ? words[%d] : ", k, k);
        text_append(out, "words[%d]);\n", count - 1);
        return;
    }
    const char *low = count == 4 ? "word == 0 ? words[0] : words[2]" : "words[0]";
    const char *high = count == 4 ? "word == 0 ? words[1] : words[3]" : "words[1]";
    text_append(out, "    out1[i] = (%s)((u64)(%s) << 32 | (%s));\n", type, high, low);
}

/* Writes a part of the whole, one thread per element of it. The place of the part in the whole determines
 * the block of numbers. */
static AmStatus write_part(CudaSource *source, const KernelCall *call, const RandomBits *bits,
                           AmError *error) {
    const IrShape *local = call->result_shapes[1];
    const char *type = cuda_memory_type(local->type);
    bool wide = bits->bytes == 8;
    int64_t elements = ir_shape_elements(local);
    long long inner = bits->inner > 0 ? bits->inner : 1, split = bits->split > 0 ? bits->split : 1;
    Text body = {0};
    append_state(&body, call, source, bits, elements);
    cuda_append_coordinates(&body, "d", local->dimensions, local->rank);
    text_append_string(&body, "    s64 place = 0;\n");
    for (int32_t d = 0; d < local->rank; d++)
        text_append(&body, "    place = place * %lldll + d%d + %lldll;\n",
                    (long long)bits->global.dimensions[d], d, (long long)bits->shard->start[d]);
    if (bits->philox)
        text_append(&body, "    const s64 block = place / %d, word = place %% %d%s;\n", wide ? 2 : 4,
                    wide ? 2 : 4, wide ? " * 2" : "");
    else if (wide) text_append_string(&body, "    const s64 block = place;\n");
    else
        text_append(&body,
                    "    const s64 line = place / %lldll, word = line %% %lldll %% 2;\n"
                    "    const s64 block = (line / %lldll * %lldll + line %% %lldll / 2) * %lldll + place %% "
                    "%lldll;\n",
                    inner, split, split, split / 2 + split % 2, split, inner, inner);
    append_block(&body, bits, "block");
    append_word(&body, bits, type);
    return launch(source, "random_part", &body, elements, error);
}

AmStatus cuda_source_random_bits(CudaSource *source, const KernelCall *call, AmError *error) {
    RandomBits bits;
    TRY(random_bits_read(&bits, call, error));
    if (bits.shard) return write_part(source, call, &bits, error);
    return bits.philox ? write_philox(source, call, &bits, error)
                       : write_threefry(source, call, &bits, error);
}

/* Appends "place": the position of thread i in the whole, in row-major order. */
static void append_place(Text *out, const IrShape *local, const RngForm *form) {
    if (!form->shard) {
        text_append_string(out, "    const s64 place = (s64)i;\n");
        return;
    }
    cuda_append_coordinates(out, "d", local->dimensions, local->rank);
    text_append_string(out, "    s64 place = 0;\n");
    for (int32_t d = 0; d < local->rank; d++)
        text_append(out, "    place = place * %lldll + d%d + %lldll;\n",
                    (long long)form->global.dimensions[d], d, (long long)form->shard->start[d]);
}

/* Appends a + u (b - a), below b as the type rounds it; for integers its integral part. */
static void append_uniform(Text *out, Dtype type) {
    bool floats = dtype_is_floating(type);
    text_append_string(out, "    const f64 number = a + (place % 2 ? second : first) * (b - a);\n    ");
    text_append(out, "const %s drawn = ", cuda_value_type(type));
    cuda_append_convert(out, DTYPE_F64, type, floats ? "number" : "floor(number)");
    text_append_string(out, ";\n    out0[i] = ");
    cuda_append_store(out, type, floats ? "(a < b && !((f64)drawn < b) ? low : drawn)" : "drawn");
    text_append_string(out, ";\n}\n");
}

/* Appends Box and Muller's transformation of two fractions. */
static void append_normal(Text *out, Dtype type) {
    text_append(out,
                "    const f64 radius = sqrt(-2 * log(1 - first)), angle = 6.283185307179586477 * second;\n"
                "    const %s drawn = ",
                cuda_value_type(type));
    cuda_append_convert(out, DTYPE_F64, type, "(a + b * radius * cos(angle))");
    text_append_string(out, ";\n    out0[i] = ");
    cuda_append_store(out, type, "drawn");
    text_append_string(out, ";\n}\n");
}

/* Writes rng: the numbers of executor/cpu/other/rng.c. A second kernel counts the blocks that were drawn so
 * far in the uploaded bytes. */
AmStatus cuda_source_rng(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *local = call->result_shapes[0];
    RngForm form;
    Text body = {0}, counting = {0};
    uint64_t *counter = ARENA_ARRAY(source->arena, uint64_t, 1);
    TRY(rng_read(&form, call, error));
    if (!counter) return am_fail_memory(error, 8);
    if (!cuda_has_arithmetic(local->type)) return kernel_call_refuse(call, "not on this type", error);
    source->upload = counter;
    source->upload_bytes = sizeof *counter;
    int64_t elements = ir_shape_elements(local);
    if (elements > 0) {
        cuda_append_signature(&body, call, source, NULL, false);
        cuda_append_guard(&body, elements);
        append_place(&body, local, &form);
        text_append(&body,
                    "    u32 words[4];\n"
                    "    philox(words, %lluull, *(const u64 *)upload + (u64)(%s), 0);\n"
                    "    const f64 first = (f64)(((u64)words[1] << 32 | words[0]) >> 11) * "
                    "1.1102230246251565e-16;\n"
                    "    const f64 second = (f64)(((u64)words[3] << 32 | words[2]) >> 11) * "
                    "1.1102230246251565e-16;\n    const %s low = ",
                    (unsigned long long)form.key, form.is_normal ? "place" : "place / 2",
                    cuda_value_type(local->type));
        cuda_append_element(&body, local->type, "in0", "0");
        text_append_string(&body, ";\n    const f64 a = (f64)low, b = (f64)");
        cuda_append_element(&body, local->type, "in1", "0");
        text_append_string(&body, ";\n");
        if (form.is_normal) append_normal(&body, local->type);
        else append_uniform(&body, local->type);
        TRY(cuda_source_launch(source, "rng", &body, cuda_blocks(elements), CUDA_THREADS, error));
    }
    cuda_append_signature(&counting, call, source, NULL, false);
    text_append(&counting, "    *(u64 *)upload += %lldull;\n}\n", (long long)form.blocks);
    return cuda_source_launch(source, "rng_count", &counting, 1, 1, error);
}
