/* HLO modules as the binary form (ir_read_bytes tells the encodings apart; the seeds decide). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_module(data, size);
    return 0;
}
