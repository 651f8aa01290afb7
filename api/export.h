/* The formats of am_export(), for the command line. */
#ifndef API_EXPORT_H
#define API_EXPORT_H

#include <stdint.h>

#include "automap.h"

/* AM_ERROR_USAGE for an unknown format, or options that do not apply to it. */
AmStatus export_check_options(const char *format, const AmOptions *options, AmError *error);

#endif
