/* Parses the values of options: integers ("1e4" is one, too), numbers, and names of a list. An error
 * states the expectation, and the nearest name of a list. */
#include "base/option_value.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"
#include "base/text.h"

/* Returns ", without a unit" where `end` follows a number and begins a text, or the same of a comma
 * ("1,5"). */
static const char *unit_hint(const char *text, const char *end) {
    if (end != text && *end == ',') return ", without a comma";
    return end != text && *end ? ", without a unit" : "";
}

AmStatus option_parse_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *value,
                              AmError *error) {
    char *end, *real_end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    bool is_valid = !errno && end != text && !*end;
    double real = strtod(text, &real_end); /* 1e4 is an integer, too */
    if (!is_valid && real_end != text && !*real_end && fabs(real) < 0x1p53 && real == floor(real)) {
        number = (long long)real;
        is_valid = true;
    }
    if (is_valid && number >= least && number <= most) {
        *value = number;
        return AM_OK;
    }
    const char *hint = unit_hint(text, real_end);
    if (errno == ERANGE && real > 0)
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected an integer of at most %lld", name,
                       text, (long long)most);
    if (most == INT64_MAX)
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected an integer of at least %lld%s", name,
                       text, (long long)least, hint);
    return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected an integer from %lld to %lld%s", name,
                   text, (long long)least, (long long)most, hint);
}

AmStatus option_parse_number(const char *name, const char *text, double least, double most, double *value,
                             AmError *error) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= least && number <= most))
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected a number from %g to %g%s", name, text,
                       least, most, unit_hint(text, end));
    *value = number;
    return AM_OK;
}

AmStatus option_parse_choice(const char *name, const char *text, const char *(*name_of)(int32_t),
                             int32_t count, int32_t *choice, AmError *error) {
    enum { MOST_NAMES = 64 };
    const char *known[MOST_NAMES] = {NULL};
    char hint[SUGGEST_HINT_BYTES];
    Text names = {0};
    for (int32_t k = 0; k < count && k < MOST_NAMES; k++) {
        known[k] = name_of(k);
        if (strcmp(known[k], text) == 0) {
            *choice = k;
            text_free(&names);
            return AM_OK;
        }
        text_append(&names, "%s%s", k ? ", " : "", known[k]);
    }
    /* The nearest name to "gpu" by letters is "cpu". */
    suggest_hint(hint, strcmp(text, "gpu") == 0 ? "cuda" : text, known,
                 count < 2 ? 0 : (size_t)(count < MOST_NAMES ? count : MOST_NAMES));
    am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected %s%s%s", name, text, count > 1 ? "one of " : "",
            names.data ? names.data : "", hint);
    text_free(&names);
    return AM_ERROR_USAGE;
}
