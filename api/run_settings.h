/* The options of a run as the executor takes them, for am_run() and the command line. */
#ifndef API_RUN_SETTINGS_H
#define API_RUN_SETTINGS_H

#include "api/options.h"
#include "executor/run/run.h"

/* Sets the members of *settings that options exist for; their texts must outlive it. AM_ERROR_USAGE for
 * options that have no effect without another one. */
AmStatus run_settings_read(AmRunOptions *settings, const AmOptions *options, AmError *error);

#endif
