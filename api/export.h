/* The formats of am_export(), for the command line. */
#ifndef API_EXPORT_H
#define API_EXPORT_H

#include <stdint.h>

#include "automap.h"

enum { EXPORT_FORMATS = 5 };
const char *export_format_name(int32_t k); /* "jax", ... */
/* AM_ERROR_USAGE for an unknown format, or options that do not apply to it. */
AmStatus export_check_options(const char *format, const AmOptions *options, AmError *error);

#endif
