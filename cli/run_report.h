/* What a run came to: measured next to predicted, in the form of the stream. */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include "cli/run_stream.h"

/* One JSON object. `plan`: NULL where nothing was predicted. */
void run_report_json(RunStream *stream, const AmRunReport *report, const Plan *plan);
/* A table, then what has no prediction. */
void run_report_text(RunStream *stream, const AmRunReport *report, const Plan *plan);

#endif
