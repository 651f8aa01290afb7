/* Status and error of a call, as all functions of automap return them.
 *
 * automap.h, the public API, includes this file. Status values are also the exit codes of the command line
 * tool.
 */
#ifndef AUTOMAP_STATUS_H
#define AUTOMAP_STATUS_H

#include <stdint.h>

typedef enum AmStatus {
    AM_OK = 0,
    AM_ERROR_INTERNAL = 1,   /* a bug of ours, or no memory or thread left */
    AM_ERROR_USAGE = 2,      /* an argument that means nothing */
    AM_ERROR_INPUT = 3,      /* a bad input file */
    AM_ERROR_INFEASIBLE = 4, /* no plan fits, or an export would not be the same plan */
    AM_ERROR_RUNTIME = 5,    /* a rank failed while running */
    AM_INTERRUPTED = 130     /* the caller asked to stop; the best result so far is returned */
} AmStatus;

/* The error of the last call: problem, position and expectation. `line` and `column` count from 1
 * and are 0 without a text; `excerpt` is then empty. For binary input `text` names the byte, for
 * JSON the path. */
typedef struct AmError {
    AmStatus code;
    char source[512];
    int64_t line, column;
    char text[1024];
    char excerpt[256];
} AmError;

#endif
