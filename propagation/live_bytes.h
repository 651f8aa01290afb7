/* How full the memory is, about, as instructions are put in order: before they are fused and have buffers. */
#ifndef PROPAGATION_LIVE_BYTES_H
#define PROPAGATION_LIVE_BYTES_H

#include "propagation/program.h"

typedef struct LiveBytes {
    const Program *program;
    int32_t *root;  /* [value]: itself, or what it is a view of */
    int32_t *uses;  /* [root]: operands and outputs still to come; parameters never die */
    int64_t *bytes; /* [value] of equal parts (program_even_bytes) */
    int64_t now;
} LiveBytes;

/* Nothing has run; in the program's arena. */
AmStatus live_bytes_begin(LiveBytes *live, const Program *program, AmError *error);
/* Instruction i runs: results are made, then what nobody needs any more dies. */
void live_bytes_run(LiveBytes *live, int32_t i);
/* Bytes that instruction i makes, and those that it takes, but of parameters. */
int64_t live_bytes_made(const LiveBytes *live, int32_t i);
int64_t live_bytes_taken(const LiveBytes *live, int32_t i);
/* How full it is at most if each instruction i runs at time[i], no sooner than what it takes and less than
 * the number of instructions. */
AmStatus live_bytes_most(int64_t *most, const LiveBytes *live, const int32_t *time, AmError *error);

#endif
