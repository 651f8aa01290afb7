/* The result of a run: measured next to predicted, in the format of the stream. */
#ifndef CLI_RUN_RUN_REPORT_H
#define CLI_RUN_RUN_REPORT_H

#include "cli/run/run_stream.h"

/* One JSON object. `plan`: NULL where nothing was predicted. */
void run_report_json(RunStream *stream, const AmRunReport *report, const Plan *plan);
/* Writes a table, then the values without a prediction. */
void run_report_text(RunStream *stream, const AmRunReport *report, const Plan *plan);

#endif
