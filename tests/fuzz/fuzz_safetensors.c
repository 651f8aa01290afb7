/* Files of named arrays, as .safetensors: every array is read. */
#include <stdlib.h>

#include "base/array_file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    AmError error = {0};
    ArrayFile file;
    if (array_file_open(&file, fuzz_path(data, size), &error) != AM_OK) return 0;
    for (int32_t k = 0; k < file.count; k++) {
        /* What a file says to hold beyond a gigabyte no reader asks for here. */
        if (file.entries[k].bytes > (int64_t)1 << 30) continue;
        void *values = malloc((size_t)file.entries[k].bytes + 1);
        fuzz_check(values != NULL, "memory", NULL);
        (void)array_file_read(&file, &file.entries[k], values, &error);
        free(values);
    }
    array_file_close(&file);
    return 0;
}
