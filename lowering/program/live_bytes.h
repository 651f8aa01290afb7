/* Bytes of values, and how full the memory is, about, before instructions are fused and have buffers. */
#ifndef LOWERING_PROGRAM_LIVE_BYTES_H
#define LOWERING_PROGRAM_LIVE_BYTES_H

#include "lowering/program/program.h"

/* Returns the bytes of a device's part if all parts were equal: devices with unequal parts are to merge and
 * order alike. */
int64_t program_even_bytes(const Program *program, const ProgramValue *value);

typedef struct LiveBytes {
    const Program *program;
    int32_t *root;  /* [value]: itself, or the origin of a view */
    int64_t *bytes; /* [value] of equal parts (program_even_bytes) */
} LiveBytes;

/* Finds the bytes, in the program's arena. */
AmStatus live_bytes_find(LiveBytes *live, const Program *program, AmError *error);
/* Returns the bytes that instruction i makes, and those that it takes, but of parameters. */
int64_t live_bytes_made(const LiveBytes *live, int32_t i);
int64_t live_bytes_taken(const LiveBytes *live, int32_t i);
/* Finds the peak of the memory without parameters if each instruction i runs at time[i], which is after its
 * operands and below the number of instructions. */
AmStatus live_bytes_most(int64_t *most, const LiveBytes *live, const int32_t *time, AmError *error);

#endif
