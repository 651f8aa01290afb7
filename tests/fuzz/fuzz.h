/* Fuzzers: one file per reader of what users give. Each defines
 * LLVMFuzzerTestOneInput(), which must take any bytes; wrong results abort().
 *
 * A build with AUTOMAP_FUZZ=ON links them with libFuzzer; every other build
 * links them with run_inputs.c and runs them over the seeds and over what was found
 * (tests/fuzz/found/NAME/), as a test.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input as a file, valid until the next call; for readers that take a path. */
const char *fuzz_path(const uint8_t *data, size_t size);

/* Aborts with the words unless the condition holds. */
void fuzz_check(bool holds, const char *what, const AmError *error);

/* An HLO module in any encoding: what is read must be read back alike from every encoding. */
void fuzz_module(const uint8_t *data, size_t size);

/* A file of named arrays: every array is read. */
void fuzz_arrays(const uint8_t *data, size_t size);

#endif
