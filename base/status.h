/* Errors: how a call fails, and how a failure travels up.
 *
 * A fallible function returns AmStatus and takes an AmError as its last
 * argument. am_fail() fills it once (the first error wins) and returns the
 * code, so that `return am_fail(...)` is the usual way out; TRY() relays a
 * failed status. A function that holds resources uses one `fail:` label.
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include "automap.h"

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

/* Fills `error` (may be NULL) unless it already holds one; returns `code`.
 * `source` names the file ("" where none is meant). */
AmStatus am_fail(AmError *error, AmStatus code, const char *source, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for a place in a text: finds line and column of byte `at` of
 * text[0..length) and copies that line as the excerpt. */
AmStatus am_fail_at(AmError *error, AmStatus code, const char *source, const char *text, int64_t length,
                    int64_t at, const char *format, ...) __attribute__((format(printf, 7, 8)));

/* Adds what was not known where an error was made: its place in a text, found
 * as by am_fail_at(), or words to stand before its own. No error, nothing done. */
void am_error_locate(AmError *error, const char *text, int64_t length, int64_t at);
void am_error_prefix(AmError *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Out of memory: AM_ERROR_INTERNAL with the number of bytes asked for. */
AmStatus am_fail_memory(AmError *error, int64_t bytes);

/* Warnings of one operation, in order, without duplicates; owned by the arena. */
typedef struct AmWarnings {
    struct Arena *arena;
    const char **texts;
    int32_t count, capacity;
} AmWarnings;

void am_warn(AmWarnings *warnings, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
