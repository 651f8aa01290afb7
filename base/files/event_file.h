/* TensorBoard event files: scalars by step, readable while they are written.
 *
 * A file is a sequence of TFRecords: length (8 bytes, little-endian), masked CRC-32C of these 8
 * bytes, that many bytes, masked CRC-32C of them. Each is one Event message of TensorFlow's
 * event.proto, with these fields: wall_time = 1 (double), step = 2, file_version = 3
 * ("brain.Event:2", first record), summary = 5 {value = 1 {tag = 1, simple_value = 2 (float)}}, and
 * session_log = 7 {status = 1: START}, which makes readers drop the values of earlier files of the
 * folder from that step on.
 */
#ifndef BASE_FILES_EVENT_FILE_H
#define BASE_FILES_EVENT_FILE_H

#include <stdio.h>

#include "base/status.h"

typedef struct EventFile {
    FILE *file; /* NULL: not open */
    char *path; /* C heap */
} EventFile;

typedef struct EventScalar {
    const char *tag; /* at most EVENT_TAG_LENGTH bytes are kept */
    double value;
} EventScalar;

#define EVENT_TAG_LENGTH 60
#define EVENT_SCALARS    16

/* Makes the folder and a file in it whose name is new. AM_ERROR_USAGE: it cannot be made. */
AmStatus event_file_open(EventFile *events, const char *folder, AmError *error);
/* Begins the steps of this file. */
AmStatus event_file_start(EventFile *events, int64_t step, AmError *error);
/* Writes one event with at most EVENT_SCALARS values, flushed. Allocates nothing. */
AmStatus event_file_scalars(EventFile *events, int64_t step, const EventScalar *scalars, int32_t count,
                            AmError *error);
AmStatus event_file_close(EventFile *events, AmError *error);

/* Returns CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) of `count` bytes, and as TFRecords store
 * it. */
uint32_t crc32c(const void *bytes, size_t count);
uint32_t crc32c_masked(const void *bytes, size_t count);

#endif
