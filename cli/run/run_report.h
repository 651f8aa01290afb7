/* The result of a run: measured next to predicted, in the format of the stream. */
#ifndef CLI_RUN_RUN_REPORT_H
#define CLI_RUN_RUN_REPORT_H

#include "automap.h"
#include "cli/run/run_stream.h"

/* Prints the result as one JSON object. */
void run_report_json(RunStream *stream, const AmRunResult *report);
/* Writes a table, then the values without a prediction. */
void run_report_text(RunStream *stream, const AmRunResult *report);

#endif
