/* automap's public C API.
 *
 * The library never prints and never exits. A call that can fail returns an
 * AmStatus and fills the caller's AmError; status values are also the exit
 * codes of the command line tool. Opaque handles are made by the library and
 * released by the matching *_free; every other pointer that is returned lives
 * as long as the handle it was read from.
 */
#ifndef AUTOMAP_H
#define AUTOMAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AM_API __attribute__((visibility("default")))
#else
#define AM_API
#endif

#define AM_VERSION "0.1.0"

typedef enum AmStatus {
    AM_OK = 0,
    AM_ERROR_INTERNAL = 1,   /* a bug of ours, or no memory left */
    AM_ERROR_USAGE = 2,      /* an argument that means nothing */
    AM_ERROR_INPUT = 3,      /* a bad input file */
    AM_ERROR_INFEASIBLE = 4, /* no plan fits, or an export would not be the same plan */
    AM_ERROR_RUNTIME = 5,    /* a rank failed while running */
    AM_INTERRUPTED = 130     /* the caller asked to stop; the best result so far is returned */
} AmStatus;

/* What went wrong, where, and what was expected. `line` and `column` count
 * from 1 and are 0 where there is no text; `excerpt` is then empty. For binary
 * input `text` names the byte, for JSON the path. */
typedef struct AmError {
    AmStatus code;
    char source[512];
    int64_t line, column;
    char text[1024];
    char excerpt[256];
} AmError;

#ifdef __cplusplus
}
#endif
#endif
