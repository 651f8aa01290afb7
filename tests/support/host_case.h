/* A measurement of a machine with four processors, for tests of host:N. */
#ifndef TESTS_SUPPORT_HOST_CASE_H
#define TESTS_SUPPORT_HOST_CASE_H

#include <jansson.h>
#include <string.h>

#include "base/files/json.h"

#define HOST_MEASUREMENT                                                                                    \
    "{\"processors\": 4,"                                                                                   \
    " \"alone\": {\"memory_bytes\": 1000, \"memory_bytes_per_second\": 2e10,"                               \
    "  \"flops_per_second\": {\"f32\": 4e11}, \"kernel_launch_seconds\": 1e-9, \"efficiency\": {},"         \
    "  \"operators\": {\"dot_nn\": {\"sizes\": [[1], [4], [4], [4]], \"seconds\": [1e-6]}}},"               \
    " \"together\": {\"operators\": {\"dot_nn\": {\"sizes\": [[1], [4], [4], [4]], \"seconds\": [4e-6]}}}," \
    " \"link\": {\"bytes_per_second\": 1e10, \"latency_seconds\": 1e-6,"                                    \
    "  \"collectives\": {\"all_reduce\": {\"sizes\": [[2, 4], [256, 4096]],"                                \
    "   \"seconds\": [1e-6, 2e-6, 2e-6, 3e-6]}}},"                                                          \
    " \"shared\": {\"collectives\": {\"all_reduce\": {\"sizes\": [[2, 4, 8], [256, 4096]],"                 \
    "   \"seconds\": [4e-6, 20e-6, 8e-6, 40e-6, 16e-6, 80e-6]}}}}"

/* The text as JSON; the caller's reference. */
static inline json_t *host_measurement(const char *text) {
    json_t *measurement = NULL;
    AmError error = {0};
    if (json_parse(&measurement, "test", text, strlen(text), &error) != AM_OK) fail_msg("%s", error.text);
    return measurement;
}

#endif
