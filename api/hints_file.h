/* A file of hints for a search (`search --hints FILE`): pins and degrees, written beside a module.
 *
 *   {"stages": 2, "micro_batches": 8,
 *    "hints": [
 *      {"scope": "layers/0", "stage": 0, "devices": "V100"},
 *      {"scope": ["layers/1", "head"], "stage": 1, "split": 4},
 *      {"scope": "layers/1/attention", "replicate": true},
 *      {"parameter": "layers/0/mlp_in/kernel", "sharding": "-,model"}]}
 *
 * A hint means the same as the option --pin with its scope and decision. Several scopes of a hint get the
 * same decisions.
 */
#ifndef API_HINTS_FILE_H
#define API_HINTS_FILE_H

#include "base/arena.h"
#include "planners/problem/degrees.h"
#include "propagation/propagate/pins.h"

typedef struct HintsFile {
    PropagationPin *pins; /* [pin_count] */
    int32_t pin_count;
    Degrees degrees;       /* 0: free */
    int32_t micro_batches; /* 0: free */
    const char *micro_batches_place;
} HintsFile;

/* Reads a file; everything is in the arena. AM_ERROR_INPUT names the file and the place. */
AmStatus hints_file_read(HintsFile *hints, Arena *arena, const char *path, AmError *error);

#endif
