/* Errors: how a call fails, and how a failure travels up.
 *
 * A fallible function returns AmStatus and takes an AmError as its last
 * argument. am_fail() fills it once (the first error wins) and returns the
 * code, so that `return am_fail(...)` is the usual way out; TRY() relays a
 * failed status. A function that holds resources uses one `fail:` label.
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include "automap_status.h"

#define TRY(call)                                     \
    do {                                              \
        AmStatus try_status_ = (call);                \
        if (try_status_ != AM_OK) return try_status_; \
    } while (0)

/* For functions that hold resources and keep their result in `status`. */
#define TRY_OR_FAIL(call)               \
    do {                                \
        status = (call);                \
        if (status != AM_OK) goto fail; \
    } while (0)

/* Fills `error` (may be NULL) unless it already holds one; returns `code`. `source` names the file
 * ("" for none). */
AmStatus am_fail(AmError *error, AmStatus code, const char *source, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Hands an error on: copies `from` to `error` (may be NULL) unless it already holds one or `status` is AM_OK.
 * Returns `status`. For calls whose failure is not that of the caller in all cases, such as
 * AM_ERROR_INFEASIBLE, and for errors of threads. */
AmStatus am_pass_error(AmStatus status, const AmError *from, AmError *error);

/* Fills `error` (may be NULL) unless it already holds one, for a place in a text: finds line and column of
 * byte `at` of text[0..length), and copies that line as the excerpt. Returns `code`. */
AmStatus am_fail_at(AmError *error, AmStatus code, const char *source, const char *text, int64_t length,
                    int64_t at, const char *format, ...) __attribute__((format(printf, 7, 8)));

/* Adds information that was unknown at the error's origin: its position in a text, found as by
 * am_fail_at(), or words before its own. Without an error, does nothing. */
void am_error_locate(AmError *error, const char *text, int64_t length, int64_t at);
void am_error_prefix(AmError *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Names the file of a bad input, where the function that failed does not know it: nothing is done if the
 * error has a source already or is not AM_ERROR_INPUT. */
void am_error_source(AmError *error, const char *source);

/* Reports lack of memory: AM_ERROR_INTERNAL with the number of bytes that the failed allocation requested. */
AmStatus am_fail_memory(AmError *error, int64_t bytes);

/* Reports that a system call failed with `cause` (errno): "SOURCE: WHAT: reason". Returns `code`, but
 * AM_ERROR_INTERNAL without memory and AM_ERROR_RUNTIME where too many files are open: then the input is not
 * to blame. */
AmStatus am_fail_system(AmError *error, AmStatus code, const char *source, int cause, const char *what);

/* Warnings of one operation, in order, without duplicates; owned by the arena. */
typedef struct AmWarnings {
    struct Arena *arena;
    const char **texts;
    int32_t count, capacity;
} AmWarnings;

void am_warn(AmWarnings *warnings, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
