/* The C locale for a scope: uselocale() of POSIX 2008 switches one thread, so that numbers are read and
 * written with a decimal point whatever the locale of the program is.
 */
#define _GNU_SOURCE
#include "base/system/locale_scope.h"

#include <locale.h>

#include "base/status.h"

AmStatus locale_scope_enter(LocaleScope *scope, AmError *error) {
    *scope = (LocaleScope){0};
    locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!own) return am_fail_memory(error, 0);
    scope->previous = uselocale(own);
    scope->own = own;
    return AM_OK;
}

void locale_scope_leave(LocaleScope *scope) {
    if (!scope->own) return;
    uselocale((locale_t)scope->previous);
    freelocale((locale_t)scope->own);
    *scope = (LocaleScope){0};
}
