/* The C locale for the current thread, whatever locale the program has set.
 *
 * Readers and writers of files use strtod() and printf(), whose decimal point is
 * that of the thread's locale. The public API enters a scope in every call that
 * reads or writes numbers; threads that a call starts inherit it (parallel.c).
 */
#ifndef BASE_SYSTEM_LOCALE_SCOPE_H
#define BASE_SYSTEM_LOCALE_SCOPE_H

#include "base/status.h"

typedef struct LocaleScope {
    void *own, *previous; /* locale_t of the scope and of the caller; NULL outside of a scope */
} LocaleScope;

/* Switches this thread to the C locale. AM_ERROR_INTERNAL without memory. */
AmStatus locale_scope_enter(LocaleScope *scope, AmError *error);

/* Restores the locale of before; a scope that was not entered is left alone. */
void locale_scope_leave(LocaleScope *scope);

#endif
