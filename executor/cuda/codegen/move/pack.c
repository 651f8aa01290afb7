/* Kernels that copy an operand to a layout that a library can read, or a result back.
 *
 * Dimensions that both sides step through as one are joined. If both sides are contiguous along the
 * same dimension, elements are joined to words of up to 16 bytes, and a thread moves one word. If the
 * array is contiguous along another dimension, a block moves a tile through shared memory, so that
 * both sides access whole lines. Elements below 4 bytes are then moved in groups of 4 bytes. Rows of
 * a tile have one column more, so that the threads of a column use different banks. Indices have 32
 * bits if these suffice. Sizes and strides are literals.
 */
#include "executor/cuda/codegen/move/pack.h"

#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_text.h"
#include "executor/cuda/cuda.h"

enum { LINE = 32, ROWS = CUDA_THREADS / LINE, MOST_WORD = 16 };

/* A pack of words and the C types of its kernel. */
typedef struct Move {
    CudaPack pack;
    int64_t word, elements; /* bytes, words */
    const char *index, *suffix;
    int32_t fast;  /* dimension of the tiles along which the array has stride 1; -1: there are no tiles */
    int32_t group; /* words in one access of a thread of a tile */
} Move;

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
    return pack->low[d] != 0 || pack->sizes[d] > pack->limits[d];
}

/* Takes crops into the offset, drops dimensions of size 1, and joins those that both sides step through as
 * one. */
static void join_dimensions(CudaPack *pack) {
    int32_t rank = 0;
    for (int32_t d = 0; d < pack->rank; d++) {
        int64_t size = pack->sizes[d], stride = pack->strides[d], low = pack->low[d], limit = pack->limits[d];
        if (low <= 0 && size - low <= limit) {
            pack->offset -= low * stride;
            low = 0;
            limit = size;
        }
        if (size == 1 && low == 0 && limit == 1) continue;
        bool whole = low == 0 && limit == size;
        if (whole && rank > 0 && !reads_outside(pack, rank - 1) && pack->strides[rank - 1] == stride * size) {
            pack->sizes[rank - 1] = pack->limits[rank - 1] *= size;
            pack->strides[rank - 1] = stride;
            continue;
        }
        pack->sizes[rank] = size;
        pack->strides[rank] = stride;
        pack->low[rank] = low;
        pack->limits[rank++] = limit;
    }
    pack->rank = rank;
}

/* Returns whether neighbours along dimension `fast` form pairs: adjacent in the array, and either both inside
 * or both outside. */
static bool has_pairs(const CudaPack *pack, int32_t fast) {
    for (int32_t d = 0; d < pack->rank; d++)
        if (d != fast && pack->strides[d] % 2 != 0) return false;
    return pack->strides[fast] == 1 && pack->sizes[fast] % 2 == 0 && pack->low[fast] % 2 == 0 &&
           pack->limits[fast] % 2 == 0 && pack->offset % 2 == 0;
}

/* Replaces the words by pairs of words. */
static void join_pairs(CudaPack *pack, int32_t fast) {
    for (int32_t d = 0; d < pack->rank; d++)
        if (d != fast) pack->strides[d] /= 2;
    pack->sizes[fast] /= 2;
    pack->low[fast] /= 2;
    pack->limits[fast] /= 2;
    pack->offset /= 2;
}

/* Returns the number of words, of at most 4 bytes together, that form groups along both dimensions. */
static int32_t group_of_tile(const Move *move) {
    CudaPack pack = move->pack;
    int32_t group = 1;
    while (group * move->word < 4 && pack.sizes[pack.rank - 1] % (2 * group) == 0 &&
           has_pairs(&pack, move->fast)) {
        join_pairs(&pack, move->fast);
        group *= 2;
    }
    return group;
}

static Move plan_move(const CudaPack *pack, Dtype type) {
    Move move = {.pack = *pack, .word = dtype_bytes(type), .fast = -1};
    join_dimensions(&move.pack);
    int32_t last = move.pack.rank - 1;
    while (last >= 0 && move.word < MOST_WORD && has_pairs(&move.pack, last)) {
        join_pairs(&move.pack, last);
        move.word *= 2;
    }
    move.elements = cuda_pack_elements(&move.pack);
    int64_t reach = move.pack.offset;
    for (int32_t d = 0; d < move.pack.rank; d++)
        reach += (move.pack.limits[d] + move.pack.sizes[d]) * move.pack.strides[d];
    bool narrow = move.elements < INT32_MAX - CUDA_THREADS && reach < INT32_MAX;
    move.index = narrow ? "u32" : "u64";
    move.suffix = narrow ? "u" : "ull";
    for (int32_t d = 0; d < last; d++)
        if (move.pack.strides[d] == 1 && move.pack.strides[last] != 1 && move.pack.sizes[d] >= ROWS &&
            move.pack.sizes[last] >= ROWS)
            move.fast = d;
    if (move.fast >= 0) move.group = group_of_tile(&move);
    return move;
}

/* Returns `value` modulo the range of the unsigned index type, whose differences may wrap around. */
static unsigned long long literal(const Move *move, int64_t value) {
    return move->suffix[1] ? (unsigned long long)value : (uint32_t)value;
}

/* Appends " && q1 - 2u < 5u", the test that index q1 is inside; nothing for a dimension without a border. */
static void append_inside(Text *out, const Move *move, int32_t d) {
    if (!reads_outside(&move->pack, d)) return;
    text_append(out, " && q%d - %llu%s < %llu%s", d, literal(move, move->pack.low[d]), move->suffix,
                literal(move, move->pack.limits[d]), move->suffix);
}

/* Appends the offset in the array of the word at indices q0, ... */
static void append_place(Text *out, const Move *move) {
    int64_t start = move->pack.offset;
    for (int32_t d = 0; d < move->pack.rank; d++) start -= move->pack.low[d] * move->pack.strides[d];
    text_append(out, "%llu%s", literal(move, start), move->suffix);
    for (int32_t d = 0; d < move->pack.rank; d++)
        if (move->pack.strides[d] == 1) text_append(out, " + q%d", d);
        else text_append(out, " + q%d * %llu%s", d, literal(move, move->pack.strides[d]), move->suffix);
}

/* Appends "const u32 q1 = NUMBER / 12u % 7u;" and so on for all dimensions but `without`. */
static void append_numbers(Text *out, const Move *move, const char *number, const int32_t without[2]) {
    int64_t inner = 1, strides[CUDA_PACK_RANK];
    int32_t first = -1;
    for (int32_t d = move->pack.rank - 1; d >= 0; d--) {
        if (d == without[0] || d == without[1]) continue;
        strides[d] = inner;
        inner *= move->pack.sizes[d];
        first = d;
    }
    for (int32_t d = first; d >= 0 && d < move->pack.rank; d++) {
        if (d == without[0] || d == without[1]) continue;
        text_append(out, "    const %s q%d = %s", move->index, d, number);
        if (strides[d] != 1) text_append(out, " / %llu%s", literal(move, strides[d]), move->suffix);
        if (d != first) text_append(out, " %% %llu%s", literal(move, move->pack.sizes[d]), move->suffix);
        text_append_string(out, ";\n");
    }
}

static void write_words(Text *out, const Move *move) {
    const char *word = cuda_word(move->word);
    text_append(out, "(const %s *__restrict__ in0, %s *out0) {\n", word, word);
    text_append(out, "    const %s i = (%s)blockIdx.x * %d%s + threadIdx.x;\n", move->index, move->index,
                CUDA_THREADS, move->suffix);
    text_append(out, "    if (i >= %llu%s) return;\n    %s value = {};\n", literal(move, move->elements),
                move->suffix, word);
    append_numbers(out, move, "i", (int32_t[]){-1, -1});
    text_append_string(out, "    if (true");
    for (int32_t d = 0; d < move->pack.rank; d++) append_inside(out, move, d);
    text_append_string(out, ") value = in0[");
    append_place(out, move);
    text_append_string(out, "];\n    out0[i] = value;\n}\n");
}

static int64_t tiles_of(int64_t size, int64_t side) {
    return size / side + (size % side > 0);
}

/* Writes the kernel of tiles. A block's number combines its tile along both dimensions with the other
 * indices. */
static void write_tiles(Text *out, const Move *move) {
    const CudaPack *pack = &move->pack;
    const char *word = cuda_word(move->word), *index = move->index, *suffix = move->suffix;
    int32_t last = pack->rank - 1, fast = move->fast, side = LINE * move->group;
    unsigned long long width = literal(move, pack->sizes[last]), height = literal(move, pack->sizes[fast]);
    unsigned long long across = (unsigned long long)tiles_of(pack->sizes[last], side);
    unsigned long long along = (unsigned long long)tiles_of(pack->sizes[fast], side);
    int64_t strides[CUDA_PACK_RANK];
    strided_row_major(strides, pack->sizes, pack->rank);
    text_append(out, "(const %s *__restrict__ in0, %s *out0) {\n    __shared__ %s tile[%d][%d];\n", word,
                word, word, side, side + 1);
    text_append(out,
                "    const %s column = threadIdx.x %% %du * %du, row = threadIdx.x / %du;\n"
                "    const %s across = (%s)(blockIdx.x %% %lluu) * %d;\n"
                "    const %s along = (%s)(blockIdx.x / %lluu %% %lluu) * %d;\n",
                index, LINE, move->group, LINE, index, index, across, side, index, index, across, along,
                side);
    if (pack->rank > 2) text_append(out, "    const %s rest = blockIdx.x / %lluu;\n", index, across * along);
    append_numbers(out, move, "rest", (int32_t[]){last, fast});
    text_append(out,
                "    for (u32 k = row; k < %d; k += %d) {\n"
                "        const %s q%d = across + k, q%d = along + column;\n"
                "        Group<%s, %d> group = {};\n"
                "        if (q%d < %llu%s && q%d < %llu%s",
                side, ROWS, index, last, fast, word, move->group, last, width, suffix, fast, height, suffix);
    for (int32_t d = 0; d < pack->rank; d++) append_inside(out, move, d);
    text_append(out, ") group = *(const Group<%s, %d> *)(in0 + (", word, move->group);
    append_place(out, move);
    text_append(out,
                "));\n"
                "#pragma unroll\n"
                "        for (u32 j = 0; j < %d; j++) tile[k][column + j] = group.at[j];\n"
                "    }\n"
                "    __syncthreads();\n"
                "    for (u32 k = row; k < %d; k += %d) {\n"
                "        const %s q%d = along + k, q%d = across + column;\n"
                "        if (q%d >= %llu%s || q%d >= %llu%s) continue;\n"
                "        Group<%s, %d> group;\n"
                "#pragma unroll\n"
                "        for (u32 j = 0; j < %d; j++) group.at[j] = tile[column + j][k];\n"
                "        *(Group<%s, %d> *)(out0 + (0%s",
                move->group, side, ROWS, index, fast, last, fast, height, suffix, last, width, suffix, word,
                move->group, move->group, word, move->group, suffix);
    for (int32_t d = 0; d < pack->rank; d++)
        text_append(out, " + q%d * %llu%s", d, literal(move, strides[d]), suffix);
    text_append_string(out, ")) = group;\n    }\n}\n");
}

AmStatus cuda_source_move(CudaSource *source, const char *kind, const CudaPack *pack, Dtype type,
                          AmError *error) {
    Move move = plan_move(pack, type);
    Text body = {0};
    if (move.elements == 0) return AM_OK;
    if (move.fast < 0) {
        write_words(&body, &move);
        return cuda_source_launch(source, kind, &body, cuda_blocks(move.elements), CUDA_THREADS, error);
    }
    int64_t width = move.pack.sizes[move.pack.rank - 1], height = move.pack.sizes[move.fast];
    int64_t side = LINE * move.group;
    write_tiles(&body, &move);
    return cuda_source_launch(source, kind, &body,
                              move.elements / (width * height) * tiles_of(width, side) *
                                  tiles_of(height, side),
                              CUDA_THREADS, error);
}

AmStatus cuda_source_pack(CudaSource *source, Arena *arena, const CudaPack *pack, Dtype type,
                          AmError *error) {
    *source = (CudaSource){.arena = arena, .parameters = 2};
    return cuda_source_move(source, "pack", pack, type, error);
}

AmStatus cuda_prepare_pack(KernelCall *pack, Arena *arena, const KernelCall *call, const CudaPack *shape,
                           Dtype type, AmError *error) {
    CudaSource source;
    *pack = (KernelCall){.device = call->device,
                         .program = call->program,
                         .instruction = call->instruction,
                         .attributes = call->attributes,
                         .operand_count = 1,
                         .result_count = 1,
                         .operands = ARENA_ARRAY(arena, void *, 1),
                         .results = ARENA_ARRAY(arena, void *, 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(void *));
    TRY(cuda_source_pack(&source, arena, shape, type, error));
    return cuda_prepare_source(pack, arena, &source, error);
}
