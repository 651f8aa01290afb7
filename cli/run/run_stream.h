/* The output of `run` on stdout or -o: a line for every step as it happens, then the report. A
 * failed write is kept in `status`; later output is dropped. */
#ifndef CLI_RUN_RUN_STREAM_H
#define CLI_RUN_RUN_STREAM_H

#include "automap.h"
#include "base/files/file.h"
#include "base/files/json.h"
#include "base/status.h"

typedef struct RunStream {
    FileWriter writer;
    bool is_json, has_loss; /* the module has one */
    AmStatus status;
    AmError *error;
} RunStream;

void run_stream_step(RunStream *stream, const AmStep *step);
void run_stream_text(RunStream *stream, const Text *text);
/* Takes the reference; NULL stands for a failed allocation. */
void run_stream_json(RunStream *stream, json_t *object);

/* Returns {"step", "loss", "seconds", "output[K]"..., "eval"}; the caller's reference. "eval", where the step
 * has a validation: {"loss", "output[K]"..., "batches", "seconds"}. */
json_t *run_step_to_json(const AmStep *step);

/* Writes "loss" or "output[K]", the field of a validation's output. */
void run_validated_name(char name[32], const AmOutput *output);

/* Returns a JSON number; null where the value is infinite or not a number: JSON has neither. */
json_t *run_number_or_null(double value);

#endif
