/* Files of generated sets (inference_arrays.h), as .npz or .safetensors: the training data of the
 * agent, for inspection and for evaluating agents.
 *
 * One row for each of N sets, all f32 except the counts, which are s32:
 *   computation, activation, weight, stored [N, 128]  sums up to each point, except activation: the cost
 *                                                     of a cut there; stored: kept per micro-batch
 *   rates [N, 64]                                     of the devices, 0 after the last one
 *   inside, memory [N]                                link inside a server, memory of a device
 *   stages, micro_batches, per_server [N]
 */
#ifndef PLANNERS_INFERENCE_FILE_H
#define PLANNERS_INFERENCE_FILE_H

#include "planners/inference_arrays.h"

#define INFERENCE_FILE_MOST_SETS 1000000

/* The arrays of a file, in the arena that they were read into. */
typedef struct InferenceFile {
    const char *path;
    int32_t count; /* of sets */
    float *computation, *activation, *weight, *stored, *rates, *inside, *memory;
    int32_t *stages, *micro_batches, *per_server;
} InferenceFile;

/* Sets 0 .. count - 1 under the seed. */
AmStatus inference_file_write(const char *path, uint64_t seed, int32_t count, AmError *error);

/* AM_ERROR_INPUT names the array that is missing or of another form. */
AmStatus inference_file_read(InferenceFile *file, Arena *arena, const char *path, AmError *error);

/* Set `row` of the file. AM_ERROR_INPUT: its numbers are no set; AM_ERROR_USAGE: its counts do not go
 * together. */
AmStatus inference_file_set(InferenceSet *set, const InferenceFile *file, int32_t row, AmError *error);

#endif
