/* rng-bit-generator: counter-based random bits, bit for bit those of XLA on CPU.
 *
 * The state is the key, 64 bits, then the counter, 64 bits or (Philox) 128. A block of counter c is a keyed
 * bijection of c: Threefry-2x32 with 20 rounds gives two words of 32 bits, Philox-4x32 with 10 rounds four
 * (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Elements of 64 bits take two
 * words, the low one first; narrower ones take a word each and keep its low bits. Philox, which is also the
 * default, has the key in the upper half of a 64-bit state's counter and uses its words in row-major order.
 * Threefry does so for 64 bits. For 32 bits it splits the first even dimension (else the largest, rounded
 * up) in pairs and counts the pairs in row-major order. The words of a block go to the two members of its
 * pair. The new state counts the used blocks.
 */
#include "executor/cpu/other/random_bits.h"

#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"

static uint32_t rotate_left(uint32_t x, int32_t by) {
    return x << by | x >> (32 - by);
}

static void threefry(uint32_t words[2], uint64_t key, uint64_t counter) {
    static const int32_t rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
    uint32_t a = (uint32_t)counter + keys[0], b = (uint32_t)(counter >> 32) + keys[1];
    for (uint32_t group = 0; group < 5; group++) {
        for (int32_t round = 0; round < 4; round++) {
            a += b;
            b = rotate_left(b, rotations[group % 2][round]) ^ a;
        }
        a += keys[(group + 1) % 3];
        b += keys[(group + 2) % 3] + group + 1;
    }
    words[0] = a;
    words[1] = b;
}

void random_philox(uint32_t words[4], uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int32_t round = 0; round < 10; round++) {
        uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Returns the block, counted from the state's, that makes the element at a place in the global array, and the
 * first of its words. */
static int64_t block_of(const RandomBits *bits, int64_t place, int32_t *word) {
    bool wide = bits->bytes == 8;
    if (bits->philox) {
        int64_t per_block = wide ? 2 : 4;
        *word = (int32_t)(place % per_block) * (wide ? 2 : 1);
        return place / per_block;
    }
    *word = 0;
    if (wide) return place;
    int64_t line = place / bits->inner, pairs = bits->split / 2 + bits->split % 2;
    *word = (int32_t)(line % bits->split % 2);
    return (line / bits->split * pairs + line % bits->split / 2) * bits->inner + place % bits->inner;
}

int64_t random_place(const IrShape *global, const ProgramShard *shard, const int64_t *index) {
    int64_t place = 0;
    for (int32_t d = 0; d < global->rank; d++)
        place = place * global->dimensions[d] + index[d] + (shard ? shard->start[d] : 0);
    return place;
}

static void run_random_bits(const KernelCall *call) {
    const RandomBits *bits = call->compiled;
    const IrShape *local = call->result_shapes[1];
    const uint64_t *state = call->operands[0];
    uint64_t *next = call->results[0], counted = state[1] + (uint64_t)bits->blocks;
    int64_t index[IR_MAX_RANK] = {0}, elements = ir_shape_elements(local), made = -1;
    char *out = call->results[1];
    uint32_t words[4] = {0};
    for (int64_t at = 0; at < elements; at++) {
        int32_t word;
        int64_t place = bits->shard ? random_place(&bits->global, bits->shard, index) : at;
        int64_t block = block_of(bits, place, &word);
        if (block != made) {
            uint64_t low = state[1] + (uint64_t)block, high = bits->long_counter ? state[2] : state[0];
            if (bits->philox) random_philox(words, state[0], low, high + (low < state[1]));
            else threefry(words, state[0], low);
        }
        made = block;
        if (bits->bytes == 8) {
            uint64_t both = (uint64_t)words[word + 1] << 32 | words[word];
            memcpy(out + at * 8, &both, 8);
        } else {
            memcpy(out + at * bits->bytes, &words[word], (size_t)bits->bytes);
        }
        if (bits->shard) strided_next(index, local->dimensions, local->rank);
    }
    if (bits->long_counter) next[2] = state[2] + (counted < state[1]);
    next[0] = state[0];
    next[1] = counted;
}

/* Returns the first even dimension, else the largest. */
static int32_t split_dimension(const IrShape *shape) {
    int32_t largest = 0;
    for (int32_t d = 0; d < shape->rank; d++) {
        if (shape->dimensions[d] % 2 == 0) return d;
        if (shape->dimensions[d] > shape->dimensions[largest]) largest = d;
    }
    return largest;
}

AmStatus random_bits_read(RandomBits *bits, const KernelCall *call, AmError *error) {
    const IrShape *state = call->operand_shapes[0];
    if (call->operand_count != 1 || call->result_count != 2)
        return kernel_call_refuse(call, "not with these operands", error);
    const IrShape *result = call->result_shapes[1];
    const ProgramShard *shard = call->instruction->compute.shard;
    bool philox = call->attributes->options->random != IR_RANDOM_THREEFRY;
    if (state->type != DTYPE_U64 || state->rank != 1 || !ir_shape_equal(state, call->result_shapes[0]) ||
        (state->dimensions[0] != 2 && !(philox && state->dimensions[0] == 3)))
        return kernel_call_refuse(call, "its state is not u64[2], or for Philox u64[3]", error);
    if (!dtype_is_integer(result->type)) return kernel_call_refuse(call, "not on this type", error);
    *bits = (RandomBits){.philox = philox,
                         .long_counter = state->dimensions[0] == 3,
                         .bytes = dtype_bytes(result->type),
                         .outer = 1,
                         .split = 1,
                         .inner = 1,
                         .global = *result,
                         .shard = shard};
    if (shard) bits->global.dimensions = shard->global;
    const IrShape *global = &bits->global;
    bits->elements = ir_shape_elements(global);
    if (global->rank > 0) {
        int32_t split = split_dimension(global);
        bits->outer = strided_elements(global->dimensions, split);
        bits->split = global->dimensions[split];
        bits->inner = strided_elements(global->dimensions + split + 1, global->rank - split - 1);
    }
    int64_t pairs = bits->split / 2 + bits->split % 2, per_block = bits->bytes == 8 ? 2 : 4;
    if (philox) bits->blocks = bits->elements / per_block + (bits->elements % per_block > 0);
    else bits->blocks = bits->bytes == 8 ? bits->elements : bits->outer * pairs * bits->inner;
    if (bits->elements == 0) bits->blocks = 0;
    return AM_OK;
}

AmStatus cpu_prepare_random_bits(KernelCall *call, Arena *arena, AmError *error) {
    RandomBits *bits = ARENA_ARRAY(arena, RandomBits, 1);
    if (!bits) return am_fail_memory(error, (int64_t)sizeof *bits);
    TRY(random_bits_read(bits, call, error));
    call->compiled = bits;
    call->run = run_random_bits;
    return AM_OK;
}
