/* Files of named arrays, as .safetensors (the bytes tell the formats apart; the seeds decide). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_arrays(data, size);
    return 0;
}
