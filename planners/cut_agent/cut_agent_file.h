/* Files of generated sets (cut_agent_arrays.h), as .npz or .safetensors: the training data of the
 * agent, for inspection and for evaluating agents.
 *
 * One row for each of N sets, all f32 except the counts, which are s32:
 *   computation, activation, weight, stored [N, 128]  sums up to each point, except activation: the cost
 *                                                     of a cut there; stored: kept per micro-batch
 *   rates [N, 64]                                     of the devices, 0 after the last one
 *   inside, memory [N]                                link inside a server, memory of a device
 *   stages, micro_batches, per_server [N]
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_FILE_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_FILE_H

#include <signal.h>

#include "planners/cut_agent/cut_agent_arrays.h"

#define CUT_AGENT_FILE_MOST_SETS 1000000

/* The arrays of a file, in the arena that they were read into. */
typedef struct CutAgentFile {
    const char *path;
    int32_t count; /* of sets */
    float *computation, *activation, *weight, *stored, *rates, *inside, *memory;
    int32_t *stages, *micro_batches, *per_server;
} CutAgentFile;

/* Sets 0 .. count - 1 under the seed. AM_INTERRUPTED, without a file, once `*stop` is not 0 before the last
 * set is made; NULL: never. */
AmStatus cut_agent_file_write(const char *path, uint64_t seed, int32_t count,
                              const volatile sig_atomic_t *stop, AmError *error);

/* Reads a file. AM_ERROR_INPUT names the array that is missing or of another form. */
AmStatus cut_agent_file_read(CutAgentFile *file, Arena *arena, const char *path, AmError *error);

/* Makes set `row` of the file. AM_ERROR_INPUT: its numbers are no set; AM_ERROR_USAGE: its counts do not go
 * together. */
AmStatus cut_agent_file_set(CutAgentSet *set, const CutAgentFile *file, int32_t row, AmError *error);

#endif
