/* The numbers that an rng draws, for every back end: rng.c derives them from the form. */
#ifndef EXECUTOR_CPU_OTHER_RNG_H
#define EXECUTOR_CPU_OTHER_RNG_H

#include "executor/kernels.h"

typedef struct RngForm {
    bool is_normal; /* else uniform */
    uint64_t key;
    int64_t blocks; /* of the counter that a run takes */
    IrShape global;
    const ProgramShard *shard; /* the part of the whole that is made here; NULL: all */
} RngForm;

/* Reads the form of an rng. AM_ERROR_INPUT as kernel_call_refuse(). */
AmStatus rng_read(RngForm *form, const KernelCall *call, AmError *error);

#endif
