/* The description of an rng-bit-generator's result, for every back end: random_bits.c defines the
 * bits. */
#ifndef EXECUTOR_CPU_OTHER_RANDOM_BITS_H
#define EXECUTOR_CPU_OTHER_RANDOM_BITS_H

#include "executor/kernels.h"

typedef struct RandomBits {
    bool philox;                 /* else Threefry */
    bool long_counter;           /* 128 bits */
    int64_t elements, bytes;     /* of the global result; bytes per element */
    int64_t outer, split, inner; /* Threefry, up to 32 bits: the global result with its split dimension */
    int64_t blocks;              /* of the counter that the whole takes */
    IrShape global;
    const ProgramShard *shard; /* what of the whole is made here; NULL: all */
} RandomBits;

/* Returns the place in the global array, in row-major order, of the local element with these coordinates. */
int64_t random_place(const IrShape *global, const ProgramShard *shard, const int64_t *index);

/* Computes one block of Philox-4x32-10: four words of a key and a counter of 128 bits. */
void random_philox(uint32_t words[4], uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* Reads the attributes of a call; AM_ERROR_INPUT as kernel_call_refuse(). */
AmStatus random_bits_read(RandomBits *bits, const KernelCall *call, AmError *error);

#endif
